#include "train/weight_average.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/threads.h"

namespace cairn {

namespace {

constexpr size_t kPiece = size_t{1} << 16;

}  // namespace

void WeightAverage::Add(uint64_t step) {
  // The share of the latest values in the sum of 1, decay, decay^2, ... over all steps so far.
  const auto share = static_cast<float>((1 - decay_) / (1 - std::pow(decay_, static_cast<double>(step + 1))));
  const float* values = trainable_.values();
  float* average = average_.data();
  const size_t size = trainable_.size();
  ParallelFor(DivideUp(size, kPiece), [&](size_t piece, int) {
    const size_t end = std::min(size, (piece + 1) * kPiece);
    for (size_t i = piece * kPiece; i < end; ++i) average[i] += share * (values[i] - average[i]);
  });
}

void WeightAverage::Swap() {
  std::swap_ranges(average_.data(), average_.data() + trainable_.size(), trainable_.values());
  trainable_.Apply();
}

}  // namespace cairn
