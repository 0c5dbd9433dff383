#include "data/recall_words.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace cairn {

namespace {

// Calls word(text) for every word of ASCII letters, of which at most the first is a capital.
template <typename Each>
void ForEachWord(const std::string& text, const Each& each) {
  std::string word;
  const auto small = [](char letter) { return letter >= 'a' && letter <= 'z'; };
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : '\n';
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 128) {
      word += c;
      continue;
    }
    if (word.size() >= 3 && word.size() <= 11 && std::all_of(word.begin() + 1, word.end(), small)) each(word);
    word.clear();
  }
}

bool IsSmall(const std::string& word) { return word[0] >= 'a' && word[0] <= 'z'; }

}  // namespace

WordList::WordList(const TokenDataset& dataset, const Tokenizer& tokenizer) {
  // Pieces of the whole text, so that every book gives words.
  constexpr uint64_t kSample = 6'000'000, kPieces = 48;
  const uint64_t total = dataset.token_count(), size = std::min(total, kSample) / kPieces;
  std::string text;
  for (uint64_t piece = 0; piece < kPieces; ++piece) {
    std::vector<int32_t> ids(size);
    dataset.Read((total - size) / (kPieces - 1) * piece, ids);
    text += tokenizer.DecodeMiddle(ids);
    text += '\n';
  }
  std::map<std::string, size_t> lower, upper;
  ForEachWord(text, [&](const std::string& word) { ++(IsSmall(word) ? lower : upper)[word]; });
  auto lists = std::make_shared<Lists>();
  for (const auto& [found, count] : lower) {
    if (found.size() >= 4 && count >= 2) lists->words.push_back(found);
  }
  for (const auto& [found, count] : upper) {
    std::string small = found;
    small[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(small[0])));
    if (count >= 2 && lower.count(small) == 0) lists->names.push_back(found);
  }
  if (lists->words.size() < 200 || lists->names.size() < 20) {
    Fail("the data has too few different words ({}) and names ({}) to make facts of; give more text",
         lists->words.size(), lists->names.size());
  }
  all_ = std::move(lists);
}

WordList WordList::WithWordsOf(const std::string& text, double share) const {
  WordList result = *this;
  result.own_ = {};
  result.own_share_ = share;
  ForEachWord(text, [&](const std::string& word) {
    const auto& known = IsSmall(word) ? all_->words : all_->names;
    if (!std::binary_search(known.begin(), known.end(), word)) return;
    (IsSmall(word) ? result.own_.words : result.own_.names).push_back(word);
  });
  return result;
}

std::string Pick(std::initializer_list<std::string_view> texts, Random& random) {
  return std::string(texts.begin()[random.Below(texts.size())]);
}

bool Chance(double probability, Random& random) { return random.Uniform() < probability; }

std::string Capital(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string Fill(std::string_view pattern, const std::map<char, std::string>& parts) {
  std::string text;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '{' && i + 2 < pattern.size() && pattern[i + 2] == '}') {
      const char key = pattern[i + 1];
      const auto upper = static_cast<char>(std::toupper(static_cast<unsigned char>(key)));
      text += key == upper ? parts.at(key) : Capital(parts.at(upper));
      i += 2;
    } else {
      text += pattern[i];
    }
  }
  return text;
}

// Numbers of few different digits are as frequent as others: only they show whether a reader knows how far it has read,
// or merely what stood after the last digit (48948, 32333).
std::string Digits(size_t count, Random& random) {
  std::string text(1, static_cast<char>('1' + random.Below(9)));
  std::string digits = "0123456789";
  if (Chance(0.5, random)) digits = {text[0], digits[random.Below(10)], digits[random.Below(10)]};
  while (text.size() < count) text += digits[random.Below(digits.size())];
  return text;
}

std::string Number(Random& random) {
  if (Chance(0.3, random)) return std::to_string(1 + random.Below(50000));
  return Digits(1 + random.Below(7), random);
}

