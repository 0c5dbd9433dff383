// SentencePiece model files (tokenizer.model): a protocol buffer, of which only the few fields that matter are read.
// The reader distrusts the file.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/vocabulary.h"

namespace cairn {

bool LooksLikeSentencePieceModel(std::string_view bytes);

// BPE models without a normaliser become kSentencePieceBpe; all others are left to the library.
VocabularySpec ReadSentencePieceModel(std::string bytes, const std::string& name);

// The spec's own source where it has one, else a model made from its pieces and scores.
std::string WriteSentencePieceModel(const VocabularySpec& spec);

// The model with one more piece, of type control, at its end. Nothing else is touched.
std::string AppendControlPiece(std::string model, std::string_view piece);

}  // namespace cairn
