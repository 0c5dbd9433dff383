#include "attention/landmark_codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"

// AVX-512 VNNI multiplies bytes; the other instruction sets widen them to 16 bits. The integers are the same.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/landmark_codes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/vnni_target-inl.h"

#ifndef CAIRN_ATTENTION_LANDMARK_CODES_SCAN
#define CAIRN_ATTENTION_LANDMARK_CODES_SCAN
namespace cairn {
namespace {

// A query as bytes: q * unit = scale * code + error.
struct CodedQuery {
  const int8_t* quads;  // [dim / 4][4]
  int32_t start;        // -128 times the sum of the codes, for keys are stored with 128 added
  float scale;
  double length;         // |q|
  double scaled_length;  // |q * unit|
  double error;          // |error|
  double code_length;    // |scale * code|
};

// Scores less the part that all keys share. What is surely reached by k keys is `sure`.
struct Candidates {
  BestBlocks sure;
  std::vector<float> sure_scores;
  std::vector<int32_t> sure_blocks;
  std::vector<int32_t> blocks;  // ascending
  std::vector<float> most;      // their upper bounds

  void Reset(size_t k) {
    sure_scores.resize(k);
    sure_blocks.resize(k);
    sure.Reset(k, sure_scores.data(), sure_blocks.data());
    blocks.clear();
    most.clear();
  }
};

// How far a score may be from what the codes say: |score - scale_k * scale_q * dot| <= scale_k * spread + slack.
struct Margin {
  float spread;
  float slack;
};

// Rounding: of the score as SearchLandmarks computes it (dim products, at most two chains of sums), and of the bounds
// themselves, which are a handful of f32 operations. Factor 2 and more to spare.
Margin MarginOf(const LandmarkCodes::Bounds& bounds, const CodedQuery& query, size_t dim) {
  constexpr double kEpsilon = 0x1p-23;
  const double spread = (query.scaled_length * bounds.error + query.error * bounds.code) * (1 + 1e-6);
  const double sums = static_cast<double>(dim + 4) * kEpsilon * query.length * bounds.key;
  const double here = 16 * kEpsilon * bounds.scale * (bounds.code * query.code_length + spread);
  // The smallest numbers may be flushed to 0.
  return {static_cast<float>(spread), static_cast<float>(sums + here) * (1 + 1e-6f) + 1e-35f};
}

}  // namespace
}  // namespace cairn
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FTag = hn::CappedTag<float, 16>;
using ITag = hn::RebindToSigned<FTag>;
using FVec = hn::Vec<FTag>;
using IVec = hn::Vec<ITag>;

constexpr size_t kLanes = hn::MaxLanes(FTag());
constexpr size_t kColumns = LandmarkPanels::kPanelColumns;

#undef CAIRN_VNNI
#if HWY_TARGET == HWY_AVX3_DL
#define CAIRN_VNNI 1
// Sums in registers: kScanRows x kScanVecs.
constexpr int kScanVecs = 4;
constexpr size_t kScanRows = 6;
#else
#define CAIRN_VNNI 0
constexpr int kScanVecs = 2;
constexpr size_t kScanRows = 3;
#endif

