// Matrix products of any size on oneDNN, with its primitives cached. Row-major, f32, all threads.
#pragma once

#include <cstddef>

namespace cairn {

// C[m][n] = A B, or C += A B. A is [m][k], or [k][m] when transposed; B is [k][n], or [n][k] when transposed. Strides
// are those of the stored rows; 0 means dense.
struct MatMul {
  size_t m = 0;
  size_t n = 0;
  size_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  size_t stride_a = 0;
  size_t stride_b = 0;
  size_t stride_c = 0;
};

// Thread-safe. The first call of a shape compiles its kernel (milliseconds); later ones find it.
void RunMatMul(const MatMul& shape, const float* a, const float* b, float* c);

// Three loops: the oracle of its test.
void ReferenceMatMul(const MatMul& shape, const float* a, const float* b, float* c);

}  // namespace cairn
