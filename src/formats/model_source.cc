#include "formats/model_source.h"

#include <cstring>

#include "base/error.h"
#include "formats/gguf_model.h"
#include "formats/huggingface.h"
#include "formats/llama2c.h"
#include "formats/rotary_layout.h"
#include "io/file.h"

namespace cairn {

std::string_view NameOf(ModelFormat format) {
  switch (format) {
    case ModelFormat::kMemory:
      return "memory";
    case ModelFormat::kHuggingFace:
      return "hf";
    case ModelFormat::kGguf:
      return "gguf";
    case ModelFormat::kLlama2c:
      return "llama2c";
  }
  CAIRN_CHECK(false, "unknown model format");
}

ModelSource::ModelSource(Parts parts) : parts_(std::move(parts)) {
  ValidateModelConfig(parts_.config, parts_.name);
  std::map<std::string, StoredTensor> expected;
  for (const ExpectedTensor& tensor : ExpectedTensors(parts_.config)) {
    const auto found = parts_.tensors.find(tensor.name);
    if (found == parts_.tensors.end()) Fail("'{}' lacks the tensor '{}' that its config asks for", name(), tensor.name);
    StoredTensor& stored = found->second;
    if (stored.shape != tensor.shape) {
      Fail("'{}': tensor '{}' has shape {}, but the config asks for {}", name(), tensor.name, ToString(stored.shape),
           ToString(tensor.shape));
    }
    const auto bytes = StoredBytes(stored.type, stored.shape);
    if (!bytes || *bytes != stored.bytes.size()) {
      Fail("'{}': tensor '{}' of type {} and shape {} cannot have {} bytes", name(), tensor.name, NameOf(stored.type),
           ToString(stored.shape), stored.bytes.size());
    }
    expected.insert(parts_.tensors.extract(found));
  }
  parts_.tensors = std::move(expected);
}

const StoredTensor& ModelSource::Get(const std::string& tensor) const {
  const auto found = parts_.tensors.find(tensor);
  if (found == parts_.tensors.end()) Fail("'{}' has no tensor '{}'", name(), tensor);
  return found->second;
}

Tensor ModelSource::ReadFloats(const std::string& tensor) const { return ReadFloats(tensor, config().rotary_layout); }

Tensor ModelSource::ReadFloats(const std::string& tensor, RotaryLayout layout) const {
  const StoredTensor& stored = Get(tensor);
  Tensor result(stored.shape);
  if (!IsRotaryTensor(tensor) || layout == config().rotary_layout) {
    ConvertStoredToFloat(stored.type, stored.bytes, result.span());
    return result;
  }
  const size_t row_bytes = stored.row_bytes();
  const size_t columns = stored.row_elements();
  for (size_t row = 0; row < stored.shape[0]; ++row) {
    const size_t source = RotarySourceRow(row, config().head_dim, config().rotary_layout, layout);
    ConvertStoredToFloat(stored.type, stored.bytes.subspan(source * row_bytes, row_bytes),
                         result.span().subspan(row * columns, columns));
  }
  return result;
}

std::shared_ptr<const ModelSource> OpenModel(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return OpenHuggingFace(path);
  const auto file = std::make_shared<const MappedFile>(path);
  const auto bytes = file->bytes();
  if (LooksLikeGguf(bytes)) return ModelFromGguf(bytes, file->name(), file);
  if (path.extension() == ".safetensors" || path.extension() == ".json") {
    Fail("'{}' is only one part of a model; name the directory that holds config.json and the weights", file->name());
  }
  if (LooksLikeLlama2c(bytes)) {
    return ModelFromLlama2c(bytes, file->name(), file, ReadLlama2cSidecar(path));
  }
  Fail("'{}' is no model that Cairn reads: a Hugging Face directory, a GGUF file or a llama2.c file", file->name());
}

std::shared_ptr<const ModelSource> MakeModelSource(const ModelConfig& config, std::map<std::string, Tensor> tensors) {
  const auto owner = std::make_shared<const std::map<std::string, Tensor>>(std::move(tensors));
  ModelSource::Parts parts;
  parts.name = "model in memory";
  parts.config = config;
  for (const auto& [name, tensor] : *owner) {
    parts.tensors[name] = {StoredType::kF32, tensor.shape(), std::as_bytes(tensor.span())};
    parts.file_bytes += tensor.span().size_bytes();
  }
  parts.owners.push_back(owner);
  return std::make_shared<const ModelSource>(std::move(parts));
}

}  // namespace cairn