std::string Letters(std::string_view alphabet, size_t count, Random& random) {
  std::string text;
  while (text.size() < count) text += alphabet[random.Below(alphabet.size())];
  return text;
}

std::string Words(const WordList& words, size_t count, Random& random) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i > 0 ? " " : "") + words.Word(random);
  return text;
}

std::string Phrase(const WordList& words, Random& random) {
  std::string text;
  for (size_t left = 2 + random.Below(4); left > 0; --left) {
    if (!text.empty()) {
      text += Pick({" ", " and ", " of ", " with the ", " in ", " on a ", " to the ", " for ", " without ", " near "},
                   random);
    }
    text += Chance(0.15, random) ? words.Name(random) : words.Word(random);
  }
  return text;
}

std::string Value(const WordList& words, Random& random) {
  switch (random.Below(10)) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4:
      return Number(random);
    case 5:
    case 6:
      return words.Word(random);
    case 7:
      return Words(words, 2 + random.Below(3), random);
    case 8:
      return words.Name(random);
    default:
      return Chance(0.5, random) ? Letters("abcdefghjkmnpqrstuvwxyz23456789", 3 + random.Below(5), random)
                                 : Letters("ABCDEFGHJKLMNPQRSTUVWXYZ", 2 + random.Below(3), random) + "-" +
                                       Digits(2 + random.Below(3), random);
  }
}

std::string KeyName(const WordList& words, Random& random) {
  switch (random.Below(5)) {
    case 0:
      return words.Word(random) + "-" + words.Word(random);
    case 1:
      return Letters("0123456789abcdef", 4 + random.Below(8), random);
    case 2:
      return words.Word(random) + "_" + Digits(1 + random.Below(3), random);
    case 3:
      return Letters("ABCDEFGHJKLMNPQRSTUVWXYZ", 1 + random.Below(3), random) + Digits(1 + random.Below(4), random);
    default:
      return words.Word(random);
  }
}

std::string Attribute(const WordList& words, Random& random) {
  if (Chance(0.25, random)) return Words(words, 1 + random.Below(2), random);
  const std::string noun =
      Pick({"code",     "number",  "key",     "word",    "password", "name",   "sign",   "token",    "phrase",
            "colour",   "age",     "room",    "address", "price",    "weight", "height", "birthday", "answer",
            "treasure", "song",    "book",    "ship",    "horse",    "city",   "drink",  "food",     "flower",
            "debt",     "reward",  "message", "motto",   "wish",     "fear",   "gift",   "trade",    "ticket",
            "locker",   "account", "badge",   "street",  "medicine", "value",  "total",  "score",    "animal"},
           random);
  if (Chance(0.5, random)) return noun;
  return Pick({"secret",   "favourite",  "lucky",  "special", "magic", "hidden",   "access",         "old",
               "new",      "private",    "first",  "last",    "true",  "security", "identification", "door",
               "personal", "registered", "serial", "best"},
              random) +
         " " + noun;
}

std::string Entity(const WordList& words, Random& random) {
  switch (random.Below(6)) {
    case 0:
      return "the " + Pick({"gardener",  "captain", "teacher", "doctor",  "baker",  "king",    "queen",    "clerk",
                            "librarian", "sailor",  "tailor",  "painter", "farmer", "soldier", "merchant", "priest",
                            "widow",     "judge",   "porter",  "hunter",  "miller", "smith",   "engineer", "pilot"},
                           random);
    case 1:
      return "the " + words.Word(random) + " " + words.Word(random);
    case 2:
      return words.Name(random) + " " + words.Name(random);
    case 3:
      return Pick({"Mr. ", "Mrs. ", "Captain ", "Doctor ", "Aunt ", "Uncle ", "Lady ", "Professor "}, random) +
             words.Name(random);
    default:
      return words.Name(random);
  }
}

}  // namespace cairn
