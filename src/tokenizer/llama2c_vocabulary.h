// llama2.c's tokenizer.bin: the longest piece's length, then score, length and bytes of each piece, to the end of the
// file.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/vocabulary.h"

namespace cairn {

// `name` is used in messages.
VocabularySpec ReadLlama2cVocabulary(std::string_view bytes, const std::string& name);

// The same format again. Only for kSentencePieceBpe with scores; Error for others.
std::string WriteLlama2cVocabulary(const VocabularySpec& spec);

}  // namespace cairn
