#include "data/token_dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/checked.h"
#include "base/error.h"
#include "base/threads.h"

namespace cairn {

namespace {

using Json = nlohmann::json;

Json ReadManifest(const std::filesystem::path& directory) {
  const auto path = directory / kManifestName;
  if (!std::filesystem::exists(path)) {
    Fail("'{}' has no {}; make it with 'cairn data prepare'", directory.string(), kManifestName);
  }
  Json manifest;
  try {
    manifest = Json::parse(ReadTextFile(path));
  } catch (const Json::exception& error) {
    Fail("'{}' is not valid JSON: {}", path.string(), error.what());
  }
  if (!manifest.is_object() || manifest.value("format", Json()) != "cairn-tokens") {
    Fail("'{}' is not a manifest of prepared tokens", path.string());
  }
  if (manifest.value("version", Json()) != kShardVersion) {
    Fail("'{}' is not of version {}; prepare the data again", path.string(), kShardVersion);
  }
  return manifest;
}

// Members that must be there and of the right type.
class Member {
 public:
  Member(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}
  const Json& At(const char* key, Json::value_t type) const {
    const auto found = json_.is_object() ? json_.find(key) : json_.end();
    if (!json_.is_object() || found == json_.end() || found->type() != type) {
      Fail("'{}': the manifest lacks a sound \"{}\"; prepare the data again", where_, key);
    }
    return *found;
  }
  uint64_t Count(const char* key) const { return At(key, Json::value_t::number_unsigned).get<uint64_t>(); }
  std::string Text(const char* key) const { return At(key, Json::value_t::string).get<std::string>(); }

 private:
  const Json& json_;
  std::string where_;
};

}  // namespace

std::vector<std::string> TokenDataset::Splits(const std::filesystem::path& directory) {
  const Json manifest = ReadManifest(directory);
  std::vector<std::string> names;
  const Json& splits = Member(manifest, directory.string()).At("splits", Json::value_t::object);
  for (const auto& [name, split] : splits.items()) names.push_back(name);
  return names;
}

std::shared_ptr<const TokenDataset> TokenDataset::Open(const std::filesystem::path& directory,
                                                       const std::string& split_name) {
  const Json manifest = ReadManifest(directory);
  const std::string where = directory.string();
  const Member top(manifest, where);
  const Json& splits = top.At("splits", Json::value_t::object);
  if (!splits.contains(split_name)) {
    Fail("'{}' has no split '{}'; prepare it with --validation or --validation-files", where, split_name);
  }
  const std::shared_ptr<TokenDataset> result(new TokenDataset);
  result->name_ = (directory / split_name).string();
  const Member tokenizer(top.At("tokenizer", Json::value_t::object), where);
  result->fingerprint_ = tokenizer.Text("fingerprint");
  result->tokenizer_kind_ = tokenizer.Text("kind");
  result->vocab_size_ = tokenizer.Count("vocab_size");

  const Member split(splits[split_name], where);
  for (const Json& entry : split.At("shards", Json::value_t::array)) {
    const Member shard(entry, where);
    const std::string file = shard.Text("file");
    if (file.empty() || std::filesystem::path(file).filename() != file || file == "." || file == "..") {
      Fail("'{}': the manifest names '{}', which is not a file of this directory", where, file);
    }
    const TokenShard& opened = result->shards_.emplace_back(directory / file);
    const ShardHeader& header = opened.header();
    if (header.token_count != shard.Count("tokens") || header.document_count != shard.Count("documents") ||
        header.vocab_size != result->vocab_size_ || fmt::format("{:016x}", header.tokenizer) != result->fingerprint_ ||
        fmt::format("{:016x}", header.body_checksum) != shard.Text("checksum")) {
      Fail(
          "'{}' is not the shard that the manifest describes; the directory mixes two preparations: prepare the data "
          "again",
          opened.name());
    }
    result->shard_begins_.push_back(result->token_count_);
    for (const uint64_t start : opened.document_starts())
      result->document_starts_.push_back(result->token_count_ + start);
    const auto sum = CheckedAdd(result->token_count_, header.token_count);
    if (!sum) Fail("'{}': the number of tokens is impossible", where);
    result->token_count_ = *sum;
  }
  if (result->token_count_ != split.Count("tokens") || result->document_starts_.size() != split.Count("documents")) {
    Fail("'{}': the shards of split '{}' have {} tokens in {} documents, the manifest says otherwise", where,
         split_name, result->token_count_, result->document_starts_.size());
  }
  if (!result->document_starts_.empty() && result->document_starts_[0] != 0) {
    Fail("'{}': split '{}' does not begin with a document; it is damaged", where, split_name);
  }
  for (const Json& entry : split.At("sources", Json::value_t::array)) {
    const Member source(entry, where);
    result->sources_.push_back({source.Text("file"), source.Count("begin"), source.Count("end")});
    const TokenSource& last = result->sources_.back();
    if (last.begin > last.end || last.end > result->token_count_) {
      Fail("'{}': the manifest places '{}' at tokens {} to {} of {}", where, last.file, last.begin, last.end,
           result->token_count_);
    }
  }
  return result;
}

std::string TokenDataset::Checksum() const {
  std::vector<uint64_t> sums;
  for (const TokenShard& shard : shards_) {
    sums.insert(sums.end(), {shard.token_count(), shard.header().body_checksum});
  }
  return fmt::format("{:016x}", XXH3_64bits(sums.data(), sums.size() * sizeof(uint64_t)));
}

void TokenDataset::Read(uint64_t begin, std::span<int32_t> ids) const {
  if (begin > token_count_ || ids.size() > token_count_ - begin) {
    Fail("'{}' has {} tokens; tokens {} to {} were asked for", name_, token_count_, begin, begin + ids.size());
  }
  while (!ids.empty()) {
    const auto after = std::upper_bound(shard_begins_.begin(), shard_begins_.end(), begin);
    const auto i = static_cast<size_t>(after - shard_begins_.begin()) - 1;
    const uint64_t offset = begin - shard_begins_[i];
    const uint64_t count = std::min<uint64_t>(ids.size(), shards_[i].token_count() - offset);
    shards_[i].Read(offset, ids.first(count));
    ids = ids.subspan(count);
    begin += count;
  }
}

void TokenDataset::Verify(const std::function<void(uint64_t)>& progress) const {
  ParallelFor(shards_.size(), [&](size_t i, int) {
    shards_[i].Verify();
    if (progress) progress(shards_[i].token_count());
  });
}

void TokenDataset::CheckTokenizer(const Tokenizer& tokenizer) const {
  if (tokenizer.fingerprint() != fingerprint_) {
    Fail(
        "'{}' was prepared with another tokenizer (fingerprint {}, vocabulary {}) than '{}' ({}, {}); prepare it again",
        name_, fingerprint_, vocab_size_, tokenizer.spec().origin, tokenizer.fingerprint(), tokenizer.vocab_size());
  }
}

}  // namespace cairn
