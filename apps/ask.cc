// cairn ask and cairn search: answers and passages out of a memory.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/reads_view.h"
#include "apps/session_flags.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "infer/generate.h"
#include "infer/ingest.h"

namespace cairn {

namespace {

using Json = nlohmann::ordered_json;

volatile std::sig_atomic_t interrupted = 0;

struct Options {
  SessionFlags session;
  GenerationOptions generation;
  std::string memory;
  std::string text;
  uint64_t ram = uint64_t{512} << 20;
  size_t passages = 5;
  bool show_reads = false;
  bool map = false;
  bool json = false;
};

// A session that has the memory behind it.
struct Opened {
  std::shared_ptr<const InferenceModel> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const MemoryFile> file;
  std::unique_ptr<Session> session;
  double seconds;

  explicit Opened(const Options& options, bool record_reads) {
    const auto begin = std::chrono::steady_clock::now();
    SessionFlags flags = options.session;
    file = std::make_shared<const MemoryFile>(options.memory);
    if (flags.model.empty()) flags.model = file->identity().model;
    model = LoadModel(flags);
    CheckSameModel(*file, model->source());
    tokenizer = LoadTokenizerOf(flags, *model);
    SessionOptions settings = OptionsFor(*file, OptionsFrom(flags, *model));
    settings.record_reads = record_reads;
    session = std::make_unique<Session>(model, settings);
    AttachWithin(*session, file, options.ram);
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
};

void RunAsk(const Options& options) {
  ValidateSamplingOptions(options.generation.sampling);
  const Opened opened(options, options.show_reads || options.map || options.json);
  Session& session = *opened.session;
  const std::vector<int32_t> ids = opened.tokenizer->Encode(options.text);
  if (ids.empty()) Fail("the question is empty; give one with -p");
  const auto begin = std::chrono::steady_clock::now();
  session.Append(ids);
  const double question_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  GenerationOptions generation = options.generation;
  generation.end_tokens = EndTokens(opened.model->config(), *opened.tokenizer);
  ReadsView view(*opened.tokenizer, session);
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const Generation result = Generate(session, *opened.tokenizer, generation, [&](const GeneratedToken& token) {
    if (!options.json) {
      fmt::print("{}", token.text);
      std::fflush(stdout);
    }
    if ((options.show_reads || options.map || options.json) && token.id >= 0) view.Add(token);
    return interrupted == 0;
  });
  const BlockCache::Counters cache = session.cache()->counters();
  const double speed = static_cast<double>(result.tokens.size()) / std::max(result.seconds, 1e-9);
  if (options.json) {
    Json out;
    out["question"] = options.text;
    out["text"] = result.text;
    out["end"] = NameOf(result.end);
    out["open_seconds"] = opened.seconds;
    out["question_tokens"] = ids.size();
    out["question_seconds"] = question_seconds;
    out["generated_tokens"] = result.tokens.size();
    out["generated_tokens_per_second"] = speed;
    out["blocks_in_memory"] = opened.file->blocks();
    out["bytes_read"] = cache.bytes_read;
    out["records"] = {{"hits", cache.hits}, {"waited_for", cache.misses}, {"read_ahead", cache.prefetched}};
    out["reads"] = view.ToJson();
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return;
  }
  fmt::print("\n");
  if (options.show_reads) view.Print();
  if (options.map) view.PrintMap();
  std::fflush(stdout);
  fmt::print(
      stderr,
      "opened {} blocks in {:.2f} s; question {} tokens in {:.2f} s; {} tokens, {:.1f} tokens/s; {:.1f} MB read from "
      "disk\n",
      opened.file->blocks(), opened.seconds, ids.size(), question_seconds, result.tokens.size(), speed,
      static_cast<double>(cache.bytes_read) / 1e6);
}

void RunSearch(const Options& options) {
  const Opened opened(options, false);
  Session& session = *opened.session;
  const std::vector<int32_t> ids = opened.tokenizer->Encode(options.text);
  if (ids.empty()) Fail("the query is empty");
  const std::vector<double> ranking = session.RankBlocks(ids);
  std::vector<size_t> order(ranking.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const size_t count = std::min(options.passages, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [&](size_t a, size_t b) { return ranking[a] > ranking[b] || (ranking[a] == ranking[b] && a < b); });
  double total = 0;
  for (const double score : ranking) total += score;
  const ReadsView view(*opened.tokenizer, session);
  Json out = Json::array();
  for (size_t i = 0; i < count; ++i) {
    const size_t block = order[i];
    const BlockSpan& span = opened.file->spans()[*session.FileBlock(block)];
    const double share = total > 0 ? ranking[block] / total : 0;
    const std::string& source = opened.file->sources()[span.source].name;
    if (options.json) {
      out.push_back({{"rank", i + 1},
                     {"score", share},
                     {"source", source},
                     {"first_byte", span.first_byte},
                     {"last_byte", span.last_byte},
                     {"text", view.BlockText(block)}});
    } else {
      fmt::print("{:>2}  {:.4f}  {} [{}, {})\n    {}\n", i + 1, share, source, span.first_byte, span.last_byte,
                 view.BlockLine(block, 300));
    }
  }
  if (options.json) fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::shared_ptr<Options> AddCommon(CLI::App& verb) {
  auto options = std::make_shared<Options>();
  options->session.AddModel(verb);
  verb.get_option("-m")->required(false)->description("The model; default: the one that the memory names");
  verb.add_option("MEMORY", options->memory, "A memory that cairn ingest made")->required();
  verb.add_option("--ram", options->ram, "RAM for blocks and landmarks, e.g. 512M")
      ->transform(CLI::AsSizeValue(false))
      ->capture_default_str();
  verb.add_flag("--json", options->json, "Print JSON");
  return options;
}

}  // namespace

void AddAskVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("ask", "Generate with a memory as the context");
  auto options = AddCommon(*verb);
  verb->add_option("-p,--prompt", options->text, "The question, or a text to go on with")->required();
  AddSamplingFlags(*verb, options->generation);
  options->session.AddAttention(*verb);
  verb->add_flag("--show-reads", options->show_reads, "Show which passages were read, with their sources");
  verb->add_flag("--map", options->map, "Draw where in the memory those passages stand");
  verb->footer("Example:\n  cairn ask books.cairn -m model -p \"The pass key is\" -n 10 --show-reads");
  verb->callback([options] { RunAsk(*options); });
}

void AddSearchVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("search", "Find passages of a memory by their landmarks");
  auto options = AddCommon(*verb);
  verb->add_option("QUERY", options->text, "What to look for")->required();
  verb->add_option("-k", options->passages, "Passages to show")->capture_default_str();
  verb->footer("Example:\n  cairn search books.cairn -m model \"the white whale\" -k 5");
  verb->callback([options] { RunSearch(*options); });
}

}  // namespace cairn
