// The description of a training run: a JSON file with the model, the data, where the results go, and how to train.
// Parsing is strict: an unknown, missing, contradicting or absurd setting is an Error that names it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/batches.h"
#include "data/recall_rows.h"
#include "model/config.h"
#include "tokenizer/tokenizer.h"
#include "train/choice_loss.h"

namespace cairn {

struct DataConfig {
  std::filesystem::path train;                      // made by `cairn data prepare`
  std::optional<std::filesystem::path> validation;  // may be the same directory
  DocumentHandling documents = DocumentHandling::kJoined;
  std::optional<RecallConfig> recall;  // rows that hide facts and ask for them
};

struct TrainingConfig {
  size_t context_length = 512;  // positions of a row, landmarks included
  size_t batch_rows = 4;        // rows of a micro-batch, of all processes together
  size_t accumulate = 1;        // micro-batches of a step
  uint64_t steps = 0;
  double learning_rate = 0;
  double min_learning_rate = 0;  // at the last step; a tenth of learning_rate unless given
  uint64_t warmup_steps = 0;     // 2% of the steps unless given
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decay_norms = false;  // else only matrices decay
  double clip_norm = 1;      // 0: gradients are not clipped
  double average = 0;        // the model is a mean of the weights of all steps, by this to the power of their age
  uint64_t seed = 1;
  uint64_t validate_every = 0;      // steps; 0: only at the end
  uint64_t validation_batches = 0;  // 0: all
  uint64_t checkpoint_every = 0;    // steps; 0: only when the run ends or is interrupted
  size_t keep_checkpoints = 2;
  uint64_t log_every = 10;
  bool recompute = false;              // see EngineOptions
  size_t threads = 0;                  // 0: as CAIRN_THREADS or the machine say
  std::optional<ChoiceConfig> choice;  // teaches which blocks to read, where data.recall knows it
};

enum class LoraSave { kAdapter, kMerged };

struct LoraConfig {
  size_t rank = 8;
  double alpha = 16;  // the product of the two matrices is scaled by alpha / rank
  std::vector<std::string> targets = {"q_proj", "v_proj"};
  LoraSave save = LoraSave::kAdapter;
};

// Paths are already relative to the working directory.
struct RunConfig {
  std::string name;                     // the file, for messages
  std::optional<std::string> model;     // train: JSON text of the model's config, see ResolveModel
  std::optional<std::string> landmark;  // tune: JSON text of the landmark section that the model is to get
  std::optional<std::filesystem::path> tokenizer;
  DataConfig data;
  std::filesystem::path output;
  TrainingConfig training;
  std::optional<LoraConfig> lora;
};

// What the command line may change.
struct RunOverrides {
  std::optional<uint64_t> steps;
  std::optional<std::filesystem::path> output;
  std::optional<AttentionKind> attention;
};

// `directory` is where relative paths begin. The warm-up follows an override of the steps unless the file gives it.
RunConfig ParseRunConfig(std::string_view text, const std::string& name, const std::filesystem::path& directory,
                         const RunOverrides& overrides = {});
RunConfig ReadRunConfig(const std::filesystem::path& path, const RunOverrides& overrides = {});

// Throws Error naming the setting that is absurd or contradicts another.
void ValidateRunConfig(const RunConfig& config);

// The model of a run from scratch. What the config leaves out and the tokenizer knows is filled in: vocab_size,
// bos_token_id, eos_token_id, landmark.landmark_id, landmark.context_miss.token_id (one after the vocabulary).
// max_position_embeddings is the context unless given.
ModelConfig ResolveModel(const RunConfig& config, const Tokenizer& tokenizer);

// Everything that decides the numbers of a run, as a JSON object: a resumed run must have the same.
std::string Essence(const RunConfig& config, const ModelConfig& model);

// The learning rate of a step (0 is the first): linear warm-up, then half a cosine down to the minimum.
double LearningRate(const TrainingConfig& config, uint64_t step);

}  // namespace cairn
