// config.json to ModelConfig and back.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "io/json.h"
#include "model/config.h"

namespace cairn {

namespace {

using Json = nlohmann::json;

// Takes fields out of one JSON object with checks of their type, and remembers which it took.
class Fields {
 public:
  // `prefix` stands before a field's name in messages: "landmark.".
  Fields(const Json& object, std::string name, std::string prefix)
      : object_(object), name_(std::move(name)), prefix_(std::move(prefix)) {
    if (!object.is_object()) {
      if (prefix_.empty()) Fail("'{}' is not a JSON object; it must be a model's config.json", name_);
      Fail("'{}': {} is not a JSON object", name_, prefix_.substr(0, prefix_.size() - 1));
    }
  }

  // Null counts as absent, as in Hugging Face's files.
  const Json* Find(const char* key) {
    taken_.insert(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }

  std::optional<int64_t> Integer(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    return ToInteger(key, *value);
  }

  int64_t ToInteger(const char* key, const Json& value) const {
    if (!value.is_number_integer()) Fail("'{}': {}{} is not an integer", name_, prefix_, key);
    if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int64_t>::max()) {
      Fail("'{}': {}{} is {}, which is absurdly large", name_, prefix_, key, value.get<uint64_t>());
    }
    return value.get<int64_t>();
  }

  // A size or count; negative ones are refused here, absurd ones by ValidateModelConfig.
  std::optional<size_t> Size(const char* key) {
    const auto value = Integer(key);
    if (!value) return std::nullopt;
    if (*value < 0) Fail("'{}': {}{} is {}, which is negative", name_, prefix_, key, *value);
    return static_cast<size_t>(*value);
  }

  size_t RequiredSize(const char* key) {
    const auto value = Size(key);
    if (!value) Fail("'{}': {}{} is missing", name_, prefix_, key);
    return *value;
  }

  std::optional<double> Number(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) Fail("'{}': {}{} is not a number", name_, prefix_, key);
    return value->get<double>();
  }

  std::optional<bool> Bool(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) Fail("'{}': {}{} is neither true nor false", name_, prefix_, key);
    return value->get<bool>();
  }

  std::optional<std::string> Text(const char* key) {
    const Json* value = Find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) Fail("'{}': {}{} is not a string", name_, prefix_, key);
    return value->get<std::string>();
  }

  // Refuses keys that were not taken: a mistyped setting must not be ignored.
  void RefuseOthers() const {
    for (const auto& [key, value] : object_.items()) {
      if (taken_.count(key) == 0) Fail("'{}': {}{} is not a setting that Cairn knows", name_, prefix_, key);
    }
  }

  Json Others() const {
    Json result = Json::object();
    for (const auto& [key, value] : object_.items()) {
      if (taken_.count(key) == 0) result[key] = value;
    }
    return result;
  }

 private:
  const Json& object_;
  std::string name_;
  std::string prefix_;
  std::set<std::string, std::less<>> taken_;
};

template <typename T>
void Set(T& field, const std::optional<T>& value) {
  if (value) field = *value;
}

template <typename Kind>
Kind ParseKind(const std::string& text, std::initializer_list<Kind> kinds, const char* field, const std::string& name) {
  std::string known;
  for (const Kind kind : kinds) {
    if (NameOf(kind) == text) return kind;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", NameOf(kind));
  }
  Fail("'{}': {} is \"{}\"; Cairn knows {}", name, field, text, known);
}

