#include "train/memory_op.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "attention/fused.h"
#include "attention/retrieval.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/random.h"
#include "base/threads.h"
#include "kernels/rows.h"
#include "model/rotary_table.h"
#include "train/choice_loss.h"

namespace cairn {

namespace {

uint64_t DrawSeed(uint64_t key, size_t row, size_t chunk) { return key * 1'000'003 + row * 1009 + chunk; }

class MemoryOp : public AttentionOp {
 public:
  MemoryOp(const ModelConfig& config, size_t max_rows, size_t max_time)
      : config_(config),
        length_(config.landmark.block_length),
        stride_(length_ + 1),
        width_(config.query_size() + 2 * config.key_size()),
        max_rows_(max_rows),
        max_time_(max_time),
        chunk_time_(memory_.chunk_length / length_ * stride_),
        chunks_(DivideUp(max_time, chunk_time_)),
        rotary_(config),
        turns_(RotaryFrequencies(config), config.rotary_layout, stride_, max_time / stride_ + memory_.k + 2),
        bank_(config.num_hidden_layers) {}

  size_t SavedFloats() const override {
    // Per chunk the home group's state, then the choices as integers.
    return chunks_ * cairn::SavedFloats(LocalShape(max_rows_, chunk_time_), has_miss()) +
           max_rows_ * config_.num_attention_heads * max_time_ * memory_.k;
  }

  void Begin(const AttentionBatch& batch) override {
    CAIRN_CHECK(batch.rows <= max_rows_ && batch.time <= max_time_);
    CAIRN_CHECK(batch.positions == nullptr, "training with memory uses positions of its own");
    batch_ = batch;
    rotary_.Set(nullptr, batch.rows, batch.time, false);
  }

  void Forward(size_t layer, float* qkv, float* out, float* saved) override {
    rotary_.Apply(qkv, width_, config_.num_attention_heads + config_.num_key_value_heads, batch_.rows * batch_.time,
                  false);
    if (layer >= config_.landmark.local_layers) Pack(qkv, false);
    for (size_t c = 0; c * chunk_time_ < batch_.time; ++c) {
      const size_t first = c * chunk_time_;
      const AttentionShape shape = LocalShape(batch_.rows, std::min(chunk_time_, batch_.time - first), Seen(layer, c));
      const FusedSaved state = State(layer, shape, c, saved);
      FusedForward(shape, LocalInput(layer, qkv, c, shape.prefix), Part(out, config_.query_size(), 0, first), &state);
      if (c == 0 || layer < config_.landmark.local_layers) continue;
      const auto memories = Memories(layer, qkv, nullptr, c);
      const RetrievalShape retrieval = Retrieval();
      ParallelFor(batch_.rows * config_.num_key_value_heads, [&](size_t i, int) {
        const size_t row = i / config_.num_key_value_heads;
        const RetrievalChunk chunk = Chunk(qkv, out, saved, memories[row], state, shape, row, c);
        RetrievalForward(retrieval, chunk, i % config_.num_key_value_heads);
      });
    }
    // The context-miss token itself attends to nothing.
    if (has_miss()) std::fill_n(out + miss_row() * config_.query_size(), config_.query_size(), 0.0f);
  }

