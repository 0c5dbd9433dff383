#include "infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace cairn {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The index of the largest logit, the lowest of equals.
size_t CheckedBest(std::span<const float> logits) {
  size_t best = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i]) || logits[i] == -kNever) {
      Fail("the model's output is not finite (logit {} is {}); its weights are damaged or unfit for their number type",
           i, logits[i]);
    }
    if (logits[i] > logits[best]) best = i;
  }
  if (logits[best] == kNever) Fail("the model's output is not finite (every logit is -inf); its weights are damaged");
  return best;
}

}  // namespace

void ValidateSamplingOptions(const SamplingOptions& options) {
  // Written so that NaN fails.
  if (!(options.temperature >= 0 && std::isfinite(options.temperature))) {
    Fail("--temperature is {}; it must be 0 (take the most probable token) or a positive number", options.temperature);
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    Fail("--top-p is {}; it must be above 0 and at most 1 (keep all)", options.top_p);
  }
  if (!(options.min_p >= 0 && options.min_p <= 1)) {
    Fail("--min-p is {}; it must lie between 0 (keep all) and 1", options.min_p);
  }
  if (!(options.repetition_penalty > 0 && std::isfinite(options.repetition_penalty))) {
    Fail("--repetition-penalty is {}; it must be a positive number, and 1 means none", options.repetition_penalty);
  }
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  ValidateSamplingOptions(options);
}

int32_t Sampler::Next(std::span<const float> logits, std::span<const int32_t> recent) {
  CAIRN_CHECK(!logits.empty() && logits.size() <= size_t{std::numeric_limits<int32_t>::max()});
  logits = Penalize(logits, recent);
  const size_t best = CheckedBest(logits);
  if (options_.temperature == 0) return static_cast<int32_t>(best);
  Collect(logits, logits[best]);
  KeepTopK();
  Weigh(logits[best]);
  KeepTopP();
  KeepMinP();
  return Draw();
}

std::span<const float> Sampler::Penalize(std::span<const float> logits, std::span<const int32_t> recent) {
  const float penalty = options_.repetition_penalty;
  recent = recent.last(std::min(options_.repetition_window, recent.size()));
  if (penalty == 1 || recent.empty()) return logits;
  window_.assign(recent.begin(), recent.end());
  std::sort(window_.begin(), window_.end());
  window_.erase(std::unique(window_.begin(), window_.end()), window_.end());
  penalized_.assign(logits.begin(), logits.end());
  for (const int32_t id : window_) {
    CAIRN_CHECK(id >= 0 && static_cast<size_t>(id) < logits.size(), "recent token {}", id);
    float& logit = penalized_[static_cast<size_t>(id)];
    if (!std::isfinite(logit)) continue;
    const float changed = logit > 0 ? logit / penalty : logit * penalty;
    logit = std::clamp(changed, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
  }
  return penalized_;
}

void Sampler::Collect(std::span<const float> logits, float best) {
  // Below exp of this, all tokens of any vocabulary together weigh less than a double tells from 0. Most logits fall to
  // the comparison, and -infinity does at any temperature.
  constexpr double kNegligible = -60;
  const double reach = kNegligible * static_cast<double>(options_.temperature);
  // A small top-k is a heap whose front is the worst so far: nearly every logit falls to one comparison with it.
  constexpr size_t kHeap = 512;
  const size_t most = options_.top_k != 0 && options_.top_k <= kHeap ? options_.top_k : logits.size();
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool full = candidates_.size() == most;
    if (full && logits[i] <= candidates_.front().logit) continue;  // of equals the lower id stays
    if (!(static_cast<double>(logits[i]) - static_cast<double>(best) >= reach)) continue;
    if (full) {
      std::pop_heap(candidates_.begin(), candidates_.end(), Before);
      candidates_.pop_back();
    }
    candidates_.push_back({logits[i], static_cast<int32_t>(i), 0});
    if (most <= kHeap) std::push_heap(candidates_.begin(), candidates_.end(), Before);
  }
}

void Sampler::KeepTopK() {
  if (options_.top_k == 0 || options_.top_k >= candidates_.size()) return;
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(options_.top_k);
  std::nth_element(candidates_.begin(), end, candidates_.end(), Before);
  candidates_.erase(end, candidates_.end());
}

void Sampler::Weigh(float best) {
  for (Candidate& candidate : candidates_) {
    candidate.weight = std::exp((static_cast<double>(candidate.logit) - static_cast<double>(best)) /
                                static_cast<double>(options_.temperature));
  }
}

void Sampler::KeepTopP() {
  if (options_.top_p >= 1) return;
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  const double share = static_cast<double>(options_.top_p);
  // All tokens below this together have less than 1 - p, so none of them is needed.
  const double least = (1 - share) * total / static_cast<double>(candidates_.size());
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < least; });
  // Sorts no further than the share reaches.
  const auto begin = candidates_.begin();
  double sum = 0;
  for (size_t kept = 0, sorted = 0; kept < candidates_.size(); ++kept) {
    if (kept == sorted) {
      const size_t more = std::min(candidates_.size(), std::max<size_t>(64, sorted * 4));
      const auto from = begin + static_cast<std::ptrdiff_t>(sorted), to = begin + static_cast<std::ptrdiff_t>(more);
      if (to != candidates_.end()) std::nth_element(from, to, candidates_.end(), Before);
      std::sort(from, to, Before);
      sorted = more;
    }
    sum += candidates_[kept].weight;
    if (sum >= share * total) {
      candidates_.resize(kept + 1);
      return;
    }
  }
}

void Sampler::KeepMinP() {
  if (options_.min_p <= 0) return;
  const double least = static_cast<double>(options_.min_p);  // the best token has weight 1
  std::erase_if(candidates_, [&](const Candidate& candidate) { return candidate.weight < least; });
}

int32_t Sampler::Draw() {
  // By id, so that a filter that keeps everything does not change the draw.
  const auto by_id = [](const Candidate& a, const Candidate& b) { return a.id < b.id; };
  if (!std::is_sorted(candidates_.begin(), candidates_.end(), by_id)) {
    std::sort(candidates_.begin(), candidates_.end(), by_id);
  }
  double total = 0;
  for (const Candidate& candidate : candidates_) total += candidate.weight;
  double rest = random_.Uniform() * total;
  int32_t last = -1;
  for (const Candidate& candidate : candidates_) {
    if (candidate.weight <= 0) continue;
    last = candidate.id;
    rest -= candidate.weight;
    if (rest < 0) break;
  }
  CAIRN_CHECK(last >= 0);
  return last;
}

}  // namespace cairn
