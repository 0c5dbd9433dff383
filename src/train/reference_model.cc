#include "train/reference_model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "attention/memory_reference.h"
#include "attention/reference.h"
#include "attention/retrieval.h"
#include "base/error.h"
#include "train/memory_op.h"

namespace cairn {

namespace {

using Vector = std::vector<double>;

// y[n] = weight[n][k] x[k], for every row of x.
Vector Linear(const double* weight, const Vector& x, size_t n, size_t k) {
  Vector y(x.size() / k * n, 0.0);
  for (size_t r = 0; r < x.size() / k; ++r) {
    for (size_t i = 0; i < n; ++i) {
      y[r * n + i] =
          std::inner_product(weight + i * k, weight + (i + 1) * k, x.begin() + static_cast<ptrdiff_t>(r * k), 0.0);
    }
  }
  return y;
}

Vector RmsNorm(const double* weight, const Vector& x, size_t n, double eps) {
  Vector y(x.size());
  for (size_t r = 0; r < x.size() / n; ++r) {
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += x[r * n + i] * x[r * n + i];
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(n) + eps);
    for (size_t i = 0; i < n; ++i) y[r * n + i] = x[r * n + i] * rstd * weight[i];
  }
  return y;
}

double Dot(const double* a, const double* b, size_t n) { return std::inner_product(a, a + n, b, 0.0); }

}  // namespace

// One layer's projections, before rotation: q [rows * time (+ 1)][query_size], k and v [..][key_size]. `cached` are
// keys and values that an earlier segment left.
struct ReferenceModel::Layer {
  const Vector& q;
  const Vector& k;
  const Vector& v;
  const Vector& cached_k;
  const Vector& cached_v;
  bool local;  // reads no memory
};

