// Cosines and sines of the rotary positions of a batch.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace cairn {

class RotaryTable {
 public:
  explicit RotaryTable(const ModelConfig& config);

  // Positions of [rows][time], or null for 0, 1, 2, ... in every row. `miss`: one more row, at position -1.
  void Set(const int32_t* positions, size_t rows, size_t time, bool miss);

  // Rotates the first `heads` heads of each of `count` rows (those of Set, in order) in place.
  void Apply(float* data, size_t row_stride, size_t heads, size_t count, bool inverse) const;

  // Cosine and sine of one position, [head_dim / 2] each.
  void At(double position, float* cosine, float* sine) const;

 private:
  size_t dim_;
  bool interleaved_;
  std::vector<double> frequencies_;
  size_t table_rows_ = 0;  // ordinary rows of the table; the context-miss row follows them
  size_t data_rows_ = 0;   // ordinary rows of the data
  std::vector<float> cosine_, sine_;
  bool standard_ = false;  // the table holds 0, 1, 2, ...
};

}  // namespace cairn
