// The passes of elementwise.h, 2^x and matrix products against their naive twins, over odd shapes and extreme values.
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tests/kernels_isa_test.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {

void PowersOfTwo(const float* x, size_t count, float* y) {
  const hn::ScalableTag<float> d;
  const hn::FixedTag<float, 1> one;
  size_t i = 0;
  for (; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) hn::StoreU(Exp2(d, hn::LoadU(d, x + i)), d, y + i);
  for (; i < count; ++i) hn::StoreU(Exp2(one, hn::LoadU(one, x + i)), one, y + i);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "base/threads.h"
#include "kernels/elementwise_reference.h"
#include "kernels/gemm.h"

namespace cairn {
namespace {

HWY_EXPORT(PowersOfTwo);

using Floats = std::vector<float>;

Floats RandomFloats(Random& random, size_t count, double scale = 1) {
  Floats values(count);
  for (float& value : values) value = static_cast<float>(random.Normal() * scale);
  return values;
}

Doubles Wide(const Floats& values) { return {values.begin(), values.end()}; }

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// |actual - expected| <= tolerance * (|expected| + floor).
void ExpectClose(const Floats& actual, const Doubles& expected, double tolerance, double floor = 1) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], tolerance * (std::abs(expected[i]) + floor)) << "at " << i;
  }
}

// One row, one column, whole vectors of every width, one more and one less, and more rows than a chunk has.
const RowShape kShapes[] = {{1, 1},  {1, 2},   {3, 1},   {1, 3},   {2, 4},   {5, 7},    {4, 8},   {1, 9},
                            {3, 15}, {2, 16},  {7, 17},  {16, 31}, {17, 32}, {33, 33},  {2, 63},  {50, 64},
                            {1, 65}, {9, 127}, {3, 128}, {40, 1},  {600, 5}, {1, 1000}, {19, 257}};

class Kernels : public ::testing::Test {
 protected:
  ~Kernels() override { SetThreadCount(0); }
  // The same floats, bit by bit, again and for other numbers of threads.
  template <class Body>
  static void ExpectRepeatable(const Body& body) {
    SetThreadCount(0);
    const Floats first = body();
    EXPECT_TRUE(SameBits(first, body()));
    for (const int threads : {1, 2, 3}) {
      SetThreadCount(threads);
      EXPECT_TRUE(SameBits(first, body())) << threads << " threads";
    }
    SetThreadCount(0);
  }
  Random random_{12};
};

// ---- 2^x ----

TEST_F(Kernels, PowersOfTwoAreAccurate) {
  Floats x;
  for (int i = -126 * 512; i <= 126 * 512; ++i) x.push_back(static_cast<float>(i) / 512);
  for (int i = 0; i < 200001; ++i) x.push_back(static_cast<float>(random_.Uniform() * 252 - 126));
  Floats y(x.size());
  HWY_DYNAMIC_DISPATCH(PowersOfTwo)(x.data(), x.size(), y.data());
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = std::exp2(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(y[i] - exact) / exact);
  }
  EXPECT_LE(worst, 2e-7);
}

TEST_F(Kernels, SmallPowersOfTwoEndAtTheBound) {
  const float infinity = std::numeric_limits<float>::infinity();
  const Floats x = {-126, -126.001f, -127, -200, -1e4f, -1e30f, -std::numeric_limits<float>::max(), -infinity, -126};
  for (const size_t count : {x.size(), size_t{1}}) {
    Floats y(count);
    HWY_DYNAMIC_DISPATCH(PowersOfTwo)(x.data(), count, y.data());
    for (const float value : y) EXPECT_EQ(value, 0x1p-126f);
  }
  Floats whole(253), powers(253);
  for (int i = 0; i < 253; ++i) whole[static_cast<size_t>(i)] = static_cast<float>(i - 126);
  HWY_DYNAMIC_DISPATCH(PowersOfTwo)(whole.data(), whole.size(), powers.data());
  for (int i = 0; i < 253; ++i) EXPECT_EQ(powers[static_cast<size_t>(i)], std::ldexp(1.0f, i - 126));
}

// ---- RMSNorm ----

