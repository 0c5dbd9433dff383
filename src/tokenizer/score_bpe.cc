#include "tokenizer/score_bpe.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

// Longer pieces than this do not occur, and would make the search for merges slow.
constexpr size_t kMaxPiece = 512;

uint64_t PairKey(uint32_t left, uint32_t right) { return static_cast<uint64_t>(left) << 32 | right; }

}  // namespace

ScoreBpe::ScoreBpe(VocabularySpec given)
    : Tokenizer(std::move(given)), ascii_pairs_(128 * 128), merges_(spec().pieces.size() * 4) {
  byte_ids_.fill(-1);
  ascii_symbols_.fill(-1);
  CollectTokens();
  CollectPairs();
  spec().merges.empty() ? CollectMergesByScore() : CollectListedMerges();
}

void ScoreBpe::CollectTokens() {
  const size_t n = vocab_size();
  if (spec().merges.empty() && spec().scores.size() != n) {
    Fail("'{}': the vocabulary has {} pieces but {} scores", spec().origin, n, spec().scores.size());
  }
  bytes_.resize(n);
  size_t byte_count = 0;
  for (size_t i = 0; i < n; ++i) {
    const std::string& piece = spec().pieces[i];
    const auto id = static_cast<int32_t>(i);
    switch (spec().types[i]) {
      case TokenType::kByte: {
        const auto byte = ParseBytePiece(piece);
        if (!byte) Fail("'{}': token {} is of type byte but is spelt '{}', not <0xHH>", spec().origin, i, piece);
        if (byte_ids_[*byte] >= 0)
          Fail("'{}': tokens {} and {} stand for the same byte", spec().origin, byte_ids_[*byte], i);
        byte_ids_[*byte] = id;
        bytes_[i].assign(1, static_cast<char>(*byte));
        ++byte_count;
        break;
      }
      case TokenType::kNormal: {
        if (piece.empty()) Fail("'{}': token {} is empty", spec().origin, i);
        if (piece.size() > kMaxPiece) {
          Fail("'{}': token {} has {} bytes; at most {} make sense", spec().origin, i, piece.size(), kMaxPiece);
        }
        bytes_[i] = ReplaceSpaceSymbol(piece);
        const auto [found, added] = ids_.emplace(bytes_[i], id);
        // A piece with a plain space may stand beside one with U+2581; only the latter is ever produced.
        if (!added && spec().pieces[static_cast<size_t>(found->second)] == piece) {
          Fail("'{}': tokens {} and {} are the same piece '{}'", spec().origin, found->second, i, piece);
        }
        if (!added && piece != bytes_[i]) found->second = id;
        break;
      }
      case TokenType::kUserDefined:
        if (piece.empty()) Fail("'{}': token {} is empty", spec().origin, i);
        bytes_[i] = ReplaceSpaceSymbol(piece);
        user_pieces_[static_cast<uint8_t>(bytes_[i][0])].push_back(id);
        has_user_pieces_ = true;
        break;
      case TokenType::kUnknown:
        bytes_[i] = " \xe2\x81\x87 ";  // SentencePiece's double question mark
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
  covers_bytes_ = byte_count == 256;
  if (!covers_bytes_ && !spec().unknown) {
    Fail("'{}': the vocabulary has {} of 256 byte tokens and no unknown token, so it cannot encode every text",
         spec().origin, byte_count);
  }
}

void ScoreBpe::CollectPairs() {
  auto next_symbol = static_cast<int32_t>(vocab_size());
  for (size_t id = 0; id < vocab_size(); ++id) {
    // User-defined pieces take part so that no cut falls inside one.
    if (spec().types[id] != TokenType::kNormal && spec().types[id] != TokenType::kUserDefined) continue;
    const std::string& piece = bytes_[id];
    uint32_t last = 0;
    for (size_t i = 0; i < piece.size();) {
      const Utf8Character c = ReadUtf8(piece, i);
      if (SymbolOf(c.code) < 0) {
        const auto found = ids_.find(piece.substr(i, c.length));
        const int32_t symbol = found != ids_.end() ? found->second : next_symbol++;
        (c.code < 128 ? ascii_symbols_[c.code] : other_symbols_[c.code]) = symbol;
      }
      if (i > 0) {
        if (last < 128 && c.code < 128) {
          ascii_pairs_[last * 128 + c.code] = true;
        } else {
          other_pairs_.insert(PairKey(last, c.code));
        }
      }
      last = c.code;
      i += c.length;
    }
  }
}

void ScoreBpe::CollectMergesByScore() {
  // Ranks: pieces of the same score share one, so that the leftmost of equals is merged first.
  std::vector<std::pair<float, int32_t>> order;
  for (const auto& [piece, id] : ids_) {
    const float score = spec().scores[static_cast<size_t>(id)];
    if (std::isnan(score)) Fail("'{}': the score of token {} is not a number", spec().origin, id);
    order.emplace_back(score, id);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  int32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && order[i].first != order[i - 1].first) ++rank;
    const int32_t id = order[i].second;
    const std::string& piece = bytes_[static_cast<size_t>(id)];
    // Each part is a piece, or a single character that is none.
    const auto symbol_of = [&](std::string_view part) -> int32_t {
      if (const Utf8Character c = ReadUtf8(part, 0); c.length == part.size()) return SymbolOf(c.code);
      const auto found = ids_.find(std::string(part));
      return found == ids_.end() ? -1 : found->second;
    };
    for (size_t cut = 0; cut < piece.size();) {
      cut += ReadUtf8(piece, cut).length;
      if (cut == piece.size()) break;
      const int32_t left = symbol_of(std::string_view(piece).substr(0, cut));
      const int32_t right = left < 0 ? -1 : symbol_of(std::string_view(piece).substr(cut));
      if (right >= 0) merges_.Add(left, right, {id, rank});
    }
  }
}

void ScoreBpe::CollectListedMerges() {
  for (size_t i = 0; i < spec().merges.size(); ++i) {
    const std::string& left = spec().merges[i].first;
    const std::string& right = spec().merges[i].second;
    const auto find = [&](const std::string& piece) {
      const auto found = ids_.find(ReplaceSpaceSymbol(piece));
      if (found == ids_.end()) {
        Fail("'{}': merge {} ('{}' with '{}') names '{}', which is not a piece", spec().origin, i, left, right, piece);
      }
      return found->second;
    };
    merges_.Add(find(left), find(right), {find(left + right), static_cast<int32_t>(i)});
  }
}

std::string ScoreBpe::TokenBytes(int32_t id) const {
  CheckId(id);
  return bytes_[static_cast<size_t>(id)];
}

bool ScoreBpe::MayMerge(uint32_t left, uint32_t right) const {
  if (left < 128 && right < 128) return ascii_pairs_[left * 128 + right];
  return other_pairs_.count(PairKey(left, right)) != 0;
}

int32_t ScoreBpe::SymbolOf(uint32_t code) const {
  if (code < 128) return ascii_symbols_[code];
  const auto found = other_symbols_.find(code);
  return found == other_symbols_.end() ? -1 : found->second;
}

int32_t ScoreBpe::UserPieceAt(std::string_view text, size_t position) const {
  for (const int32_t id : user_pieces_[static_cast<uint8_t>(text[position])]) {
    const std::string& piece = bytes_[static_cast<size_t>(id)];
    if (text.compare(position, piece.size(), piece) == 0) return id;
  }
  return -1;
}

bool ScoreBpe::IsSafeCut(std::string_view text, size_t position) const {
  if (position == 0 || position >= text.size()) return false;
  const Utf8Character right = ReadUtf8(text, position);
  // The character before: the last that begins in the four bytes before and ends exactly here.
  for (size_t length = std::min<size_t>(4, position); length >= 1; --length) {
    const Utf8Character left = ReadUtf8(text, position - length);
    // Without a piece for unknown characters, two of them in a row are one unknown token.
    if (left.length == length && left.code < kInvalidByte) {
      return right.code < kInvalidByte && covers_bytes_ && !MayMerge(left.code, right.code);
    }
  }
  return false;
}

void ScoreBpe::Append(std::string_view text, bool begins, std::vector<int32_t>& ids) const {
  if (text.empty()) return;
  std::string prefixed;
  if (begins && spec().add_dummy_prefix) {
    // Only the first part of the text is affected, but a copy keeps the loop below plain.
    prefixed.reserve(text.size() + 1);
    prefixed.append(1, ' ').append(text);
    text = prefixed;
  }
  std::vector<int32_t> symbols;
  size_t begin = 0;  // of the part
  uint32_t last = 0;
  for (size_t i = 0; i < text.size();) {
    if (has_user_pieces_) {
      if (const int32_t id = UserPieceAt(text, i); id >= 0) {
        AppendPart(text.substr(begin, i - begin), symbols, ids);
        ids.push_back(id);
        i += bytes_[static_cast<size_t>(id)].size();
        begin = i;
        continue;
      }
    }
    const Utf8Character c = ReadUtf8(text, i);
    if (i > begin && !MayMerge(last, c.code)) {
      AppendPart(text.substr(begin, i - begin), symbols, ids);
      begin = i;
    }
    last = c.code;
    i += c.length;
  }
  AppendPart(text.substr(begin), symbols, ids);
}

void ScoreBpe::AppendPart(std::string_view part, std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  if (part.empty()) return;
  symbols.clear();
  for (size_t i = 0; i < part.size();) {
    const Utf8Character c = ReadUtf8(part, i);
    const int32_t symbol = SymbolOf(c.code);
    if (symbol < 0) {
      // Only a part of one character can have no symbol: parts are longer only where pieces say so.
      CAIRN_CHECK(c.length == part.size());
      AppendBytes(part, ids);
      return;
    }
    symbols.push_back(symbol);
    i += c.length;
  }
  merges_.Apply(symbols);
  size_t position = 0;
  for (const int32_t symbol : symbols) {
    const auto index = static_cast<size_t>(symbol);
    if (index < bytes_.size()) {
      ids.push_back(symbol);
      position += bytes_[index].size();
    } else {
      const size_t length = ReadUtf8(part, position).length;
      AppendBytes(part.substr(position, length), ids);
      position += length;
    }
  }
}

void ScoreBpe::AppendBytes(std::string_view bytes, std::vector<int32_t>& ids) const {
  const bool covered =
      std::all_of(bytes.begin(), bytes.end(), [&](char c) { return byte_ids_[static_cast<uint8_t>(c)] >= 0; });
  if (covered) {
    for (const char c : bytes) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  } else if (ids.empty() || ids.back() != *spec().unknown) {
    ids.push_back(*spec().unknown);
  }
}

}  // namespace cairn
