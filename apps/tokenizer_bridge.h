// How a tokenizer follows its model from one format to another. The one place where `cairn convert` asks the tokenizer
// room; formats/ itself knows vocabularies only as plain values.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf_vocabulary.h"

namespace cairn {

// Files (name, contents) that make the vocabulary of a GGUF file readable in a Hugging Face directory. Empty when there
// is no way to write it; the verb then says so.
std::vector<std::pair<std::string, std::string>> TokenizerFilesFor(const GgufVocabulary& vocabulary);

// The vocabulary of a Hugging Face directory's tokenizer files, for a GGUF file. Nothing when there is none to be read;
// the GGUF file then has no vocabulary.
std::optional<GgufVocabulary> VocabularyFrom(const std::filesystem::path& directory);

}  // namespace cairn
