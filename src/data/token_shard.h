// One file of token ids: its layout, reading by memory map, and writing. docs/tokenizers-and-data.md has the layout
// byte by byte. The reader distrusts the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "io/file.h"

namespace cairn {

inline constexpr uint32_t kShardVersion = 1;

// 64 bytes at the start of the file, little-endian.
struct ShardHeader {
  char magic[8];             // "CAIRNTOK"
  uint32_t version;          // kShardVersion
  uint32_t bytes_per_token;  // 2 or 4
  uint64_t token_count;
  uint64_t document_count;   // documents that begin in this shard
  uint64_t vocab_size;       // every id is smaller
  uint64_t tokenizer;        // Tokenizer::fingerprint()
  uint64_t body_checksum;    // XXH3-64 of everything after the header
  uint64_t header_checksum;  // XXH3-64 of the 56 bytes before
};
static_assert(sizeof(ShardHeader) == 64);

// A shard mapped read-only. Immutable and thread-safe. Opening checks the header, the file's size and the document
// index; the tokens are checked by Verify, and their range whenever they are read.
class TokenShard {
 public:
  explicit TokenShard(const std::filesystem::path& path);

  const ShardHeader& header() const { return header_; }
  uint64_t token_count() const { return header_.token_count; }
  const std::string& name() const { return file_.name(); }
  // Index of each document's first token in this shard, ascending.
  const std::vector<uint64_t>& document_starts() const { return document_starts_; }

  // Tokens [begin, begin + ids.size()), which must exist.
  void Read(uint64_t begin, std::span<int32_t> ids) const;
  // Throws Error when the checksum or an id is wrong. Reads the whole file.
  void Verify() const;

 private:
  MappedFile file_;
  ShardHeader header_;
  std::vector<uint64_t> document_starts_;
  std::span<const std::byte> tokens_;
};

// What WriteTokenShard writes.
struct ShardContent {
  uint64_t vocab_size;
  uint64_t tokenizer;
  std::span<const int32_t> tokens;
  std::span<const uint64_t> document_starts;
};

// Two bytes a token when the vocabulary allows it, else four.
uint32_t BytesPerToken(uint64_t vocab_size);

// Atomic. Returns the header that was written.
ShardHeader WriteTokenShard(const std::filesystem::path& path, const ShardContent& content);

}  // namespace cairn
