// Reading of GGUF models; writing is in gguf_write.cc.
#include "formats/gguf_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace cairn {

namespace {

constexpr std::pair<std::string_view, std::string_view> kLayerNames[] = {
    {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},   {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"}, {"mlp.gate_proj", "ffn_gate"},    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},       {"input_layernorm", "attn_norm"}, {"post_attention_layernorm", "ffn_norm"},
};

size_t RequiredSize(const GgufFile& file, const std::string& key) {
  const int64_t value = file.RequiredInteger(key);
  if (value < 0) Fail("'{}': '{}' is {}, which is negative", file.name(), key, value);
  return static_cast<size_t>(value);
}

// Token ids are unsigned in GGUF; all bits set says that there is none.
std::optional<int64_t> TokenId(const GgufFile& file, const std::string& key) {
  const auto id = file.Integer(key);
  if (!id || *id == -1 || *id == 0xffffffff) return std::nullopt;
  return id;
}

GgufVocabulary ReadVocabulary(const GgufFile& file) {
  GgufVocabulary result;
  const std::string prefix = "tokenizer.ggml.";
  result.model = file.Text(prefix + "model").value_or("");
  result.pre = file.Text(prefix + "pre").value_or("");
  result.tokens = file.Texts(prefix + "tokens").value_or(std::vector<std::string>());
  if (const auto scores = file.Numbers(prefix + "scores"); scores) {
    for (const double score : *scores) result.scores.push_back(static_cast<float>(score));
  }
  if (const auto types = file.Numbers(prefix + "token_type"); types) {
    for (const double type : *types) {
      if (!(type >= 0 && type < 1000)) Fail("'{}': {}token_type has the impossible type {}", file.name(), prefix, type);
      result.types.push_back(static_cast<int32_t>(type));
    }
  }
  const auto check = [&](size_t size, const char* what) {
    if (size != 0 && size != result.tokens.size()) {
      Fail("'{}': {}{} has {} entries for {} tokens", file.name(), prefix, what, size, result.tokens.size());
    }
  };
  check(result.scores.size(), "scores");
  check(result.types.size(), "token_type");
  result.merges = file.Texts(prefix + "merges").value_or(std::vector<std::string>());
  result.bos_id = TokenId(file, prefix + "bos_token_id");
  result.eos_id = TokenId(file, prefix + "eos_token_id");
  result.unknown_id = TokenId(file, prefix + "unknown_token_id");
  result.add_bos = file.Bool(prefix + "add_bos_token");
  result.add_eos = file.Bool(prefix + "add_eos_token");
  result.add_space_prefix = file.Bool(prefix + "add_space_prefix");
  result.chat_template = file.Text("tokenizer.chat_template").value_or("");
  static const std::set<std::string> kKnown = {
      "model",        "pre",          "tokens",           "scores",        "token_type",    "merges",
      "bos_token_id", "eos_token_id", "unknown_token_id", "add_bos_token", "add_eos_token", "add_space_prefix"};
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with("tokenizer.") || key == "tokenizer.chat_template") continue;
    if (key.starts_with(prefix) && kKnown.count(key.substr(prefix.size())) != 0) continue;
    result.other.push_back({key, static_cast<uint32_t>(value.type),
                            std::string(reinterpret_cast<const char*>(value.encoded.data()), value.encoded.size())});
  }
  return result;
}

// cairn.landmark.* back into the `landmark` section that LandmarkToJson gives.
LandmarkConfig ReadLandmark(const GgufFile& file) {
  const std::string prefix = "cairn.landmark.";
  nlohmann::json section;
  for (const auto& [key, value] : file.metadata()) {
    if (!key.starts_with(prefix)) continue;
    const std::string path = key.substr(prefix.size());
    const size_t dot = path.find('.');
    if (path.find('.', dot == std::string::npos ? dot : dot + 1) != std::string::npos) {
      Fail("'{}': '{}' is not a setting that Cairn knows", file.name(), key);
    }
    nlohmann::json* place = &section;
    if (dot != std::string::npos) {
      place = &section[path.substr(0, dot)];
      if (!place->is_null() && !place->is_object())
        Fail("'{}': '{}' is not a setting that Cairn knows", file.name(), key);
    }
    nlohmann::json& slot = (*place)[dot == std::string::npos ? path : path.substr(dot + 1)];
    if (!slot.is_null()) Fail("'{}': '{}' contradicts another setting", file.name(), key);
    switch (value.type) {
      case GgufType::kString:
        slot = *file.Text(key);
        break;
      case GgufType::kBool:
        slot = *file.Bool(key);
        break;
      case GgufType::kF32:
      case GgufType::kF64:
        slot = *file.Number(key);
        break;
      default:
        slot = *file.Integer(key);
    }
  }
  return section.is_null() ? LandmarkConfig() : ParseLandmark(section, file.name());
}

