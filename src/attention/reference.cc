#include "attention/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace cairn {

namespace {

// Largest magnitude of a score: beyond it two scores could no longer be subtracted.
template <typename T>
T ClampScore(T score) {
  constexpr T kLimit = std::numeric_limits<T>::max() / 16;
  return std::clamp(score, -kLimit, kLimit);
}

template <typename T>
T Dot(const T* a, const T* b, size_t n) {
  T sum = 0;
  for (size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Whether the key's value takes part: a landmark's never does, whatever it holds.
bool ReadsValue(const RowKey& key) { return key.role == RowKey::kHome || key.role == RowKey::kToken; }

// Running maximum and sum of one softmax group.
template <typename T>
struct Group {
  T max = -std::numeric_limits<T>::infinity();
  T sum = 0;
  void See(T score) { max = std::max(max, score); }
  void Count(T score) { sum += std::exp(score - max); }
  T Value(T score) const { return std::exp(score - max) / sum; }
};

// What one row of one head needs, forward and backward.
template <typename T>
struct Row {
  std::vector<RowKey> keys;
  std::vector<T> scores;
  T miss_score = 0;
  RowWeights<T> weights;

  void Compute(const AttentionShape& shape, const ReferenceInput<T>& in, size_t batch, size_t head, size_t time) {
    const size_t kv = batch * shape.kv_heads + head / shape.group();
    const T* q = in.q + ((batch * shape.query_heads + head) * shape.time + time) * shape.dim;
    const T* k = in.k + kv * shape.keys() * shape.dim;
    const T scale = static_cast<T>(shape.scale != 0 ? T{shape.scale} : 1 / std::sqrt(static_cast<T>(shape.dim)));
    const uint8_t* controlled = in.miss && in.miss.controlled ? in.miss.controlled + batch * shape.blocks() : nullptr;
    CausalRowKeys(shape, shape.prefix + time, controlled, keys);
    scores.assign(shape.keys(), 0);
    for (size_t j = 0; j < shape.keys(); ++j) {
      if (keys[j].role != RowKey::kHidden) scores[j] = scale * Dot(q, k + j * shape.dim, shape.dim);
    }
    if (in.miss) miss_score = scale * Dot(q, in.miss.key + kv * shape.dim, shape.dim);
    GroupedSoftmax<T>(keys, scores, in.miss ? &miss_score : nullptr, weights);
  }
};

}  // namespace

void CausalRowKeys(const AttentionShape& shape, size_t position, const uint8_t* controlled, std::vector<RowKey>& keys) {
  const size_t own_block = position / shape.stride();
  keys.assign(shape.keys(), RowKey{});
  for (size_t j = 0; j <= position; ++j) {
    const size_t block = j / shape.stride();
    const bool landmark = j % shape.stride() == shape.block_length;
    if (block == own_block) {
      keys[j] = {landmark ? RowKey::kHidden : RowKey::kHome, 0};
    } else if (landmark) {
      const bool under_control = controlled != nullptr && controlled[block] != 0;
      keys[j] = {under_control ? RowKey::kControlledLandmark : RowKey::kLandmark, static_cast<uint32_t>(block)};
    } else {
      keys[j] = {RowKey::kToken, static_cast<uint32_t>(block)};
    }
  }
}

template <typename T>
void GroupedSoftmax(std::span<const RowKey> keys, std::span<const T> scores, const T* miss_score, RowWeights<T>& row) {
  const size_t n = keys.size();
  CAIRN_CHECK(scores.size() == n);
  Group<T> home;
  Group<T> controlled;
  std::vector<Group<T>> blocks(n);
  const auto group_of = [&](const RowKey& key) -> Group<T>& {
    if (key.role == RowKey::kToken) return blocks[key.group];
    return key.role == RowKey::kControlledLandmark ? controlled : home;
  };
  for (size_t j = 0; j < n; ++j) {
    if (keys[j].role != RowKey::kHidden) group_of(keys[j]).See(ClampScore(scores[j]));
  }
  if (miss_score != nullptr) home.See(ClampScore(*miss_score));
  for (size_t j = 0; j < n; ++j) {
    if (keys[j].role != RowKey::kHidden) group_of(keys[j]).Count(ClampScore(scores[j]));
  }
  if (miss_score != nullptr) home.Count(ClampScore(*miss_score));

  row.miss = miss_score != nullptr ? home.Value(ClampScore(*miss_score)) : T{0};
  row.inner.assign(n, 0);
  row.final.assign(n, 0);
  row.gate_of.assign(n, 0);
  for (size_t j = 0; j < n; ++j) {
    const RowKey& key = keys[j];
    if (key.role == RowKey::kHidden) continue;
    row.inner[j] = group_of(key).Value(ClampScore(scores[j]));
    if (key.role == RowKey::kLandmark) row.gate_of[key.group] = row.inner[j];
    if (key.role == RowKey::kControlledLandmark) row.gate_of[key.group] = row.inner[j] * row.miss;
  }
  for (size_t j = 0; j < n; ++j) {
    if (keys[j].role == RowKey::kHome) row.final[j] = row.inner[j];
    if (keys[j].role == RowKey::kToken) row.final[j] = row.gate_of[keys[j].group] * row.inner[j];
  }
}

template <typename T>
T GroupedSoftmaxBackward(std::span<const RowKey> keys, const RowWeights<T>& row, std::span<const T> dfinal,
                         std::span<T> dscores) {
  const size_t n = keys.size();
  // d(block as a whole) = sum over its tokens of w * da.
  std::vector<T> dblock(n, 0);
  for (size_t j = 0; j < n; ++j) {
    if (keys[j].role == RowKey::kToken) dblock[keys[j].group] += row.inner[j] * dfinal[j];
  }
  // Upstream gradient of the context-miss token's value c: each controlled block carries c * g.
  T dmiss = 0;
  for (size_t j = 0; j < n; ++j) {
    if (keys[j].role == RowKey::kControlledLandmark) dmiss += row.inner[j] * dblock[keys[j].group];
  }
  // The home group is an ordinary softmax whose members are home tokens, landmarks and the context-miss token.
  T home = row.miss * dmiss;
  for (size_t j = 0; j < n; ++j) {
    if (keys[j].role == RowKey::kHome) home += row.inner[j] * dfinal[j];
    if (keys[j].role == RowKey::kLandmark) home += row.inner[j] * dblock[keys[j].group];
  }
  for (size_t j = 0; j < n; ++j) {
    const size_t group = keys[j].group;
    switch (keys[j].role) {
      case RowKey::kHidden:
        dscores[j] = 0;
        break;
      case RowKey::kHome:
        dscores[j] = row.inner[j] * (dfinal[j] - home);
        break;
      case RowKey::kToken:
        dscores[j] = row.gate_of[group] * row.inner[j] * (dfinal[j] - dblock[group]);
        break;
      case RowKey::kLandmark:
        dscores[j] = row.inner[j] * (dblock[group] - home);
        break;
      case RowKey::kControlledLandmark:
        dscores[j] = row.inner[j] * row.miss * (dblock[group] - dmiss);
        break;
    }
  }
  return row.miss * (dmiss - home);
}

template <typename T>
void ReferenceForward(const AttentionShape& shape, const ReferenceInput<T>& in, T* out, T* weights) {
  CheckShape(shape);
  Row<T> row;
  for (size_t b = 0; b < shape.batch; ++b) {
    for (size_t h = 0; h < shape.query_heads; ++h) {
      const T* v = in.v + (b * shape.kv_heads + h / shape.group()) * shape.keys() * shape.dim;
      for (size_t t = 0; t < shape.time; ++t) {
        row.Compute(shape, in, b, h, t);
        const size_t index = (b * shape.query_heads + h) * shape.time + t;
        T* o = out + index * shape.dim;
        std::fill(o, o + shape.dim, T{0});
        for (size_t j = 0; j < shape.keys(); ++j) {
          const T a = row.weights.final[j];
          if (weights != nullptr) weights[index * shape.keys() + j] = a;
          if (!ReadsValue(row.keys[j])) continue;
          for (size_t i = 0; i < shape.dim; ++i) o[i] += a * v[j * shape.dim + i];
        }
      }
    }
  }
}

template <typename T>
void ReferenceBackward(const AttentionShape& shape, const ReferenceInput<T>& in, const T* dout,
                       const ReferenceGradients<T>& gradients) {
  CheckShape(shape);
  const size_t dim = shape.dim;
  const T scale = static_cast<T>(shape.scale != 0 ? T{shape.scale} : 1 / std::sqrt(static_cast<T>(dim)));
  const size_t kv_size = shape.batch * shape.kv_heads * shape.keys() * dim;
  std::fill(gradients.dq, gradients.dq + shape.batch * shape.query_heads * shape.time * dim, T{0});
  std::fill(gradients.dk, gradients.dk + kv_size, T{0});
  std::fill(gradients.dv, gradients.dv + kv_size, T{0});
  if (in.miss) std::fill(gradients.dmiss, gradients.dmiss + shape.batch * shape.kv_heads * dim, T{0});
  Row<T> row;
  std::vector<T> dfinal(shape.keys());
  std::vector<T> dscores(shape.keys());
  for (size_t b = 0; b < shape.batch; ++b) {
    for (size_t h = 0; h < shape.query_heads; ++h) {
      const size_t kv = b * shape.kv_heads + h / shape.group();
      const size_t kv_offset = kv * shape.keys() * dim;
      for (size_t t = 0; t < shape.time; ++t) {
        row.Compute(shape, in, b, h, t);
        const size_t offset = ((b * shape.query_heads + h) * shape.time + t) * dim;
        const T* grad = dout + offset;
        for (size_t j = 0; j < shape.keys(); ++j) {
          if (!ReadsValue(row.keys[j])) continue;
          const size_t at = kv_offset + j * dim;
          dfinal[j] = Dot(grad, in.v + at, dim);
          for (size_t i = 0; i < dim; ++i) gradients.dv[at + i] += row.weights.final[j] * grad[i];
        }
        const T dmiss_score = GroupedSoftmaxBackward<T>(row.keys, row.weights, dfinal, dscores);
        for (size_t j = 0; j < shape.keys(); ++j) {
          if (row.keys[j].role == RowKey::kHidden) continue;
          const size_t at = kv_offset + j * dim;
          for (size_t i = 0; i < dim; ++i) {
            gradients.dq[offset + i] += scale * dscores[j] * in.k[at + i];
            gradients.dk[at + i] += scale * dscores[j] * in.q[offset + i];
          }
        }
        if (!in.miss) continue;
        for (size_t i = 0; i < dim; ++i) {
          gradients.dq[offset + i] += scale * dmiss_score * in.miss.key[kv * dim + i];
          gradients.dmiss[kv * dim + i] += scale * dmiss_score * in.q[offset + i];
        }
      }
    }
  }
}

#define CAIRN_INSTANTIATE(T)                                                                              \
  template void GroupedSoftmax<T>(std::span<const RowKey>, std::span<const T>, const T*, RowWeights<T>&); \
  template T GroupedSoftmaxBackward<T>(std::span<const RowKey>, const RowWeights<T>&, std::span<const T>, \
                                       std::span<T>);                                                     \
  template void ReferenceForward<T>(const AttentionShape&, const ReferenceInput<T>&, T*, T*);             \
  template void ReferenceBackward<T>(const AttentionShape&, const ReferenceInput<T>&, const T*,           \
                                     const ReferenceGradients<T>&)
CAIRN_INSTANTIATE(float);
CAIRN_INSTANTIATE(double);
#undef CAIRN_INSTANTIATE

}  // namespace cairn
