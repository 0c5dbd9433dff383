// Products of pairs of 16-bit numbers, the widened form of byte products for instruction sets without VNNI. Compiled
// for every instruction set (see exp-inl.h about the guard).
#if defined(CAIRN_KERNELS_MUL_PAIRS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_KERNELS_MUL_PAIRS_INL_H
#undef CAIRN_KERNELS_MUL_PAIRS_INL_H
#else
#define CAIRN_KERNELS_MUL_PAIRS_INL_H
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// sum + a.low * b.low + a.high * b.high in each 32-bit lane.
template <class V>
HWY_INLINE V MulPairs(V a, V b, V sum) {
#if HWY_ARCH_X86
  const hn::DFromV<V> di;
  const hn::Repartition<int16_t, decltype(di)> d16;
  V unused = hn::Zero(di);
  return hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
#else
  const auto low = [&](V x) { return hn::ShiftRight<16>(hn::ShiftLeft<16>(x)); };
  sum = hn::Add(sum, hn::Mul(low(a), low(b)));
  return hn::Add(sum, hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b)));
#endif
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // CAIRN_KERNELS_MUL_PAIRS_INL_H
