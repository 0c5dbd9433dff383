// Sessions on memory files: the same answers as with everything in RAM, whatever the cache holds; ingestion that is
// stopped and goes on; forgetting; other models; damaged records.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <numeric>

#include "api_models.h"
#include "infer/generate.h"
#include "infer/ingest.h"
#include "io/file.h"
#include "memory/memory_check.h"
#include "memory/memory_layout.h"
#include "tests/test_files.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

class MemorySession : public testing::Test {
 protected:
  MemorySession() {
    options_.top_k = 3;
    options_.chunk_length = 14;
    LoadModel(false);
  }

  // With a first layer that reads the two blocks before its chunk, or one that chooses like all.
  void LoadModel(bool local) {
    ModelConfig config = ApiConfig();
    if (local) {
      config.landmark.local_layers = 1;
      config.landmark.local_blocks = 2;
    }
    auto tensors = RandomTensors(config, 3);
    for (auto& [name, tensor] : tensors) {
      if (tensor.shape().size() == 1 || name == "model.embed_tokens.weight") continue;
      for (float& value : tensor.span()) value *= 1.5f / std::sqrt(static_cast<float>(tensor.shape()[1]));
    }
    model_ = InferenceModel::Load(MakeModelSource(config, std::move(tensors)));
  }

  std::string Text(size_t lines, int first = 0) const {
    std::string text;
    for (size_t i = 0; i < lines; ++i) text += fmt::format("the {} bath, a tea at the {} heath. ", first + 7 * i, i);
    return text;
  }

  IngestResult Add(const fs::path& path, const std::string& name, const std::string& text, size_t stop_after = 0) {
    Ingest ingest(path, model_, tokenizer_, options_, ram_);
    size_t calls = 0;
    return ingest.Add(name, LongText::OfBytes(text),
                      [&](const IngestProgress&) { return stop_after == 0 || ++calls < stop_after; });
  }

  Session Open(const fs::path& path, size_t budget) {
    const auto file = std::make_shared<const MemoryFile>(path);
    Session session(model_, OptionsFor(*file, options_));
    session.AttachMemory(std::make_shared<BlockCache>(file, budget));
    return session;
  }

  // The same blocks without a file: sources one after the other, each filled up to a block.
  Session InRam(const std::vector<std::string>& texts) {
    Session session(model_, options_);
    for (const std::string& text : texts) {
      std::vector<int32_t> ids = EncodePrompt(model_->source(), *tokenizer_, text);
      ids.resize((ids.size() + 6) / 7 * 7, 2);
      session.Append(ids);
    }
    return session;
  }

  static std::vector<float> Answer(Session& session, size_t tokens = 20) {
    std::vector<float> all;
    std::vector<int32_t> ids{260, 262, 265};
    session.Append(ids);
    for (size_t i = 0; i < tokens; ++i) {
      const auto logits = session.Logits();
      all.insert(all.end(), logits.begin(), logits.end());
      const auto best = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      session.Append({&best, 1});
    }
    return all;
  }

  std::shared_ptr<const InferenceModel> model_;
  std::shared_ptr<const Tokenizer> tokenizer_ = ApiTokenizer();
  SessionOptions options_;
  size_t ram_ = 1 << 20;
  ScratchDirectory scratch_{SmallFilesDirectory()};
};

TEST_F(MemorySession, AnswersAreThoseOfASessionInRam) {
  for (const bool local : {false, true}) {
    LoadModel(local);
    for (const BlockFormat format : {BlockFormat::kF32, BlockFormat::kF16, BlockFormat::kInt8}) {
      options_.block_format = format;
      const fs::path path = scratch_ / fmt::format("{}-{}.cairn", NameOf(format), local);
      Add(path, "a", Text(30));
      Add(path, "b", Text(17, 1000));
      Session ram = InRam({Text(30), Text(17, 1000)});
      const size_t before = ram.tokens().size();
      const std::vector<float> expected = Answer(ram);
      // From nothing but the blocks in use to everything.
      for (const size_t budget : {size_t{0}, size_t{20000}, size_t{1} << 30}) {
        Session session = Open(path, budget);
        EXPECT_EQ(session.tokens().size(), before);
        EXPECT_EQ(Answer(session), expected) << NameOf(format) << " " << budget;
        const BlockCache::Counters counters = session.cache()->counters();
        EXPECT_GT(counters.misses + counters.prefetched, 0u);
        if (budget == 20000) {
          EXPECT_LE(counters.bytes_held, 40000u);
        }
      }
    }
  }
}

