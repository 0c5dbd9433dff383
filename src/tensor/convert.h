// Conversion of raw little-endian elements to and from the types that computations use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace cairn {

bool IsFloat(DType dtype);

// `bytes` hold out.size() elements of `dtype` (a float type), at any alignment.
void ConvertToFloat(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

// The same for integer types; BOOL gives 0 or 1.
void ConvertToInteger(DType dtype, std::span<const std::byte> bytes, std::span<int64_t> out);

float HalfToFloat(uint16_t half);     // IEEE binary16
uint16_t FloatToHalf(float value);    // round to nearest even; overflow gives infinity
float BFloatToFloat(uint16_t value);  // bfloat16
uint16_t FloatToBFloat(float value);  // round to nearest even; NaN stays NaN

}  // namespace cairn
