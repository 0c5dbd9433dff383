// Writing of Hugging Face directories.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "formats/huggingface.h"
#include "io/safetensors.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

// A directory beside the final one that vanishes again unless its contents were moved away.
class StagingDirectory {
 public:
  explicit StagingDirectory(const fs::path& target) {
    fs::path clean = target.lexically_normal();
    if (!clean.has_filename()) clean = clean.parent_path();  // "model/" -> "model"
    path_ = clean.string() + fmt::format(".tmp-{}", getpid());
    std::error_code error;
    fs::remove_all(path_, error);
    fs::create_directories(path_, error);
    if (error)
      Fail("cannot create '{}': {}; check that the directory above it may be written", path_.string(), error.message());
  }
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;
  ~StagingDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

StoredType TypeToWrite(const StoredTensor& tensor, const HuggingFaceWriteOptions& options) {
  if (options.type) return *options.type;
  return IsQuantized(tensor.type) ? StoredType::kF32 : tensor.type;
}

DType ToDType(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return DType::kF32;
    case StoredType::kF16:
      return DType::kF16;
    case StoredType::kBF16:
      return DType::kBF16;
    default:
      Fail("safetensors files have no type {}; choose f32, f16 or bf16", NameOf(type));
  }
}

struct PlannedTensor {
  std::string name;
  StoredType type;
  Shape shape;
  uint64_t bytes;
};

// Tensors of each file. Within a file wider types come first, so that every tensor is aligned.
std::vector<std::vector<PlannedTensor>> PlanShards(const ModelSource& source, const HuggingFaceWriteOptions& options) {
  std::vector<std::vector<PlannedTensor>> shards(1);
  uint64_t used = 0;
  for (const ExpectedTensor& tensor : ExpectedTensors(source.config())) {
    const StoredType type = TypeToWrite(source.Get(tensor.name), options);
    ToDType(type);  // complains before anything is written
    const uint64_t bytes = *StoredBytes(type, tensor.shape);
    if (options.shard_bytes > 0 && used > 0 && used + bytes > options.shard_bytes) {
      shards.emplace_back();
      used = 0;
    }
    used += bytes;
    shards.back().push_back({tensor.name, type, tensor.shape, bytes});
  }
  for (auto& shard : shards) {
    std::stable_sort(shard.begin(), shard.end(), [](const PlannedTensor& a, const PlannedTensor& b) {
      return BlockBytes(a.type) > BlockBytes(b.type);
    });
  }
  return shards;
}

void MoveFile(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) Fail("cannot replace '{}': {}", to.string(), error.message());
}

void SyncDirectory(const fs::path& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // only weakens the promise about power cuts
  fsync(fd);
  close(fd);
}

// Moves the staged files into place. A directory that is being replaced has no config.json meanwhile, so that it cannot
// be taken for a whole model.
void Publish(const fs::path& staging, const fs::path& target, const std::set<std::string>& names) {
  if (!fs::exists(target)) {
    MoveFile(staging, target);
    SyncDirectory(target.lexically_normal().parent_path().empty() ? fs::path(".")
                                                                  : target.lexically_normal().parent_path());
    return;
  }
  fs::remove(target / "config.json");
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(target)) {
    const std::string name = entry.path().filename().string();
    const bool weights =
        name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
    if (weights && names.count(name) == 0) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path);
  for (const std::string& name : names) {
    if (name != "config.json") MoveFile(staging / name, target / name);
  }
  MoveFile(staging / "config.json", target / "config.json");
  SyncDirectory(target);
}

}  // namespace

std::vector<WrittenFile> WriteHuggingFace(const ModelSource& source, const fs::path& directory,
                                          const HuggingFaceWriteOptions& options) {
  if (fs::exists(directory) && !fs::is_directory(directory)) {
    Fail("'{}' exists and is not a directory; choose another name", directory.string());
  }
  const auto shards = PlanShards(source, options);
  uint64_t total = 0;
  for (const auto& shard : shards) {
    for (const PlannedTensor& tensor : shard) total += tensor.bytes;
  }
  const StagingDirectory staging(directory);
  std::set<std::string> names;
  std::vector<WrittenFile> written;
  const auto finished = [&](const std::string& name) {
    names.insert(name);
    written.push_back({directory / name, fs::file_size(staging.path() / name)});
  };

  nlohmann::ordered_json index;
  index["metadata"]["total_size"] = total;
  uint64_t done = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    std::vector<TensorStream> streams;
    for (const PlannedTensor& tensor : shards[i]) {
      index["weight_map"][tensor.name] = name;
      streams.push_back({tensor.name, ToDType(tensor.type), tensor.shape, [&](const ByteSink& sink) {
                           ExportTensor(source, tensor.name, tensor.type, RotaryLayout::kHalf, sink);
                           done += tensor.bytes;
                           if (options.progress) options.progress(done, total);
                         }});
    }
    WriteSafetensors(staging.path() / name, streams, {{"format", "pt"}});  // Hugging Face's readers ask for "pt"
    finished(name);
  }
  if (shards.size() > 1) {
    WriteFileAtomically(staging.path() / "model.safetensors.index.json", index.dump(2) + "\n");
    finished("model.safetensors.index.json");
  }
  for (const fs::path& path : options.files_to_copy) {
    const MappedFile file(path);
    WriteFileAtomically(staging.path() / path.filename(), [&](const ByteSink& sink) { sink(file.bytes()); });
    finished(path.filename().string());
  }
  for (const auto& [name, text] : options.text_files) {
    WriteFileAtomically(staging.path() / name, text);
    finished(name);
  }
  ModelConfig config = source.config();
  config.rotary_layout = RotaryLayout::kHalf;
  const StoredType main_type = TypeToWrite(source.Get("model.layers.0.self_attn.q_proj.weight"), options);
  config.torch_dtype = main_type == StoredType::kF16    ? "float16"
                       : main_type == StoredType::kBF16 ? "bfloat16"
                                                        : "float32";
  WriteFileAtomically(staging.path() / "config.json", ToJson(config));
  finished("config.json");
  Publish(staging.path(), directory, names);
  return written;
}

}  // namespace cairn
