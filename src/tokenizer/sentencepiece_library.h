// Tokenizer on the SentencePiece library itself, for the models that ScoreBpe does not serve: unigram, or with a
// normaliser.
#pragma once

#include <memory>

#include "tokenizer/tokenizer.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace cairn {

// Lossless only as far as the model's normaliser is. There is no safe cut, and EncodeMiddle equals Encode. How well a
// damaged normaliser table inside the model is found out is up to the library.
class SentencePieceLibrary final : public Tokenizer {
 public:
  explicit SentencePieceLibrary(VocabularySpec spec);
  ~SentencePieceLibrary() override;

  std::string TokenBytes(int32_t id) const override;
  bool IsSafeCut(std::string_view, size_t) const override { return false; }

 protected:
  void Append(std::string_view text, bool begins, std::vector<int32_t>& ids) const override;

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace cairn