// Settings of other LLaMA-like models that would change the computation.
void RefuseUnsupported(Fields& fields, const std::string& name) {
  const auto model_type = fields.Text("model_type");
  const Json* architectures = fields.Find("architectures");
  if (!model_type && architectures == nullptr) Fail("'{}': model_type is missing; it must be \"llama\"", name);
  if (model_type && *model_type != "llama") {
    Fail("'{}': model_type is \"{}\"; Cairn reads models of the LLaMA architecture (\"llama\")", name, *model_type);
  }
  if (architectures != nullptr) {
    const bool fits =
        architectures->is_array() && architectures->size() == 1 && (*architectures)[0] == "LlamaForCausalLM";
    if (!fits) Fail("'{}': architectures is not [\"LlamaForCausalLM\"], the one that Cairn reads", name);
  }
  const std::string activation = fields.Text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    Fail("'{}': hidden_act is \"{}\"; Cairn computes \"silu\" (SwiGLU) only", name, activation);
  }
  for (const char* bias : {"attention_bias", "mlp_bias"}) {
    if (fields.Bool(bias).value_or(false)) Fail("'{}': {} is true, but Cairn's linear layers have no bias", name, bias);
  }
  if (fields.Number("partial_rotary_factor").value_or(1) != 1) {
    Fail("'{}': partial_rotary_factor is not 1; Cairn rotates whole heads only", name);
  }
  if (fields.Find("quantization_config") != nullptr) {
    Fail("'{}': quantization_config asks for weights that Cairn does not read; use f32, f16 or bf16 weights", name);
  }
}

RopeScaling ParseRopeScaling(const Json& section, const char* key, const std::string& name) {
  RopeScaling scaling;
  Fields fields(section, name, std::string(key) + ".");
  const auto type = fields.Text("rope_type");
  const auto old_type = fields.Text("type");
  if (type && old_type && *type != *old_type) {
    Fail("'{}': {}.rope_type \"{}\" and {}.type \"{}\" contradict each other", name, key, *type, key, *old_type);
  }
  const std::string kind = type ? *type : old_type.value_or("default");
  if (kind == "default") return scaling;
  if (kind != "linear" && kind != "llama3") {
    Fail("'{}': {}.rope_type is \"{}\"; Cairn knows \"default\", \"linear\" and \"llama3\"", name, key, kind);
  }
  scaling.kind = kind == "linear" ? RopeScalingKind::kLinear : RopeScalingKind::kLlama3;
  const auto factor = fields.Number("factor");
  if (!factor) Fail("'{}': {}.factor is missing", name, key);
  scaling.factor = *factor;
  if (scaling.kind == RopeScalingKind::kLlama3) {
    Set(scaling.low_freq_factor, fields.Number("low_freq_factor"));
    Set(scaling.high_freq_factor, fields.Number("high_freq_factor"));
    Set(scaling.original_max_position_embeddings, fields.Size("original_max_position_embeddings"));
  }
  return scaling;
}

void ParseRope(Fields& fields, ModelConfig& config, const std::string& name) {
  Set(config.rope_theta, fields.Number("rope_theta"));
  const Json* scaling = fields.Find("rope_scaling");
  if (scaling != nullptr) config.rope_scaling = ParseRopeScaling(*scaling, "rope_scaling", name);
  // Newer files keep both in one section.
  if (const Json* parameters = fields.Find("rope_parameters"); parameters != nullptr) {
    if (scaling != nullptr) Fail("'{}': rope_scaling and rope_parameters are both given; keep one", name);
    config.rope_scaling = ParseRopeScaling(*parameters, "rope_parameters", name);
    Fields inner(*parameters, name, "rope_parameters.");
    Set(config.rope_theta, inner.Number("rope_theta"));
  }
  config.rotary_layout =
      fields.Bool("rope_interleaved").value_or(false) ? RotaryLayout::kInterleaved : RotaryLayout::kHalf;
}

void ParseSpecialTokens(Fields& fields, const Json& root, ModelConfig& config, const std::string& name) {
  // Hugging Face's defaults of the two, where the file is silent; a null says that there is none.
  const auto vocab = static_cast<int64_t>(config.vocab_size);
  config.bos_token_id = fields.Integer("bos_token_id").value_or(root.contains("bos_token_id") || vocab <= 1 ? -1 : 1);
  if (const Json* eos = fields.Find("eos_token_id"); eos == nullptr) {
    if (!root.contains("eos_token_id") && vocab > 2) config.eos_token_ids = {2};
  } else if (eos->is_array()) {
    if (eos->size() > 1000) Fail("'{}': eos_token_id lists {} tokens, which is absurd", name, eos->size());
    for (const Json& id : *eos) config.eos_token_ids.push_back(fields.ToInteger("eos_token_id", id));
  } else {
    config.eos_token_ids = {fields.ToInteger("eos_token_id", *eos)};
  }
}