#if CAIRN_VNNI
using Quad = IVec;
HWY_INLINE Quad LoadQuad(const uint8_t* at) { return hn::Load(ITag(), reinterpret_cast<const int32_t*>(at)); }
HWY_INLINE Quad LeftQuad(const int8_t* at) {
  int32_t bytes;
  std::memcpy(&bytes, at, 4);
  return hn::Set(ITag(), bytes);
}
HWY_INLINE IVec Dot(IVec sum, Quad key, Quad query) { return IVec{_mm512_dpbusd_epi32(sum.raw, key.raw, query.raw)}; }
#else
// Numbers 0 and 2 of each quad, and 1 and 3, as 16-bit halves of a lane.
struct Quad {
  IVec even, odd;
};
HWY_INLINE Quad LoadQuad(const uint8_t* at) {
  const ITag di;
  const IVec bytes = hn::Load(di, reinterpret_cast<const int32_t*>(at));
  const IVec mask = hn::Set(di, 0x00ff00ff);
  return {hn::And(bytes, mask), hn::And(hn::ShiftRight<8>(bytes), mask)};
}
HWY_INLINE Quad LeftQuad(const int8_t* at) {
  const auto pair = [](int8_t low, int8_t high) {
    return static_cast<int32_t>((static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16) |
                                static_cast<uint16_t>(low));
  };
  return {hn::Set(ITag(), pair(at[0], at[2])), hn::Set(ITag(), pair(at[1], at[3]))};
}
HWY_INLINE IVec MulPairs(IVec a, IVec b, IVec sum) {
  const ITag di;
#if HWY_ARCH_X86
  const hn::Repartition<int16_t, ITag> d16;
  IVec unused = hn::Zero(di);
  return hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
#else
  const auto low = [&](IVec x) { return hn::ShiftRight<16>(hn::ShiftLeft<16>(x)); };
  sum = hn::Add(sum, hn::Mul(low(a), low(b)));
  return hn::Add(sum, hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b)));
#endif
}
HWY_INLINE IVec Dot(IVec sum, const Quad& key, const Quad& query) {
  return MulPairs(key.odd, query.odd, MulPairs(key.even, query.even, sum));
}
#endif  // CAIRN_VNNI

// Products of kRows queries with all keys of a panel: sums [kRows][kColumns].
template <size_t kRows>
HWY_NOINLINE void PanelDots(const uint8_t* panel, size_t quads, const CodedQuery* queries, int32_t* sums) {
  const ITag di;
  for (size_t column = 0; column < kColumns; column += kScanVecs * kLanes) {
    IVec sum[kRows][kScanVecs];
    const int8_t* left[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      left[r] = queries[r].quads;
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) sum[r][v] = hn::Set(di, queries[r].start);
    }
    const uint8_t* at = panel + column * 4;
    for (size_t q = 0; q < quads; ++q, at += kColumns * 4) {
      Quad keys[kScanVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) keys[v] = LoadQuad(at + static_cast<size_t>(v) * kLanes * 4);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const Quad x = LeftQuad(left[r] + q * 4);
#pragma GCC unroll 4
        for (int v = 0; v < kScanVecs; ++v) sum[r][v] = Dot(sum[r][v], keys[v], x);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) {
        hn::Store(sum[r][v], di, sums + r * kColumns + column + static_cast<size_t>(v) * kLanes);
      }
    }
  }
}

HWY_INLINE void RowDots(size_t rows, const uint8_t* panel, size_t quads, const CodedQuery* queries, int32_t* sums) {
  size_t done = 0;
  const auto run = [&](auto rows_constant) {
    constexpr size_t kRows = decltype(rows_constant)::value;
    PanelDots<kRows>(panel, quads, queries + done, sums + done * kColumns);
    done += kRows;
  };
  while (rows - done >= kScanRows) run(std::integral_constant<size_t, kScanRows>());
#if CAIRN_VNNI
  if (rows - done >= 4) run(std::integral_constant<size_t, 4>());
#endif
  while (rows - done >= 2) run(std::integral_constant<size_t, 2>());
  if (rows - done == 1) run(std::integral_constant<size_t, 1>());
}

// Columns [from, to) of a panel whose upper bound reaches what is sure become candidates.
HWY_INLINE void Collect(const int32_t* sums, const float* scales, const CodedQuery& query, const Margin& margin,
                        size_t from, size_t to, ptrdiff_t first_block, Candidates& found) {
  const FTag df;
  const ITag di;
  const FVec scale = hn::Set(df, query.scale);
  const FVec spread = hn::Set(df, margin.spread);
  const FVec slack = hn::Set(df, margin.slack);
  HWY_ALIGN float most[kLanes];
  for (size_t column = from / kLanes * kLanes; column < to; column += kLanes) {
    const FVec own = hn::Load(df, scales + column);
    const FVec dot = hn::Mul(hn::ConvertTo(df, hn::Load(di, sums + column)), scale);
    const FVec upper = hn::MulAdd(hn::Add(dot, spread), own, slack);
    // Not "greater": what is no number is a candidate.
    if (hn::AllTrue(df, hn::Lt(upper, hn::Set(df, found.sure.threshold())))) continue;
    hn::Store(upper, df, most);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const size_t c = column + lane;
      if (c < from || c >= to || most[lane] < found.sure.threshold()) continue;
      const auto block = static_cast<int32_t>(first_block + static_cast<ptrdiff_t>(c));
      found.blocks.push_back(block);
      found.most.push_back(most[lane]);
      const float least = (static_cast<float>(sums[c]) * query.scale - margin.spread) * scales[c] - margin.slack;
      if (least > found.sure.threshold()) found.sure.Offer(least, block);
    }
  }
}

