// Sessions one promise at a time: they equal the training pass, chunks and tokens may be split anywhere, forks and
// truncation, eviction, what was read, threads, kinds of weights, and errors. Their random test is
// session_random_test.cc.
#include "infer/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "model_makers.h"
#include "train/engine.h"
#include "train/model_growth.h"

namespace cairn {
namespace {

using Rows = std::vector<std::vector<float>>;

ModelConfig WithMiss(ModelConfig config) {
  config.landmark.context_miss.enabled = true;
  config.landmark.context_miss.token_id = 31;
  return config;
}

// Weights that keep every number near 1.
std::shared_ptr<const ModelSource> MildModel(const ModelConfig& config, uint64_t seed = 1) {
  auto tensors = RandomTensors(config, seed);
  for (auto& [name, tensor] : tensors) {
    const bool embedding = name == "model.embed_tokens.weight";
    const float factor =
        tensor.shape().size() == 1 || embedding ? 1.0f : 1.5f / std::sqrt(static_cast<float>(tensor.shape()[1]));
    for (float& value : tensor.span()) value *= factor;
  }
  return MakeModelSource(config, std::move(tensors));
}

std::shared_ptr<const InferenceModel> Mild(const ModelConfig& config, uint64_t seed = 1) {
  return InferenceModel::Load(MildModel(config, seed));
}

std::vector<int32_t> Text(size_t count, uint64_t seed = 7) {
  Random random(seed);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(random.Below(31)));
  return ids;
}

Session::LogitsSink Into(Rows& rows) {
  return [&rows](size_t, std::span<const float> logits) { rows.emplace_back(logits.begin(), logits.end()); };
}

// Logits after every token, fed in pieces of the given lengths, the last of them repeated.
Rows Read(Session& session, const std::vector<int32_t>& text, const std::vector<size_t>& pieces = {1000000}) {
  Rows rows;
  size_t done = 0;
  for (size_t i = 0; done < text.size(); ++i) {
    const size_t count = std::min(pieces[std::min(i, pieces.size() - 1)], text.size() - done);
    session.Append(std::span(text).subspan(done, count), Into(rows));
    done += count;
  }
  return rows;
}

Rows Read(const std::shared_ptr<const InferenceModel>& model, const SessionOptions& options,
          const std::vector<int32_t>& text, const std::vector<size_t>& pieces = {1000000}) {
  Session session(model, options);
  return Read(session, text, pieces);
}

double Difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = std::isfinite(difference) ? std::max(worst, difference) : 1e30;
  }
  return worst;
}

double Difference(const Rows& a, const Rows& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) worst = std::max(worst, Difference(a[i], b[i]));
  return worst;
}

SessionOptions Landmarks(size_t k = 3, size_t chunk = 14) {
  SessionOptions options;
  options.block_format = BlockFormat::kF32;
  options.top_k = k;
  options.chunk_length = chunk;
  return options;
}

SessionOptions Full() {
  SessionOptions options;
  options.block_format = BlockFormat::kF32;
  options.attention = AttentionKind::kFull;
  return options;
}

// What the training engine says after every token of a text with landmarks (32) after blocks of seven.
Rows TrainingLogits(const ModelSource& source, const std::vector<int32_t>& text) {
  ModelConfig config = source.config();
  config.rotary_layout = RotaryLayout::kHalf;  // the engine's
  const ParameterLayout places(config);
  Parameters weights(places);
  LoadWeights(source, config, {}, weights);
  std::vector<int32_t> ids;
  for (size_t i = 0; i < text.size(); ++i) {
    ids.push_back(text[i]);
    if (i % 7 == 6) ids.push_back(32);
  }
  const std::vector<uint8_t> controlled(ids.size() / 8 + 1, 0);
  Engine engine(config, places, {.rows = 1, .time = ids.size()});
  std::vector<float> logits(ids.size() * config.vocab_size);
  engine.Logits(weights,
                {.rows = 1,
                 .time = ids.size(),
                 .input_ids = ids.data(),
                 .controlled = config.landmark.context_miss.enabled ? controlled.data() : nullptr},
                logits.data());
  Rows rows;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto first = logits.begin() + static_cast<ptrdiff_t>((i + i / 7) * config.vocab_size);
    rows.emplace_back(first, first + static_cast<ptrdiff_t>(config.vocab_size));
  }
  return rows;
}

