// An opened model: its configuration and its tensors, whose bytes stay where they are (memory-mapped) until somebody
// reads them. Every format gives the same names and shapes, so what follows need not know where a model came from.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf_vocabulary.h"
#include "model/config.h"
#include "tensor/stored_tensor.h"

namespace cairn {

enum class ModelFormat { kMemory, kHuggingFace, kGguf, kLlama2c };

std::string_view NameOf(ModelFormat format);  // "memory", "hf", "gguf", "llama2c"

// Immutable and thread-safe. Opening checks every size, converts nothing and copies no weights.
class ModelSource {
 public:
  struct Parts {
    ModelFormat format = ModelFormat::kMemory;
    std::string name;  // for messages: the path
    ModelConfig config;
    std::map<std::string, StoredTensor> tensors;  // Hugging Face names; may hold more than is expected
    std::optional<GgufVocabulary> vocabulary;     // of a GGUF file
    uint64_t file_bytes = 0;
    std::vector<std::shared_ptr<const void>> owners;  // of the tensors' bytes
  };

  // Throws Error when the configuration does not hold together, or when an expected tensor is missing, has another
  // shape or too few bytes. Tensors beyond the expected ones are dropped.
  explicit ModelSource(Parts parts);

  ModelFormat format() const { return parts_.format; }
  const std::string& name() const { return parts_.name; }
  const ModelConfig& config() const { return parts_.config; }
  // Exactly ExpectedTensors(config()), with Hugging Face names and shapes. Rows of q_proj and k_proj stand in
  // config().rotary_layout.
  const std::map<std::string, StoredTensor>& tensors() const { return parts_.tensors; }
  const std::optional<GgufVocabulary>& vocabulary() const { return parts_.vocabulary; }
  uint64_t file_bytes() const { return parts_.file_bytes; }

  const StoredTensor& Get(const std::string& tensor) const;  // throws Error when it is missing
  Tensor ReadFloats(const std::string& tensor) const;        // as stored, in config().rotary_layout
  Tensor ReadFloats(const std::string& tensor, RotaryLayout layout) const;

 private:
  Parts parts_;
};

// Recognises a Hugging Face directory (config.json and one or more safetensors files), a GGUF file and a llama2.c file.
std::shared_ptr<const ModelSource> OpenModel(const std::filesystem::path& path);

// A model out of tensors in memory, e.g. after training.
std::shared_ptr<const ModelSource> MakeModelSource(const ModelConfig& config, std::map<std::string, Tensor> tensors);

}  // namespace cairn
