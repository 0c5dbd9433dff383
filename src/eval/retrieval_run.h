// Runs trials of retrieval tasks: reads the prompt, generates the answer, and says whether the answer is right and,
// apart from that, whether the block that holds the fact was chosen. What trials have in common is read once.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "eval/prompt_reader.h"
#include "eval/retrieval_task.h"
#include "infer/session.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

struct TrialResult {
  TrialKey key;
  double depth = 0;
  size_t tokens = 0;  // of the prompt
  std::string question, expected, given;
  bool right = false;

  // At the row that chooses the answer's first token. Found: the fact's block was read by any head of any layer but the
  // first, whose landmarks are all alike, or needed no choice since the fact is in the last chunk (`local`).
  bool landmarks = false;  // the rest is of landmark attention alone
  bool local = false;
  bool found = false;
  bool cut = false;                      // a block ends inside the value, wherever the fact states it
  size_t heads = 0, heads_found = 0;     // of all layers that count; that read the block
  double share_mean = 0, share_max = 0;  // of the attention that the block got: over those heads, of the best head
  double attended = 0;                   // positions that a row attends to, mean over all rows of the prompt
  size_t tokens_read = 0;                // by this trial, without what it shares with the one before
  double read_seconds = 0, answer_seconds = 0;
};

// Positions that a row attends to, mean over rows, layers and heads, of a session that has read `tokens` tokens in
// whole chunks; `blocks_read` and `layer_rows` as its counters say.
double AttendedPositions(const ModelConfig& config, const SessionOptions& options, size_t tokens, size_t blocks_read,
                         size_t layer_rows);

// The ends of the chunks in which a session with resolved options reads a text from the start.
size_t NextChunkEnd(const SessionOptions& options, size_t begin);

struct RetrievalOptions {
  size_t extra_tokens = 8;               // generated beyond the length of the right answer
  bool share = true;                     // one session keeps what trials have in common
  std::optional<PromptMemory> memory{};  // blocks are kept in files
};

// Not thread-safe.
class RetrievalRunner {
 public:
  RetrievalRunner(std::shared_ptr<const InferenceModel> model, std::shared_ptr<const Tokenizer> tokenizer,
                  SessionOptions settings, const RetrievalOptions& options);

  // `progress`, when given, is told of tokens as they are read.
  TrialResult Run(const TrialKey& key, const Prompt& prompt, const std::function<void(size_t tokens)>& progress);

  const SessionOptions& settings() const { return settings_; }  // resolved

 private:
  void Read(PromptReader& reader, std::span<const int32_t> ids, size_t last, TrialResult& result,
            const std::function<void(size_t tokens)>& progress) const;
  void NoteChoice(const Session& session, const Prompt& prompt, TrialResult& result) const;

  std::shared_ptr<const InferenceModel> model_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  SessionOptions settings_;
  RetrievalOptions options_;
  std::optional<PromptReader> shared_;  // has read what the next trial probably begins with
};

}  // namespace cairn
