#include "data/recall_tasks.h"

#include <array>
#include <map>
#include <set>
#include <string_view>

#include "data/recall_clauses.h"
#include "data/recall_retold.h"

namespace cairn {

namespace {

constexpr size_t kMostTries = 20;  // for each fact: few words may not make enough different ones

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

std::vector<RecallFact> DrawFacts(const WordList& words, size_t count, bool pass_key, Random& random, double retold) {
  std::vector<RecallFact> facts;
  std::set<std::string> seen;
  const bool one_form = Chance(0.4, random);
  const bool numbers = Chance(0.6, random);
  AttributeForm attribute = DrawAttributeForm(words, random);
  LineForm line = DrawLineForm(random);
  ClauseForm clause = DrawClauseForm(random);
  size_t kind = random.Below(20);
  RetoldForm other_words;
  const auto draw_retold = [&] {
    if (retold == 0 || !Chance(retold, random)) return false;
    other_words = DrawRetoldForm(words, random);
    return true;
  };
  bool tell_again = draw_retold();
  for (size_t tries = 0; facts.size() < count && tries < kMostTries * count; ++tries) {
    RecallFact fact;
    if (pass_key && facts.empty()) {
      fact = PassKey(words, random);
    } else {
      if (!one_form) {
        attribute = DrawAttributeForm(words, random);
        line = DrawLineForm(random);
        clause = DrawClauseForm(random);
        kind = random.Below(20);
        tell_again = draw_retold();
      }
      const bool number = one_form ? numbers : Chance(0.5, random);
      fact = tell_again  ? RetoldFact(other_words, words, random)
             : kind < 5  ? AttributeFact(attribute, words, number, random)
             : kind < 8  ? LineFact(line, words, number, random)
             : kind < 18 ? ClauseFact(clause, words, random)
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
  for (size_t tries = 0; facts.size() < count && tries < kMostTries * count; ++tries) {
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
