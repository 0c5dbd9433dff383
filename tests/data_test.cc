// Prepared data: the same tokens whatever the threads and shards, and an Error for every kind of damage.
#include <gtest/gtest.h>
#include <xxhash.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/random.h"
#include "base/threads.h"
#include "data/prepare.h"
#include "data/text_files.h"
#include "data/token_dataset.h"
#include "data/token_shard.h"
#include "io/file.h"
#include "test_files.h"

namespace cairn {
namespace {

void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Bytes, a space, some letters and a few words; `words` makes different vocabularies.
std::shared_ptr<const Tokenizer> SmallTokenizer(const std::vector<std::string>& words = {"st", "on", "ston", "stone"},
                                                size_t padding = 0) {
  VocabularySpec spec;
  spec.pieces = {"<unk>", "<s>", "</s>"};
  spec.types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl};
  for (int byte = 0; byte < 256; ++byte) spec.pieces.push_back(fmt::format("<0x{:02X}>", byte));
  spec.types.resize(spec.pieces.size(), TokenType::kByte);
  for (const char* piece : {"\xe2\x96\x81", "s", "t", "o", "n", "e"}) spec.pieces.emplace_back(piece);
  spec.pieces.insert(spec.pieces.end(), words.begin(), words.end());
  spec.types.resize(spec.pieces.size(), TokenType::kNormal);
  for (size_t i = 0; i < padding; ++i) spec.pieces.push_back(fmt::format("<unused{}>", i));
  spec.types.resize(spec.pieces.size(), TokenType::kUnused);
  for (size_t i = 0; i < spec.pieces.size(); ++i) spec.scores.push_back(-static_cast<float>(i));
  spec.unknown = 0, spec.bos = 1, spec.eos = 2;
  return MakeTokenizer(spec);
}

std::string SomeText(uint64_t seed, size_t lines) {
  Random random(seed);
  std::string text;
  const char* words[] = {"stone", "path", "one", "note", "caf\xc3\xa9", "<landmark>", " ", "\xff"};
  for (size_t i = 0; i < lines; ++i) {
    for (uint64_t n = random.Below(12); n > 0; --n) text += std::string(words[random.Below(std::size(words))]) + " ";
    text += "\n";
  }
  return text;
}

std::vector<int32_t> ReadAll(const TokenDataset& data) {
  std::vector<int32_t> ids(data.token_count());
  data.Read(0, ids);
  return ids;
}

struct Prepared {
  ScratchDirectory scratch;
  PrepareOptions options;
  Prepared() {
    WriteFile(scratch / "text/b.txt", SomeText(1, 40));
    WriteFile(scratch / "text/a.txt", SomeText(2, 30000));  // more than one part
    WriteFile(scratch / "text/sub/c.md", SomeText(3, 5));
    WriteFile(scratch / "text/.hidden/d.txt", "never read");
    WriteFile(scratch / "text/empty.txt", "");
    WriteFile(scratch / "text/z.gz", std::string("\x1f\x8b\x08\x00\x00\x00", 6));
    options.inputs = {scratch / "text"};
    options.tokenizer = SmallTokenizer();
    options.output = scratch / "data";
  }
};

TEST(TextFiles, FindsTextAndSkipsBinaries) {
  const Prepared p;
  const TextFiles found = FindTextFiles({p.scratch / "text"});
  std::vector<std::string> names;
  for (const auto& file : found.files) names.push_back(file.filename().string());
  EXPECT_EQ(names, (std::vector<std::string>{"a.txt", "b.txt", "empty.txt", "c.md"}));
  ASSERT_EQ(found.skipped.size(), 1u);
  EXPECT_EQ(found.skipped[0].filename(), "z.gz");
  EXPECT_THROW(FindTextFiles({p.scratch / "nowhere"}), Error);
  EXPECT_THROW(FindTextFiles({p.scratch / "text/z.gz"}), Error);
}

TEST(Prepare, TokensAreThoseOfTheWholeFiles) {
  Prepared p;
  const PrepareSummary summary = PrepareData(p.options);
  const auto data = TokenDataset::Open(p.options.output);
  std::vector<int32_t> expected;
  std::vector<uint64_t> starts;
  for (const char* name : {"text/a.txt", "text/b.txt", "text/sub/c.md"}) {
    starts.push_back(expected.size());
    expected.push_back(1);
    const auto ids = p.options.tokenizer->Encode(ReadTextFile(p.scratch / name));
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  EXPECT_EQ(ReadAll(*data), expected);
  ASSERT_EQ(data->document_count(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(data->document_begin(i), starts[i]);
  EXPECT_EQ(data->document_end(0), starts[1]);
  EXPECT_EQ(data->document_end(2), expected.size());
  EXPECT_EQ(summary.train.tokens, expected.size());
  EXPECT_EQ(summary.train.documents, 3u);
  EXPECT_EQ(summary.skipped_files, 1u);
  ASSERT_EQ(data->sources().size(), 4u);
  EXPECT_EQ(data->sources()[1].begin, starts[1]);
  EXPECT_EQ(data->sources()[1].end, starts[2]);
  EXPECT_EQ(data->bytes_per_token(), 2u);
  data->Verify();
  data->CheckTokenizer(*p.options.tokenizer);
  data->CheckTokenizer(*WithLandmark(p.options.tokenizer));
  EXPECT_THROW(data->CheckTokenizer(*SmallTokenizer({"st", "no"})), Error);
  EXPECT_THROW(TokenDataset::Open(p.options.output, "validation"), Error);
  std::vector<int32_t> too_many(expected.size() + 1);
  EXPECT_THROW(data->Read(0, too_many), Error);
  EXPECT_THROW(data->Read(~uint64_t{0}, std::span(too_many).first(2)), Error);
}

TEST(Prepare, SameResultForAnyThreadsAndShards) {
  Prepared p;
  SetThreadCount(1);
  PrepareData(p.options);
  const std::string manifest = ReadTextFile(p.options.output / kManifestName);
  const std::string shard = ReadTextFile(p.options.output / "train-00000.tokens");
  const auto ids = ReadAll(*TokenDataset::Open(p.options.output));
  EXPECT_THROW(PrepareData(p.options), Error);  // there already
  p.options.force = true;
  SetThreadCount(3);
  PrepareData(p.options);
  EXPECT_EQ(ReadTextFile(p.options.output / kManifestName), manifest);
  EXPECT_EQ(ReadTextFile(p.options.output / "train-00000.tokens"), shard);
  SetThreadCount(0);
  p.options.shard_tokens = ids.size() / 7 + 1;
  const PrepareSummary summary = PrepareData(p.options);
  EXPECT_EQ(summary.train.shards, 7u);
  const auto rolled = TokenDataset::Open(p.options.output);
  EXPECT_EQ(ReadAll(*rolled), ids);
  EXPECT_EQ(rolled->document_count(), 3u);
  rolled->Verify();
  std::vector<int32_t> across(50);  // over a shard's border
  rolled->Read(p.options.shard_tokens - 20, across);
  EXPECT_TRUE(
      std::equal(across.begin(), across.end(), ids.begin() + static_cast<std::ptrdiff_t>(p.options.shard_tokens) - 20));
}

TEST(Prepare, WideVocabularyTakesFourBytes) {
  Prepared p;
  PrepareData(p.options);
  const auto ids = ReadAll(*TokenDataset::Open(p.options.output));
  p.options.tokenizer = SmallTokenizer({"st", "on", "ston", "stone"}, 70000);
  p.options.force = true;
  PrepareData(p.options);
  const auto wide = TokenDataset::Open(p.options.output);
  EXPECT_EQ(wide->bytes_per_token(), 4u);
  EXPECT_EQ(ReadAll(*wide), ids);
}

TEST(Prepare, ValidationByFractionAndByFiles) {
  Prepared p;
  p.options.validation_fraction = 0.1;
  PrepareData(p.options);
  const auto train = TokenDataset::Open(p.options.output),
             validation = TokenDataset::Open(p.options.output, "validation");
  const double share = static_cast<double>(validation->token_count()) /
                       static_cast<double>(validation->token_count() + train->token_count());
  EXPECT_NEAR(share, 0.1, 0.01);
  // Each document's parts, put together, are the document.
  std::vector<int32_t> head(train->document_end(0)), tail(validation->document_end(0));
  train->Read(0, head);
  validation->Read(0, tail);
  EXPECT_EQ(p.options.tokenizer->Decode(head) + p.options.tokenizer->Decode(tail),
            ReadTextFile(p.scratch / "text/a.txt"));

  p.options.validation_fraction = 0;
  p.options.validation_files = {p.scratch / "text/sub"};
  p.options.force = true;
  PrepareData(p.options);
  const auto held = TokenDataset::Open(p.options.output, "validation");
  EXPECT_EQ(p.options.tokenizer->Decode(ReadAll(*held)), ReadTextFile(p.scratch / "text/sub/c.md"));
  EXPECT_EQ(TokenDataset::Open(p.options.output)->document_count(), 2u);  // though its directory was named as input too
  EXPECT_EQ(TokenDataset::Splits(p.options.output), (std::vector<std::string>{"train", "validation"}));
  p.options.validation_fraction = 0.5;
  EXPECT_THROW(PrepareData(p.options), Error);
}

TEST(Prepare, SeparatorAndNoBos) {
  Prepared p;
  WriteFile(p.scratch / "stories.txt", "one<|end|>two\n<|end|><|end|>three");
  p.options.inputs = {p.scratch / "stories.txt"};
  p.options.separator = "<|end|>";
  p.options.add_bos = false;
  PrepareData(p.options);
  const auto data = TokenDataset::Open(p.options.output);
  ASSERT_EQ(data->document_count(), 3u);
  std::vector<int32_t> second(data->document_end(1) - data->document_begin(1));
  data->Read(data->document_begin(1), second);
  EXPECT_EQ(p.options.tokenizer->Decode(second), "two\n");
  EXPECT_NE(second[0], 1);
}

TEST(Shard, EveryKindOfDamageIsAnError) {
  const ScratchDirectory scratch;
  const std::vector<int32_t> tokens = {5, 6, 7, 8, 9, 10, 11};
  const std::vector<uint64_t> starts = {0, 3};
  const auto path = scratch / "s.tokens";
  WriteTokenShard(path, {300, 42, tokens, starts});
  const std::string good = ReadTextFile(path);
  ASSERT_EQ(good.size(), 64u + 16 + 14);
  std::vector<int32_t> read(7);
  TokenShard(path).Read(0, read);
  EXPECT_EQ(read, tokens);
  TokenShard(path).Verify();

  for (size_t cut = 0; cut < good.size(); ++cut) {
    WriteFile(path, good.substr(0, cut));
    EXPECT_THROW(TokenShard{path}, Error) << cut;
  }
  WriteFile(path, good + "x");
  EXPECT_THROW(TokenShard{path}, Error);
  // Any flipped bit is found: in the header at once, elsewhere by Verify.
  for (size_t i = 0; i < good.size() * 8; ++i) {
    std::string bad = good;
    bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << (i % 8)));
    WriteFile(path, bad);
    if (i / 8 < 64) {
      EXPECT_THROW(TokenShard{path}, Error) << i;
    } else {
      EXPECT_THROW(TokenShard{path}.Verify(), Error) << i;
    }
  }
  // Lies with a right header checksum.
  const auto lie = [&](const std::function<void(ShardHeader&)>& change) {
    ShardHeader header;
    std::memcpy(&header, good.data(), sizeof(header));
    change(header);
    header.header_checksum = XXH3_64bits(&header, offsetof(ShardHeader, header_checksum));
    std::string bad = good;
    std::memcpy(bad.data(), &header, sizeof(header));
    WriteFile(path, bad);
    EXPECT_THROW(TokenShard{path}, Error);
  };
  lie([](ShardHeader& h) { h.version = 2; });
  lie([](ShardHeader& h) { h.token_count = uint64_t{1} << 63; });
  lie([](ShardHeader& h) { h.document_count = uint64_t{1} << 61; });
  lie([](ShardHeader& h) { h.document_count = 0, h.bytes_per_token = 1, h.token_count = 30; });
  lie([](ShardHeader& h) { h.document_count = 0, h.bytes_per_token = 3, h.token_count = 10; });
  lie([](ShardHeader& h) { h.bytes_per_token = 0, h.token_count = ~uint64_t{0}; });
  lie([](ShardHeader& h) { h.vocab_size = 0; });
  lie([](ShardHeader& h) { h.vocab_size = 100000; });
  lie([](ShardHeader& h) { h.document_count = 3, h.token_count = 3; });  // tokens read as a document's start
  // An id outside the vocabulary.
  WriteTokenShard(path, {10, 42, tokens, starts});
  EXPECT_THROW(TokenShard(path).Read(0, read), Error);
  EXPECT_THROW(TokenShard(path).Verify(), Error);
}

TEST(Dataset, DamagedDirectoriesAreErrors) {
  Prepared p;
  PrepareData(p.options);
  const auto manifest_path = p.options.output / kManifestName;
  const auto good = nlohmann::json::parse(ReadTextFile(manifest_path));
  const auto bad = [&](const char* what, const std::function<void(nlohmann::json&)>& change) {
    auto manifest = good;
    change(manifest);
    WriteFile(manifest_path, manifest.dump());
    EXPECT_THROW(TokenDataset::Open(p.options.output), Error) << what;
  };
  using Json = nlohmann::json;
  bad("other format", [](Json& m) { m["format"] = "x"; });
  bad("other version", [](Json& m) { m["version"] = 9; });
  bad("version as text", [](Json& m) { m["version"] = "1"; });
  bad("no splits", [](Json& m) { m.erase("splits"); });
  bad("splits as list", [](Json& m) { m["splits"] = Json::array(); });
  bad("split as number", [](Json& m) { m["splits"]["train"] = 3; });
  bad("tokens", [](Json& m) { m["splits"]["train"]["tokens"] = 3; });
  bad("negative tokens", [](Json& m) { m["splits"]["train"]["tokens"] = -3; });
  bad("documents", [](Json& m) { m["splits"]["train"]["documents"] = 0; });
  bad("shard missing", [](Json& m) { m["splits"]["train"]["shards"][0]["file"] = "none.tokens"; });
  bad("shard elsewhere", [](Json& m) { m["splits"]["train"]["shards"][0]["file"] = "../data/train-00000.tokens"; });
  bad("shard tokens", [](Json& m) { m["splits"]["train"]["shards"][0]["tokens"] = 1; });
  bad("shard checksum", [](Json& m) { m["splits"]["train"]["shards"][0]["checksum"] = "00"; });
  bad("shard twice", [](Json& m) { m["splits"]["train"]["shards"].push_back(m["splits"]["train"]["shards"][0]); });
  bad("fingerprint", [](Json& m) { m["tokenizer"]["fingerprint"] = "0000000000000000"; });
  bad("vocabulary", [](Json& m) { m["tokenizer"]["vocab_size"] = 7; });
  bad("source outside", [](Json& m) { m["splits"]["train"]["sources"][0]["end"] = ~uint64_t{0}; });
  WriteFile(manifest_path, "{\"format\":");
  EXPECT_THROW(TokenDataset::Open(p.options.output), Error);
  std::filesystem::remove(manifest_path);
  EXPECT_THROW(TokenDataset::Open(p.options.output), Error);
  EXPECT_THROW(TokenDataset::Open(p.scratch / "nowhere"), Error);
}

}  // namespace
}  // namespace cairn
