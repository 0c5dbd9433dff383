#include "attention/retrieval.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/retrieval_kernels.h"
#include "base/aligned.h"
#include "base/error.h"
#include "kernels/rows.h"
#include "kernels/thread_scratch.h"

namespace cairn {
namespace {

constexpr float kLog2E = 1.44269504089f;
constexpr float kNothing = -1e37f;  // maximum of an empty group

// A choice of a block by a query.
struct Reader {
  size_t head, time;
  size_t place;  // among the query's chosen blocks
};

// What the queries that share a KV head have in common in one chunk.
class HeadReader {
 public:
  HeadReader(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t kv_head)
      : shape_(shape),
        chunk_(chunk),
        block_{shape.dim, shape.block_length, true, BlockFormat::kF32},
        kv_head_(kv_head),
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
    scores_.resize(blocks_);
    order_.resize(blocks_);
  }

  const BlockShape& block() const { return block_; }
  float scale() const { return scale_; }
  const float* Key(size_t m) const { return chunk_.memory[m].k + kv_head_ * chunk_.memory[m].head_stride; }
  const float* Value(size_t m) const { return chunk_.memory[m].v + kv_head_ * chunk_.memory[m].head_stride; }
  const int32_t* Chosen(size_t head, size_t t) const { return chunk_.chosen + (head * chunk_.time + t) * shape_.top_k; }

  // Every query of every head chooses, if the context-miss token lets it.
  void ChooseAll() {
    ForEachQuery([&](size_t head, size_t t) {
      auto* chosen = const_cast<int32_t*>(Chosen(head, t));
      if (chunk_.miss_key != nullptr && MissShare(shape_, chunk_, head, t) < chunk_.miss_cutoff) {
        *chosen = -1;
      } else {
        Choose(chunk_.q.Row(0, head, t), chosen);
      }
    });
  }
  bool Reads(size_t head, size_t t) const { return *Chosen(head, t) >= 0; }

  // Who reads each block, by what was chosen.
  std::vector<std::vector<Reader>> Readers() const {
    std::vector<std::vector<Reader>> readers(blocks_);
    ForEachQuery([&](size_t head, size_t t) {
      for (size_t i = 0; i < top_k_ && Reads(head, t); ++i) {
        readers[static_cast<size_t>(Chosen(head, t)[i])].push_back({head, t, i});
      }
    });
    return readers;
  }

  // The reader's query as block m is read by it: turned to its slot, scores in units of log 2.
  void TurnQuery(const Reader& reader, size_t m, float* to) const {
    shape_.turns->Apply(TurnOf(reader.place, m), chunk_.q.Row(0, reader.head, reader.time), to, false);
    ScaleRow(scale_ * kLog2E, to, shape_.dim);
  }

  // By how many blocks a query is turned on to read its i'th chosen block: slots fill from the left, the latest k'
  // stand one further to the right.
  ptrdiff_t TurnOf(size_t i, size_t m) const { return Turn(m, i + (m + top_k_ >= blocks_ ? 1 : 0)); }

  template <class Each>
  void ForEachQuery(const Each& each) const {
    const size_t group = shape_.query_heads / shape_.kv_heads;
    for (size_t head = kv_head_ * group; head < (kv_head_ + 1) * group; ++head) {
      for (size_t t = 0; t < chunk_.time; ++t) each(head, t);
    }
  }

