// Products with packed matrices as three loops in f64: the oracle of PackedMatrix::Multiply.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "kernels/packed_matrix.h"

namespace cairn {

// The numbers that int8 and int4 products see instead of a row: int8 times a scale for 32 numbers. All NaN where a
// number of the row is not finite.
std::vector<float> RoundedToInt8(std::span<const float> row);

// out[m][n] = in[m][k] W^T with the weights as ReadRow gives them and, for int8 and int4, the rounded rows.
std::vector<double> ReferenceMultiply(const PackedMatrix& matrix, size_t m, std::span<const float> in);

}  // namespace cairn
