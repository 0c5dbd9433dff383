// Facts that are told in one way and asked for in another: "Room 17 belongs to Anna." and "The room of Anna is number";
// the value stands before what it is asked by, another verb is used, passive for active, or nothing of the fact is said
// again. Copying what follows on the same words does not answer such questions.
#pragma once

#include <map>
#include <string>

#include "data/recall_tasks.h"
#include "data/recall_words.h"

namespace cairn {

// What facts of one form share. In the patterns {S} is whom the fact is about, {O} another one, {C} a place, {W} a
// word, {V} the value.
struct RetoldForm {
  enum class Kind { kAny, kThing, kPerson, kPlace, kNumber };
  Kind kind = Kind::kAny;
  std::string lead;                   // before the statement: "They say that "
  std::string statement;              // a pattern, without its full stop
  std::string question;               // ends right before the value
  std::map<char, std::string> parts;  // nouns, verbs and units that are the same in every fact of the form
};

RetoldForm DrawRetoldForm(const WordList& words, Random& random);

RecallFact RetoldFact(const RetoldForm& form, const WordList& words, Random& random);

}  // namespace cairn
