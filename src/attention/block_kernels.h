// Reading finished blocks at inference: a block's keys and values in the layout that the products stream, and the
// search among landmarks. Single-threaded pieces; the caller spreads them over threads. Agrees with the memory
// reference (memory_reference.h) to rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/aligned.h"
#include "base/checked.h"

namespace cairn {

// A block of one KV head: keys transposed, [dim][padded_columns], the landmark's in the column after the tokens'; then
// values, [tokens][padded_dim]. Without a landmark it is a piece of an ordinary KV cache.
struct BlockShape {
  size_t dim = 2;
  size_t tokens = 1;  // L
  bool landmark = true;

  size_t columns() const { return tokens + (landmark ? 1 : 0); }  // positions
  size_t padded_columns() const { return RoundUp(columns(), 16); }
  size_t padded_dim() const { return RoundUp(dim, 16); }
  size_t key_floats() const { return dim * padded_columns(); }
  size_t floats() const { return key_floats() + tokens * padded_dim(); }

  bool operator==(const BlockShape&) const = default;
};

// Rows of keys ([columns]) and values ([tokens]), `stride` apart, into a block of shape.floats(), and back.
void StoreBlock(const BlockShape& shape, const float* keys, const float* values, size_t stride, float* block);
void LoadBlock(const BlockShape& shape, const float* block, size_t tokens, size_t stride, float* keys, float* values);

// One softmax group of a query as it is being built, in units of log 2: sum = sum of 2^(score - max), and `out` [dim]
// the values weighted with it, not yet divided by it.
struct RunningGroup {
  float* max;
  float* sum;
  float* out;
};

// `queries` [count][dim], scaled so that a dot product with a key is a score in units of log 2. Each block enters the
// group of each query as one member: its value is its tokens' softmax average, its score the landmark's, or without a
// landmark the log-sum-exp of its tokens. `gates` [count], or null: that score.
void ReadBlock(const BlockShape& shape, const float* block, size_t count, const float* queries,
               const RunningGroup* groups, float* gates);

// Landmark keys of one layer and KV head, in panels of kPanelColumns: [panel][dim][column]. Grows at the end.
class LandmarkPanels {
 public:
  static constexpr size_t kPanelColumns = 64;

  explicit LandmarkPanels(size_t dim) : dim_(dim) {}
  LandmarkPanels(const LandmarkPanels& other);
  LandmarkPanels& operator=(const LandmarkPanels& other);
  LandmarkPanels(LandmarkPanels&&) noexcept = default;
  LandmarkPanels& operator=(LandmarkPanels&&) noexcept = default;

  size_t size() const { return size_; }
  size_t dim() const { return dim_; }
  const float* panel(size_t index) const { return data_.data() + index * dim_ * kPanelColumns; }
  size_t bytes() const { return data_.size() * sizeof(float); }
  // Whether all keys are the same: so it is in the first layer, where a landmark has seen nothing of its block yet.
  bool uniform() const { return uniform_; }
  void Append(const float* key);
  void Read(size_t index, float* key) const;
  void Truncate(size_t size);
  void EraseFront(size_t count);  // O(size)

 private:
  void Reserve(size_t size);

  size_t dim_;
  size_t size_ = 0;
  bool uniform_ = true;
  AlignedBuffer<float> data_;
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
  float threshold() const { return count_ < k_ ? -3.4e38f : scores_[k_ - 1]; }
  void Offer(float score, int32_t block);
  size_t count() const { return count_; }

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

// Offers landmarks [first, last) to the lists of `count` queries, [count][dim], in ascending order.
void SearchLandmarks(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                     BestBlocks* best);

// All scores: [count][stride], landmark b at column b.
void ScoreLandmarks(const LandmarkPanels& panels, size_t count, const float* queries, size_t stride, float* scores);

}  // namespace cairn
