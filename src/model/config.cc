#include "model/config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace cairn {

namespace {

// Far above every real model, and low enough that the bytes of a whole model fit in 64 bits.
constexpr size_t kMaxWidth = size_t{1} << 20;
constexpr size_t kMaxLayers = 4096;
constexpr size_t kMaxVocab = size_t{1} << 24;
constexpr size_t kMaxHeads = size_t{1} << 14;
constexpr size_t kMaxHeadDim = size_t{1} << 14;
constexpr size_t kMaxQuery = size_t{1} << 22;
constexpr size_t kMaxPositions = 0xffffffff;
constexpr size_t kMaxBlock = size_t{1} << 20;
constexpr size_t kMaxLocalBlocks = 1024;

void CheckSize(size_t value, size_t high, const char* field, const std::string& name) {
  if (value < 1 || value > high) Fail("'{}': {} is {}, which is not from 1 to {}", name, field, value, high);
}

void CheckPositive(double value, double high, const char* field, const std::string& name) {
  if (!(value > 0 && value <= high))
    Fail("'{}': {} is {}, which is not above 0 and at most {}", name, field, value, high);
}

void CheckId(int64_t id, size_t vocab, const char* field, const std::string& name) {
  if (id < -1 || id >= static_cast<int64_t>(vocab)) {
    Fail("'{}': {} is {}, but the vocabulary has {} tokens (vocab_size)", name, field, id, vocab);
  }
}

void ValidateRopeScaling(const RopeScaling& scaling, const std::string& name) {
  if (scaling.kind == RopeScalingKind::kNone) return;
  CheckPositive(scaling.factor, 1e6, "rope_scaling.factor", name);
  if (scaling.kind == RopeScalingKind::kLinear) return;
  CheckPositive(scaling.low_freq_factor, 1e6, "rope_scaling.low_freq_factor", name);
  CheckPositive(scaling.high_freq_factor, 1e6, "rope_scaling.high_freq_factor", name);
  CheckSize(scaling.original_max_position_embeddings, kMaxPositions, "rope_scaling.original_max_position_embeddings",
            name);
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    Fail("'{}': rope_scaling.low_freq_factor {} is not below high_freq_factor {}", name, scaling.low_freq_factor,
         scaling.high_freq_factor);
  }
}

