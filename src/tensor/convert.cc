#include "tensor/convert.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace cairn {

namespace {

template <typename T>
T Load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename From, typename To, typename Convert>
void ConvertAll(std::span<const std::byte> bytes, std::span<To> out, Convert convert) {
  CAIRN_CHECK(bytes.size() == out.size() * sizeof(From));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<To>(convert(Load<From>(bytes.data() + i * sizeof(From))));
}

constexpr auto kSame = [](auto value) { return value; };

}  // namespace

bool IsFloat(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

void ConvertToFloat(DType dtype, std::span<const std::byte> bytes, std::span<float> out) {
  switch (dtype) {
    case DType::kF64:
      return ConvertAll<double>(bytes, out, kSame);
    case DType::kF32:
      CAIRN_CHECK(bytes.size() == out.size_bytes());
      if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
      return;
    case DType::kF16:
      return ConvertAll<uint16_t>(bytes, out, HalfToFloat);
    case DType::kBF16:
      return ConvertAll<uint16_t>(bytes, out, BFloatToFloat);
    default:
      CAIRN_CHECK(false, "{} is not a float type", NameOf(dtype));
  }
}

void ConvertToInteger(DType dtype, std::span<const std::byte> bytes, std::span<int64_t> out) {
  switch (dtype) {
    case DType::kI64:
      return ConvertAll<int64_t>(bytes, out, kSame);
    case DType::kI32:
      return ConvertAll<int32_t>(bytes, out, kSame);
    case DType::kI16:
      return ConvertAll<int16_t>(bytes, out, kSame);
    case DType::kI8:
      return ConvertAll<int8_t>(bytes, out, kSame);
    case DType::kU8:
      return ConvertAll<uint8_t>(bytes, out, kSame);
    case DType::kBool:
      return ConvertAll<uint8_t>(bytes, out, [](uint8_t value) { return value != 0; });
    default:
      CAIRN_CHECK(false, "{} is not an integer type", NameOf(dtype));
  }
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) return std::bit_cast<float>(sign | 0x7f800000 | ((magnitude & 0x3ff) << 13));
  if (magnitude < 0x400) {  // subnormal: magnitude * 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + (112u << 23)));
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and more
  if (magnitude < 0x38800000) {  // below 2^-14: subnormal, in units of 2^-24; the addition rounds to nearest even
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f)));
  }
  const uint32_t odd = (magnitude >> 13) & 1;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + odd) >> 13));
}

float BFloatToFloat(uint16_t value) { return std::bit_cast<float>(static_cast<uint32_t>(value) << 16); }

uint16_t FloatToBFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace cairn