RopeScaling ReadRopeScaling(const GgufFile& file) {
  RopeScaling scaling;
  const std::string kind = file.Text("llama.rope.scaling.type").value_or("none");
  const auto old_factor = file.Number("llama.rope.scale_linear");
  if (kind == "linear" || (kind == "none" && old_factor.value_or(1) != 1)) {
    scaling.kind = RopeScalingKind::kLinear;
    scaling.factor = file.Number("llama.rope.scaling.factor").value_or(old_factor.value_or(1));
  } else if (kind != "none") {
    Fail("'{}': llama.rope.scaling.type is \"{}\"; Cairn knows \"none\", \"linear\" and llama3's factors", file.name(),
         kind);
  }
  return scaling;
}

// GGUF keeps llama3 scaling as a tensor of divisors, one a rotary pair. Finds the settings that give them.
RopeScaling ScalingFromFactors(const StoredTensor& tensor, ModelConfig config, const GgufFile& file) {
  const std::string problem = "the frequency factors of 'rope_freqs.weight' are not those of llama3 scaling";
  if (tensor.type != StoredType::kF32 || tensor.shape != Shape{config.head_dim / 2}) {
    Fail("'{}': {}", file.name(), problem);
  }
  std::vector<float> factors(config.head_dim / 2);
  ConvertStoredToFloat(tensor.type, tensor.bytes, factors);
  config.rope_scaling = {};
  const std::vector<double> plain = RotaryFrequencies(config);
  if (std::all_of(factors.begin(), factors.end(), [](float factor) { return factor == 1.0f; })) return {};
  config.rope_scaling.kind = RopeScalingKind::kLlama3;
  config.rope_scaling.factor = *std::max_element(factors.begin(), factors.end());
  if (!(config.rope_scaling.factor > 1 && config.rope_scaling.factor < 1e6)) Fail("'{}': {}", file.name(), problem);
  const std::vector<double> scaled = RotaryFrequencies(config);
  for (size_t i = 0; i < factors.size(); ++i) {
    const double expected = plain[i] / scaled[i];
    if (!(std::abs(factors[i] - expected) <= 1e-4 * expected)) Fail("'{}': {}", file.name(), problem);
  }
  return config.rope_scaling;
}

