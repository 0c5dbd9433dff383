// Writing of GGUF models.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "formats/gguf_model.h"

namespace cairn {

namespace {

constexpr size_t kAlignment = 32;

// Collects encoded metadata values.
class MetadataWriter {
 public:
  void Text(const std::string& key, std::string_view text) {
    Key(key, GgufType::kString);
    String(text);
  }
  void U32(const std::string& key, uint64_t value) {
    CAIRN_CHECK(value <= 0xffffffff, "{}", key);
    Key(key, GgufType::kU32);
    Scalar(static_cast<uint32_t>(value));
  }
  void U64(const std::string& key, uint64_t value) {
    Key(key, GgufType::kU64);
    Scalar(value);
  }
  void F32(const std::string& key, double value) {
    Key(key, GgufType::kF32);
    Scalar(static_cast<float>(value));
  }
  void F64(const std::string& key, double value) {
    Key(key, GgufType::kF64);
    Scalar(value);
  }
  void Bool(const std::string& key, bool value) {
    Key(key, GgufType::kBool);
    Scalar(static_cast<uint8_t>(value));
  }
  void Texts(const std::string& key, const std::vector<std::string>& values) {
    Array(key, GgufType::kString, values.size());
    for (const std::string& value : values) String(value);
  }
  void Floats(const std::string& key, const std::vector<float>& values) {
    Array(key, GgufType::kF32, values.size());
    for (const float value : values) Scalar(value);
  }
  void Integers(const std::string& key, const std::vector<int32_t>& values) {
    Array(key, GgufType::kI32, values.size());
    for (const int32_t value : values) Scalar(value);
  }
  void Raw(const GgufRawValue& value) {
    Key(value.key, static_cast<GgufType>(value.type));
    bytes_ += value.encoded;
  }

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void Key(const std::string& key, GgufType type) {
    ++count_;
    String(key);
    Scalar(static_cast<uint32_t>(type));
  }
  void Array(const std::string& key, GgufType element, uint64_t size) {
    Key(key, GgufType::kArray);
    Scalar(static_cast<uint32_t>(element));
    Scalar(size);
  }
  void String(std::string_view text) {
    Scalar(static_cast<uint64_t>(text.size()));
    bytes_ += text;
  }
  template <typename T>
  void Scalar(T value) {
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }

