// One vector against a few rows: dot products and weighted sums. SIMD with run-time dispatch, the caller's thread
// alone.
#pragma once

#include <cstddef>

namespace cairn {

// `count` rows of `columns` numbers, `stride` apart.
struct RowsView {
  size_t count;
  size_t columns;
  size_t stride;
};

// scores[j] = query . rows[j].
void DotRows(const RowsView& shape, const float* query, const float* rows, float* scores);

// to += sum over j of weights[j] * rows[j].
void AddWeightedRows(const RowsView& shape, const float* weights, const float* rows, float* to);

// rows[j] += weights[j] * from.
void AddOuter(const RowsView& shape, const float* weights, const float* from, float* rows);

// row *= factor.
void ScaleRow(float factor, float* row, size_t columns);

// Pairs of numbers rotated by angles, [half] cosines and sines: pairs are (0, half), (1, half + 1), ... or,
// interleaved, (0, 1), (2, 3), ... `back` turns the other way. In place is fine.
struct RowTurn {
  const float* cosine;
  const float* sine;
  size_t half;
  bool interleaved;
  bool back;
};
void TurnRow(const RowTurn& turn, const float* from, float* to);

}  // namespace cairn
