#include "attention/landmark_sketch.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>

#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/landmark_sketch.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "attention/byte_dots-inl.h"
#include "kernels/thread_scratch.h"

#ifndef CAIRN_ATTENTION_LANDMARK_SKETCH_ONCE
#define CAIRN_ATTENTION_LANDMARK_SKETCH_ONCE
namespace cairn {

// Of the panels that are scanned one in so many tells the threshold.
static size_t SketchSampleStep(const SketchScan& scan) {
  constexpr size_t kMany = 128, kStep = 8;
  return !scan.refine && scan.panels.size() >= kMany && scan.wanted >= 8 * kStep ? kStep : 1;
}

// Leaves the `count` places with the largest sums, in their order; returns the least of these.
static int32_t KeepBest(size_t count, std::vector<uint32_t>& places, std::vector<int32_t>& sums) {
  std::vector<int32_t> order = sums;
  const auto last = order.begin() + static_cast<ptrdiff_t>(count) - 1;
  std::nth_element(order.begin(), last, order.end(), std::greater<>());
  const int32_t least = *last;
  size_t kept = 0;
  for (size_t i = 0; i < places.size() && kept < count; ++i) {
    if (sums[i] < least) continue;
    places[kept] = places[i];
    sums[kept++] = sums[i];
  }
  places.resize(kept);
  sums.resize(kept);
  return least;
}

}  // namespace cairn
#endif  // CAIRN_ATTENTION_LANDMARK_SKETCH_ONCE

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The lanes of a mask, one bit each.
template <class Mask>
HWY_INLINE uint64_t BitsOf(Mask mask) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return mask.raw;  // by way of memory the processor would wait for the bytes
#else
  uint8_t bits[8] = {};
  hn::StoreMaskBits(ITag(), mask, bits);
  uint64_t some;
  std::memcpy(&some, bits, 8);
  return some;
#endif
}

// Sums of kRows queries with the keys of a panel in the keys' own units, [kRows][kColumns]. Where `least` is given,
// also the columns whose sum is at least the query's, one bit each: `reached`.
template <size_t kRows>
HWY_NOINLINE void PanelSums(const SketchPanels& sketches, uint32_t panel, const SketchQuery* queries,
                            const int32_t* least, int32_t* sums, uint64_t* reached) {
  static_assert(kColumns == 64);
  const ITag di;
  const hn::Rebind<uint8_t, ITag> du8;
  const hn::RebindToUnsigned<ITag> du;
  const uint8_t* doubled = sketches.doubled + panel * kColumns;
  uint64_t below[kRows] = {};
  NibbleDots<kRows>(sketches.data + panel * sketches.panel_bytes(), sketches.groups, queries,
                    [&](size_t row, size_t column, IVec sum) HWY_ATTR {
                      const auto units = hn::PromoteTo(du, hn::LoadU(du8, doubled + column));
                      const IVec whole = hn::BitCast(di, hn::Shl(hn::BitCast(du, sum), units));
                      hn::Store(whole, di, sums + row * kColumns + column);
                      if (least == nullptr) return;
                      below[row] |= BitsOf(hn::Lt(whole, hn::Set(di, least[row]))) << column;
                    });
  if (least == nullptr) return;
  for (size_t row = 0; row < kRows; ++row) reached[row] = ~below[row];
}

// The same for any number of queries, up to kRowsTogether at once.
constexpr size_t kRowsTogether = 4;
HWY_INLINE void SketchSums(const SketchPanels& sketches, uint32_t panel, size_t rows, const SketchQuery* queries,
                           const int32_t* least, int32_t* sums, uint64_t* reached) {
  size_t done = 0;
  const auto run = [&](auto rows_constant) {
    constexpr size_t kRows = decltype(rows_constant)::value;
    PanelSums<kRows>(sketches, panel, queries + done, least == nullptr ? nullptr : least + done, sums + done * kColumns,
                     reached + done);
    done += kRows;
  };
  while (rows - done >= kRowsTogether) run(std::integral_constant<size_t, kRowsTogether>());
  while (rows - done >= 2) run(std::integral_constant<size_t, 2>());
  if (rows - done == 1) run(std::integral_constant<size_t, 1>());
}

