// cairn tokenizer: train a vocabulary, encode and decode text with one, and add the landmark to one.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "data/text_files.h"
#include "formats/model_tokenizer.h"
#include "io/file.h"
#include "tokenizer/sentencepiece_model.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/train.h"

namespace cairn {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string Dump(const OrderedJson& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ReadStandardInput() { return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()}; }

void WriteBytes(const std::string& bytes) { std::fwrite(bytes.data(), 1, bytes.size(), stdout); }

void AddTrain(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("train", "Make a vocabulary out of text (SentencePiece BPE, byte fallback)");
  struct Options {
    std::vector<std::filesystem::path> texts;
    std::filesystem::path output;
    TokenizerTraining training;
    double max_megabytes = 64;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("TEXT", options->texts, "Text files, or directories of them")->required();
  verb->add_option("--vocab", options->training.vocab_size, "Number of tokens, bytes and <landmark> included")
      ->capture_default_str();
  verb->add_option("-o,--output", options->output, "The model file to write")->required();
  verb->add_option("--digits", options->training.digits, "Most digits of a token; numbers are cut from the left")
      ->capture_default_str()
      ->check(CLI::Range(1, 3));
  verb->add_option("--coverage", options->training.character_coverage, "Share of all characters that get a token")
      ->capture_default_str();
  verb->add_option("--sample", options->max_megabytes, "Of more text than this many MB a sample is taken")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 1e6));
  verb->footer("Example:\n  cairn tokenizer train books/train --vocab 4096 -o tok.model");
  verb->callback([options] {
    const TextFiles found = FindTextFiles(options->texts);
    options->training.files = found.files;
    options->training.max_bytes = static_cast<uint64_t>(options->max_megabytes * 1e6);
    const auto tokenizer = TrainTokenizer(options->training);
    WriteFileAtomically(options->output, WriteSentencePieceModel(tokenizer->spec()));
    fmt::print("{}: {} tokens from {} files ({:.1f} MB), landmark {}, fingerprint {}\n", options->output.string(),
               tokenizer->vocab_size(), found.files.size(), static_cast<double>(found.bytes) / 1e6,
               *tokenizer->landmark(), tokenizer->fingerprint());
  });
}

