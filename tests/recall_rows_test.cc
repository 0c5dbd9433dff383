// Rows that hide facts: every answer can be read from the row before it, and nothing else changes.
#include "data/recall_rows.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "data/prepare.h"
#include "tests/test_files.h"
#include "tokenizer/train.h"

namespace cairn {
namespace {

// A small text of many different words and names, with a tokenizer of its own.
class RecallRowsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Random random(7);
    std::string text;
    const auto syllables = [&](size_t count) {
      std::string word;
      for (size_t i = 0; i < count; ++i) {
        word += "bdfgklmnprst"[random.Below(12)];
        word += "aeiou"[random.Below(5)];
      }
      return word;
    };
    std::vector<std::string> words, names;
    for (size_t i = 0; i < 400; ++i) words.push_back(syllables(2 + random.Below(2)));
    for (size_t i = 0; i < 60; ++i) {
      names.push_back(syllables(3) + "x");
      names.back()[0] = static_cast<char>(names.back()[0] - 'a' + 'A');
    }
    for (size_t sentence = 0; sentence < 3000; ++sentence) {
      text += names[random.Below(names.size())];
      for (size_t i = 0; i < 8; ++i) text += " " + words[random.Below(words.size())];
      text += sentence % 5 == 4 ? ".\n" : ". ";
    }
    std::ofstream(directory_ / "text.txt") << text;
    TokenizerTraining training;
    training.files = {directory_ / "text.txt"};
    training.vocab_size = 600;
    tokenizer_ = TrainTokenizer(training);
    PrepareOptions prepare;
    prepare.inputs = training.files;
    prepare.tokenizer = tokenizer_;
    prepare.output = directory_ / "data";
    PrepareData(prepare);
    dataset_ = TokenDataset::Open(directory_ / "data");
    options_.context_length = 512;
    options_.block_length = 50;
    options_.landmark_id = *tokenizer_->landmark();
    options_.batch_size = 4;
    options_.seed = 3;
  }

  bool Asks(int32_t token) const {
    const std::string bytes = tokenizer_->TokenBytes(token);
    return !bytes.empty() && bytes.back() == '?';
  }

  Batch Fill(const RecallConfig& config, uint64_t step) const {
    Batch batch;
    BatchMaker({dataset_}, options_).Fill(step, batch);
    RecallRows(*dataset_, tokenizer_, options_, config).Apply(step, batch);
    return batch;
  }

  ScratchDirectory directory_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::shared_ptr<const TokenDataset> dataset_;
  BatchOptions options_;
};

TEST_F(RecallRowsTest, EveryAnswerStandsInTheRowBefore) {
  RecallConfig config;
  config.share = 1;
  const RecallRows rows(*dataset_, tokenizer_, options_, config);
  size_t answers = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    std::vector<int32_t> text(OrdinaryTokens(512, 50) + 1);
    dataset_->Read(seed * 11, text);
    const RecallRows::Row row = rows.Make(text, seed % 3 == 0, random);
    ASSERT_EQ(row.tokens.size(), text.size());
    ASSERT_EQ(row.answer.size(), text.size());
    std::string before;
    for (size_t i = 0; i < row.tokens.size();) {
      size_t end = i;
      while (end < row.tokens.size() && row.answer[end] == row.answer[i]) ++end;
      std::string piece = tokenizer_->DecodeMiddle(std::span(row.tokens).subspan(i, end - i));
      if (row.answer[i] != 0) {
        ++answers;
        std::string value = piece;
        if (value.ends_with(".")) value.pop_back();
        if (value.starts_with(" ")) value.erase(0, 1);  // a statement may begin with it
        EXPECT_NE(before.find(value), std::string::npos) << "seed " << seed << ": '" << piece << "' after\n" << before;
      }
      before += piece;
      i = end;
    }
  }
  EXPECT_GT(answers, 400u);
}

