#include "tokenizer/byte_bpe.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn {

ByteBpe::ByteBpe(VocabularySpec given)
    : Tokenizer(std::move(given)), merges_(spec().merges.size()), pre_tokenizer_(spec().split_patterns, spec().origin) {
  byte_ids_.fill(-1);
  CollectTokens();
  CollectMerges();
}

void ByteBpe::CollectTokens() {
  bytes_.resize(vocab_size());
  for (size_t i = 0; i < vocab_size(); ++i) {
    const std::string& piece = spec().pieces[i];
    const auto id = static_cast<int32_t>(i);
    switch (spec().types[i]) {
      case TokenType::kNormal:
      case TokenType::kByte: {
        if (piece.empty()) Fail("'{}': token {} is empty", spec().origin, i);
        const auto bytes = PrintableToBytes(piece);
        if (!bytes) {  // no text leads to it; it is shown as it is spelt
          bytes_[i] = piece;
          break;
        }
        bytes_[i] = *bytes;
        if (const auto [found, added] = ids_.emplace(*bytes, id); !added) {
          Fail("'{}': tokens {} and {} are the same piece '{}'", spec().origin, found->second, i, piece);
        }
        if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = id;
        break;
      }
      case TokenType::kUserDefined:
        if (piece.empty()) Fail("'{}': token {} is empty", spec().origin, i);
        bytes_[i] = piece;
        user_pieces_[static_cast<uint8_t>(piece[0])].push_back(id);
        has_user_pieces_ = true;
        user_pieces_cross_lines_ |= piece.find('\n', 1) != std::string::npos;
        break;
      case TokenType::kUnknown:
        bytes_[i] = "\xef\xbf\xbd";  // U+FFFD
        break;
      case TokenType::kControl:
      case TokenType::kUnused:
        break;
    }
  }
  for (auto& list : user_pieces_) {
    std::stable_sort(list.begin(), list.end(), [&](int32_t a, int32_t b) {
      return bytes_[static_cast<size_t>(a)].size() > bytes_[static_cast<size_t>(b)].size();
    });
  }
  for (size_t byte = 0; byte < 256 && !spec().unknown; ++byte) {
    if (byte_ids_[byte] < 0) {
      Fail("'{}': the vocabulary has no token for byte 0x{:02x} and no unknown token, so it cannot encode every text",
           spec().origin, byte);
    }
  }
}

void ByteBpe::CollectMerges() {
  for (size_t i = 0; i < spec().merges.size(); ++i) {
    const std::string& left = spec().merges[i].first;
    const std::string& right = spec().merges[i].second;
    const auto find = [&](const std::string& piece) {
      const auto bytes = PrintableToBytes(piece);
      const auto found = bytes ? ids_.find(*bytes) : ids_.end();
      if (found == ids_.end()) {
        Fail("'{}': merge {} ('{}' with '{}') names '{}', which is not a piece", spec().origin, i, left, right, piece);
      }
      return found->second;
    };
    merges_.Add(find(left), find(right), {find(left + right), static_cast<int32_t>(i)});
  }
}

std::string ByteBpe::TokenBytes(int32_t id) const {
  CheckId(id);
  return bytes_[static_cast<size_t>(id)];
}

int32_t ByteBpe::UserPieceAt(std::string_view text, size_t position) const {
  for (const int32_t id : user_pieces_[static_cast<uint8_t>(text[position])]) {
    const std::string& piece = bytes_[static_cast<size_t>(id)];
    if (text.compare(position, piece.size(), piece) == 0) return id;
  }
  return -1;
}

bool ByteBpe::IsSafeCut(std::string_view text, size_t position) const {
  if (position == 0 || position >= text.size() || text[position] != '\n') return false;
  if (user_pieces_cross_lines_ || !pre_tokenizer_.cuts_before_newline()) return false;
  const char c = text[position - 1];
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void ByteBpe::Append(std::string_view text, bool, std::vector<int32_t>& ids) const {
  std::vector<int32_t> symbols;
  size_t begin = 0;
  for (size_t i = 0; has_user_pieces_ && i < text.size();) {
    const int32_t id = UserPieceAt(text, i);
    if (id < 0) {
      ++i;
      continue;
    }
    AppendText(text.substr(begin, i - begin), symbols, ids);
    ids.push_back(id);
    i += bytes_[static_cast<size_t>(id)].size();
    begin = i;
  }
  AppendText(text.substr(begin), symbols, ids);
}

void ByteBpe::AppendText(std::string_view text, std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  // Runs of valid UTF-8 go through the pre-tokenizer, runs of invalid bytes are words as they are.
  for (size_t begin = 0; begin < text.size();) {
    const bool valid = ReadUtf8(text, begin).code < kInvalidByte;
    size_t end = begin;
    while (end < text.size()) {
      const Utf8Character c = ReadUtf8(text, end);
      if ((c.code < kInvalidByte) != valid) break;
      end += c.length;
    }
    const std::string_view run = text.substr(begin, end - begin);
    if (valid) {
      pre_tokenizer_.Split(run, [&](std::string_view word) { AppendWord(word, symbols, ids); });
    } else {
      AppendWord(run, symbols, ids);
    }
    begin = end;
  }
}

void ByteBpe::AppendWord(std::string_view word, std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  if (spec().ignore_merges) {
    if (const auto found = ids_.find(std::string(word)); found != ids_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  symbols.clear();
  for (const char c : word) {
    const int32_t symbol = byte_ids_[static_cast<uint8_t>(c)];
    symbols.push_back(symbol >= 0 ? symbol : *spec().unknown);
  }
  merges_.Apply(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

}  // namespace cairn
