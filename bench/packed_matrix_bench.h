// `cairn bench matrix`: the products of inference against the machine's limits.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/machine.h"
#include "kernels/packed_matrix.h"

namespace cairn {

struct MatrixSize {
  size_t rows;     // n: outputs
  size_t columns;  // k: inputs
};

struct MatrixBenchOptions {
  std::vector<WeightKind> kinds = {WeightKind::kInt8, WeightKind::kInt4, WeightKind::kF16, WeightKind::kF32};
  std::vector<MatrixSize> sizes = {{2048, 2048}, {5632, 2048}, {2048, 5632}};
  std::vector<size_t> rows = {1, 2, 4, 16, 128, 256};  // m, multiplied at once
  size_t megabytes = 512;                              // of weights that take turns, so that no cache keeps them
  double min_seconds = 0.3;                            // of repetition
};

struct MatrixBenchRow {
  WeightKind kind;
  MatrixSize size;
  size_t m;
  double microseconds;       // one product
  double gops;               // 2 m n k / time, 10^9
  double gbs;                // weights read, 10^9 bytes a second
  double compute_percent;    // of the int8 or f32 peak
  double bandwidth_percent;  // of the reading speed
};

struct MatrixBenchResult {
  MachineLimits machine;
  double int8_gops;
  int threads;
  double pack_gbs;  // packed bytes a second, from q8_0 to int8
  std::vector<MatrixBenchRow> rows;
};

MatrixBenchResult BenchMatrices(const MatrixBenchOptions& options);

}  // namespace cairn
