// cairn eval: how well a model does.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>

#include "apps/eval.h"
#include "apps/session_flags.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/progress.h"
#include "data/text_files.h"
#include "eval/perplexity.h"
#include "io/file.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  SessionFlags session;
  PerplexityOptions perplexity;
  std::vector<std::string> texts;
  std::vector<std::string> against;
  bool no_bos = false;
  bool json = false;
};

std::string Describe(const SessionFlags& flags, const InferenceModel& model, const SessionOptions& options) {
  std::string text =
      fmt::format("{} weights, {} attention", flags.weights.empty() ? NameOf(model.kind()) : flags.weights,
                  NameOf(options.attention));
  if (options.attention == AttentionKind::kLandmark) {
    text += fmt::format(", {} blocks of {}, k = {}, chunk {}, {}", NameOf(options.block_format), options.block_length,
                        options.top_k, options.chunk_length, NameOf(options.granularity));
    if (options.index != IndexKind::kAuto) text += fmt::format(", index {}", NameOf(options.index));
    if (options.memory_blocks > 0) text += fmt::format(", {} blocks kept", options.memory_blocks);
    if (options.exact_positions) text += ", exact positions";
    if (options.miss_cutoff > 0) text += fmt::format(", cutoff {}", options.miss_cutoff);
  }
  return text;
}

// "weights=f32" changes one setting of the comparison.
SessionFlags Changed(SessionFlags flags, const std::vector<std::string>& changes) {
  const std::map<std::string, std::string*> texts = {
      {"weights", &flags.weights},         {"attention", &flags.attention}, {"block-format", &flags.block_format},
      {"granularity", &flags.granularity}, {"positions", &flags.positions}, {"index", &flags.index}};
  const std::map<std::string, size_t*> numbers = {{"k", &flags.options.top_k},
                                                  {"chunk", &flags.options.chunk_length},
                                                  {"block", &flags.options.block_length},
                                                  {"memory-blocks", &flags.options.memory_blocks}};
  for (const std::string& change : changes) {
    const size_t at = change.find('=');
    const std::string key = change.substr(0, at);
    const std::string value = at == std::string::npos ? "" : change.substr(at + 1);
    if (const auto text = texts.find(key); text != texts.end() && !value.empty()) {
      *text->second = value;
    } else if (const auto number = numbers.find(key); number != numbers.end() && !value.empty() && value.size() < 10 &&
                                                      value.find_first_not_of("0123456789") == std::string::npos) {
      *number->second = std::stoul(value);
      flags.k_given = flags.k_given || key == "k";
    } else if (double cutoff; key == "cutoff" && CLI::detail::lexical_cast(value, cutoff)) {
      flags.options.miss_cutoff = cutoff;
      flags.cutoff_given = true;
    } else {
      Fail("--against {}: write a flag and its value, like weights=f32, block-format=f32, k=2 or attention=full",
           change);
    }
  }
  const auto known = [](const std::string& value, std::initializer_list<const char*> names) {
    return value.empty() || std::find(names.begin(), names.end(), value) != names.end();
  };
  if (!known(flags.weights, {"f32", "f16", "int8", "int4"}) || !known(flags.attention, {"landmark", "full"}) ||
      !known(flags.block_format, {"f32", "f16", "int8"}) || !known(flags.positions, {"slots", "exact"}) ||
      !GranularityNamed(flags.granularity) || !IndexKindNamed(flags.index)) {
    Fail("--against {}: the value is not known; see --help for what the flag takes", fmt::join(changes, " "));
  }
  return flags;
}

struct Outcome {
  std::string settings;
  PerplexityResult result;
  bool audited = false;
};

Outcome Measure(const SessionFlags& flags, const Options& options) {
  const auto model = LoadModel(flags);
  const auto tokenizer = LoadTokenizerOf(flags, *model);
  const SessionOptions settings = OptionsFrom(flags, *model);
  std::vector<int32_t> ids;
  for (const auto& file : FindTextFiles({options.texts.begin(), options.texts.end()}).files) {
    const std::vector<int32_t> more = tokenizer->Encode(ReadTextFile(file));
    ids.insert(ids.end(), more.begin(), more.end());
    if (options.perplexity.max_tokens != 0 && ids.size() >= options.perplexity.max_tokens) break;
  }
  PerplexityOptions perplexity = options.perplexity;
  if (!options.no_bos && BeginsWithBos(model->source(), *tokenizer)) perplexity.bos = *tokenizer->bos();
  const Session described(model, settings);
  Outcome outcome{Describe(flags, *model, described.options()), {}, settings.audit};
  const size_t total = perplexity.max_tokens != 0 ? std::min(ids.size(), perplexity.max_tokens) : ids.size();
  Progress progress("perplexity", total);
  size_t shown = 0;
  outcome.result = MeasurePerplexity(model, settings, perplexity, ids, [&](size_t tokens) {
    progress.Add(tokens - shown);
    shown = tokens;
  });
  return outcome;
}

