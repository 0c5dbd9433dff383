// Models that grow: they compute what they did before, and what is new can learn.
#include "formats/grow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "infer/inference_model.h"
#include "infer/session.h"
#include "model_makers.h"
#include "test_files.h"

namespace cairn {
namespace {

// Weights of a size that keeps logits moderate.
std::shared_ptr<const ModelSource> Small(const ModelConfig& config) {
  std::map<std::string, Tensor> tensors = RandomTensors(config, 3);
  for (auto& [name, tensor] : tensors) {
    for (float& x : tensor.span()) x = name.ends_with("norm.weight") ? 1 + 0.1f * x : 0.15f * x;
  }
  return MakeModelSource(config, std::move(tensors));
}

std::vector<std::vector<float>> Logits(const std::shared_ptr<const ModelSource>& source) {
  SessionOptions options;
  options.block_format = BlockFormat::kF32;
  options.top_k = 2;
  Session session(InferenceModel::Load(source), options);
  std::vector<int32_t> text;
  Random random(5);
  for (size_t i = 0; i < 60; ++i) text.push_back(static_cast<int32_t>(random.Below(31)));
  std::vector<std::vector<float>> rows;
  session.Append(text, [&](size_t, std::span<const float> row) { rows.emplace_back(row.begin(), row.end()); });
  return rows;
}

TEST(Grow, TheLargerModelComputesTheSame) {
  for (const bool tied : {false, true}) {
    for (const RotaryLayout layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
      ModelConfig config = TestConfig();
      config.tie_word_embeddings = tied;
      config.rotary_layout = layout;
      const auto small = Small(config);
      const auto large = GrowModel(
          *small, {.hidden_size = 96, .num_attention_heads = 8, .num_key_value_heads = 4, .intermediate_size = 72});
      EXPECT_EQ(large->config().hidden_size, 96u);
      EXPECT_EQ(large->config().head_dim, 16u);
      EXPECT_GT(ParameterCount(large->config()), ParameterCount(small->config()));
      const auto before = Logits(small), after = Logits(large);
      ASSERT_EQ(before.size(), after.size());
      for (size_t t = 0; t < before.size(); ++t) {
        // The landmark is never written.
        for (size_t i = 0; i < 32; ++i) ASSERT_NEAR(before[t][i], after[t][i], 2e-5) << t << " " << i;
      }
    }
  }
}

TEST(Grow, NewHeadsReadWithoutWriting) {
  const auto small = Small(TestConfig());
  const auto large = GrowModel(*small, {.num_attention_heads = 8, .num_key_value_heads = 4});
  const Tensor q = large->ReadFloats("model.layers.1.self_attn.q_proj.weight");
  const Tensor o = large->ReadFloats("model.layers.1.self_attn.o_proj.weight");
  double read = 0, written = 0;
  for (size_t row = 64; row < 128; ++row) {
    for (size_t column = 0; column < 64; ++column) {
      read += std::abs(static_cast<double>(q[row * 64 + column]));
      written += std::abs(static_cast<double>(o[column * 128 + row]));
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_EQ(written, 0);
}

TEST(Grow, RefusesWhatWouldChangeTheModel) {
  const auto small = Small(TestConfig());
  EXPECT_THROW(GrowModel(*small, {.hidden_size = 32}), Error);
  EXPECT_THROW(GrowModel(*small, {.num_attention_heads = 8}), Error) << "a KV head would get other heads";
  EXPECT_THROW(GrowModel(*small, {.num_attention_heads = 6, .num_key_value_heads = 4}), Error);
}

}  // namespace
}  // namespace cairn
