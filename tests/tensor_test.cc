// Tests of src/tensor: element types, shapes, tensors, and the conversions of half and bfloat16, over all values.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "tensor/convert.h"
#include "tensor/tensor.h"

namespace cairn {
namespace {

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float FromBits(uint32_t bits) { return std::bit_cast<float>(bits); }

// The value of a half by the definition of the format, in double.
double HalfByDefinition(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  const double sign = (half & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

TEST(Half, EveryValueIsExactAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const float value = HalfToFloat(half);
    const double expected = HalfByDefinition(half);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << i;
      ASSERT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << i;
      ASSERT_EQ(FloatToHalf(value) & 0x8000, half & 0x8000) << i;
      continue;
    }
    ASSERT_EQ(value, expected) << i;
    ASSERT_EQ(std::signbit(value), (half & 0x8000) != 0) << i;
    ASSERT_EQ(FloatToHalf(value), half) << i;
  }
}

TEST(Half, RoundsToNearestEvenBetweenEveryPair) {
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    // Both neighbours and their middle are exact in f32.
    const float low = HalfToFloat(half);
    const float high = HalfToFloat(static_cast<uint16_t>(half + 1));
    const float middle = low + (high - low) / 2;
    const auto even = static_cast<uint16_t>(half + (half & 1));
    ASSERT_EQ(FloatToHalf(middle), even) << half;
    ASSERT_EQ(FloatToHalf(-middle), even | 0x8000) << half;
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), half);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, INFINITY)), half + 1);
  }
}

TEST(Half, OverflowUnderflowAndNaN) {
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(65536.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToHalf(INFINITY), 0x7c00);
  EXPECT_EQ(FloatToHalf(-INFINITY), 0xfc00);
  EXPECT_EQ(FloatToHalf(0x1p-25f), 0);  // tie with zero, which is even
  EXPECT_EQ(FloatToHalf(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(FloatToHalf(-0.0f), 0x8000);
  for (const uint32_t nan : {0x7fc00000u, 0xffc00000u, 0x7f800001u, 0x7fffffffu}) {
    EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(FromBits(nan))))) << nan;
  }
}

#if defined(__FLT16_MAX__) && !defined(__clang__)
TEST(Half, AgreesWithTheCompiler) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto half = static_cast<uint16_t>(i);
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(half));
    if (std::isnan(expected)) continue;
    ASSERT_EQ(Bits(HalfToFloat(half)), Bits(expected)) << i;
  }
  Random random(5);
  for (int i = 0; i < 1000000; ++i) {
    // Any bits, half of them near the range of halves.
    auto bits = static_cast<uint32_t>(random.Next());
    if (i % 2 == 0) bits = (bits & 0x807fffff) | static_cast<uint32_t>((95 + random.Below(52)) << 23);
    const float value = FromBits(bits);
    if (std::isnan(value)) continue;
    ASSERT_EQ(FloatToHalf(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << bits;
  }
}
#endif

TEST(BFloat, EveryValueComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto brain = static_cast<uint16_t>(i);
    const float value = BFloatToFloat(brain);
    ASSERT_EQ(Bits(value), i << 16);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(BFloatToFloat(FloatToBFloat(value)))) << i;
    } else {
      ASSERT_EQ(FloatToBFloat(value), brain);
    }
  }
}

