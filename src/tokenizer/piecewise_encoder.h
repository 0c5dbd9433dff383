// The tokens of a long text, a piece of it at a time: the same as those of the whole text at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "io/long_text.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// Pieces end where a cut changes no token (Tokenizer::IsSafeCut). Where a text has no such place, or the tokenizer
// knows none, pieces grow until one is found, at worst to the whole text.
class PiecewiseEncoder {
 public:
  // Both outlive this. `piece`: bytes wanted of a piece.
  PiecewiseEncoder(const Tokenizer& tokenizer, const LongText& text, size_t piece = size_t{128} << 10)
      : tokenizer_(tokenizer), text_(text), piece_(piece) {}

  // Appends the tokens of the next piece, and for each where it ends in the text. False, and nothing, at the end.
  bool Next(std::vector<int32_t>& ids, std::vector<uint64_t>& ends);

 private:
  void FindPiece();

  const Tokenizer& tokenizer_;
  const LongText& text_;
  const size_t piece_;
  uint64_t at_ = 0;     // where the next piece begins
  uint64_t token_ = 0;  // where the next token begins
  std::string window_;  // the text from at_ on
};

}  // namespace cairn