Json ToJson(const Outcome& outcome) {
  Json out;
  const PerplexityResult& result = outcome.result;
  out["settings"] = outcome.settings;
  out["perplexity"] = result.perplexity();
  out["loss"] = result.loss;
  out["tokens"] = result.tokens;
  out["windows"] = result.windows;
  out["tokens_per_second"] = static_cast<double>(result.tokens) / result.seconds;
  out["blocks_read"] = result.blocks_read;
  out["blocks_chosen"] = result.blocks_chosen;
  out["memory_bytes"] = result.memory_bytes;
  if (result.audit.queries > 0) out["recall"] = result.audit.MeanRecall();
  if (result.audit.queries > 0) out["landmark_mass"] = result.audit.MeanMass();
  return out;
}

void Print(const Outcome& outcome) {
  const PerplexityResult& result = outcome.result;
  fmt::print("perplexity {:.4f}  loss {:.5f}  {} tokens in {} windows, {:.0f} tokens/s\n  {}\n", result.perplexity(),
             result.loss, result.tokens, result.windows, static_cast<double>(result.tokens) / result.seconds,
             outcome.settings);
  if (outcome.audited) fmt::print("  {}\n", Describe(result.audit));
  if (result.blocks_chosen > result.blocks_read) {
    fmt::print("  {:.1f}% of the retrievals were skipped\n",
               100 - 100 * static_cast<double>(result.blocks_read) / static_cast<double>(result.blocks_chosen));
  }
}

void RunPerplexity(const Options& options) {
  std::optional<SessionFlags> other;
  if (!options.against.empty()) other = Changed(options.session, options.against);
  const Outcome first = Measure(options.session, options);
  if (!options.json) Print(first);
  Json out;
  if (options.json) out = ToJson(first);
  if (other) {
    const Outcome second = Measure(*other, options);
    const double cost = 100 * (first.result.perplexity() / second.result.perplexity() - 1);
    if (options.json) {
      out["against"] = ToJson(second);
      out["cost_percent"] = cost;
    } else {
      Print(second);
      fmt::print("the first costs {:+.3f}% of perplexity against the second\n", cost);
    }
  }
  if (options.json) fmt::print("{}\n", out.dump(2));
  CheckAudit(options.session, first.result.audit);
}

}  // namespace

void AddEvalVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("eval", "Measure how well a model does");
  verb->require_subcommand(1);
  verb->footer("Example:\n  cairn eval perplexity -m model book.txt");
  CLI::App* perplexity = verb->add_subcommand("perplexity", "How well a model predicts texts, read through a memory");
  auto options = std::make_shared<Options>();
  options->session.AddModel(*perplexity);
  perplexity->add_option("TEXT", options->texts, "Text files or folders")->required();
  perplexity
      ->add_option("--length", options->perplexity.length, "Tokens of a window with a memory of its own; 0: one window")
      ->capture_default_str();
  perplexity->add_option("--max-tokens", options->perplexity.max_tokens, "Tokens of text to use; 0: all")
      ->capture_default_str();
  perplexity->add_flag("--no-bos", options->no_bos, "Windows do not begin with the token that begins texts");
  options->session.AddAttention(*perplexity);
  options->session.AddAudit(*perplexity);
  perplexity
      ->add_option("--against", options->against,
                   "Measure once more with a flag changed, and compare: weights=f32, k=2, ...")
      ->allow_extra_args(false);
  perplexity->add_flag("--json", options->json, "Print JSON");
  perplexity->footer(
      "Examples:\n  cairn eval perplexity -m model book.txt --length 4096 -k 4 --chunk 250\n"
      "  cairn eval perplexity -m stories15M.bin --weights int8 --against weights=f32 stories.txt");
  perplexity->callback([options] { RunPerplexity(*options); });
  AddRetrievalEvals(*verb);
  AddTableEvals(*verb);
}

}  // namespace cairn
