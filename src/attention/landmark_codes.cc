#include "attention/landmark_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"

#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/landmark_codes.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "attention/byte_dots-inl.h"

#ifndef CAIRN_ATTENTION_LANDMARK_CODES_SCAN
#define CAIRN_ATTENTION_LANDMARK_CODES_SCAN
namespace cairn {
namespace {

// A query as bytes: q * unit = scale * code + error.
struct CodedQuery {
  const int8_t* quads;  // [dim / 4][4]
  int32_t start;        // -128 times the sum of the codes, for keys are stored with 128 added
  float scale;
  float rounding;       // of a score as it is computed, for each unit of |key|
  float scaled_length;  // |q * unit|
  float error;          // |error|
  float code_length;    // |scale * code|
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
inline Margin MarginOf(const LandmarkCodes::Bounds& bounds, const CodedQuery& query) {
  constexpr float kEpsilon = 0x1p-23f;
  const float spread = (query.scaled_length * bounds.error + query.error * bounds.code) * (1 + 16 * kEpsilon);
  const float here = 16 * kEpsilon * bounds.scale * (bounds.code * query.code_length + spread);
  // The smallest numbers may be flushed to 0.
  return {spread, (query.rounding * bounds.key + here) * (1 + 16 * kEpsilon) + 1e-35f};
}

}  // namespace
}  // namespace cairn
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Keys of a panel whose upper bound reaches `enough`, one bit a column. Not "greater": what is no number does.
HWY_INLINE uint64_t Reaching(const int32_t* sums, const float* scales, float query_scale, const Margin& margin,
                             float enough) {
  const FTag df;
  const ITag di;
  const FVec scale = hn::Set(df, query_scale);
  const FVec spread = hn::Set(df, margin.spread);
  const FVec slack = hn::Set(df, margin.slack);
  const FVec limit = hn::Set(df, enough);
  static_assert(kColumns == 64);
  uint64_t below = 0;
#pragma GCC unroll 16
  for (size_t column = 0; column < kColumns; column += kLanes) {
    const FVec dot = hn::ConvertTo(df, hn::Load(di, sums + column));
    const FVec upper = hn::MulAdd(hn::MulAdd(dot, scale, spread), hn::Load(df, scales + column), slack);
    uint8_t bits[8] = {};
    hn::StoreMaskBits(df, hn::Lt(upper, limit), bits);
    uint64_t some;
    std::memcpy(&some, bits, 8);
    below |= some << column;
  }
  return ~below;
}

// Columns of a panel whose upper bound reaches what is sure become candidates.
HWY_NOINLINE void Collect(const int32_t* sums, const float* scales, const CodedQuery& query, const Margin& margin,
                          uint64_t columns, ptrdiff_t first_block, Candidates& found) {
  for (; columns != 0; columns &= columns - 1) {
    const auto c = static_cast<size_t>(std::countr_zero(columns));
    const float dot = static_cast<float>(sums[c]) * query.scale;
    const float most = (dot + margin.spread) * scales[c] + margin.slack;
    if (most < found.sure.threshold()) continue;
    const auto block = static_cast<int32_t>(first_block + static_cast<ptrdiff_t>(c));
    found.blocks.push_back(block);
    found.most.push_back(most);
    const float least = (dot - margin.spread) * scales[c] - margin.slack;
    if (least > found.sure.threshold()) found.sure.Offer(least, block);
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
    const uint64_t asked = (~uint64_t{0} >> (kColumns - (to - from))) << from;
    const float* scales = codes.scales(panel);
    const LandmarkCodes::Bounds bounds = codes.bounds(panel);
    const ptrdiff_t first_block = static_cast<ptrdiff_t>(panel * kColumns) - offset;
    for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
      const size_t rows = std::min(kRowsAtOnce, count - begin);
      PanelRows(rows, codes.panel(panel), quads, queries + begin, sums);
      for (size_t r = 0; r < rows; ++r) {
        const CodedQuery& query = queries[begin + r];
        const Margin margin = MarginOf(bounds, query);
        // Rarely does a panel hold anything that may be better than what is sure.
        const uint64_t columns =
            asked & Reaching(sums + r * kColumns, scales, query.scale, margin, found[begin + r].sure.threshold());
        if (columns != 0) Collect(sums + r * kColumns, scales, query, margin, columns, first_block, found[begin + r]);
      }
    }
  }
}

bool MultipliesBytes() { return CAIRN_VNNI; }

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/error.h"

namespace cairn {
namespace {

HWY_EXPORT(ScanCodes);
HWY_EXPORT(MultipliesBytes);

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
  constexpr double kUp = 1 + 1e-6;
  const double rounding = static_cast<double>(dim + 4) * 0x1p-23 * std::sqrt(length);
  out = {quads,
         -128 * sum,
         scale,
         static_cast<float>(rounding * kUp),
         static_cast<float>(std::sqrt(scaled) * kUp),
         static_cast<float>(std::sqrt(error) * kUp),
         static_cast<float>(scale * std::sqrt(code_length) * kUp)};
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

bool CodesServeManyQueries() { return HWY_DYNAMIC_DISPATCH(MultipliesBytes)(); }

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
