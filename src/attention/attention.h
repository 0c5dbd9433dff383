// Landmark attention: the shapes and views that the naive reference (reference.h) and the fused kernel (fused.h) share.
//
// Keys stand in blocks of `block_length` ordinary tokens, each followed by its landmark: key index L, 2L+1, ... with
// stride S = L + 1. A block length of at least the number of keys means plain causal attention: everything is one home
// block and there is no landmark.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace cairn {

struct AttentionShape {
  size_t batch = 1;
  size_t query_heads = 1;
  size_t kv_heads = 1;  // divides query_heads; query head h reads KV head h / (query_heads / kv_heads)
  size_t time = 1;      // queries
  size_t prefix = 0;    // keys before the first query: query i stands at key index prefix + i
  size_t dim = 1;       // of a head, 1 .. kMaxHeadDim
  size_t block_length = 1;
  float scale = 0;  // of the scores; 0 means 1/sqrt(dim)

  size_t keys() const { return prefix + time; }
  size_t stride() const { return block_length + 1; }
  size_t group() const { return query_heads / kv_heads; }
  // Blocks that have at least one key, the last of them perhaps unfinished.
  size_t blocks() const { return (keys() + block_length) / stride(); }
  float score_scale() const { return scale != 0 ? scale : 1.0f / std::sqrt(static_cast<float>(dim)); }
};

inline constexpr size_t kMaxHeadDim = 256;

// Block length for plain causal attention.
inline constexpr size_t kNoLandmarks = size_t{1} << 40;

// Throws BugError when the shape makes no sense.
void CheckShape(const AttentionShape& shape);

// A strided view on [batch][head][time][dim] whose dim is contiguous. Does not own.
template <typename T>
struct HeadsView {
  T* data = nullptr;
  size_t batch_stride = 0;
  size_t head_stride = 0;
  size_t time_stride = 0;

  T* Row(size_t batch, size_t head, size_t time) const {
    return data + batch * batch_stride + head * head_stride + time * time_stride;
  }
  operator HeadsView<const T>() const { return {data, batch_stride, head_stride, time_stride}; }
};

// Dense [batch][head][time][dim].
template <typename T>
HeadsView<T> DenseHeads(T* data, size_t heads, size_t time, size_t dim) {
  return {data, heads * time * dim, time * dim, dim};
}

// Dense [batch][time][head][dim], as a linear layer leaves it.
template <typename T>
HeadsView<T> InterleavedHeads(T* data, size_t heads, size_t time, size_t dim) {
  return {data, time * heads * dim, dim, heads * dim};
}

// The context-miss token (method, section 5): its key joins every home group; landmarks that it controls form a second
// softmax, and their blocks are weighted w * g * c with c the token's share of the home group. Its own value is never
// read, so a row that sees no controlled landmark sums to 1 - c.
template <typename T>
struct ContextMiss {
  const T* key = nullptr;               // [batch][kv_head][dim]; null: no context-miss token
  const uint8_t* controlled = nullptr;  // [batch][blocks()], 1 where the block's landmark is under control

  explicit operator bool() const { return key != nullptr; }
};

}  // namespace cairn
