#include "data/recall_tasks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <string_view>

#include "base/error.h"

namespace cairn {

namespace {

using Texts = std::initializer_list<std::string_view>;

std::string Pick(Texts texts, Random& random) { return std::string(texts.begin()[random.Below(texts.size())]); }

bool Chance(double probability, Random& random) { return random.Uniform() < probability; }

std::string Capital(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

// {A} attribute, {E} entity, {V} value; the first letter after the replacement becomes a capital where {a}, {e} stand.
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

// A few words that mean nothing together, so that nothing but the memory can tell them.
std::string Words(const WordList& words, size_t count, Random& random) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i > 0 ? " " : "") + words.Word(random);
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

std::string PassKeyNoun(Random& random) {
  if (Chance(0.6, random)) return "pass key";
  return Pick({"secret", "special", "magic", "hidden", "access", "entry", "door", "vault", "master", "pass", "safe",
               "security", "lucky", "needle", "winning"},
              random) +
         " " + Pick({"key", "code", "number", "word", "password", "phrase", "token"}, random);
}

RecallFact PassKey(const WordList& words, Random& random) {
  const std::string noun = PassKeyNoun(random);
  const std::string value = Chance(0.85, random) ? Number(random) : Value(words, random);
  const std::map<char, std::string> parts = {{'A', noun}, {'V', value}};
  RecallFact fact;
  fact.statement =
      Fill(Chance(0.5, random)
               ? "The {A} is {V}. Remember it. {V} is the {A}."
               : Pick({"The {A} is {V}.", "Remember that the {A} is {V}.", "The {A} is {V}. Do not forget it.",
                       "Here is the {A}: {V}. Keep it in mind.", "{V} is the {A}. The {A} is {V}.",
                       "Important: the {A} is {V}.", "One of the things to know here is that the {A} is {V}.",
                       "The {A} you will need is {V}.", "Note that the {A} is {V}, and keep it safe.",
                       "The {A} is {V}. You will be asked for it."},
                      random),
           parts);
  const bool canonical = Chance(0.5, random);
  fact.question = Fill(canonical ? "What is the {A}? The {A} is"
                                 : Pick({"Question: what is the {A}? Answer: the {A} is", "Tell me the {A}. The {A} is",
                                         "What was the {A}? It is", "What is the {A}? Answer:", "The {A} is",
                                         "Do you remember the {A}? The {A} is", "Now, what is the {A}? The {A} is",
                                         "What is the {A} mentioned in the text above? The {A} is",
                                         "Q: What is the {A}?\nA: The {A} is", "Please repeat the {A}. The {A} is"},
                                        random),
                       parts);
  fact.answer = " " + value;
  return fact;
}

// One form of facts that differ in entity and value.
struct AttributeForm {
  std::string statement, question, attribute;
};

AttributeForm DrawAttributeForm(const WordList& words, Random& random) {
  static constexpr std::array<std::array<std::string_view, 2>, 12> kForms = {{
      {"The {A} of {E} is {V}.", "The {A} of {E} is"},
      {"{e}'s {A} is {V}.", "{e}'s {A} is"},
      {"The {A} for {E} is {V}.", "The {A} for {E} is"},
      {"It is said that the {A} of {E} is {V}.", "The {A} of {E} is"},
      {"{e} has the {A} {V}.", "{e} has the {A}"},
      {"Remember this: the {A} of {E} is {V}.", "The {A} of {E} is"},
      {"The {A} of {E} was {V}, as everybody knew.", "The {A} of {E} was"},
      {"{e} told them that the {A} was {V}.", "{e} told them that the {A} was"},
      {"For {E} the {A} is {V}.", "For {E} the {A} is"},
      {"The {A} that belongs to {E} is {V}.", "The {A} that belongs to {E} is"},
      {"{e} chose {V} as the {A}.", "As the {A} {E} chose"},
      {"It is {V} that is the {A} of {E}.", "The {A} of {E} is"},
  }};
  static constexpr std::array<std::string_view, 9> kQuestions = {
      "What is the {A} of {E}? ", "What was the {A} of {E}? ",        "Question: what is {E}'s {A}? Answer: ",
      "Tell me the {A} of {E}. ", "Do you remember the {A} of {E}? ", "Q: What is the {A} of {E}?\nA: ",
      "What is {E}'s {A}? ",      "Which {A} does {E} have? ",        ""};
  const auto& form = kForms[Chance(0.35, random) ? 0 : random.Below(kForms.size())];
  AttributeForm result;
  result.statement = form[0];
  if (Chance(0.12, random)) {
    result.question = std::string(Pick({"What is the {A} of {E}? Answer:", "What is {E}'s {A}? It is",
                                        "Question: what is the {A} of {E}? Answer:", "{E}, {A}:"},
                                       random));
  } else {
    result.question = std::string(kQuestions[random.Below(kQuestions.size())]) + std::string(form[1]);
  }
  result.attribute = Attribute(words, random);
  return result;
}

RecallFact AttributeFact(const AttributeForm& form, const WordList& words, bool number, Random& random) {
  const std::map<char, std::string> parts = {
      {'A', form.attribute}, {'E', Entity(words, random)}, {'V', number ? Number(random) : Value(words, random)}};
  return {Capital(Fill(form.statement, parts)), Capital(Fill(form.question, parts)), " " + parts.at('V'), "."};
}

struct LineForm {
  std::string statement, question;
  std::string before;  // what stands between question and answer
  std::string end;
};

LineForm DrawLineForm(Random& random) {
  static const std::vector<LineForm> kForms = {
      {"line {E}: REGISTER_CONTENT is <{V}>", "The <REGISTER_CONTENT> in line {E} is <", "", ">"},
      {"\"{E}\": \"{V}\",", "\"{E}\": \"", "", "\""},
      {"{E}: {V}", "{E}:", " ", ""},
      {"{E} = {V};", "{E} =", " ", ";"},
      {"The value of {E} is {V}.", "What is the value of {E}? The value of {E} is", " ", "."},
      {"The code of {E} is {V}.", "What is the code of {E}? The code of {E} is", " ", "."},
      {"Record {E} has the content {V}.", "Which content does record {E} have? Record {E} has the content", " ", "."},
      {"{E} -> {V}", "{E} ->", " ", ""},
      {"Key {E} opens door {V}.", "Which door does key {E} open? Key {E} opens door", " ", "."},
      {"line {E}: {V}", "What stands in line {E}? line {E}:", " ", ""},
  };
  return kForms[random.Below(kForms.size())];
}

RecallFact LineFact(const LineForm& form, const WordList& words, bool number, Random& random) {
  const std::map<char, std::string> parts = {
      {'E', KeyName(words, random)}, {'V', number ? Digits(1 + random.Below(6), random) : KeyName(words, random)}};
  return {Fill(form.statement, parts), Fill(form.question, parts), form.before + parts.at('V'), form.end};
}

// Something that happened, or advice; {P} place or person, {D} a free choice of words.
RecallFact StoryFact(const WordList& words, Random& random) {
  struct Form {
    std::string_view statement, introduction, restated;
  };
  static constexpr std::array<Form, 14> kForms = {{
      {"The best thing to do in {P} is to {V}.", "What is the best thing to do in {P}? ",
       "The best thing to do in {P} is to"},
      {"{P} went to {D} to buy {V}.", "What did {P} go to {D} for? ", "{P} went to {D} to buy"},
      {"On that day {P} found {V} under the {D}.", "What did {P} find under the {D}? ", "On that day {P} found"},
      {"{P} keeps {V} in the {D}.", "What does {P} keep in the {D}? ", "{P} keeps"},
      {"In {P} the people eat {V} on {D} days.", "What do the people eat in {P}? ", "In {P} the people eat"},
      {"Nobody in {P} may speak of the {V}.", "Of what may nobody in {P} speak? ", "Nobody in {P} may speak of the"},
      {"The {D} of {P} was made of {V}.", "What was the {D} of {P} made of? ", "The {D} of {P} was made of"},
      {"{P} married {V} in the year of the {D}.", "Whom did {P} marry? ", "{P} married"},
      {"The train to {P} leaves from platform {V}.", "From where does the train to {P} leave? ",
       "The train to {P} leaves from platform"},
      {"The meeting in {P} is at {V}.", "When is the meeting in {P}? ", "The meeting in {P} is at"},
      {"{P} lives at number {V}, {D} street.", "Where does {P} live? ", "{P} lives at number"},
      {"To open the {D} of {P}, say {V}.", "How is the {D} of {P} opened? ", "To open the {D} of {P}, say"},
      {"The {D} was hidden by {P} behind the {V}.", "Where did {P} hide the {D}? ",
       "The {D} was hidden by {P} behind the"},
      {"According to {P}, the {D} costs {V} pounds.", "How much is the {D}, according to {P}? ",
       "According to {P}, the {D} costs"},
  }};
  const size_t index = random.Below(kForms.size());
  const Form& form = kForms[index];
  const bool number = index == 8 || index == 9 || index == 10 || index == 13;
  const std::string value = number ? Digits(1 + random.Below(5), random) : Words(words, 1 + random.Below(4), random);
  const std::map<char, std::string> parts = {
      {'P', Chance(0.7, random) ? words.Name(random) : Entity(words, random)}, {'D', words.Word(random)}, {'V', value}};
  return {Capital(Fill(form.statement, parts)),
          Capital((Chance(0.7, random) ? Fill(form.introduction, parts) : "") + Capital(Fill(form.restated, parts))),
          " " + value, "."};
}

// A sentence of words that no grammar connects; its end is asked for by its beginning.
RecallFact OddFact(const WordList& words, Random& random) {
  std::string beginning;
  const size_t length = 3 + random.Below(5);
  for (size_t i = 0; i < length; ++i) {
    if (i > 0) beginning += " ";
    if (Chance(0.35, random)) beginning += Pick({"the", "of", "in", "and", "with", "for", "to", "a"}, random) + " ";
    beginning += Chance(0.15, random) ? words.Name(random) : words.Word(random);
  }
  const std::string link = Pick({" is", " was", " and", ":", " with", " to", " of", " the", ""}, random);
  const std::string value = Chance(0.5, random) ? Value(words, random) : Words(words, 1 + random.Below(3), random);
  beginning = Capital(beginning) + link;
  return {beginning + " " + value + ".", DrawQuoteIntroduction(random) + beginning, " " + value, "."};
}

}  // namespace

WordList::WordList(const TokenDataset& dataset, const Tokenizer& tokenizer) {
  constexpr uint64_t kSample = 1'500'000;
  std::vector<int32_t> ids(std::min(dataset.token_count(), kSample));
  dataset.Read(0, ids);
  const std::string text = tokenizer.DecodeMiddle(ids);
  std::map<std::string, size_t> lower, upper;
  std::string word;
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0 && static_cast<unsigned char>(c) < 128) {
      word += c;
      continue;
    }
    const auto small = [](char letter) { return letter >= 'a' && letter <= 'z'; };
    if (word.size() >= 3 && word.size() <= 11 && std::all_of(word.begin() + 1, word.end(), small)) {
      ++(small(word[0]) ? lower : upper)[word];
    }
    word.clear();
  }
  for (const auto& [found, count] : lower) {
    if (found.size() >= 4 && count >= 2) words_.push_back(found);
  }
  for (const auto& [found, count] : upper) {
    std::string small = found;
    small[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(small[0])));
    if (count >= 2 && lower.count(small) == 0) names_.push_back(found);
  }
  if (words_.size() < 200 || names_.size() < 20) {
    Fail("the data has too few different words ({}) and names ({}) to make facts of; give more text", words_.size(),
         names_.size());
  }
}

