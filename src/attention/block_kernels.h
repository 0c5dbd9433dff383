// Reading finished blocks at inference: a block's keys and values in the layout that the products stream, and the
// search among landmarks. Single-threaded pieces; the caller spreads them over threads. Agrees with the memory
// reference (memory_reference.h) to rounding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/aligned.h"
#include "base/checked.h"

namespace cairn {

// How the numbers of a block are held.
enum class BlockFormat {
  kF32,
  kF16,
  kInt8,  // with one scale for the keys and one for the values of a block; the landmark's key stays f32
};

std::string_view NameOf(BlockFormat format);  // "f32", "f16", "int8"
std::optional<BlockFormat> BlockFormatNamed(std::string_view name);

// A block of one KV head: keys transposed, [dim][padded_columns], the landmark's in the column after the tokens'; then
// values, [tokens][padded_dim]. Without a landmark it is a piece of an ordinary KV cache. An int8 block begins with its
// two scales and the landmark's key, f32, padded to 64 bytes.
struct BlockShape {
  size_t dim = 2;
  size_t tokens = 1;  // L
  bool landmark = true;
  BlockFormat format = BlockFormat::kF32;

  size_t columns() const { return tokens + (landmark ? 1 : 0); }  // positions
  size_t padded_columns() const { return RoundUp(columns(), 16); }
  size_t padded_dim() const { return RoundUp(dim, 16); }
  size_t key_numbers() const { return dim * padded_columns(); }
  size_t numbers() const { return key_numbers() + tokens * padded_dim(); }
  size_t header_bytes() const { return format == BlockFormat::kInt8 ? RoundUp((2 + dim) * sizeof(float), 64) : 0; }
  size_t bytes() const {
    const size_t each = format == BlockFormat::kF32 ? 4 : format == BlockFormat::kF16 ? 2 : 1;
    return RoundUp(header_bytes() + numbers() * each, 64);
  }

  bool operator==(const BlockShape&) const = default;
};

// Rows of keys ([columns]) and values ([tokens]), `stride` apart, into a block of shape.bytes(), and the first `tokens`
// of them back.
void StoreBlock(const BlockShape& shape, const float* keys, const float* values, size_t stride, std::byte* block);
void LoadBlock(const BlockShape& shape, const std::byte* block, size_t tokens, size_t stride, float* keys,
               float* values);

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
void ReadBlock(const BlockShape& shape, const std::byte* block, size_t count, const float* queries,
               const RunningGroup* groups, float* gates);

// Landmark keys of one layer and KV head, f32 or f16, in panels of kPanelColumns: [panel][dim][column]. Grows at the
// end.
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
  const std::byte* panel(size_t index) const { return data_.data() + index * dim_ * kPanelColumns * number_bytes(); }
  size_t bytes() const { return data_.size(); }
  // Whether all keys are the same: so it is in the first layer, where a landmark has seen nothing of its block yet.
  bool uniform() const { return uniform_; }
  void Append(const float* key);
  void Read(size_t index, float* key) const;
  void Truncate(size_t size);
  void EraseFront(size_t count);  // O(size)

 private:
  size_t number_bytes() const { return half_ ? 2 : 4; }
  std::byte* Column(size_t index) {
    return data_.data() + (index / kPanelColumns * dim_ * kPanelColumns + index % kPanelColumns) * number_bytes();
  }
  void Reserve(size_t size);

  size_t dim_;
  bool half_;
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

// scores [count][RoundUp(keys, 16)] of a few keys given as rows, [keys][dim].
void ScoreKeys(size_t dim, size_t count, const float* queries, size_t keys, const float* rows, float* scores);

// All scores: [count][stride], landmark b at column b.
void ScoreLandmarks(const LandmarkPanels& panels, size_t count, const float* queries, size_t stride, float* scores);

}  // namespace cairn