  void Backward(size_t layer, const float* qkv, const float* out, const float* dout, const float* saved_const,
                float* dqkv) override {
    float* saved = const_cast<float*>(saved_const);
    const size_t queries = config_.query_size();
    if (has_miss()) std::fill_n(dqkv + miss_row() * width_, width_, 0.0f);
    // The local attention overwrites all gradients; its state is that of the whole home group (and, under a
    // context-miss token, of the memory's), so it is exact as it is.
    for (size_t c = 0; c * chunk_time_ < batch_.time; ++c) {
      const size_t first = c * chunk_time_;
      const AttentionShape shape = LocalShape(batch_.rows, std::min(chunk_time_, batch_.time - first), Seen(layer, c));
      const size_t keys = first - shape.prefix;
      KeepGradients(dqkv, keys, shape.prefix);
      FusedBackward(shape, LocalInput(layer, qkv, c, shape.prefix), Part(out, queries, 0, first),
                    Part(dout, queries, 0, first), State(layer, shape, c, saved),
                    {Part(dqkv, width_, 0, first), Part(dqkv, width_, queries, keys),
                     Part(dqkv, width_, queries + config_.key_size(), keys), miss_gradients_.data()});
      AddKeptGradients(dqkv, keys, shape.prefix);
      if (Gated(layer)) AddMissGradients(layer, c, dqkv);
    }
    // Then what was retrieved. A KV head's gradients are added up by one thread, in order.
    const bool reads = layer >= config_.landmark.local_layers;
    if (reads) Pack(qkv, true);
    for (size_t c = 1; reads && c * chunk_time_ < batch_.time; ++c) {
      const size_t first = c * chunk_time_;
      const AttentionShape shape = LocalShape(batch_.rows, std::min(chunk_time_, batch_.time - first));
      const FusedSaved state = State(layer, shape, c, saved);
      if (Gated(layer)) TurnMissKey(layer, qkv, c);
      const auto memories = Memories(layer, qkv, dqkv, c);
      const RetrievalShape retrieval = Retrieval();
      ParallelFor(config_.num_key_value_heads, [&](size_t kv_head, int) {
        for (size_t row = 0; row < batch_.rows; ++row) {
          const RetrievalChunk chunk = Chunk(qkv, const_cast<float*>(out), saved, memories[row], state, shape, row, c);
          const RetrievalGradients gradients{RowPart(dout, queries, 0, row, first),
                                             RowPart(dqkv, width_, 0, row, first)};
          RetrievalBackward(retrieval, chunk, kv_head, gradients);
        }
      });
    }
    if (batch_.choice != nullptr) batch_.choice->Add(layer, qkv, dqkv);
    rotary_.Apply(dqkv, width_, config_.num_attention_heads + config_.num_key_value_heads, batch_.rows * batch_.time,
                  true);
    if (memory_.distractors == DistractorSource::kBank) Remember(layer, qkv);
  }

  // Per layer the number of blocks, then each block's index, keys and values.
  std::vector<float> State() const override {
    std::vector<float> state;
    if (std::all_of(bank_.begin(), bank_.end(), [](const auto& bank) { return bank.empty(); })) return state;
    for (const auto& bank : bank_) {
      state.push_back(static_cast<float>(bank.size()));
      for (const BankBlock& block : bank) {
        state.push_back(static_cast<float>(block.index));
        state.insert(state.end(), block.kv.begin(), block.kv.end());
      }
    }
    return state;
  }

  void Restore(std::span<const float> state) override {
    std::vector<std::deque<BankBlock>> restored(bank_.size());
    size_t at = 0;
    const auto count = [&](size_t limit) {
      if (at >= state.size() || !(state[at] >= 0 && state[at] <= static_cast<float>(limit))) {
        Fail("the bank of earlier blocks does not fit the run's landmark.memory_training");
      }
      return static_cast<size_t>(state[at++]);
    };
    const size_t floats = stride_ * 2 * config_.key_size();
    for (auto& bank : restored) {
      for (size_t left = state.empty() ? 0 : count(BankLimit()); left > 0; --left) {
        const auto index = static_cast<ptrdiff_t>(count(max_time_ / stride_));
        if (state.size() - at < floats) Fail("the bank of earlier blocks is cut off");
        const auto kv = state.subspan(at, floats);
        bank.push_back({{kv.begin(), kv.end()}, index});
        at += floats;
      }
    }
    if (at != state.size()) Fail("the bank of earlier blocks is of another model");
    bank_ = std::move(restored);
  }

 private:
  // Blocks of earlier steps: keys and values of all KV heads, [stride][2 key_size].
  struct BankBlock {
    std::vector<float> kv;
    ptrdiff_t index;
  };

  bool has_miss() const { return config_.landmark.context_miss.enabled; }
  // Local layers read no memory, so there is nothing for the context-miss token to keep from them.
  bool Gated(size_t layer) const { return has_miss() && layer >= config_.landmark.local_layers; }
  size_t miss_row() const { return batch_.rows * batch_.time; }

  // Distractors in the memory of a chunk, see Memories.
  size_t Foreign(size_t layer) const {
    if (memory_.distractors == DistractorSource::kBank) return std::min(memory_.distractor_blocks, bank_[layer].size());
    return batch_.rows < 2 || batch_.time < stride_ ? 0 : memory_.distractor_blocks;
  }