TEST_F(Kernels, RmsNorm) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns);
    const size_t n = shape.rows * shape.columns;
    const Floats x = RandomFloats(random_, n, 3), weight = RandomFloats(random_, shape.columns);
    const float eps = 1e-5f;
    Floats y(n), rstd(shape.rows), again(n);
    RunRmsNorm(shape, {x.data(), nullptr, weight.data(), eps, nullptr, y.data(), rstd.data()});
    const RmsNormReference exact = ReferenceRmsNorm(shape, Wide(x), Wide(weight), eps);
    ExpectClose(y, exact.y, 2e-6);
    ExpectClose(rstd, exact.rstd, 2e-6, 0);
    ReapplyRmsNorm(shape, x.data(), rstd.data(), weight.data(), again.data());
    EXPECT_TRUE(SameBits(y, again));
  }
}

TEST_F(Kernels, RmsNormOfASum) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns);
    const size_t n = shape.rows * shape.columns;
    const Floats x = RandomFloats(random_, n), add = RandomFloats(random_, n),
                 weight = RandomFloats(random_, shape.columns);
    Floats sum(n), y(n), rstd(shape.rows), wanted(n);
    for (size_t i = 0; i < n; ++i) wanted[i] = x[i] + add[i];
    RunRmsNorm(shape, {x.data(), add.data(), weight.data(), 1e-6f, sum.data(), y.data(), rstd.data()});
    EXPECT_TRUE(SameBits(sum, wanted));
    const RmsNormReference exact = ReferenceRmsNorm(shape, Wide(wanted), Wide(weight), 1e-6f);
    ExpectClose(y, exact.y, 2e-6);
    ExpectClose(rstd, exact.rstd, 2e-6, 0);
    // The sum may take the place of what is added.
    Floats in_place = add, y2(n), rstd2(shape.rows);
    RunRmsNorm(shape, {x.data(), in_place.data(), weight.data(), 1e-6f, in_place.data(), y2.data(), rstd2.data()});
    EXPECT_TRUE(SameBits(in_place, sum));
    EXPECT_TRUE(SameBits(y2, y));
  }
}

TEST_F(Kernels, RmsNormOfZeros) {
  const Floats x(20), weight(10, 1.0f);
  Floats y(20, 7.0f), rstd(2);
  RunRmsNorm({2, 10}, {x.data(), nullptr, weight.data(), 1e-6f, nullptr, y.data(), rstd.data()});
  for (const float value : y) EXPECT_EQ(value, 0.0f);
  EXPECT_NEAR(rstd[1], 1e3, 0.1);
}

TEST_F(Kernels, RmsNormBackward) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns);
    const size_t n = shape.rows * shape.columns;
    const Floats x = RandomFloats(random_, n), dy = RandomFloats(random_, n),
                 weight = RandomFloats(random_, shape.columns);
    const RmsNormReference forward = ReferenceRmsNorm(shape, Wide(x), Wide(weight), 1e-2);
    const Floats rstd(forward.rstd.begin(), forward.rstd.end());
    Floats dx = RandomFloats(random_, n), dweight = RandomFloats(random_, shape.columns);
    Doubles exact_dx = Wide(dx), exact_dweight = Wide(dweight);
    RunRmsNormBackward(shape, {x.data(), rstd.data(), weight.data(), dy.data(), dx.data(), dweight.data()});
    ReferenceRmsNormBackward(shape, {Wide(x), Wide(rstd), Wide(weight), Wide(dy)}, exact_dx, exact_dweight);
    ExpectClose(dx, exact_dx, 1e-5);
    ExpectClose(dweight, exact_dweight, 2e-5);
  }
}

// Central differences of loss() for each value of `at`, against `gradient`.
template <class Loss>
void ExpectGradient(Doubles& at, const Doubles& gradient, const Loss& loss, double tolerance = 1e-6) {
  ASSERT_EQ(at.size(), gradient.size());
  for (size_t i = 0; i < at.size(); ++i) {
    const double kept = at[i], h = 1e-5;
    at[i] = kept + h;
    const double above = loss();
    at[i] = kept - h;
    const double below = loss();
    at[i] = kept;
    ASSERT_NEAR((above - below) / (2 * h), gradient[i], tolerance * (1 + std::abs(gradient[i]))) << "at " << i;
  }
}

