// Sessions with every index of landmarks: int8 reads what the exact scan reads, bit for bit, through forks, truncation
// and eviction; the audit counts what an index misses and changes nothing.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "infer/session.h"
#include "model_makers.h"

namespace cairn {
namespace {

// Weights that keep every number near 1.
std::shared_ptr<const InferenceModel> Model() {
  const ModelConfig config = TestConfig();
  auto tensors = RandomTensors(config, 3);
  for (auto& [name, tensor] : tensors) {
    const bool whole = tensor.shape().size() == 1 || name == "model.embed_tokens.weight";
    for (float& value : tensor.span()) value *= whole ? 1.0f : 1.5f / std::sqrt(static_cast<float>(tensor.shape()[1]));
  }
  return InferenceModel::Load(MakeModelSource(config, std::move(tensors)));
}

std::vector<int32_t> Text(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random.Below(31)));
  return ids;
}

// Everything that is seen of a session on its way.
std::vector<float> Story(const std::shared_ptr<const InferenceModel>& model, const SessionOptions& options) {
  std::vector<float> seen;
  const auto note = [&](const Session& session) {
    seen.insert(seen.end(), session.Logits().begin(), session.Logits().end());
    for (const ChunkReads& reads : session.LastChunkReads()) {
      seen.insert(seen.end(), reads.blocks.begin(), reads.blocks.end());
      seen.insert(seen.end(), reads.gates.begin(), reads.gates.end());
    }
  };
  Session session(model, options);
  session.Append(Text(500, 1));
  note(session);
  Session fork = session.Fork();
  for (const int32_t id : Text(40, 2)) {
    session.Append({&id, 1});
    note(session);
  }
  fork.Append(Text(100, 3));
  note(fork);
  session.Truncate(session.tokens().size() - 60);
  session.Append(Text(90, 4));
  note(session);
  return seen;
}

SessionOptions Options(IndexKind index) {
  SessionOptions options;
  options.block_length = 2;
  options.chunk_length = 10;
  options.record_reads = true;
  options.index = index;
  return options;
}

TEST(SessionIndex, Int8ReadsWhatTheExactScanReads) {
  const auto model = Model();
  for (const BlockFormat format : {BlockFormat::kF32, BlockFormat::kF16, BlockFormat::kInt8}) {
    for (const size_t kept : {0, 150}) {
      SessionOptions options = Options(IndexKind::kExact);
      options.block_format = format;
      options.memory_blocks = kept;
      const std::vector<float> exact = Story(model, options);
      options.index = IndexKind::kInt8;
      EXPECT_TRUE(Story(model, options) == exact) << NameOf(format) << " " << kept;
      options.index = IndexKind::kAuto;
      EXPECT_TRUE(Story(model, options) == exact) << NameOf(format) << " " << kept;
    }
  }
}

TEST(SessionIndex, EveryIndexServesASession) {
  const auto model = Model();
  for (const auto kind : {IndexKind::kHierarchical, IndexKind::kIvf}) {
    SessionOptions options = Options(kind);
    if (kind == IndexKind::kIvf && !HasIvf()) {
      EXPECT_THROW(Session(model, options), Error);
      continue;
    }
    Session session(model, options);
    session.Append(Text(500, 1));
    EXPECT_EQ(session.Landmarks(1, 1).kind(), kind);
    EXPECT_EQ(session.Landmarks(1, 1).size(), 250u);
    EXPECT_GT(session.counters().blocks_read, 0u);
  }
}

TEST(SessionIndex, AnAuditFindsNothingMissedByExactAndInt8) {
  const auto model = Model();
  for (const auto kind : {IndexKind::kExact, IndexKind::kInt8}) {
    SessionOptions options = Options(kind);
    const std::vector<float> without = Story(model, options);
    options.audit = true;
    EXPECT_TRUE(Story(model, options) == without);
    Session session(model, options);
    session.Append(Text(500, 1));
    const RetrievalAudit audit = session.counters().audit;
    // Chunks of 5 blocks and their landmarks; the first finds an empty memory.
    EXPECT_EQ(audit.queries, 49u * 15 * 4 * 2);
    EXPECT_EQ(audit.MeanRecall(), 1.0);
    EXPECT_GT(audit.MeanMass(), 0.0);
    EXPECT_LT(audit.MeanMass(), 1.0);
    session.Reset();
    EXPECT_EQ(session.counters().audit.queries, 0u);
  }
}

TEST(SessionIndex, ApproximateOnesMissLittle) {
  // Many blocks, of which the approximate kinds look at a part.
  const auto model = Model();
  for (const auto kind : {IndexKind::kHierarchical, IndexKind::kIvf}) {
    if (kind == IndexKind::kIvf && !HasIvf()) continue;
    SessionOptions options = Options(kind);
    options.audit = true;
    Session session(model, options);
    session.Append(Text(200, 1));
    session.FillMemory(6000);
    session.Append(Text(50, 2));
    const RetrievalAudit audit = session.counters().audit;
    EXPECT_GE(audit.MeanRecall(), 0.98) << NameOf(kind);
    EXPECT_LE(audit.MeanRecall(), 1.0) << NameOf(kind);
  }
}

TEST(SessionIndex, TooLowARecallIsAnError) {
  const RetrievalAudit audit{10, 9.5, 9.9};
  EXPECT_NO_THROW(CheckRecall(audit, 0.95, "ivf"));
  try {
    CheckRecall(audit, 0.96, "ivf");
    FAIL() << "a recall below the least is no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"ivf\" found 0.9500 of the best blocks"), std::string::npos)
        << error.what();
  }
  EXPECT_NO_THROW(CheckRecall({}, 1.0, "exact")) << "nothing was asked, so nothing was missed";
}

TEST(SessionIndex, QueriesThatChooseTogetherAreNotAudited) {
  SessionOptions options = Options(IndexKind::kInt8);
  options.granularity = Granularity::kHead;
  options.audit = true;
  Session session(Model(), options);
  session.Append(Text(100, 1));
  EXPECT_EQ(session.counters().audit.queries, 0u);
}

TEST(SessionIndex, QueriesAreRecordedAsTheySearch) {
  // Scored with the landmarks' keys, they lead to the blocks that were read.
  SessionOptions options = Options(IndexKind::kExact);
  options.record_queries = true;
  options.top_k = 1;
  Session session(Model(), options);
  session.Append(Text(400, 1));
  const std::vector<float>& queries = session.LastQueries()[1];
  const ChunkReads& reads = session.LastChunkReads()[1];
  const size_t heads = 4, dim = 16;
  const size_t old = 195 - 1;  // blocks before the last chunk, without the latest
  ASSERT_EQ(queries.size(), 15 * heads * dim);
  size_t agree = 0;
  for (size_t row = 0; row < 15; ++row) {
    for (size_t h = 0; h < heads; ++h) {
      float score = 0;
      int32_t block = -1;
      BestBlocks best;
      best.Reset(1, &score, &block);
      session.Landmarks(1, h / 2).Search(0, old, 1, &queries[(row * heads + h) * dim], &best);
      const int32_t read = reads.blocks[row * heads + h];
      EXPECT_TRUE(read == block || read == static_cast<int32_t>(old));
      agree += read == block;
    }
  }
  EXPECT_GT(agree, 0u);
}

}  // namespace
}  // namespace cairn
