// Words of no meaning for facts to be made of.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "data/prepare.h"
#include "data/recall_words.h"
#include "tests/test_files.h"
#include "tokenizer/train.h"

namespace cairn {

class MadeWordsTest : public ::testing::Test {
 protected:
  // Words of no meaning: three or four syllables, names with a capital.
  void SetUp() override {
    Random random(3);
    std::string text;
    for (size_t i = 0; i < 1200; ++i) {
      std::string word;
      for (size_t n = 3 + i % 2; n > 0; --n) {
        word += "bdfgklmnprst"[random.Below(12)];
        word += "aeiou"[random.Below(5)];
      }
      if (i % 4 == 0) word = Capital(word + "x");
      text += fmt::format("{0} {0}. ", word);
    }
    std::ofstream(directory_ / "text.txt") << text;
    TokenizerTraining training;
    training.files = {directory_ / "text.txt"};
    training.vocab_size = 500;
    const auto tokenizer = TrainTokenizer(training);
    PrepareOptions prepare;
    prepare.inputs = training.files;
    prepare.tokenizer = tokenizer;
    prepare.output = directory_ / "data";
    PrepareData(prepare);
    words_ = std::make_unique<WordList>(*TokenDataset::Open(directory_ / "data"), *tokenizer);
  }

  ScratchDirectory directory_;
  std::unique_ptr<WordList> words_;
};

}  // namespace cairn
