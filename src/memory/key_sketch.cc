#include "memory/key_sketch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/rows.h"

namespace cairn {

namespace {

// Keys that directions are taken from, spread over all of them.
constexpr size_t kSample = 2048;
// The unit of a sketch's half bytes is a part of what most coordinates of the keys stay below, as they would within one
// deviation if they were normal: the half bytes reach about four.
constexpr double kMost = 0.68, kStep = 0.5;
// Directions that are taken at least: 8 bytes a key are cheap.
constexpr size_t kLeastRank = 16;
// Fewer queries are projected one by one.
constexpr size_t kFewQueries = 8;
// Numbers of a sketch come in such groups.
constexpr size_t kGroup = 8;

// Eigenvalues in descending order and their vectors (columns of `vectors`) of a symmetric matrix, by Jacobi's
// rotations.
void Eigen(std::vector<double>& a, size_t n, std::vector<double>& values, std::vector<double>& vectors) {
  std::vector<double> v(n * n, 0.0);
  for (size_t i = 0; i < n; ++i) v[i * n + i] = 1;
  double all = 0;
  for (const double x : a) all += x * x;
  for (int sweep = 0; sweep < 12; ++sweep) {
    double rest = 0;
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) rest += a[p * n + q] * a[p * n + q];
    }
    if (!(rest > 1e-12 * all)) break;
    for (size_t p = 0; p < n; ++p) {
      for (size_t q = p + 1; q < n; ++q) {
        const double apq = a[p * n + q];
        if (apq * apq <= 1e-18 * all) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq);
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1);
        const double s = t * c;
        for (size_t k = 0; k < n; ++k) {
          const double x = a[k * n + p], y = a[k * n + q];
          a[k * n + p] = c * x - s * y;
          a[k * n + q] = s * x + c * y;
        }
        double* rp = &a[p * n];
        double* rq = &a[q * n];
        double* vp = &v[p * n];
        double* vq = &v[q * n];
        for (size_t k = 0; k < n; ++k) {
          const double x = rp[k], y = rq[k], xv = vp[k], yv = vq[k];
          rp[k] = c * x - s * y;
          rq[k] = s * x + c * y;
          vp[k] = c * xv - s * yv;
          vq[k] = s * xv + c * yv;
        }
      }
    }
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t x, size_t y) { return a[x * n + x] > a[y * n + y]; });
  values.resize(n);
  vectors.resize(n * n);
  for (size_t j = 0; j < n; ++j) {
    values[j] = std::max(0.0, a[order[j] * n + order[j]]);
    for (size_t i = 0; i < n; ++i) vectors[i * n + j] = v[order[j] * n + i];
  }
}

float UnitOf(double variance, double deviations) {
  const double unit = deviations * std::sqrt(variance);
  return unit > 1e-20 && unit < 1e20 ? static_cast<float>(unit) : 1.0f;
}

}  // namespace