  // The context-miss token stands before the slots of the chunk.
  RowTurn MissTurn(size_t layer, size_t chunk, bool back) {
    const size_t own = chunk * chunk_time_ / stride_;
    const size_t slots = own == 0 ? 0 : std::min(memory_.k, own + Foreign(layer)) + 1;
    const double position = static_cast<double>(chunk * chunk_time_) - static_cast<double>(slots * stride_) - 1.0;
    miss_cosine_.resize(config_.head_dim / 2);
    miss_sine_.resize(config_.head_dim / 2);
    rotary_.At(position, miss_cosine_.data(), miss_sine_.data());
    return {miss_cosine_.data(), miss_sine_.data(), config_.head_dim / 2,
            config_.rotary_layout == RotaryLayout::kInterleaved, back};
  }
  // Its key for a chunk, the same for every row: miss_keys_ [row][kv_head][dim].
  void TurnMissKey(size_t layer, const float* qkv, size_t chunk) {
    const size_t dim = config_.head_dim;
    const RowTurn turn = MissTurn(layer, chunk, false);
    const float* key = qkv + miss_row() * width_ + config_.query_size();
    miss_keys_.resize(batch_.rows * config_.key_size());
    for (size_t i = 0; i < batch_.rows * config_.num_key_value_heads; ++i) {
      TurnRow(turn, key + i % config_.num_key_value_heads * dim, &miss_keys_[i * dim]);
    }
  }
  // From miss_gradients_ [row][kv_head][dim], back to before rotation.
  void AddMissGradients(size_t layer, size_t chunk, float* dqkv) {
    const size_t dim = config_.head_dim;
    const RowTurn turn = MissTurn(layer, chunk, true);
    float* to = dqkv + miss_row() * width_ + config_.query_size();
    const float one = 1;
    for (size_t i = 0; i < batch_.rows * config_.num_key_value_heads; ++i) {
      float* row = &miss_gradients_[i * dim];
      TurnRow(turn, row, row);
      AddWeightedRows({1, dim, dim}, &one, row, to + i % config_.num_key_value_heads * dim);
    }
  }

  // Positions before a chunk that the layer sees whether chosen or not.
  size_t Seen(size_t layer, size_t chunk) const {
    if (layer >= config_.landmark.local_layers) return 0;
    return std::min(chunk * chunk_time_, config_.landmark.local_blocks * stride_);
  }

  // What later chunks add to the keys and values of `count` positions must outlive the pass that overwrites them.
  void KeepGradients(const float* dqkv, size_t first, size_t count) {
    const size_t n = 2 * config_.key_size();
    kept_.resize(batch_.rows * count * n);
    for (size_t i = 0; i < batch_.rows * count; ++i) std::copy_n(dqkv + KeyAt(first, count, i), n, &kept_[i * n]);
  }
  void AddKeptGradients(float* dqkv, size_t first, size_t count) const {
    const size_t n = 2 * config_.key_size();
    for (size_t i = 0; i < batch_.rows * count; ++i) {
      float* to = dqkv + KeyAt(first, count, i);
      for (size_t j = 0; j < n; ++j) to[j] += kept_[i * n + j];
    }
  }
  // Keys and values of the i-th of the `count` positions from `first` on of every row.
  size_t KeyAt(size_t first, size_t count, size_t i) const {
    return (i / count * batch_.time + first + i % count) * width_ + config_.query_size();
  }

  AttentionShape LocalShape(size_t rows, size_t time, size_t prefix = 0) const {
    AttentionShape shape;
    shape.batch = rows;
    shape.query_heads = config_.num_attention_heads;
    shape.kv_heads = config_.num_key_value_heads;
    shape.time = time;
    shape.prefix = prefix;
    shape.dim = config_.head_dim;
    shape.block_length = length_;
    return shape;
  }

  RetrievalShape Retrieval() const {
    return {config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim, length_, memory_.k, &turns_};
  }

  // Rows of `width` floats, from position `first` of every batch row.
  template <typename T>
  HeadsView<T> Part(T* data, size_t width, size_t offset, size_t first) const {
    return {data + first * width + offset, batch_.time * width, config_.head_dim, width};
  }
  template <typename T>
  HeadsView<T> RowPart(T* data, size_t width, size_t offset, size_t row, size_t first) const {
    return {data + (row * batch_.time + first) * width + offset, 0, config_.head_dim, width};
  }

