// A training run from its config to the finished model: batches, steps, validation, checkpoints, log.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "formats/model_source.h"
#include "model/parameters.h"
#include "tokenizer/tokenizer.h"
#include "train/communicator.h"
#include "train/run_config.h"

namespace cairn {

// A run ready to start.
struct TrainJob {
  RunConfig config;
  ModelConfig model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::vector<int64_t> new_tokens;  // tune: tokens that the base did not have
  std::string base;                 // tune: path of the base model
  std::string base_checksum;        // tune: of the weights that the run starts with
  std::unique_ptr<const ParameterLayout> layout;
  std::unique_ptr<Parameters> weights;  // where the run starts
};

// From scratch: random weights.
TrainJob PrepareTraining(const RunConfig& config);

// From a model that exists; `path` is where it came from. The tokenizer is the config's, else the model directory's.
TrainJob PrepareTuning(const RunConfig& config, const ModelSource& base, const std::filesystem::path& path);

struct TrainerOptions {
  bool resume = false;         // go on from the newest checkpoint, if there is one
  bool force = false;          // remove an earlier run from the output directory
  bool show_line = false;      // the line for a person, on standard error
  double peak_flops = 0;       // f32 operations per second of this machine; 0: not known
  std::function<bool()> stop;  // asked after every step: save and end?
  // Called before every step (0 is the first); tests break weights with it.
  std::function<void(uint64_t step, Parameters& weights)> before_step;
};

struct TrainResult {
  uint64_t steps = 0;          // done, earlier parts of the run included
  bool interrupted = false;    // by `stop`; no model was written
  std::optional<double> loss;  // mean since the last record of the log; nothing when no step was left to do
  std::optional<double> validation_loss;
  double seconds = 0;                // of training
  std::filesystem::path checkpoint;  // the newest
  std::filesystem::path result;      // model or adapter directory; empty when interrupted
};

// Throws Error when the loss or the gradient is not finite; the last good checkpoint stays.
TrainResult RunTraining(TrainJob& job, const TrainerOptions& options, Communicator& communicator);

// Operations of one step: 6 for each weight of the products and position, and the attention's.
double StepFlops(const ModelConfig& model, const TrainingConfig& training);

// What batches add to tokens, drawn from the seed and the row's number in the run, so that any step can be made again.
// positions [time]: 0, 1, 2, ..., and after each landmark all later ones are 1 .. J further.
void DrawPositions(const ModelConfig& model, uint64_t seed, uint64_t sample, std::span<int32_t> positions);
// controlled [blocks]: 1 with the context-miss token's probability.
void DrawControlled(const ModelConfig& model, uint64_t seed, uint64_t sample, std::span<uint8_t> controlled);

}  // namespace cairn
