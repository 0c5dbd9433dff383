// cairn data: prepare token shards from text, show what a directory of them holds, and verify it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "apps/verbs.h"
#include "base/error.h"
#include "base/progress.h"
#include "data/prepare.h"
#include "data/recall_rows.h"
#include "data/token_dataset.h"
#include "formats/model_tokenizer.h"

namespace cairn {

namespace {

using OrderedJson = nlohmann::ordered_json;

void AddPrepare(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("prepare", "Turn text into memory-mapped token shards");
  struct Options {
    PrepareOptions prepare;
    std::filesystem::path tokenizer;
    bool no_bos = false, json = false;
    double shard_mega = 32;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("TEXT", options->prepare.inputs, "Text files, or directories of them; each file is a document")
      ->required();
  verb->add_option("-t,--tokenizer", options->tokenizer, "Tokenizer file, model directory or GGUF file")->required();
  verb->add_option("-o,--output", options->prepare.output, "Directory to write")->required();
  CLI::Option* fraction = verb->add_option("--validation", options->prepare.validation_fraction,
                                           "Share of each document, at its end, to hold out")
                              ->check(CLI::Range(0.0, 0.99));
  verb->add_option("--validation-files", options->prepare.validation_files, "Files or directories to hold out instead")
      ->excludes(fraction);
  verb->add_option("--separator", options->prepare.separator,
                   "Text that separates documents inside a file; it is dropped");
  verb->add_flag("--no-bos", options->no_bos, "Do not begin documents with the beginning-of-sequence token");
  verb->add_option("--shard", options->shard_mega, "Million tokens a shard")
      ->capture_default_str()
      ->check(CLI::Range(0.001, 4096.0));
  verb->add_flag("--force", options->prepare.force, "Replace an earlier preparation in the directory");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer(
      "Example:\n  cairn data prepare books/train --validation-files books/valid -t tok.model -o data\n"
      "Landmarks are not stored; they are inserted when batches are made, so one preparation serves every block "
      "length.");
  verb->callback([options] {
    PrepareOptions& prepare = options->prepare;
    prepare.tokenizer = LoadTokenizerOrModel(options->tokenizer);
    prepare.add_bos = !options->no_bos;
    prepare.shard_tokens = static_cast<uint64_t>(options->shard_mega * 1e6);
    const PrepareSummary summary = PrepareData(prepare);
    OrderedJson out;
    for (const auto& [name, split] :
         {std::pair(kTrainSplit, summary.train), std::pair(kValidationSplit, summary.validation)}) {
      if (split.tokens == 0) continue;
      out[name] = {
          {"files", split.files}, {"documents", split.documents}, {"tokens", split.tokens}, {"shards", split.shards}};
      if (!options->json) {
        fmt::print("{:<11} {} tokens in {} documents, {} shards\n", name, split.tokens, split.documents, split.shards);
      }
    }
    out["skipped_files"] = summary.skipped_files;
    if (options->json) fmt::print("{}\n", out.dump(2));
  });
}

void AddInfo(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("info", "Show what a directory of prepared tokens holds");
  struct Options {
    std::filesystem::path directory;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("DIR", options->directory, "Directory that 'cairn data prepare' wrote")->required();
  verb->add_flag("--json", options->json, "Print JSON, with every source file");
  verb->footer("Example:\n  cairn data info data");
  verb->callback([options] {
    OrderedJson out;
    for (const std::string& split : TokenDataset::Splits(options->directory)) {
      const auto data = TokenDataset::Open(options->directory, split);
      if (!out.contains("tokenizer")) {
        out["tokenizer"] = {{"fingerprint", data->tokenizer_fingerprint()},
                            {"kind", data->tokenizer_kind()},
                            {"vocab_size", data->vocab_size()}};
        out["bytes_per_token"] = data->bytes_per_token();
      }
      OrderedJson& entry = out["splits"][split];
      entry = {{"tokens", data->token_count()}, {"documents", data->document_count()}, {"shards", data->shard_count()}};
      entry["sources"] = OrderedJson::array();
      for (const TokenSource& source : data->sources()) {
        entry["sources"].push_back({{"file", source.file}, {"begin", source.begin}, {"end", source.end}});
      }
    }
    if (options->json) {
      fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
      return;
    }
    if (!out.contains("splits")) Fail("'{}' has no splits; prepare the data again", options->directory.string());
    fmt::print("tokenizer   {} {} ({} tokens), {} bytes a token\n", out["tokenizer"]["kind"].get<std::string>(),
               out["tokenizer"]["fingerprint"].get<std::string>(), out["tokenizer"]["vocab_size"].get<uint64_t>(),
               out["bytes_per_token"].get<uint32_t>());
    for (const auto& [name, split] : out["splits"].items()) {
      fmt::print("{:<11} {} tokens in {} documents of {} files, {} shards\n", name, split["tokens"].get<uint64_t>(),
                 split["documents"].get<uint64_t>(), split["sources"].size(), split["shards"].get<uint64_t>());
    }
  });
}

void AddVerify(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("verify", "Read every shard and check it against its checksum");
  struct Options {
    std::filesystem::path directory, tokenizer;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("DIR", options->directory, "Directory that 'cairn data prepare' wrote")->required();
  verb->add_option("-t,--tokenizer", options->tokenizer, "Also check that the data was made with this tokenizer");
  verb->footer("Example:\n  cairn data verify data -t tok.model");
  verb->callback([options] {
    const auto tokenizer = options->tokenizer.empty() ? nullptr : LoadTokenizerOrModel(options->tokenizer);
    uint64_t tokens = 0, shards = 0;
    for (const std::string& split : TokenDataset::Splits(options->directory)) {
      const auto data = TokenDataset::Open(options->directory, split);
      if (tokenizer) data->CheckTokenizer(*tokenizer);
      Progress progress("verifying " + split, data->token_count());
      data->Verify([&](uint64_t count) { progress.Add(count); });
      tokens += data->token_count();
      shards += data->shard_count();
    }
    fmt::print("sound: {} tokens in {} shards\n", tokens, shards);
  });
}

void AddRecall(CLI::App& parent) {
  CLI::App* verb = parent.add_subcommand("recall", "Show rows that hide facts in the text and ask for them");
  struct Options {
    std::filesystem::path directory, tokenizer;
    RecallConfig recall;
    size_t context = 512, rows = 1;
    uint64_t seed = 1;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  verb->add_option("DIR", options->directory, "Directory that 'cairn data prepare' wrote")->required();
  verb->add_option("-t,--tokenizer", options->tokenizer, "The tokenizer that it was made with")->required();
  verb->add_option("-n,--rows", options->rows, "Rows to show")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  verb->add_option("--context", options->context, "Tokens of a row")
      ->check(CLI::Range(128, 1'000'000))
      ->capture_default_str();
  verb->add_option("--facts", options->recall.facts, "Most facts of a row")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  verb->add_option("--retold", options->recall.retold, "Part of the facts that are asked for in other words than told")
      ->check(CLI::Range(0.0, 1.0));
  verb->add_option("--repeated-filler", options->recall.repeated_filler,
                   "Part of the rows with sentences over and over")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb->add_option("--seed", options->seed, "The same seed gives the same rows")->capture_default_str();
  verb->add_flag("--json", options->json, "One JSON object a row: text, and the answers' byte ranges");
  verb->footer(
      "Training uses such rows when the run file has data.recall; answers, which carry the loss, stand in [[ ]].\n\n"
      "Example:\n  cairn data recall data -t tok.model -n 3");
  verb->callback([options] {
    const auto tokenizer = LoadTokenizerOrModel(options->tokenizer);
    const auto data = TokenDataset::Open(options->directory, kTrainSplit);
    data->CheckTokenizer(*tokenizer);
    BatchOptions batch_options;
    batch_options.context_length = options->context;
    const BatchMaker maker({data}, batch_options);  // complains when there is too little text
    const RecallRows rows(*data, tokenizer, batch_options, options->recall);
    for (size_t row = 0; row < options->rows; ++row) {
      Random random(Random(options->seed + row).Next());
      std::vector<int32_t> text(options->context + 1);
      data->Read(random.Below(data->token_count() - text.size()), text);
      const RecallRows::Row made = rows.Make(text, row % 4 == 0, random);
      std::string shown;
      auto answers = OrderedJson::array();
      for (size_t i = 0; i < made.tokens.size();) {
        size_t end = i;
        while (end < made.tokens.size() && made.answer[end] == made.answer[i]) ++end;
        const std::string piece = tokenizer->DecodeMiddle(std::span(made.tokens).subspan(i, end - i));
        if (made.answer[i] != 0) answers.push_back({shown.size(), shown.size() + piece.size()});
        shown += made.answer[i] != 0 && !options->json ? "[[" + piece + "]]" : piece;
        i = end;
      }
      if (options->json) {
        fmt::print("{}\n", OrderedJson{{"text", shown}, {"answers", answers}}.dump(
                               -1, ' ', false, nlohmann::json::error_handler_t::replace));
      } else {
        fmt::print("{}{}\n", row > 0 ? "----\n" : "", shown);
      }
    }
  });
}

}  // namespace

void AddDataVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("data", "Prepare, inspect and verify training data");
  verb->require_subcommand(1);
  verb->footer(
      "Example:\n  cairn data prepare books/train --validation-files books/valid -t tok.model -o data\n  cairn data "
      "info data");
  AddPrepare(*verb);
  AddInfo(*verb);
  AddVerify(*verb);
  AddRecall(*verb);
}

}  // namespace cairn
