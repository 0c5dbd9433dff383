// The product of one row with a matrix in the layout of broadcast_gemm-inl.h. Compiled for every instruction set (see
// exp-inl.h about the guard).
#if defined(CAIRN_ATTENTION_ONE_ROW_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_ONE_ROW_INL_H
#undef CAIRN_ATTENTION_ONE_ROW_INL_H
#else
#define CAIRN_ATTENTION_ONE_ROW_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/broadcast_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One row against kVecs vectors of columns, two values of k at a time: a lone row would wait for each sum otherwise.
template <int kVecs, class Right, class Store>
HWY_INLINE void OneRowMicro(const float* HWY_RESTRICT left, const Right& right, size_t depth, size_t column,
                            const Store& store) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  TileVec even[kVecs], odd[kVecs];
#pragma GCC unroll 8
  for (int n = 0; n < kVecs; ++n) even[n] = odd[n] = hn::Zero(d);
  const auto* HWY_RESTRICT b = right.data + column;
  size_t k = 0;
  for (; k + 2 <= depth; k += 2) {
    const TileVec x = hn::Set(d, left[k]);
    const TileVec y = hn::Set(d, left[k + 1]);
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) {
      even[n] = hn::MulAdd(x, LoadRight(b + static_cast<size_t>(n) * lanes), even[n]);
      odd[n] = hn::MulAdd(y, LoadRight(b + right.depth_stride + static_cast<size_t>(n) * lanes), odd[n]);
    }
    b += 2 * right.depth_stride;
  }
  if (k < depth) {
    const TileVec x = hn::Set(d, left[k]);
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) even[n] = hn::MulAdd(x, LoadRight(b + static_cast<size_t>(n) * lanes), even[n]);
  }
#pragma GCC unroll 8
  for (int n = 0; n < kVecs; ++n) store(column + static_cast<size_t>(n) * lanes, hn::Add(even[n], odd[n]));
}

template <class Right, class Store>
HWY_INLINE void OneRow(const float* left, const Right& right, size_t depth, size_t columns, const Store& store) {
  const size_t lanes = hn::Lanes(TileTag());
  size_t column = 0;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  for (; column + 8 * lanes <= columns; column += 8 * lanes) OneRowMicro<8>(left, right, depth, column, store);
#endif
  for (; column + 4 * lanes <= columns; column += 4 * lanes) OneRowMicro<4>(left, right, depth, column, store);
  if (column + 3 * lanes == columns) return OneRowMicro<3>(left, right, depth, column, store);
  for (; column < columns; column += lanes) OneRowMicro<1>(left, right, depth, column, store);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
