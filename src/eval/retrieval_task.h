// Retrieval tasks: prompts of a given length that hide a fact at a given depth and end in a question about it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "eval/filler.h"
#include "eval/scoring.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

class Random;

// One trial of a task. The same key and seed always give the same prompt.
struct TrialKey {
  size_t length = 0;  // of the whole prompt, in the task's unit
  double depth = -1;  // part of the filler that stands before the fact; -1: drawn from the seed
  size_t number = 0;  // among the trials of this length and depth

  bool operator==(const TrialKey&) const = default;
};

struct Prompt {
  std::vector<int32_t> ids;
  size_t fact_first = 0, fact_last = 0;  // tokens of the fact, [first, last)
  std::vector<size_t> value_tokens;      // those of them that hold the answer; all where it is not spelt out
  double depth = 0;                      // wanted, and resolved where it was drawn
  std::string question;                  // where it is known apart from the rest
  std::string answer;
  Judge judge = Judge::kFirstInteger;
};

// Not thread-safe.
class RetrievalTask {
 public:
  virtual ~RetrievalTask() = default;
  virtual Prompt Build(const TrialKey& key) = 0;
  // Of the key, or drawn from the seed. Trials in the order of their depth share the most filler.
  virtual double DepthOf(const TrialKey& key) const = 0;
  virtual std::string unit() const { return "tokens"; }  // of lengths
};

struct HiddenFact {
  std::string fact, question, answer;
  Judge judge = Judge::kFirstInteger;
};

// What a task of generated prompts is made of: head, filler, fact, filler, question.
struct HiddenFactText {
  std::string head;                  // opens the prompt; may be empty
  std::string fact_joint = " ";      // white space before the fact
  std::string question_joint = " ";  // and before the question
  std::string after_fact;            // ends the fact where the filler goes on, e.g. ",\n"
  uint64_t seed = 0;
  bool fresh_filler = false;  // every trial has a filler of its own
  std::function<FillerSource(size_t length, uint64_t seed)> filler;
  // The fact of a trial; `names` are taken by the filler.
  std::function<HiddenFact(Random& random, const std::set<std::string>& names)> draw;
};

class HiddenFactTask : public RetrievalTask {
 public:
  // `begin`: tokens before the text, e.g. bos.
  HiddenFactTask(std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> begin, HiddenFactText text);

  // Throws Error when the length leaves no room for the fact and the question.
  Prompt Build(const TrialKey& key) override;
  double DepthOf(const TrialKey& key) const override;

 private:
  uint64_t SeedOf(const TrialKey& key, uint64_t purpose) const;
  std::shared_ptr<Filler> FillerOf(const TrialKey& key);

  std::shared_ptr<const Tokenizer> tokenizer_;
  HiddenFactText text_;
  std::vector<int32_t> opening_;  // begin and head
  size_t filler_length_ = 0;      // of the shared filler that is kept
  std::shared_ptr<Filler> filler_;
};

// A prompt from a file.
struct FixedPrompt {
  size_t length = 0;  // in the task's unit
  std::string text;
  size_t fact_first = 0, fact_last = 0;  // bytes of the fact in the text
  std::string answer;
  Judge judge = Judge::kFirstInteger;
};

// Trial `number` of a length is the number-th prompt of that length.
class FixedPromptTask : public RetrievalTask {
 public:
  FixedPromptTask(std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> begin,
                  std::vector<FixedPrompt> prompts, std::string unit);

  Prompt Build(const TrialKey& key) override;
  double DepthOf(const TrialKey& key) const override;
  std::string unit() const override { return unit_; }
  // Lengths with their numbers of prompts.
  std::map<size_t, size_t> Lengths() const;

 private:
  const FixedPrompt& Find(const TrialKey& key) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> begin_;
  std::map<size_t, std::vector<FixedPrompt>> prompts_;
  std::string unit_;
};

}  // namespace cairn
