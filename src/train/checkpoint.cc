#include "train/checkpoint.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "cairn checkpoint 1";
constexpr const char* kStateName = "state.json";
constexpr const char* kOptimizerName = "optimizer.safetensors";
constexpr const char* kBankName = "bank.safetensors";  // only where there is a bank
constexpr const char* kUnfinished = ".unfinished";

std::string Hash(const fs::path& path) {
  const MappedFile file(path);
  return fmt::format("{:016x}", XXH3_64bits(file.bytes().data(), file.bytes().size()));
}

void WriteTensors(const fs::path& path, const std::vector<TrainableTensor>& tensors,
                  const std::vector<std::pair<const char*, std::span<const float>>>& parts) {
  std::vector<TensorToWrite> out;
  for (const auto& [prefix, values] : parts) {
    for (const TrainableTensor& tensor : tensors) {
      out.push_back(
          {prefix + tensor.name, DType::kF32, tensor.shape, std::as_bytes(values.subspan(tensor.offset, tensor.size))});
    }
  }
  WriteSafetensors(path, out, {{"format", "pt"}});
}

void ReadTensors(const SafetensorsFile& file, const std::vector<TrainableTensor>& tensors, const std::string& prefix,
                 std::span<float> values) {
  for (const TrainableTensor& tensor : tensors) {
    const Tensor read = file.ReadFloats(prefix + tensor.name);
    if (read.shape() != tensor.shape) {
      Fail("'{}': tensor '{}' has shape {}, but the run asks for {}", file.name(), prefix + tensor.name,
           ToString(read.shape()), ToString(tensor.shape));
    }
    std::copy(read.span().begin(), read.span().end(), values.begin() + static_cast<std::ptrdiff_t>(tensor.offset));
  }
}

void SyncDirectory(const fs::path& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // only weakens the promise about power cuts
  fsync(fd);
  close(fd);
}

void Prune(const fs::path& directory, size_t keep) {
  const auto all = ListCheckpoints(directory);
  for (size_t i = 0; i + keep < all.size(); ++i) {
    std::error_code ignored;
    // state.json first: what is left of an interrupted removal is no checkpoint.
    fs::remove(all[i] / kStateName, ignored);
    fs::remove_all(all[i], ignored);
  }
}

// The state, after the checksums of the other files were found right.
CheckpointState ReadState(const fs::path& path, const std::string& weights_name) {
  const std::string name = (path / kStateName).string();
  const Json root = ParseJson(ReadTextFile(path / kStateName, 1 << 24), name);
  CheckpointState state;
  try {
    if (root.at("format") != kFormat) Fail("'{}': the format is not \"{}\"", name, kFormat);
    state.step = root.at("step").get<uint64_t>();
    state.tokens = root.at("tokens").get<uint64_t>();
    state.seconds = root.at("seconds").get<double>();
    state.loss_sum = root.at("loss_sum").get<double>();
    state.loss_steps = root.at("loss_steps").get<uint64_t>();
    state.threads = root.at("threads").get<int>();
    state.processes = root.at("processes").get<uint64_t>();
    state.essence = root.at("run").dump();
    for (const std::string& file : {weights_name, std::string(kOptimizerName)}) {
      if (Hash(path / file) != root.at("files").at(file).get<std::string>()) {
        Fail("'{}' does not fit its checksum in {}", (path / file).string(), kStateName);
      }
    }
    if (const Json& files = root.at("files"); files.contains(kBankName)) {
      if (Hash(path / kBankName) != files.at(kBankName).get<std::string>()) {
        Fail("'{}' does not fit its checksum in {}", (path / kBankName).string(), kStateName);
      }
      const Tensor bank = SafetensorsFile(path / kBankName).ReadFloats("bank");
      state.bank.assign(bank.span().begin(), bank.span().end());
    }
  } catch (const Json::exception& error) {
    Fail("'{}' is not the state of a checkpoint: {}", name, error.what());
  }
  return state;
}

