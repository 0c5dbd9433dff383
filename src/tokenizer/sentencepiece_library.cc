#include "tokenizer/sentencepiece_library.h"

#include <sentencepiece_processor.h>

#include <cmath>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn {

namespace {

// The library takes pieces on trust; what would upset it is refused before.
void CheckForLibrary(const VocabularySpec& spec) {
  for (size_t i = 0; i < spec.pieces.size(); ++i) {
    const std::string& piece = spec.pieces[i];
    if (piece.empty() || piece.find('\0') != std::string::npos || !IsValidUtf8(piece)) {
      Fail("'{}': piece {} is empty or not UTF-8; the model is damaged", spec.origin, i);
    }
    if (!std::isfinite(spec.scores[i]))
      Fail("'{}': piece {} has an impossible score; the model is damaged", spec.origin, i);
  }
}

}  // namespace

SentencePieceLibrary::SentencePieceLibrary(VocabularySpec given)
    : Tokenizer(std::move(given)), processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
  CheckForLibrary(spec());
  try {
    const auto status = processor_->LoadFromSerializedProto(spec().source);
    if (!status.ok()) Fail("'{}' is not a sound SentencePiece model: {}", spec().origin, status.ToString());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    Fail("'{}' is not a sound SentencePiece model: {}", spec().origin, error.what());
  }
  if (static_cast<size_t>(processor_->GetPieceSize()) != vocab_size()) {
    Fail("'{}': SentencePiece finds {} pieces, {} were expected", spec().origin, processor_->GetPieceSize(),
         vocab_size());
  }
}

SentencePieceLibrary::~SentencePieceLibrary() = default;

std::string SentencePieceLibrary::TokenBytes(int32_t id) const {
  CheckId(id);
  switch (spec().types[static_cast<size_t>(id)]) {
    case TokenType::kControl:
      return {};
    case TokenType::kUnknown:
      return " \xe2\x81\x87 ";
    case TokenType::kByte:
      if (const auto byte = ParseBytePiece(Piece(id))) return std::string(1, static_cast<char>(*byte));
      return {};
    default:
      return ReplaceSpaceSymbol(Piece(id));
  }
}

void SentencePieceLibrary::Append(std::string_view text, bool, std::vector<int32_t>& ids) const {
  std::vector<int> found;
  const auto status = processor_->Encode({text.data(), text.size()}, &found);
  if (!status.ok()) Fail("'{}': SentencePiece cannot encode the text: {}", spec().origin, status.ToString());
  ids.insert(ids.end(), found.begin(), found.end());
}

}  // namespace cairn