KeySketch::KeySketch(const LandmarkPanels& keys, double left_out) : dim_(keys.dim()) {
  CAIRN_CHECK(keys.size() > 0);
  const size_t n = dim_;
  const size_t sample = std::min(keys.size(), kSample);
  std::vector<float> rows(sample * n);
  std::vector<double> sum(n, 0.0);
  for (size_t i = 0; i < sample; ++i) {
    float* row = &rows[i * n];
    keys.Read(i * keys.size() / sample, row);
    for (size_t d = 0; d < n; ++d) {
      if (!(std::abs(row[d]) < 1e15f)) row[d] = 0;
      sum[d] += row[d];
    }
  }
  mean_.resize(n);
  for (size_t d = 0; d < n; ++d) mean_[d] = static_cast<float>(sum[d] / static_cast<double>(sample));
  std::vector<double> covariance(n * n, 0.0);
  std::vector<double> centred(n);
  for (size_t i = 0; i < sample; ++i) {
    for (size_t d = 0; d < n; ++d) centred[d] = static_cast<double>(rows[i * n + d]) - mean_[d];
    for (size_t d = 0; d < n; ++d) {
      const double x = centred[d] / static_cast<double>(sample);
      for (size_t e = d; e < n; ++e) covariance[d * n + e] += x * centred[e];
    }
  }
  double all = 0;
  for (size_t d = 0; d < n; ++d) {
    for (size_t e = 0; e < d; ++e) covariance[d * n + e] = covariance[e * n + d];
    all += covariance[d * n + d];
  }
  std::vector<double> values, vectors;
  Eigen(covariance, n, values, vectors);
  double taken = 0;
  while (rank_ < n && (rank_ < kLeastRank || rank_ % kGroup != 0 || taken < (1 - left_out) * all))
    taken += values[rank_++];
  const size_t directions = rank_;
  rank_ = RoundUp(rank_, kGroup);
  directions_.assign(n * rank_, 0.0f);
  rows_.assign(n * rank_, 0.0f);
  units_.assign(rank_, 1.0f);
  for (size_t r = 0; r < directions; ++r) {
    for (size_t d = 0; d < n; ++d) {
      directions_[d * rank_ + r] = rows_[r * n + d] = static_cast<float>(vectors[d * n + r]);
    }
  }
  // Units are of most keys, not of the few that are far from all others and make the variance.
  std::vector<float> coordinates(sample * rank_);
  for (size_t i = 0; i < sample; ++i) Project(&rows[i * n], &coordinates[i * rank_]);
  std::vector<float> sizes(sample);
  const auto most = sizes.begin() + static_cast<ptrdiff_t>(kMost * static_cast<double>(sample - 1));
  for (size_t r = 0; r < directions; ++r) {
    for (size_t i = 0; i < sample; ++i) sizes[i] = std::abs(coordinates[i * rank_ + r]);
    std::nth_element(sizes.begin(), most, sizes.end());
    const float unit = static_cast<float>(kStep) * *most;
    units_[r] = unit > 1e-20f && unit < 1e20f ? unit : UnitOf(values[r], kStep);
  }
}

void KeySketch::Project(const float* key, float* coordinates) const {
  std::fill_n(coordinates, rank_, 0.0f);
  for (size_t d = 0; d < dim_; ++d) {
    const float x = key[d] - mean_[d];
    const float* row = &directions_[d * rank_];
    for (size_t r = 0; r < rank_; ++r) coordinates[r] += x * row[r];
  }
}

void KeySketch::ProjectQueries(size_t count, const float* queries, std::vector<float>& coordinates) const {
  const size_t stride = RoundUp(rank_, 16);
  coordinates.resize(count * stride);
  if (count < kFewQueries) {
    for (size_t q = 0; q < count; ++q) {
      DotRows({rank_, dim_, dim_}, queries + q * dim_, rows_.data(), &coordinates[q * rank_]);
    }
    return;
  }
  ScoreKeys(dim_, count, queries, rank_, rows_.data(), coordinates.data());
  for (size_t q = 1; q < count && stride != rank_; ++q) {
    std::copy_n(&coordinates[q * stride], rank_, &coordinates[q * rank_]);
  }
}

float KeySketch::SquaredDeviation(const float* key) const {
  float sum = 0;
  for (size_t d = 0; d < dim_; ++d) sum += (key[d] - mean_[d]) * (key[d] - mean_[d]);
  return sum;
}

uint8_t KeySketch::Encode(const float* coordinates, uint8_t* nibbles) const {
  float largest = 0;
  for (size_t r = 0; r < rank_; ++r) largest = std::max(largest, std::abs(coordinates[r]) / units_[r]);
  uint8_t doubled = 0;
  float unit = 1;
  for (; largest > 7.5f * unit && doubled < kMostDoubled; ++doubled) unit *= 2;
  for (size_t r = 0; r < rank_; ++r) {
    const float code = std::nearbyint(coordinates[r] / (units_[r] * unit));
    nibbles[r] = std::isfinite(code) ? static_cast<uint8_t>(8 + static_cast<int>(std::clamp(code, -8.0f, 7.0f))) : 8;
  }
  return doubled;
}

}  // namespace cairn
