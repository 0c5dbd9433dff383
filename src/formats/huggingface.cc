// Reading of Hugging Face directories; writing is in huggingface_write.cc.
#include "formats/huggingface.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfig = size_t{16} << 20;
constexpr size_t kMaxIndex = size_t{256} << 20;
constexpr size_t kMaxShards = 10000;

StoredTensor ToStored(const SafetensorsFile& file, const std::string& name, const TensorEntry& entry) {
  switch (entry.dtype) {
    case DType::kF32:
      return {StoredType::kF32, entry.shape, entry.bytes};
    case DType::kF16:
      return {StoredType::kF16, entry.shape, entry.bytes};
    case DType::kBF16:
      return {StoredType::kBF16, entry.shape, entry.bytes};
    default:
      Fail("'{}': tensor '{}' has the type {}; weights must be F32, F16 or BF16", file.name(), name,
           NameOf(entry.dtype));
  }
}

// Tensor -> shard's file name, as the index says.
std::map<std::string, std::string> ReadIndex(const fs::path& path) {
  const std::string name = path.string();
  const nlohmann::json index = ParseJson(ReadTextFile(path, kMaxIndex), name);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    Fail("'{}' has no weight_map; it is no index of safetensors files", name);
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) Fail("'{}': the file of tensor '{}' is not a string", name, tensor);
    const std::string shard = file.get<std::string>();
    // Only files of this very directory: an index must not reach elsewhere.
    if (shard.empty() || shard == "." || shard == ".." ||
        shard.find_first_of(std::string("/\\\0", 3)) != std::string::npos) {
      Fail("'{}': tensor '{}' is in what is not the name of a file in the directory: '{}'", name, tensor, shard);
    }
    result[tensor] = shard;
  }
  return result;
}

// Parameters that a LLaMA model does not have would change what it computes; two kinds are harmless.
void RefuseStrangers(const ModelSource::Parts& parts) {
  std::set<std::string> expected;
  for (const ExpectedTensor& tensor : ExpectedTensors(parts.config)) expected.insert(tensor.name);
  for (const auto& [tensor, stored] : parts.tensors) {
    if (expected.count(tensor) != 0 || tensor.ends_with(".rotary_emb.inv_freq")) continue;
    if (tensor == "lm_head.weight" && parts.config.tie_word_embeddings) continue;  // a copy of the embeddings
    Fail("'{}' has the tensor '{}', which its config does not account for", parts.name, tensor);
  }
}

}  // namespace

std::shared_ptr<const ModelSource> OpenHuggingFace(const fs::path& directory) {
  ModelSource::Parts parts;
  parts.format = ModelFormat::kHuggingFace;
  parts.name = directory.string();
  const fs::path config_path = directory / "config.json";
  const fs::path single = directory / "model.safetensors";
  const fs::path index_path = directory / "model.safetensors.index.json";
  if (!fs::exists(config_path)) Fail("'{}' has no config.json; name a model's directory or file", directory.string());
  parts.config = ParseModelConfig(ReadTextFile(config_path, kMaxConfig), config_path.string());

  const auto open = [&](const fs::path& path) {
    auto file = std::make_shared<const SafetensorsFile>(path);
    std::error_code ignored;
    parts.file_bytes += fs::file_size(path, ignored);
    parts.owners.push_back(file);
    return file;
  };
  if (fs::exists(single)) {
    const auto file = open(single);
    for (const auto& [tensor, entry] : file->tensors()) parts.tensors[tensor] = ToStored(*file, tensor, entry);
  } else if (fs::exists(index_path)) {
    std::map<std::string, std::shared_ptr<const SafetensorsFile>> shards;
    for (const auto& [tensor, shard] : ReadIndex(index_path)) {
      auto& file = shards[shard];
      if (shards.size() > kMaxShards) Fail("'{}' names more than {} files", index_path.string(), kMaxShards);
      if (!file) {
        if (!fs::exists(directory / shard)) {
          Fail("'{}' names the file '{}', which is missing; download it again", index_path.string(), shard);
        }
        file = open(directory / shard);
      }
      parts.tensors[tensor] = ToStored(*file, tensor, file->Get(tensor));
    }
  } else {
    Fail("'{}' has neither model.safetensors nor model.safetensors.index.json; save the weights as safetensors",
         parts.name);
  }
  RefuseStrangers(parts);
  return std::make_shared<const ModelSource>(std::move(parts));
}

std::vector<fs::path> TokenizerFilesOf(const fs::path& directory) {
  std::vector<fs::path> result;
  for (const char* name : {"tokenizer.model", "tokenizer.json", "tokenizer_config.json", "tokenizer.bin",
                           "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
                           "chat_template.jinja", "chat_template.json", "generation_config.json"}) {
    if (fs::is_regular_file(directory / name)) result.push_back(directory / name);
  }
  return result;
}

}  // namespace cairn
