// Sentences of the small grammar: each can be asked for, and answers stand where the question breaks off.
#include "data/recall_clauses.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/made_words.h"

namespace cairn {
namespace {

using RecallClausesTest = MadeWordsTest;

TEST_F(RecallClausesTest, AnAnswerEndsAsTheStatementDoes) {
  Random random(1);
  std::set<std::string> beginnings;
  size_t asked = 0, restated = 0, turned = 0, led = 0;
  for (size_t i = 0; i < 4000; ++i) {
    const ClauseForm form = DrawClauseForm(random);
    const RecallFact fact = ClauseFact(form, *words_, random);
    SCOPED_TRACE(fact.statement + " | " + fact.question + " | " + fact.answer);
    for (const std::string& text : {fact.statement, fact.question, fact.answer, fact.end}) {
      EXPECT_EQ(text.find_first_of("{}"), std::string::npos);
      EXPECT_EQ(text.find("  "), std::string::npos);
    }
    beginnings.insert(form.begin);
    asked += fact.question.find('?') != std::string::npos;
    EXPECT_NE(fact.statement.find(fact.answer), std::string::npos);
    EXPECT_EQ(fact.answer.front(), ' ');
    if (!form.restates) continue;
    ++restated;
    // What the question breaks off with, the answer and its end are the statement, but for what may lead it.
    const size_t asks = form.asks.size(), mark = fact.question.find('?', asks);
    EXPECT_EQ(fact.question.substr(0, asks), form.asks);
    std::string whole = fact.question.substr(mark == std::string::npos ? 0 : mark + 2);
    ASSERT_EQ(whole.substr(0, form.answers.size()), form.answers);
    whole = whole.substr(form.answers.size());
    led += !form.asks.empty() + !form.answers.empty();
    if (form.turned) {
      ++turned;
      // The tail comes first, and the rest is what stands before it in the statement.
      const size_t value = fact.statement.rfind(fact.answer);
      const std::string tail = fact.statement.substr(value + fact.answer.size() + 1);
      const std::string front = Capital(tail.substr(0, tail.size() - 1)) + " ";
      ASSERT_EQ(whole.substr(0, front.size()), front);
      const std::string begin = whole.substr(front.size());
      EXPECT_EQ(fact.statement.substr(value - begin.size() + 1, begin.size() - 1), begin.substr(1));
      EXPECT_EQ(fact.end, ".");
      continue;
    }
    whole += fact.answer + fact.end;
    ASSERT_GE(fact.statement.size(), whole.size());
    EXPECT_EQ(fact.statement.substr(fact.statement.size() - whole.size() + 1), whole.substr(1));
  }
  EXPECT_GT(beginnings.size(), 800u);
  EXPECT_GT(asked, 2800u);
  EXPECT_GT(restated, 3400u);
  EXPECT_GT(turned, 200u);
  EXPECT_GT(led, 400u);
}

TEST_F(RecallClausesTest, FactsOfOneFormDifferInWhatTheyAreAbout) {
  Random random(2);
  for (size_t i = 0; i < 100; ++i) {
    const ClauseForm form = DrawClauseForm(random);
    std::set<std::string> questions, answers;
    for (size_t n = 0; n < 8; ++n) {
      const RecallFact fact = ClauseFact(form, *words_, random);
      questions.insert(fact.question);
      answers.insert(fact.answer);
    }
    EXPECT_GT(questions.size(), 5u) << form.begin;
    EXPECT_GT(answers.size(), 5u) << form.begin;
  }
}

}  // namespace
}  // namespace cairn
