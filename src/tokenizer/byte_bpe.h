// Tokenizer of the byte-level BPE kind (GPT-2, Llama 3, Qwen): words found by regular expressions, bytes merged by a
// list of ranks.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/merge_table.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// Control tokens are never matched in text; user-defined ones (added tokens that are not special) are, longest first.
// Text that is not valid UTF-8 is kept: each run of invalid bytes is a word.
class ByteBpe final : public Tokenizer {
 public:
  explicit ByteBpe(VocabularySpec spec);

  std::string TokenBytes(int32_t id) const override;
  bool IsSafeCut(std::string_view text, size_t position) const override;

 protected:
  void Append(std::string_view text, bool begins, std::vector<int32_t>& ids) const override;
  bool HasDummyPrefix() const override { return false; }

 private:
  void CollectTokens();
  void CollectMerges();
  int32_t UserPieceAt(std::string_view text, size_t position) const;
  void AppendText(std::string_view text, std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;
  void AppendWord(std::string_view word, std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;

  std::vector<std::string> bytes_;                     // what each id contributes to a text
  std::unordered_map<std::string, int32_t> ids_;       // normal pieces by their bytes
  std::array<int32_t, 256> byte_ids_;                  // -1 where the vocabulary has none
  std::array<std::vector<int32_t>, 256> user_pieces_;  // by first byte, longest first
  bool has_user_pieces_ = false;
  bool user_pieces_cross_lines_ = false;
  MergeTable merges_;
  PreTokenizer pre_tokenizer_;
};

}  // namespace cairn
