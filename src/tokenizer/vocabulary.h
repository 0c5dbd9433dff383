// What a vocabulary consists of, as plain data: the common ground of every tokenizer format (SentencePiece,
// llama2.c, Hugging Face, GGUF).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace cairn {

// Numbered as in SentencePiece and GGUF.
enum class TokenType : int8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // never produced by text, contributes nothing to it: <s>, </s>, <landmark>
  kUserDefined = 4,  // matched in the text before anything else
  kUnused = 5,       // a hole in the numbering, or a piece that is never produced
  kByte = 6,         // "<0x0A>": one byte, for what no other piece covers
};

enum class VocabularyKind {
  kSentencePieceBpe,    // pieces spell a space as U+2581; merges go by score; GGUF calls it "llama"
  kByteLevelBpe,        // pieces spell bytes as GPT-2's printable characters; merges are listed; GGUF: "gpt2"
  kSentencePieceOther,  // unigram, or with a normaliser: served by the SentencePiece library from `source`
};

// The printed name of the landmark in every format.
inline constexpr const char* kLandmarkPiece = "<landmark>";

// Everything that a Tokenizer is made from. Index = token id.
struct VocabularySpec {
  VocabularyKind kind = VocabularyKind::kSentencePieceBpe;
  std::string origin = "vocabulary";  // named in messages
  std::vector<std::string> pieces;
  std::vector<float> scores;     // kSentencePieceBpe: one a piece, the higher the earlier it is merged
  std::vector<TokenType> types;  // one a piece
  // kByteLevelBpe: in order of rank. For kSentencePieceBpe optional: when given they replace the scores.
  std::vector<std::pair<std::string, std::string>> merges;
  bool add_dummy_prefix = true;  // kSentencePieceBpe: a space is put before the text
  // kByteLevelBpe: regular expressions applied one after the other; each match and each gap is a word of its own.
  std::vector<std::string> split_patterns;
  bool ignore_merges = false;  // kByteLevelBpe: a word that is a piece is taken as it is (Llama 3)
  std::optional<int32_t> bos, eos, unknown, landmark;
  // The file it was read from, kept so that Save changes nothing else: a SentencePiece model, or tokenizer.json.
  // May be empty; Save then writes one from the fields above.
  std::string source;
};

// The split patterns for the name of a pre-tokenizer as GGUF has it in tokenizer.ggml.pre ("gpt-2", "llama-bpe",
// "qwen2", ...). Throws Error for a name that is not known.
std::vector<std::string> SplitPatternsOf(const std::string& pre_tokenizer);

}  // namespace cairn
