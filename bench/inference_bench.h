// `cairn bench decode` and `cairn bench prefill`: tokens a second at several context depths against the machine's
// limits, and against llama.cpp on the same weights where a llama-bench is named.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine.h"
#include "infer/session.h"

namespace cairn {

enum class InferencePhase { kDecode, kPrefill };

struct InferenceBenchOptions {
  InferencePhase phase = InferencePhase::kDecode;
  std::string model;   // path, or
  std::string random;  // a shape of MakeRandomModel
  std::optional<WeightKind> weights;
  AttentionKind attention = AttentionKind::kLandmark;
  size_t block_length = 63;  // for models that do not say one
  size_t top_k = 2;
  size_t chunk_length = 512;
  std::vector<size_t> depths = {0, 4096, 32768, 131072};
  size_t tokens = 0;                             // measured; 0: 64 decoded, or one chunk of 512
  size_t rounds = 3;                             // the best counts
  std::string llama_bench;                       // program to compare with, or ""
  std::vector<size_t> llama_depths = {0, 4096};  // it reads these in token by token: deep ones take long
};

struct DepthResult {
  size_t depth;
  double tokens_per_second;
  double percent;          // decode: of the read bandwidth; prefill: of the peak of the weights' kind
  double bytes_per_token;  // decode: weights, landmarks and blocks that a token reads
  size_t memory_bytes;
  size_t workspace_bytes;
  size_t peak_bytes;                   // of the process, so far
  double llama_tokens_per_second = 0;  // 0: not measured
};

struct InferenceBenchResult {
  std::string model;
  WeightKind kind;
  size_t parameters;
  size_t weight_bytes;
  size_t block_length, top_k;
  MachineLimits machine;
  double int8_gops;
  int threads;
  double load_seconds;
  std::vector<DepthResult> depths;
};

// `each` is called as soon as a depth is measured.
InferenceBenchResult BenchInference(const InferenceBenchOptions& options,
                                    const std::function<void(const DepthResult&)>& each = nullptr);

}  // namespace cairn
