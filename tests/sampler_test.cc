// The sampler: each filter against its closed form, greedy ties, masked and broken logits.
#include "infer/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "base/error.h"

namespace cairn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> LogitsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

std::vector<double> Frequencies(const SamplingOptions& options, const std::vector<float>& logits, size_t draws,
                                const std::vector<int32_t>& recent = {}) {
  Sampler sampler(options);
  std::vector<double> counts(logits.size());
  for (size_t i = 0; i < draws; ++i) counts[static_cast<size_t>(sampler.Next(logits, recent))] += 1;
  for (double& count : counts) count /= static_cast<double>(draws);
  return counts;
}

// Five standard deviations of the count; zero must be exactly zero.
void ExpectDistribution(const SamplingOptions& options, const std::vector<float>& logits,
                        const std::vector<double>& expected, const std::vector<int32_t>& recent = {}) {
  constexpr size_t kDraws = 40000;
  const auto measured = Frequencies(options, logits, kDraws, recent);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double deviation = std::sqrt(expected[i] * (1 - expected[i]) / kDraws);
    EXPECT_LE(std::abs(measured[i] - expected[i]), 5 * deviation) << "token " << i << ": " << measured[i];
  }
}

std::string ErrorOf(const SamplingOptions& options) {
  try {
    Sampler sampler(options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Sampler, GreedyTakesTheLowestIdOfEquals) {
  Sampler sampler({});
  EXPECT_EQ(sampler.Next(std::vector<float>{1, 3, 2, 3}, {}), 1);
  EXPECT_EQ(sampler.Next(std::vector<float>{-kInfinity, -5, -kInfinity, -5}, {}), 1);
}

TEST(Sampler, TemperatureFollowsTheSoftmax) {
  const std::vector<float> logits = {0.0f, 1.0f, -0.5f, 2.0f};
  for (const float temperature : {0.5f, 1.0f, 3.0f}) {
    std::vector<double> expected;
    double total = 0;
    for (const float logit : logits) total += expected.emplace_back(std::exp(logit / temperature));
    for (double& p : expected) p /= total;
    ExpectDistribution({.temperature = temperature, .seed = 5}, logits, expected);
  }
}

TEST(Sampler, ExtremeTemperatures) {
  ExpectDistribution({.temperature = 1e-6f}, {1.0f, 1.001f, -kInfinity}, {0, 1, 0});
  ExpectDistribution({.temperature = 1e38f}, {-100.0f, 100.0f, -kInfinity}, {0.5, 0.5, 0});
  ExpectDistribution({.temperature = 1}, {-3e38f, 3e38f}, {0, 1});
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  ExpectDistribution({.temperature = 1}, {0, -kInfinity, 0, -kInfinity}, {0.5, 0, 0.5, 0});
  ExpectDistribution({.temperature = 1, .top_k = 3}, {0, -kInfinity, 0, -kInfinity}, {0.5, 0, 0.5, 0});
}

TEST(Sampler, TopKKeepsTheBestAndTheLowestIdsOfEquals) {
  ExpectDistribution({.temperature = 1, .top_k = 2}, LogitsOf({0.1, 0.4, 0.3, 0.2}), {0, 4.0 / 7, 3.0 / 7, 0});
  ExpectDistribution({.temperature = 1, .top_k = 2}, {1, 1, 1, 1}, {0.5, 0.5, 0, 0});
  ExpectDistribution({.temperature = 1, .top_k = 9}, LogitsOf({0.5, 0.5}), {0.5, 0.5});
}

TEST(Sampler, TopPKeepsTheFewestThatReachTheShare) {
  const auto logits = LogitsOf({0.1, 0.4, 0.3, 0.2});
  ExpectDistribution({.temperature = 1, .top_p = 0.65f}, logits, {0, 4.0 / 7, 3.0 / 7, 0});
  ExpectDistribution({.temperature = 1, .top_p = 0.75f}, logits, {0, 4.0 / 9, 3.0 / 9, 2.0 / 9});
  ExpectDistribution({.temperature = 1, .top_p = 0.01f}, logits, {0, 1, 0, 0});
  ExpectDistribution({.temperature = 1, .top_p = 0.4f}, {1, 1, 1, 1}, {0.5, 0.5, 0, 0});
}

TEST(Sampler, TopPCountsSharesAfterTopK) {
  // Of the three best, 0.4 alone has 0.444: with all four, 0.43 would need two.
  ExpectDistribution({.temperature = 1, .top_k = 3, .top_p = 0.43f}, LogitsOf({0.1, 0.4, 0.3, 0.2}), {0, 1, 0, 0});
}

TEST(Sampler, TopPOnAFlatVocabularyKeepsTheLowestIds) {
  const std::vector<float> logits(1000, 0.25f);
  std::set<int32_t> seen;
  Sampler sampler({.temperature = 1, .top_p = 0.5f});
  for (int i = 0; i < 20000; ++i) seen.insert(sampler.Next(logits, {}));
  EXPECT_EQ(seen.size(), 500u);
  EXPECT_EQ(*seen.rbegin(), 499);
}

TEST(Sampler, MinPIsRelativeToTheBest) {
  const auto logits = LogitsOf({0.1, 0.5, 0.3, 0.1});
  ExpectDistribution({.temperature = 1, .min_p = 0.5f}, logits, {0, 5.0 / 8, 3.0 / 8, 0});
  ExpectDistribution({.temperature = 1, .min_p = 1}, logits, {0, 1, 0, 0});
  // A temperature of 2 makes 0.3 / 0.5 its root, 0.77, and 0.1 / 0.5 0.45.
  const double a = std::sqrt(0.5), b = std::sqrt(0.3);
  ExpectDistribution({.temperature = 2, .min_p = 0.5f}, logits, {0, a / (a + b), b / (a + b), 0});
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegative) {
  Sampler sampler({.repetition_penalty = 2});
  const std::vector<float> positive = {3, 2, 1};
  EXPECT_EQ(sampler.Next(positive, std::vector<int32_t>{0, 0, 0}), 1);  // 1.5, once only
  EXPECT_EQ(sampler.Next(positive, std::vector<int32_t>{0, 1}), 0);     // 1.5, 1, 1
  const std::vector<float> negative = {-1, -1.5f, -3, -kInfinity};
  EXPECT_EQ(sampler.Next(negative, std::vector<int32_t>{0, 3}), 1);
  // exp(0) and exp(-1 * 2)
  const double p = 1 / (1 + std::exp(-2.0));
  ExpectDistribution({.repetition_penalty = 2, .temperature = 1}, {0, -1}, {p, 1 - p}, {1});
}

TEST(Sampler, RepetitionWindowForgets) {
  const std::vector<float> logits = {3, 2};
  const auto next = [&](size_t window, std::vector<int32_t> recent) {
    return Sampler({.repetition_penalty = 2, .repetition_window = window}).Next(logits, recent);
  };
  EXPECT_EQ(next(1, {1, 0}), 1);  // 1.5, 2
  EXPECT_EQ(next(1, {0, 1}), 0);  // 3, 1
  EXPECT_EQ(next(2, {0, 1}), 0);  // 1.5, 1
  EXPECT_EQ(next(2, {1, 0, 0}), 1);
  EXPECT_EQ(next(3, {1, 0, 0}), 0);
  EXPECT_EQ(next(0, {0}), 0);
}

TEST(Sampler, TheSeedDecides) {
  Random random(1);
  std::vector<float> logits(5000);
  for (float& logit : logits) logit = static_cast<float>(random.Normal() * 3);
  const auto draw = [&](SamplingOptions options) {
    Sampler sampler(options);
    std::vector<int32_t> ids;
    for (int i = 0; i < 50; ++i) ids.push_back(sampler.Next(logits, ids));
    return ids;
  };
  const SamplingOptions plain{.temperature = 1, .seed = 7};
  EXPECT_EQ(draw(plain), draw(plain));
  SamplingOptions other = plain;
  other.seed = 8;
  EXPECT_NE(draw(plain), draw(other));
  // Filters that keep everything change nothing.
  SamplingOptions wide = plain;
  wide.top_k = 5000;
  EXPECT_EQ(draw(plain), draw(wide));
}

// Every combination of filters keeps exactly the tokens that a plain, fully sorted computation keeps.
TEST(Sampler, FiltersEqualThePlainComputation) {
  Random random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<float> logits(1 + random.Below(400));
    // Coarse values, so that ties are common.
    for (float& logit : logits) logit = static_cast<float>(std::round(random.Normal() * 4)) / 2;
    const SamplingOptions options{
        .temperature = 0.5f + static_cast<float>(random.Uniform()),
        .top_k = random.Below(2) == 0 ? 0 : 1 + random.Below(logits.size()),
        .top_p = random.Below(2) == 0 ? 1 : 0.05f + 0.9f * static_cast<float>(random.Uniform()),
        .min_p = random.Below(2) == 0 ? 0 : 0.3f * static_cast<float>(random.Uniform())};
    std::vector<std::pair<double, int32_t>> order;
    for (size_t i = 0; i < logits.size(); ++i) order.emplace_back(-logits[i], static_cast<int32_t>(i));
    std::sort(order.begin(), order.end());
    if (options.top_k != 0) order.resize(std::min(order.size(), options.top_k));
    const double best = order[0].first;
    double total = 0;
    for (auto& [value, id] : order)
      total += value = std::exp((best - value) / static_cast<double>(options.temperature));
    size_t kept = order.size();
    double sum = 0;
    for (size_t i = 0; i < order.size() && options.top_p < 1; ++i) {
      sum += order[i].first;
      // Where the sum hits the share to within rounding, either cut is right; such rounds say nothing.
      if (std::abs(sum / total - static_cast<double>(options.top_p)) < 1e-9) kept = 0;
      if (kept == 0 || sum >= static_cast<double>(options.top_p) * total) {
        kept = kept == 0 ? 0 : i + 1;
        break;
      }
    }
    if (kept == 0) continue;
    std::set<int32_t> expected;
    double least_share = 1, kept_total = 0;
    for (size_t i = 0; i < kept; ++i) {
      if (order[i].first < static_cast<double>(options.min_p)) continue;
      expected.insert(order[i].second);
      least_share = std::min(least_share, order[i].first);
      kept_total += order[i].first;
    }
    std::set<int32_t> seen;
    Sampler sampler(options);
    const double draws = std::min(20000.0, 20 * kept_total / least_share);
    for (double i = 0; i < draws; ++i) seen.insert(sampler.Next(logits, {}));
    for (const int32_t id : seen) EXPECT_TRUE(expected.count(id)) << id;
    if (draws < 20000) {
      EXPECT_EQ(seen, expected);
    }
  }
}

TEST(Sampler, BrokenLogitsAreTheModelsFault) {
  for (const float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.repetition_penalty = 2, .temperature = temperature});
    const std::vector<int32_t> recent = {1};
    for (const std::vector<float>& logits :
         {std::vector<float>{0, std::nanf(""), 1}, {kInfinity, 0}, {-kInfinity, -kInfinity}}) {
      try {
        sampler.Next(logits, recent);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("output is not finite"), std::string::npos) << error.what();
      }
    }
  }
}