TEST(Session, OneChunkEqualsTheTrainingPass) {
  for (const bool miss : {false, true}) {
    for (const auto layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
      ModelConfig config = miss ? WithMiss(TestConfig()) : TestConfig();
      config.rotary_layout = layout;
      const auto source = MildModel(config);
      const std::vector<int32_t> text = Text(60);
      const Rows rows = Read(InferenceModel::Load(source), Landmarks(3, 1000), text);
      const Rows expected = TrainingLogits(*source, text);
      for (size_t i = 0; i < text.size(); ++i) {
        const size_t ordinary = miss ? 31 : 32;
        EXPECT_LT(Difference(std::span(rows[i]).first(ordinary), std::span(expected[i]).first(ordinary)), 2e-4)
            << "token " << i;
        for (size_t id = ordinary; id < 33; ++id) EXPECT_EQ(rows[i][id], -std::numeric_limits<float>::infinity());
      }
    }
  }
}

// The first layer reads the blocks before it, none or some; the second chooses a few, as it did in training.
TEST(Session, ChunksEqualTrainingWithAMemory) {
  const std::vector<int32_t> text = Text(126);
  for (const size_t local_blocks : {0, 1, 3, 40}) {
    for (const size_t chunk : {7, 14}) {
      ModelConfig config = TestConfig();
      config.landmark.local_layers = 1;
      config.landmark.local_blocks = local_blocks;
      config.landmark.memory_training.enabled = true;
      config.landmark.memory_training.k = 2;
      config.landmark.memory_training.chunk_length = chunk;
      const auto source = MildModel(config);
      SessionOptions options = DefaultSessionOptions(config);
      options.block_format = BlockFormat::kF32;
      EXPECT_EQ(options.top_k, 2u);
      const Rows expected = TrainingLogits(*source, text);
      // Chunks of one block are the same token by token.
      for (const size_t piece : {size_t{126}, size_t{1}}) {
        if (piece == 1 && chunk != 7) continue;
        Session session(InferenceModel::Load(source), options);
        EXPECT_EQ(session.options().chunk_length, chunk);
        const Rows rows = Read(session, text, {piece});
        for (size_t i = 0; i < text.size(); ++i) {
          EXPECT_LT(Difference(std::span(rows[i]).first(32), std::span(expected[i]).first(32)), 2e-4)
              << "token " << i << ", " << local_blocks << " blocks, chunk " << chunk << ", piece " << piece;
        }
      }
    }
  }
}

// Method, section 3: any split gives the same while all blocks fit in k.
TEST(Session, AnySplitAgreesWhileEveryBlockIsRead) {
  const auto model = Mild(TestConfig());
  const std::vector<int32_t> text = Text(80);
  const Rows whole = Read(model, Landmarks(12, 1000), text);
  for (const bool exact : {false, true}) {
    for (const auto granularity : {Granularity::kHeadAndToken, Granularity::kHead, Granularity::kToken}) {
      for (const size_t chunk : {1, 3, 7, 14, 20, 33}) {
        SessionOptions options = Landmarks(12, chunk);
        options.exact_positions = exact;
        options.granularity = granularity;
        EXPECT_LT(Difference(Read(model, options, text), whole), 2e-4) << exact << chunk;
      }
    }
  }
}

