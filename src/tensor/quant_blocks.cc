#include "tensor/quant_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "tensor/convert.h"

namespace cairn {

namespace {

float LoadHalf(const std::byte* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return HalfToFloat(half);
}

int Low(std::byte value) { return std::to_integer<int>(value) & 15; }
int High(std::byte value) { return std::to_integer<int>(value) >> 4; }
int Signed(std::byte value) { return static_cast<int8_t>(std::to_integer<uint8_t>(value)); }

}  // namespace

void DequantizeQ8_0(std::span<const std::byte, kQ8_0Bytes> block, std::span<float, kQ8_0Elements> out) {
  const float scale = LoadHalf(block.data());
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<float>(Signed(block[2 + i])) * scale;
}

void DequantizeQ4_0(std::span<const std::byte, kQ4_0Bytes> block, std::span<float, kQ4_0Elements> out) {
  const float scale = LoadHalf(block.data());
  // The first half of the block is in the low nibbles, the second in the high ones.
  for (size_t i = 0; i < 16; ++i) {
    out[i] = static_cast<float>(Low(block[2 + i]) - 8) * scale;
    out[16 + i] = static_cast<float>(High(block[2 + i]) - 8) * scale;
  }
}

void DequantizeQ4_K(std::span<const std::byte, kQ4_KBytes> block, std::span<float, kQ4_KElements> out) {
  const float scale = LoadHalf(block.data());
  const float minimum = LoadHalf(block.data() + 2);
  const std::byte* packed = block.data() + 4;
  const std::byte* nibbles = block.data() + 16;
  for (size_t part = 0; part < 8; ++part) {
    // Eight 6-bit scales and minima in 12 bytes: parts 0-3 in the low six bits of bytes 0-7, parts 4-7 in the nibbles
    // of bytes 8-11 with their upper two bits on top of bytes 0-7.
    const auto byte = [&](size_t i) { return std::to_integer<int>(packed[i]); };
    const int part_scale = part < 4 ? byte(part) & 63 : (byte(part + 4) & 15) | ((byte(part - 4) >> 6) << 4);
    const int part_minimum = part < 4 ? byte(part + 4) & 63 : (byte(part + 4) >> 4) | ((byte(part) >> 6) << 4);
    const float d = scale * static_cast<float>(part_scale);
    const float m = minimum * static_cast<float>(part_minimum);
    // Each 32 bytes hold two parts: low nibbles, then high nibbles.
    const std::byte* source = nibbles + part / 2 * 32;
    for (size_t i = 0; i < 32; ++i) {
      const int q = part % 2 == 0 ? Low(source[i]) : High(source[i]);
      out[part * 32 + i] = d * static_cast<float>(q) - m;
    }
  }
}

void DequantizeQ6_K(std::span<const std::byte, kQ6_KBytes> block, std::span<float, kQ6_KElements> out) {
  const std::byte* low = block.data();           // 2 halves of 64 bytes
  const std::byte* high = block.data() + 128;    // 2 halves of 32 bytes
  const std::byte* scales = block.data() + 192;  // one for 16 elements
  const float scale = LoadHalf(block.data() + 208);
  for (size_t i = 0; i < kQ6_KElements; ++i) {
    const size_t half = i / 128;
    const size_t quarter = i % 128 / 32;  // of the half
    const size_t lane = i % 32;
    const std::byte nibbles = low[half * 64 + quarter % 2 * 32 + lane];
    const int low_bits = quarter < 2 ? Low(nibbles) : High(nibbles);
    const int high_bits = (std::to_integer<int>(high[half * 32 + lane]) >> (2 * quarter)) & 3;
    const int q = (low_bits | (high_bits << 4)) - 32;
    out[i] = scale * static_cast<float>(Signed(scales[i / 16])) * static_cast<float>(q);
  }
}

void QuantizeQ8_0(std::span<const float, kQ8_0Elements> values, std::span<std::byte, kQ8_0Bytes> block) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const float scale = largest / 127.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  const uint16_t half = FloatToHalf(scale);
  std::memcpy(block.data(), &half, sizeof(half));
  for (size_t i = 0; i < values.size(); ++i) {
    // A subnormal scale has an infinite inverse; the clamp keeps the result defined.
    const float q = std::clamp(std::round(values[i] * inverse), -127.0f, 127.0f);
    block[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::isnan(q) ? 0.0f : q));
  }
}

void QuantizeQ4_0(std::span<const float, kQ4_0Elements> values, std::span<std::byte, kQ4_0Bytes> block) {
  float extreme = 0;  // the value of largest magnitude, with its sign
  for (const float value : values) {
    if (std::abs(value) > std::abs(extreme)) extreme = value;
  }
  const float scale = extreme / -8.0f;
  const float inverse = scale != 0 ? 1.0f / scale : 0.0f;
  const uint16_t half = FloatToHalf(scale);
  std::memcpy(block.data(), &half, sizeof(half));
  const auto nibble = [&](float value) {
    const float q = std::clamp(std::floor(value * inverse + 8.5f), 0.0f, 15.0f);
    return std::isnan(q) ? 8 : static_cast<int>(q);  // zero times the infinite inverse of a subnormal scale
  };
  for (size_t i = 0; i < 16; ++i) {
    block[2 + i] = static_cast<std::byte>(nibble(values[i]) | (nibble(values[16 + i]) << 4));
  }
}

}  // namespace cairn
