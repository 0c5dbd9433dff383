// The tokenizer that belongs to a model file, wherever the format keeps it, and vocabularies between GGUF and the
// tokenizer room.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "formats/gguf_vocabulary.h"
#include "formats/model_source.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// The tokenizer of a Hugging Face directory (its files), of a GGUF file (the vocabulary inside), or of a llama2.c file
// NAME.bin: NAME.tokenizer.bin, tokenizer.bin or tokenizer.model beside it, the first that exists and fits the model.
// Throws Error with what was looked for when there is none, and when it has more tokens than the model.
std::shared_ptr<const Tokenizer> LoadModelTokenizer(const std::filesystem::path& path);
// The same for a model that is open already; `path` is where it was opened.
std::shared_ptr<const Tokenizer> LoadModelTokenizer(const ModelSource& model, const std::filesystem::path& path);

// All that LoadTokenizer reads, and the vocabularies of GGUF files.
std::shared_ptr<const Tokenizer> LoadTokenizerOrModel(const std::filesystem::path& path);

// NAME.tokenizer.bin for NAME.bin.
std::filesystem::path Llama2cTokenizerPath(const std::filesystem::path& model);

// `origin` is named in messages. Throws Error for kinds other than "llama" and "gpt2", and for contradictions.
VocabularySpec SpecFromGguf(const GgufVocabulary& vocabulary, const std::string& origin);

// Throws Error when GGUF cannot say it: unigram vocabularies, and split patterns that have no name.
GgufVocabulary GgufFromSpec(const VocabularySpec& spec);

}  // namespace cairn
