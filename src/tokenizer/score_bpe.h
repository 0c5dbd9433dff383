// Tokenizer of SentencePiece's BPE kind: characters are merged by the score of the resulting piece, and what no piece
// covers falls back to bytes. Serves SentencePiece models, llama2.c files and GGUF's "llama" vocabularies.
#pragma once

#include <array>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "tokenizer/merge_table.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

// Works on the plain text, with pieces in which U+2581 was replaced by a space; so U+2581 itself, in a text, is not
// mistaken for a space but falls back to bytes.
//
// Exact and fast by one observation: a merge can cross the border between two characters only when some piece contains
// these two side by side. The text is cut at all other borders (as a rule, before each word) and each part is merged on
// its own.
class ScoreBpe final : public Tokenizer {
 public:
  explicit ScoreBpe(VocabularySpec spec);

  std::string TokenBytes(int32_t id) const override;
  bool IsSafeCut(std::string_view text, size_t position) const override;

 protected:
  void Append(std::string_view text, bool begins, std::vector<int32_t>& ids) const override;

 private:
  void CollectTokens();
  void CollectPairs();
  void CollectMergesByScore();
  void CollectListedMerges();

  bool MayMerge(uint32_t left, uint32_t right) const;
  int32_t SymbolOf(uint32_t code) const;  // -1: no piece has the character
  // The longest user-defined piece at the position; -1 when there is none.
  int32_t UserPieceAt(std::string_view text, size_t position) const;
  void AppendPart(std::string_view part, std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;
  void AppendBytes(std::string_view bytes, std::vector<int32_t>& ids) const;

  std::vector<std::string> bytes_;                     // what each id contributes to a text
  std::unordered_map<std::string, int32_t> ids_;       // normal pieces by their bytes
  std::array<int32_t, 256> byte_ids_;                  // -1 where the vocabulary has none
  std::array<std::vector<int32_t>, 256> user_pieces_;  // by first byte, longest first
  bool has_user_pieces_ = false;
  bool covers_bytes_ = false;
  // Symbols below vocab_size() are ids; those above are characters that occur in pieces but are not pieces.
  std::array<int32_t, 128> ascii_symbols_;
  std::unordered_map<uint32_t, int32_t> other_symbols_;
  std::vector<bool> ascii_pairs_;  // [128][128]: characters that stand side by side in a piece
  std::unordered_set<uint64_t> other_pairs_;
  MergeTable merges_;
};

}  // namespace cairn
