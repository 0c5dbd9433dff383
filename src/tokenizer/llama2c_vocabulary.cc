#include "tokenizer/llama2c_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

constexpr int32_t kLongestPossible = 4096;
constexpr size_t kFirstPiece = 259;  // after unknown, bos, eos and 256 bytes

int32_t IntegerAt(std::string_view bytes, size_t offset) {
  int32_t value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace

VocabularySpec ReadLlama2cVocabulary(std::string_view bytes, const std::string& name) {
  VocabularySpec spec;
  spec.origin = name;
  if (bytes.size() < 4) Fail("'{}' has {} bytes; it is not a tokenizer of a known kind", name, bytes.size());
  const int32_t longest = IntegerAt(bytes, 0);
  if (longest < 1 || longest > kLongestPossible) {
    Fail(
        "'{}' is not a tokenizer of a known kind: neither tokenizer.json nor a SentencePiece model, and for a llama2.c "
        "tokenizer the longest piece ({} bytes) is impossible",
        name, longest);
  }
  for (size_t offset = 4; offset < bytes.size();) {
    const size_t id = spec.pieces.size();
    if (bytes.size() - offset < 8)
      Fail("'{}': token {} is cut off at byte {}; the file is truncated", name, id, offset);
    float score;
    std::memcpy(&score, bytes.data() + offset, sizeof(score));
    const int32_t length = IntegerAt(bytes, offset + 4);
    offset += 8;
    if (length < 0 || length > longest) {
      Fail("'{}': token {} has length {}, but the longest is said to be {}; the file is damaged", name, id, length,
           longest);
    }
    if (static_cast<size_t>(length) > bytes.size() - offset) {
      Fail("'{}': token {} is cut off at byte {}; the file is truncated", name, id, offset);
    }
    if (!std::isfinite(score)) Fail("'{}': token {} has an impossible score; the file is damaged", name, id);
    spec.pieces.push_back(InsertSpaceSymbol(bytes.substr(offset, static_cast<size_t>(length))));
    spec.scores.push_back(score);
    spec.types.push_back(ParseBytePiece(spec.pieces.back()) ? TokenType::kByte : TokenType::kNormal);
    offset += static_cast<size_t>(length);
  }
  if (spec.pieces.size() < kFirstPiece) {
    Fail("'{}' has {} tokens; a llama2.c tokenizer has at least {}: unknown, bos, eos and 256 bytes", name,
         spec.pieces.size(), kFirstPiece);
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (ParseBytePiece(spec.pieces[byte + 3]) != static_cast<uint8_t>(byte)) {
      Fail("'{}': token {} should be <0x{:02X}> in a llama2.c tokenizer but is '{}'", name, byte + 3, byte,
           spec.pieces[byte + 3]);
    }
  }
  // The file spells them "\n<s>\n" and "\n</s>\n", for display.
  spec.pieces[0] = "<unk>", spec.pieces[1] = "<s>", spec.pieces[2] = "</s>";
  spec.types[0] = TokenType::kUnknown;
  spec.types[1] = spec.types[2] = TokenType::kControl;
  spec.unknown = 0, spec.bos = 1, spec.eos = 2;
  if (spec.pieces.back() == kLandmarkPiece) spec.types.back() = TokenType::kControl;
  return spec;
}

std::string WriteLlama2cVocabulary(const VocabularySpec& spec) {
  if (spec.kind != VocabularyKind::kSentencePieceBpe || spec.scores.size() != spec.pieces.size()) {
    Fail("'{}' cannot be written as a llama2.c tokenizer: that format holds SentencePiece BPE vocabularies only",
         spec.origin);
  }
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte + 3 >= spec.pieces.size() || ParseBytePiece(spec.pieces[byte + 3]) != static_cast<uint8_t>(byte)) {
      Fail("'{}' cannot be written as a llama2.c tokenizer: that format has the bytes at ids 3 to 258", spec.origin);
    }
  }
  std::string body;
  int32_t longest = 1;
  for (size_t i = 0; i < spec.pieces.size(); ++i) {
    std::string piece = ReplaceSpaceSymbol(spec.pieces[i]);
    if (i == 1 || i == 2) piece = "\n" + piece + "\n";
    const auto length = static_cast<int32_t>(piece.size());
    longest = std::max(longest, length);
    body.append(reinterpret_cast<const char*>(&spec.scores[i]), 4);
    body.append(reinterpret_cast<const char*>(&length), 4);
    body.append(piece);
  }
  std::string file(reinterpret_cast<const char*>(&longest), 4);
  return file + body;
}

}  // namespace cairn