TEST(Session, FullAttentionDoesNotDependOnTheSplit) {
  const auto model = Mild(TestConfig());
  const std::vector<int32_t> text = Text(200);
  const Rows whole = Read(model, Full(), text);
  for (const std::vector<size_t>& pieces : {std::vector<size_t>{1}, {9}, {63, 1, 1, 64}, {100}, {2, 130, 1}}) {
    EXPECT_LT(Difference(Read(model, Full(), text, pieces), whole), 2e-4);
  }
  // Eviction counts in pages, so it shows only after some of them; the latest tokens are always seen.
  SessionOptions window = Full();
  window.memory_blocks = 64;
  const Rows evicting = Read(model, window, text, {16});
  EXPECT_LT(Difference(Rows(evicting.begin(), evicting.begin() + 128), Rows(whole.begin(), whole.begin() + 128)), 2e-4);
  EXPECT_GT(Difference(evicting.back(), whole.back()), 1e-3);
}

TEST(Session, CallsDoNotMatterOnlyChunksDo) {
  // Chunks of whole blocks: appending chunk by chunk, or all at once, is the same sequence of chunks.
  const auto model = Mild(TestConfig());
  const std::vector<int32_t> text = Text(140);
  const Rows whole = Read(model, Landmarks(2, 14), text);
  EXPECT_EQ(Difference(Read(model, Landmarks(2, 14), text, {14}), whole), 0);
  EXPECT_EQ(Difference(Read(model, Landmarks(2, 14), text, {28, 14}), whole), 0);
  // Token by token with k blocks retrieved is the same as chunks of one token.
  EXPECT_EQ(Difference(Read(model, Landmarks(2, 14), text, {1}), Read(model, Landmarks(2, 1), text)), 0);
}

TEST(Session, SinkAndLogitsAgree) {
  const auto model = Mild(WithMiss(TestConfig()));
  const std::vector<int32_t> text = Text(100);
  Session with_sink(model, Landmarks());
  std::vector<size_t> numbers;
  std::vector<float> last;
  with_sink.Append(text, [&](size_t token, std::span<const float> logits) {
    numbers.push_back(token);
    last.assign(logits.begin(), logits.end());
  });
  ASSERT_EQ(numbers.size(), text.size());
  for (size_t i = 0; i < numbers.size(); ++i) EXPECT_EQ(numbers[i], i);
  EXPECT_EQ(Difference(with_sink.Logits(), last), 0);
  Session without(model, Landmarks());
  without.Append(text);
  EXPECT_LT(Difference(without.Logits(), last), 1e-5);
  for (const size_t id : {31, 32}) EXPECT_EQ(last[id], -std::numeric_limits<float>::infinity());
}

// What nothing is asked of goes together, without the last layer's attention: the same bits come later.
TEST(Session, WhatIsReadIsAsIfItWereAppended) {
  ModelConfig local = TestConfig();
  local.landmark.local_layers = 1;
  local.landmark.local_blocks = 1;
  const std::vector<int32_t> text = Text(1300), tail = Text(30, 8);
  for (const ModelConfig& config : {TestConfig(), WithMiss(TestConfig()), local}) {
    const auto model = Mild(config);
    for (SessionOptions options : {Landmarks(3, 7), Landmarks(3, 21), Landmarks(4, 10), Full()}) {
      for (const size_t evicting : {0, 9}) {
        options.memory_blocks = evicting;
        options.record_reads = true;
        for (const size_t begin : {0, 4}) {
          Session appended(model, options), read(model, options);
          const auto head = std::span(text).first(begin), rest = std::span(text).subspan(begin);
          appended.Append(head);
          read.Append(head);
          Rows ignored;
          appended.Append(rest, Into(ignored));  // a sink asks every row
          read.Read(rest);
          EXPECT_ERROR(read.Logits(), "nothing to continue");
          EXPECT_TRUE(read.LastReads().empty());
          EXPECT_EQ(read.tokens(), appended.tokens());
          EXPECT_EQ(read.counters().chunks, appended.counters().chunks);
          EXPECT_EQ(read.counters().blocks, appended.counters().blocks);
          EXPECT_LT(read.counters().layer_rows, appended.counters().layer_rows);
          EXPECT_EQ(Difference(Read(read, tail), Read(appended, tail)), 0);
        }
      }
    }
  }
}