// Twice over panels: first the maximum of every column, then what reaches the threshold that follows from them. Of many
// panels a part tells the threshold.
void ScanSketchesImpl(const SketchPanels& sketches, const SketchScan& scan, size_t count, const SketchQuery* queries,
                      SketchPlaces* found) {
  constexpr size_t kRowsAtOnce = kMostRefined;
  constexpr size_t kAhead = 8;
  const ITag di;
  HWY_ALIGN int32_t sums[kRowsAtOnce * kColumns];
  thread_local std::vector<uint32_t> panels;
  panels.assign(scan.panels.begin(), scan.panels.end());
  HWY_ALIGN int32_t maxima[kRowsAtOnce * kColumns];
  uint64_t reached[kRowsAtOnce];
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    const size_t rows = std::min(kRowsAtOnce, count - begin);
    std::fill_n(maxima, rows * kColumns, INT32_MIN);
    const auto add = [&](size_t i, size_t step, const int32_t* limits) HWY_ATTR {
      const uint32_t panel = panels[i];
      // For few queries the scan waits for memory, and panels have gaps between them.
      if (i + kAhead * step < panels.size()) {
        const uint32_t later = panels[i + kAhead * step];
        const uint8_t* next = sketches.data + later * sketches.panel_bytes();
        for (size_t at = 0; at < sketches.panel_bytes(); at += 64) hwy::Prefetch(next + at);
        hwy::Prefetch(sketches.doubled + later * kColumns);
      }
      SketchSums(sketches, panel, rows, queries + begin, limits, sums, reached);
    };
    const auto look = [&](size_t first, size_t step) HWY_ATTR {
      for (size_t i = first; i < panels.size(); i += step) {
        add(i, step, nullptr);
        const uint32_t panel = panels[i];
        for (size_t column = 0; column < sketches.filled[panel]; column += kLanes) {
          const auto keys = hn::FirstN(di, sketches.filled[panel] - column);
          // Panels are filled from the left; maxima are not to be.
          const size_t slot = (column + i / step * kSketchShift) % kColumns;
          for (size_t row = 0; row < rows * kColumns; row += kColumns) {
            const IVec before = hn::Load(di, maxima + row + slot);
            const IVec more = hn::Max(before, hn::Load(di, sums + row + column));
            hn::Store(hn::IfThenElse(keys, more, before), di, maxima + row + slot);
          }
        }
      }
    };
    int32_t least[kRowsAtOnce];
    const auto collect = [&](size_t step) HWY_ATTR {
      for (size_t r = 0; r < rows; ++r) {
        found[begin + r].places.clear();
        found[begin + r].sums.clear();
        least[r] = SketchThreshold(scan.wanted / step, maxima + r * kColumns);
      }
      for (size_t i = 0; i < panels.size(); ++i) {
        const uint32_t panel = panels[i];
        if (sketches.filled[panel] == 0) continue;
        const uint64_t keys = ~uint64_t{0} >> (kColumns - sketches.filled[panel]);
        add(i, 1, least);
        for (size_t r = 0; r < rows; ++r) {
          const int32_t* row = sums + r * kColumns;
          uint64_t columns = keys & reached[r];
          auto& [places, reaching] = found[begin + r];
          for (; columns != 0; columns &= columns - 1) {
            const auto column = static_cast<uint32_t>(std::countr_zero(columns));
            places.push_back(panel * static_cast<uint32_t>(kColumns) + column);
            reaching.push_back(row[column]);
            if (places.size() >= scan.limit) least[r] = KeepBest(scan.limit / 2, places, reaching);
          }
        }
      }
    };
    const size_t step = SketchSampleStep(scan);
    look(0, step);
    if (scan.refine) {
      int32_t some[kColumns];
      for (size_t r = 0; r < rows; ++r) {
        std::copy_n(maxima + r * kColumns, kColumns, some);
        least[r] = SketchThreshold(scan.best, some);
      }
      const size_t before = panels.size();
      scan.refine({least, rows}, panels);
      look(before, 1);
    }
    collect(step);
    // A sample that met all of the best by chance lets too few through.
    bool few = false;
    for (size_t r = 0; r < rows; ++r) few = few || found[begin + r].places.size() < scan.wanted / 8;
    if (!few || step == 1) continue;
    std::fill_n(maxima, rows * kColumns, INT32_MIN);
    look(0, 1);
    collect(1);
  }
}

