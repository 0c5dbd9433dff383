// Pieces that the kinds of golden files share, and the kinds that have a file of their own.
#pragma once

#include <functional>
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

// Runs `check` with the name of an implementation under one instruction set, or under each.
void UnderInstructionSets(bool every, const std::string& name, const std::function<void(const std::string&)>& check);

// One whole forward, backward and AdamW step of a small model.
void RunTrainingStepGolden(const SafetensorsFile& file, GoldenReport& report);

// A pretrained model with a landmark, fed in chunks. The model is looked for near `path`.
void RunStoriesGolden(const SafetensorsFile& file, const std::filesystem::path& path, bool every_instruction_set,
                      GoldenReport& report);

}  // namespace cairn
