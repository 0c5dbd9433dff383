#include "attention/memory_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/attention.h"
#include "attention/landmark_panels.h"
#include "attention/reference.h"
#include "base/error.h"

namespace cairn {

template <typename T>
void RotateReference(const T* from, size_t dim, double position, double base, RotaryLayout layout, T* to) {
  for (size_t pair = 0; pair < dim / 2; ++pair) {
    const double angle = position * std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(dim));
    const T cosine = static_cast<T>(std::cos(angle));
    const T sine = static_cast<T>(std::sin(angle));
    const size_t a = layout == RotaryLayout::kInterleaved ? 2 * pair : pair;
    const size_t b = layout == RotaryLayout::kInterleaved ? 2 * pair + 1 : pair + dim / 2;
    const T x = from[a];
    const T y = from[b];
    to[a] = x * cosine - y * sine;
    to[b] = x * sine + y * cosine;
  }
}

template <typename T>
MemoryReference<T>::MemoryReference(const MemoryReferenceOptions& options) : options_(options) {
  CAIRN_CHECK(options.dim >= 2 && options.dim % 2 == 0 && options.dim <= kMaxHeadDim);
  CAIRN_CHECK(options.block_length >= 1 && options.kv_heads >= 1 && options.query_heads % options.kv_heads == 0);
  CAIRN_CHECK(options.frequencies.empty() || options.frequencies.size() == options.dim / 2);
  for (size_t pair = 0; options.frequencies.empty() && pair < options.dim / 2; ++pair) {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(options.dim);
    options_.frequencies.push_back(std::pow(options.rotary_base, exponent));
  }
}

// Cosines and sines of positions -1 .. count - 1.
template <typename T>
void MemoryReference<T>::PreparePositions(size_t count) {
  const size_t half = options_.dim / 2;
  while (cosine_.size() < (count + 1) * half) {
    const double position = static_cast<double>(cosine_.size() / half) - 1.0;
    for (const double frequency : options_.frequencies) {
      cosine_.push_back(static_cast<T>(std::cos(position * frequency)));
      sine_.push_back(static_cast<T>(std::sin(position * frequency)));
    }
  }
}

template <typename T>
void MemoryReference<T>::Rotate(const T* from, ptrdiff_t position, T* to) const {
  const size_t half = options_.dim / 2;
  const size_t row = static_cast<size_t>(position + 1) * half;
  CAIRN_CHECK(row + half <= cosine_.size());
  const bool interleaved = options_.rotary == RotaryLayout::kInterleaved;
  for (size_t pair = 0; pair < half; ++pair) {
    const size_t a = interleaved ? 2 * pair : pair;
    const size_t b = interleaved ? 2 * pair + 1 : pair + half;
    const T x = from[a];
    const T y = from[b];
    to[a] = x * cosine_[row + pair] - y * sine_[row + pair];
    to[b] = x * sine_[row + pair] + y * cosine_[row + pair];
  }
}

template <typename T>
T MemoryReference<T>::Score(const T* rotated_query, const T* key, ptrdiff_t position) const {
  T rotated[kMaxHeadDim];
  Rotate(key, position, rotated);
  T sum = 0;
  for (size_t i = 0; i < options_.dim; ++i) sum += rotated_query[i] * rotated[i];
  return sum / std::sqrt(static_cast<T>(options_.dim));
}

// Scores of all landmarks in memory for a query at `position`: the latest top_k blocks sit in slots 1 .. top_k, every
// older one in slot 0; or each where it truly stands.
template <typename T>
std::vector<T> MemoryReference<T>::LandmarkScores(const T* q, size_t position, size_t kv_head, size_t top_k) const {
  const size_t stride = options_.block_length + 1;
  const size_t count = memory_.size();
  std::vector<T> rotated(options_.dim);
  Rotate(q, static_cast<ptrdiff_t>(position), rotated.data());
  std::vector<T> scores(count);
  for (size_t b = 0; b < count; ++b) {
    const size_t slot = options_.exact_positions ? first_block_ + b : b + top_k >= count ? b + top_k - count + 1 : 0;
    const T* landmark = memory_[b].k.data() + (options_.block_length * options_.kv_heads + kv_head) * options_.dim;
    scores[b] = Score(rotated.data(), landmark, static_cast<ptrdiff_t>(slot * stride + options_.block_length));
  }
  return scores;
}