double ReferenceModel::Loss(std::span<const double> values, const EngineBatch& batch, const Cache* frozen,
                            Cache* keep) const {
  const size_t hidden = config_.hidden_size;
  const size_t inner = config_.intermediate_size;
  const size_t ordinary = batch.rows * batch.time;
  const bool miss = config_.landmark.context_miss.enabled;
  const double* w = values.data();
  Vector x((ordinary + miss) * hidden);
  for (size_t i = 0; i < ordinary + miss; ++i) {
    const auto id = static_cast<size_t>(i < ordinary ? batch.input_ids[i] : config_.landmark.context_miss.token_id);
    std::copy_n(w + layout_.embedding() + id * hidden, hidden, &x[i * hidden]);
  }
  for (size_t l = 0; l < config_.num_hidden_layers; ++l) {
    const ParameterLayout::Layer& at = layout_.layer(l);
    const size_t q_size = config_.query_size(), k_size = config_.key_size();
    const Vector h = RmsNorm(w + at.input_norm, x, hidden, config_.rms_norm_eps);
    const Vector q = Linear(w + at.qkv, h, q_size, hidden);
    const Vector k = Linear(w + at.qkv + q_size * hidden, h, k_size, hidden);
    const Vector v = Linear(w + at.qkv + (q_size + k_size) * hidden, h, k_size, hidden);
    if (keep != nullptr) {
      keep->keys.push_back(k);
      keep->values.push_back(v);
    }
    const Vector attended = Attend(
        {q, k, v, frozen ? frozen->keys[l] : k, frozen ? frozen->values[l] : v, l < config_.landmark.local_layers},
        batch);
    const Vector projected = Linear(w + at.o, attended, hidden, q_size);
    for (size_t i = 0; i < x.size(); ++i) x[i] += projected[i];
    const Vector h2 = RmsNorm(w + at.post_norm, x, hidden, config_.rms_norm_eps);
    const Vector gate = Linear(w + at.gate_up, h2, inner, hidden);
    const Vector up = Linear(w + at.gate_up + inner * hidden, h2, inner, hidden);
    Vector act(gate.size());
    for (size_t i = 0; i < act.size(); ++i) act[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    const Vector down = Linear(w + at.down, act, hidden, inner);
    for (size_t i = 0; i < x.size(); ++i) x[i] += down[i];
  }
  const Vector h = RmsNorm(w + layout_.final_norm(), x, hidden, config_.rms_norm_eps);
  const Vector logits = Linear(w + layout_.head(), h, config_.vocab_size, hidden);
  double loss = 0;
  for (size_t i = 0; i < ordinary; ++i) {
    if (batch.targets[i] < 0) continue;
    const double* row = &logits[i * config_.vocab_size];
    const double max = *std::max_element(row, row + config_.vocab_size);
    double sum = 0;
    for (size_t j = 0; j < config_.vocab_size; ++j) sum += std::exp(row[j] - max);
    loss += std::log(sum) + max - row[batch.targets[i]];
  }
  return loss;
}

std::vector<double> ReferenceModel::Attend(const Layer& layer, const EngineBatch& batch) const {
  const size_t dim = config_.head_dim, heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const LandmarkConfig& landmark = config_.landmark;
  const bool miss = landmark.context_miss.enabled;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  const size_t segment = landmark.xl_segment_length != 0 ? landmark.xl_segment_length : batch.time;
  const size_t cache = landmark.xl_cache_length != 0 ? std::min(landmark.xl_cache_length, segment) : segment;
  AttentionShape shape;
  shape.time = batch.time;
  shape.block_length = landmark.attention == AttentionKind::kLandmark ? landmark.block_length : kNoLandmarks;
  Vector out((batch.rows * batch.time + miss) * heads * dim, 0.0);
  const auto rotate = [&](const double* from, size_t index) {
    Vector to(dim);
    const double position = index == batch.rows * batch.time ? -1.0
                            : batch.positions != nullptr     ? batch.positions[index]
                                                             : static_cast<double>(index % batch.time);
    RotateReference(from, dim, position, config_.rope_theta, config_.rotary_layout, to.data());
    return to;
  };
  std::vector<RowKey> keys;
  RowWeights<double> weights;
  for (size_t r = 0; r < batch.rows; ++r) {
    for (size_t h = 0; h < heads; ++h) {
      const size_t kv = h / (heads / kv_heads);
      for (size_t t = 0; t < batch.time; ++t) {
        const size_t i = r * batch.time + t;
        double* o = &out[(i * heads + h) * dim];
        if (landmark.memory_training.enabled) {
          MemoryRow(layer, batch, r, h, t, o);
          continue;
        }
        const Vector q = rotate(&layer.q[(i * heads + h) * dim], i);
        const size_t segment_begin = landmark.attention == AttentionKind::kXl ? t / segment * segment : 0;
        const uint8_t* controlled = miss && batch.controlled ? batch.controlled + r * shape.blocks() : nullptr;
        CausalRowKeys(shape, t, controlled, keys);
        Vector scores(batch.time, 0.0);
        for (size_t j = 0; j <= t; ++j) {
          if (landmark.attention == AttentionKind::kXl && j + cache < segment_begin) keys[j] = {};
          const Vector& from = j < segment_begin ? layer.cached_k : layer.k;
          const size_t at = r * batch.time + j;
          if (keys[j].role != RowKey::kHidden)
            scores[j] = scale * Dot(q.data(), rotate(&from[(at * kv_heads + kv) * dim], at).data(), dim);
        }
        double miss_score = 0;
        const size_t miss_row = batch.rows * batch.time;
        if (miss)
          miss_score = scale * Dot(q.data(), rotate(&layer.k[(miss_row * kv_heads + kv) * dim], miss_row).data(), dim);
        GroupedSoftmax<double>(keys, scores, miss ? &miss_score : nullptr, weights);
        for (size_t j = 0; j <= t; ++j) {
          const Vector& from = j < segment_begin ? layer.cached_v : layer.v;
          for (size_t d = 0; d < dim; ++d)
            o[d] += weights.final[j] * from[((r * batch.time + j) * kv_heads + kv) * dim + d];
        }
      }
    }
  }
  return out;
}

// One query of one head in training with memory, by the rules of the method page: score, choose, map into slots,
// attend.
void ReferenceModel::MemoryRow(const Layer& layer, const EngineBatch& batch, size_t row, size_t head, size_t time,
                               double* out) const {
  const size_t dim = config_.head_dim, heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
  const size_t kv = head / (heads / kv_heads);
  const MemoryTrainingConfig& memory = config_.landmark.memory_training;
  const size_t length = config_.landmark.block_length, stride = length + 1;
  const size_t chunk_time = memory.chunk_length / length * stride;
  const size_t chunk = time / chunk_time, first = chunk * chunk_time;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  // The memory: first tokens of its blocks.
  std::vector<size_t> blocks;
  const size_t before = first / stride;
  const size_t seen = layer.local ? std::min(before, config_.landmark.local_blocks) : before;
  if (chunk > 0 && !layer.local) {
    for (const auto& [other, block] :
         DrawBatchDistractors(memory, batch.bank_key, row, chunk, batch.rows, batch.time / stride)) {
      blocks.push_back(other * batch.time + block * stride);
    }
  }
  for (size_t b = before - seen; b < before; ++b) blocks.push_back(row * batch.time + b * stride);
  const size_t count = blocks.size(), top_k = layer.local ? count : std::min(memory.k, count);
  const size_t start = count == 0 ? 0 : (top_k + 1) * stride;
  const auto rotate = [&](const double* from, double position) {
    Vector to(dim);
    RotateReference(from, dim, position, config_.rope_theta, config_.rotary_layout, to.data());
    return to;
  };
  const Vector q =
      rotate(&layer.q[((row * batch.time + time) * heads + head) * dim], static_cast<double>(start + time - first));
  const auto score_at = [&](size_t token, double position) {
    return scale * Dot(q.data(), rotate(&layer.k[(token * kv_heads + kv) * dim], position).data(), dim);
  };
  const auto score = [&](size_t token, size_t position) { return score_at(token, static_cast<double>(position)); };
  // Where layers read the memory, all its landmarks are under the context-miss token.
  const bool miss = config_.landmark.context_miss.enabled && !layer.local;
  const auto remembered = miss ? RowKey::kControlledLandmark : RowKey::kLandmark;
  const double miss_score = miss ? score_at(batch.rows * batch.time, -1) : 0;
  Vector landmark_scores(count);
  for (size_t m = 0; m < count; ++m) {
    const size_t slot = m + top_k >= count ? m + top_k - count + 1 : 0;
    landmark_scores[m] = score(blocks[m] + length, slot * stride + length);
  }
  std::vector<size_t> order(count), chosen;
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return landmark_scores[a] > landmark_scores[b]; });
  // Half of the choices are distractors where there are some; a single choice is free.
  const size_t foreign = count - seen;
  size_t left_foreign = top_k < 2 ? top_k : DistractorsChosen(top_k, foreign, count - foreign);
  size_t left_own = top_k < 2 ? top_k : top_k - left_foreign;
  for (const size_t m : order) {
    size_t& left = m < foreign ? left_foreign : left_own;
    if (left == 0 || chosen.size() == top_k) continue;
    --left;
    chosen.push_back(m);
  }
  std::sort(chosen.begin(), chosen.end());

  std::vector<RowKey> keys;
  Vector scores;
  std::vector<size_t> tokens;
  for (size_t i = 0; i < top_k; ++i) {
    const size_t slot = i + (chosen[i] + top_k >= count ? 1 : 0);
    for (size_t j = 0; j < stride; ++j) {
      keys.push_back({j == length ? remembered : RowKey::kToken, static_cast<uint32_t>(i)});
      tokens.push_back(blocks[chosen[i]] + j);
      scores.push_back(score(tokens.back(), slot * stride + j));
    }
  }
  const size_t own = (time - first) / stride;
  for (size_t j = 0; j <= time - first; ++j) {
    const bool is_landmark = j % stride == length;
    RowKey key{RowKey::kHome, 0};
    if (j / stride < own) {
      key = {is_landmark ? RowKey::kLandmark : RowKey::kToken, static_cast<uint32_t>(top_k + j / stride)};
    } else if (is_landmark) {
      key = {};
    }
    keys.push_back(key);
    tokens.push_back(row * batch.time + first + j);
    scores.push_back(key.role == RowKey::kHidden ? 0 : score(tokens.back(), start + j));
  }
  RowWeights<double> weights;
  GroupedSoftmax<double>(keys, scores, miss ? &miss_score : nullptr, weights);
  const bool closed = miss && weights.miss < config_.landmark.context_miss.cutoff;
  for (size_t j = closed ? top_k * stride : 0; j < keys.size(); ++j) {
    for (size_t d = 0; d < dim; ++d) out[d] += weights.final[j] * layer.v[(tokens[j] * kv_heads + kv) * dim + d];
  }
}

}  // namespace cairn
