// Checkpoints of a run: what is needed to go on exactly where it was. Each is a directory step-NNNNNN that appears
// whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/config.h"
#include "train/trainable.h"

namespace cairn {

struct CheckpointState {
  uint64_t step = 0;    // steps done
  uint64_t tokens = 0;  // targets trained on so far
  double seconds = 0;   // time of training so far
  double loss_sum = 0;  // of the steps since the last record of the log
  uint64_t loss_steps = 0;
  std::string essence;  // JSON, see Essence()
  int threads = 0;
  uint64_t processes = 1;
  std::vector<float> bank;  // of the attention (AttentionOp::State), of rank 0; mostly empty
};

// The values that a checkpoint holds.
struct CheckpointValues {
  const std::vector<TrainableTensor>& tensors;
  std::span<float> values, first, second;  // of the trainable set and its two moments
  std::span<float> average;                // of its values (WeightAverage); empty: none
};

// Written beside, synced and renamed; afterwards all but the newest `keep` are removed.
// `weights_name`: "model.safetensors", or "adapter.safetensors" when only an adapter is trained.
void SaveCheckpoint(const std::filesystem::path& directory, const CheckpointState& state, const ModelConfig& model,
                    const CheckpointValues& values, const std::string& weights_name, size_t keep);

// Reads the newest sound checkpoint into `values`; damaged ones are passed over with a warning. `accept` may throw when
// the checkpoint is of another run. Nothing when there is no checkpoint; Error when all are damaged.
std::optional<CheckpointState> LoadNewestCheckpoint(const std::filesystem::path& directory,
                                                    const CheckpointValues& values, const std::string& weights_name,
                                                    const std::function<void(const CheckpointState&)>& accept);

// Directories of the checkpoints, oldest first. Unfinished ones are left out.
std::vector<std::filesystem::path> ListCheckpoints(const std::filesystem::path& directory);

// Removes what a killed process left half-written.
void RemoveUnfinishedCheckpoints(const std::filesystem::path& directory);

}  // namespace cairn