std::vector<RecallFact> DrawFacts(const WordList& words, size_t count, bool pass_key, Random& random) {
  std::vector<RecallFact> facts;
  std::set<std::string> seen;
  const bool one_form = Chance(0.5, random);
  const bool numbers = Chance(0.6, random);
  AttributeForm attribute = DrawAttributeForm(words, random);
  LineForm line = DrawLineForm(random);
  size_t kind = random.Below(10);
  while (facts.size() < count) {
    RecallFact fact;
    if (pass_key && facts.empty()) {
      fact = PassKey(words, random);
    } else {
      if (!one_form) {
        attribute = DrawAttributeForm(words, random);
        line = DrawLineForm(random);
        kind = random.Below(10);
      }
      const bool number = one_form ? numbers : Chance(0.5, random);
      fact = kind < 4   ? AttributeFact(attribute, words, number, random)
             : kind < 6 ? LineFact(line, words, number, random)
             : kind < 8 ? StoryFact(words, random)
                        : OddFact(words, random);
    }
    if (seen.insert(fact.question).second) facts.push_back(std::move(fact));
  }
  return facts;
}

std::vector<RecallFact> DrawSimpleFacts(const WordList& words, size_t count, Random& random) {
  const std::string attribute = Pick({"code", "number", "age", "key", "price"}, random);
  std::vector<RecallFact> facts;
  std::set<std::string> seen;
  while (facts.size() < count) {
    const std::string name = words.Name(random), value = Digits(3 + random.Below(3), random);
    if (!seen.insert(name).second) continue;
    const std::string restated = "The " + attribute + " of " + name + " is";
    facts.push_back({restated + " " + value + ".", restated, " " + value, "."});
  }
  return facts;
}

std::string DrawRepeatedFiller(const WordList& words, Random& random) {
  if (Chance(0.4, random)) {
    return " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
  }
  std::string text;
  for (size_t i = 1 + random.Below(4); i > 0; --i) {
    text += ' ';
    text += Capital(Pick({"the", "a", "every", "no", "our"}, random) + " " + words.Word(random) + " " +
                    Pick({"is", "was", "goes to", "sees", "likes"}, random) + " " + words.Word(random) + ".");
  }
  return text;
}

std::string DrawQuoteIntroduction(Random& random) {
  return Pick({"", "", "", "", "Complete the sentence: ", "How does this go on? ", "It was written above: ",
               "Continue: ", "Question: how does the sentence end? Answer: ", "The text says: "},
              random);
}

}  // namespace cairn
