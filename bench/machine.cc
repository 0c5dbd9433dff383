// Peak measurements, compiled for every instruction set like the kernels they judge.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/machine.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "bench/machine.h"
#include "kernels/vnni_target-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// `rounds` times 24 independent multiply-adds; returns the floating-point operations done. `sink` keeps the result
// alive.
double FmaRounds(size_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kChains = 12;
  V a[kChains];
  for (int i = 0; i < kChains; ++i) a[i] = hn::Set(d, 1.0f + static_cast<float>(i));
  const V x = hn::Set(d, 0.999f);
  const V y = hn::Set(d, 0.001f);
  for (size_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) a[i] = hn::MulAdd(a[i], x, y);
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) a[i] = hn::MulAdd(a[i], x, y);
  }
  V sum = a[0];
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, a[i]);
  *sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return static_cast<double>(rounds) * 2 * kChains * 2 * static_cast<double>(hn::Lanes(d));
}

// 32-bit lanes of the integers that products of int8 use: bytes with VNNI, else 16-bit numbers.
template <class V>
HWY_INLINE V MulAddIntegers(V x, V y, V sum) {
#if HWY_TARGET == HWY_AVX3_DL
  return V{_mm512_dpbusd_epi32(sum.raw, x.raw, y.raw)};
#else
  const hn::ScalableTag<int32_t> d;
  const hn::Repartition<int16_t, decltype(d)> d16;
  V rest = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(d16, x), hn::BitCast(d16, y), sum, rest);
#endif
}

// `rounds` times 12 independent multiply-adds of such integers; returns the operations done.
double IntegerRounds(size_t rounds, float* sink) {
  const hn::ScalableTag<int32_t> d;
  using V = hn::Vec<decltype(d)>;
  constexpr int kChains = 12;
  V a[kChains];
  for (int i = 0; i < kChains; ++i) a[i] = hn::Set(d, i);
  V x = hn::Set(d, 0x01020304);
  const V y = hn::Set(d, 0x02010102);
  for (size_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) a[i] = MulAddIntegers(x, y, a[i]);
#if HWY_TARGET != HWY_AVX3_DL
    x = hn::Xor(x, y);  // else the products could leave the loop
#endif
  }
  V sum = hn::Add(x, a[0]);
  for (int i = 1; i < kChains; ++i) sum = hn::Add(sum, a[i]);
  *sink = static_cast<float>(hn::GetLane(hn::SumOfLanes(d, sum)));
  const double operations = HWY_TARGET == HWY_AVX3_DL ? 8 : 4;  // a lane
  return static_cast<double>(rounds) * kChains * operations * static_cast<double>(hn::Lanes(d));
}

// Reads `count` floats (a multiple of 64); returns their sum so that the reads cannot be left out.
float ReadFloats(const float* data, size_t count) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const size_t lanes = hn::Lanes(d);
  V a = hn::Zero(d), b = a, c = a, e = a;
  for (size_t i = 0; i < count; i += 4 * lanes) {
    a = hn::Add(a, hn::Load(d, data + i));
    b = hn::Add(b, hn::Load(d, data + i + lanes));
    c = hn::Add(c, hn::Load(d, data + i + 2 * lanes));
    e = hn::Add(e, hn::Load(d, data + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <vector>

#include "base/aligned.h"
#include "base/threads.h"
#include "bench/timing.h"

namespace cairn {
namespace {

HWY_EXPORT(FmaRounds);
HWY_EXPORT(IntegerRounds);
HWY_EXPORT(ReadFloats);

// 10^9 operations a second of all threads together, the best of a few attempts.
template <class Rounds>
double BestGops(const Rounds& rounds) {
  const size_t threads = static_cast<size_t>(ThreadCount());
  std::vector<float> sinks(threads * 16);
  double best = 0;
  for (int attempt = 0; attempt < 8; ++attempt) {
    constexpr size_t kRounds = 2'000'000;
    std::vector<double> flops(threads);
    const double start = SecondsNow();
    ParallelFor(threads, [&](size_t i, int) { flops[i] = rounds(kRounds, &sinks[i * 16]); });
    const double elapsed = SecondsNow() - start;
    double total = 0;
    for (const double f : flops) total += f;
    best = std::max(best, total / elapsed * 1e-9);
  }
  return best;
}

}  // namespace

double MeasureF32Gflops() { return BestGops(HWY_DYNAMIC_DISPATCH(FmaRounds)); }
double MeasureInt8Gops() { return BestGops(HWY_DYNAMIC_DISPATCH(IntegerRounds)); }

MachineLimits MeasureMachine() {
  const size_t threads = static_cast<size_t>(ThreadCount());
  MachineLimits limits{};
  limits.f32_gflops = MeasureF32Gflops();
  std::vector<float> sinks(threads * 16);
  // Far larger than what a core's own caches hold; a large shared cache still flatters the figure.
  constexpr size_t kFloats = size_t{128} << 20;
  const AlignedBuffer<float> data(kFloats);
  const size_t slices = threads * 8;
  const size_t slice = kFloats / slices / 64 * 64;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const double start = SecondsNow();
    ParallelFor(slices, [&](size_t i, int thread) {
      sinks[static_cast<size_t>(thread) * 16] += HWY_DYNAMIC_DISPATCH(ReadFloats)(data.data() + i * slice, slice);
    });
    const double elapsed = SecondsNow() - start;
    limits.read_gbs = std::max(limits.read_gbs, static_cast<double>(slices * slice * sizeof(float)) / elapsed * 1e-9);
  }
  return limits;
}

}  // namespace cairn
#endif  // HWY_ONCE
