// Products with matrices whose rows lie one after the other as f32 or f16. Private to PackedMatrix.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// W is [rows][columns], dense, f32 or f16. out[m][rows] = or += in[m][columns] W^T.
struct RowProduct {
  const void* weights;  // aligned to an element
  bool f16;
  size_t rows;
  size_t columns;
  size_t m;
  const float* in;
  float* out;
  bool accumulate;
};

// All threads; callable from several threads at once.
void MultiplyRows(const RowProduct& product);

}  // namespace cairn
