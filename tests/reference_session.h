// A slow, obviously right session in f64: plain loops over the weights, MemoryReference for landmark attention, a
// causal loop over all kept keys for full attention. The oracle of infer/session.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attention/memory_reference.h"
#include "attention/reference.h"
#include "base/error.h"
#include "formats/model_source.h"
#include "infer/memory_attention.h"
#include "infer/session.h"

namespace cairn {

using Vector = std::vector<double>;

class ReferenceSession {
 public:
  // Tokens of a page of the KV cache with full attention: what eviction counts in.
  static constexpr size_t kPageTokens = 64;

  // `options` with every default resolved, as Session::options() gives them.
  ReferenceSession(const ModelSource& source, const SessionOptions& options)
      : weights_(std::make_shared<const Weights>(source)), options_(options) {
    Reset();
  }
  ReferenceSession(const ReferenceSession&) = default;  // the fork
  ReferenceSession& operator=(const ReferenceSession&) = default;

  const std::vector<int32_t>& tokens() const { return tokens_; }
  const Vector& Logits() const { return logits_; }                  // of the last token; empty: none
  const std::vector<Vector>& TokenLogits() const { return rows_; }  // of every token of the last call
  // How the choices compare since the last ClearComparison.
  const ChoiceComparison& comparison() const { return comparison_; }
  size_t wrong_layer() const { return wrong_layer_; }  // the last one with a wrong choice
  double worst_gate() const { return worst_gate_; }    // largest difference to a foreign gate
  size_t first_ties() const { return first_ties_; }    // ties of the first layer that were taken otherwise
  const std::vector<std::vector<BlockRead>>& reads(size_t layer) const { return layers_[layer].memory->reads(); }

  void ClearComparison() {
    comparison_ = {};
    first_ties_ = 0;
    worst_gate_ = 0;
  }

  // What the session read in each chunk of the same call, one ChunkReads a layer.
  using ForeignReads = std::vector<std::vector<ChunkReads>>;

  void Append(std::span<const int32_t> tokens, const ForeignReads* foreign = nullptr) {
    rows_.clear();
    size_t chunks = 0;
    for (size_t done = 0; done < tokens.size(); ++chunks) {
      // A chunk ends where one that began with the unfinished block would have ended.
      const size_t unfinished = Unfinished();
      const size_t room =
          options_.chunk_length > unfinished ? options_.chunk_length - unfinished : options_.chunk_length;
      const size_t count = std::min(tokens.size() - done, room);
      std::vector<int32_t> ids;
      size_t place = unfinished;
      const auto end_block = [&] {
        if (landmarks() && place == options_.block_length) {
          ids.push_back(landmark());
          place = 0;
        }
      };
      end_block();
      for (size_t i = 0; i < count; ++i) {
        ids.push_back(tokens[done + i]);
        ++place;
        end_block();
      }
      RunChunk(ids, foreign == nullptr ? nullptr : &foreign->at(chunks));
      done += count;
    }
  }

  void FeedPositions(std::span<const int32_t> ids, const ForeignReads* foreign = nullptr) {
    rows_.clear();
    if (!ids.empty()) RunChunk(ids, foreign == nullptr ? nullptr : &foreign->at(0));
  }

  bool CanTruncate(size_t tokens) const {
    if (tokens >= tokens_.size()) return tokens == tokens_.size();
    return landmarks() ? tokens / options_.block_length >= layers_[0].memory->first_block()
                       : tokens / kPageTokens >= layers_[0].first_page;
  }

  void Truncate(size_t tokens) {
    if (tokens == tokens_.size()) return;
    for (Layer& layer : layers_) {
      if (landmarks()) layer.memory->Truncate(tokens / options_.block_length, tokens % options_.block_length);
      layer.keys.resize(std::min(layer.keys.size(), tokens));
      layer.values.resize(std::min(layer.values.size(), tokens));
    }
    tokens_.resize(tokens);
    logits_.clear();
  }

