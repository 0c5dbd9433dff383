// cairn eval passkey, needle, kv and lines: is a fact found that is hidden in a long text?
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/eval.h"
#include "apps/session_flags.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/text_files.h"
#include "eval/retrieval_plots.h"
#include "eval/retrieval_report.h"
#include "eval/retrieval_run.h"
#include "eval/retrieval_tasks.h"
#include "infer/ingest.h"
#include "io/file.h"
#include "io/packed_files.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct Options {
  SessionFlags session;
  std::string task;  // the verb
  std::vector<std::string> lengths = {"1K", "4K"};
  std::vector<std::string> depths = {"random"};
  size_t trials = 50;
  uint64_t seed = 0;
  bool fresh_filler = false;
  size_t extra_tokens = 8;
  std::vector<std::string> filler;
  std::string joint;
  std::string prompt;               // passkey
  std::string needles;              // needle
  std::string style = "sentences";  // kv
  size_t keys = 10;                 // kv
  std::string file;                 // kv, lines
  std::string output;
  std::string memory_dir;
  uint64_t ram = uint64_t{512} << 20;
  bool by_depth = false;
  bool no_bos = false;
  bool json = false;
};

size_t ParseLength(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
  const std::string unit = text.substr(digits);
  const size_t scale = unit.empty() ? 1 : unit == "K" || unit == "k" ? 1024 : unit == "M" || unit == "m" ? 1 << 20 : 0;
  if (digits == 0 || digits > 9 || scale == 0) Fail("--lengths: '{}' is no length; write 512, 4K or 1M", text);
  const size_t length = std::stoul(text.substr(0, digits)) * scale;
  if (length == 0 || length > (size_t{1} << 30)) Fail("--lengths: '{}' is out of range", text);
  return length;
}

std::vector<size_t> ParseLengths(const std::vector<std::string>& texts) {
  std::set<size_t> lengths;
  for (const std::string& text : texts) lengths.insert(ParseLength(text));
  return {lengths.begin(), lengths.end()};
}

std::vector<double> ParseDepths(const std::vector<std::string>& texts) {
  std::set<double> depths;
  for (const std::string& text : texts) {
    double depth = -1;
    if (text != "random" && (!CLI::detail::lexical_cast(text, depth) || !(depth >= 0 && depth <= 1))) {
      Fail("--depths: '{}' is no depth; write numbers from 0 to 1, or random", text);
    }
    depths.insert(depth);
  }
  return {depths.begin(), depths.end()};
}

// Where the assets are that a checkout may have beside it; empty without.
fs::path AssetsDirectory() {
  fs::path path = "../shared";
  if (const char* text = std::getenv("CAIRN_SHARED"); text != nullptr && *text != '\0') path = text;
  return fs::is_directory(path / "assets") ? path / "assets" : fs::path();
}

std::shared_ptr<const std::vector<std::string>> ReadBooks(std::vector<std::string> paths, const std::string& verb) {
  auto books = std::make_shared<std::vector<std::string>>();
  if (paths.empty()) {
    const fs::path packed = AssetsDirectory() / "books.tar.xz";
    if (!fs::exists(packed)) Fail("eval {}: name books to hide the fact in, with --filler FILE or a folder", verb);
    paths = {packed.string()};
  }
  for (const std::string& path : paths) {
    if (fs::is_regular_file(path) && LooksPacked(path)) {
      for (PackedFile& file : ReadPackedFiles(path)) {
        // Of a split corpus, texts that models are not trained on.
        const bool split = file.name.find("train/") != std::string::npos;
        if (!split && file.name.ends_with(".txt")) books->push_back(std::move(file.bytes));
      }
    } else {
      for (const fs::path& file : FindTextFiles({path}).files) books->push_back(ReadTextFile(file));
    }
  }
  return books;
}

std::string HashOf(const std::vector<std::string>& texts) {
  uint64_t hash = 0;
  for (const std::string& text : texts) hash = XXH3_64bits_withSeed(text.data(), text.size(), hash);
  return fmt::format("{:016x}", hash);
}

