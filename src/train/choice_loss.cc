#include "train/choice_loss.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "base/random.h"
#include "base/threads.h"
#include "data/batches.h"
#include "kernels/gemm.h"
#include "model/rotary_table.h"

namespace cairn {

namespace {

constexpr size_t kMostQueries = 384;  // of a batch; others are left out
constexpr size_t kQueryTile = 64;     // products have whole tiles, so that few shapes need a kernel
constexpr size_t kDefaultK = 4, kDefaultChunkBlocks = 5;

}  // namespace

ChoiceLoss::ChoiceLoss(const ModelConfig& config, const ChoiceConfig& choice, size_t max_time)
    : config_(config),
      choice_(choice),
      stride_(config.landmark.block_length + 1),
      width_(config.query_size() + 2 * config.key_size()),
      top_k_(config.landmark.memory_training.enabled ? config.landmark.memory_training.k : kDefaultK),
      chunk_blocks_(config.landmark.memory_training.enabled
                        ? config.landmark.memory_training.chunk_length / config.landmark.block_length
                        : kDefaultChunkBlocks),
      turns_(RotaryFrequencies(config), config.rotary_layout, stride_, max_time / stride_ + top_k_ + 2),
      bank_keys_((config.num_hidden_layers - choice.first_layer) * choice.bank * config.key_size()) {}

void ChoiceLoss::Begin(const ChoiceBatch& batch, float scale) {
  CAIRN_CHECK(batch.answer_blocks.size() == batch.rows * batch.time);
  held_ = std::min(held_ + kept_, choice_.bank);
  if (choice_.bank > 0) next_ = (next_ + kept_) % choice_.bank;
  kept_ = 0;
  batch_ = batch;
  scale_ = scale;
  loss_ = 0;
  found_ = found_by_any_ = seen_ = 0;
  queries_.clear();
  for (size_t i = 0; i < batch.answer_blocks.size(); ++i) {
    const auto& blocks = batch.answer_blocks[i];
    if (blocks[0] == kNoBlock && blocks[1] == kNoBlock) continue;
    queries_.push_back({i / batch.time, i % batch.time, blocks});
  }
  Random random(batch.key);
  for (size_t i = 0; i < std::min(kMostQueries, queries_.size()); ++i) {
    std::swap(queries_[i], queries_[i + random.Below(queries_.size() - i)]);
  }
  if (queries_.size() > kMostQueries) queries_.resize(kMostQueries);
}

void ChoiceLoss::Add(size_t layer, const float* qkv, float* dqkv) {
  if (layer < choice_.first_layer) return;
  const size_t dim = config_.head_dim, heads = config_.num_attention_heads;
  const size_t group = heads / config_.num_key_value_heads;
  const size_t blocks = batch_.time / stride_, own = landmarks(), all = own + choice_.bank;
  const size_t count = queries_.size() * group, padded = DivideUp(count, kQueryTile) * kQueryTile;
  const auto key_at = [&](size_t landmark, size_t kv_head) {
    const size_t position = landmark / blocks * batch_.time + landmark % blocks * stride_ + stride_ - 1;
    return position * width_ + config_.query_size() + kv_head * dim;
  };
  const auto slot = [&](size_t landmark) { return static_cast<ptrdiff_t>(landmark % blocks + top_k_ + 1); };
  // Chunk that a query stands in: its position is counted from there.
  const auto chunk = [&](const Query& query) {
    return static_cast<ptrdiff_t>(query.position / stride_ / chunk_blocks_ * chunk_blocks_);
  };
  const auto query_at = [&](size_t i, size_t kv_head) {
    const Query& query = queries_[i / group];
    return (query.row * batch_.time + query.position) * width_ + (kv_head * group + i % group) * dim;
  };
  const size_t kv_heads = config_.num_key_value_heads;
  keys_.resize(kv_heads * all * dim);
  q_.resize(kv_heads * padded * dim);
  scores_.resize(kv_heads * padded * all);
  dkeys_.resize(own * dim);
  dq_.resize(padded * dim);
  const float factor = 1.0f / std::sqrt(static_cast<float>(dim));
  const size_t terms = queries_.size() * heads * (config_.num_hidden_layers - choice_.first_layer);
  const float step = scale_ * static_cast<float>(choice_.weight) / static_cast<float>(std::max<size_t>(terms, 1));
  // Not the first row's where there are others: its facts may have no name (data/recall_rows.h), and would contradict
  // those of later rows.
  const size_t first_kept = batch_.rows > 1 ? blocks : 0;
  kept_ = std::min(own - first_kept, choice_.bank);
  const auto right = [&](const Query& query, size_t n) {
    const size_t row = query.row * blocks;
    return n >= row && n < row + blocks && std::count(query.blocks.begin(), query.blocks.end(), n - row) > 0;
  };

  // Softmax of every query and head: weights that sum to `sums`, of which `wanted` is right.
  struct Share {
    double sum = 0, wanted = 0;
    bool found = false;
    double probability() const { return wanted / sum; }
  };
  std::vector<Share> shares(kv_heads * count);
  for (size_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
    float* keys = &keys_[kv_head * all * dim];
    for (size_t n = 0; n < own; ++n) turns_.Apply(slot(n), qkv + key_at(n, kv_head), keys + n * dim, true);
    float* bank = choice_.bank > 0 ? KeysOf(layer, kv_head) : nullptr;
    if (bank != nullptr) std::copy_n(bank, choice_.bank * dim, keys + own * dim);
    for (size_t i = 0; i < kept_; ++i) {
      std::copy_n(keys + (first_kept + i) * dim, dim, bank + (next_ + i) % choice_.bank * dim);
    }
    if (count == 0) continue;
    float* q = &q_[kv_head * padded * dim];
    std::fill_n(q, padded * dim, 0.0f);
    for (size_t i = 0; i < count; ++i) {
      turns_.Apply(chunk(queries_[i / group]), qkv + query_at(i, kv_head), q + i * dim, true);
    }
    RunMatMul({.m = padded, .n = all, .k = dim, .transpose_b = true}, q, keys, &scores_[kv_head * padded * all]);
    ParallelFor(padded, [&](size_t i, int) {
      float* scores = &scores_[(kv_head * padded + i) * all];
      if (i >= count) {
        std::fill_n(scores, all, 0.0f);
        return;
      }
      const Query& query = queries_[i / group];
      const size_t row = query.row * blocks;
      // The row's own blocks from the query's on are not there yet.
      const size_t hidden = row + query.position / stride_;
      const auto open = [&](size_t n) { return n >= own ? n < own + held_ : n < hidden || n >= row + blocks; };
      float max = -INFINITY, best = -INFINITY;
      for (size_t n = 0; n < all; ++n) {
        if (!open(n)) {
          scores[n] = -INFINITY;
          continue;
        }
        scores[n] *= factor;
        max = std::max(max, scores[n]);
        if (right(query, n)) best = std::max(best, scores[n]);
      }
      size_t better = 0;
      Share share;
      for (size_t n = 0; n < all; ++n) {
        better += scores[n] > best;
        const float weight = std::exp(scores[n] - max);
        share.sum += weight;
        if (right(query, n)) share.wanted += weight;
        scores[n] = weight;
      }
      share.wanted = std::max(share.wanted, 1e-30 * share.sum);
      share.found = better < top_k_;
      shares[kv_head * count + i] = share;
    });
  }
  if (count == 0) return;

  // With `any` a head learns from a query by its part of what the heads together give to the right block.
  std::vector<double> together(queries_.size());
  std::vector<uint8_t> found(queries_.size());
  for (size_t i = 0; i < shares.size(); ++i) {
    together[i % count / group] += shares[i].probability() / static_cast<double>(heads);
    found[i % count / group] |= static_cast<uint8_t>(shares[i].found);
    found_ += shares[i].found ? 1 : 0;
    loss_ -= (1 - choice_.any) * std::log(shares[i].probability());
  }
  for (size_t i = 0; i < queries_.size(); ++i) {
    found_by_any_ += found[i];
    loss_ -= choice_.any * static_cast<double>(heads) * std::log(together[i]);
  }
  seen_ += shares.size();
  for (size_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
    float* scores_of_head = &scores_[kv_head * padded * all];
    ParallelFor(count, [&](size_t i, int) {
      float* scores = scores_of_head + i * all;
      const Share& share = shares[kv_head * count + i];
      const double learns = 1 - choice_.any + choice_.any * share.probability() / together[i / group];
      const auto whole = static_cast<float>(learns * step * factor / share.sum);
      const auto part = static_cast<float>(learns * step * factor / share.wanted);
      for (size_t n = 0; n < all; ++n) scores[n] *= right(queries_[i / group], n) ? whole - part : whole;
    });
    RunMatMul({.m = padded, .n = dim, .k = all}, scores_of_head, &keys_[kv_head * all * dim], dq_.data());
    RunMatMul({.m = own, .n = dim, .k = padded, .transpose_a = true, .stride_a = all}, scores_of_head,
              &q_[kv_head * padded * dim], dkeys_.data());
    std::vector<float> turned(dim);
    for (size_t i = 0; i < count; ++i) {
      turns_.Apply(chunk(queries_[i / group]), &dq_[i * dim], turned.data(), false);
      float* to = dqkv + query_at(i, kv_head);
      for (size_t j = 0; j < dim; ++j) to[j] += turned[j];
    }
    for (size_t n = 0; n < own; ++n) {
      turns_.Apply(slot(n), &dkeys_[n * dim], turned.data(), false);
      float* to = dqkv + key_at(n, kv_head);
      for (size_t j = 0; j < dim; ++j) to[j] += turned[j];
    }
  }
}

size_t ChoiceLoss::StateSize() const { return 2 + bank_keys_.size(); }

std::vector<float> ChoiceLoss::State() const {
  const size_t held = std::min(held_ + kept_, choice_.bank);
  const size_t next = choice_.bank > 0 ? (next_ + kept_) % choice_.bank : 0;
  std::vector<float> state = {static_cast<float>(held), static_cast<float>(next)};
  state.insert(state.end(), bank_keys_.begin(), bank_keys_.end());
  return state;
}

void ChoiceLoss::Restore(std::span<const float> state) {
  const auto limit = static_cast<float>(choice_.bank);
  if (state.size() != StateSize() || !(state[0] >= 0 && state[0] <= limit && state[1] >= 0 && state[1] <= limit)) {
    Fail("the bank of landmarks does not fit the run's training.choice");
  }
  held_ = static_cast<size_t>(state[0]);
  next_ = static_cast<size_t>(state[1]);
  kept_ = 0;
  std::copy(state.begin() + 2, state.end(), bank_keys_.begin());
}

}  // namespace cairn
