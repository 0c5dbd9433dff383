// Facts to hide in a text and to ask for later: pass keys, attributes of people and things, key-value lines, sentences
// of odd words, in many wordings. For training; the evaluations have prompts of their own.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "data/token_dataset.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// All three are texts in the middle of a text. The question ends right before the answer, which begins with the space
// or bracket that stands before it in the statement too.
struct RecallFact {
  std::string statement;
  std::string question;
  std::string answer;
  std::string end = ".";  // what the answer ends with
};

// Words that facts are made of, gathered from a text. Immutable and thread-safe.
class WordList {
 public:
  // Reads the first tokens of the data. Throws Error when they have too few different words.
  WordList(const TokenDataset& dataset, const Tokenizer& tokenizer);

  const std::string& Word(Random& random) const { return words_[random.Below(words_.size())]; }
  const std::string& Name(Random& random) const { return names_[random.Below(names_.size())]; }

 private:
  std::vector<std::string> words_;  // lower case
  std::vector<std::string> names_;  // always written with a capital
};

// Facts that can be told apart by name; `count` of them, of one form with probability one half. With `pass_key` the
// first is one without a name: two such in one text would contradict each other.
std::vector<RecallFact> DrawFacts(const WordList& words, size_t count, bool pass_key, Random& random);

// Numbers of three to five digits that belong to names, all in one short form.
std::vector<RecallFact> DrawSimpleFacts(const WordList& words, size_t count, Random& random);

// A sentence or a few, to be repeated as filler.
std::string DrawRepeatedFiller(const WordList& words, Random& random);

// What may stand before the first words of an earlier passage when its continuation is asked for.
std::string DrawQuoteIntroduction(Random& random);

}  // namespace cairn
