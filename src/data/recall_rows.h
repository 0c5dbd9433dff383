// Rows of a batch that hide facts in their text and ask for them: training of recall, at no cost in data on disk.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "data/batches.h"
#include "data/recall_tasks.h"

namespace cairn {

struct RecallConfig {
  double share = 0;         // of the rows that hide facts; 0: no row
  size_t facts = 8;         // most facts of a row
  double text_targets = 1;  // part of the targets that carry loss where the text is no answer; answers always do
  double simple = 0;        // part of those rows that are easy: numbers alone, all asked for, in one form
  double echo = 0;          // part of those rows that repeat their own passages, near or far
  double cut = 0;           // part of the facts that the end of a block cuts, in their value or right before it
  double noise = 0;         // part of the echoes that repeat tokens drawn at random instead of text
  // Part of the steps in which the texts of a batch's rows are shuffled piece by piece: what a row speaks of then tells
  // nothing about where its facts are.
  double mixed = 0;
  // Part of the words and names that facts are made of that are words of their own row's text: the text then has other
  // places that begin as an answer does, as a long text has.
  double own_words = 0;
  double retold = 0;  // part of the facts that are told in one way and asked for in another (recall_retold.h)
  double repeated_filler = 0.1;  // part of those rows whose text is a few sentences over and over

  bool operator==(const RecallConfig&) const = default;
};

// Turns rows of text into rows of facts, text and questions, the same for the same seed and row. Immutable and
// thread-safe.
class RecallRows {
 public:
  RecallRows(const TokenDataset& dataset, std::shared_ptr<const Tokenizer> tokenizer, const BatchOptions& options,
             const RecallConfig& config);

  // Other rows of the same words.
  RecallRows With(const RecallConfig& config, uint64_t seed) const;

  // `batch` as BatchMaker filled it for this step. The first row may have a fact without a name ("the pass key"): rows
  // that are each other's distractors must not contradict each other.
  void Apply(uint64_t step, Batch& batch) const;

  // One row: its tokens, which of them are answers, and where those stood before: up to two earlier tokens, else
  // kNoSource. A token that follows on a question mark has the sources of the answer to come.
  static constexpr int32_t kNoSource = -1;
  using Sources = std::array<int32_t, 2>;
  struct Row {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> answer;
    std::vector<Sources> sources;
  };
  // `text`: at most OrdinaryTokens() + 1 tokens, as many as the row will have.
  Row Make(std::span<const int32_t> text, bool pass_key, Random& random, bool simple = false) const;
  // Passages that are repeated, at once or in another order after all of them; from its third token on a repeated
  // passage is an answer.
  Row MakeEcho(std::span<const int32_t> text, Random& random) const;

 private:
  std::vector<std::vector<int32_t>> Texts(uint64_t step, const Batch& batch) const;
  size_t CutAt(std::span<const int32_t> filler, double share) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  BatchOptions options_;
  RecallConfig config_;
  std::shared_ptr<const WordList> words_;
  std::vector<uint8_t> begins_word_;  // by token
  std::vector<uint8_t> asks_;         // by token: a question mark
  std::vector<int32_t> ordinary_;     // tokens that are text
};

}  // namespace cairn
