#include "attention/landmark_panels.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "tensor/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/landmark_panels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "attention/one_row-inl.h"
#include "kernels/broadcast_gemm-inl.h"
#include "kernels/thread_scratch.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// The product of queries with one panel, whichever numbers it holds.
template <class Store>
HWY_INLINE void PanelProduct(const LandmarkPanels& panels, size_t panel, const float* queries, size_t rows,
                             const Store& store) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const GemmLeft left{queries, panels.dim(), 1};
  if (panels.half()) {
    const GemmRightHalf right{reinterpret_cast<const uint16_t*>(panels.panel(panel)), kColumns};
    Gemm(left, right, GemmDepth{panels.dim()}, rows, 0, kColumns, store);
  } else {
    const GemmRight right{reinterpret_cast<const float*>(panels.panel(panel)), kColumns};
    Gemm(left, right, GemmDepth{panels.dim()}, rows, 0, kColumns, store);
  }
}

void FromHalfPanel(const uint16_t* from, size_t count, float* to) {
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from + i))), d, to + i);
  }
}

// Queries whose scores of one panel are computed together.
inline constexpr size_t kSearchRows = 12;

// Offers columns [from, to) of a row of one panel's scores.
HWY_INLINE void OfferRow(const float* row, size_t from, size_t to, ptrdiff_t first_block, BestBlocks& list) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  TileVec max = hn::Load(d, row);
  for (size_t c = lanes; c < kColumns; c += lanes) max = hn::Max(max, hn::Load(d, row + c));
  // Rarely does a panel hold anything better than what is known.
  if (hn::AllTrue(d, hn::Le(max, hn::Set(d, list.threshold())))) return;
  for (size_t c = from; c < to; ++c) {
    if (row[c] > list.threshold()) list.Offer(row[c], static_cast<int32_t>(first_block + static_cast<ptrdiff_t>(c)));
  }
}

void SearchLandmarksImpl(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                         BestBlocks* best, float* scratch) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  const size_t dim = panels.dim();
  const size_t offset = panels.offset();
  first += offset;
  last += offset;
  HWY_ALIGN float scores[kSearchRows * kColumns];
  for (size_t panel = first / kColumns; panel * kColumns < last; ++panel) {
    const size_t from = std::max(first, panel * kColumns) - panel * kColumns;
    const size_t to = std::min(last, (panel + 1) * kColumns) - panel * kColumns;
    const auto first_block = static_cast<ptrdiff_t>(panel * kColumns) - static_cast<ptrdiff_t>(offset);
    const auto* half = reinterpret_cast<const uint16_t*>(panels.panel(panel));
    const auto* whole = reinterpret_cast<const float*>(panels.panel(panel));
    if (count == 1) {
      const auto store = [&](size_t column, TileVec sum) { hn::Store(sum, d, scores + column); };
      if (panels.half()) {
        OneRow(queries, GemmRightHalf{half, kColumns}, dim, kColumns, store);
      } else {
        OneRow(queries, GemmRight{whole, kColumns}, dim, kColumns, store);
      }
      OfferRow(scores, from, to, first_block, best[0]);
      continue;
    }
    if (panels.half()) {
      FromHalfPanel(half, dim * kColumns, scratch);
      whole = scratch;
    }
    for (size_t begin = 0; begin < count; begin += kSearchRows) {
      const size_t rows = std::min(kSearchRows, count - begin);
      Gemm(GemmLeft{queries + begin * dim, dim, 1}, GemmRight{whole, kColumns}, GemmDepth{dim}, rows, 0, kColumns,
           [&](size_t row, size_t column, TileVec sum) { hn::Store(sum, d, scores + row * kColumns + column); });
      for (size_t r = 0; r < rows; ++r) {
        OfferRow(scores + r * kColumns, from, to, first_block, best[begin + r]);
      }
    }
  }
}

