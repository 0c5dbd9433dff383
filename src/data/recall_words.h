// The words, numbers and names that facts are made of.
#pragma once

#include <initializer_list>
#include <map>
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

  const std::string& Word(Random& random) const { return words_[random.Below(words_.size())]; }
  const std::string& Name(Random& random) const { return names_[random.Below(names_.size())]; }

 private:
  std::vector<std::string> words_;  // lower case
  std::vector<std::string> names_;  // always written with a capital
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

// What a fact may state: a number, words, a name, a code.
std::string Value(const WordList& words, Random& random);
// What a line of a table may be called.
std::string KeyName(const WordList& words, Random& random);
// A person, or a thing with "the".
std::string Entity(const WordList& words, Random& random);
// What an entity may have: "lucky number".
std::string Attribute(const WordList& words, Random& random);

}  // namespace cairn
