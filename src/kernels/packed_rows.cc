#include "kernels/packed_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "tensor/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packed_rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using RowTag = hn::ScalableTag<float>;
using RowVec = hn::Vec<RowTag>;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kWeightRows = 6;  // times 4 rows: 24 sums
#else
constexpr int kWeightRows = 2;
#endif
constexpr int kInRows = 4;

HWY_INLINE RowVec LoadWeights(const float* w) { return hn::LoadU(RowTag(), w); }
HWY_INLINE RowVec LoadWeights(const hwy::float16_t* w) {
  return hn::PromoteTo(RowTag(), hn::LoadU(hn::Rebind<hwy::float16_t, RowTag>(), w));
}
HWY_INLINE float LoadWeight(const hwy::float16_t* w) {
  uint16_t bits;
  std::memcpy(&bits, w, sizeof(bits));
  return HalfToFloat(bits);
}

// kRows rows of `in` times kWeights rows. Each sum has its own accumulator: the order of its additions depends on the
// number of columns alone.
template <class T, int kRows, int kWeights>
HWY_INLINE void DotTile(const RowProduct& product, size_t row, const T* weights_begin, size_t weight_row) {
  const RowTag d;
  const size_t columns = product.columns;
  const size_t lanes = hn::Lanes(d);
  const T* w[kWeights];
  const float* x[kRows];
  RowVec sum[kRows][kWeights];
  for (int i = 0; i < kWeights; ++i) {
    w[i] = weights_begin + static_cast<size_t>(i) * columns;
  }
  for (int r = 0; r < kRows; ++r) x[r] = product.in + (row + static_cast<size_t>(r)) * columns;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kWeights; ++i) sum[r][i] = hn::Zero(d);
  }
  const auto add = [&](const T* const(&from)[kWeights], const float* const(&in)[kRows], size_t c) HWY_ATTR {
    RowVec weights[kWeights];
#pragma GCC unroll 8
    for (int i = 0; i < kWeights; ++i) weights[i] = LoadWeights(from[i] + c);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const RowVec v = hn::LoadU(d, in[r] + c);
#pragma GCC unroll 8
      for (int i = 0; i < kWeights; ++i) sum[r][i] = hn::MulAdd(weights[i], v, sum[r][i]);
    }
  };
  // Of one row the weights are the work: those of the next tile are asked for while these are used. Rows are short, and
  // the processor, which sees kWeights streams begin and end, asks too late.
  const auto* next = reinterpret_cast<const std::byte*>(weights_begin + static_cast<size_t>(kWeights) * columns);
  size_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    if constexpr (kRows == 1) {
      const std::byte* ahead = next + c * static_cast<size_t>(kWeights) * sizeof(T);
      for (size_t line = 0; line < static_cast<size_t>(kWeights) * lanes * sizeof(T); line += 64)
        hwy::Prefetch(ahead + line);
    }
    add(w, x, c);
  }
  if (c < columns) {
    // The rest, filled up with zeros.
    constexpr size_t kLanes = hn::MaxLanes(d);
    T last_w[kWeights][kLanes] = {};
    float last_x[kRows][kLanes] = {};
    const T* from[kWeights];
    const float* in[kRows];
    for (int i = 0; i < kWeights; ++i) {
      std::memcpy(last_w[i], w[i] + c, (columns - c) * sizeof(T));
      from[i] = last_w[i];
    }
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(last_x[r], x[r] + c, (columns - c) * sizeof(float));
      in[r] = last_x[r];
    }
    add(from, in, 0);
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kWeights; ++i) {
      const float total = hn::GetLane(hn::SumOfLanes(d, sum[r][i]));
      float& out = product.out[(row + static_cast<size_t>(r)) * product.rows + weight_row + static_cast<size_t>(i)];
      out = product.accumulate ? out + total : total;
    }
  }
}

