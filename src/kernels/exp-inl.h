// Vector 2^x for softmax, compiled for every instruction set. Included by the files that Highway's foreach_target
// compiles again and again; hence no ordinary include guard.
#if defined(CAIRN_KERNELS_EXP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KERNELS_EXP_INL_H
#undef CAIRN_KERNELS_EXP_INL_H
#else
#define CAIRN_KERNELS_EXP_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// 2^x with a relative error below 2e-7 for x in [-126, 126]; smaller x count as -126. A softmax subtracts its maximum
// first, so x is not positive there and the result of a hopeless score is 1e-38 instead of 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const V magic = hn::Set(d, 12582912.0f);
  x = hn::Max(x, hn::Set(d, -126.0f));
  const V shifted = hn::Add(x, magic);
  const V r = hn::Sub(x, hn::Sub(shifted, magic));  // in [-0.5, 0.5]
  V p = hn::Set(d, 0.00132647272f);
  p = hn::MulAdd(p, r, hn::Set(d, 0.00967151264f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.0555073374f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.240222421f));
  p = hn::MulAdd(p, r, hn::Set(d, 0.693146978f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