void OfferLandmarksImpl(const LandmarkPanels& panels, std::span<const int32_t> blocks, const float* query, bool alone,
                        BestBlocks& best) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const GemmDepth depth{panels.dim()};
  HWY_ALIGN float scores[kColumns];
  for (size_t i = 0; i < blocks.size();) {
    // Neighbours that share a vector are scored together.
    const size_t at = panels.offset() + static_cast<size_t>(blocks[i]);
    const size_t panel = at / kColumns;
    const size_t column = at % kColumns / lanes * lanes;
    const auto product = [&](const auto& right) {
      if (alone) {
        OneRowMicro<1>(query, right, panels.dim(), column,
                       [&](size_t, TileVec sum) { hn::Store(sum, d, scores + column); });
      } else {
        GemmMicro<1, 1>(GemmLeft{query, panels.dim(), 1}, right, depth, 0, column,
                        [&](size_t, size_t, TileVec sum) { hn::Store(sum, d, scores + column); });
      }
    };
    if (panels.half()) {
      product(GemmRightHalf{reinterpret_cast<const uint16_t*>(panels.panel(panel)), kColumns});
    } else {
      product(GemmRight{reinterpret_cast<const float*>(panels.panel(panel)), kColumns});
    }
    for (; i < blocks.size(); ++i) {
      const size_t next = panels.offset() + static_cast<size_t>(blocks[i]);
      if (next / kColumns != panel || next % kColumns / lanes * lanes != column) break;
      if (scores[next % kColumns] > best.threshold()) best.Offer(scores[next % kColumns], blocks[i]);
    }
  }
}

// A vector of keys at a time, turned into a panel as wide as it.
template <class Right, class Number>
HWY_INLINE void OfferRowsOf(const LandmarkRows& rows, size_t first, std::span<const int32_t> blocks, const float* query,
                            bool alone, BestBlocks& best, Number* panel) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN float scores[HWY_MAX_BYTES / sizeof(float)];
  for (const int32_t block : blocks) {
    const Number* row = reinterpret_cast<const Number*>(rows.data) + (first + static_cast<size_t>(block)) * rows.dim;
    for (size_t at = 0; at < rows.dim; at += 64 / sizeof(Number)) hwy::Prefetch(row + at);
  }
  for (size_t begin = 0; begin < blocks.size(); begin += lanes) {
    const size_t count = std::min(lanes, blocks.size() - begin);
    std::fill_n(panel, rows.dim * lanes, Number{0});
    for (size_t i = 0; i < count; ++i) {
      const size_t number = first + static_cast<size_t>(blocks[begin + i]);
      const Number* row = reinterpret_cast<const Number*>(rows.data) + number * rows.dim;
      for (size_t k = 0; k < rows.dim; ++k) panel[k * lanes + i] = row[k];
    }
    const Right right{panel, lanes};
    if (alone) {
      OneRowMicro<1>(query, right, rows.dim, 0, [&](size_t, TileVec sum) { hn::Store(sum, d, scores); });
    } else {
      GemmMicro<1, 1>(GemmLeft{query, rows.dim, 1}, right, GemmDepth{rows.dim}, 0, 0,
                      [&](size_t, size_t, TileVec sum) { hn::Store(sum, d, scores); });
    }
    for (size_t i = 0; i < count; ++i) {
      if (scores[i] > best.threshold()) best.Offer(scores[i], blocks[begin + i]);
    }
  }
}

void OfferRowsImpl(const LandmarkRows& rows, size_t first, std::span<const int32_t> blocks, const float* query,
                   bool alone, BestBlocks& best) {
  float* panel = ThreadScratch<float, class RowsAsPanel>(rows.dim * hn::Lanes(TileTag()));
  if (rows.half) {
    OfferRowsOf<GemmRightHalf>(rows, first, blocks, query, alone, best, reinterpret_cast<uint16_t*>(panel));
  } else {
    OfferRowsOf<GemmRight>(rows, first, blocks, query, alone, best, panel);
  }
}

