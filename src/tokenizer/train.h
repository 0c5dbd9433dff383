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
};

// BPE with byte fallback, no normalisation, every digit a token. Ids: 0 <unk>, 1 <s>, 2 </s>, 3-258 the bytes, then
// the pieces, and <landmark> last. The same text and options give the same vocabulary.
std::shared_ptr<const Tokenizer> TrainTokenizer(const TokenizerTraining& options);

}  // namespace cairn
