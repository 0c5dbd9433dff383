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

struct RowRange {
  size_t begin;
  size_t end;
};

constexpr size_t kScratchRows = 6;  // rows of W that are converted at once; every tile's height divides it

// A result depends on its row of `in` and its row of W alone, bit by bit. All threads; callable from several threads at
// once.
void MultiplyRows(const RowProduct& product);

}  // namespace cairn
