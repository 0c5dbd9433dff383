#include "kernels/packed_rows.h"

#include <algorithm>
#include <cstring>

#include "tensor/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packed_rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using RowTag = hn::ScalableTag<float>;
using RowVec = hn::Vec<RowTag>;

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kWeightRows = 4;  // times 4 rows: 16 sums
#else
constexpr int kWeightRows = 2;
#endif
constexpr int kInRows = 4;

HWY_INLINE RowVec LoadWeights(const float* w) { return hn::LoadU(RowTag(), w); }
HWY_INLINE RowVec LoadWeights(const hwy::float16_t* w) {
  return hn::PromoteTo(RowTag(), hn::LoadU(hn::Rebind<hwy::float16_t, RowTag>(), w));
}
HWY_INLINE float LoadWeight(const float* w) { return *w; }
HWY_INLINE float LoadWeight(const hwy::float16_t* w) {
  uint16_t bits;
  std::memcpy(&bits, w, sizeof(bits));
  return HalfToFloat(bits);
}

// kRows rows of `in` times kWeights rows. Each sum has its own accumulator: the order of its additions depends on the
// number of columns alone.
template <class T, int kRows, int kWeights>
HWY_INLINE void DotTile(const RowProduct& product, size_t row, size_t weight_row) {
  const RowTag d;
  const size_t columns = product.columns;
  const size_t lanes = hn::Lanes(d);
  const T* w[kWeights];
  const float* x[kRows];
  RowVec sum[kRows][kWeights];
  for (int i = 0; i < kWeights; ++i) {
    w[i] = static_cast<const T*>(product.weights) + (weight_row + static_cast<size_t>(i)) * columns;
  }
  for (int r = 0; r < kRows; ++r) x[r] = product.in + (row + static_cast<size_t>(r)) * columns;
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int i = 0; i < kWeights; ++i) sum[r][i] = hn::Zero(d);
  }
  size_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    RowVec weights[kWeights];
#pragma GCC unroll 4
    for (int i = 0; i < kWeights; ++i) weights[i] = LoadWeights(w[i] + c);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const RowVec v = hn::LoadU(d, x[r] + c);
#pragma GCC unroll 4
      for (int i = 0; i < kWeights; ++i) sum[r][i] = hn::MulAdd(weights[i], v, sum[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kWeights; ++i) {
      float total = hn::GetLane(hn::SumOfLanes(d, sum[r][i]));
      for (size_t rest = c; rest < columns; ++rest) total += LoadWeight(w[i] + rest) * x[r][rest];
      float& out = product.out[(row + static_cast<size_t>(r)) * product.rows + weight_row + static_cast<size_t>(i)];
      out = product.accumulate ? out + total : total;
    }
  }
}

template <class T, int kWeights>
HWY_INLINE void DotRows(const RowProduct& product, size_t weight_row) {
  static_assert(kInRows == 4);
  size_t row = 0;
  for (; row + kInRows <= product.m; row += kInRows) DotTile<T, 4, kWeights>(product, row, weight_row);
  switch (product.m - row) {
    case 1:
      return DotTile<T, 1, kWeights>(product, row, weight_row);
    case 2:
      return DotTile<T, 2, kWeights>(product, row, weight_row);
    case 3:
      return DotTile<T, 3, kWeights>(product, row, weight_row);
    default:
      return;
  }
}

template <class T>
HWY_INLINE void DotRange(const RowProduct& product, size_t begin, size_t end) {
  size_t row = begin;
  for (; row + kWeightRows <= end; row += kWeightRows) DotRows<T, kWeightRows>(product, row);
  for (; row < end; ++row) DotRows<T, 1>(product, row);
}

// Weight rows [begin, end).
void MultiplyRowRange(const RowProduct& product, size_t begin, size_t end) {
  if (product.f16) {
    DotRange<hwy::float16_t>(product, begin, end);
  } else {
    DotRange<float>(product, begin, end);
  }
}

void HalvesToFloats(const void* halves, size_t begin, size_t end, float* out) {
  const RowTag d;
  const auto* from = static_cast<const hwy::float16_t*>(halves);
  size_t i = begin;
  for (; i + hn::Lanes(d) <= end; i += hn::Lanes(d)) hn::StoreU(LoadWeights(from + i), d, out + i - begin);
  for (; i < end; ++i) out[i - begin] = LoadWeight(from + i);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/aligned.h"
#include "base/threads.h"
#include "kernels/gemm.h"

namespace cairn {

namespace {

HWY_EXPORT(MultiplyRowRange);
HWY_EXPORT(HalvesToFloats);

// Up to here the product is bound by the memory, and the own kernel is faster than oneDNN.
constexpr size_t kOwnRows = 8;

void MultiplyFew(const RowProduct& product) {
  const size_t row_bytes = product.columns * (product.f16 ? 2 : 4);
  constexpr size_t kFewBytes = 64 << 10;
  if (product.rows * row_bytes <= kFewBytes) {
    HWY_DYNAMIC_DISPATCH(MultiplyRowRange)(product, 0, product.rows);
    return;
  }
  constexpr size_t kTaskBytes = 128 << 10;
  const size_t threads = static_cast<size_t>(ThreadCount());
  const size_t share = (product.rows + threads - 1) / threads;
  const size_t run = (std::min(share, std::max<size_t>(1, kTaskBytes / row_bytes)) + 3) / 4 * 4;
  ParallelFor((product.rows + run - 1) / run, [&](size_t task, int) {
    HWY_DYNAMIC_DISPATCH(MultiplyRowRange)(product, task * run, std::min(product.rows, (task + 1) * run));
  });
}

MatMul ShapeOf(const RowProduct& product, size_t rows) {
  MatMul shape;
  shape.m = product.m;
  shape.n = rows;
  shape.k = product.columns;
  shape.transpose_b = true;
  shape.accumulate = product.accumulate;
  shape.stride_c = product.rows;
  return shape;
}

// Some rows of W at a time as f32, for oneDNN.
void MultiplyHalves(const RowProduct& product) {
  constexpr size_t kScratchFloats = size_t{1} << 20;
  thread_local AlignedBuffer<float> scratch;
  const size_t run = std::min(product.rows, std::max<size_t>(64, kScratchFloats / product.columns / 64 * 64));
  if (scratch.size() < run * product.columns) scratch = AlignedBuffer<float>(run * product.columns);
  float* floats = scratch.data();
  for (size_t begin = 0; begin < product.rows; begin += run) {
    const size_t count = std::min(run, product.rows - begin);
    constexpr size_t kPieceRows = 16;
    ParallelFor((count + kPieceRows - 1) / kPieceRows, [&](size_t piece, int) {
      const size_t first = piece * kPieceRows;
      const size_t last = std::min(count, first + kPieceRows);
      HWY_DYNAMIC_DISPATCH(HalvesToFloats)
      (product.weights, (begin + first) * product.columns, (begin + last) * product.columns,
       floats + first * product.columns);
    });
    RunMatMul(ShapeOf(product, count), product.in, floats, product.out + begin);
  }
}

}  // namespace

void MultiplyRows(const RowProduct& product) {
  if (product.m <= kOwnRows) return MultiplyFew(product);
  if (product.f16) return MultiplyHalves(product);
  RunMatMul(ShapeOf(product, product.rows), product.in, static_cast<const float*>(product.weights), product.out);
}

}  // namespace cairn
#endif  // HWY_ONCE
