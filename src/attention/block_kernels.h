// Reading finished blocks at inference: a block's keys and values in the layout that the products stream.
// Single-threaded pieces; the caller spreads them over threads. Agrees with the memory reference (memory_reference.h)
// to rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/aligned.h"
#include "base/checked.h"

namespace cairn {

// How the numbers of a block are held.
enum class BlockFormat {
  kF32,
  kF16,
  kInt8,  // with one scale for the keys and one for the values of a block; the landmark's key stays f32
};

std::string_view NameOf(BlockFormat format);  // "f32", "f16", "int8"
std::optional<BlockFormat> BlockFormatNamed(std::string_view name);

// A block of one KV head: keys transposed, [dim][padded_columns], the landmark's in the column after the tokens'; then
// values, [tokens][padded_dim]. Without a landmark it is a piece of an ordinary KV cache. An int8 block begins with its
// two scales and the landmark's key, f32, padded to 64 bytes.
struct BlockShape {
  size_t dim = 2;
  size_t tokens = 1;  // L
  bool landmark = true;
  BlockFormat format = BlockFormat::kF32;

  size_t columns() const { return tokens + (landmark ? 1 : 0); }  // positions
  size_t padded_columns() const { return RoundUp(columns(), 16); }
  size_t padded_dim() const { return RoundUp(dim, 16); }
  size_t key_numbers() const { return dim * padded_columns(); }
  size_t numbers() const { return key_numbers() + tokens * padded_dim(); }
  size_t header_bytes() const { return format == BlockFormat::kInt8 ? RoundUp((2 + dim) * sizeof(float), 64) : 0; }
  size_t bytes() const {
    const size_t each = format == BlockFormat::kF32 ? 4 : format == BlockFormat::kF16 ? 2 : 1;
    return RoundUp(header_bytes() + numbers() * each, 64);
  }

  bool operator==(const BlockShape&) const = default;
};

// `count` rows of `dim` numbers, `stride` apart, as columns: to[dim][padded_columns], the other columns 0.
void TransposeRows(const BlockShape& shape, const float* rows, size_t count, size_t stride, float* to);

// Rows of keys ([columns]) and values ([tokens]), `stride` apart, into a block of shape.bytes(), and the first `tokens`
// of them back.
void StoreBlock(const BlockShape& shape, const float* keys, const float* values, size_t stride, std::byte* block);
void LoadBlock(const BlockShape& shape, const std::byte* block, size_t tokens, size_t stride, float* keys,
               float* values);

// One softmax group of a query as it is being built, in units of log 2: sum = sum of 2^(score - max), and `out` [dim]
// the values weighted with it, not yet divided by it.
struct RunningGroup {
  float* max;
  float* sum;
  float* out;
};

// `queries` [count][dim], scaled so that a dot product with a key is a score in units of log 2. Each block enters the
// group of each query as one member: its value is its tokens' softmax average, its score the landmark's, or without a
// landmark the log-sum-exp of its tokens. `gates` [count], or null: that score.
void ReadBlock(const BlockShape& shape, const std::byte* block, size_t count, const float* queries,
               const RunningGroup* groups, float* gates);

}  // namespace cairn
