#include "formats/llama2c.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

constexpr uint32_t kMagic = 0x616b3432;  // "ak42", version 1 and later
constexpr size_t kHeaderBytes = 7 * 4;
constexpr size_t kLongHeaderBytes = 256;

// The seven integers that both versions share.
struct Header {
  int32_t dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len;
};
static_assert(sizeof(Header) == kHeaderBytes);

bool Plausible(const Header& header) {
  const auto within = [](int64_t value, int64_t high) { return value >= 1 && value <= high; };
  return within(header.dim, 1 << 20) && within(header.hidden_dim, 1 << 20) && within(header.n_layers, 4096) &&
         within(header.n_heads, 1 << 14) && within(header.n_kv_heads, 1 << 14) &&
         within(std::abs(static_cast<int64_t>(header.vocab_size)), 1 << 24) && within(header.seq_len, 1 << 30);
}

ModelConfig ConfigOf(const Header& header, bool tied, const std::string& name) {
  if (!Plausible(header))
    Fail("'{}' has sizes in its header that no llama2.c model has; it is damaged or of another kind", name);
  if (header.dim % header.n_heads != 0) {
    Fail("'{}': the width {} is not a multiple of the {} heads; the file is damaged or no llama2.c model", name,
         header.dim, header.n_heads);
  }
  ModelConfig config;
  config.hidden_size = static_cast<size_t>(header.dim);
  config.intermediate_size = static_cast<size_t>(header.hidden_dim);
  config.num_hidden_layers = static_cast<size_t>(header.n_layers);
  config.num_attention_heads = static_cast<size_t>(header.n_heads);
  config.num_key_value_heads = static_cast<size_t>(header.n_kv_heads);
  config.head_dim = config.hidden_size / config.num_attention_heads;
  config.vocab_size = static_cast<size_t>(std::abs(static_cast<int64_t>(header.vocab_size)));
  config.max_position_embeddings = static_cast<size_t>(header.seq_len);
  // llama2.c has these three in its source.
  config.rms_norm_eps = 1e-5;
  if (config.vocab_size > 1) config.bos_token_id = 1;
  if (config.vocab_size > 2) config.eos_token_ids = {2};
  config.tie_word_embeddings = tied;
  config.rotary_layout = RotaryLayout::kInterleaved;
  return config;
}

// What the header cannot say about `config` is set to what a reader of the header alone takes for granted.
ModelConfig AsHeaderSays(const ModelConfig& config) {
  const Header header{static_cast<int32_t>(config.hidden_size),
                      static_cast<int32_t>(config.intermediate_size),
                      static_cast<int32_t>(config.num_hidden_layers),
                      static_cast<int32_t>(config.num_attention_heads),
                      static_cast<int32_t>(config.num_key_value_heads),
                      static_cast<int32_t>(config.vocab_size),
                      static_cast<int32_t>(config.max_position_embeddings)};
  return ConfigOf(header, config.tie_word_embeddings, "model");
}

ModelConfig ApplySidecar(const ModelConfig& header, const std::string& text, const std::string& name) {
  const std::string sidecar_name = name + ".json";
  ModelConfig config = ParseModelConfig(text, sidecar_name);
  const auto agree = [&](auto ModelConfig::*field, const char* what) {
    if (config.*field != header.*field) {
      Fail("'{}': {} contradicts the header of '{}'; delete the one that is stale", sidecar_name, what, name);
    }
  };
  agree(&ModelConfig::hidden_size, "hidden_size");
  agree(&ModelConfig::intermediate_size, "intermediate_size");
  agree(&ModelConfig::num_hidden_layers, "num_hidden_layers");
  agree(&ModelConfig::num_attention_heads, "num_attention_heads");
  agree(&ModelConfig::num_key_value_heads, "num_key_value_heads");
  agree(&ModelConfig::head_dim, "head_dim");
  agree(&ModelConfig::vocab_size, "vocab_size");
  agree(&ModelConfig::max_position_embeddings, "max_position_embeddings");
  agree(&ModelConfig::tie_word_embeddings, "tie_word_embeddings");
  agree(&ModelConfig::rotary_layout, "rope_interleaved");
  return config;
}

// One run of tensors in the file: a tensor that exists once, or one of each layer.
struct Run {
  const char* name;  // Hugging Face's, or what follows "model.layers.N."
  bool per_layer;
};

