// cairn convert: a model from one file format to another.
#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "apps/target.h"
#include "apps/tokenizer_bridge.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "formats/gguf_model.h"
#include "formats/huggingface.h"
#include "formats/llama2c.h"
#include "formats/model_source.h"
#include "formats/model_tokenizer.h"
#include "io/file.h"
#include "tokenizer/llama2c_vocabulary.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string from;
  std::string to;
  std::string format;  // "", "hf", "gguf", "llama2c"
  std::string dtype;   // "" = as stored
  uint64_t shard_bytes = 0;
  bool force = false;
  bool json = false;
};

std::string FormatOf(const Options& options) {
  if (!options.format.empty()) return options.format;
  const std::string extension = fs::path(options.to).extension().string();
  if (extension == ".gguf") return "gguf";
  if (extension == ".bin") return "llama2c";
  if (extension == ".safetensors") {
    Fail("'{}': Hugging Face models are directories; name the directory, model.safetensors is made in it", options.to);
  }
  return "hf";
}

StoredType TypeOf(const std::string& dtype, const std::string& format) {
  const auto type = StoredTypeNamed(dtype);
  CAIRN_CHECK(type, "{}", dtype);
  if (format == "llama2c" && *type != StoredType::kF32)
    Fail("llama2.c files hold f32 weights; leave out --dtype {}", dtype);
  if (format == "hf" && *type == StoredType::kQ8_0) {
    Fail("Hugging Face directories hold f32, f16 or bf16 weights; choose one of these, or write GGUF for q8_0");
  }
  return *type;
}

// A line that is rewritten, only for a person.
WriteProgress MakeProgress() {
  if (isatty(STDERR_FILENO) == 0) return {};
  return [last = -1](uint64_t done, uint64_t total) mutable {
    const int percent =
        total == 0 ? 100 : static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
    if (percent == last) return;
    last = percent;
    fmt::print(stderr, "\r[{:<50}] {:3}%{}", std::string(static_cast<size_t>(percent) / 2, '#'), percent,
               done == total ? "\r\033[K" : "");
    std::fflush(stderr);
  };
}

void CheckTarget(const Options& options, const std::string& format) {
  if (format == "llama2c") RefuseExisting(Llama2cTokenizerPath(options.to), options.force);
  std::error_code ignored;
  if (!fs::exists(options.to, ignored)) return;
  if (fs::equivalent(options.from, options.to, ignored))
    Fail("'{}' is the model itself; choose another name for the result", options.to);
  if (fs::is_directory(options.to) && fs::is_empty(options.to)) return;
  RefuseExisting(options.to, options.force);
}

// The tokenizer goes beside the model where the format has one for it; what cannot be taken over is said in a warning.
void WriteLlama2cTokenizer(const ModelSource& source, const Options& options, std::vector<WrittenFile>& written) {
  const auto tokenizer = TokenizerOrWarning(source, options.from);
  if (!tokenizer) return;
  std::string bytes;
  try {
    bytes = WriteLlama2cVocabulary(tokenizer->spec());
  } catch (const Error& error) {
    spdlog::warn("no tokenizer is written: {}", error.what());
    return;
  }
  const fs::path path = Llama2cTokenizerPath(options.to);
  WriteFileAtomically(path, bytes);
  written.push_back({path, bytes.size()});
}

std::vector<WrittenFile> Write(const ModelSource& source, const Options& options, const std::string& format) {
  const auto type = options.dtype.empty() ? std::nullopt : std::optional(TypeOf(options.dtype, format));
  const bool from_directory = source.format() == ModelFormat::kHuggingFace;
  const bool from_llama2c = source.format() == ModelFormat::kLlama2c;
  if (format == "llama2c") {
    auto written = WriteLlama2c(source, options.to, MakeProgress());
    WriteLlama2cTokenizer(source, options, written);
    return written;
  }
  if (format == "gguf") {
    const auto beside = from_llama2c ? TokenizerOrWarning(source, options.from) : nullptr;
    GgufWriteOptions gguf;
    gguf.type = type;
    gguf.model_name = fs::path(options.to).stem().string();
    gguf.progress = MakeProgress();
    if (from_directory) gguf.vocabulary = VocabularyFrom(options.from);
    if (beside) gguf.vocabulary = VocabularyFrom(*beside);
    if (!gguf.vocabulary && !source.vocabulary()) spdlog::warn("'{}' gets no vocabulary", options.to);
    return {WriteGguf(source, options.to, gguf)};
  }
  HuggingFaceWriteOptions hf;
  hf.type = type;
  hf.shard_bytes = options.shard_bytes;
  hf.progress = MakeProgress();
  AddTokenizer(source, options.from, hf);
  return WriteHuggingFace(source, options.to, hf);
}

void Convert(const Options& options) {
  const std::string format = FormatOf(options);
  if (options.shard_bytes > 0 && format != "hf")
    Fail("--shard-size is for Hugging Face directories, not for {}", format);
  CheckTarget(options, format);
  const auto source = OpenModel(options.from);
  const std::vector<WrittenFile> written = Write(*source, options, format);
  if (options.json) {
    nlohmann::ordered_json out;
    out["from"] = options.from;
    out["from_format"] = NameOf(source->format());
    out["to_format"] = format;
    out["parameters"] = ParameterCount(source->config());
    out["files"] = nlohmann::ordered_json::array();
    for (const WrittenFile& file : written) {
      out["files"].push_back({{"path", file.path.string()}, {"bytes", file.bytes}});
    }
    fmt::print("{}\n", out.dump(2));
    return;
  }
  for (const WrittenFile& file : written) fmt::print("wrote {}  {} bytes\n", file.path.string(), file.bytes);
}

}  // namespace

void AddConvertVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("convert", "Convert a model between Hugging Face, GGUF and llama2.c");
  auto options = std::make_shared<Options>();
  verb->add_option("FROM", options->from, "Hugging Face directory, GGUF file or llama2.c file")->required();
  verb->add_option("TO", options->to, "What to write: NAME.gguf, NAME.bin (llama2.c), else a Hugging Face directory")
      ->required();
  verb->add_option("--to", options->format, "Format of TO, if its name does not say it")
      ->check(CLI::IsMember({"hf", "gguf", "llama2c"}));
  verb->add_option("--dtype", options->dtype, "Type of the weights; by default each tensor keeps its own where it can")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0"}));
  verb->add_option("--shard-size", options->shard_bytes, "Weights in one safetensors file at most, e.g. 2G")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  verb->add_flag("--force", options->force, "Replace TO if it exists");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer(
      "Examples:\n  cairn convert stories15M.bin stories15M-hf\n"
      "  cairn convert stories15M-hf stories15M-q8_0.gguf --dtype q8_0");
  verb->callback([options] { Convert(*options); });
}

}  // namespace cairn
