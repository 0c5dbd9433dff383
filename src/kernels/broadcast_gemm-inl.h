// Small matrix products on tiles that live in the caches: C[m][n] = sum over k of A[m][k] * B[k][n], lanes along n,
// A read one broadcast element at a time, so A may have any strides. What happens with a finished element is up to the
// caller. Compiled for every instruction set (see exp-inl.h about the guard).
#if defined(CAIRN_KERNELS_BROADCAST_GEMM_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KERNELS_BROADCAST_GEMM_INL_H
#undef CAIRN_KERNELS_BROADCAST_GEMM_INL_H
#else
#define CAIRN_KERNELS_BROADCAST_GEMM_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/broadcast_gemm.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors of at most 16 floats: tiles are padded to 16 columns.
using TileTag = hn::CappedTag<float, 16>;
using TileVec = hn::Vec<TileTag>;

// Accumulators held in registers: kGemmRows x kGemmVecs of them, one broadcast and kGemmVecs of B beside.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
inline constexpr int kGemmVecs = 4;  // 32 registers
#else
inline constexpr int kGemmVecs = 2;  // 16 registers
#endif
inline constexpr int kGemmRows = 6;

HWY_INLINE TileVec LoadRight(const float* data) { return hn::Load(TileTag(), data); }
HWY_INLINE TileVec LoadRight(const uint16_t* data) {
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  return hn::PromoteTo(d, hn::Load(half, reinterpret_cast<const hwy::float16_t*>(data)));
}

HWY_INLINE TileVec LoadRight(const int8_t* data) {
  const TileTag d;
  const hn::Rebind<int8_t, TileTag> bytes;
  const hn::Rebind<int32_t, TileTag> words;
  return hn::ConvertTo(d, hn::PromoteTo(words, hn::Load(bytes, data)));
}

// `store(row, column, sum)` receives each finished vector.
template <int kRows, int kVecs, class Right, class Store>
HWY_INLINE void GemmMicro(const GemmLeft& a, const Right& b, const GemmDepth& depth, size_t row, size_t column,
                          const Store& store) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  TileVec sum[kRows][kVecs];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) sum[m][n] = hn::Zero(d);
  }
  const float* HWY_RESTRICT pa = a.data + row * a.row_stride;
  const auto* HWY_RESTRICT pb = b.data + column;
  for (size_t run = 0; run < depth.runs; ++run) {
    for (size_t k = 0; k < depth.length; ++k) {
      TileVec right[kVecs];
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) right[n] = LoadRight(pb + static_cast<size_t>(n) * lanes);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const TileVec left = hn::Set(d, pa[static_cast<size_t>(m) * a.row_stride]);
#pragma GCC unroll 4
        for (int n = 0; n < kVecs; ++n) sum[m][n] = hn::MulAdd(left, right[n], sum[m][n]);
      }
      pa += a.depth_stride;
      pb += b.depth_stride;
    }
    pa += depth.skip * a.depth_stride;
    pb += depth.skip * b.depth_stride;
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) {
      store(row + static_cast<size_t>(m), column + static_cast<size_t>(n) * lanes, sum[m][n]);
    }
  }
}

template <int kVecs, class Right, class Store>
HWY_INLINE void GemmColumns(const GemmLeft& a, const Right& b, const GemmDepth& depth, size_t rows, size_t column,
                            const Store& store) {
  size_t row = 0;
  for (; row + kGemmRows <= rows; row += kGemmRows) GemmMicro<kGemmRows, kVecs>(a, b, depth, row, column, store);
  switch (rows - row) {
    case 1:
      return GemmMicro<1, kVecs>(a, b, depth, row, column, store);
    case 2:
      return GemmMicro<2, kVecs>(a, b, depth, row, column, store);
    case 3:
      return GemmMicro<3, kVecs>(a, b, depth, row, column, store);
    case 4:
      return GemmMicro<4, kVecs>(a, b, depth, row, column, store);
    case 5:
      return GemmMicro<5, kVecs>(a, b, depth, row, column, store);
    default:
      return;
  }
}

// Columns [begin, end), both multiples of the vector length; rows [0, rows).
template <class Right, class Store>
HWY_NOINLINE void Gemm(const GemmLeft& a, const Right& b, const GemmDepth& depth, size_t rows, size_t begin, size_t end,
                       const Store& store) {
  const size_t lanes = hn::Lanes(TileTag());
  size_t column = begin;
  if constexpr (kGemmVecs >= 4) {
    for (; column + 4 * lanes <= end; column += 4 * lanes) GemmColumns<4>(a, b, depth, rows, column, store);
  }
  for (; column + 2 * lanes <= end; column += 2 * lanes) GemmColumns<2>(a, b, depth, rows, column, store);
  for (; column < end; column += lanes) GemmColumns<1>(a, b, depth, rows, column, store);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
