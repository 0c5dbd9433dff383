// Naive landmark attention, forward and backward, in f32 or f64: one row at a time, a full row of weights, nothing
// clever. It mirrors the formulas of the method (section 2 and, for the context-miss token, section 5) and is the
// oracle of every faster kernel: of its test, its gradient check and its benchmark.
#pragma once

#include <span>
#include <vector>

#include "attention/attention.h"

namespace cairn {

// Dense arrays: q, out, dout, dq [batch][query_head][time][dim]; k, v, dk, dv [batch][kv_head][keys][dim];
// miss key and its gradient [batch][kv_head][dim]; weights [batch][query_head][time][keys].
template <typename T>
struct ReferenceInput {
  const T* q;
  const T* k;
  const T* v;
  ContextMiss<T> miss;
};

// `weights`, when not null, receives the final weight of every key (0 for landmarks and unseen keys).
template <typename T>
void ReferenceForward(const AttentionShape& shape, const ReferenceInput<T>& in, T* out, T* weights = nullptr);

template <typename T>
struct ReferenceGradients {
  T* dq;
  T* dk;
  T* dv;
  T* dmiss = nullptr;  // needed only with a context-miss token
};

// Overwrites the gradients.
template <typename T>
void ReferenceBackward(const AttentionShape& shape, const ReferenceInput<T>& in, const T* dout,
                       const ReferenceGradients<T>& gradients);

// The grouped softmax of one row, reusable where keys come from several places (memory_reference.h). Every visible key
// has a role; `group` numbers the blocks.
struct RowKey {
  enum Role : uint8_t {
    kHidden,              // not seen, weight 0
    kHome,                // ordinary token of the query's own block
    kToken,               // ordinary token of an earlier block, gated by that block's landmark
    kLandmark,            // landmark of an earlier block, in the home group
    kControlledLandmark,  // the same under the control of the context-miss token
  };
  Role role = kHidden;
  uint32_t group = 0;  // of kToken, kLandmark and kControlledLandmark; below keys.size()
};

// All of a row's softmax values. Vectors have one entry a key.
template <typename T>
struct RowWeights {
  std::vector<T> final;    // weight of the key's value; 0 for landmarks
  std::vector<T> inner;    // value in its own softmax group: home value, w, or gate g
  std::vector<T> gate_of;  // per group: weight of the block as a whole, g or g * c
  T miss = 0;              // c
};

// `scores` one a key, already scaled; `miss_score` null without a context-miss token. A row whose keys are all hidden
// gives zeros.
template <typename T>
void GroupedSoftmax(std::span<const RowKey> keys, std::span<const T> scores, const T* miss_score, RowWeights<T>& row);

// Given dL/d(final weight) of each key, gives dL/d(score) of each key; returns that of the miss score.
template <typename T>
T GroupedSoftmaxBackward(std::span<const RowKey> keys, const RowWeights<T>& row, std::span<const T> dfinal,
                         std::span<T> dscores);

// Roles of keys 0 .. keys()-1 for the query at key index `position`. `controlled` null, or one a block.
void CausalRowKeys(const AttentionShape& shape, size_t position, const uint8_t* controlled, std::vector<RowKey>& keys);

}  // namespace cairn