  void Reset() {
    const ModelConfig& config = weights_->config;
    MemoryReferenceOptions memory;
    memory.query_heads = config.num_attention_heads;
    memory.kv_heads = config.num_key_value_heads;
    memory.dim = config.head_dim;
    memory.block_length = options_.block_length;
    memory.top_k = options_.top_k;
    memory.memory_blocks = options_.memory_blocks;
    memory.granularity = options_.granularity;
    memory.rotary = config.rotary_layout;
    memory.frequencies = RotaryFrequencies(config);
    memory.exact_positions = options_.exact_positions;
    memory.group_chooses_together = options_.group_chooses_together;
    memory.miss_cutoff = options_.miss_cutoff;
    layers_.assign(config.num_hidden_layers, {});
    for (Layer& layer : layers_) {
      if (landmarks()) layer.memory.emplace(memory);
    }
    tokens_.clear();
    logits_.clear();
  }

  void SetTopK(size_t k) {
    options_.top_k = k;
    for (Layer& layer : layers_) {
      if (layer.memory) layer.memory->set_top_k(k);
    }
  }

  size_t Unfinished() const { return landmarks() ? layers_[0].memory->unfinished() : tokens_.size() % kPageTokens; }

 private:
  struct Matrix {
    size_t rows, columns;
    Vector values;
    Vector operator*(const Vector& x) const {
      CAIRN_CHECK(x.size() == columns);
      Vector y(rows);
      for (size_t r = 0; r < rows; ++r) {
        for (size_t c = 0; c < columns; ++c) y[r] += values[r * columns + c] * x[c];
      }
      return y;
    }
  };
  struct LayerWeights {
    Vector input_norm, post_norm;
    Matrix q, k, v, o, gate, up, down;
    Vector miss_key;
  };

  struct Weights {
    ModelConfig config;
    std::vector<double> frequencies;
    Matrix embedding, head;
    Vector final_norm;
    std::vector<LayerWeights> layers;

    explicit Weights(const ModelSource& source) : config(source.config()), frequencies(RotaryFrequencies(config)) {
      const auto matrix = [&](const std::string& name) {
        const Tensor tensor = source.ReadFloats(name);
        return Matrix{tensor.shape()[0], tensor.shape()[1], Vector(tensor.span().begin(), tensor.span().end())};
      };
      const auto vector = [&](const std::string& name) {
        const Tensor tensor = source.ReadFloats(name);
        return Vector(tensor.span().begin(), tensor.span().end());
      };
      embedding = matrix("model.embed_tokens.weight");
      head = config.tie_word_embeddings ? embedding : matrix("lm_head.weight");
      final_norm = vector("model.norm.weight");
      for (size_t l = 0; l < config.num_hidden_layers; ++l) {
        const std::string at = "model.layers." + std::to_string(l) + ".";
        layers.push_back({vector(at + "input_layernorm.weight"),
                          vector(at + "post_attention_layernorm.weight"),
                          matrix(at + "self_attn.q_proj.weight"),
                          matrix(at + "self_attn.k_proj.weight"),
                          matrix(at + "self_attn.v_proj.weight"),
                          matrix(at + "self_attn.o_proj.weight"),
                          matrix(at + "mlp.gate_proj.weight"),
                          matrix(at + "mlp.up_proj.weight"),
                          matrix(at + "mlp.down_proj.weight"),
                          {}});
      }
      if (!config.landmark.context_miss.enabled) return;
      // The context-miss token sees nothing, not even itself: its attention gives 0.
      Vector x = Embed(static_cast<int32_t>(config.landmark.context_miss.token_id));
      for (LayerWeights& layer : layers) {
        layer.miss_key = layer.k * Norm(x, layer.input_norm);
        AddFeedForward(layer, x);
      }
    }

