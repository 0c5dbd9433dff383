// Golden files: inputs and outputs of the authors' own code. Each is run again here and compared tensor by tensor.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cairn {

// One compared tensor.
struct GoldenCheck {
  std::string implementation;  // what computed it, e.g. "fused avx3"
  std::string tensor;
  double absolute_error;  // largest difference
  double relative_error;  // the same, relative to the largest magnitude of the expected tensor
  double tolerance;       // of the relative error
  bool ok;
};

struct GoldenReport {
  std::string file;
  std::string kind;  // "attention", "memory"
  std::vector<GoldenCheck> checks;

  bool ok() const;
};

// Recognises the kind by the tensors in the file. With `every_instruction_set` fused kernels are checked under each
// that this machine has, else under the active one. Throws Error for files it cannot read or whose kind it does not
// know.
GoldenReport RunGolden(const std::filesystem::path& path, bool every_instruction_set);

}  // namespace cairn
