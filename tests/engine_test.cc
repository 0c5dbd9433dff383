// The training engine against the naive whole model in f64: loss, and gradients by finite differences, for every kind
// of attention; and what must hold exactly.
#include "train/engine.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "model/initial_weights.h"
#include "train/reference_model.h"

namespace cairn {
namespace {

ModelConfig SmallConfig() {
  ModelConfig c;
  c.hidden_size = 16;
  c.intermediate_size = 20;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 6;
  c.vocab_size = 23;
  c.rms_norm_eps = 1e-5;
  c.landmark.attention = AttentionKind::kLandmark;
  c.landmark.block_length = 3;
  c.landmark.landmark_id = 22;
  return c;
}

struct TestModel {
  ModelConfig config;
  ParameterLayout layout;
  Parameters weights;
  size_t rows, time;
  std::vector<int32_t> ids, targets, positions;
  std::vector<uint8_t> controlled;

  TestModel(const ModelConfig& c, size_t r, size_t t, uint64_t seed = 1)
      : config(c), layout(c), weights(layout), rows(r), time(t) {
    ValidateModelConfig(config, "test");
    InitialiseParameters(config, seed, weights);
    Random random(seed + 7);
    // Larger weights than at the start of training, so that attention is far from uniform.
    for (const ParameterSlot& slot : layout.slots()) {
      for (float& x : weights.Get(slot)) {
        x = static_cast<float>(slot.shape.size() == 1 ? 1 + 0.2 * random.Normal() : 0.3 * random.Normal());
      }
    }
    int64_t number_of_landmarks = 0;
    const bool landmarks = config.landmark.attention == AttentionKind::kLandmark;
    for (size_t i = 0; i < rows * time; ++i) {
      const size_t stride = config.landmark.block_length + 1;
      const bool landmark = landmarks && i % time % stride == config.landmark.block_length;
      // Attention knows landmarks by their place. With a memory every landmark gets a token of its own: the first layer
      // could otherwise not tell them apart, and rounding would choose between equal scores.
      const bool distinct = config.landmark.memory_training.enabled;
      const int32_t landmark_id =
          static_cast<int32_t>(distinct && landmark ? number_of_landmarks++ : config.landmark.landmark_id);
      ids.push_back(landmark ? landmark_id : static_cast<int32_t>(random.Below(20)));
      targets.push_back(landmark || random.Below(8) == 0 ? -1 : static_cast<int32_t>(random.Below(20)));
    }
  }

