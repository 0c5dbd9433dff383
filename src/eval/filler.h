// Filler: the long text in which a fact is hidden, as a stream of tokens that grows on demand and knows where its
// sentences end.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace cairn {

// The next piece of a text (a sentence, a line), with the white space before it. Endless.
using TextPieces = std::function<std::string()>;

struct FillerSource {
  TextPieces pieces;
  TextPieces inserts;       // facts of the same kind that nobody asks for; may be empty
  size_t insert_every = 0;  // tokens between them
  bool restarts = false;    // after the fact the filler begins again instead of going on
  bool cut_words = false;   // the filler may end inside a long piece, between words
  std::string joint;        // before the first piece, in place of its own white space
  // Names that the inserts have used, filled as the filler grows.
  std::shared_ptr<std::set<std::string>> names;
};

// `text` again and again, a sentence a piece.
TextPieces RepeatedText(const std::string& text);
// Books one after the other in an order drawn from the seed, the first one from a place inside, a sentence a piece;
// from the beginning again after the last. Throws Error when there is no text in them.
TextPieces BookSentences(std::shared_ptr<const std::vector<std::string>> books, uint64_t seed);
// `text` cut into sentences, each with the white space before it.
std::vector<std::string> SplitSentences(const std::string& text);

// Not thread-safe.
class Filler {
 public:
  // `begins_text`: nothing stands before the filler.
  Filler(std::shared_ptr<const Tokenizer> tokenizer, FillerSource source, bool begins_text);

  // At least `count` tokens.
  const std::vector<int32_t>& Tokens(size_t count);
  const FillerSource& source() const { return source_; }

  // The largest end of a piece that is at most `count` tokens from the start; 0 when there is none.
  size_t PieceEnd(size_t count);
  // Where filler of at most `count` tokens ends: after a piece, or after a word where that is allowed and pieces are
  // long.
  size_t Cut(size_t count);

 private:
  void AddPiece(std::string text);

  std::shared_ptr<const Tokenizer> tokenizer_;
  FillerSource source_;
  bool begins_text_;
  std::vector<int32_t> tokens_;
  std::vector<size_t> ends_;  // of pieces, ascending
  size_t since_insert_ = 0;
};

}  // namespace cairn
