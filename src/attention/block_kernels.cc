#include "attention/block_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/block_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "attention/one_row-inl.h"
#include "attention/softmax_row-inl.h"
#include "kernels/broadcast_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries of one block that are worked on together: their scores stay in the first-level cache.
inline constexpr size_t kRowsAtOnce = 24;

// out = out * keep + value * add.
HWY_INLINE void MergeRow(float* out, float keep, const float* value, float add, size_t dim) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  const auto vkeep = hn::Set(d, keep);
  const auto vadd = hn::Set(d, add);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const auto old = hn::Mul(hn::LoadU(d, out + i), vkeep);
    hn::StoreU(hn::MulAdd(hn::Load(d, value + i), vadd, old), d, out + i);
  }
  for (; i < dim; ++i) out[i] = out[i] * keep + value[i] * add;
}

HWY_INLINE float DotRow(const float* a, const float* b, size_t dim) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) sum = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sum);
  float result = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < dim; ++i) result += a[i] * b[i];
  return result;
}

// Where numbers are stored in units: those of keys and of values, and the landmark's key, which has none.
struct BlockUnits {
  float keys = 1, values = 1;
  const float* landmark = nullptr;  // null: in the column after the tokens
};

template <class Right>
void ReadParts(const BlockShape& shape, const BlockUnits& units, const Right& keys, const Right& stored_values,
               size_t count, const float* queries, const RunningGroup* groups, float* gates, float* scratch) {
  const TileTag d;
  const TileVec unit = hn::Set(d, units.keys);
  const size_t columns = shape.padded_columns();
  const size_t padded = shape.padded_dim();
  float* scores = scratch;
  float* values = scratch + kRowsAtOnce * columns;
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    const size_t rows = std::min(kRowsAtOnce, count - begin);
    if (rows == 1) {
      OneRow(queries + begin * shape.dim, keys, shape.dim, columns,
             [&](size_t column, TileVec sum) { hn::Store(hn::Mul(sum, unit), d, scores + column); });
    } else {
      Gemm(GemmLeft{queries + begin * shape.dim, shape.dim, 1}, keys, GemmDepth{shape.dim}, rows, 0, columns,
           [&](size_t row, size_t column, TileVec sum) {
             hn::Store(hn::Mul(sum, unit), d, scores + row * columns + column);
           });
    }
    float max[kRowsAtOnce];
    float sum[kRowsAtOnce];
    float gate[kRowsAtOnce];
    for (size_t r = 0; r < rows; ++r) {
      float* row = scores + r * columns;
      gate[r] = shape.landmark ? row[shape.tokens] : 0;
      if (units.landmark != nullptr) gate[r] = DotRow(queries + (begin + r) * shape.dim, units.landmark, shape.dim);
      SoftmaxRow(row, shape.tokens, max[r], sum[r]);
      if (!shape.landmark) gate[r] = max[r] + std::log2(sum[r]);
      gate[r] = std::clamp(gate[r], -1e37f, 1e37f);
    }
    if (rows == 1) {
      OneRow(scores, stored_values, shape.tokens, padded,
             [&](size_t column, TileVec value) { hn::Store(value, d, values + column); });
    } else {
      Gemm(GemmLeft{scores, columns, 1}, stored_values, GemmDepth{shape.tokens}, rows, 0, padded,
           [&](size_t row, size_t column, TileVec value) { hn::Store(value, d, values + row * padded + column); });
    }
    for (size_t r = 0; r < rows; ++r) {
      const RunningGroup& group = groups[begin + r];
      const float top = std::max(*group.max, gate[r]);
      const float keep = std::exp2(*group.max - top);
      const float add = std::exp2(gate[r] - top);
      MergeRow(group.out, keep, values + r * padded, units.values * add / sum[r], shape.dim);
      *group.max = top;
      *group.sum = *group.sum * keep + add;
      if (gates != nullptr) gates[begin + r] = gate[r];
    }
  }
}

// An int8 block as floats: keys and values as in a block of f32.
void ExpandInt8(const BlockShape& shape, const std::byte* block, float* out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const hn::Rebind<int8_t, TileTag> bytes;
  const auto* header = reinterpret_cast<const float*>(block);
  const auto* from = reinterpret_cast<const int8_t*>(block + shape.header_bytes());
  const auto expand = [&](size_t begin, size_t end, float scale) {
    const TileVec factor = hn::Set(d, scale);
    for (size_t i = begin; i < end; i += lanes) {
      const hn::Rebind<int32_t, TileTag> words;
      hn::Store(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(words, hn::LoadU(bytes, from + i))), factor), d, out + i);
    }
  };
  expand(0, shape.key_numbers(), header[0]);
  expand(shape.key_numbers(), shape.numbers(), header[1]);
  if (!shape.landmark) return;
  for (size_t i = 0; i < shape.dim; ++i) out[i * shape.padded_columns() + shape.tokens] = header[2 + i];
}

void ReadBlockImpl(const BlockShape& shape, const std::byte* block, size_t count, const float* queries,
                   const RunningGroup* groups, float* gates, float* scratch) {
  const size_t columns = shape.padded_columns();
  const size_t padded = shape.padded_dim();
  const auto read = [&](const BlockUnits& units, const auto& keys, const auto& values) {
    ReadParts(shape, units, keys, values, count, queries, groups, gates, scratch);
  };
  if (shape.format == BlockFormat::kF16) {
    const auto* numbers = reinterpret_cast<const uint16_t*>(block);
    read({}, GemmRightHalf{numbers, columns}, GemmRightHalf{numbers + shape.key_numbers(), padded});
  } else if (shape.format == BlockFormat::kInt8) {
    const auto* header = reinterpret_cast<const float*>(block);
    const auto* numbers = reinterpret_cast<const int8_t*>(block + shape.header_bytes());
    read({header[0], header[1], shape.landmark ? header + 2 : nullptr}, GemmRightByte{numbers, columns},
         GemmRightByte{numbers + shape.key_numbers(), padded});
  } else {
    const auto* numbers = reinterpret_cast<const float*>(block);
    read({}, GemmRight{numbers, columns}, GemmRight{numbers + shape.key_numbers(), padded});
  }
}

