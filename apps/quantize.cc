// cairn quantize: a model with int8 or int4 weights.
#include <fmt/format.h>

#include <filesystem>

#include "apps/target.h"
#include "apps/tokenizer_bridge.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "formats/gguf_model.h"

namespace cairn {

namespace {

namespace fs = std::filesystem;

struct Options {
  std::string model;
  std::string out;
  std::string type = "int8";
  bool force = false;
};

void Run(const Options& options) {
  std::error_code ignored;
  if (fs::path(options.out).extension() != ".gguf") {
    Fail("'{}': quantised models are GGUF files; let the name end in .gguf", options.out);
  }
  if (fs::exists(options.out, ignored)) {
    if (fs::equivalent(options.model, options.out, ignored))
      Fail("'{}' is the model itself; choose another name", options.out);
    RefuseExisting(options.out, options.force);
  }
  const auto source = OpenModel(options.model);
  GgufWriteOptions gguf;
  gguf.type = options.type == "int4" ? StoredType::kQ4_0 : StoredType::kQ8_0;
  gguf.model_name = fs::path(options.out).stem().string();
  if (source->format() == ModelFormat::kHuggingFace) {
    gguf.vocabulary = VocabularyFrom(options.model);
  } else if (!source->vocabulary()) {
    if (const auto tokenizer = TokenizerOrWarning(*source, options.model)) gguf.vocabulary = VocabularyFrom(*tokenizer);
  }
  WrittenFile written;
  {
    Progress progress("quantising", 1000);
    uint64_t shown = 0;
    gguf.progress = [&](uint64_t done, uint64_t total) {
      const uint64_t part = total == 0 ? 1000 : done * 1000 / total;
      progress.Add(part - shown);
      shown = part;
    };
    written = WriteGguf(*source, options.out, gguf);
  }
  fmt::print("wrote {}  {} bytes ({:.0f}% of {})\n", written.path.string(), written.bytes,
             100.0 * static_cast<double>(written.bytes) / static_cast<double>(source->file_bytes()),
             source->file_bytes());
}

}  // namespace

void AddQuantizeVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("quantize", "Write a model with int8 or int4 weights");
  auto options = std::make_shared<Options>();
  verb->add_option("-m,--model", options->model, "Hugging Face directory, GGUF file or llama2.c file")->required();
  verb->add_option("-o,--output", options->out, "The GGUF file to write")->required();
  verb->add_option("--type", options->type,
                   "int8 (q8_0: 8.5 bits a weight), or int4 (q4_0: 4.5 bits; embeddings stay int8)")
      ->check(CLI::IsMember({"int8", "int4"}))
      ->capture_default_str();
  verb->add_flag("--force", options->force, "Replace the file if it exists");
  verb->footer(
      "Example:\n  cairn quantize -m model -o model-int8.gguf\n"
      "What it costs:\n  cairn eval perplexity -m model-int8.gguf text.txt");
  verb->callback([options] { Run(*options); });
}

}  // namespace cairn