  FusedInput LocalInput(size_t layer, const float* qkv, size_t chunk, size_t prefix) {
    const size_t queries = config_.query_size(), first = chunk * chunk_time_;
    FusedInput in{Part(qkv, width_, 0, first),
                  Part(qkv, width_, queries, first - prefix),
                  Part(qkv, width_, queries + config_.key_size(), first - prefix),
                  {}};
    if (Gated(layer)) {
      TurnMissKey(layer, qkv, chunk);
      miss_gradients_.resize(miss_keys_.size());
      in.miss = {miss_keys_.data(), nullptr};
    }
    return in;
  }

  FusedSaved State(size_t layer, const AttentionShape& shape, size_t chunk, float* saved) const {
    float* at = saved + chunk * cairn::SavedFloats(LocalShape(max_rows_, chunk_time_), has_miss());
    return LayOutSaved(shape, Gated(layer), at);
  }

  RetrievalChunk Chunk(const float* qkv, float* out, float* saved, const std::vector<MemoryBlock>& memory,
                       const FusedSaved& state, const AttentionShape& shape, size_t row, size_t chunk) const {
    const size_t heads = config_.num_attention_heads;
    const size_t first = chunk * chunk_time_;
    float* choices = saved + chunks_ * cairn::SavedFloats(LocalShape(max_rows_, chunk_time_), has_miss());
    static_assert(sizeof(int32_t) == sizeof(float));
    RetrievalChunk result;
    result.time = shape.time;
    result.first_block = static_cast<ptrdiff_t>(first / stride_);
    result.memory = memory;
    result.distractors = memory.size() - first / stride_;
    result.q = RowPart(qkv, width_, 0, row, first);
    result.out = RowPart(out, config_.query_size(), 0, row, first);
    result.home_max = state.home_max + row * heads * shape.time;
    result.home_inverse = state.home_inverse + row * heads * shape.time;
    result.state_stride = shape.time;
    if (state.miss_out != nullptr) {
      result.miss_key = miss_keys_.data();
      result.miss_cutoff = static_cast<float>(config_.landmark.context_miss.cutoff);
      result.miss_max = state.miss_max + row * heads * shape.time;
      result.miss_inverse = state.miss_inverse + row * heads * shape.time;
      result.miss_out = state.miss_out + row * heads * shape.time * shape.dim;
    }
    result.chosen = reinterpret_cast<int32_t*>(choices) + (row * batch_.time + first) * heads * memory_.k;
    return result;
  }

  MemoryBlock BlockAt(const float* qkv, size_t row, size_t block) const {
    const float* keys = qkv + (row * batch_.time + block * stride_) * width_ + config_.query_size();
    return {keys, keys + config_.key_size(), width_, config_.head_dim, static_cast<ptrdiff_t>(block)};
  }

  // Every chunk reads the blocks of the ones before it, so they are packed once for all.
  void Pack(const float* qkv, bool backward) {
    const RetrievalShape shape = Retrieval();
    const size_t blocks = batch_.time / stride_, heads = config_.num_key_value_heads;
    const size_t bytes = RetrievalPackBytes(shape, backward);
    if (packs_.size() < batch_.rows * blocks * heads * bytes) {
      packs_ = AlignedBuffer<std::byte>(batch_.rows * blocks * heads * bytes);
    }
    ParallelFor(batch_.rows * blocks, [&](size_t i, int) {
      const MemoryBlock block = BlockAt(qkv, i / blocks, i % blocks);
      for (size_t h = 0; h < heads; ++h) PackBlock(shape, block, h, backward, packs_.data() + (i * heads + h) * bytes);
    });
  }