void ScanCodes(const LandmarkCodes& codes, size_t first_column, size_t last_column, ptrdiff_t offset, size_t count,
               const CodedQuery* queries, Candidates* found) {
  constexpr size_t kRowsAtOnce = 24;
  HWY_ALIGN int32_t sums[kRowsAtOnce * kColumns];
  const size_t quads = DivideUp(codes.dim(), 4);
  for (size_t panel = first_column / kColumns; panel * kColumns < last_column; ++panel) {
    const size_t from = std::max(first_column, panel * kColumns) - panel * kColumns;
    const size_t to = std::min(last_column, (panel + 1) * kColumns) - panel * kColumns;
    const float* scales = codes.scales(panel);
    const ptrdiff_t first_block = static_cast<ptrdiff_t>(panel * kColumns) - offset;
    for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
      const size_t rows = std::min(kRowsAtOnce, count - begin);
      RowDots(rows, codes.panel(panel), quads, queries + begin, sums);
      for (size_t r = 0; r < rows; ++r) {
        const Margin margin = MarginOf(codes.bounds(panel), queries[begin + r], codes.dim());
        Collect(sums + r * kColumns, scales, queries[begin + r], margin, from, to, first_block, found[begin + r]);
      }
    }
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/error.h"

namespace cairn {
namespace {

HWY_EXPORT(ScanCodes);

// Panels at which centre and units are taken anew; afterwards they stay.
constexpr size_t kCalibrations[] = {1, 4, 16, 64};

// What one search works in; kept for the next of the thread.
struct SearchScratch {
  std::vector<CodedQuery> queries;
  std::vector<int8_t> quads;
  std::vector<Candidates> found;
  std::vector<int32_t> chosen;

  static SearchScratch& Get() {
    thread_local SearchScratch scratch;
    return scratch;
  }
};

// False for a query that is not finite, or too large or too small for its bytes to mean anything.
bool EncodeQuery(const LandmarkCodes& codes, const float* query, int8_t* quads, CodedQuery& out) {
  const size_t dim = codes.dim();
  float largest = 0;
  bool finite = true;
  for (size_t i = 0; i < dim; ++i) {
    const float x = query[i] * codes.units()[i];
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::abs(x));
  }
  if (!finite || largest > 1e30f || largest < 1e-30f) return false;
  const float scale = largest / 127.0f;
  const float inverse = 1.0f / scale;
  double length = 0, scaled = 0, error = 0, code_length = 0;
  int32_t sum = 0;
  for (size_t i = 0; i < dim; ++i) {
    const double q = query[i];
    const float x = query[i] * codes.units()[i];
    const auto code = static_cast<int32_t>(std::clamp(std::nearbyint(x * inverse), -127.0f, 127.0f));
    quads[i] = static_cast<int8_t>(code);
    sum += code;
    const double rest = static_cast<double>(x) - static_cast<double>(scale) * code;
    length += q * q;
    scaled += static_cast<double>(x) * x;
    error += rest * rest;
    code_length += static_cast<double>(code) * code;
  }
  std::fill(quads + dim, quads + RoundUp(dim, 4), int8_t{0});
  out = {
      quads, -128 * sum, scale, std::sqrt(length), std::sqrt(scaled), std::sqrt(error), scale * std::sqrt(code_length)};
  return true;
}

}  // namespace

LandmarkCodes::LandmarkCodes(size_t dim) : dim_(dim), quads_(DivideUp(dim, 4)), centre_(dim, 0.0f), units_(dim, 1.0f) {
  CAIRN_CHECK(dim <= 32768);  // the products' sums stay within 32 bits
}

LandmarkCodes::LandmarkCodes(const LandmarkCodes& other)
    : dim_(other.dim_),
      quads_(other.quads_),
      calibrated_(other.calibrated_),
      centre_(other.centre_),
      units_(other.units_),
      codes_(other.panels() * other.panel_bytes()),
      scales_(other.panels() * LandmarkPanels::kPanelColumns),
      bounds_(other.bounds_) {
  std::copy_n(other.codes_.data(), codes_.size(), codes_.data());
  std::copy_n(other.scales_.data(), scales_.size(), scales_.data());
}

size_t LandmarkCodes::bytes() const {
  return codes_.size() + scales_.size() * sizeof(float) + bounds_.capacity() * sizeof(Bounds);
}

void LandmarkCodes::Follow(const LandmarkPanels& keys, size_t removed) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  removed = std::min(removed, panels());
  if (removed > 0) {
    const size_t stay = panels() - removed;
    std::copy_n(codes_.data() + removed * panel_bytes(), stay * panel_bytes(), codes_.data());
    std::copy_n(scales_.data() + removed * kColumns, stay * kColumns, scales_.data());
    bounds_.erase(bounds_.begin(), bounds_.begin() + static_cast<ptrdiff_t>(removed));
  }
  const size_t whole = (keys.offset() + keys.size()) / kColumns;
  if (whole < panels()) bounds_.resize(whole);
  while (panels() < whole) {
    const size_t next = panels() + 1;
    if (codes_.size() < next * panel_bytes()) {
      AlignedBuffer<uint8_t> codes((next + next / 2) * panel_bytes());
      AlignedBuffer<float> scales((next + next / 2) * kColumns);
      std::copy_n(codes_.data(), codes_.size(), codes.data());
      std::copy_n(scales_.data(), scales_.size(), scales.data());
      codes_ = std::move(codes);
      scales_ = std::move(scales);
    }
    bounds_.push_back({});
    const bool due = next > calibrated_ &&
                     std::find(std::begin(kCalibrations), std::end(kCalibrations), next) != std::end(kCalibrations);
    if (due) {
      Calibrate(keys, next);
      for (size_t p = 0; p + 1 < next; ++p) Encode(keys, p);
    }
    Encode(keys, next - 1);
  }
}