  uint64_t count_ = 0;
  std::string bytes_;
};

StoredType TypeToWrite(const std::string& name, const StoredTensor& tensor, const GgufWriteOptions& options) {
  if (tensor.shape.size() < 2) return StoredType::kF32;
  StoredType type = options.type.value_or(tensor.type);
  // Every token goes through embeddings and head: 4 bits are too coarse for them.
  const bool outer = name == "model.embed_tokens.weight" || name == "lm_head.weight";
  if (options.type == StoredType::kQ4_0 && outer) type = StoredType::kQ8_0;
  if (tensor.row_elements() % BlockElements(type) == 0) return type;
  return StoredType::kF16;
}

uint64_t FileTypeOf(StoredType type) {
  switch (type) {
    case StoredType::kF32:
      return 0;
    case StoredType::kF16:
      return 1;
    case StoredType::kQ4_0:
      return 2;
    case StoredType::kQ8_0:
      return 7;
    case StoredType::kQ4_K:
      return 15;
    case StoredType::kQ6_K:
      return 18;
    case StoredType::kBF16:
      return 32;
  }
  CAIRN_CHECK(false, "unknown stored type");
}

void AddArchitecture(const ModelConfig& config, MetadataWriter& out) {
  out.U32("llama.vocab_size", config.vocab_size);
  out.U32("llama.context_length", config.max_position_embeddings);
  out.U32("llama.embedding_length", config.hidden_size);
  out.U32("llama.block_count", config.num_hidden_layers);
  out.U32("llama.feed_forward_length", config.intermediate_size);
  out.U32("llama.attention.head_count", config.num_attention_heads);
  out.U32("llama.attention.head_count_kv", config.num_key_value_heads);
  out.U32("llama.attention.key_length", config.head_dim);
  out.U32("llama.attention.value_length", config.head_dim);
  out.U32("llama.rope.dimension_count", config.head_dim);
  out.F32("llama.attention.layer_norm_rms_epsilon", config.rms_norm_eps);
  out.F32("llama.rope.freq_base", config.rope_theta);
  if (config.rope_scaling.kind == RopeScalingKind::kLinear) {
    out.Text("llama.rope.scaling.type", "linear");
    out.F32("llama.rope.scaling.factor", config.rope_scaling.factor);
  }
}

// One metadata value for each leaf of the `landmark` section.
void AddLandmark(const nlohmann::ordered_json& section, const std::string& prefix, MetadataWriter& out) {
  for (const auto& [key, value] : section.items()) {
    const std::string path = prefix + key;
    if (value.is_object()) {
      AddLandmark(value, path + ".", out);
    } else if (value.is_string()) {
      out.Text(path, value.get<std::string>());
    } else if (value.is_boolean()) {
      out.Bool(path, value.get<bool>());
    } else if (value.is_number_float()) {
      out.F64(path, value.get<double>());
    } else if (const auto number = value.get<uint64_t>(); number <= 0xffffffff) {
      out.U32(path, number);
    } else {
      out.U64(path, number);
    }
  }
}

// Readers demand one token for each row of the embeddings: rows that the vocabulary does not know are named here.
void PadVocabulary(const ModelConfig& config, GgufVocabulary& vocabulary, const std::string& name) {
  if (vocabulary.tokens.size() > config.vocab_size) {
    Fail("'{}': the vocabulary has {} tokens, but the model {}", name, vocabulary.tokens.size(), config.vocab_size);
  }
  for (size_t id = vocabulary.tokens.size(); id < config.vocab_size; ++id) {
    const auto signed_id = static_cast<int64_t>(id);
    const bool landmark = signed_id == config.landmark.landmark_id;
    const bool miss = signed_id == config.landmark.context_miss.token_id;
    vocabulary.tokens.push_back(landmark ? "<landmark>" : miss ? "<context-miss>" : fmt::format("<unused-{}>", id));
    if (!vocabulary.scores.empty()) vocabulary.scores.push_back(0);
    if (!vocabulary.types.empty()) vocabulary.types.push_back(landmark || miss ? kGgufTokenControl : kGgufTokenUnused);
  }
}

void AddVocabulary(const GgufVocabulary& vocabulary, MetadataWriter& out) {
  const std::string prefix = "tokenizer.ggml.";
  out.Text(prefix + "model", vocabulary.model);
  if (!vocabulary.pre.empty()) out.Text(prefix + "pre", vocabulary.pre);
  out.Texts(prefix + "tokens", vocabulary.tokens);
  if (!vocabulary.scores.empty()) out.Floats(prefix + "scores", vocabulary.scores);
  if (!vocabulary.types.empty()) out.Integers(prefix + "token_type", vocabulary.types);
  if (!vocabulary.merges.empty()) out.Texts(prefix + "merges", vocabulary.merges);
  if (vocabulary.unknown_id) out.U32(prefix + "unknown_token_id", static_cast<uint64_t>(*vocabulary.unknown_id));
  if (vocabulary.add_bos) out.Bool(prefix + "add_bos_token", *vocabulary.add_bos);
  if (vocabulary.add_eos) out.Bool(prefix + "add_eos_token", *vocabulary.add_eos);
  if (vocabulary.add_space_prefix) out.Bool(prefix + "add_space_prefix", *vocabulary.add_space_prefix);
  if (!vocabulary.chat_template.empty()) out.Text("tokenizer.chat_template", vocabulary.chat_template);
  for (const GgufRawValue& value : vocabulary.other) out.Raw(value);
}

struct PlannedTensor {
  std::string name;  // Hugging Face's; empty for rope_freqs.weight
  std::string gguf_name;
  StoredType type;
  Shape shape;
  uint64_t offset;
  uint64_t bytes;
};

std::vector<PlannedTensor> PlanTensors(const ModelSource& source, const GgufWriteOptions& options) {
  std::vector<PlannedTensor> plan;
  uint64_t offset = 0;
  const auto add = [&](std::string name, std::string gguf_name, StoredType type, const Shape& shape) {
    const uint64_t bytes = *StoredBytes(type, shape);
    plan.push_back({std::move(name), std::move(gguf_name), type, shape, offset, bytes});
    offset = RoundUp(offset + bytes, kAlignment);
  };
  if (source.config().rope_scaling.kind == RopeScalingKind::kLlama3) {
    add("", "rope_freqs.weight", StoredType::kF32, {source.config().head_dim / 2});
  }
  for (const ExpectedTensor& tensor : ExpectedTensors(source.config())) {
    add(tensor.name, GgufTensorName(tensor.name), TypeToWrite(tensor.name, source.Get(tensor.name), options),
        tensor.shape);
  }
  return plan;
}

// The divisors that GGUF readers apply to the frequencies of llama3 scaling.
std::vector<float> FrequencyFactors(ModelConfig config) {
  const std::vector<double> scaled = RotaryFrequencies(config);
  config.rope_scaling = {};
  const std::vector<double> plain = RotaryFrequencies(config);
  std::vector<float> factors(plain.size());
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = static_cast<float>(plain[i] / scaled[i]);
  return factors;
}

void CheckExpressible(const ModelConfig& config, const std::string& name) {
  const RopeScaling usual{RopeScalingKind::kLlama3, config.rope_scaling.factor};
  if (config.rope_scaling.kind == RopeScalingKind::kLlama3 && config.rope_scaling != usual) {
    Fail("'{}': GGUF has no place for llama3 rope_scaling other than 1, 4 and 8192 with a factor", name);
  }
}

}  // namespace

WrittenFile WriteGguf(const ModelSource& source, const std::filesystem::path& path, const GgufWriteOptions& options) {
  const ModelConfig& config = source.config();
  CheckExpressible(config, source.name());
  const std::vector<PlannedTensor> plan = PlanTensors(source, options);
  const StoredType main_type = [&] {
    const std::string first = "model.layers.0.self_attn.q_proj.weight";
    return TypeToWrite(first, source.Get(first), options);
  }();
  MetadataWriter metadata;
  metadata.Text("general.architecture", "llama");
  metadata.Text("general.name", options.model_name);
  metadata.U32("general.alignment", kAlignment);
  metadata.U32("general.file_type", FileTypeOf(main_type));
  if (IsQuantized(main_type)) metadata.U32("general.quantization_version", 2);
  AddArchitecture(config, metadata);
  if (config.landmark != LandmarkConfig()) AddLandmark(LandmarkToJson(config.landmark), "cairn.landmark.", metadata);
  if (auto vocabulary = options.vocabulary ? options.vocabulary : source.vocabulary(); vocabulary) {
    PadVocabulary(config, *vocabulary, source.name());
    AddVocabulary(*vocabulary, metadata);
  } else {
    metadata.Text("tokenizer.ggml.model", "no_vocab");
  }
  if (config.bos_token_id >= 0) metadata.U32("tokenizer.ggml.bos_token_id", static_cast<uint64_t>(config.bos_token_id));
  if (!config.eos_token_ids.empty()) {
    metadata.U32("tokenizer.ggml.eos_token_id", static_cast<uint64_t>(config.eos_token_ids[0]));
  }
  if (config.eos_token_ids.size() > 1) {
    metadata.Integers("cairn.eos_token_ids", {config.eos_token_ids.begin(), config.eos_token_ids.end()});
  }

  std::string header = "GGUF";
  const auto append = [&header](auto value) { header.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  append(uint32_t{3});
  append(static_cast<uint64_t>(plan.size()));
  append(metadata.count());
  header += metadata.bytes();
  for (const PlannedTensor& tensor : plan) {
    append(static_cast<uint64_t>(tensor.gguf_name.size()));
    header += tensor.gguf_name;
    append(static_cast<uint32_t>(tensor.shape.size()));
    for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) append(*size);
    append(GgmlTypeOf(tensor.type));
    append(tensor.offset);
  }
  header.resize(RoundUp(header.size(), kAlignment), '\0');
  const uint64_t total = plan.back().offset + RoundUp(plan.back().bytes, kAlignment);

  WriteFileAtomically(path, [&](const ByteSink& sink) {
    constexpr std::byte kZeros[kAlignment] = {};
    sink(std::as_bytes(std::span(header)));
    for (const PlannedTensor& tensor : plan) {
      uint64_t written = 0;
      const ByteSink counted = [&](std::span<const std::byte> bytes) {
        written += bytes.size();
        sink(bytes);
      };
      if (tensor.name.empty()) {
        const std::vector<float> factors = FrequencyFactors(config);
        counted(std::as_bytes(std::span(factors)));
      } else {
        ExportTensor(source, tensor.name, tensor.type, RotaryLayout::kInterleaved, counted);
      }
      CAIRN_CHECK(written == tensor.bytes, "tensor {}", tensor.gguf_name);
      sink(std::span(kZeros).first(RoundUp(written, kAlignment) - written));
      if (options.progress) options.progress(tensor.offset + tensor.bytes, total);
    }
  });
  return {path, header.size() + total};
}

}  // namespace cairn