TEST_F(RecallRowsTest, SourcesAreWhereAnAnswerStoodBefore) {
  RecallConfig config;
  config.share = 1;
  config.echo = 0.3;
  size_t known = 0, answers = 0;
  for (uint64_t step = 0; step < 40; ++step) {
    const Batch batch = Fill(config, step);
    ASSERT_EQ(batch.answer_blocks.size(), batch.targets.size());
    for (size_t i = 0; i < batch.targets.size(); ++i) {
      for (const int32_t block : batch.answer_blocks[i]) {
        if (block == kNoBlock || Asks(batch.input_ids[i])) continue;
        ++known;
        const size_t position = i % batch.positions;
        ASSERT_LT(static_cast<size_t>(block), position / 51) << "in an earlier block";
        const auto begin =
            batch.input_ids.begin() + static_cast<ptrdiff_t>(i - position + 51 * static_cast<size_t>(block));
        EXPECT_NE(std::find(begin, begin + 50, batch.targets[i]), begin + 50) << step << " " << i;
      }
    }
  }
  const RecallRows rows(*dataset_, tokenizer_, options_, config);
  size_t sourced = 0, asked = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    std::vector<int32_t> text(OrdinaryTokens(512, 50) + 1);
    dataset_->Read(seed * 13, text);
    const RecallRows::Row row = rows.Make(text, seed % 3 == 0, random);
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      answers += row.answer[i];
      const auto& sources = row.sources[i];
      if (row.answer[i] == 0) {
        // What follows on a question mark has the sources of the answer that comes next.
        if (sources == RecallRows::Sources{RecallRows::kNoSource, RecallRows::kNoSource}) continue;
        ++asked;
        ASSERT_TRUE(Asks(row.tokens[i - 1])) << i;
        const auto next = std::find(row.answer.begin() + static_cast<ptrdiff_t>(i), row.answer.end(), 1);
        if (next == row.answer.end()) continue;  // cut off
        EXPECT_EQ(sources, row.sources[static_cast<size_t>(next - row.answer.begin())]);
        continue;
      }
      sourced += sources[0] != RecallRows::kNoSource || sources[1] != RecallRows::kNoSource;
      for (const int32_t source : sources) {
        if (source == RecallRows::kNoSource) continue;
        ASSERT_LT(source, static_cast<int32_t>(i));
        EXPECT_EQ(row.tokens[static_cast<size_t>(source)], row.tokens[i]);
      }
    }
  }
  EXPECT_GT(known, 2000u);
  EXPECT_GT(asked, 100u);
  EXPECT_GT(static_cast<double>(sourced), 0.8 * static_cast<double>(answers));
}

TEST_F(RecallRowsTest, WhatAQuestionSaysAgainIsReadAsItsAnswerIs) {
  RecallConfig config;
  config.share = 1;
  const RecallRows rows(*dataset_, tokenizer_, options_, config);
  size_t said_again = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    std::vector<int32_t> text(OrdinaryTokens(512, 50) + 1);
    dataset_->Read(seed * 17, text);
    const RecallRows::Row row = rows.Make(text, seed % 3 == 0, random);
    for (size_t i = 2; i < row.tokens.size(); ++i) {
      // An answer that begins with the second token after the mark: the first may be written otherwise in the
      // statement.
      if (row.answer[i] == 0 || row.answer[i - 1] != 0 || !Asks(row.tokens[i - 2])) continue;
      const int32_t source = row.sources[i][0];
      if (source == RecallRows::kNoSource) continue;
      ++said_again;
      // It goes on in the statement, token by token, as far as it is marked.
      for (size_t n = 0; i + n < row.tokens.size() && row.answer[i + n] != 0; ++n) {
        if (row.sources[i + n][0] == RecallRows::kNoSource) continue;
        EXPECT_EQ(row.sources[i + n][0], source + static_cast<int32_t>(n));
      }
    }
  }
  EXPECT_GT(said_again, 50u);
}

TEST_F(RecallRowsTest, OnlyAnswersAreScoredWhereTheTextIsNot) {
  RecallConfig config;
  config.share = 1;
  config.text_targets = 0;
  const Batch batch = Fill(config, 5);
  size_t scored = 0;
  for (const int32_t target : batch.targets) scored += target != kIgnoredTarget;
  EXPECT_EQ(scored, batch.scored);
  EXPECT_GT(scored, 0u);
  EXPECT_LT(scored, batch.targets.size() / 2);
  for (size_t i = 0; i < batch.input_ids.size(); ++i) {
    const bool landmark = i % batch.positions % 51 == 50;
    EXPECT_EQ(batch.input_ids[i] == options_.landmark_id, landmark) << i;
    if (landmark) {
      EXPECT_EQ(batch.targets[i], kIgnoredTarget) << i;
    }
  }
}