TEST(Session, PiecesAreWholeChunks) {
  const auto model = Mild(TestConfig());
  for (const size_t chunk : {7, 21, 500, 511, 512, 700}) {
    Session session(model, Landmarks(3, chunk));
    EXPECT_EQ(session.piece_tokens() % chunk, 0u);
    EXPECT_GE(session.piece_tokens(), chunk);
    EXPECT_LE(session.piece_tokens(), std::max<size_t>(512, chunk));
  }
}

TEST(Session, ForksGoTheirOwnWay) {
  const auto model = Mild(TestConfig());
  const std::vector<int32_t> text = Text(60), left = Text(40, 8), right = Text(40, 9);
  for (const SessionOptions& options : {Landmarks(), Full()}) {
    Session trunk(model, options);
    trunk.Append(text);
    Session fork = trunk.Fork();
    EXPECT_EQ(Difference(fork.Logits(), trunk.Logits()), 0);
    const Rows from_fork = Read(fork, left);
    const Rows from_trunk = Read(trunk, right);
    for (const auto& [tail, rows] : {std::pair{left, from_fork}, {right, from_trunk}}) {
      Session alone(model, options);
      alone.Append(text);
      EXPECT_EQ(Difference(Read(alone, tail), rows), 0);
    }
    EXPECT_EQ(fork.tokens().size(), 100u);
    EXPECT_NE(fork.tokens(), trunk.tokens());
  }
}

TEST(Session, TruncateGoesBackToWhatWas) {
  const auto model = Mild(TestConfig());
  const std::vector<int32_t> text = Text(150);
  for (SessionOptions options : {Landmarks(), Full()}) {
    for (const bool exact : {false, true}) {
      options.exact_positions = exact;
      for (const size_t length : {0, 7, 64, 129}) {
        Session once(model, options);
        Read(once, text, {1});
        once.Truncate(length);
        EXPECT_EQ(once.tokens().size(), length);
        EXPECT_ERROR(once.Logits(), "nothing to continue");
        Session fresh(model, options);
        Read(fresh, {text.begin(), text.begin() + static_cast<ptrdiff_t>(length)}, {1});
        const std::vector<int32_t> rest(text.begin() + static_cast<ptrdiff_t>(length), text.end());
        EXPECT_EQ(Difference(Read(once, rest, {3, 1, 20}), Read(fresh, rest, {3, 1, 20})), 0) << length;
      }
    }
  }
}

TEST(Session, ResetForgetsEverything) {
  const auto model = Mild(TestConfig());
  Session session(model, Landmarks());
  const Rows first = Read(session, Text(60));
  session.Reset();
  EXPECT_TRUE(session.tokens().empty());
  EXPECT_EQ(session.counters().blocks, 0u);
  EXPECT_ERROR(session.Logits(), "nothing to continue");
  EXPECT_EQ(Difference(Read(session, Text(60)), first), 0);
}

TEST(Session, EvictsTheOldestBlocks) {
  const auto model = Mild(TestConfig());
  SessionOptions options = Landmarks(5, 7);
  options.memory_blocks = 3;
  options.record_reads = true;
  Session session(model, options);
  session.Append(Text(75));
  EXPECT_EQ(session.counters().blocks, 10u);
  EXPECT_EQ(session.counters().blocks_kept, 3u);
  ASSERT_EQ(session.LastReads().size(), 2u);
  for (const auto& layer : session.LastReads()) {
    std::vector<size_t> blocks;
    for (const BlockRead& read : layer.blocks) blocks.push_back(read.block);
    EXPECT_EQ(blocks, (std::vector<size_t>{7, 8, 9}));
  }
  EXPECT_ERROR(session.Truncate(48), "evicted");
  session.Truncate(49);  // the oldest block that is kept begins here
  EXPECT_EQ(session.counters().blocks_kept, 0u);
  session.Append(Text(1));
}

