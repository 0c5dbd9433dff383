// The fused kernel against the naive reference, over random shapes, and what must hold exactly.
#include <gtest/gtest.h>

#include <limits>

#include "attention/fused.h"
#include "attention/reference.h"
#include "base/threads.h"
#include "tests/attention_cases.h"

namespace cairn {
namespace {

struct Results {
  std::vector<float> out, dq, dk, dv, dmiss;
};

// Runs the kernel with the heads laid out densely, or interleaved as a linear layer leaves them.
Results RunFused(const AttentionCase<float>& c, bool backward = true) {
  const AttentionShape& s = c.shape;
  Results r;
  r.out.resize(c.q.size());
  r.dq.resize(c.q.size(), NAN);
  r.dk.resize(c.k.size(), NAN);
  r.dv.resize(c.k.size(), NAN);
  r.dmiss.resize(c.miss_key.size(), NAN);
  std::vector<float> memory(SavedFloats(s, c.with_miss));
  const FusedSaved saved = LayOutSaved(s, c.with_miss, memory.data());
  const FusedInput in{DenseHeads(c.q.data(), s.query_heads, s.time, s.dim),
                      DenseHeads(c.k.data(), s.kv_heads, s.keys(), s.dim),
                      DenseHeads(c.v.data(), s.kv_heads, s.keys(), s.dim), c.miss()};
  const auto out = DenseHeads(r.out.data(), s.query_heads, s.time, s.dim);
  FusedForward(s, in, out, &saved);
  if (!backward) return r;
  FusedBackward(
      s, in, out, DenseHeads(c.dout.data(), s.query_heads, s.time, s.dim), saved,
      {DenseHeads(r.dq.data(), s.query_heads, s.time, s.dim), DenseHeads(r.dk.data(), s.kv_heads, s.keys(), s.dim),
       DenseHeads(r.dv.data(), s.kv_heads, s.keys(), s.dim), r.dmiss.data()});
  return r;
}

struct ExactResults {
  std::vector<double> out, dq, dk, dv, dmiss;
};

ExactResults RunReference(const AttentionCase<float>& c) {
  const auto q = c.AsDouble(c.q), k = c.AsDouble(c.k), v = c.AsDouble(c.v), dout = c.AsDouble(c.dout);
  const auto miss_key = c.AsDouble(c.miss_key);
  ExactResults r;
  r.out.resize(q.size());
  r.dq.resize(q.size());
  r.dk.resize(k.size());
  r.dv.resize(k.size());
  r.dmiss.resize(miss_key.size());
  ContextMiss<double> miss;
  if (c.with_miss) miss = {miss_key.data(), c.controlled.data()};
  const ReferenceInput<double> in{q.data(), k.data(), v.data(), miss};
  ReferenceForward(c.shape, in, r.out.data());
  ReferenceBackward(c.shape, in, dout.data(), {r.dq.data(), r.dk.data(), r.dv.data(), r.dmiss.data()});
  return r;
}

void ExpectAgreement(const AttentionCase<float>& c, double tolerance = 5e-6) {
  const Results fused = RunFused(c);
  const ExactResults exact = RunReference(c);
  EXPECT_LT(RelativeError(fused.out, exact.out), tolerance) << "out " << Describe(c.shape);
  EXPECT_LT(RelativeError(fused.dq, exact.dq), tolerance) << "dq " << Describe(c.shape);
  EXPECT_LT(RelativeError(fused.dk, exact.dk), tolerance) << "dk " << Describe(c.shape);
  EXPECT_LT(RelativeError(fused.dv, exact.dv), tolerance) << "dv " << Describe(c.shape);
  if (c.with_miss) {
    EXPECT_LT(RelativeError(fused.dmiss, exact.dmiss), tolerance) << "dmiss " << Describe(c.shape);
  }
}

AttentionShape RandomShape(Random& random) {
  constexpr size_t kLengths[] = {1, 2, 3, 5, 7, 15, 31, 50, 63, 64, 65, 127, 128, 129, 200, kNoLandmarks};
  constexpr size_t kDims[] = {1, 2, 3, 5, 8, 13, 16, 17, 24, 32, 33, 48, 64, 80, 100, 128, 256};
  AttentionShape s;
  s.batch = 1 + random.Below(2);
  s.kv_heads = 1 + random.Below(3);
  s.query_heads = s.kv_heads * (1 + random.Below(3));
  s.dim = kDims[random.Below(std::size(kDims))];
  s.block_length = kLengths[random.Below(std::size(kLengths))];
  s.time = 1 + random.Below(random.Below(4) == 0 ? 400 : 150);
  if (random.Below(3) == 0) s.prefix = random.Below(150);
  return s;
}

TEST(FusedAttention, AgreesWithReferenceOverRandomShapes) {
  Random random(1);
  for (int i = 0; i < 150; ++i) ExpectAgreement(AttentionCase<float>(RandomShape(random), false, 100 + i));
}

TEST(FusedAttention, AgreesWithReferenceWithContextMissToken) {
  Random random(2);
  for (int i = 0; i < 80; ++i) ExpectAgreement(AttentionCase<float>(RandomShape(random), true, 300 + i));
}

TEST(FusedAttention, AgreesAtEveryShortLength) {
  for (size_t time = 1; time <= 20; ++time) {
    for (const size_t length : {1, 2, 4, 50}) {
      AttentionShape s;
      s.time = time;
      s.dim = 6;
      s.block_length = length;
      ExpectAgreement(AttentionCase<float>(s, false, time));
      ExpectAgreement(AttentionCase<float>(s, true, time));
    }
  }
}

TEST(FusedAttention, LongBlocksTakeSeveralTiles) {
  for (const size_t length : {150, 300, 511}) {
    AttentionShape s;
    s.query_heads = 2;
    s.time = 1100;
    s.dim = 16;
    s.block_length = length;
    ExpectAgreement(AttentionCase<float>(s, false, length));
    ExpectAgreement(AttentionCase<float>(s, true, length));
  }
}

TEST(FusedAttention, DoesNotDependOnThreadCountOrLayout) {
  AttentionShape s;
  s.batch = 2;
  s.query_heads = 6;
  s.kv_heads = 3;
  s.time = 333;
  s.dim = 20;
  s.block_length = 30;
  const AttentionCase<float> c(s, false, 5);
  const Results two = RunFused(c);
  for (const int threads : {1, 3, 5}) {
    SetThreadCount(threads);
    const Results other = RunFused(c);
    EXPECT_EQ(two.out, other.out);
    EXPECT_LT(RelativeError(other.dk, two.dk), 1e-6);
    EXPECT_LT(RelativeError(other.dv, two.dv), 1e-6);
    EXPECT_EQ(two.dq, other.dq);
    SetThreadCount(0);
  }
  // The same numbers as [batch][time][head][dim].
  const auto interleave = [&](const std::vector<float>& from, size_t heads) {
    std::vector<float> to(from.size());
    for (size_t b = 0; b < s.batch; ++b) {
      for (size_t h = 0; h < heads; ++h) {
        for (size_t t = 0; t < s.time; ++t) {
          for (size_t i = 0; i < s.dim; ++i) {
            to[((b * s.time + t) * heads + h) * s.dim + i] = from[((b * heads + h) * s.time + t) * s.dim + i];
          }
        }
      }
    }
    return to;
  };
  const auto q = interleave(c.q, 6), k = interleave(c.k, 3), v = interleave(c.v, 3), dout = interleave(c.dout, 6);
  std::vector<float> out(q.size()), dq(q.size()), dk(k.size()), dv(k.size()), memory(SavedFloats(s, false));
  const FusedSaved saved = LayOutSaved(s, false, memory.data());
  const FusedInput in{InterleavedHeads(q.data(), 6, s.time, s.dim),
                      InterleavedHeads(k.data(), 3, s.time, s.dim),
                      InterleavedHeads(v.data(), 3, s.time, s.dim),
                      {}};
  const auto out_view = InterleavedHeads(out.data(), 6, s.time, s.dim);
  FusedForward(s, in, out_view, &saved);
  FusedBackward(s, in, out_view, InterleavedHeads(dout.data(), 6, s.time, s.dim), saved,
                {InterleavedHeads(dq.data(), 6, s.time, s.dim), InterleavedHeads(dk.data(), 3, s.time, s.dim),
                 InterleavedHeads(dv.data(), 3, s.time, s.dim)});
  EXPECT_EQ(out, interleave(two.out, 6));
  EXPECT_EQ(dq, interleave(two.dq, 6));
  EXPECT_EQ(dk, interleave(two.dk, 3));
  EXPECT_EQ(dv, interleave(two.dv, 3));
}

TEST(FusedAttention, NeverReadsALandmarksValue) {
  for (const size_t length : {1, 3, 7, 50, 130}) {
    AttentionShape s;
    s.query_heads = 2;
    s.kv_heads = 2;
    s.time = 300;
    s.dim = 24;
    s.block_length = length;
    AttentionCase<float> c(s, false, length);
    const Results before = RunFused(c);
    for (size_t h = 0; h < s.kv_heads; ++h) {
      for (size_t t = length; t < s.time; t += s.stride()) {
        for (size_t i = 0; i < s.dim; ++i) c.v[(h * s.time + t) * s.dim + i] = NAN;
      }
    }
    const Results after = RunFused(c);
    EXPECT_EQ(before.out, after.out) << length;
    EXPECT_EQ(before.dq, after.dq) << length;
    EXPECT_EQ(before.dk, after.dk) << length;
    EXPECT_EQ(before.dv, after.dv) << length;
    // And gets no gradient.
    for (size_t t = length; t < s.time; t += s.stride()) {
      for (size_t i = 0; i < s.dim; ++i) EXPECT_EQ(after.dv[t * s.dim + i], 0.0f);
    }
  }
}

TEST(FusedAttention, NeverLooksAhead) {
  AttentionShape s;
  s.time = 260;
  s.dim = 16;
  for (const size_t length : {size_t{7}, size_t{50}, size_t{100}, kNoLandmarks}) {
    s.block_length = length;
    AttentionCase<float> c(s, false, length);
    const Results before = RunFused(c, false);
    const size_t changed = 171;
    for (size_t i = changed * s.dim; i < c.k.size(); ++i) {
      c.k[i] = 1e15f;
      c.v[i] = -1e30f;
    }
    const Results after = RunFused(c, false);
    for (size_t i = 0; i < changed * s.dim; ++i) ASSERT_EQ(before.out[i], after.out[i]) << "row " << i / s.dim;
  }
}

TEST(FusedAttention, WeightsSumToOne) {
  AttentionShape s;
  s.time = 420;
  s.dim = 8;
  for (const size_t length : {size_t{1}, size_t{20}, size_t{50}, size_t{200}, kNoLandmarks}) {
    s.block_length = length;
    AttentionCase<float> c(s, false, length, 4.0);
    std::fill(c.v.begin(), c.v.end(), 1.0f);
    for (const float x : RunFused(c, false).out) EXPECT_NEAR(x, 1.0f, 2e-6f);
  }
}

TEST(FusedAttention, HugeAndTinyScoresStayFinite) {
  for (const double magnitude : {1e-30, 1e-6, 30.0, 1e4, 1e12, 1e25, 1e38}) {
    for (const size_t length : {size_t{1}, size_t{7}, size_t{50}, size_t{140}, kNoLandmarks}) {
      AttentionShape s;
      s.time = 150;
      s.dim = 16;
      s.block_length = length;
      AttentionCase<float> c(s, false, 9, magnitude);
      if (magnitude == 1e38) {  // products that overflow to infinity
        for (float& x : c.q) x = std::clamp(x, -3e38f, 3e38f);
        for (float& x : c.k) x = std::abs(x);
        for (size_t i = 0; i < c.q.size(); ++i) c.q[i] = (i / s.dim) % 2 == 0 ? std::abs(c.q[i]) : -std::abs(c.q[i]);
      }
      const Results r = RunFused(c);
      for (const float x : r.out) ASSERT_TRUE(std::isfinite(x)) << magnitude << " " << length;
      for (const float x : r.dv) ASSERT_TRUE(std::isfinite(x)) << magnitude << " " << length;
      if (magnitude <= 30.0) ExpectAgreement(c, 2e-5);
    }
  }
}

TEST(FusedAttention, PlainCausalAttentionIsOneBlock) {
  AttentionShape s;
  s.query_heads = 2;
  s.kv_heads = 1;
  s.time = 500;
  s.dim = 40;
  s.block_length = kNoLandmarks;
  ExpectAgreement(AttentionCase<float>(s, false, 1));
  s.block_length = s.time;  // the first landmark would stand just past the end
  ExpectAgreement(AttentionCase<float>(s, false, 1));
  s.block_length = s.time - 1;  // the last position is a landmark
  ExpectAgreement(AttentionCase<float>(s, false, 1));
}

}  // namespace
}  // namespace cairn
