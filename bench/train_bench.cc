#include "bench/train_bench.h"

#include <algorithm>
#include <limits>

#include "base/random.h"
#include "base/threads.h"
#include "bench/timing.h"
#include "kernels/elementwise.h"
#include "model/initial_weights.h"

namespace cairn {

double TrainFlop(const ModelConfig& config, size_t rows, size_t time) {
  const double hidden = static_cast<double>(config.hidden_size);
  const double layer =
      hidden * static_cast<double>(2 * config.query_size() + 2 * config.key_size() + 3 * config.intermediate_size);
  const double matrices =
      static_cast<double>(config.num_hidden_layers) * layer + hidden * static_cast<double>(config.vocab_size);
  const double tokens = static_cast<double>(rows * time);
  const double attention =
      7.0 * static_cast<double>(time) * static_cast<double>(config.query_size() * config.num_hidden_layers);
  return tokens * (6.0 * matrices + attention);
}

TrainBenchResult BenchTrain(const TrainBenchOptions& options) {
  ModelConfig config;
  config.hidden_size = options.hidden;
  config.intermediate_size = options.inner;
  config.num_hidden_layers = options.layers;
  config.num_attention_heads = options.heads;
  config.num_key_value_heads = options.kv_heads;
  config.head_dim = options.hidden / options.heads;
  config.vocab_size = options.vocab;
  config.landmark.attention = options.attention;
  if (options.attention == AttentionKind::kLandmark) {
    config.landmark.block_length = options.block_length;
    config.landmark.landmark_id = static_cast<int64_t>(options.vocab) - 1;
  }
  ValidateModelConfig(config, "bench train");

  const ParameterLayout layout(config);
  Parameters weights(layout), gradients(layout), first(layout), second(layout);
  InitialiseParameters(config, 1, weights);
  Engine engine(config, layout, {.rows = options.rows, .time = options.context, .recompute = options.recompute});
  Random random(2);
  std::vector<int32_t> ids, targets;
  size_t scored = 0;
  for (size_t i = 0; i < options.rows * options.context; ++i) {
    const bool landmark = options.attention == AttentionKind::kLandmark &&
                          i % options.context % (options.block_length + 1) == options.block_length;
    ids.push_back(landmark ? static_cast<int32_t>(config.landmark.landmark_id)
                           : static_cast<int32_t>(random.Below(options.vocab - 1)));
    targets.push_back(landmark ? -1 : static_cast<int32_t>(random.Below(options.vocab - 1)));
    scored += !landmark;
  }
  const EngineBatch batch{
      .rows = options.rows, .time = options.context, .input_ids = ids.data(), .targets = targets.data()};
  const auto step = [&] {
    gradients.SetZero();
    engine.Train(weights, batch, 1.0f / static_cast<float>(scored), gradients);
    const double begin = SecondsNow();
    const double norm = std::sqrt(RunSumOfSquares(gradients.size(), gradients.data()));
    const AdamW adamw{1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, static_cast<float>(std::min(1.0, 1.0 / norm))};
    RunAdamW(weights.size(), adamw, gradients.data(), weights.data(), first.data(), second.data());
    engine.times()[static_cast<size_t>(Operation::kOptimizer)] += SecondsNow() - begin;
  };
  step();  // compiles the products

  TrainBenchResult result;
  result.machine = MeasureMachine();
  result.threads = ThreadCount();
  engine.times().fill(0);
  double best = std::numeric_limits<double>::infinity();
  size_t steps = 0;
  const double begin = SecondsNow();
  while (steps < 3 || SecondsNow() - begin < options.min_seconds) {
    const double start = SecondsNow();
    step();
    best = std::min(best, SecondsNow() - start);
    ++steps;
  }
  const double total = SecondsNow() - begin;
  result.parameters = ParameterCount(config);
  result.step_ms = best * 1e3;
  result.mean_step_ms = total / static_cast<double>(steps) * 1e3;
  result.tokens_per_second = static_cast<double>(options.rows * options.context) / best;
  result.gflop = TrainFlop(config, options.rows, options.context) * 1e-9;
  result.percent = 100 * result.gflop / best / result.machine.f32_gflops;
  result.bytes_per_token = engine.BytesPerToken();
  for (size_t i = 0; i < result.operations.size(); ++i)
    result.operations[i] = engine.times()[i] / static_cast<double>(steps) * 1e3;
  return result;
}

}  // namespace cairn
