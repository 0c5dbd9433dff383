// Pieces that the kinds of golden files share, and the kinds that have a file of their own.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/golden.h"
#include "io/safetensors.h"

namespace cairn {

// The largest difference counts; anything that is not finite is a failure, on either side.
template <typename T>
GoldenCheck Compare(const std::string& implementation, const std::string& tensor, std::span<const T> actual,
                    std::span<const float> expected, double tolerance);

// Reads a float tensor and checks its shape.
Tensor ReadShaped(const SafetensorsFile& file, const std::string& name, const Shape& shape);

template <typename T>
std::vector<T> As(const Tensor& tensor) {
  return {tensor.span().begin(), tensor.span().end()};
}

// One whole forward, backward and AdamW step of a small model.
void RunTrainingStepGolden(const SafetensorsFile& file, GoldenReport& report);

}  // namespace cairn