double Dot(const Doubles& a, const Doubles& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

TEST_F(Kernels, RmsNormGradientByDifferences) {
  const RowShape shape{3, 7};
  Doubles x = Wide(RandomFloats(random_, 21)), weight = Wide(RandomFloats(random_, 7));
  const Doubles dy = Wide(RandomFloats(random_, 21));
  const double eps = 1e-3;
  const auto loss = [&] { return Dot(ReferenceRmsNorm(shape, x, weight, eps).y, dy); };
  Doubles dx(21), dweight(7);
  ReferenceRmsNormBackward(shape, {x, ReferenceRmsNorm(shape, x, weight, eps).rstd, weight, dy}, dx, dweight);
  ExpectGradient(x, dx, loss);
  ExpectGradient(weight, dweight, loss);
}

TEST_F(Kernels, RmsNormIsRepeatable) {
  const RowShape shape{613, 37};
  const size_t n = shape.rows * shape.columns;
  const Floats x = RandomFloats(random_, n), dy = RandomFloats(random_, n),
               weight = RandomFloats(random_, shape.columns);
  ExpectRepeatable([&] {
    Floats y(n), rstd(shape.rows), gradients(n + shape.columns);
    RunRmsNorm(shape, {x.data(), nullptr, weight.data(), 1e-5f, nullptr, y.data(), rstd.data()});
    RunRmsNormBackward(shape,
                       {x.data(), rstd.data(), weight.data(), dy.data(), gradients.data(), gradients.data() + n});
    gradients.insert(gradients.end(), y.begin(), y.end());
    return gradients;
  });
}

TEST_F(Kernels, NothingToDo) {
  double loss = 5;
  RunRmsNorm({0, 8}, {});
  RunRmsNormBackward({0, 8}, {});
  RunRotary(0, {});
  RunSwiGlu({0, 8}, nullptr, nullptr);
  RunSwiGluBackward({0, 8}, nullptr, nullptr, nullptr, nullptr);
  RunCrossEntropy({0, 8}, nullptr, nullptr, 1, &loss);
  RunAdd(0, nullptr, nullptr);
  RunScale(0, 2, nullptr);
  RunAddRows(0, 8, nullptr, nullptr, nullptr);
  RunAdamW(0, {}, nullptr, nullptr, nullptr, nullptr);
  RunMatMul({0, 3, 3}, nullptr, nullptr, nullptr);
  EXPECT_EQ(RunSumOfSquares(0, nullptr), 0.0);
  EXPECT_EQ(loss, 5);
}

// ---- Rotary positions ----

TEST_F(Kernels, Rotary) {
  for (const size_t dim : {2, 4, 6, 16, 30, 32, 34, 48, 64, 128}) {
    for (const bool interleaved : {false, true}) {
      const size_t rows = 21, heads = 3, stride = heads * dim + 5, half = dim / 2, table_rows = 9;
      Floats angles = RandomFloats(random_, table_rows * half, 3), cosine(angles.size()), sine(angles.size());
      for (size_t i = 0; i < angles.size(); ++i) cosine[i] = std::cos(angles[i]), sine[i] = std::sin(angles[i]);
      const Floats before = RandomFloats(random_, rows * stride);
      Floats data = before;
      RotaryArgs args{data.data(), stride, heads, dim, cosine.data(), sine.data(), table_rows, interleaved, false};
      Doubles exact = Wide(before);
      ReferenceRotary(rows, args, exact);
      RunRotary(rows, args);
      ExpectClose(data, exact, 1e-6);
      for (size_t r = 0; r < rows; ++r) {  // what stands behind the heads is not touched
        for (size_t c = heads * dim; c < stride; ++c) ASSERT_EQ(data[r * stride + c], before[r * stride + c]);
      }
      args.inverse = true;
      ReferenceRotary(rows, args, exact);
      RunRotary(rows, args);
      ExpectClose(data, exact, 2e-6);
      ExpectClose(data, Wide(before), 3e-6);
    }
  }
}

// ---- SwiGLU ----

TEST_F(Kernels, SwiGlu) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns);
    const size_t n = shape.rows * shape.columns;
    const Floats gate_up = RandomFloats(random_, 2 * n, 4), dact = RandomFloats(random_, n);
    Floats act(n), act2(n), dgate_up(2 * n);
    RunSwiGlu(shape, gate_up.data(), act.data());
    ExpectClose(act, ReferenceSwiGlu(shape, Wide(gate_up)), 3e-6, 0.01);
    RunSwiGluBackward(shape, gate_up.data(), dact.data(), dgate_up.data(), act2.data());
    EXPECT_TRUE(SameBits(act, act2));
    Doubles exact(2 * n);
    ReferenceSwiGluBackward(shape, Wide(gate_up), Wide(dact), exact);
    ExpectClose(dgate_up, exact, 5e-6, 0.1);
  }
}

