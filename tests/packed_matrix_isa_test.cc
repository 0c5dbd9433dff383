// Packed matrices of every kind against naive products in f64, what packing keeps exactly, and what rows may not do to
// each other.
#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/threads.h"
#include "kernels/packed_matrix_reference.h"
#include "tensor/convert.h"
#include "tensor/quant_blocks.h"

namespace cairn {
namespace {

using Floats = std::vector<float>;

constexpr WeightKind kAllKinds[] = {WeightKind::kF32, WeightKind::kF16, WeightKind::kInt8, WeightKind::kInt4};

Floats RandomFloats(Random& random, size_t count, double scale = 1) {
  Floats values(count);
  for (float& value : values) value = static_cast<float>(random.Normal() * scale);
  return values;
}

// A tensor with its bytes.
struct Owned {
  std::vector<std::byte> bytes;
  StoredTensor tensor;
};

Owned Store(StoredType type, size_t rows, size_t columns, const Floats& values) {
  Owned owned;
  owned.tensor.type = type;
  owned.tensor.shape = {rows, columns};
  owned.bytes.resize(*StoredBytes(type, owned.tensor.shape));
  ConvertFloatToStored(type, values, owned.bytes);
  owned.tensor.bytes = owned.bytes;
  return owned;
}

Floats Loaded(const StoredTensor& tensor) {
  Floats values(tensor.bytes.size() / tensor.row_bytes() * tensor.row_elements());
  ConvertStoredToFloat(tensor.type, tensor.bytes, values);
  return values;
}

Floats AllRows(const PackedMatrix& matrix) {
  Floats values(matrix.rows() * matrix.columns());
  for (size_t row = 0; row < matrix.rows(); ++row) matrix.ReadRow(row, &values[row * matrix.columns()]);
  return values;
}

PackedMatrix RandomMatrix(Random& random, size_t n, size_t k, WeightKind kind) {
  // f16, so that a matrix of kind f16 or f32 holds the same numbers; both are converted, and own their bytes.
  const Owned first = Store(StoredType::kF16, n / 2, k, RandomFloats(random, n / 2 * k, 0.1));
  const Owned second = Store(StoredType::kF16, n - n / 2, k, RandomFloats(random, (n - n / 2) * k, 0.1));
  const StoredTensor parts[] = {first.tensor, second.tensor};
  return PackedMatrix(parts, kind);
}

Floats Product(const PackedMatrix& matrix, size_t m, const Floats& in) {
  Floats out(m * matrix.rows(), 17.0f);
  matrix.Multiply(m, in.data(), out.data());
  return out;
}

// Relative to the size of the sums: the root of k times the sizes of the factors (1 and 0.1).
void ExpectClose(const Floats& actual, const std::vector<double>& expected, size_t k, const char* what) {
  ASSERT_EQ(actual.size(), expected.size());
  const double size = 0.1 * std::sqrt(static_cast<double>(k));
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], 1e-5 * (std::abs(expected[i]) + size)) << what << " at " << i;
  }
}

bool SameBits(const float* a, const float* b, size_t count) { return std::memcmp(a, b, count * sizeof(float)) == 0; }