constexpr Run kVersion0[] = {
    {"model.embed_tokens.weight", false},
    {"input_layernorm.weight", true},
    {"self_attn.q_proj.weight", true},
    {"self_attn.k_proj.weight", true},
    {"self_attn.v_proj.weight", true},
    {"self_attn.o_proj.weight", true},
    {"post_attention_layernorm.weight", true},
    {"mlp.gate_proj.weight", true},
    {"mlp.down_proj.weight", true},
    {"mlp.up_proj.weight", true},
    {"model.norm.weight", false},
    // then the cosines and sines [seq_len, head_dim / 2], then:
    {"lm_head.weight", false},
};

constexpr Run kVersion1[] = {
    {"input_layernorm.weight", true},  {"post_attention_layernorm.weight", true},
    {"model.norm.weight", false},      {"model.embed_tokens.weight", false},
    {"self_attn.q_proj.weight", true}, {"self_attn.k_proj.weight", true},
    {"self_attn.v_proj.weight", true}, {"self_attn.o_proj.weight", true},
    {"mlp.gate_proj.weight", true},    {"mlp.down_proj.weight", true},
    {"mlp.up_proj.weight", true},      {"lm_head.weight", false},
};

// Names in the order of the file. Version 0 has an empty name where the angle tables stand.
std::vector<std::string> NamesInOrder(const ModelConfig& config, int version) {
  std::vector<std::string> names;
  for (const Run& run : version == 0 ? std::span<const Run>(kVersion0) : std::span<const Run>(kVersion1)) {
    if (std::string_view(run.name) == "lm_head.weight") {
      if (version == 0) names.emplace_back();
      if (config.tie_word_embeddings) continue;
    }
    for (size_t layer = 0; layer < (run.per_layer ? config.num_hidden_layers : 1); ++layer) {
      names.push_back(run.per_layer ? fmt::format("model.layers.{}.{}", layer, run.name) : run.name);
    }
  }
  return names;
}

uint64_t AngleElements(const ModelConfig& config) { return config.max_position_embeddings * config.head_dim; }

fs::path SidecarPath(const fs::path& path) { return path.string() + ".json"; }

void CheckExpressible(const ModelConfig& config, const std::string& name) {
  if (config.head_dim * config.num_attention_heads != config.hidden_size) {
    Fail("'{}': llama2.c files have no place for head_dim {} other than hidden_size / num_attention_heads", name,
         config.head_dim);
  }
  if (config.rope_theta != 10000 || config.rope_scaling.kind != RopeScalingKind::kNone) {
    Fail(
        "'{}': llama2.c rotates with base 10000 without scaling; this model (rope_theta {}, rope_scaling {}) needs "
        "another "
        "format",
        name, config.rope_theta, NameOf(config.rope_scaling.kind));
  }
  if (config.max_position_embeddings > (1 << 30)) {
    Fail("'{}': max_position_embeddings {} does not fit a llama2.c file", name, config.max_position_embeddings);
  }
}

}  // namespace

bool LooksLikeLlama2c(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return false;
  std::memcpy(&header, bytes.data(), sizeof(header));
  return static_cast<uint32_t>(header.dim) == kMagic || Plausible(header);
}

std::optional<std::string> ReadLlama2cSidecar(const fs::path& path) {
  if (!fs::exists(SidecarPath(path))) return std::nullopt;
  return ReadTextFile(SidecarPath(path), size_t{16} << 20);
}

