#include "model/initial_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace cairn {

namespace {

// Rows of a weight matrix.
struct Matrix {
  std::span<float> values;
  size_t columns;
  float& At(size_t row, size_t column) { return values[row * columns + column]; }
};

// A stretch of the residual stream, or of a head's numbers.
struct Room {
  size_t begin, size;
};

// Puts a small machine that copies into random weights. The stream has a room for each thing that a token knows: a
// number that every token has, so that queries and keys can depend on the position alone; one that only landmarks have;
// the token; the three before it; the words of its block, once to ask by and once to be found by; and what is to be
// written next. With tied embeddings the last is the token's own room, and the token itself stands there too: such a
// model tends to write a token twice.
class CopyingWeights {
 public:
  CopyingWeights(const ModelConfig& config, Random& random, Parameters& parameters)
      : config_(config), width_(config.hidden_size), dim_(config.head_dim), random_(random), parameters_(parameters) {
    const std::vector<double> frequencies = RotaryFrequencies(config);
    for (size_t pair = 0; pair < frequencies.size(); ++pair) {
      // What turns by less than half a radian over the longest distance compares content, wherever it stands.
      if (frequencies[pair] * kLongest < 0.5) {
        slow_.push_back(Even(pair));
        slow_.push_back(Odd(pair));
      }
      if (frequencies[pair] > 0.2) fast_.emplace_back(pair, frequencies[pair]);
    }
    const size_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
    if (slow_.size() < 24 || fast_.size() < 2 || width_ < 64 || config.num_hidden_layers < 3 || kv_heads < 2 ||
        heads < 2 * kv_heads) {
      Fail(
          "\"initializer\": \"copying\" needs a width of 64, three layers, two KV heads with two query heads each, and "
          "heads with fast and slow rotary pairs; raise rope_theta (now {}) or head_dim (now {})",
          config.rope_theta, dim_);
    }
    size_t at = 2;
    const auto take = [&](double share) {
      const auto size = static_cast<size_t>(share * static_cast<double>(width_ - 2));
      return Room{std::exchange(at, at + size), size};
    };
    if (config.tie_word_embeddings) {
      token_ = next_ = take(0.34);
      before_ = {take(0.155), take(0.095), take(0.065)};
      asks_ = take(0.17);
      holds_ = take(0.17);
    } else {
      token_ = take(0.24);
      next_ = take(0.24);
      before_ = {take(0.115), take(0.09), take(0.065)};
      asks_ = take(0.12);
      holds_ = take(0.12);
    }
    // Of a head's slow numbers, so many compare each of the places before and the words. One is for landmarks as such.
    size_t first = 0;
    const auto compare = [&](const Room& room, double share) {
      const size_t count = std::min(room.size, static_cast<size_t>(share * static_cast<double>(slow_.size() - 1)));
      return Room{std::exchange(first, first + count), count};
    };
    if (config.tie_word_embeddings) {
      matches_ = {compare(before_[0], 0.3), compare(before_[1], 0.17), compare(before_[2], 0.09)};
      words_ = compare(holds_, 0.44);
    } else {
      matches_ = {compare(before_[0], 0.28), compare(before_[1], 0.18), compare(before_[2], 0.13)};
      words_ = compare(holds_, 0.41);
    }
  }

  void Write() {
    Matrix embedding{parameters_.Get("model.embed_tokens.weight"), width_};
    for (size_t id = 0; id < config_.vocab_size; ++id) {
      for (size_t j = 0; j < width_; ++j) embedding.At(id, j) = Noise(j >= 2 && !Inside(token_, j) ? 0.1 : 1.0);
      embedding.At(id, 0) = static_cast<float>(kConstant);
      embedding.At(id, 1) =
          static_cast<int32_t>(id) == config_.landmark.landmark_id ? static_cast<float>(kConstant) : 0;
    }
    if (!config_.tie_word_embeddings) {
      Matrix head{parameters_.Get("lm_head.weight"), width_};
      for (size_t id = 0; id < config_.vocab_size; ++id) {
        for (size_t j = 0; j < width_; ++j) head.At(id, j) *= kQuiet;
        for (size_t i = 0; i < next_.size; ++i) {
          head.At(id, next_.begin + i) += static_cast<float>(kWritten) * embedding.At(id, token_.begin + i);
        }
      }
    }
    for (size_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      for (float& x : parameters_.Get(fmt::format("model.layers.{}.mlp.down_proj.weight", layer))) x *= kQuiet;
      WriteLayer(layer);
    }
  }

 private:
  float Noise(double by) { return static_cast<float>(random_.Normal() * by * kToken); }
  static bool Inside(const Room& room, size_t j) { return j >= room.begin && j < room.begin + room.size; }
  bool interleaved() const { return config_.rotary_layout == RotaryLayout::kInterleaved; }
  size_t Even(size_t pair) const { return interleaved() ? 2 * pair : pair; }
  size_t Odd(size_t pair) const { return interleaved() ? 2 * pair + 1 : pair + dim_ / 2; }