std::string ParseTorchDType(Fields& fields, const std::string& name) {
  const auto old_key = fields.Text("torch_dtype");
  const auto new_key = fields.Text("dtype");
  if (old_key && new_key && *old_key != *new_key) {
    Fail("'{}': torch_dtype \"{}\" and dtype \"{}\" contradict each other", name, *old_key, *new_key);
  }
  std::string dtype = old_key ? *old_key : new_key.value_or("float32");
  if (dtype.starts_with("torch.")) dtype.erase(0, 6);
  return dtype;
}

}  // namespace

LandmarkConfig ParseLandmark(const Json& section, const std::string& name) {
  LandmarkConfig landmark;
  Fields fields(section, name, "landmark.");
  landmark.attention =
      ParseKind(fields.Text("attention").value_or("landmark"),
                {AttentionKind::kLandmark, AttentionKind::kFull, AttentionKind::kXl}, "landmark.attention", name);
  Set(landmark.block_length, fields.Size("block_length"));
  Set(landmark.landmark_id, fields.Integer("landmark_id"));
  Set(landmark.local_layers, fields.Size("local_layers"));
  Set(landmark.local_blocks, fields.Size("local_blocks"));
  Set(landmark.positional_jump, fields.Size("positional_jump"));
  Set(landmark.xl_segment_length, fields.Size("xl_segment_length"));
  Set(landmark.xl_cache_length, fields.Size("xl_cache_length"));
  if (const Json* miss = fields.Find("context_miss"); miss != nullptr) {
    Fields inner(*miss, name, "landmark.context_miss.");
    landmark.context_miss.enabled = inner.Bool("enabled").value_or(true);
    Set(landmark.context_miss.token_id, inner.Integer("token_id"));
    Set(landmark.context_miss.probability, inner.Number("probability"));
    Set(landmark.context_miss.cutoff, inner.Number("cutoff"));
    inner.RefuseOthers();
  }
  if (const Json* memory = fields.Find("memory_training"); memory != nullptr) {
    MemoryTrainingConfig& out = landmark.memory_training;
    Fields inner(*memory, name, "landmark.memory_training.");
    out.enabled = inner.Bool("enabled").value_or(true);
    Set(out.k, inner.Size("k"));
    Set(out.chunk_length, inner.Size("chunk_length"));
    Set(out.distractor_blocks, inner.Size("distractor_blocks"));
    out.distractors = ParseKind(inner.Text("distractors").value_or("none"),
                                {DistractorSource::kNone, DistractorSource::kBatch, DistractorSource::kBank},
                                "landmark.memory_training.distractors", name);
    inner.RefuseOthers();
  }
  fields.RefuseOthers();
  return landmark;
}

ModelConfig ParseModelConfig(std::string_view text, const std::string& name) {
  const Json root = ParseJson(text, name);
  Fields fields(root, name, "");
  RefuseUnsupported(fields, name);
  ModelConfig config;
  config.hidden_size = fields.RequiredSize("hidden_size");
  config.intermediate_size = fields.RequiredSize("intermediate_size");
  config.num_hidden_layers = fields.RequiredSize("num_hidden_layers");
  config.num_attention_heads = fields.RequiredSize("num_attention_heads");
  config.num_key_value_heads = fields.Size("num_key_value_heads").value_or(config.num_attention_heads);
  config.vocab_size = fields.RequiredSize("vocab_size");
  Set(config.max_position_embeddings, fields.Size("max_position_embeddings"));
  if (const auto head_dim = fields.Size("head_dim"); head_dim) {
    if (*head_dim == 0) Fail("'{}': head_dim is 0", name);
    config.head_dim = *head_dim;
  } else if (config.num_attention_heads != 0 && config.hidden_size % config.num_attention_heads == 0) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  Set(config.rms_norm_eps, fields.Number("rms_norm_eps"));
  Set(config.tie_word_embeddings, fields.Bool("tie_word_embeddings"));
  ParseRope(fields, config, name);
  ParseSpecialTokens(fields, root, config, name);
  config.torch_dtype = ParseTorchDType(fields, name);
  if (const Json* landmark = fields.Find("landmark"); landmark != nullptr) {
    config.landmark = ParseLandmark(*landmark, name);
  }
  config.other_keys = fields.Others().dump();
  ValidateModelConfig(config, name);
  return config;
}