template <class Number, class Load>
HWY_INLINE void ScoreRowsOf(const LandmarkRows& rows, std::span<const uint32_t> which, const float* query,
                            const Load& load, float* scores) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  // Rows are far apart: the next ones are fetched early.
  constexpr size_t kAhead = 12;
  const auto* data = reinterpret_cast<const Number*>(rows.data);
  const size_t whole = rows.dim / lanes * lanes;
  for (size_t i = 0; i < which.size(); ++i) {
    if (i + kAhead < which.size()) {
      const Number* next = data + which[i + kAhead] * rows.dim;
      for (size_t at = 0; at < rows.dim; at += 64 / sizeof(Number)) hwy::Prefetch(next + at);
    }
    const Number* row = data + which[i] * rows.dim;
    TileVec sum = hn::Zero(d);
    for (size_t k = 0; k < whole; k += lanes) sum = hn::MulAdd(load(row + k), hn::LoadU(d, query + k), sum);
    float score = hn::GetLane(hn::SumOfLanes(d, sum));
    for (size_t k = whole; k < rows.dim; ++k) {
      if constexpr (sizeof(Number) == 2) {
        score += HalfToFloat(row[k]) * query[k];
      } else {
        score += row[k] * query[k];
      }
    }
    scores[i] = score;
  }
}

void ScoreRowsImpl(const LandmarkRows& rows, std::span<const uint32_t> which, const float* query, float* scores) {
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  if (rows.half) {
    ScoreRowsOf<uint16_t>(
        rows, which, query,
        [&](const uint16_t* from)
            HWY_ATTR { return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from))); },
        scores);
  } else {
    ScoreRowsOf<float>(
        rows, which, query, [&](const float* from) HWY_ATTR { return hn::LoadU(d, from); }, scores);
  }
}

void ReadRowImpl(const LandmarkRows& rows, size_t row, float* key) {
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  const auto* from = reinterpret_cast<const hwy::float16_t*>(rows.data) + row * rows.dim;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= rows.dim; i += hn::Lanes(d)) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, from + i)), d, key + i);
  }
  for (; i < rows.dim; ++i) key[i] = HalfToFloat(reinterpret_cast<const uint16_t*>(from)[i]);
}

void ScoreLandmarksImpl(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                        size_t stride, float* scores, float* scratch) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  first += panels.offset();
  last += panels.offset();
  for (size_t panel = first / kColumns; panel * kColumns < last; ++panel) {
    PanelProduct(panels, panel, queries, count, [&](size_t row, size_t column, TileVec sum) {
      hn::StoreU(sum, d, scratch + row * kColumns + column);
    });
    const size_t from = std::max(first, panel * kColumns);
    const size_t to = std::min(last, (panel + 1) * kColumns);
    for (size_t row = 0; row < count; ++row) {
      std::copy_n(scratch + row * kColumns + from % kColumns, to - from, scores + row * stride + from - first);
    }
  }
}