// Marks the `take` panels of the largest values, or a few more of the last value that counts; none below `least`.
// Values are given as integers of the same order: a threshold among them is found by halving.
template <class Value>
HWY_INLINE void MarkLargest(const PanelPromise& promise, const Value& value, float least, size_t take,
                            uint8_t* chosen) {
  const ITag di;
  const hn::Rebind<float, ITag> df;
  const size_t count = promise.mean.size();
  const size_t whole = count / kLanes * kLanes;
  const size_t padded = whole + (whole < count ? kLanes : 0);
  int32_t* order = ThreadScratch<int32_t, class PanelOrder>(padded);
  const auto ordered = [&](hn::Vec<decltype(df)> mean, hn::Vec<decltype(df)> variance) HWY_ATTR {
    const auto most = hn::Set(df, 1e30f);
    const auto number = value(mean, hn::Sqrt(hn::Max(variance, hn::Zero(df))));
    const IVec bits = hn::BitCast(di, hn::IfThenElse(hn::Le(hn::Abs(number), most), number, most));
    return hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, INT32_MAX)));
  };
  IVec lows = hn::Set(di, INT32_MAX), highs = hn::Set(di, INT32_MIN);
  for (size_t i = 0; i < whole; i += kLanes) {
    const IVec number = ordered(hn::LoadU(df, &promise.mean[i]), hn::LoadU(df, &promise.variance[i]));
    hn::Store(number, di, order + i);
    lows = hn::Min(lows, number);
    highs = hn::Max(highs, number);
  }
  if (whole < count) {
    const auto valid = hn::FirstN(di, count - whole);
    HWY_ALIGN float mean[kLanes] = {}, variance[kLanes] = {};
    std::copy(promise.mean.begin() + static_cast<ptrdiff_t>(whole), promise.mean.end(), mean);
    std::copy(promise.variance.begin() + static_cast<ptrdiff_t>(whole), promise.variance.end(), variance);
    const IVec number = ordered(hn::Load(df, mean), hn::Load(df, variance));
    hn::Store(hn::IfThenElse(valid, number, hn::Set(di, INT32_MIN)), di, order + whole);
    lows = hn::IfThenElse(valid, hn::Min(lows, number), lows);
    highs = hn::IfThenElse(valid, hn::Max(highs, number), highs);
  }
  int32_t low = hn::GetLane(hn::MinOfLanes(di, lows)), high = hn::GetLane(hn::MaxOfLanes(di, highs));
  const auto reaching = [&](int32_t middle) HWY_ATTR {
    IVec reached = hn::Zero(di);
    for (size_t i = 0; i < padded; i += kLanes) {
      reached = hn::Sub(reached, hn::VecFromMask(di, hn::Gt(hn::Load(di, order + i), hn::Set(di, middle - 1))));
    }
    return static_cast<size_t>(hn::GetLane(hn::SumOfLanes(di, reached)));
  };
  const auto floor = std::bit_cast<int32_t>(least);
  const int32_t bound = floor < 0 ? floor ^ INT32_MAX : floor;
  if (bound > low) {
    low = bound;
    if (reaching(low) <= take) high = low;
  }
  // What reaches `low` is always enough.
  for (int round = 0; round < 22 && low < high; ++round) {
    const auto middle = static_cast<int32_t>((int64_t{low} + high + 1) >> 1);
    const size_t enough = reaching(middle);
    if (enough >= take) {
      low = middle;
      if (enough == take) break;
    } else {
      high = middle - 1;
    }
  }
  for (size_t i = 0; i < count; ++i) chosen[i] |= static_cast<uint8_t>(order[i] >= low);
}

