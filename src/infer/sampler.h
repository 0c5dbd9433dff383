// The choice of the next token from the model's logits: greedy, or a draw from the filtered distribution.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/random.h"

namespace cairn {

// The filters work in the order of the fields. Each is off by default.
struct SamplingOptions {
  float repetition_penalty = 1;   // > 0; divides positive logits of recent tokens and multiplies negative ones
  size_t repetition_window = 64;  // how many of the last tokens are recent
  float temperature = 0;          // divides the logits; 0 takes the most probable token and ignores what follows
  size_t top_k = 0;               // keeps the k most probable tokens; 0 keeps all
  float top_p = 1;                // in (0, 1]: keeps the fewest most probable tokens that have this share together
  float min_p = 0;                // in [0, 1]: keeps tokens at least this part as probable as the best one
  uint64_t seed = 0;
};

// Throws Error, naming the flag, when a value is out of range.
void ValidateSamplingOptions(const SamplingOptions& options);

// The same seed and the same logits give the same tokens. Not thread-safe: one for each text.
class Sampler {
 public:
  explicit Sampler(const SamplingOptions& options);

  // The id of the next token. Tokens of equal logits stand in the order of their ids, the lowest first. A logit of
  // -infinity is never chosen. `recent` are the tokens so far, the latest last. Throws Error when a logit is NaN or
  // +infinity, or when all are -infinity.
  int32_t Next(std::span<const float> logits, std::span<const int32_t> recent);

  const SamplingOptions& options() const { return options_; }

 private:
  struct Candidate {
    float logit;
    int32_t id;
    double weight;  // probability relative to the best token
  };
  static bool Before(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }

  std::span<const float> Penalize(std::span<const float> logits, std::span<const int32_t> recent);
  // Fills candidates_ with everything that the temperature leaves a chance, and that a small top-k keeps.
  void Collect(std::span<const float> logits, float best);
  void KeepTopK();
  void Weigh(float best);
  void KeepTopP();
  void KeepMinP();
  int32_t Draw();

  SamplingOptions options_;
  Random random_;
  std::vector<float> penalized_;
  std::vector<int32_t> window_;
  std::vector<Candidate> candidates_;
};

}  // namespace cairn