TEST(BFloat, RoundsToNearestEven) {
  for (uint32_t i = 0; i < 0x7f80; ++i) {
    const auto even = static_cast<uint16_t>(i + (i & 1));
    ASSERT_EQ(FloatToBFloat(FromBits((i << 16) | 0x8000)), even);  // the middle
    ASSERT_EQ(FloatToBFloat(FromBits((i << 16) | 0x7fff)), i);
    ASSERT_EQ(FloatToBFloat(FromBits((i << 16) | 0x8001)), i + 1);
    ASSERT_EQ(FloatToBFloat(FromBits((i << 16) | 0x80008000)), even | 0x8000);
  }
  EXPECT_EQ(FloatToBFloat(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(FloatToBFloat(-INFINITY), 0xff80);
  // A NaN whose payload lies in the dropped bits must not become infinity.
  EXPECT_TRUE(std::isnan(BFloatToFloat(FloatToBFloat(FromBits(0x7f800001)))));
  EXPECT_TRUE(std::isnan(BFloatToFloat(FloatToBFloat(FromBits(0xffffffff)))));
}

template <typename T>
std::vector<std::byte> Raw(const std::vector<T>& values) {
  // One byte in front: elements in files need not be aligned.
  std::vector<std::byte> bytes(1 + values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bytes.data() + 1, values.data(), values.size() * sizeof(T));
  return bytes;
}

template <typename T>
std::vector<float> Floats(DType dtype, const std::vector<T>& values) {
  std::vector<float> out(values.size());
  const auto bytes = Raw(values);
  ConvertToFloat(dtype, std::span(bytes).subspan(1), out);
  return out;
}

template <typename T>
std::vector<int64_t> Integers(DType dtype, const std::vector<T>& values) {
  std::vector<int64_t> out(values.size());
  const auto bytes = Raw(values);
  ConvertToInteger(dtype, std::span(bytes).subspan(1), out);
  return out;
}

TEST(Convert, FloatsOfEveryType) {
  const std::vector<float> expected = {0.5f, -2.0f, 1e4f};
  EXPECT_EQ(Floats<double>(DType::kF64, {0.5, -2.0, 1e4}), expected);
  EXPECT_EQ(Floats<float>(DType::kF32, {0.5f, -2.0f, 1e4f}), expected);
  EXPECT_EQ(Floats<uint16_t>(DType::kF16, {0x3800, 0xc000, 0x70e2}), expected);
  EXPECT_EQ(Floats<uint16_t>(DType::kBF16, {0x3f00, 0xc000}), (std::vector<float>{0.5f, -2.0f}));
  EXPECT_TRUE(Floats<float>(DType::kF32, {}).empty());
}

TEST(Convert, IntegersOfEveryType) {
  EXPECT_EQ(Integers<int64_t>(DType::kI64, {INT64_MIN, INT64_MAX}), (std::vector<int64_t>{INT64_MIN, INT64_MAX}));
  EXPECT_EQ(Integers<int32_t>(DType::kI32, {-7, INT32_MAX}), (std::vector<int64_t>{-7, INT32_MAX}));
  EXPECT_EQ(Integers<int16_t>(DType::kI16, {-7, 300}), (std::vector<int64_t>{-7, 300}));
  EXPECT_EQ(Integers<int8_t>(DType::kI8, {-7, 127}), (std::vector<int64_t>{-7, 127}));
  EXPECT_EQ(Integers<uint8_t>(DType::kU8, {7, 255}), (std::vector<int64_t>{7, 255}));
  EXPECT_EQ(Integers<uint8_t>(DType::kBool, {0, 1, 9}), (std::vector<int64_t>{0, 1, 1}));
}

TEST(Convert, WrongKindOrSizeIsABug) {
  EXPECT_THROW(Floats<int32_t>(DType::kI32, {1}), BugError);
  EXPECT_THROW(Integers<float>(DType::kF32, {1}), BugError);
  EXPECT_THROW(Floats<float>(DType::kF64, {1, 2}), BugError);
  EXPECT_THROW(Floats<double>(DType::kF32, {1}), BugError);
}

TEST(Tensor, ShapesAndNames) {
  EXPECT_EQ(ToString(Shape{}), "[]");
  EXPECT_EQ(ToString(Shape{2, 3}), "[2, 3]");
  EXPECT_EQ(NameOf(DType::kBF16), "BF16");
  EXPECT_EQ(SizeOf(DType::kBF16), 2u);
  EXPECT_EQ(SizeOf(DType::kF64), 8u);
  EXPECT_EQ(SizeOf(DType::kBool), 1u);
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) EXPECT_TRUE(IsFloat(dtype));
  for (const DType dtype : {DType::kI64, DType::kI32, DType::kI16, DType::kI8, DType::kU8, DType::kBool}) {
    EXPECT_FALSE(IsFloat(dtype));
  }
}

TEST(Tensor, StartsAtZeroAndClones) {
  Tensor tensor({2, 3});
  EXPECT_EQ(tensor.size(), 6u);
  for (const float value : tensor.span()) EXPECT_EQ(value, 0.0f);
  tensor[5] = 4.0f;
  Tensor copy = tensor.Clone();
  copy[5] = 1.0f;
  EXPECT_EQ(tensor[5], 4.0f);
  EXPECT_EQ(copy.shape(), (Shape{2, 3}));
  EXPECT_EQ(Tensor(Shape{}).size(), 1u);  // a scalar
  EXPECT_EQ(Tensor(Shape{0, 5}).size(), 0u);
}

TEST(Tensor, ImpossibleShapesAreErrors) {
  EXPECT_THROW(Tensor(Shape{uint64_t{1} << 33, uint64_t{1} << 33}), Error);
  EXPECT_THROW(Tensor(Shape{uint64_t{1} << 62}), Error);
  EXPECT_THROW(Tensor(Shape{UINT64_MAX}), Error);
}

}  // namespace
}  // namespace cairn
