// The description of a model: the LLaMA architecture as Hugging Face's config.json states it, plus Cairn's `landmark`
// section. Parsing is strict: a missing, contradicting or absurd field is an Error that names it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attention/rotary.h"
#include "tensor/tensor.h"

namespace cairn {

enum class RopeScalingKind { kNone, kLinear, kLlama3 };

struct RopeScaling {
  RopeScalingKind kind = RopeScalingKind::kNone;
  double factor = 1;            // linear and llama3: long waves turn this much slower
  double low_freq_factor = 1;   // llama3 only, as the two below
  double high_freq_factor = 4;  //
  size_t original_max_position_embeddings = 8192;

  bool operator==(const RopeScaling&) const = default;
};

enum class AttentionKind {
  kFull,      // ordinary causal attention
  kLandmark,  // grouped softmax with landmarks
  kXl,        // Transformer-XL: segments with a cache of the previous one
};

// Where the distractor blocks of training with memory come from.
enum class DistractorSource { kNone, kBatch, kBank };

// A token at position -1 that gates the retrieval.
struct ContextMissConfig {
  bool enabled = false;
  int64_t token_id = -1;
  double probability = 0.5;  // that a landmark is put under its control in training
  double cutoff = 0;         // share of the token under which the memory is not read: in training with memory, and by
                             // default in sessions

  bool operator==(const ContextMissConfig&) const = default;
};

// A long segment processed in chunks that retrieve from the blocks of earlier chunks, with gradients.
struct MemoryTrainingConfig {
  bool enabled = false;
  size_t k = 2;                  // blocks retrieved
  size_t chunk_length = 250;     // ordinary tokens fed at once, whole blocks
  size_t distractor_blocks = 0;  // foreign blocks added to the memory
  DistractorSource distractors = DistractorSource::kNone;

  bool operator==(const MemoryTrainingConfig&) const = default;
};

// The `landmark` section. Without one the model is an ordinary one: full attention and no landmark token.
struct LandmarkConfig {
  AttentionKind attention = AttentionKind::kFull;
  size_t block_length = 0;       // L, ordinary tokens of a block; 0 = none
  int64_t landmark_id = -1;      // token id of the landmark; -1 = none
  size_t local_layers = 0;       // the first layers, which choose nothing: they see their chunk and what is before it,
  size_t local_blocks = 0;       // so many blocks
  size_t positional_jump = 0;    // J: positions jump by 1 .. J after each landmark in training; 0 = never
  size_t xl_segment_length = 0;  // xl: positions of a segment in training; 0 = the whole row
  size_t xl_cache_length = 0;    // xl: positions kept of the previous segment; 0 = all of it
  ContextMissConfig context_miss;
  MemoryTrainingConfig memory_training;

  bool operator==(const LandmarkConfig&) const = default;
};

// Plain values; ValidateModelConfig says whether they fit together.
struct ModelConfig {
  size_t hidden_size = 0;
  size_t intermediate_size = 0;
  size_t num_hidden_layers = 0;
  size_t num_attention_heads = 0;
  size_t num_key_value_heads = 0;
  size_t head_dim = 0;  // need not be hidden_size / num_attention_heads
  size_t vocab_size = 0;
  size_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  bool tie_word_embeddings = false;
  int64_t bos_token_id = -1;           // -1 = none
  std::vector<int64_t> eos_token_ids;  // may be empty
  RotaryLayout rotary_layout = RotaryLayout::kHalf;
  std::string torch_dtype = "float32";  // float32, float16 or bfloat16: what the weights are stored in
  LandmarkConfig landmark;
  std::string other_keys = "{}";  // JSON object of the input's other keys, kept for ToJson

  size_t query_size() const { return num_attention_heads * head_dim; }  // rows of q_proj
  size_t key_size() const { return num_key_value_heads * head_dim; }    // rows of k_proj and v_proj
  bool has_landmark() const { return landmark.landmark_id >= 0; }

  bool operator==(const ModelConfig&) const = default;
};

// `name` stands in messages for the text, e.g. "stories/config.json".
ModelConfig ParseModelConfig(std::string_view text, const std::string& name);

// Throws Error naming the field that is absurd or contradicts another.
void ValidateModelConfig(const ModelConfig& config, const std::string& name);

// A config.json that Hugging Face's tools read; ParseModelConfig gives the same config back.
std::string ToJson(const ModelConfig& config);

// The `landmark` section alone, for formats with a place of their own for it.
nlohmann::ordered_json LandmarkToJson(const LandmarkConfig& landmark);
LandmarkConfig ParseLandmark(const nlohmann::json& section, const std::string& name);

struct ExpectedTensor {
  std::string name;  // Hugging Face's, "model.layers.0.self_attn.q_proj.weight"
  Shape shape;
};

// Every parameter, in Hugging Face's order; lm_head.weight only when it is not tied to the embeddings.
std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config);

uint64_t ParameterCount(const ModelConfig& config);

// Angle per position of each rotary pair, scaling applied; [head_dim / 2].
std::vector<double> RotaryFrequencies(const ModelConfig& config);

std::string_view NameOf(RotaryLayout layout);    // "half", "interleaved"
std::string_view NameOf(AttentionKind kind);     // "full", "landmark", "xl"
std::string_view NameOf(RopeScalingKind kind);   // "none", "linear", "llama3"
std::string_view NameOf(DistractorSource from);  // "none", "batch", "bank"

}  // namespace cairn
