// Hugging Face model directories: config.json and one model.safetensors, or several with model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/model_source.h"
#include "formats/tensor_export.h"

namespace cairn {

std::shared_ptr<const ModelSource> OpenHuggingFace(const std::filesystem::path& directory);

struct HuggingFaceWriteOptions {
  std::optional<StoredType> type = {};                    // f32, f16 or bf16; none = as stored, quantised ones as f32
  uint64_t shard_bytes = 0;                               // weights of one file at most; 0 = all in one
  std::vector<std::filesystem::path> files_to_copy = {};  // the tokenizer's, under their own names
  std::vector<std::pair<std::string, std::string>> text_files = {};  // more files: name and contents
  WriteProgress progress = {};
};

// The files of a model directory that belong to its tokenizer.
std::vector<std::filesystem::path> TokenizerFilesOf(const std::filesystem::path& directory);

// Everything is written beside `directory` first and moved into place when it is complete, config.json last. An
// existing directory keeps files of other names, but loses weights of an earlier model. Rows are put into the half
// layout.
std::vector<WrittenFile> WriteHuggingFace(const ModelSource& source, const std::filesystem::path& directory,
                                          const HuggingFaceWriteOptions& options);

}  // namespace cairn
