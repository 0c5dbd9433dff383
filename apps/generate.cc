// cairn generate: a text goes on.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "apps/reads_view.h"
#include "apps/session_flags.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "infer/generate.h"
#include "io/file.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

struct Options {
  SessionFlags session;
  GenerationOptions generation;
  std::string prompt;
  std::string file;
  bool show_reads = false;
  bool no_prompt = false;
  bool json = false;
};

volatile std::sig_atomic_t interrupted = 0;

std::string ReadPrompt(const Options& options) {
  if (options.file.empty()) return options.prompt;
  std::string text;
  if (options.file == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  } else {
    text = ReadTextFile(options.file);
  }
  return text + options.prompt;
}

// The prompt in pieces, so that a long one shows how far it is.
void ReadIn(Session& session, const std::vector<int32_t>& ids) {
  Progress progress("reading", ids.size());
  for (size_t done = 0; done < ids.size() && interrupted == 0;) {
    const size_t count = std::min(session.piece_tokens(), ids.size() - done);
    const auto piece = std::span(ids).subspan(done, count);
    done + count < ids.size() ? session.Read(piece) : session.Append(piece);
    progress.Add(count);
    done += count;
  }
}

void Run(const Options& options) {
  ValidateSamplingOptions(options.generation.sampling);
  const std::string prompt = ReadPrompt(options);
  const auto model = LoadModel(options.session);
  const auto tokenizer = LoadTokenizerOf(options.session, *model);
  SessionOptions settings = OptionsFrom(options.session, *model);
  settings.record_reads = options.show_reads || options.json;
  Session session(model, settings);
  WarnBeyondTraining(*model, session.options());
  if (!IsValidUtf8(prompt)) spdlog::warn("the prompt is not UTF-8; its bytes are read as they are");
  const std::vector<int32_t> ids = EncodePrompt(model->source(), *tokenizer, prompt);
  if (ids.empty()) Fail("the prompt is empty and the model has no token to begin a text with; give one with -p or -f");
  const size_t trained = model->config().max_position_embeddings;
  if (settings.attention == AttentionKind::kFull && ids.size() + options.generation.max_tokens > trained) {
    spdlog::warn("{} tokens and {} to come go beyond the {} positions that the model was trained with", ids.size(),
                 options.generation.max_tokens, trained);
  }
  std::signal(SIGINT, [](int) { interrupted = 1; });
  const auto begin = std::chrono::steady_clock::now();
  ReadIn(session, ids);
  const double prompt_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  GenerationOptions generation = options.generation;
  generation.end_tokens = EndTokens(model->config(), *tokenizer);
  const bool stream = !options.json;
  if (stream && !options.no_prompt && prompt.size() <= 2000) fmt::print("{}", prompt);
  generation.continues_text = !prompt.empty();
  ReadsView view(*tokenizer, session);
  Generation result;
  if (interrupted == 0) {
    result = Generate(session, *tokenizer, generation, [&](const GeneratedToken& token) {
      if (stream) {
        fmt::print("{}", token.text);
        std::fflush(stdout);
      }
      if (settings.record_reads && token.id >= 0) view.Add(token);
      return interrupted == 0;
    });
  }
  std::signal(SIGINT, SIG_DFL);
  const Session::Counters counters = session.counters();
  const auto speed = [](size_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
  };
  if (options.json) {
    nlohmann::ordered_json out;
    out["text"] = result.text;
    out["tokens"] = result.tokens;
    out["end"] = NameOf(result.end);
    out["prompt_tokens"] = ids.size();
    out["prompt_tokens_per_second"] = speed(ids.size(), prompt_seconds);
    out["generated_tokens"] = result.tokens.size();
    out["generated_tokens_per_second"] = speed(result.tokens.size(), result.seconds);
    out["blocks_in_memory"] = counters.blocks_kept;
    out["blocks_read"] = counters.blocks_read;
    out["weight_bytes"] = model->weight_bytes();
    out["memory_bytes"] = counters.memory_bytes;
    if (settings.audit) out["recall"] = counters.audit.MeanRecall();
    if (settings.audit) out["landmark_mass"] = counters.audit.MeanMass();
    out["workspace_bytes"] = counters.workspace_bytes;
    if (settings.attention == AttentionKind::kLandmark) out["reads"] = view.ToJson();
    fmt::print("{}\n", out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    CheckAudit(options.session, counters.audit);
    return;
  }
  fmt::print("\n");
  std::fflush(stdout);
  if (options.show_reads) view.Print();
  fmt::print(stderr,
             "prompt {} tokens, {:.0f} tokens/s; generated {} tokens, {:.1f} tokens/s; {} blocks in memory, {} read\n",
             ids.size(), speed(ids.size(), prompt_seconds), result.tokens.size(),
             speed(result.tokens.size(), result.seconds), counters.blocks_kept, counters.blocks_read);
  if (settings.audit) fmt::print(stderr, "index {}: {}\n", options.session.index, Describe(counters.audit));
  CheckAudit(options.session, counters.audit);
}

}  // namespace

void AddGenerateVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("generate", "Continue a text of any length");
  auto options = std::make_shared<Options>();
  options->session.AddModel(*verb);
  verb->add_option("-p,--prompt", options->prompt, "The text; with -f, what follows the file");
  verb->add_option("-f,--file", options->file, "A file with the text; - for standard input");
  AddSamplingFlags(*verb, options->generation);
  options->session.AddAttention(*verb);
  options->session.AddAudit(*verb);
  verb->add_flag("--show-reads", options->show_reads, "Show for each token which blocks were read, and their text");
  verb->add_flag("--no-prompt", options->no_prompt, "Print only what is generated");
  verb->add_flag("--json", options->json, "Print JSON, with what was read for each token");
  verb->footer(
      "Examples:\n  cairn generate -m stories15M.gguf -p \"Once upon a time\" -n 200\n"
      "  cairn generate -m model -f book.txt -p \"The murderer was\" --show-reads");
  verb->callback([options] { Run(*options); });
}

}  // namespace cairn