std::shared_ptr<const ModelSource> ModelFromLlama2c(std::span<const std::byte> bytes, const std::string& name,
                                                    std::shared_ptr<const void> owner,
                                                    const std::optional<std::string>& sidecar) {
  Header header;
  uint32_t magic = 0;
  if (bytes.size() < sizeof(header)) Fail("'{}' has {} bytes, too few for a llama2.c file", name, bytes.size());
  std::memcpy(&magic, bytes.data(), sizeof(magic));
  std::memcpy(&header, bytes.data(), sizeof(header));
  int32_t version = 0;
  size_t position = kHeaderBytes;
  bool tied = header.vocab_size > 0;
  if (magic == kMagic) {
    if (bytes.size() < kLongHeaderBytes) Fail("'{}' has {} bytes, too few for a llama2.c header", name, bytes.size());
    std::memcpy(&version, bytes.data() + 4, sizeof(version));
    if (version != 1) {
      Fail("'{}' is a llama2.c file of version {}; Cairn reads versions 0 and 1 (f32). Export it as one of these", name,
           version);
    }
    std::memcpy(&header, bytes.data() + 8, sizeof(header));
    const auto shared = std::to_integer<int>(bytes[8 + kHeaderBytes]);
    if (shared > 1 || header.vocab_size < 0) Fail("'{}': the llama2.c header is damaged", name);
    tied = shared == 1;
    position = kLongHeaderBytes;
  }
  ModelSource::Parts parts;
  parts.format = ModelFormat::kLlama2c;
  parts.name = name;
  parts.file_bytes = bytes.size();
  parts.config = ConfigOf(header, tied, name);
  ValidateModelConfig(parts.config, name);
  const uint64_t elements = ParameterCount(parts.config) + (version == 0 ? AngleElements(parts.config) : 0);
  const auto needed = CheckedMul(elements, sizeof(float));
  if (!needed || *needed != bytes.size() - position) {
    Fail("'{}' has {} bytes of weights, but its header asks for {}; it is truncated, damaged or no llama2.c model",
         name, bytes.size() - position, needed.value_or(UINT64_MAX));
  }
  std::map<std::string, Shape> shapes;
  for (ExpectedTensor& tensor : ExpectedTensors(parts.config)) shapes[tensor.name] = std::move(tensor.shape);
  for (const std::string& tensor : NamesInOrder(parts.config, version)) {
    const Shape shape = tensor.empty() ? Shape{AngleElements(parts.config)} : shapes.at(tensor);
    const size_t size = *StoredBytes(StoredType::kF32, shape);
    if (!tensor.empty()) parts.tensors[tensor] = {StoredType::kF32, shape, bytes.subspan(position, size)};
    position += size;
  }
  CAIRN_CHECK(position == bytes.size());
  if (sidecar) parts.config = ApplySidecar(parts.config, *sidecar, name);
  if (owner) parts.owners.push_back(std::move(owner));
  return std::make_shared<const ModelSource>(std::move(parts));
}

std::vector<WrittenFile> WriteLlama2c(const ModelSource& source, const fs::path& path, const WriteProgress& progress) {
  ModelConfig config = source.config();
  CheckExpressible(config, source.name());
  config.rotary_layout = RotaryLayout::kInterleaved;
  config.torch_dtype = "float32";
  ModelConfig plain = AsHeaderSays(config);
  plain.other_keys = config.other_keys;
  const bool needs_sidecar = plain != config;
  const fs::path sidecar = SidecarPath(path);
  const bool had_sidecar = fs::exists(sidecar);
  // The settings go first: weights without them would be taken for another model, settings without weights for none.
  if (needs_sidecar) WriteFileAtomically(sidecar, ToJson(config));

  const auto as_int = [](size_t value) { return static_cast<int32_t>(value); };
  const Header header{as_int(config.hidden_size),
                      as_int(config.intermediate_size),
                      as_int(config.num_hidden_layers),
                      as_int(config.num_attention_heads),
                      as_int(config.num_key_value_heads),
                      config.tie_word_embeddings ? as_int(config.vocab_size) : -as_int(config.vocab_size),
                      as_int(config.max_position_embeddings)};
  const uint64_t total = (ParameterCount(config) + AngleElements(config)) * sizeof(float);
  try {
    WriteFileAtomically(path, [&](const ByteSink& sink) {
      uint64_t done = 0;
      const ByteSink counted = [&](std::span<const std::byte> bytes) {
        done += bytes.size();
        sink(bytes);
      };
      sink(std::as_bytes(std::span(&header, 1)));
      const std::vector<double> frequencies = RotaryFrequencies(config);
      std::vector<float> row(frequencies.size());
      for (const std::string& tensor : NamesInOrder(config, 0)) {
        if (!tensor.empty()) {
          ExportTensor(source, tensor, StoredType::kF32, RotaryLayout::kInterleaved, counted);
        } else {
          for (const bool sine : {false, true}) {
            for (size_t position = 0; position < config.max_position_embeddings; ++position) {
              for (size_t i = 0; i < row.size(); ++i) {
                const double angle = static_cast<double>(position) * frequencies[i];
                row[i] = static_cast<float>(sine ? std::sin(angle) : std::cos(angle));
              }
              counted(std::as_bytes(std::span(row)));
            }
          }
        }
        if (progress) progress(done, total);
      }
      CAIRN_CHECK(done == total);
    });
  } catch (...) {
    std::error_code ignored;
    if (needs_sidecar && !had_sidecar) fs::remove(sidecar, ignored);
    throw;
  }
  std::vector<WrittenFile> written = {{path, sizeof(header) + total}};
  if (needs_sidecar) {
    written.push_back({sidecar, fs::file_size(sidecar)});
  } else if (had_sidecar) {
    fs::remove(sidecar);
  }
  return written;
}

}  // namespace cairn
