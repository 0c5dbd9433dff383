// A tensor as it lies in a model file: element type, shape and raw bytes; and its conversion, row by row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tensor/tensor.h"

namespace cairn {

enum class StoredType { kF32, kF16, kBF16, kQ8_0, kQ4_0, kQ4_K, kQ6_K };

std::string_view NameOf(StoredType type);                          // "f32", "q4_K"
std::optional<StoredType> StoredTypeNamed(std::string_view name);  // the inverse
bool IsQuantized(StoredType type);
size_t BlockElements(StoredType type);  // 1 for the float types; a row is a whole number of blocks
size_t BlockBytes(StoredType type);

// Bytes of a dense tensor; nothing on overflow or when a row (the last size) is not a whole number of blocks.
std::optional<uint64_t> StoredBytes(StoredType type, const Shape& shape);

// Dense, row-major, little-endian, at any alignment. Does not own the bytes.
struct StoredTensor {
  StoredType type = StoredType::kF32;
  Shape shape;
  std::span<const std::byte> bytes;

  size_t row_elements() const { return shape.empty() ? 1 : static_cast<size_t>(shape.back()); }
  size_t row_bytes() const { return row_elements() / BlockElements(type) * BlockBytes(type); }
};

// `bytes` hold out.size() elements (whole blocks) of `type`.
void ConvertStoredToFloat(StoredType type, std::span<const std::byte> bytes, std::span<float> out);

// The inverse, for f32, f16, bf16, q8_0 and q4_0; `out` has room for exactly values.size() elements. The quantised
// types need finite values.
void ConvertFloatToStored(StoredType type, std::span<const float> values, std::span<std::byte> out);

}  // namespace cairn
