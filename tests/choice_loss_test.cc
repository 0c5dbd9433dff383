// The loss that teaches the choice of blocks: its gradient by differences, what takes part in it, and its bank.
#include "train/choice_loss.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "data/batches.h"
#include "model/rotary_table.h"

namespace cairn {
namespace {

constexpr size_t kRows = 2, kTime = 36;  // blocks of 4 tokens: seven landmarks a row
constexpr std::array<int32_t, 2> kNone = {kNoBlock, kNoBlock};

ModelConfig SmallModel() {
  ModelConfig config;
  config.vocab_size = 10;
  config.hidden_size = 16;
  config.intermediate_size = 16;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.landmark.attention = AttentionKind::kLandmark;
  config.landmark.block_length = 4;
  config.landmark.landmark_id = 9;
  return config;
}

class ChoiceLossTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Random random(5);
    qkv_.resize(kRows * kTime * width_);
    for (float& value : qkv_) value = static_cast<float>(random.Normal());
    blocks_.assign(kRows * kTime, kNone);
    blocks_[12] = {1, kNoBlock};
    blocks_[31] = {3, 0};
    blocks_[kTime + 34] = {kNoBlock, 5};
  }

  ChoiceBatch Batch() const { return {kRows, kTime, blocks_, 1}; }
  double LossOf(ChoiceLoss& loss, const std::vector<float>& qkv) const {
    std::vector<float> ignored(qkv.size());
    loss.Begin(Batch(), 1);
    loss.Add(1, qkv.data(), ignored.data());
    return loss.loss();
  }

  const ModelConfig config_ = SmallModel();
  const size_t width_ = config_.query_size() + 2 * config_.key_size();
  std::vector<float> qkv_;
  std::vector<std::array<int32_t, 2>> blocks_;
};

class ChoiceLossGradientTest : public ChoiceLossTest, public ::testing::WithParamInterface<double> {};
INSTANTIATE_TEST_SUITE_P(Any, ChoiceLossGradientTest, ::testing::Values(0.0, 0.4, 1.0));

TEST_P(ChoiceLossGradientTest, GradientIsThatOfTheLoss) {
  ChoiceLoss loss(config_, {.weight = 0.5, .first_layer = 1, .bank = 0, .any = GetParam()}, kTime);
  std::vector<float> gradient(qkv_.size());
  loss.Begin(Batch(), 3);
  loss.Add(0, qkv_.data(), gradient.data());
  EXPECT_FALSE(loss.any()) << "layer 0 is not taught";
  loss.Add(1, qkv_.data(), gradient.data());
  size_t moved = 0;
  for (size_t i = 0; i < qkv_.size(); ++i) {
    const float h = 0.01f;
    std::vector<float> changed = qkv_;
    changed[i] += h;
    const double above = LossOf(loss, changed);
    changed[i] -= 2 * h;
    const double below = LossOf(loss, changed);
    const double expected = 3 * 0.5 * (above - below) / (2 * h);
    ASSERT_NEAR(gradient[i], expected, 2e-4) << i;
    moved += std::abs(expected) > 1e-3;
  }
  EXPECT_GT(moved, 100u);
}

