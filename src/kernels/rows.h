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

}  // namespace cairn