    Vector Embed(int32_t id) const {
      const double* row = &embedding.values[static_cast<size_t>(id) * embedding.columns];
      return {row, row + embedding.columns};
    }
    Vector Norm(const Vector& x, const Vector& weight) const {
      double squares = 0;
      for (const double value : x) squares += value * value;
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + config.rms_norm_eps);
      Vector y(x.size());
      for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * weight[i];
      return y;
    }
    void AddFeedForward(const LayerWeights& layer, Vector& x) const {
      const Vector normed = Norm(x, layer.post_norm);
      Vector act = layer.gate * normed;
      const Vector up = layer.up * normed;
      for (size_t i = 0; i < act.size(); ++i) act[i] = act[i] / (1.0 + std::exp(-act[i])) * up[i];
      Add(layer.down * act, x);
    }
    static void Add(const Vector& from, Vector& to) {
      for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
    }
  };

  // What a layer remembers.
  struct Layer {
    std::optional<MemoryReference<double>> memory;  // landmark attention
    std::vector<Vector> keys, values;               // full attention: of every token, [kv_head][dim], keys rotated
    size_t first_page = 0;                          // the oldest page that is still seen
  };

  bool landmarks() const { return options_.attention == AttentionKind::kLandmark; }
  int32_t landmark() const { return static_cast<int32_t>(weights_->config.landmark.landmark_id); }

  void RunChunk(std::span<const int32_t> ids, const std::vector<ChunkReads>* foreign) {
    const ModelConfig& config = weights_->config;
    std::vector<Vector> x;
    for (const int32_t id : ids) x.push_back(weights_->Embed(id));
    for (size_t l = 0; l < layers_.size(); ++l) {
      const LayerWeights& layer = weights_->layers[l];
      Vector q, k, v;  // [time][head][dim]
      for (const Vector& row : x) {
        const Vector normed = weights_->Norm(row, layer.input_norm);
        for (const auto& [matrix, to] : {std::pair{&layer.q, &q}, {&layer.k, &k}, {&layer.v, &v}}) {
          const Vector product = *matrix * normed;
          to->insert(to->end(), product.begin(), product.end());
        }
      }
      const Vector attended = landmarks() ? LandmarkAttention(l, ids.size(), q, k, v, foreign)
                                          : FullAttention(layers_[l], ids.size(), q, k, v);
      for (size_t t = 0; t < x.size(); ++t) {
        const auto begin = attended.begin() + static_cast<ptrdiff_t>(t * config.query_size());
        Weights::Add(layer.o * Vector(begin, begin + static_cast<ptrdiff_t>(config.query_size())), x[t]);
        weights_->AddFeedForward(layer, x[t]);
      }
    }
    for (size_t t = 0; t < x.size(); ++t) {
      if (landmarks() && ids[t] == landmark()) continue;
      tokens_.push_back(ids[t]);
      logits_ = weights_->head * weights_->Norm(x[t], weights_->final_norm);
      for (const int64_t id : {config.landmark.landmark_id, config.landmark.context_miss.token_id}) {
        if (id >= 0) logits_[static_cast<size_t>(id)] = -std::numeric_limits<double>::infinity();
      }
      rows_.push_back(logits_);
    }
  }

  Vector LandmarkAttention(size_t l, size_t time, const Vector& q, const Vector& k, const Vector& v,
                           const std::vector<ChunkReads>* foreign) {
    const LayerWeights& weights = weights_->layers[l];
    MemoryReference<double>& memory = *layers_[l].memory;
    Vector out(q.size());
    ForeignChoices follow;
    if (foreign != nullptr) {
      const ChunkReads& reads = foreign->at(l);
      follow.chosen = reads.chosen;
      follow.blocks = reads.blocks;
      follow.tolerance = 1e-5;
      follow.read.assign(time * weights_->config.num_attention_heads, 1);
      for (size_t cell = 0; cell < follow.read.size() && reads.chosen > 0; ++cell) {
        const float* gates = &reads.gates.at(cell * reads.chosen);
        follow.read[cell] = std::any_of(gates, gates + reads.chosen, [](float gate) { return gate > 0; });
      }
    }
    memory.Feed({time, q.data(), k.data(), v.data(), out.data(), std::nullopt,
                 weights.miss_key.empty() ? nullptr : weights.miss_key.data(), foreign == nullptr ? nullptr : &follow});
    comparison_ += memory.comparison();
    if (memory.comparison().wrong > 0) wrong_layer_ = l;
    if (l == 0) first_ties_ += memory.comparison().ties;
    for (size_t cell = 0; foreign != nullptr && cell < memory.reads().size(); ++cell) {
      const std::vector<BlockRead>& reads = memory.reads()[cell];
      for (size_t i = 0; i < reads.size(); ++i) {
        const double gate = static_cast<double>(foreign->at(l).gates.at(cell * reads.size() + i));
        worst_gate_ = std::max(worst_gate_, std::abs(gate - reads[i].gate));
      }
    }
    return out;
  }

