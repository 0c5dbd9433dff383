#include "attention/retrieval.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/rows.h"

namespace cairn {
namespace {

constexpr float kLog2E = 1.44269504089f;

// What the queries of one head in one chunk share.
class HeadReader {
 public:
  HeadReader(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t head)
      : shape_(shape),
        chunk_(chunk),
        kv_head_(head / (shape.query_heads / shape.kv_heads)),
        blocks_(chunk.memory.size()),
        top_k_(std::min(shape.top_k, chunk.memory.size())),
        scale_(1.0f / std::sqrt(static_cast<float>(shape.dim))) {
    // Landmark keys turned so that one query vector scores all of them: the old ones as in slot 0, the latest k' at
    // their own slots. The query itself is turned to a distance that does not depend on the block.
    landmarks_.resize(blocks_ * shape.dim);
    for (size_t m = 0; m < blocks_; ++m) {
      const size_t slot = m + top_k_ >= blocks_ ? m + top_k_ - blocks_ + 1 : 0;
      const float* key = Key(m) + shape.block_length * chunk.memory[m].time_stride;
      shape.turns->Apply(Turn(m, slot), key, &landmarks_[m * shape.dim], true);
    }
    scores_.resize(std::max(blocks_, shape.stride()));
    order_.resize(blocks_);
  }

  size_t top_k() const { return top_k_; }
  const float* Key(size_t m) const { return chunk_.memory[m].k + kv_head_ * chunk_.memory[m].head_stride; }
  const float* Value(size_t m) const { return chunk_.memory[m].v + kv_head_ * chunk_.memory[m].head_stride; }
  size_t kv_head() const { return kv_head_; }
  float scale() const { return scale_; }

  // The best k' blocks for a query, in text order.
  void Choose(const float* q, int32_t* chosen) {
    DotRows({blocks_, shape_.dim, shape_.dim}, q, landmarks_.data(), scores_.data());
    std::iota(order_.begin(), order_.end(), 0);
    const size_t foreign = top_k_ > 1 ? chunk_.distractors : 0;
    const size_t foreign_k = DistractorsChosen(top_k_, foreign, blocks_ - foreign);
    chosen = Best(0, foreign, foreign_k, chosen);
    Best(foreign, blocks_, top_k_ - foreign_k, chosen);
  }

  // By how many blocks a query is turned on to read its i'th chosen block: slots fill from the left, the latest k'
  // stand one further to the right.
  ptrdiff_t TurnOf(size_t i, size_t m) const { return Turn(m, i + (m + top_k_ >= blocks_ ? 1 : 0)); }

  // Softmax of one block for a query that is turned to its slot: weights of its tokens, and the landmark's score in
  // units of log 2.
  float BlockWeights(const float* turned, size_t m, float* weights) {
    const size_t length = shape_.block_length;
    DotRows({length + 1, shape_.dim, chunk_.memory[m].time_stride}, turned, Key(m), weights);
    const float factor = scale_ * kLog2E;
    float max = weights[0];
    for (size_t j = 1; j < length; ++j) max = std::max(max, weights[j]);
    float sum = 0;
    for (size_t j = 0; j < length; ++j) sum += weights[j] = std::exp2((weights[j] - max) * factor);
    for (size_t j = 0; j < length; ++j) weights[j] /= sum;
    return weights[length] * factor;
  }

 private:
  // The best of blocks [begin, end), in text order; returns the place after them.
  int32_t* Best(size_t begin, size_t end, size_t count, int32_t* chosen) {
    const auto first = order_.begin() + static_cast<ptrdiff_t>(begin);
    std::partial_sort(first, first + static_cast<ptrdiff_t>(count), order_.begin() + static_cast<ptrdiff_t>(end),
                      [&](int32_t a, int32_t b) {
                        return scores_[static_cast<size_t>(a)] > scores_[static_cast<size_t>(b)] ||
                               (scores_[static_cast<size_t>(a)] == scores_[static_cast<size_t>(b)] && a < b);
                      });
    std::sort(first, first + static_cast<ptrdiff_t>(count));
    return std::copy_n(first, count, chosen);
  }

  // Block m in slot s stands k' + 1 - s blocks before the chunk, instead of its true distance.
  ptrdiff_t Turn(size_t m, size_t slot) const {
    const ptrdiff_t wanted = static_cast<ptrdiff_t>(top_k_) + 1 - static_cast<ptrdiff_t>(slot);
    return wanted - (chunk_.first_block - chunk_.memory[m].index);
  }

