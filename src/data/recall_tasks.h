// Facts to hide in a text and to ask for later: pass keys, attributes of people and things, key-value lines,
// clauses (recall_clauses.h), sentences of odd words, in many wordings. For training; the evaluations have prompts of
// their own.
#pragma once

#include <string>
#include <vector>

#include "base/random.h"
#include "data/recall_words.h"

namespace cairn {

// All three are texts in the middle of a text. The question ends right before the answer, which begins with the space
// or bracket that stands before it in the statement too.
struct RecallFact {
  std::string statement;
  std::string question;
  std::string answer;
  std::string end = ".";  // what the answer ends with
};

// Facts that can be told apart by name; `count` of them, or fewer where words are few, of one form with probability two
// fifths. With `pass_key` the first is one without a name: two such in one text would contradict each other. `retold`:
// part of them that are told in one way and asked for in another.
std::vector<RecallFact> DrawFacts(const WordList& words, size_t count, bool pass_key, Random& random,
                                  double retold = 0);

// Numbers of three to five digits that belong to names, all in one short form; `count` of them, or as many as there are
// names.
std::vector<RecallFact> DrawSimpleFacts(const WordList& words, size_t count, Random& random);

// A sentence or a few, to be repeated as filler.
std::string DrawRepeatedFiller(const WordList& words, Random& random);

// What may stand before the first words of an earlier passage when its continuation is asked for.
std::string DrawQuoteIntroduction(Random& random);

}  // namespace cairn