  Matrix Get(size_t layer, const char* part, size_t columns) {
    return {parameters_.Get(fmt::format("model.layers.{}.self_attn.{}_proj.weight", layer, part)), columns};
  }

  void WriteLayer(size_t layer) {
    Matrix q = Get(layer, "q", width_), k = Get(layer, "k", width_), v = Get(layer, "v", width_);
    Matrix o = Get(layer, "o", config_.query_size());
    for (const Matrix& matrix : {q, k, v, o}) {
      for (float& x : matrix.values) x *= kQuiet;
    }
    const size_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads, group = heads / kv_heads;
    if (layer == 0) {
      for (size_t head = 0; head < kv_heads; ++head) {
        Look(k, head, 0);
        Take(v, head, 0, token_);
      }
      // The tokens one and two places back. Landmarks have the last two of the block before theirs: the block that goes
      // on after the same words can be chosen by them, where a block's end cuts what is read.
      for (size_t back = 1; back <= 2; ++back) {
        Look(q, back - 1, back);
        LookAtBlockBefore(q, k, back - 1, back, kTail);
        Bring(o, back - 1, 0, before_[back - 1], 1);
      }
      // Landmarks look at no place in particular and so hold a little of every word of their block; other tokens hold
      // themselves alone. By the next head all tokens have the words before them to ask by.
      Look(q, group, 0);
      LookAtBlockBefore(q, k, group, 0, kHeldBefore);
      Bring(o, group, before_[0].size, holds_, kHeld);
      Bring(o, group + 1, before_[0].size, asks_, kAsked);
    } else if (layer == 1) {
      // Two places back, what stood one place before: the third.
      Look(k, 0, 0);
      Take(v, 0, 0, before_[0]);
      Look(q, 0, 2);
      LookAtBlockBefore(q, k, 0, 2, kTail);
      Bring(o, 0, 0, before_[2], 1);
    } else {
      // What stands after the same three tokens, in a block that holds the same words.
      for (size_t head = 0; head < kv_heads; ++head) {
        Take(v, head, 0, token_);
        for (size_t back = 0; back < before_.size(); ++back)
          Read(k, head, matches_[back], before_[back], kMatches[back]);
        Read(k, head, words_, holds_, kHolds);
        k.At(head * dim_ + slow_.back(), 1) +=
            static_cast<float>(kFavour * std::sqrt(static_cast<double>(dim_)) / Seen(kConstant));
      }
      for (size_t head = 0; head < heads; ++head) {
        for (size_t back = 0; back < before_.size(); ++back) {
          Read(q, head, matches_[back], back == 0 ? token_ : before_[back - 1], kMatches[back]);
        }
        Read(q, head, words_, asks_, 1);
        q.At(head * dim_ + slow_.back(), 0) += static_cast<float>(1 / Seen(kConstant));
        Bring(o, head, 0, next_, kCopied);
      }
    }
  }

  // A vector that depends on the position alone and meets that of `back` = 0 best from so many places on. As queries
  // landmarks have none.
  void Look(Matrix& matrix, size_t head, size_t back) {
    const double length = std::sqrt(kSharp * std::sqrt(static_cast<double>(dim_))) / Seen(kConstant);
    const bool query = matrix.values.size() == config_.query_size() * width_;
    for (const auto& [pair, frequency] : fast_) {
      const double angle = static_cast<double>(back) * frequency;
      const std::pair<size_t, double> parts[] = {{Even(pair), std::cos(angle)}, {Odd(pair), -std::sin(angle)}};
      for (const auto& [number, part] : parts) {
        matrix.At(head * dim_ + number, 0) += static_cast<float>(length * part);
        if (query) matrix.At(head * dim_ + number, 1) -= static_cast<float>(length * part);
      }
    }
  }

