// `cairn bench train`: one training step against the machine's f32 peak, with a breakdown by operation.
#pragma once

#include <vector>

#include "bench/machine.h"
#include "model/config.h"
#include "train/engine.h"

namespace cairn {

struct TrainBenchOptions {
  size_t layers = 6, hidden = 384, heads = 6, kv_heads = 6, inner = 1024, vocab = 4096;
  size_t context = 512, rows = 4;
  size_t block_length = 50;
  AttentionKind attention = AttentionKind::kLandmark;
  bool recompute = false;
  double min_seconds = 5.0;
};

struct TrainBenchResult {
  MachineLimits machine;
  int threads;
  size_t parameters;
  double step_ms;  // best step
  double tokens_per_second;
  double gflop;    // of a step
  double percent;  // of the f32 peak
  size_t bytes_per_token;
  OperationTimes operations;  // milliseconds a step, mean of all
  double mean_step_ms;
};

// Operations of one step: 6 a matrix parameter and token, 7 T^2 d a head, layer and row for attention.
double TrainFlop(const ModelConfig& config, size_t rows, size_t time);

TrainBenchResult BenchTrain(const TrainBenchOptions& options);

}  // namespace cairn
