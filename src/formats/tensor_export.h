// What every writer of models does with one tensor: convert its type and its rotary layout on the way to a file, a few
// rows at a time, so that converting a model needs no memory for it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/model_source.h"
#include "io/file.h"

namespace cairn {

// Bytes of weights written so far, and of the whole.
using WriteProgress = std::function<void(uint64_t done, uint64_t total)>;

// One file that was written.
struct WrittenFile {
  std::filesystem::path path;
  uint64_t bytes;
};

// Sends the tensor to `sink` as `type` in `layout`. Where the type stays the same the bits do, too.
void ExportTensor(const ModelSource& source, const std::string& tensor, StoredType type, RotaryLayout layout,
                  const ByteSink& sink);

}  // namespace cairn