void ValidateLandmark(const LandmarkConfig& landmark, size_t vocab, size_t layers, const std::string& name) {
  CheckId(landmark.landmark_id, vocab, "landmark.landmark_id", name);
  if (landmark.block_length > kMaxBlock) {
    Fail("'{}': landmark.block_length is {}, more than {}", name, landmark.block_length, kMaxBlock);
  }
  if (landmark.attention == AttentionKind::kLandmark) {
    if (landmark.block_length == 0) Fail("'{}': landmark.block_length is missing; landmark attention needs it", name);
    if (landmark.landmark_id < 0) Fail("'{}': landmark.landmark_id is missing; landmark attention needs it", name);
  }
  const bool with_landmarks = landmark.attention == AttentionKind::kLandmark;
  const ContextMissConfig& miss = landmark.context_miss;
  CheckId(miss.token_id, vocab, "landmark.context_miss.token_id", name);
  if (!(miss.probability >= 0 && miss.probability <= 1)) {
    Fail("'{}': landmark.context_miss.probability is {}, which is not from 0 to 1", name, miss.probability);
  }
  if (!(miss.cutoff >= 0 && miss.cutoff <= 1)) {
    Fail("'{}': landmark.context_miss.cutoff is {}, which is not from 0 to 1", name, miss.cutoff);
  }
  if (miss.enabled && miss.token_id < 0) Fail("'{}': landmark.context_miss.token_id is missing", name);
  if (miss.token_id >= 0 && miss.token_id == landmark.landmark_id) {
    Fail("'{}': landmark.context_miss.token_id and landmark.landmark_id are both {}", name, miss.token_id);
  }
  const MemoryTrainingConfig& memory = landmark.memory_training;
  if (memory.k > kMaxBlock || memory.distractor_blocks > kMaxBlock) {
    Fail("'{}': landmark.memory_training.k and distractor_blocks must not exceed {}", name, kMaxBlock);
  }
  CheckSize(memory.chunk_length, kMaxPositions, "landmark.memory_training.chunk_length", name);
  if ((memory.distractor_blocks > 0) != (memory.distractors != DistractorSource::kNone)) {
    Fail("'{}': landmark.memory_training.distractors is \"{}\" but distractor_blocks is {}", name,
         NameOf(memory.distractors), memory.distractor_blocks);
  }
  if (memory.enabled && landmark.block_length > 0 && memory.chunk_length % landmark.block_length != 0) {
    Fail("'{}': landmark.memory_training.chunk_length {} is not a multiple of landmark.block_length {}", name,
         memory.chunk_length, landmark.block_length);
  }
  if (memory.enabled && landmark.positional_jump > 0) {
    Fail("'{}': landmark.memory_training cannot be combined with positional_jump; it uses slot positions", name);
  }
  if (landmark.positional_jump > kMaxBlock || landmark.xl_cache_length > kMaxPositions ||
      landmark.xl_segment_length > kMaxPositions) {
    Fail("'{}': landmark.positional_jump, xl_segment_length or xl_cache_length is too large", name);
  }
  if (landmark.local_layers > 0 && landmark.local_layers >= layers) {
    Fail("'{}': landmark.local_layers is {}, but the model has {} layers, and one must read the memory", name,
         landmark.local_layers, layers);
  }
  if (landmark.local_blocks > 0 && landmark.local_layers == 0) {
    Fail("'{}': landmark.local_blocks is {}, but no layer is local: set landmark.local_layers", name,
         landmark.local_blocks);
  }
  if (landmark.local_blocks > kMaxLocalBlocks) {
    Fail("'{}': landmark.local_blocks is {}, more than {}", name, landmark.local_blocks, kMaxLocalBlocks);
  }
  const std::pair<bool, const char*> only_with_landmarks[] = {{miss.enabled, "context_miss"},
                                                              {landmark.local_layers > 0, "local_layers"},
                                                              {memory.enabled, "memory_training"},
                                                              {landmark.positional_jump > 0, "positional_jump"}};
  for (const auto& [used, field] : only_with_landmarks) {
    if (used && !with_landmarks) {
      Fail("'{}': landmark.{} needs landmark.attention \"landmark\", not \"{}\"", name, field,
           NameOf(landmark.attention));
    }
  }
  if (landmark.xl_segment_length > 0 && landmark.attention != AttentionKind::kXl) {
    Fail("'{}': landmark.xl_segment_length needs landmark.attention \"xl\", not \"{}\"", name,
         NameOf(landmark.attention));
  }
  if (landmark.xl_cache_length > 0 && landmark.attention != AttentionKind::kXl) {
    Fail("'{}': landmark.xl_cache_length needs landmark.attention \"xl\", not \"{}\"", name,
         NameOf(landmark.attention));
  }
}

}  // namespace