TEST(PackedMatrix, ProductsAreThoseOfTheReference) {
  Random random(1);
  struct Size {
    size_t n, k;
  };
  for (const WeightKind kind : kAllKinds) {
    for (const Size size : {Size{1, 1}, Size{16, 32}, Size{5, 31}, Size{17, 33}, Size{48, 64}, Size{50, 100},
                            Size{33, 320}, Size{130, 1111}, Size{512, 544}}) {
      const PackedMatrix matrix = RandomMatrix(random, size.n, size.k, kind);
      ASSERT_EQ(matrix.rows(), size.n);
      ASSERT_EQ(matrix.columns(), size.k);
      for (const size_t m : {1, 2, 3, 4, 5, 8, 9, 17, 64, 250}) {
        const Floats in = RandomFloats(random, m * size.k);
        ExpectClose(Product(matrix, m, in), ReferenceMultiply(matrix, m, in), size.k, NameOf(kind).data());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PackedMatrix, ManyRowsAreCutIntoChunks) {
  Random random(2);
  const size_t n = 70, k = 2000, m = 300;
  for (const WeightKind kind : kAllKinds) {
    const PackedMatrix matrix = RandomMatrix(random, n, k, kind);
    const Floats in = RandomFloats(random, m * k);
    ExpectClose(Product(matrix, m, in), ReferenceMultiply(matrix, m, in), k, NameOf(kind).data());
  }
}

TEST(PackedMatrix, Accumulates) {
  Random random(3);
  for (const WeightKind kind : kAllKinds) {
    const PackedMatrix matrix = RandomMatrix(random, 37, 200, kind);
    for (const size_t m : {1, 3, 6, 40}) {
      const Floats in = RandomFloats(random, m * 200);
      const Floats before = RandomFloats(random, m * 37);
      std::vector<double> expected = ReferenceMultiply(matrix, m, in);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
      Floats out = before;
      matrix.Multiply(m, in.data(), out.data(), true);
      ExpectClose(out, expected, 200, NameOf(kind).data());
    }
  }
}

TEST(PackedMatrix, RowsDoNotDependOnEachOther) {
  Random random(4);
  const size_t n = 150, k = 1000, m = 250;
  for (const WeightKind kind : kAllKinds) {
    const PackedMatrix matrix = RandomMatrix(random, n, k, kind);
    const Floats in = RandomFloats(random, m * k);
    const Floats all = Product(matrix, m, in);
    for (const size_t count : {1, 2, 3, 4, 5, 17, 64, 249}) {
      for (const size_t first : {size_t{0}, (m - count) / 2, m - count}) {
        const Floats some(in.begin() + static_cast<std::ptrdiff_t>(first * k),
                          in.begin() + static_cast<std::ptrdiff_t>((first + count) * k));
        const Floats out = Product(matrix, count, some);
        EXPECT_TRUE(SameBits(out.data(), &all[first * n], out.size())) << NameOf(kind) << " " << count;
      }
    }
  }
}

TEST(PackedMatrix, ThreadsDoNotChangeResults) {
  Random random(5);
  for (const WeightKind kind : kAllKinds) {
    const PackedMatrix matrix = RandomMatrix(random, 400, 512, kind);
    for (const size_t m : {1, 70}) {
      const Floats in = RandomFloats(random, m * 512);
      SetThreadCount(1);
      const Floats one = Product(matrix, m, in);
      SetThreadCount(3);
      const Floats three = Product(matrix, m, in);
      SetThreadCount(0);
      EXPECT_TRUE(SameBits(one.data(), three.data(), one.size()));
    }
  }
}

TEST(PackedMatrix, RepackingIsExact) {
  Random random(6);
  const size_t n = 37, k = 256;
  struct Exact {
    StoredType type;
    WeightKind kind;
  };
  for (const Exact exact : {Exact{StoredType::kQ8_0, WeightKind::kInt8}, Exact{StoredType::kQ4_0, WeightKind::kInt4},
                            Exact{StoredType::kF32, WeightKind::kF32}, Exact{StoredType::kF16, WeightKind::kF16},
                            Exact{StoredType::kF16, WeightKind::kF32}, Exact{StoredType::kBF16, WeightKind::kF32}}) {
    const Owned stored = Store(exact.type, n, k, RandomFloats(random, n * k));
    const PackedMatrix matrix(std::span(&stored.tensor, 1), exact.kind);
    EXPECT_EQ(AllRows(matrix), Loaded(stored.tensor)) << NameOf(exact.type);
  }
  // -128 is a q8_0 byte like others.
  Owned lowest = Store(StoredType::kQ8_0, 1, 32, Floats(32, 1.0f));
  lowest.bytes[2] = std::byte{0x80};
  const PackedMatrix matrix(std::span(&lowest.tensor, 1), WeightKind::kInt8);
  EXPECT_EQ(AllRows(matrix), Loaded(lowest.tensor));
  const Floats in = RandomFloats(random, 32);
  ExpectClose(Product(matrix, 1, in), ReferenceMultiply(matrix, 1, in), 3200, "-128");
}

TEST(PackedMatrix, Q4_KFitsUpToTheRoundingOfScales) {
  Random random(7);
  const size_t n = 20;
  std::vector<std::byte> bytes(n * kQ4_KBytes);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
  for (size_t row = 0; row < n; ++row) {
    const uint16_t scale = FloatToHalf(0.013f), minimum = FloatToHalf(0.11f);
    std::memcpy(&bytes[row * kQ4_KBytes], &scale, 2);
    std::memcpy(&bytes[row * kQ4_KBytes + 2], &minimum, 2);
  }
  const StoredTensor tensor{StoredType::kQ4_K, {n, 256}, bytes};
  const PackedMatrix matrix(std::span(&tensor, 1), WeightKind::kInt4);
  const Floats expected = Loaded(tensor);
  const Floats actual = AllRows(matrix);
  const float largest = 0.013f * 63 * 15 + 0.11f * 63;
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], largest * 0x1p-11f) << i;
}

TEST(PackedMatrix, FloatsAreRoundedWell) {
  Random random(8);
  const size_t n = 64, k = 640;
  const Floats values = RandomFloats(random, n * k);
  const Owned stored = Store(StoredType::kF32, n, k, values);
  const PackedMatrix int8(std::span(&stored.tensor, 1), WeightKind::kInt8);
  const PackedMatrix int4(std::span(&stored.tensor, 1), WeightKind::kInt4);
  const Floats back8 = AllRows(int8), back4 = AllRows(int4);
  double error4 = 0, plain4 = 0;
  for (size_t begin = 0; begin < values.size(); begin += 32) {
    float low = values[begin], high = low;
    for (size_t i = begin; i < begin + 32; ++i) {
      low = std::min(low, values[i]);
      high = std::max(high, values[i]);
    }
    const float peak = std::max(std::abs(low), std::abs(high));
    const float step = (high - low) / 15;
    for (size_t i = begin; i < begin + 32; ++i) {
      ASSERT_NEAR(back8[i], values[i], peak / 254 + peak * 0x1p-11f) << i;
      error4 += std::pow(back4[i] - values[i], 2);
      plain4 += std::pow(low + step * std::nearbyint((values[i] - low) / step) - values[i], 2);
    }
  }
  EXPECT_LT(error4, 0.9 * plain4);  // better than from the least to the greatest
}

TEST(PackedMatrix, PartsOfSeveralTypesStandBelowEachOther) {
  Random random(9);
  const size_t k = 64;
  for (const WeightKind kind : kAllKinds) {
    std::vector<Owned> owned;
    size_t rows = 0;
    for (const StoredType type :
         {StoredType::kQ8_0, StoredType::kF32, StoredType::kQ4_0, StoredType::kF16, StoredType::kBF16}) {
      const size_t n = 3 + 5 * owned.size();
      owned.push_back(Store(type, n, k, RandomFloats(random, n * k)));
      rows += n;
    }
    std::vector<StoredTensor> parts;
    for (const Owned& part : owned) parts.push_back(part.tensor);
    const PackedMatrix matrix(parts, kind);
    ASSERT_EQ(matrix.rows(), rows);
    const Floats all = AllRows(matrix);
    size_t row = 0;
    for (const Owned& part : owned) {
      // What each part alone would become.
      const Floats alone = AllRows(PackedMatrix(std::span(&part.tensor, 1), kind));
      EXPECT_TRUE(SameBits(alone.data(), &all[row * k], alone.size())) << NameOf(kind) << " " << row;
      row += alone.size() / k;
    }
  }
}

TEST(PackedMatrix, FloatsOfOneTensorAreUsedInPlace) {
  Random random(10);
  Owned stored = Store(StoredType::kF32, 4, 8, RandomFloats(random, 32));
  const PackedMatrix matrix(std::span(&stored.tensor, 1), WeightKind::kF32);
  const float changed = 42;
  std::memcpy(stored.bytes.data(), &changed, sizeof(changed));
  EXPECT_EQ(AllRows(matrix)[0], 42.0f);
  // Not where they are misaligned.
  std::vector<std::byte> shifted(stored.bytes.size() + 1);
  std::copy(stored.bytes.begin(), stored.bytes.end(), shifted.begin() + 1);
  StoredTensor tensor = stored.tensor;
  tensor.bytes = std::span(shifted).subspan(1);
  const PackedMatrix copy(std::span(&tensor, 1), WeightKind::kF32);
  EXPECT_EQ(AllRows(copy), AllRows(matrix));
  std::fill(shifted.begin(), shifted.end(), std::byte{0});
  EXPECT_EQ(AllRows(copy), AllRows(matrix));
}

TEST(PackedMatrix, ZeroAndTinyBlocksGiveZeros) {
  const size_t k = 64;
  for (const WeightKind kind : kAllKinds) {
    for (const float value : {0.0f, 1e-40f}) {
      const Owned stored = Store(StoredType::kF32, 3, k, Floats(3 * k, value));
      const PackedMatrix matrix(std::span(&stored.tensor, 1), kind);
      for (const float x : Product(matrix, 2, Floats(2 * k, 1.0f))) EXPECT_NEAR(x, 0.0f, 1e-30f) << NameOf(kind);
      const Owned ones = Store(StoredType::kF32, 3, k, Floats(3 * k, 1.0f));
      const PackedMatrix one(std::span(&ones.tensor, 1), kind);
      for (const float x : Product(one, 2, Floats(2 * k, value))) EXPECT_NEAR(x, 0.0f, 1e-30f) << NameOf(kind);
    }
  }
}

TEST(PackedMatrix, NumbersThatAreNotFiniteStayInTheirRow) {
  Random random(11);
  const size_t n = 40, k = 100;
  for (const WeightKind kind : {WeightKind::kInt8, WeightKind::kInt4}) {
    const PackedMatrix matrix = RandomMatrix(random, n, k, kind);
    for (const size_t m : {3, 30}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        Floats in = RandomFloats(random, m * k);
        const Floats clean = Product(matrix, m, in);
        in[k + 77] = bad;
        const Floats out = Product(matrix, m, in);
        for (size_t row = 0; row < m; ++row) {
          if (row == 1) {
            for (size_t i = 0; i < n; ++i) EXPECT_TRUE(std::isnan(out[row * n + i]));
          } else {
            EXPECT_TRUE(SameBits(&out[row * n], &clean[row * n], n));
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, LargeNumbersAreNotLost) {
  Random random(12);
  for (const WeightKind kind : {WeightKind::kInt8, WeightKind::kInt4}) {
    const PackedMatrix matrix = RandomMatrix(random, 20, 64, kind);
    Floats in = RandomFloats(random, 64);
    const Floats small = Product(matrix, 1, in);
    for (float& x : in) x *= 0x1p100f;
    const Floats large = Product(matrix, 1, in);
    for (size_t i = 0; i < large.size(); ++i) EXPECT_EQ(large[i], small[i] * 0x1p100f);
  }
}

TEST(PackedMatrix, SeveralThreadsMultiplyAtOnce) {
  Random random(13);
  const size_t n = 300, k = 500;
  std::vector<PackedMatrix> matrices;
  for (const WeightKind kind : kAllKinds) matrices.push_back(RandomMatrix(random, n, k, kind));
  const Floats in = RandomFloats(random, 40 * k);
  std::vector<Floats> expected;
  for (const PackedMatrix& matrix : matrices) expected.push_back(Product(matrix, 40, in));
  std::array<bool, 4> good{};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      bool all = true;
      for (int round = 0; round < 5; ++round) {
        for (size_t i = 0; i < matrices.size(); ++i) {
          const Floats out = Product(matrices[i], 40, in);
          for (size_t j = 0; j < out.size(); ++j) all = all && out[j] == expected[i][j];
        }
      }
      good[t] = all;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool ok : good) EXPECT_TRUE(ok);
}

TEST(PackedMatrix, Kinds) {
  for (const WeightKind kind : kAllKinds) EXPECT_EQ(WeightKindNamed(NameOf(kind)), kind);
  EXPECT_EQ(WeightKindNamed("int5"), std::nullopt);
  EXPECT_EQ(NaturalKind(StoredType::kQ8_0), WeightKind::kInt8);
  EXPECT_EQ(NaturalKind(StoredType::kQ6_K), WeightKind::kInt8);
  EXPECT_EQ(NaturalKind(StoredType::kQ4_0), WeightKind::kInt4);
  EXPECT_EQ(NaturalKind(StoredType::kQ4_K), WeightKind::kInt4);
  EXPECT_EQ(NaturalKind(StoredType::kF16), WeightKind::kF16);
  EXPECT_EQ(NaturalKind(StoredType::kBF16), WeightKind::kF32);
  EXPECT_EQ(PackedMatrix().rows(), 0u);
}

}  // namespace
}  // namespace cairn
