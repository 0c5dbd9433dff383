// Operands of the tile products in broadcast_gemm-inl.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// A[m][k] at data[m * row_stride + k * depth_stride].
struct GemmLeft {
  const float* data;
  size_t row_stride;
  size_t depth_stride;
};

// B[k][n] at data[k * depth_stride + n]; rows aligned to the vector length.
struct GemmRight {
  const float* data;
  size_t depth_stride;
};

// The same with numbers of 16 bits (IEEE half), converted as they are read.
struct GemmRightHalf {
  const uint16_t* data;
  size_t depth_stride;
};

// The same with signed bytes, converted as they are read.
struct GemmRightByte {
  const int8_t* data;
  size_t depth_stride;
};

// The sum runs over `runs` stretches of `length` values of k, `skip` values left out after each.
struct GemmDepth {
  size_t length;
  size_t runs = 1;
  size_t skip = 0;
};

}  // namespace cairn