TEST_F(Kernels, SwiGluGradientByDifferences) {
  const RowShape shape{2, 9};
  Doubles gate_up = Wide(RandomFloats(random_, 36, 2));
  const Doubles dact = Wide(RandomFloats(random_, 18));
  Doubles gradient(36);
  ReferenceSwiGluBackward(shape, gate_up, dact, gradient);
  ExpectGradient(gate_up, gradient, [&] { return Dot(ReferenceSwiGlu(shape, gate_up), dact); });
}

// The slope of a large gate is 1: computed as a difference of large numbers it would be lost.
TEST_F(Kernels, SwiGluOfExtremeGates) {
  const Floats gates = {1e4f, -1e4f, 9999.7f, -9999.7f, 87.5f,  -87.5f,  88.8f, -88.8f, 100,   -100,   126,  -126,
                        1e8f, -1e8f, 0,       -0.0f,    1e-30f, -1e-30f, 20.3f, -20.3f, 1e20f, -1e20f, 33.3f};
  const size_t n = gates.size();
  Floats gate_up = gates, dact(n, 1.5f), act(n), dgate_up(2 * n);
  for (size_t i = 0; i < n; ++i) gate_up.push_back(0.5f + static_cast<float>(i));
  RunSwiGlu({1, n}, gate_up.data(), act.data());
  ExpectClose(act, ReferenceSwiGlu({1, n}, Wide(gate_up)), 2e-6, 1e-10);
  RunSwiGluBackward({1, n}, gate_up.data(), dact.data(), dgate_up.data(), act.data());
  Doubles exact(2 * n);
  ReferenceSwiGluBackward({1, n}, Wide(gate_up), Wide(dact), exact);
  ExpectClose(dgate_up, exact, 3e-6, 1e-4);
}

// ---- Cross-entropy ----

struct CrossEntropyCase {
  RowShape shape;
  Floats logits;
  std::vector<int32_t> targets;
};

void ExpectCrossEntropy(const CrossEntropyCase& c, float scale, double tolerance = 1e-5) {
  SCOPED_TRACE(testing::Message() << c.shape.rows << " x " << c.shape.columns << ", scale " << scale);
  Floats logits = c.logits;
  Doubles losses(c.shape.rows, NAN), exact = Wide(c.logits);
  RunCrossEntropy(c.shape, logits.data(), c.targets.data(), scale, losses.data());
  const Doubles exact_losses = ReferenceCrossEntropy(c.shape, exact, c.targets, scale);
  for (size_t r = 0; r < c.shape.rows; ++r) {
    ASSERT_NEAR(losses[r], exact_losses[r], tolerance * (1 + std::abs(exact_losses[r])));
  }
  if (scale == 0) {
    EXPECT_TRUE(SameBits(logits, c.logits));
  } else {
    // softmax - 1 of a likely target is a difference of f32 numbers near 1.
    ExpectClose(logits, exact, tolerance, std::abs(scale) * 2e-2);
  }
  for (size_t r = 0; r < c.shape.rows; ++r) {
    if (c.targets[r] >= 0) continue;
    EXPECT_EQ(losses[r], 0);
    for (size_t i = 0; i < c.shape.columns && scale != 0; ++i) ASSERT_EQ(logits[r * c.shape.columns + i], 0.0f);
  }
}

