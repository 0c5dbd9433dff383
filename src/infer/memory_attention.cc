#include "infer/memory_attention.h"

#include <algorithm>
#include <cmath>

#include "attention/fused.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/elementwise.h"
#include "kernels/rows.h"

namespace cairn {

namespace {

constexpr float kLog2E = 1.44269504089f;
constexpr float kNothing = -1e37f;  // maximum of an empty group

// A gate that many powers of two below the largest is less than the rounding of their sum.
constexpr float kLost = 25;

// Chunks up to this many rows go row by row instead of through the tiled kernel.
constexpr size_t kFewRows = 8;

// Cosines and sines of a position, [frequencies] each.
void Angles(const std::vector<double>& frequencies, double position, float* cosine, float* sine) {
  for (size_t i = 0; i < frequencies.size(); ++i) {
    cosine[i] = static_cast<float>(std::cos(position * frequencies[i]));
    sine[i] = static_cast<float>(std::sin(position * frequencies[i]));
  }
}

void Grow(std::vector<float>& values, size_t size) {
  if (values.size() < size) values.resize(size);
}

}  // namespace

void CheckRecall(const RetrievalAudit& audit, double least, std::string_view index) {
  if (audit.MeanRecall() >= least) return;
  Fail(
      "the index \"{}\" found {:.4f} of the best blocks, less than --audit-min {}; use --index int8, which misses none",
      index, audit.MeanRecall(), least);
}

// What a thread works in; kept, because fresh memory costs more than the work.
struct MemoryAttention::Scratch {
  std::vector<std::pair<size_t, size_t>> choosers;  // row and head
  std::vector<float> queries, scores, keys, key, few_scores, gates, weights;
  std::vector<BestBlocks> best;
  std::vector<int32_t> first;  // choosers of each block; -1: none. Left so by every user.
  std::vector<int32_t> next, distinct;
  std::vector<RunningGroup> groups;
  std::vector<size_t> cells;

