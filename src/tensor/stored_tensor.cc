#include "tensor/stored_tensor.h"

#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "tensor/convert.h"
#include "tensor/quant_blocks.h"

namespace cairn {

namespace {

struct TypeInfo {
  StoredType type;
  std::string_view name;
  size_t block_elements;
  size_t block_bytes;
};

constexpr TypeInfo kTypes[] = {
    {StoredType::kF32, "f32", 1, 4},
    {StoredType::kF16, "f16", 1, 2},
    {StoredType::kBF16, "bf16", 1, 2},
    {StoredType::kQ8_0, "q8_0", kQ8_0Elements, kQ8_0Bytes},
    {StoredType::kQ4_0, "q4_0", kQ4_0Elements, kQ4_0Bytes},
    {StoredType::kQ4_K, "q4_K", kQ4_KElements, kQ4_KBytes},
    {StoredType::kQ6_K, "q6_K", kQ6_KElements, kQ6_KBytes},
};

const TypeInfo& Info(StoredType type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  CAIRN_CHECK(false, "unknown stored type");
}

template <size_t kElements, size_t kBytes, typename Quantize>
void QuantizeAll(std::span<const float> values, std::span<std::byte> out, Quantize quantize) {
  for (size_t block = 0; block < values.size() / kElements; ++block) {
    quantize(std::span<const float, kElements>(values.data() + block * kElements, kElements),
             std::span<std::byte, kBytes>(out.data() + block * kBytes, kBytes));
  }
}

template <size_t kElements, size_t kBytes, typename Dequantize>
void DequantizeAll(std::span<const std::byte> bytes, std::span<float> out, Dequantize dequantize) {
  for (size_t block = 0; block < out.size() / kElements; ++block) {
    dequantize(std::span<const std::byte, kBytes>(bytes.data() + block * kBytes, kBytes),
               std::span<float, kElements>(out.data() + block * kElements, kElements));
  }
}

}  // namespace

std::string_view NameOf(StoredType type) { return Info(type).name; }
size_t BlockElements(StoredType type) { return Info(type).block_elements; }
size_t BlockBytes(StoredType type) { return Info(type).block_bytes; }
bool IsQuantized(StoredType type) { return BlockElements(type) > 1; }

std::optional<StoredType> StoredTypeNamed(std::string_view name) {
  for (const TypeInfo& info : kTypes) {
    if (info.name == name) return info.type;
  }
  return std::nullopt;
}

std::optional<uint64_t> StoredBytes(StoredType type, const Shape& shape) {
  const auto count = CheckedProduct(shape);
  const uint64_t row = shape.empty() ? 1 : shape.back();
  if (!count || row % BlockElements(type) != 0) return std::nullopt;
  return CheckedMul(*count / BlockElements(type), BlockBytes(type));
}

void ConvertStoredToFloat(StoredType type, std::span<const std::byte> bytes, std::span<float> out) {
  CAIRN_CHECK(out.size() % BlockElements(type) == 0);
  CAIRN_CHECK(bytes.size() == out.size() / BlockElements(type) * BlockBytes(type));
  switch (type) {
    case StoredType::kF32:
      return ConvertToFloat(DType::kF32, bytes, out);
    case StoredType::kF16:
      return ConvertToFloat(DType::kF16, bytes, out);
    case StoredType::kBF16:
      return ConvertToFloat(DType::kBF16, bytes, out);
    case StoredType::kQ8_0:
      return DequantizeAll<kQ8_0Elements, kQ8_0Bytes>(bytes, out, DequantizeQ8_0);
    case StoredType::kQ4_0:
      return DequantizeAll<kQ4_0Elements, kQ4_0Bytes>(bytes, out, DequantizeQ4_0);
    case StoredType::kQ4_K:
      return DequantizeAll<kQ4_KElements, kQ4_KBytes>(bytes, out, DequantizeQ4_K);
    case StoredType::kQ6_K:
      return DequantizeAll<kQ6_KElements, kQ6_KBytes>(bytes, out, DequantizeQ6_K);
  }
}

void ConvertFloatToStored(StoredType type, std::span<const float> values, std::span<std::byte> out) {
  CAIRN_CHECK(values.size() % BlockElements(type) == 0);
  CAIRN_CHECK(out.size() == values.size() / BlockElements(type) * BlockBytes(type));
  switch (type) {
    case StoredType::kF32:
      if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
      return;
    case StoredType::kF16:
    case StoredType::kBF16:
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t bits = type == StoredType::kF16 ? FloatToHalf(values[i]) : FloatToBFloat(values[i]);
        std::memcpy(out.data() + 2 * i, &bits, 2);
      }
      return;
    case StoredType::kQ8_0:
      return QuantizeAll<kQ8_0Elements, kQ8_0Bytes>(values, out, QuantizeQ8_0);
    case StoredType::kQ4_0:
      return QuantizeAll<kQ4_0Elements, kQ4_0Bytes>(values, out, QuantizeQ4_0);
    default:
      CAIRN_CHECK(false, "{} is never written", NameOf(type));
  }
}

}  // namespace cairn