TEST_F(Kernels, CrossEntropy) {
  for (const RowShape shape : kShapes) {
    CrossEntropyCase c{shape, RandomFloats(random_, shape.rows * shape.columns, 4), {}};
    for (size_t r = 0; r < shape.rows; ++r) {
      c.targets.push_back(r % 4 == 1 ? -1 : static_cast<int32_t>(random_.Below(shape.columns)));
    }
    for (const float scale : {1.0f, 0.0f, 0.003f, -2.0f}) ExpectCrossEntropy(c, scale);
  }
}

TEST_F(Kernels, CrossEntropyOfALargeVocabulary) {
  CrossEntropyCase c{{3, 32001}, RandomFloats(random_, 3 * 32001, 3), {32000, 0, -7}};
  ExpectCrossEntropy(c, 1.0f);
}

TEST_F(Kernels, CrossEntropyOfExtremeLogits) {
  for (const size_t columns : {1, 2, 5, 16, 33}) {
    for (const auto& [common, odd] :
         {std::pair(0.0f, 1e4f), std::pair(0.0f, -1e4f), std::pair(1e4f, -1e4f), std::pair(-1e4f, 1e4f),
          std::pair(1e4f, 1e4f), std::pair(-1e4f, -1e4f), std::pair(0.0f, 0.0f), std::pair(1e4f, 9999.0f)}) {
      CrossEntropyCase c{{columns, columns}, Floats(columns * columns, common), {}};
      for (size_t r = 0; r < columns; ++r) {
        c.logits[r * columns + (r * 3) % columns] = odd;
        c.targets.push_back(static_cast<int32_t>(r));
      }
      for (const float scale : {1.0f, 0.0f}) ExpectCrossEntropy(c, scale);
    }
  }
}

TEST_F(Kernels, CrossEntropyGradientByDifferences) {
  const RowShape shape{3, 6};
  const std::vector<int32_t> targets = {2, -1, 5};
  Doubles logits = Wide(RandomFloats(random_, 18, 2)), gradient = logits;
  ReferenceCrossEntropy(shape, gradient, targets, 0.7);
  ExpectGradient(logits, gradient, [&] {
    double loss = 0;
    for (const double row : ReferenceCrossEntropy(shape, logits, targets, 0)) loss += 0.7 * row;
    return loss;
  });
}

// A broken model must not look like a working one: NaN anywhere in a row shows in its loss and its gradient.
TEST_F(Kernels, CrossEntropyShowsNaN) {
  for (const size_t columns : {1, 3, 8, 16, 40, 67}) {
    for (size_t at = 0; at < columns; ++at) {
      const Floats logits = RandomFloats(random_, columns);
      const std::vector<int32_t> target = {static_cast<int32_t>(columns / 2)};
      for (const float scale : {1.0f, 0.0f}) {
        Floats row = logits;
        row[at] = NAN;
        double loss = 0;
        RunCrossEntropy({1, columns}, row.data(), target.data(), scale, &loss);
        EXPECT_TRUE(std::isnan(loss)) << at << " of " << columns;
        EXPECT_TRUE(std::isnan(RunSumOfSquares(columns, row.data())));
      }
    }
  }
}

TEST_F(Kernels, CrossEntropyRefusesAForeignTarget) {
  Floats logits(8);
  double loss;
  const std::vector<int32_t> target = {8};
  EXPECT_THROW(RunCrossEntropy({1, 8}, logits.data(), target.data(), 1, &loss), std::exception);
}

TEST_F(Kernels, SwiGluAndCrossEntropyAreRepeatable) {
  const RowShape shape{100, 51};
  const size_t n = shape.rows * shape.columns;
  const Floats gate_up = RandomFloats(random_, 2 * n), dact = RandomFloats(random_, n);
  const std::vector<int32_t> targets(shape.rows, 3);
  ExpectRepeatable([&] {
    Floats all(2 * n), act(n);
    RunSwiGluBackward(shape, gate_up.data(), dact.data(), all.data(), act.data());
    Doubles losses(shape.rows);
    RunCrossEntropy(shape, act.data(), targets.data(), 1, losses.data());
    all.insert(all.end(), act.begin(), act.end());
    for (const double loss : losses) all.push_back(static_cast<float>(loss));
    return all;
  });
}

// ---- Vectors ----

const size_t kCounts[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 100, 4097, 65536, 65537, 140001};