namespace {

// Blocks of the same text have the same score but for the rounding of f64.
constexpr double kSameScore = 1e-12;

template <typename T>
void Softmax(std::vector<T>& values) {
  if (values.empty()) return;  // an empty memory
  const T max = *std::max_element(values.begin(), values.end());
  T sum = 0;
  for (T& x : values) sum += x = std::exp(x - max);
  for (T& x : values) x /= sum;
}

template <typename T>
void TakeMaximum(std::vector<T>& values, const std::vector<T>& other) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::max(values[i], other[i]);
}

}  // namespace

// The indexes of the `k` largest, in ascending order. Of equals, one query takes the earlier, but where all old blocks
// tie, and where several queries choose together, they are taken as TakeBest does.
template <typename T>
std::vector<size_t> MemoryReference<T>::TakeLargest(const std::vector<T>& values, size_t k, bool alone) const {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  const size_t old = values.size() - k;
  const bool tie = !options_.exact_positions && old > 1 &&
                   std::all_of(values.begin(), values.begin() + static_cast<ptrdiff_t>(old),
                               [&](T value) { return value == values[0]; });
  if (!alone || tie) {
    // Ranks are small whole numbers, so floats hold them exactly.
    std::vector<float> ranks(values.size());
    for (size_t i = 1; i < order.size(); ++i) {
      const bool lower = values[order[i]] < values[order[i - 1]];
      ranks[order[i]] = lower ? -static_cast<float>(i) : ranks[order[i - 1]];
    }
    std::vector<int32_t> best(k);
    TakeBest(ranks, k, best.data());
    order.assign(best.begin(), best.end());
  }
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

// Takes the foreign choice of a row and head where none of its blocks is worse than the own choice's worst, but for the
// tolerance. Returns false, and takes nothing, where one is.
template <typename T>
bool MemoryReference<T>::Follow(const ForeignChoices& foreign, size_t cell, const std::vector<T>& values,
                                std::vector<size_t>& chosen) {
  std::vector<size_t> other;
  for (size_t i = 0; i < foreign.chosen; ++i) {
    const int64_t block = foreign.blocks.at(cell * foreign.chosen + i) - static_cast<int64_t>(first_block_);
    if (block < 0 || static_cast<size_t>(block) >= values.size()) return false;
    if (!other.empty() && other.back() >= static_cast<size_t>(block)) return false;
    other.push_back(static_cast<size_t>(block));
  }
  if (other == chosen) return true;
  if (other.size() != chosen.size()) return false;
  T worst = values[chosen[0]];
  for (const size_t block : chosen) worst = std::min(worst, values[block]);
  T lost = 0;
  for (const size_t block : other) lost = std::max(lost, worst - values[block]);
  if (!(static_cast<double>(lost) <= foreign.tolerance)) return false;
  ++(static_cast<double>(lost) <= kSameScore ? comparison_.ties : comparison_.near_ties);
  chosen = other;
  return true;
}

// The blocks of the memory that each [time][query_head] reads.
template <typename T>
std::vector<std::vector<size_t>> MemoryReference<T>::Choose(const Chunk& chunk, size_t start, size_t top_k) {
  const size_t heads = options_.query_heads;
  const size_t group = heads / options_.kv_heads;
  const bool raw = options_.granularity == Granularity::kHeadAndToken && !options_.group_chooses_together;
  std::vector<std::vector<T>> values(chunk.time * heads);
  for (size_t t = 0; t < chunk.time; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      std::vector<T>& v = values[t * heads + h];
      v = LandmarkScores(chunk.q + (t * heads + h) * options_.dim, start + t, h / group, top_k);
      if (!raw) Softmax(v);
    }
  }
  // Who chooses together: rows and heads with the same key share the maximum of their softmax values.
  const auto chooser = [&](size_t t, size_t h) -> size_t {
    const size_t head = options_.group_chooses_together ? h / group : h;
    switch (options_.granularity) {
      case Granularity::kHeadAndToken:
        return t * heads + head;
      case Granularity::kHead:
        return head;
      case Granularity::kToken:
        return t;
    }
    return 0;
  };
  std::vector<std::vector<T>> shared(chunk.time * heads + heads);
  std::vector<std::vector<size_t>> chosen(chunk.time * heads);
  for (size_t t = 0; t < chunk.time; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      std::vector<T>& best = shared[chooser(t, h)];
      if (best.empty()) {
        best = values[t * heads + h];
      } else {
        TakeMaximum(best, values[t * heads + h]);
      }
    }
  }
  for (size_t t = 0; t < chunk.time; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      const size_t cell = t * heads + h;
      std::vector<T>& best = shared[chooser(t, h)];
      chosen[cell] = TakeLargest(best, top_k, raw);
      ++comparison_.choices;
      if (chunk.follow == nullptr || top_k == 0) continue;
      // What chose nothing is judged by the context-miss token's share.
      if (chunk.miss_key && chunk.follow->read[cell] == 0 && chunk.follow->blocks[cell * top_k] < 0) continue;
      std::vector<T> scores = best;
      if (!raw) std::transform(scores.begin(), scores.end(), scores.begin(), [](T x) { return std::log(x); });
      if (!Follow(*chunk.follow, cell, scores, chosen[cell])) ++comparison_.wrong;
    }
  }
  return chosen;
}

