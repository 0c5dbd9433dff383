// The softmax of one row of scores. Compiled for every instruction set (see exp-inl.h about the guard).
#if defined(CAIRN_ATTENTION_SOFTMAX_ROW_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_SOFTMAX_ROW_INL_H
#undef CAIRN_ATTENTION_SOFTMAX_ROW_INL_H
#else
#define CAIRN_ATTENTION_SOFTMAX_ROW_INL_H
#endif

#include <hwy/highway.h>

#include "kernels/broadcast_gemm-inl.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Turns a row of scores into 2^(score - max) over its tokens; returns max and sum.
HWY_INLINE void SoftmaxRow(float* row, size_t tokens, float& max_out, float& sum_out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const TileVec lowest = hn::Set(d, -1e37f);
  TileVec max = lowest;
  size_t j = 0;
  for (; j + lanes <= tokens; j += lanes) max = hn::Max(max, hn::Load(d, row + j));
  const auto rest = hn::FirstN(d, tokens - j);
  if (j < tokens) max = hn::Max(max, hn::IfThenElse(rest, hn::Load(d, row + j), lowest));
  max = hn::MaxOfLanes(d, max);
  TileVec sum = hn::Zero(d);
  for (j = 0; j + lanes <= tokens; j += lanes) {
    const TileVec weight = Exp2(d, hn::Sub(hn::Load(d, row + j), max));
    hn::Store(weight, d, row + j);
    sum = hn::Add(sum, weight);
  }
  if (j < tokens) {
    const TileVec weight = hn::IfThenElseZero(rest, Exp2(d, hn::Sub(hn::Load(d, row + j), max)));
    hn::Store(weight, d, row + j);
    sum = hn::Add(sum, weight);
  }
  max_out = hn::GetLane(max);
  sum_out = hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