void MarkPromisingImpl(const PanelPromise& promise, size_t take, uint8_t* chosen) {
  const hn::Rebind<float, ITag> df;
  const auto factor = hn::Set(df, promise.deviations);
  MarkLargest(
      promise, [&](auto mean, auto deviation) HWY_ATTR { return hn::MulAdd(factor, deviation, mean); }, -INFINITY, take,
      chosen);
}

void MarkReachingImpl(const PanelPromise& promise, float least, size_t take, uint8_t* chosen) {
  const hn::Rebind<float, ITag> df;
  const auto limit = hn::Set(df, least);
  MarkLargest(
      promise,
      [&](auto mean, auto deviation)
          HWY_ATTR { return hn::Div(hn::Sub(mean, limit), hn::Max(deviation, hn::Set(df, 1e-20f))); },
      -promise.deviations, take, chosen);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/checked.h"
#include "base/error.h"

namespace cairn {
namespace {

HWY_EXPORT(ScanSketchesImpl);
HWY_EXPORT(MarkPromisingImpl);
HWY_EXPORT(MarkReachingImpl);

}  // namespace

bool EncodeSketchQuery(std::span<const float> values, size_t bytes, int32_t zero, int8_t* quads, SketchQuery& out) {
  CAIRN_CHECK(values.size() <= bytes);
  float largest = 0;
  bool finite = true;
  for (const float x : values) {
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::abs(x));
  }
  if (!finite || largest > 1e30f || largest < 1e-30f) return false;
  const float inverse = 127.0f / largest;
  int32_t sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto code = static_cast<int32_t>(std::clamp(std::nearbyint(values[i] * inverse), -127.0f, 127.0f));
    quads[i] = static_cast<int8_t>(code);
    sum += code;
  }
  std::fill(quads + values.size(), quads + bytes, int8_t{0});
  out = {quads, -zero * sum, 1.0f / inverse};
  return true;
}

int32_t SketchThreshold(size_t wanted, int32_t* maxima) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const double part = 1 - std::exp(-static_cast<double>(wanted) / static_cast<double>(kColumns));
  const auto reached = static_cast<size_t>(std::lround(part * static_cast<double>(kColumns)));
  int32_t* at = maxima + std::clamp<size_t>(reached, 1, kColumns) - 1;
  std::nth_element(maxima, at, maxima + kColumns, std::greater<>());
  return *at;
}

void ScanSketches(const SketchPanels& sketches, const SketchScan& scan, size_t count, const SketchQuery* queries,
                  SketchPlaces* found) {
  CAIRN_CHECK(!scan.refine || count <= kMostRefined);
  CAIRN_CHECK(scan.limit >= 2);
  HWY_DYNAMIC_DISPATCH(ScanSketchesImpl)(sketches, scan, count, queries, found);
}

void MarkPromising(const PanelPromise& promise, size_t take, uint8_t* chosen) {
  CAIRN_CHECK(promise.mean.size() == promise.variance.size() && promise.mean.size() < INT32_MAX);
  HWY_DYNAMIC_DISPATCH(MarkPromisingImpl)(promise, take, chosen);
}

void MarkReaching(const PanelPromise& promise, float least, size_t take, uint8_t* chosen) {
  CAIRN_CHECK(promise.mean.size() == promise.variance.size() && promise.mean.size() < INT32_MAX);
  HWY_DYNAMIC_DISPATCH(MarkReachingImpl)(promise, least, take, chosen);
}

}  // namespace cairn
#endif  // HWY_ONCE
