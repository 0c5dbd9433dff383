// The fused landmark attention kernel, forward and backward: SIMD with run-time dispatch, all threads, no T x T matrix.
// Agrees with the naive reference (reference.h) to rounding. Plain causal attention is the same kernel with one block
// (block_length = kNoLandmarks).
#pragma once

#include "attention/attention.h"

namespace cairn {

// q and out are [batch][query_head][time]; k and v are [batch][kv_head][keys]. A landmark's value is never read.
struct FusedInput {
  HeadsView<const float> q;
  HeadsView<const float> k;
  HeadsView<const float> v;
  ContextMiss<float> miss;
};

// What the forward pass leaves for the backward pass, O(time) a head. Scores are in units of log 2 here.
struct FusedSaved {
  float* home_max = nullptr;      // [batch][query_head][time]: largest score of the home group
  float* home_inverse = nullptr;  // 1 / sum of 2^(score - max) over the home group
  // Only with a context-miss token: the same of the controlled landmarks' group, and what that group alone would give.
  float* miss_max = nullptr;
  float* miss_inverse = nullptr;
  float* miss_out = nullptr;  // [batch][query_head][time][dim]
};

// Floats that FusedSaved needs, and its pointers laid into such a stretch of memory.
size_t SavedFloats(const AttentionShape& shape, bool with_miss);
FusedSaved LayOutSaved(const AttentionShape& shape, bool with_miss, float* memory);

// Bytes that a call works in, all threads together; the forward pass keeps them for the next call of its thread.
size_t ForwardScratchBytes(const AttentionShape& shape, bool with_miss);
size_t BackwardScratchBytes(const AttentionShape& shape, bool with_miss);

// `saved` may be null where no backward pass follows.
void FusedForward(const AttentionShape& shape, const FusedInput& in, HeadsView<float> out, const FusedSaved* saved);

struct FusedGradients {
  HeadsView<float> dq;
  HeadsView<float> dk;
  HeadsView<float> dv;
  float* dmiss = nullptr;  // [batch][kv_head][dim]; needed only with a context-miss token
};

// Overwrites the gradients. `out` is what FusedForward gave.
void FusedBackward(const AttentionShape& shape, const FusedInput& in, HeadsView<const float> out,
                   HeadsView<const float> dout, const FusedSaved& saved, const FusedGradients& gradients);

}  // namespace cairn
