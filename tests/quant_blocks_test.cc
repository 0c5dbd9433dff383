// The block types of GGUF against blocks that were packed here by their description, bit by bit.
#include "tensor/quant_blocks.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "formats/rotary_layout.h"
#include "tensor/convert.h"
#include "tensor/stored_tensor.h"

namespace cairn {
namespace {

// Bits numbered from the lowest of byte 0 upwards.
void SetBits(std::span<std::byte> bytes, size_t first, size_t count, unsigned value) {
  for (size_t i = 0; i < count; ++i) {
    const auto mask = std::byte{static_cast<unsigned char>(1u << ((first + i) % 8))};
    if ((value >> i) & 1) bytes[(first + i) / 8] |= mask;
  }
}

void SetHalf(std::span<std::byte> bytes, size_t at, float value) {
  const uint16_t half = FloatToHalf(value);
  std::memcpy(bytes.data() + at, &half, 2);
}

TEST(QuantBlocks, Q8_0) {
  std::array<std::byte, kQ8_0Bytes> block{};
  SetHalf(block, 0, 0.25f);
  for (size_t i = 0; i < 32; ++i)
    block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(8 * static_cast<int>(i) - 128));
  std::array<float, 32> out;
  DequantizeQ8_0(block, out);
  EXPECT_EQ(out[0], -32.0f);
  EXPECT_EQ(out[16], 0.0f);
  EXPECT_EQ(out[31], 30.0f);
}

TEST(QuantBlocks, Q4_0) {
  std::array<std::byte, kQ4_0Bytes> block{};
  SetHalf(block, 0, 0.5f);
  for (size_t i = 0; i < 16; ++i) {
    SetBits(std::span(block).subspan(2), 8 * i, 4, static_cast<unsigned>(i));
    SetBits(std::span(block).subspan(2), 8 * i + 4, 4, static_cast<unsigned>(15 - i));
  }
  std::array<float, 32> out;
  DequantizeQ4_0(block, out);
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[static_cast<size_t>(i)], 0.5f * static_cast<float>(i - 8));
    EXPECT_EQ(out[static_cast<size_t>(16 + i)], 0.5f * static_cast<float>(7 - i));
  }
}

TEST(QuantBlocks, Q4_K) {
  Random random(3);
  for (int trial = 0; trial < 20; ++trial) {
    std::array<std::byte, kQ4_KBytes> block{};
    SetHalf(block, 0, 0.125f);
    SetHalf(block, 2, 0.0625f);
    const auto packed = std::span(block).subspan(4, 12);
    std::array<unsigned, 8> scale, minimum;
    for (size_t j = 0; j < 8; ++j) {
      scale[j] = static_cast<unsigned>(random.Below(64));
      minimum[j] = static_cast<unsigned>(random.Below(64));
      if (j < 4) {
        SetBits(packed, 8 * j, 6, scale[j]);
        SetBits(packed, 8 * (j + 4), 6, minimum[j]);
      } else {
        SetBits(packed, 8 * (j + 4), 4, scale[j] & 15);
        SetBits(packed, 8 * (j + 4) + 4, 4, minimum[j] & 15);
        SetBits(packed, 8 * (j - 4) + 6, 2, scale[j] >> 4);
        SetBits(packed, 8 * j + 6, 2, minimum[j] >> 4);
      }
    }
    std::array<unsigned, 256> q;
    for (size_t i = 0; i < 256; ++i) {
      q[i] = static_cast<unsigned>(random.Below(16));
      const size_t pair = i / 64, high = i / 32 % 2, lane = i % 32;
      SetBits(std::span(block).subspan(16), 8 * (32 * pair + lane) + 4 * high, 4, q[i]);
    }
    std::array<float, 256> out;
    DequantizeQ4_K(block, out);
    for (size_t i = 0; i < 256; ++i) {
      const float expected =
          0.125f * static_cast<float>(scale[i / 32] * q[i]) - 0.0625f * static_cast<float>(minimum[i / 32]);
      ASSERT_EQ(out[i], expected) << i;  // powers of two: exact
    }
  }
}

TEST(QuantBlocks, Q6_K) {
  Random random(4);
  for (int trial = 0; trial < 20; ++trial) {
    std::array<std::byte, kQ6_KBytes> block{};
    SetHalf(block, 208, 0.0625f);
    std::array<int, 16> scale;
    for (size_t j = 0; j < 16; ++j) {
      scale[j] = static_cast<int>(random.Below(256)) - 128;
      block[192 + j] = static_cast<std::byte>(static_cast<int8_t>(scale[j]));
    }
    std::array<int, 256> q;
    for (size_t i = 0; i < 256; ++i) {
      const auto raw = static_cast<unsigned>(random.Below(64));
      q[i] = static_cast<int>(raw) - 32;
      const size_t half = i / 128, lane = i % 128;
      // Low nibbles: elements 0-63 of the half in the low ones of its 64 bytes, 64-127 in the high ones.
      SetBits(block, 8 * (64 * half + lane % 64) + (lane < 64 ? 0 : 4), 4, raw & 15);
      SetBits(std::span(block).subspan(128), 8 * (32 * half + lane % 32) + 2 * (lane / 32), 2, raw >> 4);
    }
    std::array<float, 256> out;
    DequantizeQ6_K(block, out);
    for (size_t i = 0; i < 256; ++i) ASSERT_EQ(out[i], 0.0625f * static_cast<float>(scale[i / 16] * q[i])) << i;
  }
}