TEST_F(MemorySession, StoppedIngestionGoesOnToTheSameBytes) {
  const std::string text = Text(120);
  for (const bool local : {false, true}) {
    LoadModel(local);
    const ScratchDirectory scratch{SmallFilesDirectory()};
    Add(scratch / "whole.cairn", "a", text);
    const MemoryFile whole(scratch / "whole.cairn");
    std::vector<std::byte> one(whole.identity().record_bytes()), other(one.size());
    for (const size_t stop : {1, 2, 5}) {
      const fs::path path = scratch / fmt::format("{}.cairn", stop);
      // Whole chunks of two blocks; how many are read at a time depends on the budget.
      const size_t blocks = Add(path, "a", text, stop).blocks;
      EXPECT_GE(blocks, 2 * stop);
      EXPECT_EQ(blocks % 2, 0u);
      EXPECT_FALSE(MemoryFile(path).sources()[0].complete);
      ram_ = 1 << 18;
      EXPECT_EQ(Add(path, "a", text, 3).state, IngestResult::State::kResumed);
      ram_ = 1 << 20;
      EXPECT_EQ(Add(path, "a", text).state, IngestResult::State::kResumed);
      EXPECT_EQ(Add(path, "a", text).state, IngestResult::State::kAlreadyThere);
      const MemoryFile file(path);
      ASSERT_EQ(file.blocks(), whole.blocks());
      EXPECT_TRUE(file.sources()[0].complete);
      for (size_t b = 0; b < file.blocks(); ++b) {
        EXPECT_EQ(file.ReadTokens(b), whole.ReadTokens(b));
        EXPECT_EQ(file.spans()[b].first_byte, whole.spans()[b].first_byte);
        for (size_t r = 0; r < whole.identity().records(); ++r) {
          // Commits end at other places, and where they do those of local layers are kept.
          EXPECT_TRUE(file.HasRecord(b, r) || (local && b + 2 < file.blocks())) << b;
          if (!whole.HasRecord(b, r) || !file.HasRecord(b, r)) continue;
          whole.ReadRecord(b, r, one.data());
          file.ReadRecord(b, r, other.data());
          ASSERT_EQ(one, other) << "block " << b << " record " << r;
        }
      }
    }
  }
}

TEST_F(MemorySession, LocalLayersAreKeptWhereSomethingMayFollow) {
  LoadModel(true);
  const fs::path path = scratch_ / "a.cairn";
  Add(path, "a", Text(30));
  Add(path, "b", Text(17, 1000));
  Add(path, "c", Text(3, 50));
  size_t few = 0;
  {
    const MemoryFile file(path);
    for (size_t b = 0; b < file.blocks(); ++b) {
      // The last two of each text at least.
      if (b + 2 >= file.blocks() || file.spans()[b + 2].source != file.spans()[b].source) {
        EXPECT_TRUE(file.HasRecord(b, 0)) << b;
      }
      few += file.HasRecord(b, 0) ? 0 : 1;
      EXPECT_TRUE(file.HasRecord(b, file.identity().local_records()));
    }
    EXPECT_GT(2 * few, file.blocks());
    EXPECT_TRUE(MemoryCheck::Run(path).damages.empty());
  }
  // What goes on after a source that was forgotten sees the end of the one before.
  ForgetSource(path, "c");
  Session ram = InRam({Text(30), Text(17, 1000)});
  Session file = Open(path, 0);
  const size_t texts = file.tokens().size();
  EXPECT_EQ(Answer(file), Answer(ram));
  // Back to where the texts end, and on: the same again. Back into them nothing would be there to go on from.
  file.Truncate(texts);
  ram.Truncate(texts);
  EXPECT_EQ(Answer(file), Answer(ram));
  EXPECT_ERROR(file.Truncate(texts / 2), "keeps of the local layers only the ends");
  EXPECT_ERROR(file.Truncate(texts / 14 * 7), "keeps of the local layers only the ends");
  EXPECT_EQ(file.tokens().size(), texts + 23);

  // Where all layers choose any place will do.
  LoadModel(false);
  const fs::path other = scratch_ / "b.cairn";
  Add(other, "a", Text(30));
  Session whole = InRam({Text(30)});
  Session back = Open(other, 0);
  whole.Truncate(100);
  back.Truncate(100);
  EXPECT_EQ(Answer(back), Answer(whole));
}

