// cairn eval table1, table2 and table3: the paper's tables, measured with the models at hand.
#include <fmt/format.h>

#include <map>

#include "apps/eval.h"
#include "apps/session_flags.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/text_files.h"
#include "eval/paper_tables.h"
#include "io/file.h"

namespace cairn {

namespace {

struct Options {
  int number = 1;
  std::vector<std::string> models;  // "landmark=DIR"
  std::string tokenizer, weights;
  std::vector<std::string> texts, math;
  size_t max_tokens = 65536;
  std::string format = "text";
  bool no_bos = false;
  bool json = false;
};

struct Models {
  std::map<std::string, std::shared_ptr<const InferenceModel>> by_name;
  std::shared_ptr<const Tokenizer> tokenizer;  // of all
};

Models LoadModels(const Options& options) {
  Models models;
  for (const std::string& text : options.models) {
    const size_t at = text.find('=');
    const std::string name = text.substr(0, at);
    if (at == std::string::npos || at + 1 == text.size() ||
        (name != "landmark" && name != "full" && name != "xl" && name != "miss")) {
      Fail("--model {}: write landmark=, full=, xl= or miss= and the model's path", text);
    }
    SessionFlags flags;
    flags.model = text.substr(at + 1);
    flags.tokenizer = options.tokenizer;
    flags.weights = options.weights;
    if (models.by_name.contains(name)) Fail("--model {}: '{}' was given already", text, name);
    const auto model = LoadModel(flags);
    const auto tokenizer = LoadTokenizerOf(flags, *model);
    if (models.tokenizer && tokenizer->fingerprint() != models.tokenizer->fingerprint()) {
      Fail("--model {}: it has another tokenizer than the models before it; perplexities would not compare", text);
    }
    if (name == "miss" && !model->config().landmark.context_miss.enabled) {
      Fail("--model {}: it has no context-miss token", text);
    }
    if (name == "xl" && model->config().landmark.attention != AttentionKind::kXl) {
      Fail("--model {}: it was not trained as a Transformer-XL", text);
    }
    models.by_name[name] = model;
    models.tokenizer = tokenizer;
  }
  return models;
}

// Whole windows of the longest row, so that every row scores the same tokens.
std::vector<int32_t> ReadTokens(const Models& models, const Options& options, const std::vector<std::string>& paths,
                                size_t longest) {
  std::vector<int32_t> ids;
  if (paths.empty()) return ids;
  for (const auto& file : FindTextFiles({paths.begin(), paths.end()}).files) {
    const std::vector<int32_t> more = models.tokenizer->Encode(ReadTextFile(file));
    ids.insert(ids.end(), more.begin(), more.end());
    if (options.max_tokens != 0 && ids.size() >= options.max_tokens) break;
  }
  if (options.max_tokens != 0) ids.resize(std::min(ids.size(), options.max_tokens));
  if (ids.size() >= longest) {
    ids.resize(ids.size() / longest * longest);
  } else {
    spdlog::warn("the text has {} tokens, less than the {} of the longest row", ids.size(), longest);
  }
  return ids;
}

void Run(const Options& options) {
  const Models models = LoadModels(options);
  const std::vector<TableRow> rows = PaperTable(options.number);
  size_t longest = 0;
  for (const TableRow& row : rows) longest = std::max(longest, row.length);
  const std::vector<int32_t> books = ReadTokens(models, options, options.texts, longest);
  const std::vector<int32_t> math = ReadTokens(models, options, options.math, longest);
  std::vector<MeasuredRow> measured;
  size_t possible = 0;
  for (const TableRow& row : rows) possible += models.by_name.contains(row.model);
  if (possible == 0) Fail("none of the given models serves a row of table {}", options.number);
  Progress progress(fmt::format("table {}", options.number), possible * (books.size() + math.size()));
  for (const TableRow& row : rows) {
    measured.push_back({row, {}, {}});
    const auto model = models.by_name.find(row.model);
    if (model == models.by_name.end()) continue;
    PerplexityOptions perplexity;
    if (!options.no_bos && BeginsWithBos(model->second->source(), *models.tokenizer)) {
      perplexity.bos = *models.tokenizer->bos();
    }
    const auto measure = [&](const std::vector<int32_t>& ids) -> std::optional<PerplexityResult> {
      if (ids.empty()) return std::nullopt;
      size_t shown = 0;
      return MeasureRow(row, model->second, perplexity, ids, [&](size_t tokens) {
        progress.Add(tokens - shown);
        shown = tokens;
      });
    };
    measured.back().books = measure(books);
    measured.back().math = measure(math);
  }
  const TableFormat format = options.json || options.format == "json" ? TableFormat::kJson
                             : options.format == "markdown"           ? TableFormat::kMarkdown
                                                                      : TableFormat::kText;
  fmt::print("{}", WriteTable(options.number, measured, format));
}

void AddTable(CLI::App& verb, int number, const std::string& description, const std::string& models) {
  CLI::App* table = verb.add_subcommand(fmt::format("table{}", number), description);
  auto options = std::make_shared<Options>();
  options->number = number;
  table
      ->add_option("-m,--model", options->models,
                   "A model for the rows of its kind: landmark=DIR, full=DIR, xl=DIR or miss=DIR; several times")
      ->required()
      ->allow_extra_args(false);
  table->add_option("-t,--tokenizer", options->tokenizer, "Tokenizer, where the models have none beside them");
  table->add_option("--weights", options->weights, "How the weights are held: f32, f16, int8 or int4")
      ->check(CLI::IsMember({"f32", "f16", "int8", "int4"}));
  table->add_option("TEXT", options->texts, "Books, set beside the paper's PG-19: text files or folders")->required();
  table->add_option("--math", options->math, "Mathematics, set beside the paper's arXiv")->allow_extra_args(false);
  table->add_option("--max-tokens", options->max_tokens, "Tokens of each text to use; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  table->add_flag("--no-bos", options->no_bos, "Windows do not begin with the token that begins texts");
  table->add_option("--format", options->format, "text, markdown or json")
      ->check(CLI::IsMember({"text", "markdown", "json"}))
      ->capture_default_str();
  table->add_flag("--json", options->json, "Print JSON");
  table->footer(fmt::format("Example:\n  cairn eval table{} {} books/test --format markdown", number, models));
  table->callback([options] { Run(*options); });
}

}  // namespace

void AddTableEvals(CLI::App& verb) {
  AddTable(verb, 1, "The paper's table of perplexities by length and memory",
           "-m full=full/model -m xl=xl/model -m landmark=landmark/model");
  AddTable(verb, 2, "The paper's table of who chooses blocks", "-m landmark=landmark/model");
  AddTable(verb, 3, "The paper's table of cutoffs of the context-miss token",
           "-m landmark=landmark/model -m miss=miss/model");
}

}  // namespace cairn
