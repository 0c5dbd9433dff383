// Facts asked for in other words: what a question needs is in the statement, and copying what follows on the same words
// does not answer most of them.
#include "data/recall_retold.h"

#include <gtest/gtest.h>

#include <cctype>
#include <set>

#include "tests/made_words.h"

namespace cairn {
namespace {

using RecallRetoldTest = MadeWordsTest;

// The keys of a pattern's placeholders, as capitals.
std::set<char> Placeholders(const std::string& pattern) {
  std::set<char> keys;
  for (size_t at = pattern.find('{'); at != std::string::npos; at = pattern.find('{', at + 1)) {
    keys.insert(static_cast<char>(std::toupper(static_cast<unsigned char>(pattern[at + 1]))));
  }
  return keys;
}

TEST_F(RecallRetoldTest, AQuestionAsksForWhatTheStatementTells) {
  Random random(1);
  std::set<std::string> statements, questions;
  size_t other_words = 0, without_restating = 0;
  constexpr size_t kFacts = 20000;
  for (size_t i = 0; i < kFacts; ++i) {
    const RetoldForm form = DrawRetoldForm(*words_, random);
    SCOPED_TRACE(form.statement + " | " + form.question);
    const std::set<char> told = Placeholders(form.statement), asked = Placeholders(form.question);
    EXPECT_TRUE(told.contains('V'));
    EXPECT_FALSE(asked.contains('V'));
    for (const char key : {'S', 'O', 'C', 'W'}) {
      if (asked.contains(key)) {
        EXPECT_TRUE(told.contains(key)) << key;
      }
    }
    EXPECT_TRUE(asked.contains('S') || asked.contains('C')) << "nothing tells which fact is meant";
    statements.insert(form.statement);
    questions.insert(form.question);

    const RecallFact fact = RetoldFact(form, *words_, random);
    for (const std::string& text : {fact.statement, fact.question, fact.answer}) {
      EXPECT_EQ(text.find_first_of("{}"), std::string::npos) << text;
      EXPECT_EQ(text.find("  "), std::string::npos) << text;
    }
    ASSERT_EQ(fact.answer.front(), ' ');
    const std::string value = fact.answer.substr(1);
    const size_t place = fact.statement.rfind(value);
    ASSERT_NE(place, std::string::npos) << fact.statement << " | " << fact.answer;
    // The two words before the value, there and where the question ends.
    const auto last_words = [](const std::string& text) {
      const size_t space = text.rfind(' ', text.rfind(' ') - 1);
      return text.size() < 4 || space == std::string::npos ? text : text.substr(space);
    };
    const std::string before = place < 1 ? "" : fact.statement.substr(0, place - 1);
    other_words += last_words(before) != last_words(fact.question);
    without_restating += fact.question.ends_with('?') || fact.question.ends_with("nswer:");
  }
  EXPECT_GT(statements.size(), 800u);
  EXPECT_GT(questions.size(), 2000u);
  EXPECT_GT(other_words, kFacts * 7 / 10);
  EXPECT_GT(without_restating, kFacts / 10);
}

TEST_F(RecallRetoldTest, FactsOfOneFormDifferInWhatTheyAreAbout) {
  Random random(2);
  for (size_t i = 0; i < 200; ++i) {
    const RetoldForm form = DrawRetoldForm(*words_, random);
    std::set<std::string> questions, answers;
    for (size_t n = 0; n < 8; ++n) {
      const RecallFact fact = RetoldFact(form, *words_, random);
      questions.insert(fact.question);
      answers.insert(fact.answer);
    }
    EXPECT_GT(questions.size(), 4u) << form.question;
    EXPECT_GT(answers.size(), 4u) << form.statement;
  }
}

TEST_F(RecallRetoldTest, APartOfTheFactsIsRetold) {
  // Facts of clauses end as they are told; of these, most are not.
  const auto told_again = [&](double retold) {
    size_t count = 0, facts = 0;
    for (uint64_t seed = 0; seed < 100; ++seed) {
      Random random(seed);
      for (const RecallFact& fact : DrawFacts(*words_, 8, false, random, retold)) {
        ++facts;
        const size_t place = fact.statement.rfind(fact.answer);
        const size_t last = fact.question.rfind(' ');
        if (place == std::string::npos || last == std::string::npos || place < fact.question.size() - last) {
          ++count;
          continue;
        }
        const std::string word = fact.question.substr(last);
        count += fact.statement.substr(place - word.size(), word.size()) != word;
      }
    }
    return static_cast<double>(count) / static_cast<double>(facts);
  };
  EXPECT_GT(told_again(1), told_again(0) + 0.3);
}

}  // namespace
}  // namespace cairn