struct Task {
  std::unique_ptr<RetrievalTask> task;
  std::vector<TrialKey> keys;
  Json settings;  // what decides a trial's prompt
};

std::vector<TrialKey> Keys(const Options& options) {
  std::vector<TrialKey> keys;
  const std::vector<double> depths = ParseDepths(options.depths);
  for (const size_t length : ParseLengths(options.lengths)) {
    for (const double depth : depths) {
      for (size_t number = 0; number < options.trials; ++number) keys.push_back({length, depth, number});
    }
  }
  return keys;
}

Task FixedTask(const Options& options, std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> begin) {
  std::vector<FixedPrompt> prompts =
      options.task == "kv" ? ReadKeyValuePrompts(options.file) : ReadLinesPrompts(options.file);
  std::vector<std::string> texts;
  for (const FixedPrompt& prompt : prompts) texts.push_back(prompt.text);
  auto fixed = std::make_unique<FixedPromptTask>(std::move(tokenizer), std::move(begin), std::move(prompts),
                                                 options.task == "kv" ? "pairs" : "lines");
  Task task;
  for (const auto& [length, count] : fixed->Lengths()) {
    for (size_t number = 0; number < std::min(count, options.trials); ++number) {
      task.keys.push_back({length, -1, number});
    }
  }
  task.task = std::move(fixed);
  task.settings = {{"task", options.task}, {"file", HashOf(texts)}};
  return task;
}

Task MakeTask(const Options& options, const std::shared_ptr<const Tokenizer>& tokenizer, std::vector<int32_t> begin) {
  if (!options.file.empty()) return FixedTask(options, tokenizer, std::move(begin));
  Task task;
  task.keys = Keys(options);
  GeneratedTaskOptions generated;
  generated.seed = options.seed;
  generated.fresh_filler = options.fresh_filler;
  generated.joint = options.joint == "line" ? "\n" : options.joint == "space" ? " " : "";
  task.settings = {{"task", options.task}, {"seed", options.seed}, {"fresh_filler", options.fresh_filler}};
  task.settings["joint"] = options.joint;
  const bool sentences = options.task == "kv" && options.style == "sentences";
  if (options.task == "needle" || sentences || !options.filler.empty()) {
    generated.books = ReadBooks(options.filler, options.task);
    task.settings["filler"] = HashOf(*generated.books);
  }
  HiddenFactText text;
  if (options.task == "passkey") {
    const PassKeyText wording = options.prompt.empty() ? PassKeyText() : ReadPassKeyText(options.prompt);
    task.settings["wording"] = HashOf({wording.task, wording.filler, wording.fact, wording.question});
    text = PassKeyTask(wording, generated);
  } else if (options.task == "needle") {
    std::vector<Needle> needles = options.needles.empty() ? BuiltInNeedles() : ReadNeedles(options.needles);
    std::vector<std::string> words;
    for (const Needle& needle : needles) words.insert(words.end(), {needle.fact, needle.question, needle.answer});
    task.settings["needles"] = HashOf(words);
    text = NeedleTask(std::move(needles), generated);
  } else if (options.task == "kv") {
    task.settings["style"] = options.style;
    if (sentences) task.settings["keys"] = options.keys;
    text = sentences ? KeyValueSentencesTask(options.keys, generated) : KeyValueJsonTask(generated);
  } else {
    text = LinesTask(generated);
  }
  task.task = std::make_unique<HiddenFactTask>(tokenizer, std::move(begin), std::move(text));
  return task;
}