void FromHalfImpl(const uint16_t* from, size_t count, float* to) {
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from + i))), d, to + i);
  }
}

void ToHalfImpl(const float* from, size_t count, uint16_t* to) {  // count: whole groups of 16
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  const TileVec largest = hn::Set(d, 65504.0f);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const TileVec value = hn::Min(hn::Max(hn::LoadU(d, from + i), hn::Neg(largest)), largest);
    hn::StoreU(hn::DemoteTo(half, value), half, reinterpret_cast<hwy::float16_t*>(to + i));
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/error.h"
#include "kernels/thread_scratch.h"

namespace cairn {
namespace {

HWY_EXPORT(ReadBlockImpl);
HWY_EXPORT(ExpandInt8);
HWY_EXPORT(ToHalfImpl);
HWY_EXPORT(FromHalfImpl);

float* Scratch(size_t floats) { return ThreadScratch<float, class BlockKernels>(floats); }

}  // namespace

std::string_view NameOf(BlockFormat format) {
  constexpr std::string_view kNames[] = {"f32", "f16", "int8"};
  return kNames[static_cast<size_t>(format)];
}

std::optional<BlockFormat> BlockFormatNamed(std::string_view name) {
  for (const auto format : {BlockFormat::kF32, BlockFormat::kF16, BlockFormat::kInt8}) {
    if (NameOf(format) == name) return format;
  }
  return std::nullopt;
}

void TransposeRows(const BlockShape& shape, const float* rows, size_t count, size_t stride, float* to) {
  const size_t columns = shape.padded_columns();
  // Eight rows at a time: more may fall into the same lines of the cache.
  for (size_t first = 0; first < columns; first += 8) {
    const size_t last = std::clamp(count, first, first + 8);
    for (size_t i = 0; i < shape.dim; ++i) {
      float* row = to + i * columns;
      for (size_t j = first; j < last; ++j) row[j] = rows[j * stride + i];
      std::fill(row + last, row + first + 8, 0.0f);
    }
  }
}

void StoreBlock(const BlockShape& shape, const float* keys, const float* values, size_t stride, std::byte* block) {
  const size_t columns = shape.padded_columns();
  const bool plain = shape.format == BlockFormat::kF32;
  float* numbers = plain ? reinterpret_cast<float*>(block) : Scratch(RoundUp(shape.numbers(), 16));
  TransposeRows(shape, keys, shape.columns(), stride, numbers);
  float* to = numbers + shape.key_numbers();
  for (size_t j = 0; j < shape.tokens; ++j, to += shape.padded_dim()) {
    std::copy_n(values + j * stride, shape.dim, to);
    std::fill(to + shape.dim, to + shape.padded_dim(), 0.0f);
  }
  if (plain) return;
  if (shape.format == BlockFormat::kF16) {
    HWY_DYNAMIC_DISPATCH(ToHalfImpl)(numbers, shape.numbers(), reinterpret_cast<uint16_t*>(block));
    return;
  }
  auto* header = reinterpret_cast<float*>(block);
  std::fill_n(header, shape.header_bytes() / sizeof(float), 0.0f);
  for (size_t i = 0; i < shape.dim && shape.landmark; ++i) {
    header[2 + i] = std::exchange(numbers[i * columns + shape.tokens], 0.0f);
  }
  auto* bytes = reinterpret_cast<int8_t*>(block + shape.header_bytes());
  for (const auto& [part, begin, end] :
       {std::tuple{0, size_t{0}, shape.key_numbers()}, std::tuple{1, shape.key_numbers(), shape.numbers()}}) {
    float largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(numbers[i]));
    header[part] = largest / 127.0f;
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (size_t i = begin; i < end; ++i) bytes[i] = static_cast<int8_t>(std::lrint(numbers[i] * inverse));
  }
}

void LoadBlock(const BlockShape& shape, const std::byte* block, size_t tokens, size_t stride, float* keys,
               float* values) {
  const auto* numbers = reinterpret_cast<const float*>(block);
  if (shape.format != BlockFormat::kF32) {
    float* scratch = Scratch(RoundUp(shape.numbers(), 16));
    if (shape.format == BlockFormat::kF16) {
      HWY_DYNAMIC_DISPATCH(FromHalfImpl)(reinterpret_cast<const uint16_t*>(block), shape.numbers(), scratch);
    } else {
      HWY_DYNAMIC_DISPATCH(ExpandInt8)(shape, block, scratch);
    }
    numbers = scratch;
  }
  const float* from = numbers + shape.key_numbers();
  for (size_t j = 0; j < tokens; ++j) {
    for (size_t i = 0; i < shape.dim; ++i) keys[j * stride + i] = numbers[i * shape.padded_columns() + j];
    std::copy_n(from + j * shape.padded_dim(), shape.dim, values + j * stride);
  }
}

void ReadBlock(const BlockShape& shape, const std::byte* block, size_t count, const float* queries,
               const RunningGroup* groups, float* gates) {
  float* scratch = Scratch(24 * (shape.padded_columns() + shape.padded_dim()));
  HWY_DYNAMIC_DISPATCH(ReadBlockImpl)(shape, block, count, queries, groups, gates, scratch);
}

}  // namespace cairn
#endif  // HWY_ONCE