void AddEncode(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("encode", "Text to token ids");
  struct Options {
    std::filesystem::path tokenizer, file;
    std::string prompt;
    bool json = false, pieces = false, bos = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("-t,--tokenizer", options->tokenizer, "Tokenizer file, model directory or GGUF file")->required();
  CLI::Option* prompt = verb->add_option("-p,--prompt", options->prompt, "The text");
  verb->add_option("-f,--file", options->file, "A file of text; standard input without -p and -f")->excludes(prompt);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->add_flag("--pieces", options->pieces, "Print each token's id and text on a line");
  verb->add_flag("--bos", options->bos, "Begin with the beginning-of-sequence token");
  verb->footer("Example:\n  cairn tokenizer encode -t tok.model -p 'Once upon a time' --pieces");
  verb->callback([options, prompt] {
    const auto tokenizer = LoadTokenizerOrModel(options->tokenizer);
    std::string text = options->prompt;
    if (prompt->empty()) text = options->file.empty() ? ReadStandardInput() : ReadTextFile(options->file);
    std::vector<int32_t> ids = tokenizer->Encode(text);
    if (options->bos) {
      if (!tokenizer->bos())
        Fail("'{}' has no beginning-of-sequence token; leave --bos out", options->tokenizer.string());
      ids.insert(ids.begin(), *tokenizer->bos());
    }
    if (options->json) {
      OrderedJson out;
      out["ids"] = ids;
      if (options->pieces) {
        out["pieces"] = OrderedJson::array();
        for (const int32_t id : ids) out["pieces"].push_back(tokenizer->Piece(id));
      }
      fmt::print("{}\n", Dump(out));
    } else if (options->pieces) {
      for (const int32_t id : ids) fmt::print("{}\t{}\n", id, Dump(OrderedJson(tokenizer->Piece(id))));
    } else {
      std::string line;
      for (const int32_t id : ids) line += (line.empty() ? "" : " ") + std::to_string(id);
      fmt::print("{}\n", line);
    }
  });
}

int32_t ParseId(const std::string& word) {
  size_t end = 0;
  long value = -1;
  try {
    value = std::stol(word, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end != word.size() || word.empty() || value < 0 || value > INT32_MAX) Fail("'{}' is not a token id", word);
  return static_cast<int32_t>(value);
}

void AddDecode(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("decode", "Token ids to text");
  struct Options {
    std::filesystem::path tokenizer;
    std::vector<std::string> ids;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("-t,--tokenizer", options->tokenizer, "Tokenizer file, model directory or GGUF file")->required();
  verb->add_option("IDS", options->ids, "Token ids; read from standard input when none are given");
  verb->add_flag("--json", options->json, "Print JSON; bytes that are not UTF-8 are replaced");
  verb->footer(
      "Example:\n  cairn tokenizer encode -t tok.model -p 'Hello' | cairn tokenizer decode -t tok.model\n"
      "The text is written as it is, without a newline at its end.");
  verb->callback([options] {
    const auto tokenizer = LoadTokenizerOrModel(options->tokenizer);
    if (options->ids.empty()) {
      for (std::string word; std::cin >> word;) options->ids.push_back(word);
    }
    std::vector<int32_t> ids;
    for (const std::string& word : options->ids) ids.push_back(ParseId(word));
    const std::string text = tokenizer->Decode(ids);
    if (options->json) {
      fmt::print("{}\n", Dump({{"text", text}}));
    } else {
      WriteBytes(text);
    }
  });
}

void AddInfo(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("info", "Show a tokenizer's kind, size and special tokens");
  struct Options {
    std::filesystem::path tokenizer;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("-t,--tokenizer", options->tokenizer, "Tokenizer file, model directory or GGUF file")->required();
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer("Example:\n  cairn tokenizer info -t tok.model");
  verb->callback([options] {
    const auto tokenizer = LoadTokenizerOrModel(options->tokenizer);
    OrderedJson out;
    const auto id = [](std::optional<int32_t> value) { return value ? OrderedJson(*value) : OrderedJson(nullptr); };
    out["kind"] = NameOf(tokenizer->kind());
    out["vocab_size"] = tokenizer->vocab_size();
    out["bos"] = id(tokenizer->bos());
    out["eos"] = id(tokenizer->eos());
    out["landmark"] = id(tokenizer->landmark());
    out["dummy_prefix"] = tokenizer->spec().add_dummy_prefix;
    out["fingerprint"] = tokenizer->fingerprint();
    if (options->json) {
      fmt::print("{}\n", Dump(out, 2));
      return;
    }
    const auto show = [&](std::optional<int32_t> value) {
      return value ? fmt::format("{} {}", *value, tokenizer->Piece(*value)) : std::string("none");
    };
    fmt::print(
        "kind          {}\nvocabulary    {}\nbos           {}\neos           {}\nlandmark      {}\n"
        "dummy prefix  {}\nfingerprint   {}\n",
        NameOf(tokenizer->kind()), tokenizer->vocab_size(), show(tokenizer->bos()), show(tokenizer->eos()),
        show(tokenizer->landmark()), tokenizer->spec().add_dummy_prefix ? "yes" : "no", tokenizer->fingerprint());
  });
}

void AddAddLandmark(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("add-landmark", "Write a tokenizer with the landmark as one more token");
  struct Options {
    std::filesystem::path tokenizer, output;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("-t,--tokenizer", options->tokenizer, "Tokenizer file, model directory or GGUF file")->required();
  verb->add_option("-o,--output", options->output, "Directory to write the tokenizer's files to")->required();
  verb->footer(
      "Example:\n  cairn tokenizer add-landmark -t tokenizer.bin -o with-landmark\n"
      "Every text is encoded as before; the landmark's id is the old size of the vocabulary.");
  verb->callback([options] {
    const auto plain = LoadTokenizerOrModel(options->tokenizer);
    if (plain->landmark())
      Fail("'{}' has a landmark already: token {}", options->tokenizer.string(), *plain->landmark());
    const auto marked = WithLandmark(plain);
    std::error_code failure;
    std::filesystem::create_directories(options->output, failure);
    if (failure) Fail("cannot make the directory '{}': {}", options->output.string(), failure.message());
    marked->Save(options->output);
    fmt::print("{}: {} tokens, landmark {}\n", options->output.string(), marked->vocab_size(), *marked->landmark());
  });
}

}  // namespace

void AddTokenizerVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("tokenizer", "Train, use and inspect tokenizers");
  verb->require_subcommand(1);
  verb->footer(
      "Reads SentencePiece models, llama2.c's tokenizer.bin, Hugging Face's tokenizer.json (BPE), and model "
      "directories.\n"
      "Example:\n  cairn tokenizer train books/train --vocab 4096 -o tok.model\n"
      "  cairn tokenizer encode -t tok.model -p 'Once upon a time'");
  AddTrain(*verb);
  AddEncode(*verb);
  AddDecode(*verb);
  AddInfo(*verb);
  AddAddLandmark(*verb);
}

}  // namespace cairn