Json SessionSettings(const Options& options, const InferenceModel& model, const Tokenizer& tokenizer,
                     const SessionOptions& settings) {
  Json out;
  out["model"] = FingerprintOf(model.source());
  out["tokenizer"] = tokenizer.fingerprint();
  out["weights"] = options.session.weights.empty() ? std::string(NameOf(model.kind())) : options.session.weights;
  out["bos"] = !options.no_bos && BeginsWithBos(model.source(), tokenizer);
  out["extra_tokens"] = options.extra_tokens;
  out["attention"] = NameOf(settings.attention);
  out["chunk"] = settings.chunk_length;
  out["memory_blocks"] = settings.memory_blocks;
  if (settings.attention != AttentionKind::kLandmark) return out;
  out["block"] = settings.block_length;
  out["k"] = settings.top_k;
  out["granularity"] = NameOf(settings.granularity);
  out["exact_positions"] = settings.exact_positions;
  out["cutoff"] = settings.miss_cutoff;
  out["block_format"] = NameOf(settings.block_format);
  out["index"] = NameOf(settings.index);
  return out;
}

void Run(const Options& options) {
  const auto model = LoadModel(options.session);
  const auto tokenizer = LoadTokenizerOf(options.session, *model);
  std::vector<int32_t> begin;
  if (!options.no_bos && BeginsWithBos(model->source(), *tokenizer)) begin.push_back(*tokenizer->bos());
  Task task = MakeTask(options, tokenizer, begin);
  RetrievalOptions running{options.extra_tokens, !options.fresh_filler && options.file.empty()};
  if (!options.memory_dir.empty()) {
    if (!fs::is_directory(options.memory_dir)) Fail("--memory-dir '{}': there is no such folder", options.memory_dir);
    running.memory = PromptMemory{options.memory_dir, options.ram};
  }
  RetrievalRunner runner(model, tokenizer, OptionsFrom(options.session, *model), running);
  WarnBeyondTraining(*model, runner.settings());
  Json settings = task.settings;
  settings.update(SessionSettings(options, *model, *tokenizer, runner.settings()));
  std::optional<TrialLog> log;
  if (!options.output.empty()) log.emplace(options.output, settings);

  // Short ones first; those of one length in the order of their depth, since they share the filler before the fact.
  std::stable_sort(task.keys.begin(), task.keys.end(), [&](const TrialKey& a, const TrialKey& b) {
    if (a.length != b.length) return a.length < b.length;
    return task.task->DepthOf(a) < task.task->DepthOf(b);
  });
  std::vector<TrialResult> results;
  Progress progress(options.task, task.keys.size() * 1000);
  for (const TrialKey& key : task.keys) {
    if (const TrialResult* known = log ? log->Find(key) : nullptr) {
      results.push_back(*known);
      progress.Add(1000);
      continue;
    }
    const Prompt prompt = task.task->Build(key);
    double share = 0;
    size_t shown = 0;
    const TrialResult result = runner.Run(key, prompt, [&](size_t tokens) {
      share += 1000 * static_cast<double>(tokens) / static_cast<double>(prompt.ids.size());
      const size_t now = std::min<size_t>(1000, static_cast<size_t>(share));
      progress.Add(now - shown);
      shown = now;
    });
    progress.Add(1000 - shown);
    if (log) log->Add(result);
    results.push_back(result);
  }

  const bool by_depth = options.by_depth || (options.file.empty() && ParseDepths(options.depths).size() > 1);
  const auto lengths = SumTrials(results, false);
  const auto cells = SumTrials(results, true);
  if (!options.output.empty()) {
    const std::string title = fmt::format("{}, {}", options.task, model->source().name());
    WriteFileAtomically(fs::path(options.output) / "accuracy.svg", DrawAccuracy(lengths, title, task.task->unit()));
    WriteFileAtomically(fs::path(options.output) / "heat.svg", DrawAccuracyHeat(cells, title, task.task->unit()));
  }
  if (options.json) {
    Json out;
    out["settings"] = settings;
    out["unit"] = task.task->unit();
    for (const TrialSum& sum : lengths) out["lengths"].push_back(ToJson(sum, false));
    for (const TrialSum& sum : cells) out["cells"].push_back(ToJson(sum, true));
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("{}", TrialTable(lengths, task.task->unit(), false));
  if (by_depth) fmt::print("\n{}", TrialTable(cells, task.task->unit(), true));
}

std::shared_ptr<Options> AddTask(CLI::App& verb, const std::string& name, const std::string& description,
                                 const std::string& example) {
  CLI::App* task = verb.add_subcommand(name, description);
  auto options = std::make_shared<Options>();
  options->task = name;
  options->session.AddModel(*task);
  task->add_option("--lengths", options->lengths, "Tokens of the whole prompt, e.g. 1K,4K,32K")
      ->delimiter(',')
      ->capture_default_str();
  task->add_option("--depths", options->depths, "Part of the filler before the fact: 0,0.25,0.5, ... or random")
      ->delimiter(',')
      ->capture_default_str();
  task->add_option("--trials", options->trials, "Trials for each length and depth")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  task->add_option("--seed", options->seed, "The same seed draws the same prompts")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  if (name != "lines") {
    task->add_option("--filler", options->filler,
                     name == "passkey" ? "Text files or folders to hide the fact in, instead of the repeated sentences"
                                       : "Text files or folders to hide the fact in");
    task->add_option("--joint", options->joint, "White space before fact and question: space or line")
        ->check(CLI::IsMember({"space", "line"}));
  }
  if (name == "passkey") {
    task->add_option("--prompt", options->prompt, "Own wording: JSON with task, filler, fact (with {N}) and question");
  } else if (name == "needle") {
    task->add_option("--needles", options->needles, "Own needles: lines of {\"fact\", \"question\", \"answer\"}");
  } else if (name == "kv") {
    task->add_option("--style", options->style, "sentences (among books), or json (one long object)")
        ->check(CLI::IsMember({"sentences", "json"}))
        ->capture_default_str();
    task->add_option("--keys", options->keys, "Keys in a prompt of sentences")
        ->check(CLI::Range(1, 2000))
        ->capture_default_str();
  }
  if (name == "kv" || name == "lines") {
    task->add_option("--file", options->file,
                     name == "kv" ? "Prompts of lost-in-the-middle instead (.jsonl, also compressed)"
                                  : "Prompts of LongEval instead (.jsonl, also compressed, also an archive)");
  }
  task->add_flag("--fresh-filler", options->fresh_filler, "Every trial has a filler of its own; nothing is shared");
  task->add_option("--answer-tokens", options->extra_tokens, "Tokens generated beyond the length of the right answer")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  task->add_option("-o,--output", options->output, "Folder for results; the same command goes on where it stopped");
  task->add_option("--memory-dir", options->memory_dir, "Keep blocks in files in this folder while a prompt is read");
  task->add_option("--ram", options->ram, "With --memory-dir: RAM for blocks and landmarks, e.g. 512M")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  task->add_flag("--by-depth", options->by_depth, "Also print a row for each depth");
  task->add_flag("--no-bos", options->no_bos, "Prompts do not begin with the token that begins texts");
  options->session.AddAttention(*task);
  task->add_flag("--json", options->json, "Print JSON");
  task->footer("Example:\n  cairn eval " + example);
  task->callback([options] { Run(*options); });
  return options;
}

}  // namespace

void AddRetrievalEvals(CLI::App& verb) {
  AddTask(verb, "passkey", "Find a number hidden in repeated sentences, as in the paper",
          "passkey -m model --lengths 1K,4K,32K --trials 50 -o passkey");
  AddTask(verb, "needle", "Find a sentence hidden in books",
          "needle -m model --filler books/ --lengths 4K,32K --depths 0,0.25,0.5,0.75,1 --trials 10");
  AddTask(verb, "kv", "Find the value of a key among others",
          "kv -m model --filler books/ --lengths 4K --keys 10\n  cairn eval kv -m model --file kv-75.jsonl.gz");
  AddTask(verb, "lines", "Find a line of a long register", "lines -m model --lengths 4K,16K");
}

}  // namespace cairn