void ScoreKeysImpl(size_t dim, size_t count, const float* queries, const float* transposed, size_t columns,
                   float* scores) {
  const TileTag d;
  Gemm(GemmLeft{queries, dim, 1}, GemmRight{transposed, columns}, GemmDepth{dim}, count, 0, columns,
       [&](size_t row, size_t column, TileVec sum) { hn::StoreU(sum, d, scores + row * columns + column); });
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/error.h"

namespace cairn {
namespace {

HWY_EXPORT(SearchLandmarksImpl);
HWY_EXPORT(OfferLandmarksImpl);
HWY_EXPORT(OfferRowsImpl);
HWY_EXPORT(ScoreRowsImpl);
HWY_EXPORT(ReadRowImpl);
HWY_EXPORT(ScoreLandmarksImpl);
HWY_EXPORT(ScoreKeysImpl);

float* Scratch(size_t floats) { return ThreadScratch<float, class PanelKernels>(floats); }

}  // namespace

LandmarkPanels::LandmarkPanels(const LandmarkPanels& other)
    : dim_(other.dim_), half_(other.half_), offset_(other.offset_), size_(other.size_), uniform_(other.uniform_) {
  if (size_ == 0) return;
  Reserve(offset_ + size_);
  std::copy_n(other.data_.data(), used_panels() * panel_bytes(), data_.data());
}

LandmarkPanels& LandmarkPanels::operator=(const LandmarkPanels& other) {
  LandmarkPanels copy(other);
  *this = std::move(copy);
  return *this;
}

void LandmarkPanels::Reserve(size_t columns) {
  const size_t wanted = DivideUp(columns, kPanelColumns) * panel_bytes();
  if (wanted <= data_.size()) return;
  // Panels that exist keep their place; growth by half.
  AlignedBuffer<std::byte> bigger(std::max(wanted, DivideUp(columns + columns / 2, kPanelColumns) * panel_bytes()));
  std::copy(data_.begin(), data_.end(), bigger.begin());
  data_ = std::move(bigger);
}

void LandmarkPanels::Write(size_t index, const float* key) {
  std::byte* number = data_.data() + At(index);
  for (size_t i = 0; i < dim_; ++i, number += kPanelColumns * number_bytes()) {
    if (half_) {
      const uint16_t bits = FloatToHalf(std::clamp(key[i], -65504.0f, 65504.0f));
      std::memcpy(number, &bits, 2);
    } else {
      std::memcpy(number, &key[i], 4);
    }
  }
}

void LandmarkPanels::Append(const float* key) {
  Reserve(offset_ + size_ + 1);
  Write(size_, key);
  uniform_ = uniform_ && Equal(0, size_);
  ++size_;
}

void LandmarkPanels::Set(size_t index, const float* key) {
  CAIRN_CHECK(index < size_);
  Write(index, key);
}

bool LandmarkPanels::Equal(size_t a, size_t b) const {
  const std::byte* left = data_.data() + At(a);
  const std::byte* right = data_.data() + At(b);
  for (size_t i = 0; i < dim_; ++i) {
    const size_t step = i * kPanelColumns * number_bytes();
    if (std::memcmp(left + step, right + step, number_bytes()) != 0) return false;
  }
  return true;
}

void LandmarkPanels::Read(size_t index, float* key) const {
  CAIRN_CHECK(index < size_);
  const std::byte* number = data_.data() + At(index);
  for (size_t i = 0; i < dim_; ++i, number += kPanelColumns * number_bytes()) {
    if (half_) {
      uint16_t bits;
      std::memcpy(&bits, number, 2);
      key[i] = HalfToFloat(bits);
    } else {
      std::memcpy(&key[i], number, 4);
    }
  }
}

void LandmarkPanels::ReadRow(size_t index, std::byte* row) const {
  CAIRN_CHECK(index < size_);
  const std::byte* number = data_.data() + At(index);
  for (size_t i = 0; i < dim_; ++i, number += kPanelColumns * number_bytes()) {
    std::memcpy(row + i * number_bytes(), number, number_bytes());
  }
}

void LandmarkPanels::Truncate(size_t size) {
  CAIRN_CHECK(size <= size_);
  size_ = size;
  uniform_ = uniform_ || size <= 1;
}

size_t LandmarkPanels::EraseFront(size_t count) {
  CAIRN_CHECK(count <= size_);
  const size_t used = used_panels();
  offset_ += count;
  size_ -= count;
  // Only what was different can have become the same; the second key mostly tells.
  for (size_t i = 1; !uniform_ && i <= size_; ++i) {
    if (i == size_)
      uniform_ = true;
    else if (!Equal(0, i))
      break;
  }
  uniform_ = uniform_ || size_ <= 1;
  size_t dead = offset_ / kPanelColumns;
  if (size_ == 0) {
    dead = used;
    offset_ = 0;
  } else if (dead * 4 >= used) {
    std::copy(data_.data() + dead * panel_bytes(), data_.data() + used * panel_bytes(), data_.data());
    offset_ -= dead * kPanelColumns;
  } else {
    dead = 0;
  }
  return dead;
}

void BestBlocks::Offer(float score, int32_t block) {
  if (count_ == k_ && (k_ == 0 || !(score > scores_[k_ - 1]))) return;
  size_t at = count_ < k_ ? count_++ : k_ - 1;
  for (; at > 0 && score > scores_[at - 1]; --at) {
    scores_[at] = scores_[at - 1];
    blocks_[at] = blocks_[at - 1];
  }
  scores_[at] = score;
  blocks_[at] = block;
}

namespace {

using Scored = std::pair<float, int32_t>;
// So few of many are kept in a heap while the others pass by.
bool TakesByHeap(size_t k, size_t scores) { return k * 64 <= scores; }
bool Better(const Scored& a, const Scored& b) { return a.first > b.first; }

}  // namespace

void TakeBest(std::span<const float> scores, size_t k, int32_t* blocks) {
  CAIRN_CHECK(k <= scores.size());
  if (k == 0) return;
  std::vector<Scored> queue(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) queue[i] = {scores[i], static_cast<int32_t>(i)};
  const auto end = queue.begin() + static_cast<ptrdiff_t>(k);
  if (TakesByHeap(k, scores.size())) {
    std::partial_sort(queue.begin(), end, queue.end(), Better);
  } else {
    std::nth_element(queue.begin(), end - 1, queue.end(), Better);
  }
  for (size_t i = 0; i < k; ++i) blocks[i] = queue[i].second;
}

void TakeBestOfTie(size_t old, float tie, std::span<const float> latest, int32_t* blocks) {
  const size_t k = latest.size();
  if (!TakesByHeap(k, old + k)) {
    std::vector<float> all(old, tie);
    all.insert(all.end(), latest.begin(), latest.end());
    TakeBest(all, k, blocks);
    return;
  }
  // The heap begins with the first k; what ties with them passes by without a change.
  std::vector<Scored> queue;
  for (size_t i = 0; i < k; ++i) queue.emplace_back(tie, static_cast<int32_t>(i));
  for (size_t i = 0; i < k; ++i) queue.emplace_back(latest[i], static_cast<int32_t>(old + i));
  std::partial_sort(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(k), queue.end(), Better);
  for (size_t i = 0; i < k; ++i) blocks[i] = queue[i].second;
}

void SearchLandmarks(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                     BestBlocks* best) {
  CAIRN_CHECK(last <= panels.size());
  if (first >= last || count == 0) return;
  float* scratch = Scratch(panels.dim() * LandmarkPanels::kPanelColumns);
  HWY_DYNAMIC_DISPATCH(SearchLandmarksImpl)(panels, first, last, count, queries, best, scratch);
}

void OfferLandmarks(const LandmarkPanels& panels, std::span<const int32_t> blocks, const float* query, bool alone,
                    BestBlocks& best) {
  if (blocks.empty()) return;
  CAIRN_CHECK(blocks.front() >= 0 && static_cast<size_t>(blocks.back()) < panels.size());
  HWY_DYNAMIC_DISPATCH(OfferLandmarksImpl)(panels, blocks, query, alone, best);
}

void ScoreRows(const LandmarkRows& rows, std::span<const uint32_t> which, const float* query, float* scores) {
  HWY_DYNAMIC_DISPATCH(ScoreRowsImpl)(rows, which, query, scores);
}

void OfferRows(const LandmarkRows& rows, size_t first, std::span<const int32_t> blocks, const float* query, bool alone,
               BestBlocks& best) {
  HWY_DYNAMIC_DISPATCH(OfferRowsImpl)(rows, first, blocks, query, alone, best);
}

void ScoreKeys(size_t dim, size_t count, const float* queries, size_t keys, const float* rows, float* scores) {
  const size_t columns = RoundUp(keys, 16);
  float* transposed = Scratch(dim * columns);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < keys; ++j) transposed[i * columns + j] = rows[j * dim + i];
    std::fill(transposed + i * columns + keys, transposed + (i + 1) * columns, 0.0f);
  }
  HWY_DYNAMIC_DISPATCH(ScoreKeysImpl)(dim, count, queries, transposed, columns, scores);
}

void ScoreLandmarks(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                    size_t stride, float* scores) {
  CAIRN_CHECK(last <= panels.size() && (first >= last || stride >= last - first));
  if (first >= last || count == 0) return;
  float* scratch = Scratch(count * LandmarkPanels::kPanelColumns);
  HWY_DYNAMIC_DISPATCH(ScoreLandmarksImpl)(panels, first, last, count, queries, stride, scores, scratch);
}

void ReadLandmarkRow(const LandmarkRows& rows, size_t row, float* key) {
  if (rows.half) {
    HWY_DYNAMIC_DISPATCH(ReadRowImpl)(rows, row, key);
  } else {
    std::memcpy(key, rows.data + row * rows.dim * sizeof(float), rows.dim * sizeof(float));
  }
}

}  // namespace cairn
#endif  // HWY_ONCE
