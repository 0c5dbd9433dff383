// Makes a vocabulary out of text, with SentencePiece's trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cairn {

struct TokenizerTraining {
  std::vector<std::filesystem::path> files;
  int vocab_size = 4096;               // special tokens, bytes and landmark included
  double character_coverage = 0.9995;  // rarer characters are left to the bytes
  uint64_t max_bytes = 64u << 20;      // of more text an evenly spread sample of lines is taken
  int digits = 1;                      // most digits of a token, 1 to 3
};

// BPE with byte fallback, no normalisation. Every digit is a token, or every number is cut from its left into tokens of
// `digits` digits, all of which are in the vocabulary. Ids: 0 <unk>, 1 <s>, 2 </s>, the numbers of two digits and more,
// the 256 bytes, then the pieces, and <landmark> last. The same text and options give the same vocabulary.
std::shared_ptr<const Tokenizer> TrainTokenizer(const TokenizerTraining& options);

}  // namespace cairn