TEST_F(Kernels, AddAndScale) {
  for (const size_t n : kCounts) {
    const Floats from = RandomFloats(random_, n);
    Floats to = RandomFloats(random_, n);
    Doubles exact = Wide(to);
    RunAdd(n, from.data(), to.data());
    ReferenceAdd(Wide(from), exact);
    ExpectClose(to, exact, 1e-7);
    exact = Wide(to);
    RunScale(n, -0.37f, to.data());
    ReferenceScale(-0.37f, exact);
    ExpectClose(to, exact, 1e-7);
  }
}

TEST_F(Kernels, SumOfSquares) {
  for (const size_t n : kCounts) {
    // Squares of the last two are outside of f32.
    for (const double scale : {1.0, 1e-6, 1e-25, 1e25}) {
      const Floats values = RandomFloats(random_, n, scale);
      const double exact = ReferenceSumOfSquares(Wide(values));
      EXPECT_NEAR(RunSumOfSquares(n, values.data()), exact, 1e-9 * exact) << n << " values of " << scale;
    }
  }
}

TEST_F(Kernels, SumOfSquaresShowsNaNAndInfinity) {
  for (const size_t n : kCounts) {
    Floats values = RandomFloats(random_, n);
    const size_t at = random_.Below(n);
    values[at] = NAN;
    EXPECT_TRUE(std::isnan(RunSumOfSquares(n, values.data()))) << at << " of " << n;
    values[at] = -std::numeric_limits<float>::infinity();
    EXPECT_TRUE(std::isinf(RunSumOfSquares(n, values.data()))) << at << " of " << n;
  }
}

TEST_F(Kernels, SumOfSquaresIsRepeatable) {
  const Floats values = RandomFloats(random_, 300001);
  SetThreadCount(1);
  const double sum = RunSumOfSquares(values.size(), values.data());
  for (const int threads : {1, 2, 3}) {
    SetThreadCount(threads);
    EXPECT_EQ(RunSumOfSquares(values.size(), values.data()), sum);
  }
}

TEST_F(Kernels, AddRows) {
  for (const RowShape shape : kShapes) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns);
    const size_t places = 4;  // so that most are hit more than once
    const Floats from = RandomFloats(random_, shape.rows * shape.columns);
    const Floats before = RandomFloats(random_, places * shape.columns);
    std::vector<int32_t> index;
    for (size_t r = 0; r < shape.rows; ++r) index.push_back(static_cast<int32_t>(random_.Below(places + 1)) - 1);
    Floats to = before;
    Doubles exact = Wide(before);
    RunAddRows(shape.rows, shape.columns, from.data(), index.data(), to.data());
    ReferenceAddRows(shape, Wide(from), index, exact);
    ExpectClose(to, exact, 1e-5);
    ExpectRepeatable([&] {
      Floats again = before;
      RunAddRows(shape.rows, shape.columns, from.data(), index.data(), again.data());
      return again;
    });
  }
}

TEST_F(Kernels, AddRowsOfNegativeIndexes) {
  const Floats from(12, 1.0f), before = RandomFloats(random_, 4);
  const std::vector<int32_t> index = {-1, -2, std::numeric_limits<int32_t>::min()};
  Floats to = before;
  RunAddRows(3, 4, from.data(), index.data(), to.data());
  EXPECT_TRUE(SameBits(to, before));
}

// ---- AdamW ----

TEST_F(Kernels, AdamWOverThreeSteps) {
  for (const size_t n : kCounts) {
    const float beta1 = 0.9f, beta2 = 0.95f;
    Floats weight = RandomFloats(random_, n), first(n), second(n);
    const Floats start = weight;
    Doubles exact = Wide(weight), exact_first(n), exact_second(n);
    for (int step = 1; step <= 3; ++step) {
      const Floats gradient = RandomFloats(random_, n, 0.1);
      const AdamW args{2e-3f,
                       beta1,
                       beta2,
                       1e-8f,
                       step == 2 ? 0.0f : 0.1f,
                       1 - std::pow(beta1, static_cast<float>(step)),
                       1 - std::pow(beta2, static_cast<float>(step)),
                       0.25f};
      RunAdamW(n, args, gradient.data(), weight.data(), first.data(), second.data());
      ReferenceAdamW(args, Wide(gradient), exact, exact_first, exact_second);
      ExpectClose(weight, exact, 1e-6);
      ExpectClose(first, exact_first, 1e-6, 1e-2);
      ExpectClose(second, exact_second, 2e-6, 1e-6);
    }
    EXPECT_FALSE(SameBits(weight, start));
  }
}

