// cairn model: what a model file holds, and models that grow.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "apps/target.h"
#include "apps/tokenizer_bridge.h"
#include "apps/verbs.h"
#include "base/checked.h"
#include "formats/grow.h"
#include "formats/model_source.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

uint64_t Elements(const Shape& shape) { return *CheckedProduct(shape); }

Json Describe(const ModelSource& source, bool tensors) {
  Json out;
  out["path"] = source.name();
  out["format"] = NameOf(source.format());
  out["file_bytes"] = source.file_bytes();
  out["parameters"] = ParameterCount(source.config());
  out["rotary_layout"] = NameOf(source.config().rotary_layout);
  std::map<std::string, std::pair<uint64_t, uint64_t>> types;  // tensors, bytes
  for (const auto& [name, tensor] : source.tensors()) {
    auto& [count, bytes] = types[std::string(NameOf(tensor.type))];
    ++count;
    bytes += tensor.bytes.size();
  }
  for (const auto& [type, sums] : types) out["types"][type] = {{"tensors", sums.first}, {"bytes", sums.second}};
  if (source.vocabulary()) {
    out["vocabulary"] = {{"model", source.vocabulary()->model}, {"tokens", source.vocabulary()->tokens.size()}};
  }
  out["config"] = Json::parse(ToJson(source.config()));
  if (tensors) {
    out["tensors"] = Json::array();
    for (const ExpectedTensor& expected : ExpectedTensors(source.config())) {
      const StoredTensor& tensor = source.Get(expected.name);
      out["tensors"].push_back({{"name", expected.name},
                                {"type", NameOf(tensor.type)},
                                {"shape", tensor.shape},
                                {"bytes", tensor.bytes.size()}});
    }
  }
  return out;
}

void PrintLandmark(const LandmarkConfig& landmark) {
  if (landmark == LandmarkConfig()) {
    fmt::print("landmark        none: an ordinary model with full attention\n");
    return;
  }
  fmt::print("landmark        attention {}, block length {}, landmark id {}", NameOf(landmark.attention),
             landmark.block_length, landmark.landmark_id);
  if (landmark.local_layers > 0) {
    fmt::print(", {} local layers that see {} blocks back", landmark.local_layers, landmark.local_blocks);
  }
  if (landmark.positional_jump > 0) fmt::print(", positional jumps up to {}", landmark.positional_jump);
  if (landmark.xl_cache_length > 0) fmt::print(", cache {}", landmark.xl_cache_length);
  fmt::print("\n");
  if (landmark.context_miss.enabled) {
    fmt::print("context miss    token {}, probability {}\n", landmark.context_miss.token_id,
               landmark.context_miss.probability);
  }
  if (const MemoryTrainingConfig& memory = landmark.memory_training; memory.enabled) {
    fmt::print("memory training k {}, chunk {}, {} distractor blocks ({})\n", memory.k, memory.chunk_length,
               memory.distractor_blocks, NameOf(memory.distractors));
  }
}