TEST_F(RecallRowsTest, WithoutAShareTheBatchIsTheText) {
  Batch plain;
  BatchMaker({dataset_}, options_).Fill(2, plain);
  const Batch batch = Fill({}, 2);
  EXPECT_EQ(batch.input_ids, plain.input_ids);
  EXPECT_EQ(batch.targets, plain.targets);
  EXPECT_EQ(batch.scored, plain.scored);
}

TEST_F(RecallRowsTest, TheSameStepGivesTheSameRows) {
  RecallConfig config;
  config.share = 0.8;
  config.echo = 0.3;
  config.text_targets = 0.3;
  const Batch first = Fill(config, 9), again = Fill(config, 9), other = Fill(config, 10);
  EXPECT_EQ(first.input_ids, again.input_ids);
  EXPECT_EQ(first.targets, again.targets);
  EXPECT_NE(first.input_ids, other.input_ids);
}

TEST_F(RecallRowsTest, MixedRowsExchangeTheirTexts) {
  RecallConfig config;
  config.share = 1;
  config.echo = 1;  // nothing but text
  config.mixed = 1;
  Batch plain;
  BatchMaker({dataset_}, options_).Fill(4, plain);
  const RecallRows rows(*dataset_, tokenizer_, options_, config);
  Batch mixed = plain;
  rows.Apply(4, mixed);
  // The first passage of a row stands at the same place of some row of the text, but mostly not of the same row.
  config.mixed = 0;
  Batch unmixed = plain;
  RecallRows(*dataset_, tokenizer_, options_, config).Apply(4, unmixed);
  size_t from_others = 0;
  for (size_t row = 0; row < plain.rows; ++row) {
    const auto at = [&](const Batch& batch, size_t r, size_t i) { return batch.input_ids[r * batch.positions + i]; };
    size_t source = plain.rows;
    for (size_t r = 0; r < plain.rows; ++r) {
      if (at(mixed, row, 0) == at(plain, r, 0) && at(mixed, row, 1) == at(plain, r, 1)) source = r;
    }
    EXPECT_LT(source, plain.rows) << row;
    EXPECT_EQ(at(unmixed, row, 0), at(plain, row, 0));
    from_others += source != row;
  }
  EXPECT_GT(from_others, 0u);
}

TEST_F(RecallRowsTest, FactsAreCutByTheEndsOfBlocks) {
  const std::vector<int32_t> text = [&] {
    std::vector<int32_t> tokens(401);
    dataset_->Read(100, tokens);
    return tokens;
  }();
  // Answers that stand in two blocks, of those that are short: long ones are often cut by chance.
  const auto cut = [&](double part, size_t& answers) {
    constexpr size_t kShort = 16;
    RecallConfig config;
    config.facts = 3;
    config.cut = part;
    const RecallRows rows(*dataset_, tokenizer_, options_, config);
    size_t count = 0;
    for (uint64_t seed = 0; seed < 240; ++seed) {
      Random random(seed);
      const RecallRows::Row row = rows.Make(text, false, random);
      const auto source = [&](size_t i) { return i < row.tokens.size() ? row.sources[i][0] : RecallRows::kNoSource; };
      for (size_t begin = 1, end; begin < row.tokens.size(); begin = end) {
        end = begin + 1;
        if (source(begin) == RecallRows::kNoSource) continue;
        while (source(end) == source(end - 1) + 1) ++end;
        if (end - begin > kShort) continue;
        ++answers;
        const auto block = [&](size_t i) { return static_cast<size_t>(source(i)) / options_.block_length; };
        count += block(begin) != block(end - 1);
      }
    }
    return count;
  };
  size_t some = 0, many = 0;
  const size_t by_chance = cut(0, some), wanted = cut(1, many);
  EXPECT_GT(some, 200u);
  EXPECT_GT(2 * wanted * some, 3 * by_chance * many);
}