void LandmarkCodes::Calibrate(const LandmarkPanels& keys, size_t panels) {
  const size_t last = panels * LandmarkPanels::kPanelColumns - keys.offset();
  std::vector<double> sum(dim_, 0.0), squares(dim_, 0.0);
  std::vector<float> key(dim_);
  for (size_t b = 0; b < last; ++b) {
    keys.Read(b, key.data());
    for (size_t i = 0; i < dim_; ++i) {
      sum[i] += key[i];
      squares[i] += static_cast<double>(key[i]) * key[i];
    }
  }
  calibrated_ = panels;
  const auto count = static_cast<double>(last);
  for (size_t i = 0; i < dim_; ++i) {
    const double mean = sum[i] / count;
    const double deviation = std::sqrt(std::max(0.0, squares[i] / count - mean * mean));
    // Any centre and unit will do; of keys that are not finite or not different there are none to be had.
    const bool fine = std::isfinite(mean) && std::abs(mean) < 1e15 && deviation > 1e-15 && deviation < 1e15;
    centre_[i] = fine ? static_cast<float>(mean) : 0.0f;
    units_[i] = fine ? static_cast<float>(std::exp2(std::round(std::log2(deviation)))) : 1.0f;
  }
}

void LandmarkCodes::Encode(const LandmarkPanels& keys, size_t panel) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  uint8_t* codes = codes_.data() + panel * panel_bytes();
  float* scales = scales_.data() + panel * kColumns;
  std::fill_n(codes, panel_bytes(), uint8_t{128});
  double error_bound = 0, code_bound = 0, key_bound = 0;
  std::vector<float> key(dim_);
  for (size_t c = 0; c < kColumns; ++c) {
    scales[c] = 1e-30f;
    if (panel * kColumns + c < keys.offset()) continue;  // dead
    keys.Read(panel * kColumns + c - keys.offset(), key.data());
    double largest = 0, length = 0;
    bool finite = true;
    for (size_t i = 0; i < dim_; ++i) {
      finite = finite && std::isfinite(key[i]);
      largest = std::max(largest, std::abs((static_cast<double>(key[i]) - centre_[i]) / units_[i]));
      length += static_cast<double>(key[i]) * key[i];
    }
    const double infinity = std::numeric_limits<double>::infinity();
    key_bound = std::max(key_bound, finite ? std::sqrt(length) : infinity);
    if (!finite || largest > 1e30) {
      // No bound: the key is always scored in full.
      error_bound = infinity;
      continue;
    }
    const auto scale = std::max(static_cast<float>(largest / 127), 1e-30f);
    scales[c] = scale;
    double error = 0, norm = 0;
    for (size_t i = 0; i < dim_; ++i) {
      const double x = (static_cast<double>(key[i]) - centre_[i]) / units_[i];
      const double code = std::clamp(std::nearbyint(x / scale), -127.0, 127.0);
      codes[(i / 4 * kColumns + c) * 4 + i % 4] = static_cast<uint8_t>(128 + static_cast<int>(code));
      const double rest = x / scale - code;
      error += rest * rest;
      norm += code * code;
    }
    error_bound = std::max(error_bound, std::sqrt(error));
    code_bound = std::max(code_bound, std::sqrt(norm));
  }
  constexpr float kUp = 1 + 1e-6f;
  bounds_[panel] = {static_cast<float>(error_bound) * kUp, static_cast<float>(code_bound) * kUp,
                    static_cast<float>(key_bound) * kUp, *std::max_element(scales, scales + kColumns)};
}