  Vector FullAttention(Layer& layer, size_t time, const Vector& q, const Vector& k, const Vector& v) {
    const ModelConfig& config = weights_->config;
    const size_t dim = config.head_dim;
    const size_t group = config.num_attention_heads / config.num_key_value_heads;
    const size_t row = config.key_size();
    Vector out(q.size());
    for (size_t t = 0; t < time; ++t) {
      const double position = static_cast<double>(layer.keys.size());
      Vector key(row), query(config.query_size());
      for (size_t h = 0; h < config.num_key_value_heads; ++h) {
        RotateByFrequencies(&k[t * row + h * dim], position, &key[h * dim]);
      }
      for (size_t h = 0; h < config.num_attention_heads; ++h) {
        RotateByFrequencies(&q[t * query.size() + h * dim], position, &query[h * dim]);
      }
      layer.keys.push_back(key);
      layer.values.emplace_back(v.begin() + static_cast<ptrdiff_t>(t * row),
                                v.begin() + static_cast<ptrdiff_t>((t + 1) * row));
      for (size_t h = 0; h < config.num_attention_heads; ++h) {
        const size_t at = h / group * dim;
        Vector scores;
        const size_t first = layer.first_page * kPageTokens;
        for (size_t j = first; j < layer.keys.size(); ++j) {
          double dot = 0;
          for (size_t i = 0; i < dim; ++i) dot += query[h * dim + i] * layer.keys[j][at + i];
          scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
        }
        const double max = *std::max_element(scores.begin(), scores.end());
        double sum = 0;
        for (double& score : scores) sum += score = std::exp(score - max);
        for (size_t j = first; j < layer.keys.size(); ++j) {
          for (size_t i = 0; i < dim; ++i) {
            out[t * query.size() + h * dim + i] += scores[j - first] / sum * layer.values[j][at + i];
          }
        }
      }
    }
    // After the chunk the oldest finished pages beyond the limit go.
    const size_t pages = layer.keys.size() / kPageTokens;
    const size_t limit = (options_.memory_blocks + kPageTokens - 1) / kPageTokens;
    if (limit > 0 && pages > limit) layer.first_page = std::max(layer.first_page, pages - limit);
    return out;
  }

  void RotateByFrequencies(const double* from, double position, double* to) const {
    const std::vector<double>& frequencies = weights_->frequencies;
    const bool interleaved = weights_->config.rotary_layout == RotaryLayout::kInterleaved;
    const size_t half = frequencies.size();
    for (size_t pair = 0; pair < half; ++pair) {
      const size_t a = interleaved ? 2 * pair : pair;
      const size_t b = interleaved ? 2 * pair + 1 : pair + half;
      const double cosine = std::cos(position * frequencies[pair]), sine = std::sin(position * frequencies[pair]);
      to[a] = from[a] * cosine - from[b] * sine;
      to[b] = from[a] * sine + from[b] * cosine;
    }
  }
  std::shared_ptr<const Weights> weights_;
  SessionOptions options_;
  std::vector<Layer> layers_;
  std::vector<int32_t> tokens_;
  Vector logits_;
  std::vector<Vector> rows_;
  ChoiceComparison comparison_;
  size_t wrong_layer_ = 0;
  size_t first_ties_ = 0;
  double worst_gate_ = 0;
};

}  // namespace cairn
