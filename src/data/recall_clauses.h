// Facts as sentences of a small grammar: who did what, what something is called or made of, how many there are of it,
// each with the question that asks for it.
#pragma once

#include "data/recall_tasks.h"
#include "data/recall_words.h"

namespace cairn {

// What facts of one form share. {S} is whom the fact is about, {V} the value, {P} a place or person, {D} any word.
struct ClauseForm {
  enum class Kind { kThing, kPerson, kPlace, kNumber };
  std::string subject;   // a pattern of its own, with {E} for a person or thing
  std::string begin;     // of the statement, up to the value; an answer that restates begins with it
  std::string tail;      // after the value; may have {S} too
  std::string question;  // "Where did {S} wait {tail}?", empty: none is asked
  std::string asks;      // before the question: "Question: "
  std::string answers;   // before the answer that restates: "Answer: "
  bool restates = true;  // the answer begins as the statement does
  bool turned = false;   // but for the tail, which comes first: "In York the king bought a"
  std::string lead;      // before a statement: "They say that "
  Kind kind = Kind::kThing;
};

ClauseForm DrawClauseForm(Random& random);

RecallFact ClauseFact(const ClauseForm& form, const WordList& words, Random& random);

}  // namespace cairn