void ReadValues(const fs::path& path, const CheckpointValues& values, const std::string& weights_name) {
  const SafetensorsFile weights(path / weights_name), moments(path / kOptimizerName);
  ReadTensors(weights, values.tensors, "", values.values);
  ReadTensors(moments, values.tensors, "first.", values.first);
  ReadTensors(moments, values.tensors, "second.", values.second);
  if (!values.average.empty()) ReadTensors(moments, values.tensors, "average.", values.average);
}

}  // namespace

std::vector<fs::path> ListCheckpoints(const fs::path& directory) {
  std::vector<std::pair<uint64_t, fs::path>> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step-", 0) != 0 || name.size() < 6 || name.size() > 20 || !entry.is_directory(ignored)) continue;
    if (name.find_first_not_of("0123456789", 5) != std::string::npos) continue;
    found.emplace_back(std::stoull(name.substr(5)), entry.path());
  }
  std::sort(found.begin(), found.end());
  std::vector<fs::path> result;
  for (auto& [step, path] : found) result.push_back(std::move(path));
  return result;
}

void RemoveUnfinishedCheckpoints(const fs::path& directory) {
  std::error_code ignored;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("step-", 0) == 0 && name.ends_with(kUnfinished)) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove_all(path, ignored);
}

void SaveCheckpoint(const fs::path& directory, const CheckpointState& state, const ModelConfig& model,
                    const CheckpointValues& values, const std::string& weights_name, size_t keep) {
  const fs::path target = directory / fmt::format("step-{:06}", state.step);
  const fs::path staging = target.string() + kUnfinished;
  std::error_code error;
  fs::remove_all(staging, error);
  fs::create_directories(staging, error);
  if (error)
    Fail("cannot create '{}': {}; check that the output directory may be written", staging.string(), error.message());
  try {
    WriteTensors(staging / weights_name, values.tensors, {{"", values.values}});
    std::vector<std::pair<const char*, std::span<const float>>> kept = {{"first.", values.first},
                                                                        {"second.", values.second}};
    if (!values.average.empty()) kept.emplace_back("average.", values.average);
    WriteTensors(staging / kOptimizerName, values.tensors, kept);
    WriteFileAtomically(staging / "config.json", ToJson(model));
    Json root;
    root["format"] = kFormat;
    root["step"] = state.step;
    root["tokens"] = state.tokens;
    root["seconds"] = state.seconds;
    root["loss_sum"] = state.loss_sum;
    root["loss_steps"] = state.loss_steps;
    root["threads"] = state.threads;
    root["processes"] = state.processes;
    root["run"] = Json::parse(state.essence);
    for (const std::string& file : {weights_name, std::string(kOptimizerName)})
      root["files"][file] = Hash(staging / file);
    if (!state.bank.empty()) {
      const std::vector<TensorToWrite> bank = {
          {"bank", DType::kF32, {state.bank.size()}, std::as_bytes(std::span(state.bank))}};
      WriteSafetensors(staging / kBankName, bank, {{"format", "pt"}});
      root["files"][kBankName] = Hash(staging / kBankName);
    }
    WriteFileAtomically(staging / kStateName, root.dump(2) + "\n");
    SyncDirectory(staging);
    // A checkpoint of this step can only be a damaged one that the run has passed over, or its equal.
    fs::remove_all(target, error);
    fs::rename(staging, target, error);
    if (error) Fail("cannot create '{}': {}", target.string(), error.message());
  } catch (...) {
    fs::remove_all(staging, error);
    throw;
  }
  SyncDirectory(directory);
  Prune(directory, keep);
}

std::optional<CheckpointState> LoadNewestCheckpoint(const fs::path& directory, const CheckpointValues& values,
                                                    const std::string& weights_name,
                                                    const std::function<void(const CheckpointState&)>& accept) {
  auto all = ListCheckpoints(directory);
  std::reverse(all.begin(), all.end());
  for (const fs::path& path : all) {
    CheckpointState state;
    try {
      state = ReadState(path, weights_name);
    } catch (const Error& error) {
      spdlog::warn("the checkpoint '{}' is damaged and passed over: {}", path.string(), error.what());
      continue;
    }
    accept(state);
    ReadValues(path, values, weights_name);
    return state;
  }
  if (!all.empty()) Fail("no checkpoint in '{}' is sound; start over with --force", directory.string());
  return std::nullopt;
}

}  // namespace cairn