TEST(Sampler, OptionsOutOfRangeNameTheirFlag) {
  const float nan = std::nanf("");
  for (const float value : {-0.1f, kInfinity, nan})
    EXPECT_EQ(ErrorOf({.temperature = value}).find("--temperature"), 0u) << value;
  for (const float value : {0.0f, 1.1f, nan}) EXPECT_EQ(ErrorOf({.top_p = value}).find("--top-p"), 0u) << value;
  for (const float value : {-0.1f, 1.1f, nan}) EXPECT_EQ(ErrorOf({.min_p = value}).find("--min-p"), 0u) << value;
  for (const float value : {0.0f, -1.0f, kInfinity, nan})
    EXPECT_EQ(ErrorOf({.repetition_penalty = value}).find("--repetition-penalty"), 0u) << value;
  EXPECT_EQ(ErrorOf({}), "");
}

TEST(Sampler, LargeTopKKeepsAsManyAsAsked) {
  std::vector<float> logits(1100);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>((i * 7919) % 1100) * 1e-6f;
  for (const size_t k : {1u, 500u, 512u, 513u, 900u}) {
    Sampler sampler({.temperature = 1, .top_k = k});
    std::set<int32_t> seen;
    for (size_t i = 0; i < 20 * k; ++i) seen.insert(sampler.Next(logits, {}));
    EXPECT_EQ(seen.size(), k);
    for (const int32_t id : seen) EXPECT_GE(logits[static_cast<size_t>(id)], static_cast<float>(1100 - k) * 1e-6f);
  }
}

TEST(Sampler, ALargeVocabulary) {
  std::vector<float> logits(128256);
  Random random(9);
  for (float& logit : logits) logit = static_cast<float>(random.Normal());
  logits[100000] = 30;
  Sampler sampler({.temperature = 1, .top_k = 40, .top_p = 0.95f});
  for (int i = 0; i < 20; ++i) EXPECT_EQ(sampler.Next(logits, {}), 100000);
}

}  // namespace
}  // namespace cairn
