// cairn chat: a conversation whose memory grows.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <sstream>

#include "apps/reads_view.h"
#include "apps/session_flags.h"
#include "apps/verbs.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "chat/chat_template.h"
#include "chat/line_editor.h"
#include "infer/generate.h"
#include "io/file.h"

namespace cairn {

namespace {

struct Options {
  SessionFlags session;
  GenerationOptions generation;
  std::string system;
  std::string file;
  bool show_reads = false;
};

volatile std::sig_atomic_t interrupted = 0;

constexpr const char* kHelp =
    "/reset       begin a new conversation (what -f read stays)\n"
    "/k N         retrieve N blocks\n"
    "/reads       show or hide which blocks are read\n"
    "/stats       tokens, blocks and memory\n"
    "/help        this list\n"
    "/quit        leave, as Ctrl-D does; Ctrl-C stops an answer\n";

class Conversation {
 public:
  Conversation(const Options& options, std::shared_ptr<const InferenceModel> model)
      : options_(options),
        model_(std::move(model)),
        tokenizer_(LoadTokenizerOf(options.session, *model_)),
        template_(LoadChatTemplate(model_->source(), options.session.model, *tokenizer_)),
        session_(model_, Settings()),
        show_reads_(options.show_reads) {
    WarnBeyondTraining(*model_, session_.options());
    if (template_.is_plain()) spdlog::warn("the model has no chat template; turns are written as User: and Assistant:");
    if (!options.file.empty()) {
      context_ = EncodePrompt(model_->source(), *tokenizer_, ReadTextFile(options.file));
    }
    Reset();
  }

  void Reset() {
    messages_.clear();
    if (!options_.system.empty()) messages_.push_back({"system", options_.system});
    Feed(context_);
  }

  void Answer(const std::string& text) {
    messages_.push_back({"user", text});
    std::vector<int32_t> ids = context_;
    const std::vector<int32_t> rendered = EncodeRendered(*tokenizer_, template_.Render(messages_, true));
    const bool bos = ids.empty() && BeginsWithBos(model_->source(), *tokenizer_) &&
                     (rendered.empty() || rendered[0] != *tokenizer_->bos());
    if (bos) ids.push_back(*tokenizer_->bos());
    ids.insert(ids.end(), rendered.begin(), rendered.end());
    Feed(ids);
    GenerationOptions generation = options_.generation;
    generation.end_tokens = EndOfMessage(template_, *tokenizer_);
    for (const int32_t id : EndTokens(model_->config(), *tokenizer_)) generation.end_tokens.push_back(id);
    for (const std::string& stop : template_.stops()) generation.stops.push_back(stop);
    generation.continues_text = false;
    generation.sampling.seed += messages_.size();  // each turn draws anew
    ReadsView view(*tokenizer_, session_);
    interrupted = 0;
    const Generation result = Generate(session_, *tokenizer_, generation, [&](const GeneratedToken& token) {
      fmt::print("{}", token.text);
      std::fflush(stdout);
      if (show_reads_ && token.id >= 0) view.Add(token);
      return interrupted == 0;
    });
    fmt::print("\n");
    if (show_reads_) view.Print();
    std::fflush(stdout);
    if (isatty(STDERR_FILENO) != 0) {
      fmt::print(stderr, "\033[2m{} tokens, {:.1f} tokens/s; {} in the conversation, {} blocks in memory\033[0m\n",
                 result.tokens.size(), static_cast<double>(result.tokens.size()) / std::max(result.seconds, 1e-9),
                 session_.tokens().size(), session_.counters().blocks_kept);
    }
    messages_.push_back({"assistant", result.text});
  }

  // False: the person wants to leave.
  bool Command(const std::string& line) {
    std::istringstream words(line);
    std::string command, argument;
    words >> command >> argument;
    if (command == "/quit" || command == "/exit") return false;
    if (command == "/reset") {
      Reset();
    } else if (command == "/reads") {
      show_reads_ = !show_reads_;
    } else if (command == "/stats") {
      const Session::Counters counters = session_.counters();
      fmt::print("{} tokens, {} blocks in memory ({:.1f} MB), {} reads, k = {}\n", session_.tokens().size(),
                 counters.blocks_kept, static_cast<double>(counters.memory_bytes) / 1e6, counters.blocks_read,
                 session_.options().top_k);
    } else if (command == "/k" && !argument.empty() && argument.size() < 6 &&
               argument.find_first_not_of("0123456789") == std::string::npos) {
      session_.SetTopK(std::stoul(argument));
    } else {
      fmt::print("{}", kHelp);
    }
    return true;
  }

 private:
  SessionOptions Settings() const {
    SessionOptions settings = OptionsFrom(options_.session, *model_);
    settings.record_reads = true;
    return settings;
  }

  // Makes the session hold exactly `ids`: what it has of them already is not read again.
  void Feed(const std::vector<int32_t>& ids) {
    const std::vector<int32_t>& had = session_.tokens();
    size_t same = 0;
    while (same < ids.size() && same < had.size() && ids[same] == had[same]) ++same;
    if (same == ids.size() && same > 0) --same;  // the last token again, for its logits
    if (same < had.size()) {
      try {
        session_.Truncate(same);
      } catch (const Error&) {  // evicted: from the beginning
        session_.Reset();
        same = 0;
      }
    }
    Progress progress("reading", ids.size() - same);
    const size_t most = session_.piece_tokens();
    for (size_t done = same; done < ids.size(); done += most) {
      const size_t count = std::min(most, ids.size() - done);
      const auto piece = std::span(ids).subspan(done, count);
      done + count < ids.size() ? session_.Read(piece) : session_.Append(piece);
      progress.Add(count);
    }
  }

  const Options& options_;
  std::shared_ptr<const InferenceModel> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  ChatTemplate template_;
  Session session_;
  bool show_reads_;
  std::vector<int32_t> context_;
  std::vector<ChatMessage> messages_;
};

void Run(const Options& options) {
  ValidateSamplingOptions(options.generation.sampling);
  Conversation conversation(options, LoadModel(options.session));
  LineEditorOptions editor_options;
  editor_options.history = HistoryPath("chat");
  LineEditor editor(editor_options);
  if (editor.is_terminal()) fmt::print(stderr, "Type a message; /help lists commands, Ctrl-D leaves.\n");
  for (;;) {
    std::signal(SIGINT, SIG_DFL);
    const auto line = editor.Read();
    if (!line) break;
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line->front() == '/') {
      if (!conversation.Command(*line)) break;
      continue;
    }
    std::signal(SIGINT, [](int) { interrupted = 1; });
    conversation.Answer(*line);
  }
}

}  // namespace

void AddChatVerb(CLI::App& root, int&) {
  CLI::App* verb = root.add_subcommand("chat", "Talk with a model whose memory grows");
  auto options = std::make_shared<Options>();
  options->generation.max_tokens = 512;
  options->generation.sampling.temperature = 0.7f;
  options->generation.sampling.top_p = 0.9f;
  options->session.AddModel(*verb);
  verb->add_option("--system", options->system, "Instructions before the conversation");
  verb->add_option("-f,--file", options->file, "A text that is read into the memory first");
  AddSamplingFlags(*verb, options->generation);
  options->session.AddAttention(*verb);
  verb->add_flag("--show-reads", options->show_reads, "Show after each answer which blocks were read");
  verb->footer("Example:\n  cairn chat -m TinyLlama-chat.gguf --system \"Answer briefly.\"\n\nWhile talking:\n" +
               std::string(kHelp));
  verb->callback([options] { Run(*options); });
}

}  // namespace cairn