TEST_F(RecallRowsTest, FactsAreMadeOfTheRowsOwnWords) {
  std::vector<int32_t> text(401);
  dataset_->Read(100, text);
  const std::string before = tokenizer_->DecodeMiddle(text);
  const WordList words(*dataset_, *tokenizer_);
  const auto own = [&](double share) {
    const WordList list = words.WithWordsOf(before, share);
    Random random(5);
    size_t count = 0;
    for (size_t i = 0; i < 200; ++i) count += before.find(list.Word(random)) != std::string::npos;
    return count;
  };
  EXPECT_EQ(own(1), 200u);
  EXPECT_LT(own(0), 150u);
  EXPECT_GT(own(0.5), own(0) + 20);
  // A text without words of the list changes nothing.
  const WordList none = words.WithWordsOf("123 !", 1);
  Random a(7), b(7);
  EXPECT_EQ(none.Word(a), words.Word(b));
  EXPECT_EQ(none.Name(a), words.Name(b));

  // And rows use it: where the text is one word again and again, it stands among the other words of the facts too.
  Random draws(9);
  std::string word;
  while (word.size() < 6) word = words.Word(draws);
  while (text.size() < 4000) {
    const std::vector<int32_t> more = tokenizer_->EncodeMiddle(" " + word);
    text.insert(text.begin(), more.begin(), more.end());
  }
  text.resize(401);
  const auto among_others = [&](double share) {
    RecallConfig config;
    config.own_words = share;
    config.repeated_filler = 0;
    const RecallRows rows(*dataset_, tokenizer_, options_, config);
    size_t count = 0;
    for (uint64_t seed = 0; seed < 40; ++seed) {
      Random random(seed);
      const std::string row = tokenizer_->DecodeMiddle(rows.Make(text, false, random).tokens);
      const std::string one = " " + word;
      for (size_t at = row.find(one); at != std::string::npos; at = row.find(one, at + 1)) {
        count += at < word.size() || row.compare(at - word.size(), word.size(), word) != 0;
      }
    }
    return count;
  };
  EXPECT_GT(2 * among_others(1), 3 * among_others(0));
}

TEST_F(RecallRowsTest, AnEchoOfNoiseHasNothingOfTheText) {
  RecallConfig config;
  config.noise = 1;
  const RecallRows rows(*dataset_, tokenizer_, options_, config);
  const std::vector<int32_t> text(401, 300);
  Random random(3);
  const RecallRows::Row row = rows.MakeEcho(text, random);
  EXPECT_LT(std::count(row.tokens.begin(), row.tokens.end(), 300), 10);
  EXPECT_EQ(std::count(row.tokens.begin(), row.tokens.end(), options_.landmark_id), 0);
  for (const int32_t token : row.tokens) EXPECT_FALSE(tokenizer_->TokenBytes(token).empty()) << token;
  EXPECT_GT(std::count(row.answer.begin(), row.answer.end(), 1), 50);
}

TEST_F(RecallRowsTest, AnEchoRepeatsPassages) {
  RecallConfig config;
  const RecallRows rows(*dataset_, tokenizer_, options_, config);
  std::vector<int32_t> text(401);
  dataset_->Read(100, text);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const RecallRows::Row row = rows.MakeEcho(text, random);
    ASSERT_EQ(row.tokens.size(), text.size());
    size_t answers = 0;
    for (size_t i = 0; i < row.tokens.size(); ++i) {
      if (row.answer[i] == 0) continue;
      ++answers;
      // The two tokens before it and it stood together before.
      const auto begin = row.tokens.begin() + static_cast<ptrdiff_t>(i) - 2;
      EXPECT_NE(std::search(row.tokens.begin(), begin, begin, begin + 3), begin) << i;
    }
    EXPECT_GT(answers, 100u);
  }
}

TEST_F(RecallRowsTest, TooFewWordsAreAnError) {
  std::ofstream(directory_ / "poor.txt") << "to be or not to be, that is the question\n";
  PrepareOptions prepare;
  prepare.inputs = {directory_ / "poor.txt"};
  prepare.tokenizer = tokenizer_;
  prepare.output = directory_ / "poor";
  PrepareData(prepare);
  const auto poor = TokenDataset::Open(directory_ / "poor");
  EXPECT_THROW(WordList(*poor, *tokenizer_), Error);
}

}  // namespace
}  // namespace cairn