 private:
  // The best k' blocks for a query, in text order.
  void Choose(const float* q, int32_t* chosen) {
    DotRows({blocks_, shape_.dim, shape_.dim}, q, landmarks_.data(), scores_.data());
    std::iota(order_.begin(), order_.end(), 0);
    const size_t foreign = top_k_ > 1 ? chunk_.distractors : 0;
    const size_t foreign_k = DistractorsChosen(top_k_, foreign, blocks_ - foreign);
    chosen = Best(0, foreign, foreign_k, chosen);
    Best(foreign, blocks_, top_k_ - foreign_k, chosen);
  }

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
  const BlockShape block_;
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

size_t RetrievalPackBytes(const RetrievalShape& shape, bool backward) {
  const BlockShape block{shape.dim, shape.block_length, true, BlockFormat::kF32};
  return backward ? RoundUp(BackwardPackFloats(block) * sizeof(float), 64) : block.bytes();
}

void PackBlock(const RetrievalShape& shape, const MemoryBlock& block, size_t kv_head, bool backward, std::byte* pack) {
  const BlockShape stored{shape.dim, shape.block_length, true, BlockFormat::kF32};
  const float* keys = block.k + kv_head * block.head_stride;
  const float* values = block.v + kv_head * block.head_stride;
  if (backward) {
    PackForBackward(stored, keys, values, block.time_stride, reinterpret_cast<float*>(pack));
  } else {
    StoreBlock(stored, keys, values, block.time_stride, pack);
  }
}

namespace {

// The block's pack, made here where it has none.
const std::byte* Packed(const RetrievalShape& shape, const MemoryBlock& block, size_t kv_head, bool backward) {
  const size_t bytes = RetrievalPackBytes(shape, backward);
  if (block.packs != nullptr) return block.packs + kv_head * bytes;
  auto* pack = reinterpret_cast<std::byte*>(ThreadScratch<float, class RetrievalPack>(bytes / sizeof(float)));
  PackBlock(shape, block, kv_head, backward, pack);
  return pack;
}

}  // namespace

float MissShare(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t head, size_t time) {
  const size_t kv_head = head / (shape.query_heads / shape.kv_heads);
  float score;
  DotRows({1, shape.dim, shape.dim}, chunk.q.Row(0, head, time), chunk.miss_key + kv_head * shape.dim, &score);
  const size_t at = head * chunk.state_stride + time;
  score *= kLog2E / std::sqrt(static_cast<float>(shape.dim));
  return std::exp2(score - chunk.home_max[at]) * chunk.home_inverse[at];
}

void RetrievalForward(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t kv_head) {
  if (chunk.memory.empty() || shape.top_k == 0) return;
  HeadReader reader(shape, chunk, kv_head);
  const size_t dim = shape.dim;
  reader.ChooseAll();
  // One home group: what the local attention had in it, and the gates of the chosen blocks. Under a context-miss token
  // the gates are a group of their own.
  const bool miss = chunk.miss_key != nullptr;
  const auto state = [&](size_t head, size_t t) { return head * chunk.state_stride + t; };
  const auto group = [&](size_t head, size_t t) -> RunningGroup {
    const size_t at = state(head, t);
    if (miss) return {&chunk.miss_max[at], &chunk.miss_inverse[at], chunk.miss_out + at * dim};
    return {&chunk.home_max[at], &chunk.home_inverse[at], chunk.out.Row(0, head, t)};
  };
  reader.ForEachQuery([&](size_t head, size_t t) {
    const RunningGroup running = group(head, t);
    if (miss) {
      *running.max = kNothing;
      *running.sum = 0;
      std::fill_n(running.out, dim, 0.0f);
    } else {
      *running.sum = 1.0f / *running.sum;
      ScaleRow(*running.sum, running.out, dim);
    }
  });
  std::vector<float> queries;
  std::vector<RunningGroup> groups;
  const std::vector<std::vector<Reader>> readers = reader.Readers();
  for (size_t m = 0; m < readers.size(); ++m) {
    if (readers[m].empty()) continue;
    queries.resize(readers[m].size() * dim);
    groups.clear();
    for (const Reader& each : readers[m]) {
      reader.TurnQuery(each, m, &queries[groups.size() * dim]);
      groups.push_back(group(each.head, each.time));
    }
    ReadBlock(reader.block(), Packed(shape, chunk.memory[m], kv_head, false), groups.size(), queries.data(),
              groups.data(), nullptr);
  }
  reader.ForEachQuery([&](size_t head, size_t t) {
    if (!reader.Reads(head, t)) return;  // an empty group: its sum stays 0, and so does one over it
    const RunningGroup running = group(head, t);
    *running.sum = 1.0f / *running.sum;
    ScaleRow(*running.sum, running.out, dim);
    if (!miss) return;
    const float share = MissShare(shape, chunk, head, t);
    AddWeightedRows({1, dim, dim}, &share, running.out, chunk.out.Row(0, head, t));
  });
}

void RetrievalBackward(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t kv_head,
                       const RetrievalGradients& gradients) {
  if (chunk.memory.empty() || shape.top_k == 0) return;
  const HeadReader reader(shape, chunk, kv_head);
  const BlockShape& stored = reader.block();
  const size_t dim = shape.dim, padded = stored.padded_dim();
  // Of each query: out . dout of the group that the gates are in, and one over its sum, as much as the group counts.
  const bool miss = chunk.miss_key != nullptr;
  std::vector<float> delta(shape.query_heads * chunk.time), inverse(delta.size());
  reader.ForEachQuery([&](size_t head, size_t t) {
    const size_t at = head * chunk.state_stride + t;
    const float* out = miss ? chunk.miss_out + at * dim : chunk.out.Row(0, head, t);
    DotRows({1, dim, dim}, out, gradients.dout.Row(0, head, t), &delta[head * chunk.time + t]);
    inverse[head * chunk.time + t] =
        miss ? MissShare(shape, chunk, head, t) * chunk.miss_inverse[at] : chunk.home_inverse[at];
  });
  std::vector<float> home_max, home_inverse, home_delta;
  const std::vector<std::vector<Reader>> readers = reader.Readers();
  for (size_t m = 0; m < readers.size(); ++m) {
    const size_t count = readers[m].size();
    if (count == 0) continue;
    const MemoryBlock& block = chunk.memory[m];
    // Queries, dout, gradients of queries, keys and values; what pads them stays 0.
    const size_t rows = 3 * count + stored.columns() + stored.tokens;
    float* scratch = ThreadScratch<float, class RetrievalRows>(rows * padded);
    std::fill_n(scratch, rows * padded, 0.0f);
    BlockGradients work{};
    float* queries = scratch;
    float* dout = queries + count * padded;
    work.dqueries = dout + count * padded;
    work.dkeys = work.dqueries + count * padded;
    work.dvalues = work.dkeys + stored.columns() * padded;
    home_max.clear();
    home_inverse.clear();
    home_delta.clear();
    for (size_t r = 0; r < count; ++r) {
      const Reader& each = readers[m][r];
      reader.TurnQuery(each, m, queries + r * padded);
      std::copy_n(gradients.dout.Row(0, each.head, each.time), dim, dout + r * padded);
      home_max.push_back((miss ? chunk.miss_max : chunk.home_max)[each.head * chunk.state_stride + each.time]);
      home_inverse.push_back(inverse[each.head * chunk.time + each.time]);
      home_delta.push_back(delta[each.head * chunk.time + each.time]);
    }
    work.pack = reinterpret_cast<const float*>(Packed(shape, block, kv_head, true));
    work.count = count;
    work.queries = queries;
    work.dout = dout;
    work.home_max = home_max.data();
    work.home_inverse = home_inverse.data();
    work.home_delta = home_delta.data();
    ReadBlockBackward(stored, work);
    for (size_t r = 0; r < count; ++r) {
      const Reader& each = readers[m][r];
      float* turned = work.dqueries + r * padded;
      shape.turns->Apply(reader.TurnOf(each.place, m), turned, turned, true);
      const float scale = reader.scale();
      AddWeightedRows({1, dim, dim}, &scale, turned, gradients.dq.Row(0, each.head, each.time));
    }
    if (block.dk == nullptr) continue;
    const size_t offset = kv_head * block.gradient_head_stride;
    const float natural = 1 / kLog2E, one = 1;
    for (size_t j = 0; j < stored.columns(); ++j) {
      AddWeightedRows({1, dim, dim}, &natural, work.dkeys + j * padded,
                      block.dk + offset + j * block.gradient_time_stride);
    }
    for (size_t j = 0; j < stored.tokens; ++j) {
      AddWeightedRows({1, dim, dim}, &one, work.dvalues + j * padded,
                      block.dv + offset + j * block.gradient_time_stride);
    }
  }
}

}  // namespace cairn
