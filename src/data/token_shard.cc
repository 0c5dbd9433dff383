#include "data/token_shard.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"

namespace cairn {

namespace {

constexpr char kMagic[] = "CAIRNTOK";
constexpr size_t kMagicSize = 8;
constexpr size_t kHeaderChecked = offsetof(ShardHeader, header_checksum);

template <typename Stored>
void Widen(const std::byte* from, std::span<int32_t> ids, uint32_t& largest) {
  for (int32_t& id : ids) {
    Stored stored;
    std::memcpy(&stored, from, sizeof(Stored));
    from += sizeof(Stored);
    largest = std::max<uint32_t>(largest, stored);
    id = static_cast<int32_t>(stored);
  }
}

}  // namespace

uint32_t BytesPerToken(uint64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

TokenShard::TokenShard(const std::filesystem::path& path) : file_(path) {
  static_assert(std::endian::native == std::endian::little);
  const auto bytes = file_.bytes();
  if (bytes.size() < sizeof(ShardHeader)) {
    Fail("'{}' has {} bytes, too few for a token shard; it is truncated or of another kind", name(), bytes.size());
  }
  std::memcpy(&header_, bytes.data(), sizeof(header_));
  if (std::memcmp(header_.magic, kMagic, kMagicSize) != 0) Fail("'{}' is not a token shard of Cairn", name());
  if (header_.version != kShardVersion) {
    Fail("'{}' is a token shard of version {}; this program reads version {}: prepare the data again", name(),
         header_.version, kShardVersion);
  }
  if (XXH3_64bits(bytes.data(), kHeaderChecked) != header_.header_checksum) {
    Fail("'{}': the header's checksum is wrong; the file is damaged: prepare the data again", name());
  }
  const auto index_size = CheckedMul(header_.document_count, 8);
  const auto tokens_size = CheckedMul(header_.token_count, header_.bytes_per_token);
  const auto body = index_size && tokens_size ? CheckedAdd(*index_size, *tokens_size) : std::nullopt;
  const size_t actual = bytes.size() - sizeof(ShardHeader);
  if (!body || *body != actual) {
    Fail(
        "'{}' holds {} bytes after its header, but {} tokens of {} bytes and {} documents are announced; it is "
        "truncated "
        "or damaged: prepare the data again",
        name(), actual, header_.token_count, header_.bytes_per_token, header_.document_count);
  }
  if (header_.bytes_per_token != BytesPerToken(header_.vocab_size) || header_.vocab_size == 0 ||
      header_.vocab_size > (uint64_t{1} << 31)) {
    Fail("'{}': {} bytes a token do not fit a vocabulary of {}; the file is damaged", name(), header_.bytes_per_token,
         header_.vocab_size);
  }
  document_starts_.resize(header_.document_count);
  if (*index_size != 0) std::memcpy(document_starts_.data(), bytes.data() + sizeof(ShardHeader), *index_size);
  for (size_t i = 0; i < document_starts_.size(); ++i) {
    if (document_starts_[i] >= header_.token_count || (i > 0 && document_starts_[i] <= document_starts_[i - 1])) {
      Fail("'{}': document {} starts at token {}, which is impossible; the file is damaged", name(), i,
           document_starts_[i]);
    }
  }
  tokens_ = bytes.subspan(sizeof(ShardHeader) + *index_size);
}

void TokenShard::Read(uint64_t begin, std::span<int32_t> ids) const {
  CAIRN_CHECK(begin <= token_count() && ids.size() <= token_count() - begin);
  uint32_t largest = 0;
  if (header_.bytes_per_token == 2) {
    Widen<uint16_t>(tokens_.data() + begin * 2, ids, largest);
  } else {
    Widen<uint32_t>(tokens_.data() + begin * 4, ids, largest);
  }
  if (largest >= header_.vocab_size) {
    Fail("'{}' has the token id {}, but its vocabulary has {}; the file is damaged: prepare the data again", name(),
         largest, header_.vocab_size);
  }
}

void TokenShard::Verify() const {
  const auto body = file_.bytes().subspan(sizeof(ShardHeader));
  if (XXH3_64bits(body.data(), body.size()) != header_.body_checksum) {
    Fail("'{}': the checksum is wrong; the file is damaged: prepare the data again", name());
  }
  std::vector<int32_t> ids(65536);
  for (uint64_t begin = 0; begin < token_count(); begin += ids.size()) {
    Read(begin, std::span(ids).first(std::min<uint64_t>(ids.size(), token_count() - begin)));
  }
}

ShardHeader WriteTokenShard(const std::filesystem::path& path, const ShardContent& content) {
  ShardHeader header{};
  std::memcpy(header.magic, kMagic, kMagicSize);
  header.version = kShardVersion;
  header.bytes_per_token = BytesPerToken(content.vocab_size);
  header.token_count = content.tokens.size();
  header.document_count = content.document_starts.size();
  header.vocab_size = content.vocab_size;
  header.tokenizer = content.tokenizer;
  std::vector<uint16_t> narrow;
  std::span<const std::byte> tokens = std::as_bytes(content.tokens);
  if (header.bytes_per_token == 2) {
    narrow.assign(content.tokens.begin(), content.tokens.end());
    tokens = std::as_bytes(std::span(narrow));
  }
  const auto index = std::as_bytes(content.document_starts);
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(state.get());
  XXH3_64bits_update(state.get(), index.data(), index.size());
  XXH3_64bits_update(state.get(), tokens.data(), tokens.size());
  header.body_checksum = XXH3_64bits_digest(state.get());
  header.header_checksum = XXH3_64bits(&header, kHeaderChecked);
  WriteFileAtomically(path, [&](const ByteSink& sink) {
    sink(std::as_bytes(std::span(&header, 1)));
    sink(index);
    sink(tokens);
  });
  return header;
}

}  // namespace cairn