ModelConfig ReadConfig(const GgufFile& file, const GgufVocabulary& vocabulary) {
  const std::string architecture = file.Text("general.architecture").value_or("");
  if (architecture != "llama") {
    Fail("'{}': general.architecture is \"{}\"; Cairn reads models of the LLaMA architecture (\"llama\")", file.name(),
         architecture);
  }
  if (file.Integer("split.count").value_or(1) > 1) {
    Fail("'{}' is one part of a split GGUF model; merge the parts into one file first", file.name());
  }
  if (file.Integer("llama.expert_count").value_or(0) > 0)
    Fail("'{}' is a mixture of experts; Cairn reads dense models", file.name());
  ModelConfig config;
  config.rotary_layout = RotaryLayout::kInterleaved;
  config.hidden_size = RequiredSize(file, "llama.embedding_length");
  config.intermediate_size = RequiredSize(file, "llama.feed_forward_length");
  config.num_hidden_layers = RequiredSize(file, "llama.block_count");
  config.num_attention_heads = RequiredSize(file, "llama.attention.head_count");
  config.num_key_value_heads = config.num_attention_heads;
  if (file.metadata().count("llama.attention.head_count_kv") != 0) {
    config.num_key_value_heads = RequiredSize(file, "llama.attention.head_count_kv");
  }
  config.max_position_embeddings = RequiredSize(file, "llama.context_length");
  if (const auto length = file.Integer("llama.attention.key_length"); length) {
    config.head_dim = RequiredSize(file, "llama.attention.key_length");
  } else if (config.num_attention_heads != 0 && config.hidden_size % config.num_attention_heads == 0) {
    config.head_dim = config.hidden_size / config.num_attention_heads;
  }
  for (const char* key : {"llama.attention.value_length", "llama.rope.dimension_count"}) {
    const auto length = file.Integer(key);
    if (length && *length != static_cast<int64_t>(config.head_dim)) {
      Fail("'{}': '{}' is {}, but the heads have {} elements; Cairn needs them equal", file.name(), key, *length,
           config.head_dim);
    }
  }
  const auto epsilon = file.Number("llama.attention.layer_norm_rms_epsilon");
  if (!epsilon) Fail("'{}': the metadata value 'llama.attention.layer_norm_rms_epsilon' is missing", file.name());
  config.rms_norm_eps = *epsilon;
  config.rope_theta = file.Number("llama.rope.freq_base").value_or(10000);
  config.rope_scaling = ReadRopeScaling(file);

  const auto embeddings = file.tensors().find("token_embd.weight");
  if (embeddings == file.tensors().end()) Fail("'{}' lacks the tensor 'token_embd.weight'", file.name());
  config.vocab_size = embeddings->second.shape[0];
  const auto stated = file.Integer("llama.vocab_size");
  for (const int64_t size : {stated.value_or(0), static_cast<int64_t>(vocabulary.tokens.size())}) {
    if (size != 0 && size != static_cast<int64_t>(config.vocab_size)) {
      Fail("'{}': the vocabulary has {} tokens, but 'token_embd.weight' has {} rows", file.name(), size,
           config.vocab_size);
    }
  }
  config.tie_word_embeddings = file.tensors().count("output.weight") == 0;
  config.bos_token_id = vocabulary.bos_id.value_or(-1);
  if (const auto ids = file.Numbers("cairn.eos_token_ids"); ids) {
    for (const double id : *ids) config.eos_token_ids.push_back(id >= 0 && id < 1e9 ? static_cast<int64_t>(id) : -1);
  } else if (vocabulary.eos_id) {
    config.eos_token_ids = {*vocabulary.eos_id};
  }
  config.landmark = ReadLandmark(file);
  ValidateModelConfig(config, file.name());
  if (const auto factors = file.tensors().find("rope_freqs.weight"); factors != file.tensors().end()) {
    config.rope_scaling = ScalingFromFactors(factors->second, config, file);
  }
  return config;
}

}  // namespace

std::string GgufTensorName(const std::string& name) {
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name == "model.norm.weight") return "output_norm.weight";
  if (name == "lm_head.weight") return "output.weight";
  constexpr std::string_view kPrefix = "model.layers.";
  CAIRN_CHECK(name.starts_with(kPrefix), "{}", name);
  const size_t dot = name.find('.', kPrefix.size());
  const std::string_view number = std::string_view(name).substr(kPrefix.size(), dot - kPrefix.size());
  const std::string_view rest = std::string_view(name).substr(dot + 1);
  for (const auto& [ours, theirs] : kLayerNames) {
    if (rest.size() == ours.size() + 7 && rest.starts_with(ours))
      return fmt::format("blk.{}.{}.weight", number, theirs);
  }
  CAIRN_CHECK(false, "{}", name);
}

std::shared_ptr<const ModelSource> ModelFromGguf(std::span<const std::byte> bytes, const std::string& name,
                                                 std::shared_ptr<const void> owner) {
  const GgufFile file(bytes, name);
  ModelSource::Parts parts;
  parts.format = ModelFormat::kGguf;
  parts.name = name;
  parts.file_bytes = bytes.size();
  parts.vocabulary = ReadVocabulary(file);
  parts.config = ReadConfig(file, *parts.vocabulary);
  std::set<std::string> used = {"rope_freqs.weight"};
  for (const ExpectedTensor& tensor : ExpectedTensors(parts.config)) {
    const std::string theirs = GgufTensorName(tensor.name);
    const auto found = file.tensors().find(theirs);
    if (found == file.tensors().end()) Fail("'{}' lacks the tensor '{}' ('{}')", name, theirs, tensor.name);
    parts.tensors[tensor.name] = found->second;
    used.insert(theirs);
  }
  for (const auto& [tensor, info] : file.tensors()) {
    if (used.count(tensor) == 0) Fail("'{}' has the tensor '{}', which a LLaMA model does not have", name, tensor);
  }
  const StoredType type = parts.tensors.at("model.layers.0.self_attn.q_proj.weight").type;
  parts.config.torch_dtype = type == StoredType::kF16 ? "float16" : type == StoredType::kBF16 ? "bfloat16" : "float32";
  if (parts.vocabulary->model.empty() || parts.vocabulary->tokens.empty()) parts.vocabulary.reset();
  if (owner) parts.owners.push_back(std::move(owner));
  return std::make_shared<const ModelSource>(std::move(parts));
}

}  // namespace cairn
