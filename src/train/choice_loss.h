// Teaches the choice of blocks directly. Where it is known in which earlier block a target stood, that block's landmark
// is to win, for every head or for any, against the landmarks of all other blocks of the batch and of earlier batches:
// cross-entropy over landmark scores, with queries and landmarks in the positions in which a memory is searched. In
// training a query meets a few dozen blocks, in a memory tens of thousands: this is where the margin comes from.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/retrieval.h"
#include "model/config.h"

namespace cairn {

struct ChoiceConfig {
  double weight = 0;       // of the mean over queries, heads and layers, beside the loss of the targets
  size_t first_layer = 2;  // this and all later layers are taught; in the first all landmarks are alike
  size_t bank = 2048;      // landmarks of earlier batches that take part
  // From 0: every head is to find every block, to 1: one head of a layer is enough, so that heads can share the work.
  double any = 0;

  bool operator==(const ChoiceConfig&) const = default;
};

// One batch as the loss sees it.
struct ChoiceBatch {
  size_t rows = 0;
  size_t time = 0;
  std::span<const std::array<int32_t, 2>> answer_blocks;  // [rows * time], see Batch
  uint64_t key = 0;                                       // which queries take part where there are too many
};

// Not thread-safe; uses all threads inside.
class ChoiceLoss {
 public:
  ChoiceLoss(const ModelConfig& config, const ChoiceConfig& choice, size_t max_time);

  void Begin(const ChoiceBatch& batch, float scale);
  // qkv rotated to true positions, as the attention of the layer left it. Adds the gradient of scale * weight * loss to
  // dqkv, before it is rotated back, and keeps the landmarks for later batches.
  void Add(size_t layer, const float* qkv, float* dqkv);

  // Since Begin: the mean loss, the part of queries and heads for which a right block is among the best k, and the part
  // of queries for which it is for any head of a layer. NaN without queries.
  double loss() const { return loss_ / static_cast<double>(seen_); }
  double found() const { return static_cast<double>(found_) / static_cast<double>(seen_); }
  double found_by_any() const {
    return static_cast<double>(found_by_any_) * static_cast<double>(config_.num_attention_heads) /
           static_cast<double>(seen_);
  }
  bool any() const { return seen_ > 0; }

  // The bank, of fixed size.
  std::vector<float> State() const;
  size_t StateSize() const;
  void Restore(std::span<const float> state);

 private:
  struct Query {
    size_t row, position;
    std::array<int32_t, 2> blocks;
  };
  size_t landmarks() const { return batch_.rows * (batch_.time / stride_); }
  float* KeysOf(size_t layer, size_t kv_head) {
    return &bank_keys_[((layer - choice_.first_layer) * config_.num_key_value_heads + kv_head) * choice_.bank *
                       config_.head_dim];
  }

  const ModelConfig config_;
  const ChoiceConfig choice_;
  const size_t stride_, width_, top_k_, chunk_blocks_;
  const BlockTurns turns_;
  ChoiceBatch batch_;
  float scale_ = 0;
  std::vector<Query> queries_;
  std::vector<float> bank_keys_;  // [layer][kv head][bank][dim], turned to slot 0
  size_t held_ = 0, next_ = 0;    // landmarks in the bank, and where the next ones go
  size_t kept_ = 0;               // of this batch
  double loss_ = 0;
  uint64_t found_ = 0, found_by_any_ = 0, seen_ = 0;
  std::vector<float> keys_, q_, scores_;  // [kv head] each
  std::vector<float> dkeys_, dq_;
};

}  // namespace cairn