  static Scratch& Get() {
    thread_local Scratch scratch;
    return scratch;
  }
};

struct MemoryAttention::Unit {
  size_t kv_head;
  size_t first, last;  // rows
};

MemoryAttention::MemoryAttention(const MemoryAttentionOptions& options)
    : options_(options), scale_(kLog2E / std::sqrt(static_cast<float>(options.dim))) {
  CAIRN_CHECK(options.dim >= 2 && options.dim % 2 == 0 && options.frequencies.size() == options.dim / 2);
  CAIRN_CHECK(options.kv_heads >= 1 && options.query_heads % options.kv_heads == 0);
  CAIRN_CHECK(options.block.dim == options.dim && options.block.tokens >= 1);
  const size_t half = options.dim / 2;
  offset_cosine_.resize(options.block.columns() * half);
  offset_sine_.resize(options.block.columns() * half);
  for (size_t j = 0; j < options.block.columns(); ++j) {
    Angles(options.frequencies, static_cast<double>(j), &offset_cosine_[j * half], &offset_sine_[j * half]);
  }
}

void MemoryAttention::Turn(ptrdiff_t blocks, const float* query, float* to) const {
  if (exact() || blocks == 0) {
    std::copy_n(query, options_.dim, to);
  } else {
    turns_->Apply(blocks, query, to, false);
  }
}

// Units of work: a KV head and as many rows as leave every thread something to do, for a block is read once a unit.
std::vector<MemoryAttention::Unit> MemoryAttention::Units(const Chunk& chunk) const {
  const auto threads = static_cast<size_t>(ThreadCount());
  const bool even = options_.kv_heads % threads == 0 || options_.kv_heads >= 4 * threads;
  const size_t tiles = even ? 1 : std::min(DivideUp(chunk.time, 32), 2 * threads);
  const size_t rows = DivideUp(chunk.time, tiles);
  std::vector<Unit> units;
  for (size_t first = 0; first < chunk.time; first += rows) {
    for (size_t h = 0; h < options_.kv_heads; ++h) units.push_back({h, first, std::min(chunk.time, first + rows)});
  }
  return units;
}

// For `chosen_count_` blocks a row and head, `prefix_` blocks before the chunk.
void MemoryAttention::ReserveChoice(size_t rows) {
  if (!exact() && (!turns_ || turns_limit_ < prefix_)) {
    // Room for the whole k, or for twice what is needed now: k may be far more than there will ever be blocks.
    turns_limit_ = std::max(prefix_, std::min(options_.top_k, 2 * prefix_ + 16) + 1);
    turns_.emplace(options_.frequencies, options_.rotary, options_.block.columns(), turns_limit_);
  }
  const size_t choices = rows * options_.query_heads * chosen_count_;
  if (chosen_.size() < choices) chosen_.resize(choices);
  Grow(gates_, choices);
}

// Slots, positions and room for the chunk.
void MemoryAttention::Begin(const LayerMemory& memory, const Chunk& chunk) {
  const size_t half = options_.dim / 2;
  const size_t blocks = memory.size();
  const size_t columns = options_.block.columns();
  unfinished_ = memory.unfinished();
  chosen_count_ = options_.block.landmark ? std::min(options_.top_k, blocks) : 0;
  prefix_ = exact() ? 0 : chunk.prefix_blocks.value_or(blocks == 0 ? 0 : chosen_count_ + 1);
  ReserveChoice(chunk.time);
  // Slots: positions count from the start of the unfinished block, for only distances matter.
  const double base = exact() ? static_cast<double>(memory.total() * columns) : 0.0;
  // The same for every layer, and often for the next chunk.
  const double from = base + static_cast<double>(unfinished_);
  if (from != angles_from_ || cosine_.size() < chunk.time * half) {
    angles_from_ = from;
    cosine_.resize(chunk.time * half);
    sine_.resize(chunk.time * half);
    ParallelFor(chunk.time >= 16 ? chunk.time : 1, [&](size_t index, int) {
      const size_t last = chunk.time >= 16 ? index + 1 : chunk.time;
      for (size_t t = index; t < last; ++t) {
        Angles(options_.frequencies, from + static_cast<double>(t), &cosine_[t * half], &sine_[t * half]);
      }
    });
  }
  const size_t cells = chunk.time * options_.query_heads;
  for (std::vector<float>* values : {&max_, &sum_}) Grow(*values, cells);
  if (chunk.miss_key == nullptr) return;
  // At position -1; slots stand between it and the chunk.
  miss_cosine_.resize(half);
  miss_sine_.resize(half);
  Angles(options_.frequencies, -1.0 - static_cast<double>(prefix_ * columns), miss_cosine_.data(), miss_sine_.data());
  for (std::vector<float>* values : {&memory_max_, &memory_sum_, &miss_share_}) Grow(*values, cells);
  Grow(memory_out_, cells * options_.dim);
}

void MemoryAttention::Run(LayerMemory& memory, const Chunk& chunk) {
  const size_t kv_heads = options_.kv_heads;
  Begin(memory, chunk);
  if (chunk.out == nullptr) {
    AppendLocal(memory, chunk);
    StoreLocal(memory, chunk);
    blocks_read_ = blocks_chosen_ = 0;
    audit_ = {};
    return;
  }
  if (chunk.local_blocks) TakeLatest(memory, chunk);
  AppendLocal(memory, chunk);
  if (chunk.miss_key != nullptr) {
    miss_key_.assign(chunk.miss_key, chunk.miss_key + kv_heads * options_.dim);
    RunRotary(1, {miss_key_.data(), miss_key_.size(), kv_heads, options_.dim, miss_cosine_.data(), miss_sine_.data(), 1,
                  options_.rotary == RotaryLayout::kInterleaved, false});
  }
  if (chunk.ranking != nullptr && !chunk.local_blocks) Rank(memory, chunk);
  const bool inside_block = !options_.block.landmark || unfinished_ + chunk.time <= options_.block.columns();
  const bool few = chunk.time <= kFewRows && inside_block;
  const bool reads = options_.block.landmark ? chosen_count_ > 0 : memory.size() > 0;
  const bool separate = options_.granularity == Granularity::kHeadAndToken && !options_.group_chooses_together;
  const bool alone = separate && !chunk.local_blocks;
  const bool together = !separate && !chunk.local_blocks && chosen_count_ > 0;
  if (!few) LocalTile(memory, chunk);
  if (together) {
    if (few) {
      ParallelFor(kv_heads, [&](size_t h, int) { LocalRows(memory, chunk, h); });
    }
    ChooseTogether(memory, chunk);
  }
  const std::vector<Unit> units = Units(chunk);
  const bool audits = options_.audit && alone && chosen_count_ > 0;
  std::vector<RetrievalAudit> audits_of(audits ? units.size() : 0);
  if (chunk.searched != nullptr)
    chunk.searched->assign(reads && alone ? chunk.time * options_.query_heads * options_.dim : 0, 0.0f);
  ParallelFor(units.size(), [&](size_t index, int) {
    const Unit& unit = units[index];
    if (few && !together) LocalRows(memory, chunk, unit.kv_head);
    if (reads && !options_.block.landmark) {
      ReadAll(memory, chunk, unit);
    } else if (reads) {
      if (chunk.miss_key != nullptr) Gate(chunk, unit);
      if (alone) Choose(memory, chunk, unit);
      if (audits) audits_of[index] = Audit(memory, chunk, unit);
      Read(memory, chunk, unit);
    }
    Combine(chunk, unit);
  });
  audit_ = {};
  for (const RetrievalAudit& each : audits_of) audit_.Add(each);
  blocks_chosen_ = chunk.time * options_.query_heads * chosen_count_;
  blocks_read_ = blocks_chosen_;
  if (options_.miss_cutoff > 0) {
    blocks_read_ -=
        static_cast<size_t>(std::count(gates_.begin(), gates_.begin() + static_cast<ptrdiff_t>(blocks_chosen_), 0.0f));
  }
  if (chunk.reads != nullptr) {
    // What stands near is read, but not chosen.
    const size_t count = chunk.local_blocks ? 0 : blocks_chosen_;
    chunk.reads->chosen = chunk.local_blocks ? 0 : chosen_count_;
    chunk.reads->blocks.assign(chosen_.begin(), chosen_.begin() + static_cast<ptrdiff_t>(count));
    for (int32_t& block : chunk.reads->blocks) {
      if (block != kNoBlockChosen) block += static_cast<int32_t>(memory.forgotten());
    }
    chunk.reads->gates.assign(gates_.begin(), gates_.begin() + static_cast<ptrdiff_t>(count));
  }
  StoreLocal(memory, chunk);
}

// The choice of a local layer: the latest blocks, which stand where they stood in the text.
void MemoryAttention::TakeLatest(const LayerMemory& memory, const Chunk& chunk) {
  chosen_count_ = 0;
  while (chosen_count_ < std::min(*chunk.local_blocks, memory.size()) &&
         memory.Has(memory.size() - 1 - chosen_count_)) {
    ++chosen_count_;
  }
  if (!exact()) prefix_ = chosen_count_ + 1;
  ReserveChoice(chunk.time);
  for (size_t i = 0; i < chunk.time * options_.query_heads * chosen_count_; ++i) {
    chosen_[i] = static_cast<int32_t>(memory.size() - chosen_count_ + i % chosen_count_);
  }
}

// The chunk's keys and values join the unfinished block; queries and keys are rotated.
void MemoryAttention::AppendLocal(LayerMemory& memory, const Chunk& chunk) {
  const size_t rows = unfinished_ + chunk.time;
  const size_t row = memory.row_floats();
  float* keys = memory.LocalKeys(rows) + unfinished_ * row;
  float* values = memory.LocalValues(rows) + unfinished_ * row;
  for (size_t t = 0; t < chunk.time; ++t) {
    const float* from = chunk.qkv + t * width() + options_.query_heads * options_.dim;
    std::copy_n(from, row, keys + t * row);
    std::copy_n(from + row, row, values + t * row);
  }
  const bool interleaved = options_.rotary == RotaryLayout::kInterleaved;
  RunRotary(chunk.time, {chunk.qkv, width(), options_.query_heads, options_.dim, cosine_.data(), sine_.data(),
                         chunk.time, interleaved, false});
  RunRotary(chunk.time,
            {keys, row, options_.kv_heads, options_.dim, cosine_.data(), sine_.data(), chunk.time, interleaved, false});
}

// Local attention of many rows.
void MemoryAttention::LocalTile(LayerMemory& memory, const Chunk& chunk) {
  const size_t dim = options_.dim;
  const size_t heads = options_.query_heads;
  const size_t row = memory.row_floats();
  AttentionShape shape;
  shape.query_heads = heads;
  shape.kv_heads = options_.kv_heads;
  shape.time = chunk.time;
  shape.prefix = unfinished_;
  shape.dim = dim;
  shape.block_length = options_.block.landmark ? options_.block.tokens : kNoLandmarks;
  const bool miss = chunk.miss_key != nullptr;
  Grow(saved_, SavedFloats(shape, miss));
  const FusedSaved saved = LayOutSaved(shape, miss, saved_.data());
  FusedInput in{{chunk.qkv, 0, dim, width()},
                {memory.LocalKeys(unfinished_ + chunk.time), 0, dim, row},
                {memory.LocalValues(unfinished_ + chunk.time), 0, dim, row},
                {}};
  std::vector<uint8_t> controlled;
  if (miss) {
    controlled.assign(shape.blocks(), 0);
    in.miss = {miss_key_.data(), controlled.data()};
  }
  FusedForward(shape, in, {chunk.out, 0, dim, heads * dim}, &saved);
  ParallelFor(DivideUp(chunk.time, 32), [&](size_t tile, int) {
    for (size_t t = tile * 32; t < std::min(chunk.time, tile * 32 + 32); ++t) {
      for (size_t h = 0; h < heads; ++h) {
        max_[Index(t, h)] = saved.home_max[h * chunk.time + t];
        const float sum = 1.0f / saved.home_inverse[h * chunk.time + t];
        sum_[Index(t, h)] = sum;
        ScaleRow(sum, chunk.out + Index(t, h) * dim, dim);
      }
    }
  });
}

// Local attention of a few rows that stand in one block: everything before them is home.
void MemoryAttention::LocalRows(LayerMemory& memory, const Chunk& chunk, size_t kv_head) {
  const size_t dim = options_.dim;
  const size_t row = memory.row_floats();
  const float* keys = memory.LocalKeys(unfinished_ + chunk.time) + kv_head * dim;
  const float* values = memory.LocalValues(unfinished_ + chunk.time) + kv_head * dim;
  std::vector<float>& weights = Scratch::Get().weights;
  Grow(weights, unfinished_ + chunk.time);
  for (size_t t = 0; t < chunk.time; ++t) {
    // A landmark does not see itself.
    const size_t place = unfinished_ + t;
    const size_t visible = options_.block.landmark && place == options_.block.tokens ? place : place + 1;
    for (size_t h = kv_head * group(); h < (kv_head + 1) * group(); ++h) {
      const float* q = Query(chunk, t, h);
      DotRows({visible, dim, row}, q, keys, weights.data());
      float max = kNothing;
      float miss = 0;
      if (chunk.miss_key != nullptr) {
        DotRows({1, dim, dim}, q, &miss_key_[kv_head * dim], &miss);
        max = miss *= scale_;
      }
      for (size_t j = 0; j < visible; ++j) max = std::max(max, weights[j] *= scale_);
      float sum = chunk.miss_key != nullptr ? std::exp2(miss - max) : 0;
      for (size_t j = 0; j < visible; ++j) sum += weights[j] = std::exp2(weights[j] - max);
      float* out = chunk.out + Index(t, h) * dim;
      std::fill_n(out, dim, 0.0f);
      AddWeightedRows({visible, dim, row}, weights.data(), values, out);
      max_[Index(t, h)] = max;
      sum_[Index(t, h)] = sum;
    }
  }
}

// The context-miss token's share of each query's home group; under the cutoff a query is closed: it reads no memory.
void MemoryAttention::Gate(const Chunk& chunk, const Unit& unit) {
  const size_t dim = options_.dim;
  for (size_t t = unit.first; t < unit.last; ++t) {
    for (size_t h = unit.kv_head * group(); h < (unit.kv_head + 1) * group(); ++h) {
      const size_t cell = Index(t, h);
      float score;
      DotRows({1, dim, dim}, Query(chunk, t, h), &miss_key_[unit.kv_head * dim], &score);
      miss_share_[cell] = std::exp2(score * scale_ - max_[cell]) / sum_[cell];
      memory_max_[cell] = kNothing;
      memory_sum_[cell] = 0;
      if (!Closed(chunk, cell)) std::fill_n(&memory_out_[cell * dim], dim, 0.0f);
    }
  }
}

// Head and token: every query chooses for itself.
void MemoryAttention::Choose(const LayerMemory& memory, const Chunk& chunk, const Unit& unit) {
  const size_t dim = options_.dim;
  const size_t blocks = memory.size();
  const size_t k = chosen_count_;
  const LandmarkPanels& panels = memory.landmarks(unit.kv_head);
  Scratch& scratch = Scratch::Get();
  // Those that choose, as row and head.
  std::vector<std::pair<size_t, size_t>>& choosers = scratch.choosers;
  choosers.clear();
  for (size_t t = unit.first; t < unit.last; ++t) {
    for (size_t h = unit.kv_head * group(); h < (unit.kv_head + 1) * group(); ++h) {
      if (Closed(chunk, Index(t, h))) {
        std::fill_n(&chosen_[Index(t, h) * k], k, kNoBlockChosen);
      } else {
        choosers.emplace_back(t, h);
      }
    }
  }
  const size_t count = choosers.size();
  if (count == 0) return;
  std::vector<float>& queries = scratch.queries;
  std::vector<BestBlocks>& best = scratch.best;
  Grow(queries, count * dim);
  Grow(scratch.scores, count * k);
  if (best.size() < count) best.resize(count);
  for (size_t n = 0; n < count; ++n) {
    const auto [t, head] = choosers[n];
    Turn(static_cast<ptrdiff_t>(prefix_), Query(chunk, t, head), &queries[n * dim]);
    if (chunk.searched != nullptr) std::copy_n(&queries[n * dim], dim, &(*chunk.searched)[Index(t, head) * dim]);
    best[n].Reset(k, &scratch.scores[n * k], &chosen_[Index(t, head) * k]);
  }
  // Older blocks share slot 0; the latest k' stand in slots of their own.
  const size_t old = exact() ? blocks : blocks - k;
  const bool tie = !exact() && old > 1 && panels.uniform();
  if (!tie) memory.index(unit.kv_head).Search(0, old, count, queries.data(), best.data());
  // The latest are scored with their keys turned back instead of every query on; a tie is one key for all.
  const size_t first = tie ? old - 1 : old;
  const size_t few = blocks - first;
  std::vector<float>&keys = scratch.keys, &key = scratch.key, &few_scores = scratch.few_scores;
  Grow(keys, few * dim);
  Grow(key, dim);
  Grow(few_scores, count * RoundUp(few, 16));
  for (size_t i = 0; i < few; ++i) {
    const auto distance = static_cast<ptrdiff_t>(prefix_) - static_cast<ptrdiff_t>(first + i + 1 - old);
    panels.Read(first + i, key.data());
    if (exact()) {
      std::copy_n(key.begin(), dim, &keys[i * dim]);
    } else {
      turns_->Apply(distance, key.data(), &keys[i * dim], true);
    }
  }
  if (few > 0) {
    for (size_t n = 0; n < count; ++n) {
      std::copy_n(Query(chunk, choosers[n].first, choosers[n].second), dim, &queries[n * dim]);
    }
    ScoreKeys(dim, count, queries.data(), few, keys.data(), few_scores.data());
    for (size_t n = 0; n < count && !tie; ++n) {
      for (size_t i = 0; i < few; ++i) {
        best[n].Offer(few_scores[n * RoundUp(few, 16) + i], static_cast<int32_t>(first + i));
      }
    }
  }
  for (size_t n = 0; n < count; ++n) {
    int32_t* chosen = &chosen_[Index(choosers[n].first, choosers[n].second) * k];
    const float* scores = &few_scores[n * RoundUp(few, 16)];
    if (tie) TakeBestOfTie(old, scores[0], {scores + 1, k}, chosen);
    std::sort(chosen, chosen + k);
  }
}

// Scores of all landmarks for one query, natural units.
void MemoryAttention::RowScores(const LayerMemory& memory, const Chunk& chunk, size_t row, size_t head, float* scores) {
  const size_t dim = options_.dim;
  const size_t blocks = memory.size();
  const LandmarkPanels& panels = memory.landmarks(head / group());
  std::vector<float> turned(dim), key(dim);
  const float* q = Query(chunk, row, head);
  Turn(static_cast<ptrdiff_t>(prefix_), q, turned.data());
  ScoreLandmarks(panels, 0, blocks, 1, turned.data(), blocks, scores);
  for (size_t b = exact() ? blocks : blocks - chosen_count_; b < blocks; ++b) {
    const size_t slot = b + chosen_count_ - blocks + 1;
    Turn(static_cast<ptrdiff_t>(prefix_) - static_cast<ptrdiff_t>(slot), q, turned.data());
    panels.Read(b, key.data());
    DotRows({1, dim, dim}, turned.data(), key.data(), &scores[b]);
  }
  const float factor = 1.0f / std::sqrt(static_cast<float>(dim));
  for (size_t b = 0; b < blocks; ++b) scores[b] *= factor;
}

// Compares what Choose chose with the scores of all landmarks. Blocks that tie with the last of the best, to rounding,
// are as good as it.
RetrievalAudit MemoryAttention::Audit(const LayerMemory& memory, const Chunk& chunk, const Unit& unit) {
  const size_t blocks = memory.size();
  const size_t k = chosen_count_;
  RetrievalAudit audit;
  std::vector<float> scores(blocks);
  std::vector<int32_t> best(k);
  for (size_t t = unit.first; t < unit.last; ++t) {
    for (size_t h = unit.kv_head * group(); h < (unit.kv_head + 1) * group(); ++h) {
      if (Closed(chunk, Index(t, h))) continue;
      RowScores(memory, chunk, t, h, scores.data());
      TakeBest(scores, k, best.data());
      float last = scores[static_cast<size_t>(best[0])];
      float max = last;
      for (const int32_t b : best) {
        last = std::min(last, scores[static_cast<size_t>(b)]);
        max = std::max(max, scores[static_cast<size_t>(b)]);
      }
      const float enough = last - 1e-5f * (1 + std::abs(last));
      double sum = 0, held = 0;
      for (const float score : scores) sum += std::exp(static_cast<double>(score) - max);
      size_t hits = 0;
      for (size_t i = 0; i < k; ++i) {
        const float score = scores[static_cast<size_t>(chosen_[Index(t, h) * k + i])];
        hits += score >= enough;
        held += std::exp(static_cast<double>(score) - max);
      }
      ++audit.queries;
      audit.recall += static_cast<double>(hits) / static_cast<double>(k);
      audit.mass += held / sum;
    }
  }
  return audit;
}

// Queries that choose together: the softmax of each over all landmarks, its maximum over them, then the best k'.
void MemoryAttention::ChooseTogether(const LayerMemory& memory, const Chunk& chunk) {
  const size_t blocks = memory.size();
  const size_t k = chosen_count_;
  const size_t heads = options_.query_heads;
  const size_t members = options_.group_chooses_together ? group() : 1;  // heads that choose as one
  const bool over_rows = options_.granularity == Granularity::kHead;
  const bool over_heads = options_.granularity == Granularity::kToken;
  const size_t head_sets = over_heads ? 1 : heads / members;
  const size_t row_sets = over_rows ? 1 : chunk.time;
  ParallelFor(head_sets * row_sets, [&](size_t chooser, int) {
    const size_t heads_each = heads / head_sets;
    const size_t first_head = chooser % head_sets * heads_each;
    const size_t first_row = chooser / head_sets;
    const size_t last_row = over_rows ? chunk.time : first_row + 1;
    std::vector<float> scores(blocks);
    std::vector<float> together(blocks, kNothing);
    for (size_t t = first_row; t < last_row; ++t) {
      for (size_t h = first_head; h < first_head + heads_each; ++h) {
        RowScores(memory, chunk, t, h, scores.data());
        // The logarithm of the softmax orders the same.
        const float max = *std::max_element(scores.begin(), scores.begin() + static_cast<ptrdiff_t>(blocks));
        float sum = 0;
        for (size_t b = 0; b < blocks; ++b) sum += std::exp(scores[b] - max);
        const float log_sum = max + std::log(sum);
        for (size_t b = 0; b < blocks; ++b) together[b] = std::max(together[b], scores[b] - log_sum);
      }
    }
    std::vector<int32_t> best_blocks(k);
    TakeBest(together, k, best_blocks.data());
    std::sort(best_blocks.begin(), best_blocks.end());
    for (size_t t = first_row; t < last_row; ++t) {
      for (size_t h = first_head; h < first_head + heads_each; ++h) {
        std::copy(best_blocks.begin(), best_blocks.end(), chosen_.begin() + static_cast<ptrdiff_t>(Index(t, h) * k));
      }
    }
  });
}

// Reads the chosen blocks, each once for all queries of the unit that chose it.
void MemoryAttention::Read(const LayerMemory& memory, const Chunk& chunk, const Unit& unit) {
  const size_t dim = options_.dim;
  const size_t blocks = memory.size();
  const size_t k = chosen_count_;
  const bool miss = chunk.miss_key != nullptr;
  // Lists of the choosers of each block, [row][head of the group][place].
  const size_t choices = (unit.last - unit.first) * group() * k;
  Scratch& scratch = Scratch::Get();
  std::vector<int32_t>&next = scratch.next, &first = scratch.first, &distinct = scratch.distinct;
  if (next.size() < choices) next.resize(choices);
  if (first.size() < blocks) first.resize(blocks, -1);
  distinct.clear();
  size_t n = 0;
  for (size_t t = unit.first; t < unit.last; ++t) {
    for (size_t h = unit.kv_head * group(); h < (unit.kv_head + 1) * group(); ++h) {
      const size_t cell = Index(t, h);
      if (Closed(chunk, cell)) {
        std::fill_n(&gates_[cell * k], k, kNothing);
        n += k;
        continue;
      }
      for (size_t i = 0; i < k; ++i, ++n) {
        int32_t& head_of_list = first[static_cast<size_t>(chosen_[cell * k + i])];
        if (head_of_list < 0) distinct.push_back(chosen_[cell * k + i]);
        next[n] = head_of_list;
        head_of_list = static_cast<int32_t>(n);
      }
    }
  }
  std::sort(distinct.begin(), distinct.end());
  const auto each_choice = [&](int32_t block, const auto& use) {
    for (int32_t choice = first[static_cast<size_t>(block)]; choice >= 0; choice = next[static_cast<size_t>(choice)]) {
      const size_t member = static_cast<size_t>(choice) / k;
      const size_t t = unit.first + member / group();
      const size_t h = unit.kv_head * group() + member % group();
      use(t, h, static_cast<size_t>(choice) % k);
    }
  };
  // The query of a choice as it reads the block: turned to its slot, scores in units of log 2.
  const auto turn = [&](int32_t block, size_t t, size_t h, size_t place, float* to) {
    const bool recent = static_cast<size_t>(block) + k >= blocks;
    const size_t slot = place + (recent ? 1 : 0);
    Turn(static_cast<ptrdiff_t>(prefix_) - static_cast<ptrdiff_t>(slot), Query(chunk, t, h), to);
    ScaleRow(scale_, to, dim);
  };
  std::vector<float>&queries = scratch.queries, &gates = scratch.gates;
  // The gates are known before the blocks are. What would be lost in the rounding of the sum is not read.
  const bool weighs = memory.indexed() && !chunk.local_blocks;
  if (weighs) {
    std::vector<float>&key = scratch.key, &top = scratch.weights;
    Grow(key, dim);
    Grow(queries, dim);
    for (const int32_t block : distinct) {
      memory.index(unit.kv_head).ReadKey(static_cast<size_t>(block), key.data());
      each_choice(block, [&](size_t t, size_t h, size_t place) {
        turn(block, t, h, place, queries.data());
        DotRows({1, dim, dim}, queries.data(), key.data(), &gates_[Index(t, h) * k + place]);
      });
    }
    Grow(top, (unit.last - unit.first) * group());
    for (size_t t = unit.first; t < unit.last; ++t) {
      for (size_t g = 0; g < group(); ++g) {
        const size_t cell = Index(t, unit.kv_head * group() + g);
        float& most = top[(t - unit.first) * group() + g];
        most = miss ? kNothing : max_[cell];
        for (size_t i = 0; i < k; ++i) most = std::max(most, gates_[cell * k + i]);
      }
    }
    std::erase_if(distinct, [&](int32_t block) {
      bool read = false;
      each_choice(block, [&](size_t t, size_t h, size_t place) {
        const size_t g = h - unit.kv_head * group();
        read = read || !(gates_[Index(t, h) * k + place] < top[(t - unit.first) * group() + g] - kLost);
      });
      if (!read) first[static_cast<size_t>(block)] = -1;
      return !read;
    });
  }
  memory.Prefetch(distinct, unit.kv_head);
  std::vector<RunningGroup>& groups = scratch.groups;
  std::vector<size_t>& cells = scratch.cells;
  for (const int32_t block : distinct) {
    groups.clear();
    cells.clear();
    each_choice(block, [&](size_t t, size_t h, size_t place) {
      const size_t cell = Index(t, h);
      const size_t g = h - unit.kv_head * group();
      if (weighs && gates_[cell * k + place] < scratch.weights[(t - unit.first) * group() + g] - kLost) return;
      Grow(queries, (groups.size() + 1) * dim);
      turn(block, t, h, place, queries.data() + groups.size() * dim);
      if (miss) {
        groups.push_back({&memory_max_[cell], &memory_sum_[cell], &memory_out_[cell * dim]});
      } else {
        groups.push_back({&max_[cell], &sum_[cell], chunk.out + cell * dim});
      }
      cells.push_back(cell * k + place);
    });
    first[static_cast<size_t>(block)] = -1;
    Grow(gates, groups.size());
    const BlockPin pin = memory.Pin(static_cast<size_t>(block), unit.kv_head);
    ReadBlock(options_.block, pin.data(), groups.size(), queries.data(), groups.data(), gates.data());
    for (size_t i = 0; i < cells.size(); ++i) gates_[cells[i]] = gates[i];
  }
}

// Without landmarks every block is read by every query.
void MemoryAttention::ReadAll(const LayerMemory& memory, const Chunk& chunk, const Unit& unit) {
  const size_t dim = options_.dim;
  std::vector<float>& queries = Scratch::Get().queries;
  std::vector<RunningGroup>& groups = Scratch::Get().groups;
  queries.clear();
  groups.clear();
  for (size_t t = unit.first; t < unit.last; ++t) {
    for (size_t h = unit.kv_head * group(); h < (unit.kv_head + 1) * group(); ++h) {
      const float* q = Query(chunk, t, h);
      queries.insert(queries.end(), q, q + dim);
      ScaleRow(scale_, queries.data() + queries.size() - dim, dim);
      const size_t cell = Index(t, h);
      groups.push_back({&max_[cell], &sum_[cell], chunk.out + cell * dim});
    }
  }
  for (size_t b = 0; b < memory.size(); ++b) {
    const BlockPin pin = memory.Pin(b, unit.kv_head);
    ReadBlock(options_.block, pin.data(), groups.size(), queries.data(), groups.data(), nullptr);
  }
}

// Divides by the sums; what the memory gave under the context-miss token is added with the token's share.
void MemoryAttention::Combine(const Chunk& chunk, const Unit& unit) {
  const size_t dim = options_.dim;
  const size_t k = chosen_count_;
  for (size_t t = unit.first; t < unit.last; ++t) {
    for (size_t h = unit.kv_head * group(); h < (unit.kv_head + 1) * group(); ++h) {
      const size_t cell = Index(t, h);
      float* out = chunk.out + cell * dim;
      const float inverse = 1.0f / sum_[cell];
      ScaleRow(inverse, out, dim);
      if (k == 0) continue;
      const bool miss = chunk.miss_key != nullptr;
      const bool skipped = miss && memory_sum_[cell] == 0;
      const float max = miss ? memory_max_[cell] : max_[cell];
      const float factor = !miss ? inverse : skipped ? 0.0f : miss_share_[cell] / memory_sum_[cell];
      if (miss && !skipped) AddWeightedRows({1, dim, dim}, &factor, &memory_out_[cell * dim], out);
      for (size_t i = 0; i < k; ++i) {
        float& gate = gates_[cell * k + i];
        gate = skipped ? 0.0f : std::exp2(gate - max) * factor;
      }
    }
  }
}

// Keys that are stored are rotated by their place in the block alone, from the numbers before any rotation, so that
// equal keys are stored equal wherever they stood.
void MemoryAttention::StoreLocal(LayerMemory& memory, const Chunk& chunk) {
  const size_t rows = unfinished_ + chunk.time;
  const size_t row = memory.row_floats();
  const size_t columns = options_.block.columns();
  if (!exact() && rows > columns) {
    float* keys = memory.LocalKeys(rows);
    for (size_t r = columns; r < rows; ++r) {
      std::copy_n(chunk.qkv + (r - unfinished_) * width() + options_.query_heads * options_.dim, row, keys + r * row);
    }
    RunRotary(rows - columns, {keys + columns * row, row, options_.kv_heads, options_.dim, offset_cosine_.data(),
                               offset_sine_.data(), columns, options_.rotary == RotaryLayout::kInterleaved, false});
  }
  memory.Finish(rows);
  if (options_.memory_blocks > 0) memory.KeepLatest(options_.memory_blocks);
}

void MemoryAttention::Rank(const LayerMemory& memory, const Chunk& chunk) {
  const size_t blocks = memory.size();
  chunk.ranking->resize(blocks);
  // Equal landmarks say nothing.
  if (blocks == 0 || !options_.block.landmark || memory.landmarks(0).uniform()) return;
  std::vector<std::vector<double>> most(options_.query_heads, std::vector<double>(blocks));
  ParallelFor(options_.query_heads, [&](size_t h, int) {
    const size_t columns = RoundUp(blocks, LandmarkPanels::kPanelColumns);
    const float factor = 1.0f / std::sqrt(static_cast<float>(options_.dim));
    std::vector<float> scores(columns), turned(options_.dim);
    for (size_t t = 0; t < chunk.time; ++t) {
      // All as if they stood in slot 0: being recent is no merit.
      Turn(static_cast<ptrdiff_t>(prefix_), Query(chunk, t, h), turned.data());
      ScaleRow(factor, turned.data(), options_.dim);
      ScoreLandmarks(memory.landmarks(h / group()), 0, blocks, 1, turned.data(), columns, scores.data());
      const float max = *std::max_element(scores.begin(), scores.begin() + static_cast<ptrdiff_t>(blocks));
      double sum = 0;
      for (size_t b = 0; b < blocks; ++b) sum += static_cast<double>(scores[b] = std::exp(scores[b] - max));
      for (size_t b = 0; b < blocks; ++b) most[h][b] = std::max(most[h][b], static_cast<double>(scores[b]) / sum);
    }
  });
  for (const std::vector<double>& head : most) {
    for (size_t b = 0; b < blocks; ++b) (*chunk.ranking)[b] += head[b];
  }
}

size_t MemoryAttention::workspace_bytes() const {
  size_t floats = 0;
  for (const auto* values :
       {&cosine_, &sine_, &max_, &sum_, &memory_max_, &memory_sum_, &memory_out_, &miss_share_, &gates_, &saved_}) {
    floats += values->capacity();
  }
  return floats * sizeof(float) + chosen_.capacity() * sizeof(int32_t);
}

}  // namespace cairn
