// The words, numbers and names that facts are made of.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "data/token_dataset.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// Words that facts are made of, gathered from a text. Immutable and thread-safe.
class WordList {
 public:
  // Reads the first tokens of the data. Throws Error when they have too few different words.
  WordList(const TokenDataset& dataset, const Tokenizer& tokenizer);

  // The same list, but the given part of what is drawn are words of this text, as often as they stand in it. Words that
  // the list does not have are left out.
  WordList WithWordsOf(const std::string& text, double share) const;

  const std::string& Word(Random& random) const { return Draw(all_->words, own_.words, random); }
  const std::string& Name(Random& random) const { return Draw(all_->names, own_.names, random); }

 private:
  struct Lists {
    std::vector<std::string> words;  // lower case
    std::vector<std::string> names;  // always written with a capital
  };
  const std::string& Draw(const std::vector<std::string>& all, const std::vector<std::string>& own,
                          Random& random) const {
    const bool from_own = !own.empty() && random.Uniform() < own_share_;
    const std::vector<std::string>& from = from_own ? own : all;
    return from[random.Below(from.size())];
  }

  std::shared_ptr<const Lists> all_;  // sorted
  Lists own_;
  double own_share_ = 0;
};

std::string Pick(std::initializer_list<std::string_view> texts, Random& random);
bool Chance(double probability, Random& random);
std::string Capital(std::string text);

// Replaces {X} by the part X; {x} is the same with a capital at its beginning.
std::string Fill(std::string_view pattern, const std::map<char, std::string>& parts);

std::string Digits(size_t count, Random& random);
std::string Number(Random& random);
std::string Letters(std::string_view alphabet, size_t count, Random& random);

// A few words that mean nothing together, so that nothing but the memory can tell them.
std::string Words(const WordList& words, size_t count, Random& random);

// Some more words, with the little ones between them that sentences have.
std::string Phrase(const WordList& words, Random& random);

// What a fact may state: a number, words, a name, a code.
std::string Value(const WordList& words, Random& random);
// What a line of a table may be called.
std::string KeyName(const WordList& words, Random& random);
// A person, or a thing with "the".
std::string Entity(const WordList& words, Random& random);
// What an entity may have: "lucky number".
std::string Attribute(const WordList& words, Random& random);

}  // namespace cairn