// The loss as it is defined, in f64, from queries and keys that were never rotated.
TEST_F(ChoiceLossTest, IsTheCrossEntropyOfTheSearch) {
  ChoiceLoss loss(config_, {.weight = 1, .first_layer = 1, .bank = 0}, kTime);
  RotaryTable table(config_);
  table.Set(nullptr, kRows, kTime, false);
  std::vector<float> rotated = qkv_;
  table.Apply(rotated.data(), width_, config_.num_attention_heads + config_.num_key_value_heads, kRows * kTime, false);
  const std::vector<double> frequencies = RotaryFrequencies(config_);
  const auto turned = [&](const float* from, double position) {
    std::vector<double> to(config_.head_dim);
    const size_t half = config_.head_dim / 2;
    for (size_t j = 0; j < half; ++j) {
      const double c = std::cos(position * frequencies[j]), s = std::sin(position * frequencies[j]);
      to[j] = from[j] * c - from[j + half] * s;
      to[j + half] = from[j + half] * c + from[j] * s;
    }
    return to;
  };
  double expected = 0, expected_any = 0;
  size_t terms = 0;
  const size_t blocks = kTime / 5;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i] == kNone) continue;
    const size_t row = i / kTime, position = i % kTime;
    double together = 0;
    for (size_t head = 0; head < config_.num_attention_heads; ++head) {
      // Five blocks are a chunk; slot 0 of k = 4 stands five blocks before it.
      const auto q = turned(&qkv_[i * width_ + head * 8], static_cast<double>(position % 25));
      double sum = 0, right = 0;
      for (size_t r = 0; r < kRows; ++r) {
        for (size_t b = 0; b < blocks; ++b) {
          if (r == row && b >= position / 5) continue;
          const auto k =
              turned(&qkv_[(r * kTime + b * 5 + 4) * width_ + config_.query_size() + head / 2 * 8], 4.0 - 25);
          double dot = 0;
          for (size_t j = 0; j < 8; ++j) dot += q[j] * k[j];
          const double weight = std::exp(dot / std::sqrt(8.0));
          sum += weight;
          const auto block = static_cast<int32_t>(b);
          if (r == row && (blocks_[i][0] == block || blocks_[i][1] == block)) right += weight;
        }
      }
      expected += std::log(sum / right);
      together += right / sum / 4;
      ++terms;
    }
    expected_any -= std::log(together);
  }
  ChoiceLoss any(config_, {.weight = 1, .first_layer = 1, .bank = 0, .any = 1}, kTime);
  EXPECT_NEAR(LossOf(any, rotated), expected_any / static_cast<double>(terms) * 4, 1e-5);
  EXPECT_NEAR(LossOf(loss, rotated), expected / static_cast<double>(terms), 1e-5);
}

TEST_F(ChoiceLossTest, EarlierBatchesTakePartAndAreRestored) {
  const ChoiceConfig choice{.weight = 1, .first_layer = 1, .bank = 10};
  ChoiceLoss loss(config_, choice, kTime);
  const double first = LossOf(loss, qkv_);
  const double second = LossOf(loss, qkv_);
  EXPECT_GT(second, first) << "the second row's seven landmarks are in the bank now";
  const double third = LossOf(loss, qkv_);
  EXPECT_GT(third, second) << "three more";
  EXPECT_NEAR(LossOf(loss, qkv_), third, 0.2);
  ChoiceLoss other(config_, choice, kTime);
  other.Restore(loss.State());
  EXPECT_EQ(LossOf(loss, qkv_), LossOf(other, qkv_));
  std::vector<float> state = loss.State();
  state[0] = 11;
  EXPECT_THROW(other.Restore(state), Error);
  state.pop_back();
  EXPECT_THROW(other.Restore(state), Error);
}

TEST_F(ChoiceLossTest, ARightLandmarkIsFound) {
  ChoiceLoss loss(config_, {.weight = 1, .first_layer = 1, .bank = 0}, kTime);
  std::fill(blocks_.begin(), blocks_.end(), kNone);
  EXPECT_FALSE((LossOf(loss, qkv_), loss.any()));
  // Right: all that can be seen from block 4; wrong: nothing that stands out.
  blocks_[22] = {2, kNoBlock};
  std::fill(qkv_.begin(), qkv_.end(), 0.0f);
  for (size_t j = 0; j < config_.query_size(); ++j) qkv_[22 * width_ + j] = 1;
  LossOf(loss, qkv_);
  EXPECT_NEAR(loss.loss(), std::log(11.0), 1e-5) << "four blocks of its row, seven of the other";
}

}  // namespace
}  // namespace cairn