  // What each row's queries of a chunk may read: distractors, then the row's own blocks before the chunk.
  std::vector<std::vector<MemoryBlock>> Memories(size_t layer, const float* qkv, float* dqkv, size_t chunk) const {
    const size_t queries = config_.query_size();
    const size_t own = chunk * chunk_time_ / stride_;
    std::vector<std::vector<MemoryBlock>> memories(batch_.rows);
    const auto block_of = [&](size_t row, size_t block) {
      const size_t at = (row * batch_.time + block * stride_) * width_ + queries;
      MemoryBlock result = BlockAt(qkv, row, block);
      result.packs = packs_.data() + (row * (batch_.time / stride_) + block) * config_.num_key_value_heads *
                                         RetrievalPackBytes(Retrieval(), dqkv != nullptr);
      if (dqkv != nullptr) {
        result.dk = dqkv + at;
        result.dv = dqkv + at + config_.key_size();
        result.gradient_time_stride = width_;
        result.gradient_head_stride = config_.head_dim;
      }
      return result;
    };
    for (size_t row = 0; row < batch_.rows; ++row) {
      for (const auto& [other, block] :
           DrawBatchDistractors(memory_, batch_.bank_key, row, chunk, batch_.rows, batch_.time / stride_)) {
        memories[row].push_back(block_of(other, block));
      }
      if (memory_.distractors == DistractorSource::kBank && !bank_[layer].empty()) {
        // Neighbours in the bank from a random place on, so that none comes twice.
        const size_t held = bank_[layer].size();
        const size_t first = Random(DrawSeed(batch_.bank_key, row, chunk)).Below(held);
        for (size_t i = 0; i < std::min(memory_.distractor_blocks, held); ++i) {
          const BankBlock& block = bank_[layer][(first + i) % held];
          memories[row].push_back({block.kv.data(), block.kv.data() + config_.key_size(), 2 * config_.key_size(),
                                   config_.head_dim, block.index});
        }
      }
      for (size_t b = 0; b < own; ++b) memories[row].push_back(block_of(row, b));
    }
    return memories;
  }

  // Puts a row's blocks into the bank, the oldest go. Not the first row's where there are others: its facts may have no
  // name (data/recall_rows.h), and would contradict those of later rows.
  void Remember(size_t layer, const float* row_zero) {
    std::deque<BankBlock>& bank = bank_[layer];
    const size_t n = 2 * config_.key_size();
    const size_t row = batch_.rows > 1 ? 1 + batch_.bank_key % (batch_.rows - 1) : 0;
    const float* qkv = row_zero + row * batch_.time * width_;
    for (size_t b = 0; b < batch_.time / stride_; ++b) {
      BankBlock block{std::vector<float>(stride_ * n), static_cast<ptrdiff_t>(b)};
      for (size_t t = 0; t < stride_; ++t) {
        std::copy_n(qkv + (b * stride_ + t) * width_ + config_.query_size(), n, &block.kv[t * n]);
      }
      bank.push_back(std::move(block));
    }
    while (bank.size() > BankLimit()) bank.pop_front();
  }

  size_t BankLimit() const { return std::max<size_t>(4 * memory_.distractor_blocks, 1); }

  const ModelConfig config_;
  const MemoryTrainingConfig& memory_ = config_.landmark.memory_training;
  const size_t length_, stride_, width_, max_rows_, max_time_;
  const size_t chunk_time_;  // positions of a chunk: whole blocks with their landmarks
  const size_t chunks_;
  RotaryTable rotary_;
  const BlockTurns turns_;
  std::vector<std::deque<BankBlock>> bank_;  // per layer
  AttentionBatch batch_{};
  AlignedBuffer<std::byte> packs_;  // of the pass under way, [row][block][kv_head]
  std::vector<float> kept_;
  std::vector<float> miss_keys_, miss_gradients_, miss_cosine_, miss_sine_;
};

}  // namespace

std::vector<std::pair<size_t, size_t>> DrawBatchDistractors(const MemoryTrainingConfig& config, uint64_t key,
                                                            size_t row, size_t chunk, size_t rows, size_t blocks) {
  std::vector<std::pair<size_t, size_t>> drawn;
  if (config.distractors != DistractorSource::kBatch || rows < 2 || blocks == 0) return drawn;
  Random random(DrawSeed(key, row, chunk));
  for (size_t i = 0; i < config.distractor_blocks; ++i) {
    const size_t other = (row + 1 + random.Below(rows - 1)) % rows;
    drawn.emplace_back(other, random.Below(blocks));
  }
  return drawn;
}

std::unique_ptr<AttentionOp> MakeMemoryOp(const ModelConfig& config, size_t max_rows, size_t max_time) {
  return std::make_unique<MemoryOp>(config, max_rows, max_time);
}

}  // namespace cairn
