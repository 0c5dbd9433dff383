#include "bench/packed_matrix_bench.h"

#include <algorithm>
#include <limits>

#include "base/aligned.h"
#include "base/random.h"
#include "base/threads.h"
#include "bench/timing.h"

namespace cairn {

namespace {

// A random matrix in the stored type that a kind keeps as it is.
StoredType SourceOf(WeightKind kind) {
  switch (kind) {
    case WeightKind::kInt8:
      return StoredType::kQ8_0;
    case WeightKind::kInt4:
      return StoredType::kQ4_0;
    case WeightKind::kF16:
      return StoredType::kF16;
    default:
      return StoredType::kF32;
  }
}

AlignedBuffer<float> RandomFloats(size_t count, float scale) {
  AlignedBuffer<float> values(count);
  Random random(1);
  for (float& x : values) x = static_cast<float>(random.Uniform() - 0.5) * scale;
  return values;
}

std::vector<PackedMatrix> Copies(const StoredTensor& tensor, WeightKind kind, size_t bytes, double& seconds) {
  std::vector<PackedMatrix> copies;
  // Two parts, so that f32 and f16 are copied too.
  StoredTensor halves[2] = {tensor, tensor};
  const size_t half_rows = static_cast<size_t>(tensor.shape[0]) / 2;
  halves[0].shape[0] = half_rows;
  halves[0].bytes = tensor.bytes.first(half_rows * tensor.row_bytes());
  halves[1].shape[0] = tensor.shape[0] - half_rows;
  halves[1].bytes = tensor.bytes.subspan(half_rows * tensor.row_bytes());
  const double begin = SecondsNow();
  size_t total = 0;
  do {
    copies.emplace_back(halves, kind);
    total += copies.back().bytes();
  } while (total < bytes);
  seconds = SecondsNow() - begin;
  return copies;
}

// The best mean time of a product over a few rounds through all matrices.
double ProductSeconds(const std::vector<PackedMatrix>& matrices, size_t m, double min_seconds) {
  const AlignedBuffer<float> in = RandomFloats(m * matrices.front().columns(), 2.0f);
  AlignedBuffer<float> out(m * matrices.front().rows());
  matrices.front().Multiply(m, in.data(), out.data());  // grows scratch memory, compiles oneDNN's kernels
  double best = std::numeric_limits<double>::infinity();
  const double start = SecondsNow();
  // A piece of this length is long against the clock and short against what else the machine does.
  constexpr double kPiece = 3e-4;
  for (size_t next = 0; SecondsNow() - start < min_seconds;) {
    const double begin = SecondsNow();
    size_t count = 0;
    double elapsed = 0;
    for (; elapsed < kPiece; ++count) {
      matrices[next++ % matrices.size()].Multiply(m, in.data(), out.data());
      elapsed = SecondsNow() - begin;
    }
    best = std::min(best, elapsed / static_cast<double>(count));
  }
  return best;
}

}  // namespace

MatrixBenchResult BenchMatrices(const MatrixBenchOptions& options) {
  MatrixBenchResult result{};
  result.machine = MeasureMachine();
  result.int8_gops = MeasureInt8Gops();
  result.threads = ThreadCount();
  for (const WeightKind kind : options.kinds) {
    for (const MatrixSize size : options.sizes) {
      const AlignedBuffer<float> floats = RandomFloats(size.rows * size.columns, 0.1f);
      StoredTensor tensor{SourceOf(kind), {size.rows, size.columns}, {}};
      AlignedBuffer<std::byte> bytes(size.rows * tensor.row_bytes());
      ConvertFloatToStored(tensor.type, floats.span(), bytes.span());
      tensor.bytes = bytes.span();
      double seconds = 0;
      const auto matrices = Copies(tensor, kind, options.megabytes * 1'000'000, seconds);
      if (kind == WeightKind::kInt8) {
        const double packed = static_cast<double>(matrices.size() * matrices.front().bytes()) * 1e-9;
        result.pack_gbs = std::max(result.pack_gbs, packed / seconds);
      }
      for (const size_t m : options.rows) {
        const double time = ProductSeconds(matrices, m, options.min_seconds);
        const double operations = 2.0 * static_cast<double>(m * size.rows * size.columns);
        const bool integer = kind == WeightKind::kInt8 || kind == WeightKind::kInt4;
        MatrixBenchRow row{kind, size, m, time * 1e6, operations / time * 1e-9, 0, 0, 0};
        row.gbs = static_cast<double>(matrices.front().bytes()) / time * 1e-9;
        row.compute_percent = 100 * row.gops / (integer ? result.int8_gops : result.machine.f32_gflops);
        row.bandwidth_percent = 100 * row.gbs / result.machine.read_gbs;
        result.rows.push_back(row);
      }
    }
  }
  return result;
}

}  // namespace cairn