TEST_F(MemorySession, SpansAreThePlacesOfTheText) {
  const std::string text = Text(9);
  Add(scratch_ / "a.cairn", "a", text);
  const MemoryFile file(scratch_ / "a.cairn");
  uint64_t at = 0;
  for (size_t b = 0; b < file.blocks(); ++b) {
    const BlockSpan& span = file.spans()[b];
    EXPECT_EQ(span.first_byte, at);
    at = span.last_byte;
    std::vector<int32_t> ids = file.ReadTokens(b);
    ids.resize(ids.size() - span.padding);
    const std::string expected = text.substr(span.first_byte, span.last_byte - span.first_byte);
    EXPECT_EQ(b == 0 ? tokenizer_->Decode(ids) : tokenizer_->DecodeMiddle(ids), expected);
  }
  EXPECT_EQ(at, text.size());
}

TEST_F(MemorySession, AForgottenSourceIsNotRead) {
  const fs::path path = scratch_ / "a.cairn";
  Add(path, "a", Text(20));
  Add(path, "b", Text(10, 500));
  EXPECT_ERROR(ForgetSource(path, "c"), "it has: a, b");
  EXPECT_GT(ForgetSource(path, "b"), 5u);
  EXPECT_ERROR(ForgetSource(path, "b"), "no source 'b'");
  const fs::path alone = scratch_ / "alone.cairn";
  Add(alone, "a", Text(20));
  Session forgot = Open(path, 1 << 20);
  Session never = Open(alone, 1 << 20);
  EXPECT_EQ(Answer(forgot), Answer(never));
  // It can come back.
  EXPECT_EQ(Add(path, "b", Text(10, 500)).state, IngestResult::State::kAdded);
}

TEST_F(MemorySession, RefusesWhatDoesNotBelongTogether) {
  const fs::path path = scratch_ / "a.cairn";
  Add(path, "a", Text(20));
  EXPECT_ERROR(Add(path, "a", Text(21)), "another content");
  const auto other = RandomModel(ApiConfig(), 99);
  EXPECT_ERROR(CheckSameModel(MemoryFile(path), *other), "another model");
  EXPECT_EQ(FingerprintOf(*other), FingerprintOf(*RandomModel(ApiConfig(), 99)));
  EXPECT_ERROR(Ingest(path, InferenceModel::Load(other), tokenizer_, options_, 1 << 20), "another model");
  options_.block_format = BlockFormat::kInt8;
  EXPECT_ERROR(Add(path, "b", Text(3)), "f16 blocks");
  Session session(model_, options_);
  EXPECT_ERROR(session.AttachMemory(std::make_shared<BlockCache>(std::make_shared<const MemoryFile>(path), 0)),
               "other settings");
}

TEST_F(MemorySession, ADamagedRecordIsAnErrorNotAnAnswer) {
  const fs::path path = scratch_ / "a.cairn";
  Add(path, "a", Text(20));
  std::string bytes = ReadTextFile(path);
  // All records of the first segment.
  memory_layout::SegmentHeader header;
  std::memcpy(&header, bytes.data() + memory_layout::kFirstSegment, sizeof header);
  const memory_layout::Places places(MemoryFile(path).identity(), header);
  for (uint64_t at = header.offset + places.records; at < header.offset + places.footer; at += 64) {
    bytes[at] = static_cast<char>(~bytes[at]);
  }
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Session session = Open(path, 1 << 20);
  EXPECT_ERROR(Answer(session, 200), "damaged");
  EXPECT_FALSE(MemoryCheck::Run(path).damages.empty());
}

TEST_F(MemorySession, RankingPrefersThePassageItself) {
  const fs::path path = scratch_ / "a.cairn";
  Add(path, "a", Text(40));
  Session session = Open(path, 1 << 20);
  const size_t before = session.tokens().size();
  const std::vector<double> ranking = session.RankBlocks(std::vector<int32_t>{260, 262, 265});
  EXPECT_EQ(ranking.size(), MemoryFile(path).blocks());
  EXPECT_EQ(session.tokens().size(), before);
  // Of one token the shares sum to 1 in each of the four heads of the one layer whose landmarks differ; of three tokens
  // the largest count, one by one.
  const auto sum = [](const std::vector<double>& shares) { return std::accumulate(shares.begin(), shares.end(), 0.0); };
  for (const int32_t token : {260, 262, 265}) {
    EXPECT_NEAR(sum(session.RankBlocks(std::vector<int32_t>{token})), 4, 1e-3);
  }
  EXPECT_GT(sum(ranking), 4);
  EXPECT_LT(sum(ranking), 3 * 4);
}

}  // namespace
}  // namespace cairn