TEST(Session, WhatWasReadIsAShareOfTheAttention) {
  for (const double cutoff : {0.0, 0.2, 1.0}) {
    SessionOptions options = Landmarks(3, 7);
    options.record_reads = true;
    options.miss_cutoff = cutoff;
    Session session(Mild(WithMiss(TestConfig())), options);
    session.Append(Text(74));
    const std::vector<ChunkReads>& reads = session.LastChunkReads();
    ASSERT_EQ(reads.size(), 2u);
    for (const ChunkReads& layer : reads) {
      ASSERT_EQ(layer.chosen, 3u);
      ASSERT_EQ(layer.gates.size(), 4 * 4 * 3u);  // 4 tokens, 4 heads
      for (size_t cell = 0; cell < 16; ++cell) {
        float sum = 0;
        for (size_t i = 0; i < 3; ++i) {
          const float gate = layer.gates[cell * 3 + i];
          EXPECT_GE(gate, 0.0f);
          EXPECT_LE(gate, 1.0f);
          sum += gate;
          // Where the context-miss token's share is too small nothing is searched.
          const int32_t* blocks = &layer.blocks[cell * 3];
          EXPECT_EQ(blocks[i] == kNoBlockChosen, blocks[0] == kNoBlockChosen);
          EXPECT_TRUE(i == 0 || blocks[0] == kNoBlockChosen || blocks[i - 1] < blocks[i]);
          EXPECT_TRUE(gate == 0.0f || blocks[0] != kNoBlockChosen);
        }
        EXPECT_TRUE(cutoff > 0.0 || layer.blocks[cell * 3] != kNoBlockChosen);
        EXPECT_TRUE(cutoff < 1.0 || layer.blocks[cell * 3] == kNoBlockChosen);
        EXPECT_LE(sum, 1.0f + 1e-6f);
        EXPECT_TRUE(cutoff > 0.0 || sum > 0.0f);
        EXPECT_TRUE(cutoff < 1.0 || sum == 0.0f);
      }
    }
    EXPECT_EQ(session.counters().blocks_read > 0, cutoff < 1.0);
  }
}

TEST(Session, RecordingReadsChangesNothing) {
  const auto model = Mild(TestConfig());
  SessionOptions recording = Landmarks();
  recording.record_reads = true;
  EXPECT_EQ(Difference(Read(model, recording, Text(90)), Read(model, Landmarks(), Text(90))), 0);
  Session silent(model, Landmarks());
  silent.Append(Text(90));
  EXPECT_TRUE(silent.LastReads().empty());
  EXPECT_TRUE(silent.LastChunkReads().empty());
}

// A landmark alone in a chunk reads blocks, too, but what the last token read stays known.
TEST(Session, ALandmarkOfItsOwnKeepsLogitsAndReadsOfTheToken) {
  const auto model = Mild(TestConfig());
  SessionOptions options = Landmarks(2, 1000);
  options.record_reads = true;
  Session session(model, options);
  std::vector<int32_t> ids = Text(7);
  ids.push_back(32);
  session.FeedPositions(ids);
  session.FeedPositions(Text(7, 3));
  const std::vector<float> before(session.Logits().begin(), session.Logits().end());
  ASSERT_EQ(session.LastReads().size(), 2u);
  const double gate = session.LastReads()[1].blocks.at(0).gate;
  session.FeedPositions(std::vector<int32_t>{32});
  EXPECT_EQ(Difference(session.Logits(), before), 0);
  ASSERT_EQ(session.LastReads().size(), 2u);
  EXPECT_EQ(session.LastReads()[1].blocks.at(0).gate, gate);
  EXPECT_EQ(session.counters().blocks, 2u);
}