template <typename T>
void MemoryReference<T>::Feed(const Chunk& chunk) {
  const size_t stride = options_.block_length + 1;
  const size_t dim = options_.dim;
  const size_t heads = options_.query_heads;
  const size_t kv_heads = options_.kv_heads;
  const size_t group = heads / kv_heads;
  const size_t count = memory_.size();
  const size_t top_k = std::min(options_.top_k, count);
  const bool exact = options_.exact_positions;
  const size_t default_start = exact ? position() : (count == 0 ? 0 : (top_k + 1) * stride) + unfinished_;
  const size_t start = chunk.start.value_or(default_start);
  CAIRN_CHECK(start >= unfinished_);
  PreparePositions(std::max(start + chunk.time, (top_k + 1) * stride));
  comparison_ = {};
  const auto chosen = Choose(chunk, start, top_k);

  // Local keys: the carried block, then the chunk.
  Tokens local = carried_;
  local.k.insert(local.k.end(), chunk.k, chunk.k + chunk.time * kv_heads * dim);
  local.v.insert(local.v.end(), chunk.v, chunk.v + chunk.time * kv_heads * dim);
  const size_t local_time = unfinished_ + chunk.time;

  reads_.assign(chunk.time * heads, {});
  std::vector<T> rotated(dim);
  std::vector<RowKey> keys;
  std::vector<T> scores;
  std::vector<const T*> values;
  RowWeights<T> weights;
  for (size_t t = 0; t < chunk.time; ++t) {
    for (size_t h = 0; h < heads; ++h) {
      const size_t kv_head = h / group;
      Rotate(chunk.q + (t * heads + h) * dim, static_cast<ptrdiff_t>(start + t), rotated.data());
      keys.clear();
      scores.clear();
      values.clear();
      const auto add = [&](const Tokens& tokens, size_t index, size_t position, RowKey key) {
        const size_t at = (index * kv_heads + kv_head) * dim;
        keys.push_back(key);
        const auto at_position = static_cast<ptrdiff_t>(position);
        scores.push_back(key.role == RowKey::kHidden ? T{0} : Score(rotated.data(), tokens.k.data() + at, at_position));
        values.push_back(tokens.v.data() + at);
      };
      // Chosen blocks fill the slots from the left; those among the latest top_k are shifted one slot to the right.
      const std::vector<size_t>& blocks = chosen[t * heads + h];
      for (size_t i = 0; i < blocks.size(); ++i) {
        const size_t slot = exact ? first_block_ + blocks[i] : i + (blocks[i] + top_k >= count ? 1 : 0);
        for (size_t j = 0; j < stride; ++j) {
          const auto landmark = chunk.miss_key ? RowKey::kControlledLandmark : RowKey::kLandmark;
          const auto role = j == options_.block_length ? landmark : RowKey::kToken;
          add(memory_[blocks[i]], j, slot * stride + j, {role, static_cast<uint32_t>(i)});
        }
      }
      // Local tokens in the grouping of training; their blocks are numbered after the chosen ones.
      const size_t own_block = (unfinished_ + t) / stride;
      for (size_t j = 0; j < local_time; ++j) {
        const size_t block = j / stride;
        const bool landmark = j % stride == options_.block_length;
        const auto id = static_cast<uint32_t>(blocks.size() + block);
        RowKey key;
        if (j <= unfinished_ + t) {
          if (block < own_block) {
            key = {landmark ? RowKey::kLandmark : RowKey::kToken, id};
          } else if (!landmark) {
            key = {RowKey::kHome, 0};
          }
        }
        add(local, j, start - unfinished_ + j, key);
      }
      T miss_score = 0;
      if (chunk.miss_key) miss_score = Score(rotated.data(), chunk.miss_key + kv_head * dim, -1);
      GroupedSoftmax<T>(keys, scores, chunk.miss_key ? &miss_score : nullptr, weights);
      bool skip = chunk.miss_key && weights.miss < static_cast<T>(options_.miss_cutoff);
      if (chunk.miss_key && chunk.follow && !blocks.empty() && skip == (chunk.follow->read[t * heads + h] != 0)) {
        const double distance = std::abs(static_cast<double>(weights.miss) - options_.miss_cutoff);
        const bool near = distance <= chunk.follow->tolerance;
        ++(near ? comparison_.near_ties : comparison_.wrong);
        if (near) skip = !skip;
      }
      if (skip) {
        std::fill(weights.final.begin(), weights.final.begin() + static_cast<ptrdiff_t>(blocks.size() * stride), T{0});
        std::fill(weights.gate_of.begin(), weights.gate_of.begin() + static_cast<ptrdiff_t>(blocks.size()), T{0});
      }
      T* out = chunk.out + (t * heads + h) * dim;
      std::fill(out, out + dim, T{0});
      for (size_t j = 0; j < keys.size(); ++j) {
        if (keys[j].role != RowKey::kHome && keys[j].role != RowKey::kToken) continue;
        for (size_t i = 0; i < dim; ++i) out[i] += weights.final[j] * values[j][i];
      }
      for (size_t i = 0; i < blocks.size(); ++i) {
        reads_[t * heads + h].push_back({first_block_ + blocks[i], static_cast<double>(weights.gate_of[i])});
      }
    }
  }

  // Finished blocks go to the memory, the rest is carried over; the oldest blocks beyond the limit go.
  const size_t finished = local_time / stride;
  const size_t row = kv_heads * dim;
  for (size_t b = 0; b < finished; ++b) {
    const auto begin = static_cast<ptrdiff_t>(b * stride * row);
    const auto end = static_cast<ptrdiff_t>((b + 1) * stride * row);
    memory_.push_back(
        {{local.k.begin() + begin, local.k.begin() + end}, {local.v.begin() + begin, local.v.begin() + end}});
  }
  const auto rest = static_cast<ptrdiff_t>(finished * stride * row);
  carried_ = {{local.k.begin() + rest, local.k.end()}, {local.v.begin() + rest, local.v.end()}};
  unfinished_ = local_time - finished * stride;
  if (options_.memory_blocks > 0 && memory_.size() > options_.memory_blocks) {
    const size_t evicted = memory_.size() - options_.memory_blocks;
    memory_.erase(memory_.begin(), memory_.begin() + static_cast<ptrdiff_t>(evicted));
    first_block_ += evicted;
  }
}

template <typename T>
void MemoryReference<T>::Truncate(size_t blocks, size_t unfinished) {
  CAIRN_CHECK(blocks >= first_block_ && blocks <= this->blocks());
  const size_t kept = blocks - first_block_;
  if (kept < memory_.size()) {
    carried_ = memory_[kept];
    unfinished_ = options_.block_length + 1;
    memory_.resize(kept);
  }
  CAIRN_CHECK(unfinished <= unfinished_);
  unfinished_ = unfinished;
  carried_.k.resize(unfinished * options_.kv_heads * options_.dim);
  carried_.v.resize(unfinished * options_.kv_heads * options_.dim);
}

template class MemoryReference<float>;
template class MemoryReference<double>;
template void RotateReference<float>(const float*, size_t, double, double, RotaryLayout, float*);
template void RotateReference<double>(const double*, size_t, double, double, RotaryLayout, double*);

}  // namespace cairn