// `weights` are those of kWeights rows of W from `weight_row` on.
template <class T, int kWeights>
HWY_INLINE void DotRows(const RowProduct& product, const RowRange& rows, const T* weights, size_t weight_row) {
  static_assert(kInRows == 4);
  size_t row = rows.begin;
  for (; row + kInRows <= rows.end; row += kInRows) DotTile<T, 4, kWeights>(product, row, weights, weight_row);
  switch (rows.end - row) {
    case 1:
      return DotTile<T, 1, kWeights>(product, row, weights, weight_row);
    case 2:
      return DotTile<T, 2, kWeights>(product, row, weights, weight_row);
    case 3:
      return DotTile<T, 3, kWeights>(product, row, weights, weight_row);
    default:
      return;
  }
}

void HalvesToFloats(const hwy::float16_t* from, size_t count, float* out) {
  const RowTag d;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) hn::StoreU(LoadWeights(from + i), d, out + i);
  for (; i < count; ++i) out[i] = LoadWeight(from + i);
}

template <int kWeights>
HWY_INLINE void DotSome(const RowProduct& product, const RowRange& rows, size_t weight_row, float* scratch) {
  const size_t at = weight_row * product.columns;
  if (!product.f16) {
    return DotRows<float, kWeights>(product, rows, static_cast<const float*>(product.weights) + at, weight_row);
  }
  const auto* halves = static_cast<const hwy::float16_t*>(product.weights) + at;
  if (rows.end - rows.begin <= kInRows) return DotRows<hwy::float16_t, kWeights>(product, rows, halves, weight_row);
  // Converted once for all rows.
  HalvesToFloats(halves, kWeights * product.columns, scratch);
  DotRows<float, kWeights>(product, rows, scratch, weight_row);
}

// Rows `rows` of `in` times rows `weights` of W. `scratch` has room for kScratchRows rows.
void MultiplyRowRange(const RowProduct& product, const RowRange& rows, const RowRange& weights, float* scratch) {
  static_assert(kWeightRows <= kScratchRows && kScratchRows % kWeightRows == 0);
  size_t row = weights.begin;
  for (; row + kWeightRows <= weights.end; row += kWeightRows) DotSome<kWeightRows>(product, rows, row, scratch);
  for (; row < weights.end; ++row) DotSome<1>(product, rows, row, scratch);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/threads.h"
#include "kernels/thread_scratch.h"

namespace cairn {

namespace {

HWY_EXPORT(MultiplyRowRange);

// This thread's room for some rows of f16 as f32.
float* Scratch(size_t size) { return ThreadScratch<float, class PackedRows>(size); }

}  // namespace

void MultiplyRows(const RowProduct& product) {
  const size_t row_bytes = product.columns * (product.f16 ? 2 : 4);
  // The rows of a chunk stay in the second cache while all weights pass by.
  constexpr size_t kChunkFloats = 128 << 10;
  const size_t chunk_limit = std::max<size_t>(16, kChunkFloats / product.columns / 4 * 4);
  const size_t chunks = (product.m + chunk_limit - 1) / chunk_limit;
  const size_t chunk = (product.m + chunks - 1) / chunks;
  // Tasks of about this many bytes of weights, and enough of them for all threads.
  constexpr size_t kTaskBytes = 128 << 10;
  const size_t threads = static_cast<size_t>(ThreadCount());
  const size_t share = (product.rows + threads - 1) / threads;
  const size_t rows = std::min(share, kTaskBytes / row_bytes + 1);
  const size_t run = (rows + kScratchRows - 1) / kScratchRows * kScratchRows;
  const size_t runs = (product.rows + run - 1) / run;
  const auto body = [&](size_t task, int) {
    const size_t row = task / runs * chunk;
    const size_t weight_row = task % runs * run;
    HWY_DYNAMIC_DISPATCH(MultiplyRowRange)
    (product, {row, std::min(product.m, row + chunk)}, {weight_row, std::min(product.rows, weight_row + run)},
     product.f16 ? Scratch(kScratchRows * product.columns) : nullptr);
  };
  constexpr size_t kFewBytes = 128 << 10;  // waking the threads costs more
  if (product.m * product.rows * row_bytes <= kFewBytes) {
    for (size_t task = 0; task < chunks * runs; ++task) body(task, 0);
  } else {
    ParallelFor(chunks * runs, body);
  }
}

}  // namespace cairn
#endif  // HWY_ONCE
