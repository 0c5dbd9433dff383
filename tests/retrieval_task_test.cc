// Prompts of the retrieval tasks: their exact text, length, depth and determinism; scoring of answers.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "api_models.h"
#include "base/random.h"
#include "eval/random_words.h"
#include "eval/retrieval_tasks.h"
#include "io/file.h"
#include "tests/test_files.h"

namespace cairn {
namespace {

std::shared_ptr<const std::vector<std::string>> Books() {
  auto books = std::make_shared<std::vector<std::string>>();
  for (int book = 0; book < 3; ++book) {
    std::string text = "CHAPTER I.\n\n";
    for (int i = 0; i < 400; ++i) {
      text += fmt::format("In book {} the bath number {} was hot. \"Is it?\" asked\nthe other. ", book, i);
      if (i % 9 == 8) text += "\n\n";
    }
    books->push_back(text);
  }
  return books;
}

HiddenFactTask Make(const HiddenFactText& text) { return HiddenFactTask(ApiTokenizer(), {1}, text); }

std::string TextOf(const Prompt& prompt) { return ApiTokenizer()->Decode(std::span(prompt.ids).subspan(1)); }

std::string TokensText(const Prompt& prompt, const std::vector<size_t>& tokens) {
  std::vector<int32_t> ids;
  for (const size_t token : tokens) ids.push_back(prompt.ids.at(token));
  return ApiTokenizer()->DecodeMiddle(ids);
}

size_t Count(const std::string& text, const std::string& what) {
  size_t count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST(RetrievalTask, ThePassKeyPromptIsThePapers) {
  HiddenFactTask task = Make(PassKeyTask({}, {}));
  const std::string head =
      "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
      "about the important information there.";
  const std::string filler =
      "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
  for (const double depth : {0.0, 0.5, 1.0, -1.0}) {
    const Prompt prompt = task.Build({1000, depth, 3});
    const std::string fact = fmt::format("The pass key is {0}. Remember it. {0} is the pass key.", prompt.answer);
    const std::string text = TextOf(prompt);
    ASSERT_EQ(text.rfind(head + "\n", 0), 0u) << text;
    ASSERT_TRUE(text.ends_with("\nWhat is the pass key? The pass key is")) << text;
    const size_t at = text.find("\n" + fact);
    ASSERT_NE(at, std::string::npos) << text;
    // Before and after stand sentences of the filler, from its beginning.
    const std::string before = text.substr(head.size(), at - head.size());
    const size_t after_at = at + 1 + fact.size();
    const std::string after = text.substr(after_at, text.rfind("\nWhat") - after_at);
    std::string endless = "\n" + filler;
    for (int i = 0; i < 20; ++i) endless += " " + filler;
    for (const std::string& part : {before, after}) {
      EXPECT_EQ(endless.rfind(part, 0), 0u) << part;
      EXPECT_TRUE(part.empty() || part.back() == '.') << part;
    }
    EXPECT_LE(prompt.ids.size(), 1000u);
    EXPECT_GT(prompt.ids.size(), 1000u - 50);
    const int number = std::stoi(prompt.answer);
    EXPECT_TRUE(number >= 1 && number <= 50000);
    EXPECT_EQ(TokensText(prompt, prompt.value_tokens), prompt.answer + prompt.answer);
    EXPECT_TRUE(IsRight(prompt.judge, " " + prompt.answer + ". Remember", prompt.answer));
    EXPECT_EQ(before.empty(), depth == 0);
    EXPECT_EQ(after.empty(), depth == 1);
    // Piece by piece as at once.
    std::vector<int32_t> whole = ApiTokenizer()->Encode(text);
    whole.insert(whole.begin(), 1);
    EXPECT_EQ(prompt.ids, whole);
  }
}

TEST(RetrievalTask, TheSameKeyAndSeedGiveTheSamePrompt) {
  GeneratedTaskOptions options;
  options.books = Books();
  for (const bool fresh : {false, true}) {
    options.fresh_filler = fresh;
    options.seed = 5;
    const std::vector<HiddenFactText> texts = {PassKeyTask({}, options), NeedleTask(BuiltInNeedles(), options),
                                               KeyValueSentencesTask(5, options), KeyValueJsonTask(options),
                                               LinesTask(options)};
    for (const HiddenFactText& text : texts) {
      HiddenFactTask one = Make(text), two = Make(text);
      two.Build({1500, 0.5, 7});  // another order
      std::set<std::string> answers;
      for (size_t number = 0; number < 5; ++number) {
        const TrialKey key{1400, -1, number};
        const Prompt a = one.Build(key), b = two.Build(key);
        EXPECT_EQ(a.ids, b.ids);
        EXPECT_EQ(a.answer, b.answer);
        EXPECT_EQ(a.depth, one.DepthOf(key));
        answers.insert(a.answer);
        EXPECT_LE(a.ids.size(), key.length);
        EXPECT_GT(a.ids.size(), key.length - 100);
      }
      EXPECT_GT(answers.size(), 2u);
      HiddenFactText other = text;
      other.seed = 6;
      EXPECT_NE(Make(other).Build({1400, -1, 0}).ids, one.Build({1400, -1, 0}).ids);
    }
  }
}

TEST(RetrievalTask, TrialsShareTheFillerBeforeTheFact) {
  GeneratedTaskOptions options;
  options.books = Books();
  HiddenFactTask task = Make(PassKeyTask({}, options));
  const Prompt early = task.Build({2000, 0.25, 0}), late = task.Build({2000, 0.75, 1});
  EXPECT_LT(early.fact_first, late.fact_first);
  const std::vector<int32_t> head = ApiTokenizer()->Encode(PassKeyText().task);
  const std::vector<int32_t> question = ApiTokenizer()->EncodeMiddle("\n" + PassKeyText().question);
  for (const Prompt* prompt : {&early, &late}) {
    const size_t opening = 1 + head.size();
    const size_t room = 2000 - opening - (prompt->fact_last - prompt->fact_first) - question.size();
    const double wanted = prompt->depth * static_cast<double>(room);
    const auto before = static_cast<double>(prompt->fact_first - opening);
    EXPECT_LE(before, wanted + 0.5);
    EXPECT_GT(before, wanted - 50);  // a sentence of the books is shorter
  }
  EXPECT_TRUE(
      std::equal(early.ids.begin(), early.ids.begin() + static_cast<ptrdiff_t>(early.fact_first), late.ids.begin()));
  options.fresh_filler = true;
  HiddenFactTask fresh = Make(PassKeyTask({}, options));
  const Prompt one = fresh.Build({2000, 0.75, 0}), two = fresh.Build({2000, 0.75, 1});
  EXPECT_FALSE(std::equal(one.ids.begin(), one.ids.begin() + 600, two.ids.begin()));
}

TEST(RetrievalTask, NeedlesStandBetweenSentencesAndAreAskedFor) {
  GeneratedTaskOptions options;
  options.books = Books();
  HiddenFactTask task = Make(NeedleTask(BuiltInNeedles(), options));
  for (size_t number = 0; number < 60; ++number) {
    const Prompt prompt = task.Build({1200, -1, number});
    const std::string text = TextOf(prompt);
    std::vector<size_t> fact_tokens;
    for (size_t i = prompt.fact_first; i < prompt.fact_last; ++i) fact_tokens.push_back(i);
    const std::string fact = TokensText(prompt, fact_tokens);
    EXPECT_EQ(fact.front(), ' ');
    EXPECT_EQ(fact.back(), '.');
    EXPECT_EQ(fact.find('{'), std::string::npos) << fact;
    const size_t at = text.find(fact);
    ASSERT_NE(at, std::string::npos);
    EXPECT_NE(std::string(".\"?").find(text[at - 1]), std::string::npos) << text.substr(at - 20, 40);
    EXPECT_EQ(TokensText(prompt, prompt.value_tokens), prompt.answer);
  }
}

TEST(RetrievalTask, BuiltInNeedlesAreSound) {
  EXPECT_GE(BuiltInNeedles().size(), 20u);
  Random random(3);
  for (const Needle& needle : BuiltInNeedles()) {
    HiddenFact fact{needle.fact, needle.question, needle.answer, Judge::kContains};
    FillPlaceholders(random, {&fact.fact, &fact.question, &fact.answer});
    for (const std::string& text : {fact.fact, fact.question, fact.answer}) {
      EXPECT_EQ(text.find_first_of("{}"), std::string::npos) << text;
    }
    EXPECT_EQ(Count(fact.fact, fact.answer), 1u) << fact.fact;
    EXPECT_EQ(Count(fact.question, fact.answer), 0u) << fact.question;
    EXPECT_NE(fact.question.find("? "), std::string::npos) << fact.question;
    EXPECT_NE(fact.question.back(), ' ');
    EXPECT_TRUE(IsRight(Judge::kContains, " " + fact.answer + ".", fact.answer));
  }
}

TEST(RetrievalTask, KeysAreAllDifferentAndAsManyAsWanted) {
  GeneratedTaskOptions options;
  options.books = Books();
  HiddenFactTask task = Make(KeyValueSentencesTask(8, options));
  for (const double depth : {0.0, 0.3, 1.0}) {
    const Prompt prompt = task.Build({4000, depth, 2});
    const std::string text = TextOf(prompt);
    std::set<std::string> names;
    size_t statements = 0;
    const std::string context = text.substr(0, text.rfind("What is the code of "));
    for (size_t at = context.find("The code of "); at != std::string::npos; at = context.find("The code of ", at + 1)) {
      names.insert(context.substr(at + 12, context.find(" is ", at) - at - 12));
      ++statements;
    }
    EXPECT_EQ(names.size(), statements);
    EXPECT_GE(statements, 7u);
    EXPECT_LE(statements, 9u);
    const std::string asked = text.substr(text.rfind("The code of "));
    EXPECT_EQ(context.find(asked + " " + prompt.answer + "."), context.rfind(asked));
  }
}

TEST(RetrievalTask, JsonAndLinesHoldTheFactOnce) {
  for (const HiddenFactText& text : {KeyValueJsonTask({}), LinesTask({})}) {
    HiddenFactTask task = Make(text);
    for (const double depth : {0.0, 0.5, 1.0}) {
      const Prompt prompt = task.Build({3000, depth, 1});
      const std::string all = TextOf(prompt);
      EXPECT_EQ(TokensText(prompt, prompt.value_tokens), prompt.answer);
      const size_t line = all.rfind("\n", all.find(prompt.answer)) + 1;
      const std::string fact = all.substr(line, all.find("\n", line) - line);
      EXPECT_EQ(Count(all, "\n" + fact), 1u) << fact;
      EXPECT_NE(fact.find(prompt.answer), std::string::npos);
    }
  }
  const std::string lines = TextOf(Make(LinesTask({})).Build({3000, 0.5, 0}));
  EXPECT_NE(lines.find("start:\n\nline "), std::string::npos);
  EXPECT_GT(Count(lines, ": REGISTER_CONTENT is <"), 20u);
}

TEST(RetrievalTask, WhatDoesNotFitIsAnError) {
  HiddenFactTask task = Make(PassKeyTask({}, {}));
  EXPECT_ERROR(task.Build({100, 0.5, 0}), "a prompt of 100 tokens is too short");
  GeneratedTaskOptions options;
  options.books = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"", " \n "});
  EXPECT_ERROR(Make(NeedleTask(BuiltInNeedles(), options)).Build({1000, 0.5, 0}), "the filler is empty");
  PassKeyText wording;
  wording.filler = " ";
  EXPECT_ERROR(Make(PassKeyTask(wording, {})).Build({1000, 0.5, 0}), "the filler is empty");
}

TEST(RetrievalTask, OneBookIsEnoughAndComesAgain) {
  GeneratedTaskOptions options;
  options.books = std::make_shared<std::vector<std::string>>(std::vector<std::string>{"one word"});
  const Prompt prompt = Make(NeedleTask(BuiltInNeedles(), options)).Build({1000, 0.5, 0});
  EXPECT_GT(Count(TextOf(prompt), "one word"), 10u);
}

TEST(RetrievalTask, SentencesEndWhereTheyShould) {
  EXPECT_EQ(SplitSentences(" A b. \"C?\" D 1.5 e!\n\nTitle\n\nF"),
            (std::vector<std::string>{" A b.", " \"C?\"", " D 1.5 e!", "\n\nTitle", "\n\nF"}));
  EXPECT_TRUE(SplitSentences(" \n ").empty());
  const std::string words = [] {
    std::string text;
    for (int i = 0; i < 1000; ++i) text += "word ";
    return text;
  }();
  std::string joined;
  for (const std::string& piece : SplitSentences(words)) {
    EXPECT_LE(piece.size(), 1100u);
    joined += piece;
  }
  EXPECT_EQ(joined, words);
}

TEST(RetrievalTask, OwnWordings) {
  const ScratchDirectory scratch;
  const auto read = [&](const std::string& text) {
    WriteFileAtomically(scratch / "p.json", text);
    return ReadPassKeyText(scratch / "p.json");
  };
  const PassKeyText own = read(R"({"task": "Look.", "fact": "Number {N}!", "question": "Number"})");
  const Prompt prompt = Make(PassKeyTask(own, {})).Build({300, 0.5, 0});
  EXPECT_EQ(TextOf(prompt).rfind("Look.\nThe grass", 0), 0u);
  EXPECT_NE(TextOf(prompt).find("\nNumber " + prompt.answer + "!\n"), std::string::npos);
  EXPECT_ERROR(read("{"), "p.json");
  EXPECT_ERROR(read("[]"), "must be a JSON object");
  EXPECT_ERROR(read(R"({"fact": "none"})"), "{N}");
  EXPECT_ERROR(read(R"({"fact": 3})"), "\"fact\" must be a text");
  EXPECT_ERROR(read(R"({"facts": "x"})"), "\"facts\" is not known");

  const auto needles = [&](const std::string& text) {
    WriteFileAtomically(scratch / "n.jsonl", text);
    return ReadNeedles(scratch / "n.jsonl");
  };
  EXPECT_EQ(needles("\n{\"fact\": \"A {word}.\", \"question\": \"A\", \"answer\": \"{word}\"}\n").size(), 1u);
  EXPECT_ERROR(needles(""), "no needles");
  EXPECT_ERROR(needles("{\"fact\": \"a\"}\n"), "n.jsonl, line 1");
  EXPECT_ERROR(needles("\n{]\n"), "n.jsonl, line 2");
}

TEST(RetrievalTask, PromptsOfFiles) {
  const ScratchDirectory scratch;
  WriteFileAtomically(
      scratch / "kv.jsonl",
      R"({"ordered_kv_records": [["k1", "v1"], ["k2", "v2"], ["k3", "v3"]], "key": "k2", "value": "v2"})"
      "\n");
  auto prompts = ReadKeyValuePrompts(scratch / "kv.jsonl");
  ASSERT_EQ(prompts.size(), 1u);
  EXPECT_EQ(prompts[0].text,
            "Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{\"k1\": "
            "\"v1\",\n \"k2\": \"v2\",\n \"k3\": \"v3\"}\n\nKey: \"k2\"\nCorresponding value:");
  FixedPromptTask task(ApiTokenizer(), {1}, prompts, "pairs");
  EXPECT_EQ(task.Lengths(), (std::map<size_t, size_t>{{3, 1}}));
  const Prompt prompt = task.Build({3, -1, 0});
  EXPECT_EQ(TokensText(prompt, prompt.value_tokens), "v2");
  EXPECT_EQ(prompt.answer, "v2");
  EXPECT_EQ(TextOf(prompt), prompts[0].text);

  WriteFileAtomically(scratch / "lines.jsonl",
                      R"({"prompt": "Record:\nline a-b: REGISTER_CONTENT is <12>\nTell", "expected_number": 12,)"
                      R"( "correct_line": "line a-b: REGISTER_CONTENT is <12>\n", "num_lines": 1})"
                      "\n");
  prompts = ReadLinesPrompts(scratch / "lines.jsonl");
  ASSERT_EQ(prompts.size(), 1u);
  EXPECT_EQ(prompts[0].answer, "12");
  EXPECT_EQ(prompts[0].text.substr(prompts[0].fact_first, 8), "line a-b");

  const auto bad = [&](const std::string& text) {
    WriteFileAtomically(scratch / "bad.jsonl", text);
    return ReadKeyValuePrompts(scratch / "bad.jsonl");
  };
  EXPECT_ERROR(bad(""), "no prompts");
  EXPECT_ERROR(bad("{}\n"), "bad.jsonl, line 1: expected");
  EXPECT_ERROR(bad("[1, 2\n"), "bad.jsonl, line 1");
  EXPECT_ERROR(bad(R"({"ordered_kv_records": [["a", "b"]], "key": "c", "value": "d"})"), "not in the prompt");
  EXPECT_ERROR(ReadLinesPrompts(scratch / "kv.jsonl"), "kv.jsonl, line 1: expected");
}

TEST(RetrievalTask, TheFilesOfTheAssetsAreRead) {
  CAIRN_NEED_SHARED(shared);
  const auto pairs = ReadKeyValuePrompts(shared / "assets" / "kv-retrieval-75_keys.jsonl.gz");
  ASSERT_EQ(pairs.size(), 500u);
  EXPECT_EQ(pairs[0].length, 75u);
  const auto lines = ReadLinesPrompts(shared / "assets" / "longeval-lines.tar.xz");
  EXPECT_GT(lines.size(), 500u);
  for (const FixedPrompt& prompt : lines) {
    EXPECT_NE(prompt.text.substr(prompt.fact_first, prompt.fact_last - prompt.fact_first).find("<" + prompt.answer),
              std::string::npos);
  }
}

TEST(Scoring, FirstInteger) {
  const auto right = [](const char* given, const char* expected) {
    return IsRight(Judge::kFirstInteger, given, expected);
  };
  EXPECT_TRUE(right(" 123. Remember it. 99", "123"));
  EXPECT_TRUE(right("\n<123>", "123"));
  EXPECT_TRUE(right("00123", "123"));
  EXPECT_TRUE(right("0", "0"));
  EXPECT_TRUE(right("the key is 000", "0"));
  EXPECT_FALSE(right("1234", "123"));
  EXPECT_FALSE(right("12 3", "123"));
  EXPECT_FALSE(right("9 123", "123"));
  EXPECT_FALSE(right("", "123"));
  EXPECT_FALSE(right("one", "1"));
  EXPECT_FALSE(right("99999999999999999999999999123", "123"));
  EXPECT_FALSE(right("\xd9\xa1", "1"));  // another script's digit
}

TEST(Scoring, Contains) {
  const auto right = [](const char* given, const char* expected) { return IsRight(Judge::kContains, given, expected); };
  EXPECT_TRUE(right(" a Lantern.", "lantern"));
  EXPECT_TRUE(right("LANTERN", "lantern"));
  EXPECT_TRUE(right(" the old house, I think", "Old House"));
  EXPECT_TRUE(right("lanterns, then lantern", "lantern"));
  EXPECT_TRUE(right("is \"v-1\"", "\"v-1\""));
  EXPECT_FALSE(right("lanterns", "lantern"));
  EXPECT_FALSE(right("alantern", "lantern"));
  EXPECT_FALSE(right("51234", "123"));
  EXPECT_FALSE(right("lanter", "lantern"));
  EXPECT_FALSE(right("", "lantern"));
  EXPECT_FALSE(right("anything", ""));
  EXPECT_FALSE(right("\xc3\xa9lantern", "lantern"));
}

TEST(Scoring, WilsonIntervalSolvesItsEquation) {
  constexpr double kZ = 1.959963984540054;
  for (size_t n = 1; n <= 60; ++n) {
    for (size_t right = 0; right <= n; ++right) {
      const Interval interval = WilsonInterval(right, n);
      const double share = static_cast<double>(right) / static_cast<double>(n);
      // The ends are the p at which the observed share lies z standard deviations away.
      for (const double p : {interval.low, interval.high}) {
        EXPECT_NEAR(std::pow(share - p, 2), kZ * kZ * p * (1 - p) / static_cast<double>(n), 1e-12);
      }
      EXPECT_LE(interval.low, share);
      EXPECT_GE(interval.high, share);
      EXPECT_LT(interval.low, interval.high);
    }
  }
  // A published value: 81 of 263.
  EXPECT_NEAR(WilsonInterval(81, 263).low, 0.2553, 5e-5);
  EXPECT_NEAR(WilsonInterval(81, 263).high, 0.3662, 5e-5);
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

}  // namespace
}  // namespace cairn