// FeedPositions may stop before a landmark; Append then inserts it.
TEST(Session, AppendFinishesABlockThatLacksItsLandmark) {
  const auto model = Mild(TestConfig());
  const std::vector<int32_t> head = Text(7), tail = Text(30, 3);
  Session fed(model, Landmarks(4, 1000));
  fed.FeedPositions(head);
  EXPECT_EQ(fed.counters().blocks, 0u);
  const Rows rows = Read(fed, tail);
  EXPECT_EQ(fed.counters().blocks, 5u);
  Session appended(model, Landmarks(4, 1000));
  appended.Append(head);
  EXPECT_LT(Difference(Read(appended, tail), rows), 2e-4);
}

// A query does not go on after the last block of the text, though local layers would see that.
TEST(Session, RankingDoesNotDependOnWhatStandsBeforeTheQuery) {
  ModelConfig config = TestConfig();
  config.landmark.local_layers = 1;
  config.landmark.local_blocks = 1;
  config.num_attention_heads = config.num_key_value_heads = 1;
  const auto model = Mild(config);
  const std::vector<int32_t> text = Text(70);
  std::vector<std::vector<double>> rankings;
  for (const uint64_t seed : {5, 6, 7}) {
    Session session(model, Landmarks(3, 7));
    session.Append(text);
    session.Append(Text(7, seed));
    rankings.push_back(session.RankBlocks(std::vector<int32_t>{9}));
    ASSERT_EQ(rankings.back().size(), 11u);
  }
  // Of one head and token: the last landmark takes its share, the others share the rest as before.
  for (const size_t other : {1, 2}) {
    for (size_t b = 1; b < 10; ++b) {
      const double expected = rankings[0][b] / rankings[0][0];
      EXPECT_NEAR(rankings[other][b] / rankings[other][0], expected, 1e-4 * expected) << b;
    }
  }
}

// All landmarks have the same key where their embedding is 0; every block then ties, with true positions too.
TEST(Session, EqualLandmarksAreReadWithExactPositions) {
  const ModelConfig config = TestConfig();
  auto tensors = RandomTensors(config, 1);
  std::fill_n(tensors["model.embed_tokens.weight"].data() + 32 * config.hidden_size, config.hidden_size, 0.0f);
  const auto model = InferenceModel::Load(MakeModelSource(config, std::move(tensors)));
  SessionOptions options = Landmarks(2, 14);
  options.exact_positions = options.record_reads = true;
  Session session(model, options);
  session.Append(Text(150));
  for (const int32_t block : session.LastChunkReads()[0].blocks) EXPECT_LT(block, 20);
  for (const float logit : session.Logits().first(32)) EXPECT_TRUE(std::isfinite(logit));
}

TEST(Session, AHugeKReadsEverything) {
  const auto model = Mild(TestConfig());
  const std::vector<int32_t> text = Text(100);
  SessionOptions options = Landmarks(SIZE_MAX, 14);
  EXPECT_LT(Difference(Read(model, options, text), Read(model, Landmarks(20, 14), text)), 1e-6);
  options.chunk_length = 0;
  EXPECT_EQ(Session(model, options).options().chunk_length, 7u);
}

TEST(Session, DefaultsFollowTheModel) {
  ModelConfig config = TestConfig();
  config.max_position_embeddings = 128;
  SessionOptions options;
  options.top_k = 4;
  // 128 positions: 5 slots of 8 are set aside, 11 blocks of 7 tokens remain.
  EXPECT_EQ(Session(Mild(config), options).options().chunk_length, 77u);
  EXPECT_EQ(Session(Mild(config), options).options().block_length, 7u);
  EXPECT_EQ(DefaultSessionOptions(config).attention, AttentionKind::kLandmark);
  config.landmark = {};
  EXPECT_EQ(DefaultSessionOptions(config).attention, AttentionKind::kFull);
}

