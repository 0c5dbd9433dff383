// The naive reference: closed forms, finite-difference gradient checks in f64, and properties of the grouped softmax.
#include "attention/reference.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/attention_cases.h"

namespace cairn {
namespace {

using Case = AttentionCase<double>;

ReferenceInput<double> InputOf(const Case& c) { return {c.q.data(), c.k.data(), c.v.data(), c.miss()}; }

std::vector<double> Forward(const Case& c) {
  std::vector<double> out(c.q.size());
  ReferenceForward(c.shape, InputOf(c), out.data());
  return out;
}

std::vector<double> Weights(const Case& c) {
  std::vector<double> out(c.q.size());
  std::vector<double> weights(c.shape.batch * c.shape.query_heads * c.shape.time * c.shape.keys());
  ReferenceForward(c.shape, InputOf(c), out.data(), weights.data());
  return weights;
}

TEST(ReferenceAttention, WorkedExample) {
  AttentionShape s;
  s.time = 9;
  s.dim = 4;
  s.block_length = 2;
  Case c(s, false, 1);
  std::fill(c.q.begin(), c.q.end(), 0.0);
  const std::vector<double> weights = Weights(c);
  const double expected[9] = {1.0 / 6, 1.0 / 6, 0, 1.0 / 6, 1.0 / 6, 0, 1.0 / 3, 0, 0};
  for (size_t j = 0; j < 9; ++j) EXPECT_NEAR(weights[6 * 9 + j], expected[j], 1e-15) << j;
}

TEST(ReferenceAttention, BlockAsOneKeyWithClosedForm) {
  // L = 1: every earlier block holds one token, whose weight is its gate: softmax over landmarks and the own token.
  AttentionShape s;
  s.time = 7;
  s.dim = 3;
  s.block_length = 1;
  const Case c(s, false, 4);
  const std::vector<double> weights = Weights(c);
  const auto score = [&](size_t i, size_t j) {
    return std::inner_product(&c.q[i * 3], &c.q[i * 3] + 3, &c.k[j * 3], 0.0) / std::sqrt(3.0);
  };
  // Query 6 is the token of block 3 (keys 6, 7): home group {6, landmarks 1, 3, 5}.
  const double sum = std::exp(score(6, 6)) + std::exp(score(6, 1)) + std::exp(score(6, 3)) + std::exp(score(6, 5));
  EXPECT_NEAR(weights[6 * 7 + 6], std::exp(score(6, 6)) / sum, 1e-14);
  for (size_t b = 0; b < 3; ++b) {
    EXPECT_NEAR(weights[6 * 7 + 2 * b], std::exp(score(6, 2 * b + 1)) / sum, 1e-14);
    EXPECT_EQ(weights[6 * 7 + 2 * b + 1], 0.0);
  }
}

TEST(ReferenceAttention, ContextMissTokenClosedForm) {
  // Two finished blocks of one token, the first under control; query 4 sees keys 0 | 1* and 2 | 3*, and itself.
  AttentionShape s;
  s.time = 5;
  s.dim = 2;
  s.block_length = 1;
  Case c(s, true, 7);
  c.controlled = {1, 0, 0};
  const std::vector<double> weights = Weights(c);
  const auto score = [&](const double* key) { return (c.q[8] * key[0] + c.q[9] * key[1]) / std::sqrt(2.0); };
  const double own = std::exp(score(&c.k[8]));
  const double free_landmark = std::exp(score(&c.k[6]));
  const double miss = std::exp(score(c.miss_key.data()));
  const double sum = own + free_landmark + miss;
  EXPECT_NEAR(weights[4 * 5 + 4], own / sum, 1e-14);
  EXPECT_NEAR(weights[4 * 5 + 2], free_landmark / sum, 1e-14);
  EXPECT_NEAR(weights[4 * 5 + 0], miss / sum, 1e-14);  // the only controlled landmark: its gate is 1
}

// Central differences of sum(dout * out) against the analytic gradient.
void CheckGradients(Case& c) {
  std::vector<double> dq(c.q.size()), dk(c.k.size()), dv(c.v.size()), dmiss(c.miss_key.size());
  ReferenceBackward(c.shape, InputOf(c), c.dout.data(), {dq.data(), dk.data(), dv.data(), dmiss.data()});
  const auto loss = [&] {
    const std::vector<double> out = Forward(c);
    return std::inner_product(out.begin(), out.end(), c.dout.begin(), 0.0);
  };
  Random random(3);
  const auto check = [&](std::vector<double>& values, const std::vector<double>& gradient, const char* name) {
    // A dozen random entries of each tensor.
    for (int trial = 0; trial < 12 && !values.empty(); ++trial) {
      const size_t i = random.Below(values.size());
      const double step = 1e-5;
      const double original = values[i];
      values[i] = original + step;
      const double up = loss();
      values[i] = original - step;
      const double down = loss();
      values[i] = original;
      EXPECT_NEAR((up - down) / (2 * step), gradient[i], 1e-7 * (1 + std::abs(gradient[i])))
          << name << "[" << i << "] " << Describe(c.shape);
    }
  };
  check(c.q, dq, "dq");
  check(c.k, dk, "dk");
  check(c.v, dv, "dv");
  check(c.miss_key, dmiss, "dmiss");
}

TEST(ReferenceAttention, FiniteDifferences) {
  Random random(11);
  for (const size_t length : {size_t{1}, size_t{2}, size_t{7}, size_t{50}, size_t{63}, kNoLandmarks}) {
    for (int i = 0; i < 3; ++i) {
      AttentionShape s;
      s.batch = 1 + random.Below(2);
      s.kv_heads = 1 + random.Below(2);
      s.query_heads = s.kv_heads * (1 + random.Below(3));
      s.dim = 1 + random.Below(6);
      s.block_length = length;
      const size_t span = length == kNoLandmarks ? 20 : std::min<size_t>(2 * length + 8, 150);
      s.time = 1 + random.Below(span);
      s.prefix = random.Below(3) == 0 ? random.Below(9) : 0;
      for (const bool miss : {false, true}) {
        Case c(s, miss, 50 + static_cast<uint64_t>(i));
        CheckGradients(c);
      }
    }
  }
}

TEST(ReferenceAttention, WeightsOfARowSumToOne) {
  for (const size_t length : {1, 2, 7, 50, 63}) {
    AttentionShape s;
    s.query_heads = 2;
    s.time = 130;
    s.dim = 4;
    s.block_length = length;
    const std::vector<double> weights = Weights(Case(s, false, length, 3.0));
    for (size_t row = 0; row < 2 * s.time; ++row) {
      const double sum = std::accumulate(&weights[row * s.time], &weights[row * s.time] + s.time, 0.0);
      EXPECT_NEAR(sum, 1.0, 1e-12);
      for (size_t j = length; j < s.time; j += s.stride()) EXPECT_EQ(weights[row * s.time + j], 0.0);
    }
  }
}

TEST(ReferenceAttention, LandmarkValueIsNeverRead) {
  AttentionShape s;
  s.time = 40;
  s.dim = 3;
  s.block_length = 6;
  Case c(s, false, 2);
  const std::vector<double> before = Forward(c);
  for (size_t t = 6; t < s.time; t += 7) c.v[t * 3] = NAN;
  EXPECT_EQ(before, Forward(c));
}

TEST(ReferenceAttention, OrderInsideAnEarlierBlockDoesNotMatter) {
  AttentionShape s;
  s.time = 30;
  s.dim = 4;
  s.block_length = 5;
  Case c(s, false, 3);
  const std::vector<double> before = Forward(c);
  // Swap tokens 6 and 9 of block 1 (keys 6 .. 10) with their values; rows after the block see no difference.
  for (size_t i = 0; i < s.dim; ++i) {
    std::swap(c.k[6 * s.dim + i], c.k[9 * s.dim + i]);
    std::swap(c.v[6 * s.dim + i], c.v[9 * s.dim + i]);
  }
  const std::vector<double> after = Forward(c);
  for (size_t i = 12 * s.dim; i < after.size(); ++i) EXPECT_NEAR(after[i], before[i], 1e-13);
  EXPECT_NE(before[7 * s.dim], after[7 * s.dim]);  // inside the block it does
}

TEST(ReferenceAttention, HiddenRowGivesZeros) {
  const std::vector<RowKey> keys(3);
  const std::vector<double> scores(3, 1.0);
  RowWeights<double> row;
  GroupedSoftmax<double>(keys, scores, nullptr, row);
  for (const double w : row.final) EXPECT_EQ(w, 0.0);
}

TEST(ReferenceAttention, PrefixIsTheTailOfALongerSequence) {
  AttentionShape whole;
  whole.time = 33;
  whole.dim = 4;
  whole.block_length = 7;
  Case c(whole, false, 8);
  const std::vector<double> all = Forward(c);
  AttentionShape tail = whole;
  tail.prefix = 20;
  tail.time = 13;
  c.shape = tail;
  c.q.erase(c.q.begin(), c.q.begin() + 20 * 4);
  const std::vector<double> last = Forward(c);
  EXPECT_EQ(last, std::vector<double>(all.begin() + 20 * 4, all.end()));
}

}  // namespace
}  // namespace cairn
