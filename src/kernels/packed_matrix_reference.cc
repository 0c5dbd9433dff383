#include "kernels/packed_matrix_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace cairn {

std::vector<float> RoundedToInt8(std::span<const float> row) {
  std::vector<float> out(row.size());
  constexpr size_t kBlock = 32;
  for (size_t begin = 0; begin < row.size(); begin += kBlock) {
    const size_t end = std::min(row.size(), begin + kBlock);
    float peak = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!std::isfinite(row[i])) return std::vector<float>(row.size(), std::numeric_limits<float>::quiet_NaN());
      peak = std::max(peak, std::abs(row[i]));
    }
    if (peak < 1e-30f) continue;  // zeros
    const float scale = peak * (1.0f / 127.0f);
    const float inverse = 127.0f / peak;
    for (size_t i = begin; i < end; ++i) out[i] = scale * std::nearbyint(row[i] * inverse);
  }
  return out;
}

std::vector<double> ReferenceMultiply(const PackedMatrix& matrix, size_t m, std::span<const float> in) {
  const size_t n = matrix.rows();
  const size_t k = matrix.columns();
  CAIRN_CHECK(in.size() == m * k);
  const bool rounded = matrix.kind() == WeightKind::kInt8 || matrix.kind() == WeightKind::kInt4;
  std::vector<float> rows(in.begin(), in.end());
  for (size_t i = 0; rounded && i < m; ++i) {
    const std::vector<float> row = RoundedToInt8(in.subspan(i * k, k));
    std::copy(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * k));
  }
  std::vector<double> out(m * n);
  std::vector<float> weights(k);
  for (size_t j = 0; j < n; ++j) {
    matrix.ReadRow(j, weights.data());
    for (size_t i = 0; i < m; ++i) {
      double sum = 0;
      for (size_t c = 0; c < k; ++c) sum += static_cast<double>(rows[i * k + c]) * static_cast<double>(weights[c]);
      out[i * n + j] = sum;
    }
  }
  return out;
}

}  // namespace cairn
