// `cairn bench attention`: the fused kernel against the machine's limits and the naive reference.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "bench/machine.h"

namespace cairn {

struct AttentionBenchOptions {
  size_t batch = 1;
  size_t heads = 8;
  size_t kv_heads = 8;
  size_t dim = 64;
  size_t block_length = 50;
  std::vector<size_t> lengths = {512, 2048, 8192, 32768};
  double min_seconds = 1.0;       // of repetition, see BestTime
  size_t reference_limit = 2048;  // longest sequence that the naive reference is timed at
};

struct AttentionBenchRow {
  size_t length;
  bool landmarks;  // false: plain causal attention
  double forward_ms;
  double both_ms;                         // forward and backward
  double forward_percent;                 // of the f32 peak, counting 2 T^2 d a head
  double both_percent;                    // the same, counting 7 T^2 d a head
  double extra_mb;                        // saved state and scratch of forward and backward, 10^6 bytes
  std::optional<double> reference_ratio;  // time of the naive reference (one thread) / time, forward and backward
};

struct AttentionBenchResult {
  MachineLimits machine;
  int threads;
  std::vector<AttentionBenchRow> rows;
};

AttentionBenchResult BenchAttention(const AttentionBenchOptions& options);

}  // namespace cairn
