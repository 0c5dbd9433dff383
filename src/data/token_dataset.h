// A directory of prepared tokens: manifest.json and the shards of its splits, read as one long row of tokens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/token_shard.h"
#include "tokenizer/tokenizer.h"

namespace cairn {

inline constexpr const char* kTrainSplit = "train";
inline constexpr const char* kValidationSplit = "validation";
inline constexpr const char* kManifestName = "manifest.json";

// A file of text and where its tokens are.
struct TokenSource {
  std::string file;
  uint64_t begin, end;  // tokens of the split
};

// Immutable and thread-safe. The files must not change while it is open.
class TokenDataset {
 public:
  // Throws Error when the split does not exist or a file contradicts the manifest. Tokens are not read yet: see Verify.
  static std::shared_ptr<const TokenDataset> Open(const std::filesystem::path& directory,
                                                  const std::string& split = kTrainSplit);
  // Names of the splits in the manifest.
  static std::vector<std::string> Splits(const std::filesystem::path& directory);

  uint64_t token_count() const { return token_count_; }
  uint64_t document_count() const { return document_starts_.size(); }
  // Tokens [begin, begin + size) of document i.
  uint64_t document_begin(uint64_t i) const { return document_starts_[i]; }
  uint64_t document_end(uint64_t i) const {
    return i + 1 < document_starts_.size() ? document_starts_[i + 1] : token_count_;
  }

  // Tokens [begin, begin + ids.size()); throws Error when they are out of range.
  void Read(uint64_t begin, std::span<int32_t> ids) const;

  // Reads everything; throws Error when a checksum or an id is wrong. `progress` is told of each shard's tokens.
  void Verify(const std::function<void(uint64_t)>& progress = {}) const;
  // Throws Error when the data was made with another tokenizer. One with a landmark added is not another.
  void CheckTokenizer(const Tokenizer& tokenizer) const;

  // Sixteen hexadecimal digits that change with the tokens and documents of the split; from the shards' headers.
  std::string Checksum() const;

  const std::string& name() const { return name_; }
  const std::string& tokenizer_fingerprint() const { return fingerprint_; }
  const std::string& tokenizer_kind() const { return tokenizer_kind_; }
  uint64_t vocab_size() const { return vocab_size_; }
  uint32_t bytes_per_token() const { return BytesPerToken(vocab_size_); }
  size_t shard_count() const { return shards_.size(); }
  const std::vector<TokenSource>& sources() const { return sources_; }

 private:
  TokenDataset() = default;

  std::string name_, fingerprint_, tokenizer_kind_;
  uint64_t vocab_size_ = 0, token_count_ = 0;
  std::vector<TokenShard> shards_;
  std::vector<uint64_t> shard_begins_;     // index of each shard's first token
  std::vector<uint64_t> document_starts_;  // of all shards
  std::vector<TokenSource> sources_;
};

}  // namespace cairn