void ValidateModelConfig(const ModelConfig& config, const std::string& name) {
  CheckSize(config.hidden_size, kMaxWidth, "hidden_size", name);
  CheckSize(config.intermediate_size, kMaxWidth, "intermediate_size", name);
  CheckSize(config.num_hidden_layers, kMaxLayers, "num_hidden_layers", name);
  CheckSize(config.num_attention_heads, kMaxHeads, "num_attention_heads", name);
  CheckSize(config.num_key_value_heads, kMaxHeads, "num_key_value_heads", name);
  CheckSize(config.vocab_size, kMaxVocab, "vocab_size", name);
  CheckSize(config.max_position_embeddings, kMaxPositions, "max_position_embeddings", name);
  if (config.head_dim == 0 && config.hidden_size % config.num_attention_heads != 0) {
    Fail("'{}': hidden_size {} is not a multiple of num_attention_heads {}, and there is no head_dim", name,
         config.hidden_size, config.num_attention_heads);
  }
  CheckSize(config.head_dim, kMaxHeadDim, "head_dim", name);
  if (config.head_dim % 2 != 0) Fail("'{}': head_dim is {}, but rotary pairs need an even one", name, config.head_dim);
  CheckSize(config.query_size(), kMaxQuery, "num_attention_heads * head_dim", name);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    Fail("'{}': num_attention_heads {} is not a multiple of num_key_value_heads {}", name, config.num_attention_heads,
         config.num_key_value_heads);
  }
  CheckPositive(config.rms_norm_eps, 1, "rms_norm_eps", name);
  CheckPositive(config.rope_theta, 1e15, "rope_theta", name);
  ValidateRopeScaling(config.rope_scaling, name);
  CheckId(config.bos_token_id, config.vocab_size, "bos_token_id", name);
  for (const int64_t id : config.eos_token_ids) {
    if (id < 0) Fail("'{}': eos_token_id is {}, which is no token", name, id);
    CheckId(id, config.vocab_size, "eos_token_id", name);
  }
  if (config.torch_dtype != "float32" && config.torch_dtype != "float16" && config.torch_dtype != "bfloat16") {
    Fail("'{}': torch_dtype is '{}'; Cairn reads float32, float16 and bfloat16", name, config.torch_dtype);
  }
  ValidateLandmark(config.landmark, config.vocab_size, config.num_hidden_layers, name);
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t inner = config.intermediate_size;
  const uint64_t query = config.query_size();
  const uint64_t key = config.key_size();
  std::vector<ExpectedTensor> result;
  result.push_back({"model.embed_tokens.weight", {config.vocab_size, hidden}});
  for (size_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    result.push_back({prefix + "self_attn.q_proj.weight", {query, hidden}});
    result.push_back({prefix + "self_attn.k_proj.weight", {key, hidden}});
    result.push_back({prefix + "self_attn.v_proj.weight", {key, hidden}});
    result.push_back({prefix + "self_attn.o_proj.weight", {hidden, query}});
    result.push_back({prefix + "mlp.gate_proj.weight", {inner, hidden}});
    result.push_back({prefix + "mlp.up_proj.weight", {inner, hidden}});
    result.push_back({prefix + "mlp.down_proj.weight", {hidden, inner}});
    result.push_back({prefix + "input_layernorm.weight", {hidden}});
    result.push_back({prefix + "post_attention_layernorm.weight", {hidden}});
  }
  result.push_back({"model.norm.weight", {hidden}});
  if (!config.tie_word_embeddings) result.push_back({"lm_head.weight", {config.vocab_size, hidden}});
  return result;
}

uint64_t ParameterCount(const ModelConfig& config) {
  const uint64_t hidden = config.hidden_size;
  const uint64_t layer = 2 * hidden * config.query_size() + 2 * hidden * config.key_size() +
                         3 * hidden * config.intermediate_size + 2 * hidden;
  return (config.tie_word_embeddings ? 1 : 2) * config.vocab_size * hidden + config.num_hidden_layers * layer + hidden;
}

std::vector<double> RotaryFrequencies(const ModelConfig& config) {
  std::vector<double> result(config.head_dim / 2);
  const RopeScaling& scaling = config.rope_scaling;
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  for (size_t i = 0; i < result.size(); ++i) {
    double& frequency = result[i];
    frequency = std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (scaling.kind == RopeScalingKind::kLinear) frequency /= scaling.factor;
    if (scaling.kind != RopeScalingKind::kLlama3) continue;
    // Turns that the pair makes over the original context: few turns are slowed down, many stay, between is blended.
    const double turns = original * frequency / (2 * std::numbers::pi);
    const double keep =
        std::clamp((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
    frequency = (1 - keep) * frequency / scaling.factor + keep * frequency;
  }
  return result;
}

std::string_view NameOf(RotaryLayout layout) { return layout == RotaryLayout::kHalf ? "half" : "interleaved"; }

std::string_view NameOf(AttentionKind kind) {
  switch (kind) {
    case AttentionKind::kFull:
      return "full";
    case AttentionKind::kLandmark:
      return "landmark";
    case AttentionKind::kXl:
      return "xl";
  }
  CAIRN_CHECK(false, "unknown attention kind");
}

std::string_view NameOf(RopeScalingKind kind) {
  switch (kind) {
    case RopeScalingKind::kNone:
      return "none";
    case RopeScalingKind::kLinear:
      return "linear";
    case RopeScalingKind::kLlama3:
      return "llama3";
  }
  CAIRN_CHECK(false, "unknown rope scaling");
}

std::string_view NameOf(DistractorSource from) {
  switch (from) {
    case DistractorSource::kNone:
      return "none";
    case DistractorSource::kBatch:
      return "batch";
    case DistractorSource::kBank:
      return "bank";
  }
  CAIRN_CHECK(false, "unknown distractor source");
}

}  // namespace cairn