TEST(Session, SeveralAtOnceGiveTheSameAsAlone) {
  const auto model = Mild(WithMiss(TestConfig()));
  constexpr size_t kSessions = 4;
  const auto options = [](size_t i) {
    SessionOptions own = i % 4 == 3 ? Full() : Landmarks(i + 1, 7 * (i + 1));
    own.granularity = i == 1 ? Granularity::kHead : Granularity::kHeadAndToken;
    return own;
  };
  std::vector<Rows> alone, together(kSessions);
  for (size_t i = 0; i < kSessions; ++i) alone.push_back(Read(model, options(i), Text(150, i), {50, 1, 1, 30}));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kSessions; ++i) {
    threads.emplace_back([&, i] { together[i] = Read(model, options(i), Text(150, i), {50, 1, 1, 30}); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < kSessions; ++i) EXPECT_EQ(Difference(together[i], alone[i]), 0) << i;
}

TEST(Session, SmallerWeightsStayNear) {
  ModelConfig config = TestConfig();
  config.intermediate_size = 96;
  const auto source = MildModel(config);
  const std::vector<int32_t> text = Text(60);
  const Rows exact = Read(InferenceModel::Load(source), Full(), text);
  const auto error = [&](WeightKind kind) {
    const Rows rows = Read(InferenceModel::Load(source, kind), Full(), text);
    double squares = 0, size = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (size_t j = 0; j < 32; ++j) {
        const double difference = static_cast<double>(rows[i][j]) - static_cast<double>(exact[i][j]);
        squares += difference * difference;
        size += static_cast<double>(exact[i][j]) * static_cast<double>(exact[i][j]);
      }
    }
    return std::sqrt(squares / size);
  };
  EXPECT_EQ(error(WeightKind::kF32), 0);
  EXPECT_LT(error(WeightKind::kF16), 2e-3);
  EXPECT_LT(error(WeightKind::kInt8), 0.05);
  EXPECT_LT(error(WeightKind::kInt4), 0.5);
  EXPECT_LT(error(WeightKind::kF16), error(WeightKind::kInt8));
  EXPECT_LT(error(WeightKind::kInt8), error(WeightKind::kInt4));
}

TEST(Session, Errors) {
  const auto model = Mild(TestConfig());
  Session session(model, Landmarks());
  EXPECT_ERROR(session.Logits(), "nothing to continue");
  session.Append({});
  EXPECT_ERROR(session.Logits(), "nothing to continue");
  const auto append = [&](int32_t id) { session.Append(std::vector<int32_t>{1, id}); };
  EXPECT_ERROR(append(33), "token 33 is not in the model's vocabulary of 33");
  EXPECT_ERROR(append(-1), "token -1 is not in the model's vocabulary");
  EXPECT_ERROR(append(32), "token 32 is the landmark");
  EXPECT_TRUE(session.tokens().empty());  // nothing of a wrong call was read
  EXPECT_ERROR(session.FeedPositions(std::vector<int32_t>{1, 32}), "position 1 of the chunk is a landmark");
  EXPECT_ERROR(session.FeedPositions(Text(8)), "position 7 of the chunk is not a landmark");
  EXPECT_TRUE(session.tokens().empty());
  session.Append(Text(10));
  EXPECT_ERROR(session.Truncate(11), "only 10 were read");

  const auto start = [&](auto change) {
    SessionOptions options = Landmarks();
    change(options);
    Session started(model, options);
  };
  EXPECT_ERROR(start([](SessionOptions& o) { o.attention = AttentionKind::kXl; }), "full or landmark");
  EXPECT_ERROR(start([](SessionOptions& o) { o.block_length = size_t{1} << 40; }), "block of");
  EXPECT_ERROR(start([](SessionOptions& o) { o.chunk_length = SIZE_MAX; }), "chunk of");
  EXPECT_ERROR(start([](SessionOptions& o) { o.miss_cutoff = 0.1; }), "no context-miss token");
  EXPECT_ERROR(start([](SessionOptions& o) { o.miss_cutoff = -0.1; }), "between 0 and 1");
  EXPECT_ERROR(start([](SessionOptions& o) { o.miss_cutoff = std::nan(""); }), "between 0 and 1");
  ModelConfig plain = TestConfig();
  plain.landmark = {};
  EXPECT_ERROR(Session(Mild(plain), Landmarks()), "no landmark token");
}

}  // namespace
}  // namespace cairn
