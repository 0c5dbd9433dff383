// Landmark keys of a memory, and the search among them that looks at every key: what all indexes must agree with or
// come near to. Single-threaded pieces; the caller spreads them over threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned.h"

namespace cairn {

// Landmark keys of one layer and KV head, f32 or f16, in panels of kPanelColumns: [panel][dim][column]. Grows at the
// end. Keys erased at the front leave dead columns, offset() of them, until whole panels of them are worth moving.
class LandmarkPanels {
 public:
  static constexpr size_t kPanelColumns = 64;

  LandmarkPanels(size_t dim, bool half) : dim_(dim), half_(half) {}
  LandmarkPanels(const LandmarkPanels& other);
  LandmarkPanels& operator=(const LandmarkPanels& other);
  LandmarkPanels(LandmarkPanels&&) noexcept = default;
  LandmarkPanels& operator=(LandmarkPanels&&) noexcept = default;

  size_t size() const { return size_; }
  size_t dim() const { return dim_; }
  bool half() const { return half_; }
  // Key b stands in column (offset() + b) % kPanelColumns of panel (offset() + b) / kPanelColumns.
  size_t offset() const { return offset_; }
  const std::byte* panel(size_t index) const { return data_.data() + index * panel_bytes(); }
  size_t bytes() const { return data_.size(); }
  // Whether all keys are the same: so it is in the first layer, where a landmark has seen nothing of its block yet.
  bool uniform() const { return uniform_; }
  void Append(const float* key);
  void Set(size_t index, const float* key);  // in place of a key; uniform() no longer means anything
  void Read(size_t index, float* key) const;
  void ReadRow(size_t index, std::byte* row) const;  // the numbers as they are held, row_bytes()
  size_t row_bytes() const { return dim_ * number_bytes(); }
  void Truncate(size_t size);
  // Amortised O(count). Returns how many panels were removed: so much lower are the numbers of those that stay.
  size_t EraseFront(size_t count);

 private:
  size_t number_bytes() const { return half_ ? 2 : 4; }
  size_t panel_bytes() const { return dim_ * kPanelColumns * number_bytes(); }
  size_t used_panels() const { return (offset_ + size_ + kPanelColumns - 1) / kPanelColumns; }
  size_t At(size_t index) const {  // of the first number of a key, in bytes
    const size_t column = offset_ + index;
    return column / kPanelColumns * panel_bytes() + column % kPanelColumns * number_bytes();
  }
  bool Equal(size_t a, size_t b) const;
  void Write(size_t index, const float* key);
  void Reserve(size_t columns);

  size_t dim_;
  bool half_;
  size_t offset_ = 0;
  size_t size_ = 0;
  bool uniform_ = true;
  AlignedBuffer<std::byte> data_;
};

// The best of what was offered so far: scores in descending order, of equals the earlier first. Room for k.
class BestBlocks {
 public:
  void Reset(size_t k, float* scores, int32_t* blocks) {
    k_ = k;
    count_ = 0;
    scores_ = scores;
    blocks_ = blocks;
  }
  // What a score must exceed to enter.
  float threshold() const { return count_ < k_ ? -3.4e38f : k_ == 0 ? 3.4e38f : scores_[k_ - 1]; }
  void Offer(float score, int32_t block);
  size_t k() const { return k_; }
  size_t count() const { return count_; }
  float score(size_t i) const { return scores_[i]; }
  int32_t block(size_t i) const { return blocks_[i]; }

 private:
  size_t k_ = 0;
  size_t count_ = 0;
  float* scores_ = nullptr;
  int32_t* blocks_ = nullptr;
};

// The k best of all scores, unsorted. Equal ones are taken as the authors' code does (torch.topk on a CPU, whose order
// is that of std::nth_element), so that results can be compared; it shows in the first layer, where all old landmarks
// tie.
void TakeBest(std::span<const float> scores, size_t k, int32_t* blocks);

// The same for `old` scores that are all `tie`, followed by k `latest` ones, without looking at all of them.
void TakeBestOfTie(size_t old, float tie, std::span<const float> latest, int32_t* blocks);

// Offers landmarks [first, last) to the lists of `count` queries, [count][dim], in ascending order.
void SearchLandmarks(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                     BestBlocks* best);

// Offers single landmarks, in ascending order, to the list of one query, with the very scores that SearchLandmarks
// gives them when it serves one query (`alone`) or several: their sums are in different orders.
void OfferLandmarks(const LandmarkPanels& panels, std::span<const int32_t> blocks, const float* query, bool alone,
                    BestBlocks& best);

// Keys as rows, [key][dim], f32 or f16: few of them are read faster than from panels, where a key lies in as many cache
// lines as it has numbers.
struct LandmarkRows {
  const std::byte* data;
  size_t dim;
  bool half;
};

void ReadLandmarkRow(const LandmarkRows& rows, size_t row, float* key);

// OfferLandmarks for keys given as rows: landmark blocks[i] is row blocks[i] + first.
void OfferRows(const LandmarkRows& rows, size_t first, std::span<const int32_t> blocks, const float* query, bool alone,
               BestBlocks& best);

// scores[i] of row which[i], for an order alone: their sums are in another order than those of searches.
void ScoreRows(const LandmarkRows& rows, std::span<const uint32_t> which, const float* query, float* scores);

// scores [count][RoundUp(keys, 16)] of a few keys given as rows, [keys][dim].
void ScoreKeys(size_t dim, size_t count, const float* queries, size_t keys, const float* rows, float* scores);

// Scores of landmarks [first, last): [count][stride], landmark b at column b - first.
void ScoreLandmarks(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                    size_t stride, float* scores);

}  // namespace cairn