nlohmann::ordered_json LandmarkToJson(const LandmarkConfig& landmark) {
  nlohmann::ordered_json out;
  out["attention"] = NameOf(landmark.attention);
  if (landmark.block_length > 0) out["block_length"] = landmark.block_length;
  if (landmark.landmark_id >= 0) out["landmark_id"] = landmark.landmark_id;
  if (landmark.local_layers > 0) out["local_layers"] = landmark.local_layers;
  if (landmark.local_blocks > 0) out["local_blocks"] = landmark.local_blocks;
  if (landmark.positional_jump > 0) out["positional_jump"] = landmark.positional_jump;
  if (landmark.xl_segment_length > 0) out["xl_segment_length"] = landmark.xl_segment_length;
  if (landmark.xl_cache_length > 0) out["xl_cache_length"] = landmark.xl_cache_length;
  if (const ContextMissConfig& miss = landmark.context_miss; miss != ContextMissConfig()) {
    auto& section = out["context_miss"];
    section["enabled"] = miss.enabled;
    if (miss.token_id >= 0) section["token_id"] = miss.token_id;
    section["probability"] = miss.probability;
    if (miss.cutoff > 0) section["cutoff"] = miss.cutoff;
  }
  if (const MemoryTrainingConfig& memory = landmark.memory_training; memory != MemoryTrainingConfig()) {
    auto& section = out["memory_training"];
    section["enabled"] = memory.enabled;
    section["k"] = memory.k;
    section["chunk_length"] = memory.chunk_length;
    section["distractors"] = NameOf(memory.distractors);
    section["distractor_blocks"] = memory.distractor_blocks;
  }
  return out;
}

std::string ToJson(const ModelConfig& config) {
  nlohmann::ordered_json out;
  out["architectures"] = {"LlamaForCausalLM"};
  out["model_type"] = "llama";
  out["hidden_act"] = "silu";
  out["attention_bias"] = false;
  out["mlp_bias"] = false;
  out["hidden_size"] = config.hidden_size;
  out["intermediate_size"] = config.intermediate_size;
  out["num_hidden_layers"] = config.num_hidden_layers;
  out["num_attention_heads"] = config.num_attention_heads;
  out["num_key_value_heads"] = config.num_key_value_heads;
  out["head_dim"] = config.head_dim;
  out["vocab_size"] = config.vocab_size;
  out["max_position_embeddings"] = config.max_position_embeddings;
  out["rms_norm_eps"] = config.rms_norm_eps;
  out["rope_theta"] = config.rope_theta;
  if (const RopeScaling& scaling = config.rope_scaling; scaling.kind == RopeScalingKind::kNone) {
    out["rope_scaling"] = nullptr;
  } else {
    auto& section = out["rope_scaling"];
    section["rope_type"] = NameOf(scaling.kind);
    section["factor"] = scaling.factor;
    if (scaling.kind == RopeScalingKind::kLlama3) {
      section["low_freq_factor"] = scaling.low_freq_factor;
      section["high_freq_factor"] = scaling.high_freq_factor;
      section["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
    }
  }
  // Other readers take the half layout for granted and do not know this key.
  if (config.rotary_layout == RotaryLayout::kInterleaved) out["rope_interleaved"] = true;
  out["tie_word_embeddings"] = config.tie_word_embeddings;
  out["bos_token_id"] = nullptr;
  if (config.bos_token_id >= 0) out["bos_token_id"] = config.bos_token_id;
  out["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) out["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) out["eos_token_id"] = config.eos_token_ids;
  out["torch_dtype"] = config.torch_dtype;
  if (config.landmark != LandmarkConfig()) out["landmark"] = LandmarkToJson(config.landmark);
  const Json others = Json::parse(config.other_keys);
  for (const auto& [key, value] : others.items()) {
    if (!out.contains(key)) out[key] = value;
  }
  return out.dump(2) + "\n";
}

}  // namespace cairn
