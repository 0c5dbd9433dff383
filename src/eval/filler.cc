#include "eval/filler.h"

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace cairn {

namespace {

// A piece that is longer is cut between words.
constexpr size_t kLongestPiece = 1000;
// Filler that may be cut inside a piece is, when the piece would leave more tokens than this unused.
constexpr size_t kSlack = 24;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t SkipSpace(const std::string& text, size_t at) {
  while (at < text.size() && IsSpace(text[at])) ++at;
  return at;
}

// Bytes of quotes and brackets that may stand between the end of a sentence and the space after it.
size_t SkipClosing(const std::string& text, size_t at) {
  for (;;) {
    if (at < text.size() && std::string_view("\"')]_").find(text[at]) != std::string_view::npos) {
      ++at;
    } else if (text.compare(at, 3, "\xe2\x80\x9d") == 0 || text.compare(at, 3, "\xe2\x80\x99") == 0) {
      at += 3;
    } else {
      return at;
    }
  }
}

// The end of the sentence that begins at `begin`, the white space before it included.
size_t SentenceEnd(const std::string& text, size_t begin) {
  size_t space = 0;  // the last one seen
  for (size_t i = SkipSpace(text, begin); i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' || c == '!' || c == '?') {
      const size_t after = SkipClosing(text, i + 1);
      if (after == text.size() || IsSpace(text[after])) return after;
    }
    if (c == '\n' && i + 1 < text.size() && (text[i + 1] == '\n' || text[i + 1] == '\r')) return i;
    if (IsSpace(c)) {
      if (i - begin > kLongestPiece) return space > 0 ? space : i;
      space = i;
    }
  }
  return text.size();
}

}  // namespace

std::vector<std::string> SplitSentences(const std::string& text) {
  std::vector<std::string> sentences;
  for (size_t at = 0; SkipSpace(text, at) < text.size();) {
    const size_t end = SentenceEnd(text, at);
    sentences.push_back(text.substr(at, end - at));
    at = end;
  }
  return sentences;
}

TextPieces RepeatedText(const std::string& text) {
  auto sentences = SplitSentences(text);
  if (sentences.empty()) Fail("the filler is empty; give sentences to repeat");
  for (std::string& sentence : sentences) sentence.replace(0, SkipSpace(sentence, 0), 1, ' ');
  return [sentences, next = size_t{0}]() mutable { return sentences[next++ % sentences.size()]; };
}

TextPieces BookSentences(std::shared_ptr<const std::vector<std::string>> books, uint64_t seed) {
  std::vector<size_t> order;
  for (size_t i = 0; i < books->size(); ++i) {
    if (SkipSpace((*books)[i], 0) < (*books)[i].size()) order.push_back(i);
  }
  if (order.empty()) Fail("the filler is empty; name texts with --filler");
  Random random(seed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  // Half of the first book may be skipped, to a sentence's end.
  const std::string& first = (*books)[order[0]];
  size_t at = SentenceEnd(first, random.Below(first.size() / 2 + 1));
  if (SkipSpace(first, at) == first.size()) at = 0;
  return [books, order, at, book = size_t{0}]() mutable {
    const std::string* text = &(*books)[order[book]];
    if (SkipSpace(*text, at) == text->size()) {
      book = (book + 1) % order.size();
      text = &(*books)[order[book]];
      at = 0;
    }
    const size_t end = SentenceEnd(*text, at);
    std::string piece = text->substr(at, end - at);
    if (!IsSpace(piece.front())) piece.insert(0, 2, '\n');
    at = end;
    return piece;
  };
}

Filler::Filler(std::shared_ptr<const Tokenizer> tokenizer, FillerSource source, bool begins_text)
    : tokenizer_(std::move(tokenizer)), source_(std::move(source)), begins_text_(begins_text) {}

void Filler::AddPiece(std::string text) {
  const bool first = tokens_.empty();
  if (first) text.replace(0, SkipSpace(text, 0), begins_text_ ? std::string() : source_.joint);
  const auto ids = first && begins_text_ ? tokenizer_->Encode(text) : tokenizer_->EncodeMiddle(text);
  if (ids.empty()) return;
  tokens_.insert(tokens_.end(), ids.begin(), ids.end());
  ends_.push_back(tokens_.size());
  since_insert_ += ids.size();
}

const std::vector<int32_t>& Filler::Tokens(size_t count) {
  for (size_t useless = 0; tokens_.size() < count;) {
    const size_t before = tokens_.size();
    if (source_.inserts && since_insert_ >= source_.insert_every) {
      since_insert_ = 0;
      AddPiece(source_.inserts());
    }
    AddPiece(source_.pieces());
    useless = tokens_.size() == before ? useless + 1 : 0;
    if (useless > 100000) Fail("the filler has no tokens; give another text with --filler");
  }
  return tokens_;
}

size_t Filler::PieceEnd(size_t count) {
  Tokens(count);
  const auto after = std::upper_bound(ends_.begin(), ends_.end(), count);
  return after == ends_.begin() ? 0 : after[-1];
}

size_t Filler::Cut(size_t count) {
  const size_t end = PieceEnd(count);
  if (!source_.cut_words || count - end <= kSlack) return end;
  Tokens(count + 1);
  for (size_t at = count; at > end; --at) {
    const std::string bytes = tokenizer_->TokenBytes(tokens_[at]);
    if (!bytes.empty() && IsSpace(bytes[0])) return at;
  }
  return end;
}

}  // namespace cairn