void SearchCodes(const LandmarkCodes& codes, const LandmarkPanels& keys, size_t first, size_t last, size_t count,
                 const float* queries, BestBlocks* best) {
  const size_t offset = keys.offset();
  const size_t coded = codes.panels() * LandmarkPanels::kPanelColumns;
  const size_t middle = std::clamp(coded > offset ? coded - offset : 0, first, std::max(first, last));
  if (middle - first <= 2 * (count > 0 ? best[0].k() : 0)) {
    SearchLandmarks(keys, first, last, count, queries, best);
    return;
  }
  const size_t dim = codes.dim();
  const size_t stride = RoundUp(dim, 4);
  SearchScratch& scratch = SearchScratch::Get();
  scratch.quads.resize(count * stride);
  scratch.queries.resize(count);
  if (scratch.found.size() < count) scratch.found.resize(count);
  bool plain = false;
  for (size_t q = 0; q < count && !plain; ++q) {
    plain = !EncodeQuery(codes, queries + q * dim, &scratch.quads[q * stride], scratch.queries[q]);
    scratch.found[q].Reset(best[q].k());
  }
  if (plain) {
    SearchLandmarks(keys, first, last, count, queries, best);
    return;
  }
  HWY_DYNAMIC_DISPATCH(ScanCodes)
  (codes, first + offset, middle + offset, static_cast<ptrdiff_t>(offset), count, scratch.queries.data(),
   scratch.found.data());
  for (size_t q = 0; q < count; ++q) {
    const Candidates& found = scratch.found[q];
    scratch.chosen.clear();
    for (size_t i = 0; i < found.blocks.size(); ++i) {
      if (!(found.most[i] < found.sure.threshold())) scratch.chosen.push_back(found.blocks[i]);
    }
    OfferLandmarks(keys, scratch.chosen, queries + q * dim, count == 1, best[q]);
  }
  SearchLandmarks(keys, middle, last, count, queries, best);
}

}  // namespace cairn
#endif  // HWY_ONCE