void Print(const ModelSource& source, bool tensors) {
  const ModelConfig& config = source.config();
  const Json facts = Describe(source, false);
  fmt::print("model           {}\n", source.name());
  fmt::print("format          {}, {} bytes\n", NameOf(source.format()), source.file_bytes());
  fmt::print("parameters      {}\n", ParameterCount(config));
  std::string types;
  for (const auto& [type, sums] : facts["types"].items()) {
    types += fmt::format("{}{} ({} tensors, {} bytes)", types.empty() ? "" : ", ", type,
                         sums["tensors"].get<uint64_t>(), sums["bytes"].get<uint64_t>());
  }
  fmt::print("tensor types    {}\n", types);
  fmt::print("layers          {}\n", config.num_hidden_layers);
  fmt::print("width           {}, feed-forward {}\n", config.hidden_size, config.intermediate_size);
  fmt::print("heads           {} of {}, {} for keys and values\n", config.num_attention_heads, config.head_dim,
             config.num_key_value_heads);
  fmt::print("vocabulary      {}, embeddings {}\n", config.vocab_size, config.tie_word_embeddings ? "tied" : "untied");
  fmt::print("trained context {}\n", config.max_position_embeddings);
  fmt::print("rotary          base {}, scaling {}, pairs {}\n", config.rope_theta, NameOf(config.rope_scaling.kind),
             NameOf(config.rotary_layout));
  fmt::print("norm epsilon    {}\n", config.rms_norm_eps);
  if (source.vocabulary()) {
    fmt::print("tokenizer       inside the file: kind '{}', {} tokens\n", source.vocabulary()->model,
               source.vocabulary()->tokens.size());
  }
  PrintLandmark(config.landmark);
  if (!tensors) return;
  fmt::print("\n");
  for (const ExpectedTensor& expected : ExpectedTensors(config)) {
    const StoredTensor& tensor = source.Get(expected.name);
    fmt::print("{:<48} {:<5} {:<16} {:>12}\n", expected.name, NameOf(tensor.type), ToString(tensor.shape),
               Elements(tensor.shape));
  }
}

void AddGrowVerb(CLI::App& model) {
  CLI::App* verb = model.add_subcommand("grow", "Make a larger model that computes the same, to be trained further");
  struct Options {
    std::string from, to;
    GrowOptions sizes;
    bool force = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("FROM", options->from, "Hugging Face directory, GGUF file or llama2.c file")->required();
  verb->add_option("TO", options->to, "Hugging Face directory to write")->required();
  const auto size = [&](const char* flag, uint64_t& value, const char* what) {
    verb->add_option(flag, value, what)->check(CLI::Range(uint64_t{1}, uint64_t{1} << 20));
  };
  size("--width", options->sizes.hidden_size, "Width of the residual stream; default: as before");
  size("--heads", options->sizes.num_attention_heads, "Query heads; default: as before");
  size("--kv-heads", options->sizes.num_key_value_heads, "KV heads; default: as before");
  size("--ffn", options->sizes.intermediate_size, "Width of the feed-forward part; default: as before");
  verb->add_option("--seed", options->sizes.seed, "The same seed gives the same weights")->capture_default_str();
  verb->add_flag("--force", options->force, "Replace TO if it exists");
  verb->footer(
      "New heads and coordinates read at random and write nothing, until training gives them something to say.\n\n"
      "Example:\n  cairn model grow small large --width 384 --heads 8 --kv-heads 4 --ffn 768\n"
      "  cairn tune --from large run.json");
  verb->callback([options] {
    RefuseExisting(options->to, options->force);
    const auto source = OpenModel(options->from);
    const auto grown = GrowModel(*source, options->sizes);
    HuggingFaceWriteOptions write;
    AddTokenizer(*source, options->from, write);
    WriteHuggingFace(*grown, options->to, write);
    fmt::print("wrote {}: {} parameters, {} before\n", options->to, ParameterCount(grown->config()),
               ParameterCount(source->config()));
  });
}

}  // namespace

void AddModelVerb(CLI::App& root, int&) {
  CLI::App* model = root.add_subcommand("model", "Look at model files, and make larger models of them");
  model->require_subcommand(1);
  model->footer("Example:\n  cairn model info stories15M.bin");
  AddGrowVerb(*model);
  CLI::App* verb = model->add_subcommand("info", "Show a model's format, configuration, size and tensors");
  struct Options {
    std::string path;
    bool json = false;
    bool tensors = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("MODEL", options->path, "Hugging Face directory, GGUF file or llama2.c file")->required();
  verb->add_flag("--tensors", options->tensors, "List every tensor");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer("Example:\n  cairn model info stories15M.bin\n  cairn model info model.gguf --tensors");
  verb->callback([options] {
    const auto source = OpenModel(options->path);
    if (options->json) {
      fmt::print("{}\n", Describe(*source, options->tensors).dump(2, ' ', false, Json::error_handler_t::replace));
    } else {
      Print(*source, options->tensors);
    }
  });
}

}  // namespace cairn
