// How a tokenizer follows its model from one format to another.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/gguf_vocabulary.h"
#include "formats/huggingface.h"
#include "formats/model_source.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// The tokenizer of an open model. Where there is none to be read, says why in a warning and gives null: the weights
// are converted without it.
std::shared_ptr<const Tokenizer> TokenizerOrWarning(const ModelSource& model, const std::filesystem::path& path);

// Files (name, contents) that make the vocabulary of a GGUF file readable in a Hugging Face directory. Empty, after a
// warning, when there is no way to write it.
std::vector<std::pair<std::string, std::string>> TokenizerFilesFor(const GgufVocabulary& vocabulary);
// The same for a tokenizer.
std::vector<std::pair<std::string, std::string>> TokenizerFilesFor(const Tokenizer& tokenizer,
                                                                   const std::string& chat_template = "");

// The tokenizer of a model that was opened at `path`, whatever its format, for a Hugging Face directory.
void AddTokenizer(const ModelSource& model, const std::filesystem::path& path, HuggingFaceWriteOptions& options);

// The vocabulary of a Hugging Face directory's tokenizer files, for a GGUF file. Nothing, after a warning, when there
// is none to be read or GGUF has no place for it.
std::optional<GgufVocabulary> VocabularyFrom(const std::filesystem::path& directory);
// The same for a tokenizer.
std::optional<GgufVocabulary> VocabularyFrom(const Tokenizer& tokenizer);

}  // namespace cairn
