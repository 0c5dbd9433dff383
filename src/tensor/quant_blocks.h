// The block-quantised element types of GGUF, one block at a time: plain references that fast kernels are tested
// against. Blocks are packed little-endian without padding and need no alignment.
#pragma once

#include <cstddef>
#include <span>

namespace cairn {

// Elements and bytes of one block.
constexpr size_t kQ8_0Elements = 32;
constexpr size_t kQ8_0Bytes = 2 + 32;  // f16 scale, 32 int8
constexpr size_t kQ4_0Elements = 32;
constexpr size_t kQ4_0Bytes = 2 + 16;  // f16 scale, 32 nibbles
constexpr size_t kQ4_KElements = 256;
constexpr size_t kQ4_KBytes = 2 + 2 + 12 + 128;  // f16 scale, f16 minimum, 8 x (6 + 6) bits, 256 nibbles
constexpr size_t kQ6_KElements = 256;
constexpr size_t kQ6_KBytes = 128 + 64 + 16 + 2;  // low nibbles, high pairs of bits, 16 int8 scales, f16 scale

void DequantizeQ8_0(std::span<const std::byte, kQ8_0Bytes> block, std::span<float, kQ8_0Elements> out);
void DequantizeQ4_0(std::span<const std::byte, kQ4_0Bytes> block, std::span<float, kQ4_0Elements> out);
void DequantizeQ4_K(std::span<const std::byte, kQ4_KBytes> block, std::span<float, kQ4_KElements> out);
void DequantizeQ6_K(std::span<const std::byte, kQ6_KBytes> block, std::span<float, kQ6_KElements> out);

// Symmetric: the largest magnitude becomes 127. Values must be finite.
void QuantizeQ8_0(std::span<const float, kQ8_0Elements> values, std::span<std::byte, kQ8_0Bytes> block);

// The number of largest magnitude becomes nibble 0, which is -8 times the scale. Values must be finite.
void QuantizeQ4_0(std::span<const float, kQ4_0Elements> values, std::span<std::byte, kQ4_0Bytes> block);

}  // namespace cairn
