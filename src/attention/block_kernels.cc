#include "attention/block_kernels.h"

#include <algorithm>
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/block_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/broadcast_gemm-inl.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries of one block that are worked on together: their scores stay in the first-level cache.
inline constexpr size_t kRowsAtOnce = 24;

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

// out = out * keep + value * add.
HWY_INLINE void MergeRow(float* out, float keep, const float* value, float add, size_t dim) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  const auto vkeep = hn::Set(d, keep);
  const auto vadd = hn::Set(d, add);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const auto old = hn::Mul(hn::LoadU(d, out + i), vkeep);
    hn::StoreU(hn::MulAdd(hn::Load(d, value + i), vadd, old), d, out + i);
  }
  for (; i < dim; ++i) out[i] = out[i] * keep + value[i] * add;
}

void ReadBlockImpl(const BlockShape& shape, const float* block, size_t count, const float* queries,
                   const RunningGroup* groups, float* gates, float* scratch) {
  const TileTag d;
  const size_t columns = shape.padded_columns();
  const size_t padded = shape.padded_dim();
  float* scores = scratch;
  float* values = scratch + kRowsAtOnce * columns;
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    const size_t rows = std::min(kRowsAtOnce, count - begin);
    Gemm(GemmLeft{queries + begin * shape.dim, shape.dim, 1}, GemmRight{block, columns}, GemmDepth{shape.dim}, rows, 0,
         columns, [&](size_t row, size_t column, TileVec sum) { hn::Store(sum, d, scores + row * columns + column); });
    float max[kRowsAtOnce];
    float sum[kRowsAtOnce];
    float gate[kRowsAtOnce];
    for (size_t r = 0; r < rows; ++r) {
      float* row = scores + r * columns;
      gate[r] = shape.landmark ? row[shape.tokens] : 0;
      SoftmaxRow(row, shape.tokens, max[r], sum[r]);
      if (!shape.landmark) gate[r] = max[r] + std::log2(sum[r]);
      gate[r] = std::clamp(gate[r], -1e37f, 1e37f);
    }
    Gemm(GemmLeft{scores, columns, 1}, GemmRight{block + shape.key_floats(), padded}, GemmDepth{shape.tokens}, rows, 0,
         padded,
         [&](size_t row, size_t column, TileVec value) { hn::Store(value, d, values + row * padded + column); });
    for (size_t r = 0; r < rows; ++r) {
      const RunningGroup& group = groups[begin + r];
      const float top = std::max(*group.max, gate[r]);
      const float keep = std::exp2(*group.max - top);
      const float add = std::exp2(gate[r] - top);
      MergeRow(group.out, keep, values + r * padded, add / sum[r], shape.dim);
      *group.max = top;
      *group.sum = *group.sum * keep + add;
      if (gates != nullptr) gates[begin + r] = gate[r];
    }
  }
}

// Queries whose scores of one panel are computed together.
inline constexpr size_t kSearchRows = 12;

void SearchLandmarksImpl(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                         BestBlocks* best) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t dim = panels.dim();
  HWY_ALIGN float scores[kSearchRows * kColumns];
  for (size_t begin = 0; begin < count; begin += kSearchRows) {
    const size_t rows = std::min(kSearchRows, count - begin);
    for (size_t panel = first / kColumns; panel * kColumns < last; ++panel) {
      Gemm(GemmLeft{queries + begin * dim, dim, 1}, GemmRight{panels.panel(panel), kColumns}, GemmDepth{dim}, rows, 0,
           kColumns,
           [&](size_t row, size_t column, TileVec sum) { hn::Store(sum, d, scores + row * kColumns + column); });
      const size_t from = std::max(first, panel * kColumns) - panel * kColumns;
      const size_t to = std::min(last, (panel + 1) * kColumns) - panel * kColumns;
      for (size_t r = 0; r < rows; ++r) {
        BestBlocks& list = best[begin + r];
        const float* row = scores + r * kColumns;
        TileVec max = hn::Load(d, row);
        for (size_t c = lanes; c < kColumns; c += lanes) max = hn::Max(max, hn::Load(d, row + c));
        if (hn::GetLane(hn::MaxOfLanes(d, max)) <= list.threshold()) continue;
        for (size_t c = from; c < to; ++c) {
          if (row[c] > list.threshold()) list.Offer(row[c], static_cast<int32_t>(panel * kColumns + c));
        }
      }
    }
  }
}