TEST_F(Kernels, AdamWIsRepeatable) {
  const size_t n = 200003;
  const Floats gradient = RandomFloats(random_, n), start = RandomFloats(random_, n);
  ExpectRepeatable([&] {
    Floats weight = start, first(n), second(n);
    RunAdamW(n, {1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.1f, 0.01f, 1}, gradient.data(), weight.data(), first.data(),
             second.data());
    return weight;
  });
}

// ---- Matrix products ----

struct Product {
  MatMul shape;
  Floats a, b, c;

  static size_t Stride(size_t given, size_t dense) { return given != 0 ? given : dense; }
  Product(const MatMul& s, Random& random) : shape(s) {
    a = RandomFloats(random, (s.transpose_a ? s.k : s.m) * Stride(s.stride_a, s.transpose_a ? s.m : s.k));
    b = RandomFloats(random, (s.transpose_b ? s.n : s.k) * Stride(s.stride_b, s.transpose_b ? s.k : s.n));
    c = RandomFloats(random, s.m * Stride(s.stride_c, s.n));
  }
  Floats Run() const {
    Floats result = c;
    RunMatMul(shape, a.data(), b.data(), result.data());
    return result;
  }
  // c starts as random numbers, so what is not to be written must keep them.
  void Expect() const {
    Floats exact = c;
    ReferenceMatMul(shape, a.data(), b.data(), exact.data());
    SCOPED_TRACE(testing::Message() << shape.m << " x " << shape.n << " x " << shape.k
                                    << (shape.transpose_a ? ", At" : "") << (shape.transpose_b ? ", Bt" : "")
                                    << (shape.accumulate ? ", +=" : "") << ", strides " << shape.stride_a << " "
                                    << shape.stride_b << " " << shape.stride_c);
    ExpectClose(Run(), Wide(exact), 1e-6 * std::sqrt(static_cast<double>(shape.k)), 3);
  }
};

TEST_F(Kernels, MatMul) {
  for (int round = 0; round < 240; ++round) {
    const auto size = [&](size_t limit) { return 1 + random_.Below(random_.Below(4) == 0 ? 2 : limit); };
    MatMul s;
    s.m = size(70), s.n = size(70), s.k = size(130);
    s.transpose_a = round % 2 == 1, s.transpose_b = round / 2 % 2 == 1, s.accumulate = round / 4 % 2 == 1;
    if (round / 8 % 2 == 1) {
      s.stride_a = (s.transpose_a ? s.m : s.k) + random_.Below(9);
      s.stride_b = (s.transpose_b ? s.k : s.n) + random_.Below(9);
      s.stride_c = s.n + random_.Below(9);
    }
    Product(s, random_).Expect();
    if (HasFatalFailure()) return;
  }
}

TEST_F(Kernels, MatMulIsRepeatable) {
  const Product product({37, 65, 129, false, true}, random_);
  for (const int threads : {1, 2}) {
    SetThreadCount(threads);
    const Floats first = product.Run();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(SameBits(product.Run(), first));
  }
}

// A product that one thread compiled is used by others, at the same time, with and without transposes that need room.
TEST_F(Kernels, MatMulFromManyThreads) {
  SetThreadCount(1);
  std::vector<Product> products;
  for (const bool transpose : {false, true}) {
    products.emplace_back(MatMul{150, 130, 170, transpose, false}, random_);
    products.emplace_back(MatMul{61, 190, 90, transpose, true}, random_);
  }
  std::vector<Floats> wanted;
  for (const Product& product : products) wanted.push_back(product.Run());
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 40; ++i) {
        const size_t p = (i + t) % products.size();
        wrong[t] += SameBits(products[p].Run(), wanted[p]) ? 0 : 1;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) EXPECT_EQ(count, 0);
}

}  // namespace
}  // namespace cairn
#endif  // HWY_ONCE
