#include "attention/memory_reference.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  CAIRN_CHECK(options.dim >= 2 && options.dim % 2 == 0);
  CAIRN_CHECK(options.block_length >= 1 && options.kv_heads >= 1 && options.query_heads % options.kv_heads == 0);
}

template <typename T>
T MemoryReference<T>::Score(const T* rotated_query, const T* key, double position) const {
  std::vector<T> rotated(options_.dim);
  RotateReference(key, options_.dim, position, options_.rotary_base, options_.rotary, rotated.data());
  T sum = 0;
  for (size_t i = 0; i < options_.dim; ++i) sum += rotated_query[i] * rotated[i];
  return sum / std::sqrt(static_cast<T>(options_.dim));
}

// Scores of all landmarks in memory for a query at `position`: the latest top_k blocks sit in slots 1 .. top_k, every
// older one in slot 0.
template <typename T>
std::vector<T> MemoryReference<T>::LandmarkScores(const T* q, size_t position, size_t kv_head, size_t top_k) const {
  const size_t stride = options_.block_length + 1;
  const size_t count = memory_.size();
  std::vector<T> rotated(options_.dim);
  RotateReference(q, options_.dim, static_cast<double>(position), options_.rotary_base, options_.rotary,
                  rotated.data());
  std::vector<T> scores(count);
  for (size_t b = 0; b < count; ++b) {
    const size_t slot = b + top_k >= count ? b + top_k - count + 1 : 0;
    const T* landmark = memory_[b].k.data() + (options_.block_length * options_.kv_heads + kv_head) * options_.dim;
    scores[b] = Score(rotated.data(), landmark, static_cast<double>(slot * stride + options_.block_length));
  }
  return scores;
}

namespace {

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

// The indexes of the `k` largest, in ascending order; of equals, the earlier.
template <typename T>
std::vector<size_t> LargestK(const std::vector<T>& values, size_t k) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(k);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

// The blocks of the memory that each [time][query_head] reads.
template <typename T>
std::vector<std::vector<size_t>> MemoryReference<T>::Choose(const Chunk& chunk, size_t start, size_t top_k) const {
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
    for (size_t h = 0; h < heads; ++h) chosen[t * heads + h] = LargestK(shared[chooser(t, h)], top_k);
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
  const size_t default_start = (count == 0 ? 0 : (top_k + 1) * stride) + unfinished_;
  const size_t start = chunk.start.value_or(default_start);
  CAIRN_CHECK(start >= unfinished_);
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
      RotateReference(chunk.q + (t * heads + h) * dim, dim, static_cast<double>(start + t), options_.rotary_base,
                      options_.rotary, rotated.data());
      keys.clear();
      scores.clear();
      values.clear();
      const auto add = [&](const Tokens& tokens, size_t index, size_t position, RowKey key) {
        const size_t at = (index * kv_heads + kv_head) * dim;
        keys.push_back(key);
        const double at_position = static_cast<double>(position);
        scores.push_back(key.role == RowKey::kHidden ? T{0} : Score(rotated.data(), tokens.k.data() + at, at_position));
        values.push_back(tokens.v.data() + at);
      };
      // Chosen blocks fill the slots from the left; those among the latest top_k are shifted one slot to the right.
      const std::vector<size_t>& blocks = chosen[t * heads + h];
      for (size_t i = 0; i < blocks.size(); ++i) {
        const size_t slot = i + (blocks[i] + top_k >= count ? 1 : 0);
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
      if (chunk.miss_key) miss_score = Score(rotated.data(), chunk.miss_key + kv_head * dim, -1.0);
      GroupedSoftmax<T>(keys, scores, chunk.miss_key ? &miss_score : nullptr, weights);
      if (chunk.miss_key && weights.miss < static_cast<T>(options_.miss_cutoff)) {
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

template class MemoryReference<float>;
template class MemoryReference<double>;
template void RotateReference<float>(const float*, size_t, double, double, RotaryLayout, float*);
template void RotateReference<double>(const double*, size_t, double, double, RotaryLayout, double*);

}  // namespace cairn