  const RetrievalShape& shape_;
  const RetrievalChunk& chunk_;
  const size_t kv_head_, blocks_, top_k_;
  const float scale_;
  std::vector<float> landmarks_;  // [blocks][dim]
  std::vector<float> scores_;
  std::vector<int32_t> order_;
};

}  // namespace

BlockTurns::BlockTurns(std::span<const double> frequencies, RotaryLayout layout, size_t stride, size_t limit)
    : layout_(layout), half_(frequencies.size()), limit_(static_cast<ptrdiff_t>(limit)) {
  for (ptrdiff_t n = -limit_; n <= limit_; ++n) {
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(n) * static_cast<double>(stride) * frequency;
      cosine_.push_back(static_cast<float>(std::cos(angle)));
      sine_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

void BlockTurns::Apply(ptrdiff_t blocks, const float* from, float* to, bool back) const {
  CAIRN_CHECK(blocks >= -limit_ && blocks <= limit_);
  const float* cosine = &cosine_[static_cast<size_t>(blocks + limit_) * half_];
  const float* sine = &sine_[static_cast<size_t>(blocks + limit_) * half_];
  TurnRow({cosine, sine, half_, layout_ == RotaryLayout::kInterleaved, back}, from, to);
}

size_t DistractorsChosen(size_t top_k, size_t distractors, size_t own) {
  const size_t wanted = std::min(top_k / 2, distractors);
  return std::max(wanted, top_k - std::min(own, top_k));
}

void RetrievalForward(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t head) {
  if (chunk.memory.empty() || shape.top_k == 0) return;
  HeadReader reader(shape, chunk, head);
  const size_t dim = shape.dim;
  const size_t k = reader.top_k();
  std::vector<float> turned(dim), weights(shape.stride()), gates(k), block_out(k * dim);
  for (size_t t = 0; t < chunk.time; ++t) {
    const float* q = chunk.q.Row(0, head, t);
    int32_t* chosen = chunk.chosen + (head * chunk.time + t) * shape.top_k;
    reader.Choose(q, chosen);
    float& home_max = chunk.home_max[head * chunk.state_stride + t];
    float& home_inverse = chunk.home_inverse[head * chunk.state_stride + t];
    std::fill(block_out.begin(), block_out.end(), 0.0f);
    float max = home_max;
    for (size_t i = 0; i < k; ++i) {
      const auto m = static_cast<size_t>(chosen[i]);
      shape.turns->Apply(reader.TurnOf(i, m), q, turned.data(), false);
      gates[i] = reader.BlockWeights(turned.data(), m, weights.data());
      max = std::max(max, gates[i]);
      AddWeightedRows({shape.block_length, dim, chunk.memory[m].time_stride}, weights.data(), reader.Value(m),
                      &block_out[i * dim]);
    }
    // One home group: what the local attention had in it, and the gates of the chosen blocks.
    const float local = std::exp2(home_max - max) / home_inverse;
    float sum = local;
    for (float& gate : gates) sum += gate = std::exp2(gate - max);
    float* out = chunk.out.Row(0, head, t);
    for (size_t j = 0; j < dim; ++j) out[j] *= local / sum;
    for (float& gate : gates) gate /= sum;
    AddWeightedRows({k, dim, dim}, gates.data(), block_out.data(), out);
    home_max = max;
    home_inverse = 1.0f / sum;
  }
}

void RetrievalBackward(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t head,
                       const RetrievalGradients& gradients) {
  if (chunk.memory.empty() || shape.top_k == 0) return;
  HeadReader reader(shape, chunk, head);
  const size_t dim = shape.dim;
  const size_t length = shape.block_length;
  std::vector<float> turned(dim), dturned(dim), weights(shape.stride()), dweights(length), dscores(shape.stride());
  for (size_t t = 0; t < chunk.time; ++t) {
    const float* q = chunk.q.Row(0, head, t);
    const float* out = chunk.out.Row(0, head, t);
    const float* dout = gradients.dout.Row(0, head, t);
    float* dq = gradients.dq.Row(0, head, t);
    const int32_t* chosen = chunk.chosen + (head * chunk.time + t) * shape.top_k;
    float home_delta = 0;
    for (size_t j = 0; j < dim; ++j) home_delta += out[j] * dout[j];
    for (size_t i = 0; i < reader.top_k(); ++i) {
      const auto m = static_cast<size_t>(chosen[i]);
      const MemoryBlock& block = chunk.memory[m];
      const ptrdiff_t turn = reader.TurnOf(i, m);
      shape.turns->Apply(turn, q, turned.data(), false);
      const float landmark = reader.BlockWeights(turned.data(), m, weights.data());
      const float gate = std::exp2(landmark - chunk.home_max[head * chunk.state_stride + t]) *
                         chunk.home_inverse[head * chunk.state_stride + t];
      DotRows({length, dim, block.time_stride}, dout, reader.Value(m), dweights.data());
      float delta = 0;
      for (size_t j = 0; j < length; ++j) delta += weights[j] * dweights[j];
      for (size_t j = 0; j < length; ++j) {
        weights[j] *= gate;
        dscores[j] = reader.scale() * weights[j] * (dweights[j] - delta);
      }
      dscores[length] = reader.scale() * gate * (delta - home_delta);
      std::fill(dturned.begin(), dturned.end(), 0.0f);
      AddWeightedRows({length + 1, dim, block.time_stride}, dscores.data(), reader.Key(m), dturned.data());
      shape.turns->Apply(turn, dturned.data(), dturned.data(), true);
      for (size_t j = 0; j < dim; ++j) dq[j] += dturned[j];
      if (block.dk == nullptr) continue;
      const size_t offset = reader.kv_head() * block.gradient_head_stride;
      AddOuter({length + 1, dim, block.gradient_time_stride}, dscores.data(), turned.data(), block.dk + offset);
      AddOuter({length, dim, block.gradient_time_stride}, weights.data(), dout, block.dv + offset);
    }
  }
}

}  // namespace cairn
