// LLaMA models in GGUF files: reading one as a ModelSource, and writing any ModelSource as one. Landmark settings are
// extra metadata (cairn.landmark.*), which other GGUF readers pass over.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "formats/gguf_file.h"
#include "formats/model_source.h"
#include "formats/tensor_export.h"

namespace cairn {

// `owner` keeps the bytes alive; it may be null when the caller does.
std::shared_ptr<const ModelSource> ModelFromGguf(std::span<const std::byte> bytes, const std::string& name,
                                                 std::shared_ptr<const void> owner);

// "model.layers.3.mlp.up_proj.weight" -> "blk.3.ffn_up.weight". The name must be one of ExpectedTensors.
std::string GgufTensorName(const std::string& name);

struct GgufWriteOptions {
  std::optional<StoredType> type = {};            // of the matrices: f32, f16, bf16, q8_0 or q4_0; none = as stored
  std::optional<GgufVocabulary> vocabulary = {};  // none = the source's own, if it has one
  std::string model_name = "cairn";               // general.name
  WriteProgress progress = {};
};

// Atomic. Vectors are f32, as GGUF readers demand; a matrix whose rows do not fit the type becomes f16. With q4_0 the
// embeddings and the head are q8_0.
WrittenFile WriteGguf(const ModelSource& source, const std::filesystem::path& path, const GgufWriteOptions& options);

}  // namespace cairn
