// Hugging Face's tokenizer.json: byte-level BPE, and BPE with byte fallback as converted from SentencePiece. The reader
// distrusts the file.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "tokenizer/vocabulary.h"

namespace cairn {

bool LooksLikeTokenizerJson(std::string_view bytes);

// `path` is named in messages; tokenizer_config.json beside it says which tokens are bos and eos. Added tokens that are
// special become control tokens, the others user-defined. A normaliser that composes characters (NFC) is not applied,
// so that no text is changed.
VocabularySpec ReadTokenizerJson(std::string text, const std::filesystem::path& path);

// Whether the vocabulary is saved as tokenizer.json (else as tokenizer.model).
bool BelongsInJson(const VocabularySpec& spec);

// The spec's own source where it has one, else a file made from its fields.
std::string WriteTokenizerJson(const VocabularySpec& spec);

// The file with one more special added token.
std::string AddTokenToJson(const std::string& text, std::string_view piece, int32_t id);

}  // namespace cairn