TEST(QuantBlocks, QuantizeQ8_0KeepsHalfAStep) {
  Random random(5);
  std::array<float, 32> values, back;
  std::array<std::byte, kQ8_0Bytes> block;
  for (int trial = 0; trial < 200; ++trial) {
    float largest = 0;
    for (float& value : values) {
      value = static_cast<float>(random.Normal());
      largest = std::max(largest, std::abs(value));
    }
    QuantizeQ8_0(values, block);
    DequantizeQ8_0(block, back);
    // Half a step, and the rounding of the scale to f16.
    for (size_t i = 0; i < 32; ++i) ASSERT_NEAR(back[i], values[i], largest / 254 + largest * 0x1p-11f) << i;
  }
  values.fill(0);
  QuantizeQ8_0(values, block);
  DequantizeQ8_0(block, back);
  EXPECT_EQ(back[7], 0.0f);
  values[3] = 1e-45f;  // the inverse of the scale overflows
  QuantizeQ8_0(values, block);
  DequantizeQ8_0(block, back);
  EXPECT_EQ(back[3], 0.0f);
}

TEST(QuantBlocks, Q4_0RoundTrip) {
  Random random(7);
  std::array<float, 32> values, back;
  std::array<std::byte, kQ4_0Bytes> block{};
  for (int round = 0; round < 100; ++round) {
    float extreme = 0;
    for (float& value : values) {
      value = static_cast<float>(random.Normal());
      if (std::abs(value) > std::abs(extreme)) extreme = value;
    }
    QuantizeQ4_0(values, block);
    DequantizeQ4_0(block, back);
    const float step = std::abs(extreme) / 8;
    for (size_t i = 0; i < 32; ++i) {
      // Half a step and the rounding of the scale to f16; what lies beyond nibble 15 is cut there.
      const float reach = extreme < 0 ? 7 * step : -7 * step;
      const float wanted = extreme < 0 ? std::min(values[i], reach) : std::max(values[i], reach);
      ASSERT_NEAR(back[i], wanted, step / 2 + 8 * step * 0x1p-11f) << i;
      if (values[i] == extreme) {
        ASSERT_NEAR(back[i], extreme, 8 * step * 0x1p-11f);
      }
    }
    // What was once rounded stays.
    std::array<std::byte, kQ4_0Bytes> again{};
    QuantizeQ4_0(back, again);
    EXPECT_EQ(again, block);
  }
  values.fill(0);
  QuantizeQ4_0(values, block);
  DequantizeQ4_0(block, back);
  EXPECT_EQ(back[7], 0.0f);
  values[3] = 1e-45f;  // the inverse of the scale overflows
  QuantizeQ4_0(values, block);
  DequantizeQ4_0(block, back);
  EXPECT_EQ(back[3], 0.0f);
}

TEST(StoredTensor, FloatsAreWrittenAsQ4_0) {
  std::vector<float> values(64);
  for (size_t i = 0; i < 64; ++i) values[i] = static_cast<float>(i % 16) - 8.0f;
  std::vector<std::byte> bytes(2 * kQ4_0Bytes);
  ConvertFloatToStored(StoredType::kQ4_0, values, bytes);
  std::vector<float> back(64);
  ConvertStoredToFloat(StoredType::kQ4_0, bytes, back);
  EXPECT_EQ(back, values);
}

TEST(StoredTensor, Sizes) {
  EXPECT_EQ(StoredBytes(StoredType::kQ4_K, {3, 512}), 3 * 2 * 144u);
  EXPECT_EQ(StoredBytes(StoredType::kQ8_0, {3, 33}), std::nullopt);
  EXPECT_EQ(StoredBytes(StoredType::kF32, {uint64_t{1} << 40, uint64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(StoredBytes(StoredType::kF32, {uint64_t{1} << 62}), std::nullopt);
  for (const StoredType type : {StoredType::kF32, StoredType::kF16, StoredType::kBF16, StoredType::kQ8_0,
                                StoredType::kQ4_0, StoredType::kQ4_K, StoredType::kQ6_K}) {
    EXPECT_EQ(StoredTypeNamed(NameOf(type)), type);
  }
}

TEST(RotaryLayout, PermutationIsTheOneOfThePairs) {
  // Pair 1 of head 2, head_dim 8: rows 17 and 21 in the half layout, 18 and 19 in the interleaved one.
  EXPECT_EQ(RotarySourceRow(18, 8, RotaryLayout::kHalf, RotaryLayout::kInterleaved), 17u);
  EXPECT_EQ(RotarySourceRow(19, 8, RotaryLayout::kHalf, RotaryLayout::kInterleaved), 21u);
  EXPECT_EQ(RotarySourceRow(17, 8, RotaryLayout::kInterleaved, RotaryLayout::kHalf), 18u);
  EXPECT_EQ(RotarySourceRow(21, 8, RotaryLayout::kInterleaved, RotaryLayout::kHalf), 19u);
}

TEST(RotaryLayout, BothWaysAreInverse) {
  Random random(6);
  for (const size_t head_dim : {2, 8, 48, 128}) {
    for (const StoredType type : {StoredType::kF32, StoredType::kQ8_0}) {
      StoredTensor tensor{type, {3 * head_dim, 64}, {}};
      std::vector<std::byte> bytes(*StoredBytes(type, tensor.shape)), there(bytes.size()), back(bytes.size());
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
      tensor.bytes = bytes;
      ReorderRotaryRows(tensor, head_dim, RotaryLayout::kHalf, RotaryLayout::kInterleaved, there);
      EXPECT_EQ(there != bytes, head_dim > 2);
      tensor.bytes = there;
      ReorderRotaryRows(tensor, head_dim, RotaryLayout::kInterleaved, RotaryLayout::kHalf, back);
      EXPECT_EQ(back, bytes);
    }
  }
}

}  // namespace
}  // namespace cairn