  // Landmarks give that share of their attention to the block before theirs, where local layers see it: to its token
  // `back` places before its end, or to all of them alike where `back` is 0.
  void LookAtBlockBefore(Matrix& q, Matrix& k, size_t head, size_t back, double share) {
    const LandmarkConfig& landmark = config_.landmark;
    if (landmark.attention != AttentionKind::kLandmark || landmark.local_blocks == 0) return;
    const auto tokens = static_cast<double>(landmark.block_length);
    // The landmark of the block before is tokens + 1 places back, the block's last token one more.
    const double place = tokens + 1 + static_cast<double>(back);
    const auto score = [&](double distance) {
      double sum = 0;
      for (const auto& [pair, frequency] : fast_) sum += back == 0 ? 0 : std::cos(frequency * (place - distance));
      return kLandmarkSharp * sum;
    };
    double own = 0;
    for (double distance = 1; distance <= tokens; ++distance) own += std::exp(score(distance));
    const double favour = std::log(share / (1 - share) * own) - score(tokens + 1);
    const double root = std::sqrt(static_cast<double>(dim_)), seen = Seen(kConstant);
    if (back > 0) {
      // Beside keys of `kSharp`, which Look made.
      const double length = kLandmarkSharp * std::sqrt(root / kSharp) / seen;
      for (const auto& [pair, frequency] : fast_) {
        q.At(head * dim_ + Even(pair), 1) += static_cast<float>(length * std::cos(place * frequency));
        q.At(head * dim_ + Odd(pair), 1) -= static_cast<float>(length * std::sin(place * frequency));
      }
    }
    // One slow number of the keys tells landmarks from tokens, and only landmarks ask for it.
    const size_t kv_head = head / (config_.num_attention_heads / config_.num_key_value_heads);
    k.At(kv_head * dim_ + slow_.back(), 1) = static_cast<float>(std::sqrt(root) / seen);
    q.At(head * dim_ + slow_.back(), 1) += static_cast<float>(favour * std::sqrt(root) / seen);
  }

  // What the first layer's norm makes of a number of an embedding.
  double Seen(double number) const {
    const double square = static_cast<double>(token_.size) * kToken * kToken + kConstant * kConstant;
    return number / std::sqrt(square / static_cast<double>(width_));
  }

  // Values of a head, from `first` on, are a room of the stream.
  void Take(Matrix& v, size_t head, size_t first, Room room) const {
    for (size_t i = 0; i < room.size && first + i < dim_; ++i) v.At(head * dim_ + first + i, room.begin + i) += 1;
  }

  // Slow numbers of a query or key are a room of the stream.
  void Read(Matrix& matrix, size_t head, Room slow, Room room, double by) const {
    for (size_t i = 0; i < std::min(slow.size, room.size); ++i) {
      matrix.At(head * dim_ + slow_[slow.begin + i], room.begin + i) += static_cast<float>(by);
    }
  }

  // The head's values from `first` on go to a room of the stream, at `by` times the size of a token.
  void Bring(Matrix& o, size_t head, size_t first, Room room, double by) const {
    for (size_t i = 0; i < room.size && first + i < dim_; ++i) {
      o.At(room.begin + i, head * dim_ + first + i) += static_cast<float>(by * kToken / Seen(kToken));
    }
  }

  static constexpr double kLongest = 512;   // positions
  static constexpr double kToken = 0.1;     // deviation of the numbers of a token
  static constexpr double kConstant = 0.3;  // what every token has
  static constexpr double kSharp = 8;       // score of the place looked at, per fast pair
  static constexpr std::array<double, 3> kMatches = {1.8, 1.5, 1.3};
  static constexpr double kHolds = 3, kFavour = 2;
  static constexpr double kWritten = 1;  // the output's embedding, to the input's
  static constexpr double kCopied = 0.7, kHeld = 0.8, kAsked = 4;
  static constexpr double kLandmarkSharp = 3, kTail = 0.5, kHeldBefore = 0.2;
  static constexpr float kQuiet = 0.05f;  // what is left of random weights

  const ModelConfig& config_;
  const size_t width_, dim_;
  Random& random_;
  Parameters& parameters_;
  std::vector<size_t> slow_;                     // numbers of a head
  std::vector<std::pair<size_t, double>> fast_;  // pairs and their frequencies
  Room token_, next_, asks_, holds_;             // of the stream
  std::array<Room, 3> before_;
  std::array<Room, 3> matches_;  // of slow_
  Room words_;
};

}  // namespace

void InitialiseParameters(const ModelConfig& config, uint64_t seed, Parameters& parameters) {
  Random random(seed);
  const auto others = nlohmann::json::parse(config.other_keys);
  const double range = others.value("initializer_range", 0.02);
  if (!(range > 0 && range < 1)) Fail("initializer_range is {}; it must be above 0 and below 1", range);
  const double residual = range / std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  for (const ParameterSlot& slot : parameters.layout().slots()) {
    const std::span<float> values = parameters.Get(slot);
    if (slot.shape.size() == 1) {
      std::fill(values.begin(), values.end(), 1.0f);
      continue;
    }
    const bool writes_residual =
        slot.name.find("o_proj") != std::string::npos || slot.name.find("down_proj") != std::string::npos;
    const double deviation = writes_residual ? residual : range;
    for (float& x : values) x = static_cast<float>(random.Normal() * deviation);
  }
  const std::string kind = others.value("initializer", "random");
  if (kind == "copying") {
    CopyingWeights(config, random, parameters).Write();
  } else if (kind != "random") {
    Fail("initializer is \"{}\"; it must be \"random\" or \"copying\"", kind);
  }
}

}  // namespace cairn