void ScoreLandmarksImpl(const LandmarkPanels& panels, size_t count, const float* queries, size_t stride,
                        float* scores) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  const size_t dim = panels.dim();
  for (size_t panel = 0; panel * kColumns < panels.size(); ++panel) {
    Gemm(GemmLeft{queries, dim, 1}, GemmRight{panels.panel(panel), kColumns}, GemmDepth{dim}, count, 0, kColumns,
         [&](size_t row, size_t column, TileVec sum) {
           hn::StoreU(sum, d, scores + row * stride + panel * kColumns + column);
         });
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/error.h"

namespace cairn {
namespace {

HWY_EXPORT(ReadBlockImpl);
HWY_EXPORT(SearchLandmarksImpl);
HWY_EXPORT(ScoreLandmarksImpl);

// This thread's scratch memory.
float* Scratch(size_t floats) {
  thread_local AlignedBuffer<float> buffer;
  if (buffer.size() < floats) buffer = AlignedBuffer<float>(floats);
  return buffer.data();
}

}  // namespace

void StoreBlock(const BlockShape& shape, const float* keys, const float* values, size_t stride, float* block) {
  const size_t columns = shape.padded_columns();
  for (size_t i = 0; i < shape.dim; ++i) {
    float* row = block + i * columns;
    for (size_t j = 0; j < shape.columns(); ++j) row[j] = keys[j * stride + i];
    std::fill(row + shape.columns(), row + columns, 0.0f);
  }
  float* to = block + shape.key_floats();
  for (size_t j = 0; j < shape.tokens; ++j, to += shape.padded_dim()) {
    std::copy_n(values + j * stride, shape.dim, to);
    std::fill(to + shape.dim, to + shape.padded_dim(), 0.0f);
  }
}

void LoadBlock(const BlockShape& shape, const float* block, size_t tokens, size_t stride, float* keys, float* values) {
  const float* from = block + shape.key_floats();
  for (size_t j = 0; j < tokens; ++j) {
    for (size_t i = 0; i < shape.dim; ++i) keys[j * stride + i] = block[i * shape.padded_columns() + j];
    std::copy_n(from + j * shape.padded_dim(), shape.dim, values + j * stride);
  }
}

void ReadBlock(const BlockShape& shape, const float* block, size_t count, const float* queries,
               const RunningGroup* groups, float* gates) {
  float* scratch = Scratch(24 * (shape.padded_columns() + shape.padded_dim()));
  HWY_DYNAMIC_DISPATCH(ReadBlockImpl)(shape, block, count, queries, groups, gates, scratch);
}

LandmarkPanels::LandmarkPanels(const LandmarkPanels& other)
    : dim_(other.dim_), size_(other.size_), uniform_(other.uniform_) {
  if (size_ == 0) return;
  Reserve(size_);
  std::copy_n(other.data_.data(), RoundUp(size_, kPanelColumns) * dim_, data_.data());
}

LandmarkPanels& LandmarkPanels::operator=(const LandmarkPanels& other) {
  LandmarkPanels copy(other);
  *this = std::move(copy);
  return *this;
}

void LandmarkPanels::Reserve(size_t size) {
  const size_t wanted = RoundUp(size, kPanelColumns) * dim_;
  if (wanted <= data_.size()) return;
  // Panels that exist keep their place; growth by half.
  AlignedBuffer<float> bigger(std::max(wanted, RoundUp(size_ + size_ / 2, kPanelColumns) * dim_));
  std::copy(data_.begin(), data_.end(), bigger.begin());
  data_ = std::move(bigger);
}

void LandmarkPanels::Append(const float* key) {
  Reserve(size_ + 1);
  float* column = data_.data() + size_ / kPanelColumns * dim_ * kPanelColumns + size_ % kPanelColumns;
  for (size_t i = 0; i < dim_; ++i) {
    column[i * kPanelColumns] = key[i];
    uniform_ = uniform_ && key[i] == data_[i * kPanelColumns];
  }
  ++size_;
}

void LandmarkPanels::Read(size_t index, float* key) const {
  CAIRN_CHECK(index < size_);
  const float* column = panel(index / kPanelColumns) + index % kPanelColumns;
  for (size_t i = 0; i < dim_; ++i) key[i] = column[i * kPanelColumns];
}

void LandmarkPanels::Truncate(size_t size) {
  CAIRN_CHECK(size <= size_);
  size_ = size;
  uniform_ = uniform_ || size <= 1;
}

void LandmarkPanels::EraseFront(size_t count) {
  CAIRN_CHECK(count <= size_);
  LandmarkPanels rest(dim_);
  std::vector<float> key(dim_);
  for (size_t i = count; i < size_; ++i) {
    Read(i, key.data());
    rest.Append(key.data());
  }
  *this = std::move(rest);
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

void TakeBest(std::span<const float> scores, size_t k, int32_t* blocks) {
  CAIRN_CHECK(k <= scores.size());
  if (k == 0) return;
  std::vector<std::pair<float, int32_t>> queue(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) queue[i] = {scores[i], static_cast<int32_t>(i)};
  const auto better = [](const auto& a, const auto& b) { return a.first > b.first; };
  const auto end = queue.begin() + static_cast<ptrdiff_t>(k);
  if (k * 64 <= scores.size()) {
    std::partial_sort(queue.begin(), end, queue.end(), better);
  } else {
    std::nth_element(queue.begin(), end - 1, queue.end(), better);
  }
  for (size_t i = 0; i < k; ++i) blocks[i] = queue[i].second;
}

void SearchLandmarks(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                     BestBlocks* best) {
  CAIRN_CHECK(last <= panels.size());
  if (first < last) HWY_DYNAMIC_DISPATCH(SearchLandmarksImpl)(panels, first, last, count, queries, best);
}

void ScoreLandmarks(const LandmarkPanels& panels, size_t count, const float* queries, size_t stride, float* scores) {
  CAIRN_CHECK(stride >= RoundUp(panels.size(), LandmarkPanels::kPanelColumns));
  HWY_DYNAMIC_DISPATCH(ScoreLandmarksImpl)(panels, count, queries, stride, scores);
}

}  // namespace cairn
#endif  // HWY_ONCE