  EngineBatch Batch() const {
    EngineBatch b;
    b.rows = rows;
    b.time = time;
    b.input_ids = ids.data();
    b.targets = targets.data();
    b.positions = positions.empty() ? nullptr : positions.data();
    b.controlled = controlled.empty() ? nullptr : controlled.data();
    b.bank_key = 5;
    return b;
  }
};

// Compares the engine's loss and gradient with the reference: a sample of entries of every tensor, and every entry of
// the small ones' largest.
void CheckAgainstReference(const TestModel& s, bool recompute = false) {
  Engine engine(s.config, s.layout, {.rows = s.rows, .time = s.time, .recompute = recompute});
  Parameters gradients(s.layout);
  const EngineBatch batch = s.Batch();
  const double loss = engine.Train(s.weights, batch, 1.0f, gradients);
  EXPECT_NEAR(engine.Evaluate(s.weights, batch), loss, 1e-5 * loss);

  const ReferenceModel reference(s.config, s.layout);
  std::vector<double> values(s.weights.data(), s.weights.data() + s.weights.size());
  ReferenceModel::Cache frozen;
  const double expected = reference.Loss(values, batch, nullptr, &frozen);
  EXPECT_NEAR(loss, expected, 1e-5 * expected);

  Random random(99);
  for (const ParameterSlot& slot : s.layout.slots()) {
    double largest = 0;
    for (const float g : gradients.Get(slot)) largest = std::max(largest, std::abs(static_cast<double>(g)));
    for (int trial = 0; trial < 6; ++trial) {
      const size_t i = slot.offset + random.Below(slot.size);
      const double step = 1e-5, original = values[i];
      values[i] = original + step;
      const double up = reference.Loss(values, batch, &frozen);
      values[i] = original - step;
      const double down = reference.Loss(values, batch, &frozen);
      values[i] = original;
      EXPECT_NEAR((up - down) / (2 * step), gradients.data()[i], 1e-4 * largest + 1e-6)
          << slot.name << " " << i - slot.offset;
    }
  }
}

TEST(Engine, LandmarksWithGroupedQueries) { CheckAgainstReference(TestModel(SmallConfig(), 2, 18)); }

TEST(Engine, RecomputationChangesNothing) {
  const TestModel s(SmallConfig(), 2, 18);
  CheckAgainstReference(s, true);
  Parameters plain(s.layout), again(s.layout);
  Engine keeping(s.config, s.layout, {.rows = 2, .time = 18});
  Engine recomputing(s.config, s.layout, {.rows = 2, .time = 18, .recompute = true});
  EXPECT_EQ(keeping.Train(s.weights, s.Batch(), 1.0f, plain), recomputing.Train(s.weights, s.Batch(), 1.0f, again));
  for (size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(plain.data()[i], again.data()[i]);
  EXPECT_LT(recomputing.ArenaBytes(), keeping.ArenaBytes());
}

TEST(Engine, FullAttentionTiedInterleaved) {
  ModelConfig c = SmallConfig();
  c.landmark = {};
  c.tie_word_embeddings = true;
  c.rotary_layout = RotaryLayout::kInterleaved;
  CheckAgainstReference(TestModel(c, 3, 13));
}

TEST(Engine, ContextMissToken) {
  ModelConfig c = SmallConfig();
  c.landmark.context_miss = {true, 21, 0.5};
  TestModel s(c, 2, 18);
  Random random(3);
  s.controlled.resize(2 * 5);
  for (uint8_t& x : s.controlled) x = random.Below(2) == 1;
  CheckAgainstReference(s);
}

TEST(Engine, PositionalJumps) {
  ModelConfig c = SmallConfig();
  c.landmark.positional_jump = 10;
  TestModel s(c, 2, 18);
  Random random(4);
  for (size_t r = 0; r < 2; ++r) {
    int32_t position = 0;
    for (size_t t = 0; t < 18; ++t) {
      s.positions.push_back(position++);
      if (t % 4 == 3) position += static_cast<int32_t>(1 + random.Below(10));
    }
  }
  CheckAgainstReference(s);
}

TEST(Engine, TransformerXl) {
  for (const size_t cache : {size_t{0}, size_t{3}}) {
    ModelConfig c = SmallConfig();
    c.landmark = {};
    c.landmark.attention = AttentionKind::kXl;
    c.landmark.xl_segment_length = 5;
    c.landmark.xl_cache_length = cache;
    CheckAgainstReference(TestModel(c, 2, 17));
  }
}

TEST(Engine, TrainingWithMemory) {
  for (const size_t k : {1, 2, 7}) {
    ModelConfig c = SmallConfig();
    c.landmark.memory_training.enabled = true;
    c.landmark.memory_training.k = k;
    c.landmark.memory_training.chunk_length = 6;  // two blocks, eight positions
    CheckAgainstReference(TestModel(c, 2, 30, k));
  }
}

TEST(Engine, LocalLayersChooseNothing) {
  ModelConfig c = SmallConfig();
  c.landmark.memory_training.enabled = true;
  c.landmark.memory_training.k = 2;
  c.landmark.memory_training.chunk_length = 6;
  const TestModel reading(c, 2, 30);
  c.landmark.local_layers = 1;
  const TestModel local(c, 2, 30);
  CheckAgainstReference(local);
  for (const size_t blocks : {1, 2, 3, 9}) {
    c.landmark.local_blocks = blocks;
    CheckAgainstReference(TestModel(c, 2, 30));
  }
  Engine a(reading.config, reading.layout, {.rows = 2, .time = 30});
  Engine b(local.config, local.layout, {.rows = 2, .time = 30});
  EXPECT_NE(a.Evaluate(reading.weights, reading.Batch()), b.Evaluate(local.weights, local.Batch()));
  // Without a memory in training there are no chunks to be local to.
  c.landmark.memory_training.enabled = false;
  EXPECT_THROW(Engine(c, local.layout, {.rows = 2, .time = 30}), Error);
}

TEST(Engine, TrainingWithMemoryAndDistractors) {
  ModelConfig c = SmallConfig();
  c.landmark.memory_training.enabled = true;
  c.landmark.memory_training.k = 3;
  c.landmark.memory_training.chunk_length = 6;
  c.landmark.memory_training.distractor_blocks = 4;
  c.landmark.memory_training.distractors = DistractorSource::kBatch;
  CheckAgainstReference(TestModel(c, 3, 30));
}

// All landmarks of the memory are under the token; local layers have none.
TEST(Engine, TrainingWithMemoryUnderTheContextMissToken) {
  for (const size_t k : {1, 2, 7}) {
    for (const size_t local_layers : {0, 1}) {
      ModelConfig c = SmallConfig();
      c.landmark.memory_training.enabled = true;
      c.landmark.memory_training.k = k;
      c.landmark.memory_training.chunk_length = 6;
      c.landmark.context_miss = {true, 21, 0.5};
      c.landmark.local_layers = local_layers;
      c.landmark.local_blocks = local_layers;
      CheckAgainstReference(TestModel(c, 2, 30, k));
      c.landmark.context_miss.cutoff = 0.3;  // some queries read nothing
      CheckAgainstReference(TestModel(c, 2, 30, k));
    }
  }
  ModelConfig c = SmallConfig();
  c.landmark.memory_training.enabled = true;
  c.landmark.memory_training.k = 3;
  c.landmark.memory_training.chunk_length = 6;
  c.landmark.memory_training.distractor_blocks = 4;
  c.landmark.memory_training.distractors = DistractorSource::kBatch;
  c.landmark.context_miss = {true, 21, 0.5};
  c.rotary_layout = RotaryLayout::kInterleaved;
  CheckAgainstReference(TestModel(c, 3, 30));
}

TEST(Engine, BankOfEarlierBlocksEntersTheMemory) {
  ModelConfig c = SmallConfig();
  c.landmark.memory_training.enabled = true;
  c.landmark.memory_training.k = 3;
  c.landmark.memory_training.chunk_length = 6;
  const TestModel without(c, 1, 30);
  c.landmark.memory_training.distractor_blocks = 6;
  c.landmark.memory_training.distractors = DistractorSource::kBank;
  const TestModel with(c, 1, 30);
  Engine plain(without.config, without.layout, {.rows = 1, .time = 30});
  Engine banked(with.config, with.layout, {.rows = 1, .time = 30});
  Parameters gradients(with.layout);
  const double first = plain.Train(without.weights, without.Batch(), 1.0f, gradients);
  EXPECT_EQ(banked.Train(with.weights, with.Batch(), 1.0f, gradients), first);  // the bank is still empty
  EXPECT_NE(banked.Train(with.weights, with.Batch(), 1.0f, gradients), first);
}

TEST(Engine, MemoryWithEveryBlockEqualsOneChunk) {
  // N <= k: every block is read at its true distance, so the chunks do not show.
  ModelConfig c = SmallConfig();
  const TestModel whole(c, 2, 30);
  c.landmark.memory_training.enabled = true;
  c.landmark.memory_training.k = 20;
  c.landmark.memory_training.chunk_length = 6;
  TestModel chunked(c, 2, 30);
  chunked.ids = whole.ids;
  Engine a(whole.config, whole.layout, {.rows = 2, .time = 30});
  Engine b(chunked.config, chunked.layout, {.rows = 2, .time = 30});
  Parameters ga(whole.layout), gb(chunked.layout);
  const double la = a.Train(whole.weights, whole.Batch(), 1.0f, ga);
  EXPECT_NEAR(b.Train(chunked.weights, chunked.Batch(), 1.0f, gb), la, 1e-5 * la);
  for (size_t i = 0; i < ga.size(); ++i) ASSERT_NEAR(ga.data()[i], gb.data()[i], 2e-4);
}

TEST(Engine, GradientsAddUpAndGroupsAreReadyInOrder) {
  const TestModel s(SmallConfig(), 2, 18);
  Engine engine(s.config, s.layout, {.rows = 2, .time = 18});
  Parameters once(s.layout), twice(s.layout);
  std::vector<size_t> order;
  engine.Train(s.weights, s.Batch(), 1.0f, once, [&](size_t group) { order.push_back(group); });
  EXPECT_EQ(order, (std::vector<size_t>{3, 2, 1, 0}));
  engine.Train(s.weights, s.Batch(), 0.5f, twice);
  engine.Train(s.weights, s.Batch(), 0.5f, twice);
  for (size_t i = 0; i < once.size(); ++i)
    ASSERT_NEAR(once.data()[i], twice.data()[i], 1e-4f * (1 + std::abs(once.data()[i])));
}

TEST(Engine, RepeatsBitForBit) {
  const TestModel s(SmallConfig(), 2, 18);
  Parameters a(s.layout), b(s.layout);
  Engine engine(s.config, s.layout, {.rows = 2, .time = 18});
  EXPECT_EQ(engine.Train(s.weights, s.Batch(), 1.0f, a), engine.Train(s.weights, s.Batch(), 1.0f, b));
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a.data()[i], b.data()[i]);
}

}  // namespace
}  // namespace cairn
