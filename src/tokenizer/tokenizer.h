// Text to token ids and back: the interface that every vocabulary serves, and the ways to get one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace cairn {

// Immutable and thread-safe. Encoding is O(n log n) at worst and practically linear.
//
// Text never produces a control token: "<s>" or "<landmark>" in a text stays text. Decode(Encode(text)) == text for any
// bytes when the vocabulary covers all bytes (byte fallback or byte-level) and is not of kind kSentencePieceOther.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of a whole text. No bos or eos is added.
  std::vector<int32_t> Encode(std::string_view text) const;
  // Ids of a text that continues an earlier one: no dummy prefix. See IsSafeCut.
  std::vector<int32_t> EncodeMiddle(std::string_view text) const;

  // The text of ids that begin a text: what the dummy prefix added is taken off again. Control tokens give nothing.
  std::string Decode(std::span<const int32_t> ids) const;
  // The text of ids from the middle of a text: the bytes of all tokens.
  std::string DecodeMiddle(std::span<const int32_t> ids) const;

  // The bytes that a token contributes in the middle of a text; may be part of a UTF-8 character. Throws Error for an
  // id that is out of range.
  virtual std::string TokenBytes(int32_t id) const = 0;

  // True only when Encode(text) == Encode(text up to position) + EncodeMiddle(the rest), so that long texts can be
  // encoded in parallel. May be false where a cut would in fact be harmless.
  virtual bool IsSafeCut(std::string_view text, size_t position) const = 0;

  size_t vocab_size() const { return spec().pieces.size(); }  // the landmark included
  std::optional<int32_t> bos() const { return spec().bos; }
  std::optional<int32_t> eos() const { return spec().eos; }
  std::optional<int32_t> landmark() const { return spec().landmark; }
  VocabularyKind kind() const { return spec().kind; }
  const VocabularySpec& spec() const { return spec_; }
  // How the piece is spelt in the vocabulary, e.g. "▁the" or "<s>"; for people.
  const std::string& Piece(int32_t id) const;
  // The id of a piece by its spelling, control tokens included.
  std::optional<int32_t> FindPiece(std::string_view piece) const;

  // 16 hexadecimal digits. Equal for tokenizers that encode every text alike: bos, eos, landmark and the file format do
  // not matter.
  std::string fingerprint() const;

  // Writes tokenizer.model or tokenizer.json, and tokenizer_config.json, into a model directory, which must exist.
  void Save(const std::filesystem::path& directory) const;

 protected:
  explicit Tokenizer(VocabularySpec spec) : spec_(std::move(spec)) {}
  // Appends the ids of `text`; `begins` says whether it is the beginning of a text.
  virtual void Append(std::string_view text, bool begins, std::vector<int32_t>& ids) const = 0;
  // Whether Encode put a space before the text.
  virtual bool HasDummyPrefix() const { return spec_.add_dummy_prefix; }
  // Throws Error unless 0 <= id < vocab_size().
  void CheckId(int32_t id) const;

 private:
  const VocabularySpec spec_;
};

// Makes a tokenizer from its parts. Throws Error when they contradict each other.
std::shared_ptr<const Tokenizer> MakeTokenizer(VocabularySpec spec);

// Reads a SentencePiece model, a llama2.c tokenizer.bin, a Hugging Face tokenizer.json, or a directory that has
// tokenizer.model, tokenizer.json or tokenizer.bin (looked for in this order). The kind is told by the content.
std::shared_ptr<const Tokenizer> LoadTokenizer(const std::filesystem::path& path);
// The same for the content of a file; `path` is named in messages, and tokenizer_config.json is looked for beside it.
std::shared_ptr<const Tokenizer> ParseTokenizer(std::string bytes, const std::filesystem::path& path);

// The same encodings and one more id, the old vocab_size(), for the landmark. A tokenizer that has one is returned as
// it is.
std::shared_ptr<const Tokenizer> WithLandmark(const std::shared_ptr<const Tokenizer>& tokenizer);

// "sentencepiece-bpe", "byte-level-bpe", "sentencepiece".
const char* NameOf(VocabularyKind kind);

}  // namespace cairn
