// Weights that training starts with: untrained, a model that begins with copying copies.
#include "model/initial_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "train/engine.h"

namespace cairn {
namespace {

ModelConfig Config(const std::string& initializer) {
  ModelConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 64;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 128;
  config.vocab_size = 1000;
  config.rope_theta = 1e12;
  config.tie_word_embeddings = true;
  config.other_keys = R"({"initializer_range": 0.06, "initializer": ")" + initializer + "\"}";
  return config;
}

// Mean loss of random tokens the second time they are seen, from the fifth on.
double LossOfRepeated(const ModelConfig& config) {
  ParameterLayout layout(config);
  Parameters weights(layout);
  InitialiseParameters(config, 3, weights);
  constexpr size_t kTokens = 24;
  Random random(5);
  std::vector<int32_t> first;
  for (size_t i = 0; i < kTokens; ++i) first.push_back(static_cast<int32_t>(random.Below(990)));
  std::vector<int32_t> ids, targets;
  size_t scored = 0;
  for (size_t i = 0; i < 2 * kTokens; ++i) {
    const bool known = i >= kTokens + 4 && i + 1 < 2 * kTokens;
    ids.push_back(first[i % kTokens]);
    targets.push_back(known ? first[(i + 1) % kTokens] : -1);
    scored += known ? 1 : 0;
  }
  Engine engine(config, layout, {.rows = 1, .time = ids.size()});
  EngineBatch batch;
  batch.rows = 1;
  batch.time = ids.size();
  batch.input_ids = ids.data();
  batch.targets = targets.data();
  return engine.Evaluate(weights, batch) / static_cast<double>(scored);
}

TEST(InitialWeights, CopyingCopiesBeforeAnyTraining) {
  for (const RotaryLayout layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
    for (const bool tied : {true, false}) {
      ModelConfig config = Config("copying"), random = Config("random");
      config.rotary_layout = random.rotary_layout = layout;
      config.tie_word_embeddings = random.tie_word_embeddings = tied;
      EXPECT_LT(LossOfRepeated(config), 1.0);
      EXPECT_GT(LossOfRepeated(random), 5.0);
    }
  }
}

// What stands in the stream for a token at the input is not read as the token to be written.
TEST(InitialWeights, UntiedEmbeddingsDoNotRepeatTheLastToken) {
  ModelConfig config = Config("copying");
  config.tie_word_embeddings = false;
  ParameterLayout layout(config);
  Parameters weights(layout);
  InitialiseParameters(config, 3, weights);
  const std::span<const float> in = weights.Get("model.embed_tokens.weight"), out = weights.Get("lm_head.weight");
  double same = 0, size = 0;
  for (size_t id = 0; id < config.vocab_size; ++id) {
    for (size_t j = 0; j < config.hidden_size; ++j) {
      const size_t at = id * config.hidden_size + j;
      same += static_cast<double>(in[at]) * static_cast<double>(out[at]);
      size += static_cast<double>(out[at]) * static_cast<double>(out[at]);
    }
  }
  EXPECT_LT(std::abs(same), 0.1 * size);
}

TEST(InitialWeights, WhatCannotBeginWithCopyingIsRefused) {
  for (const double theta : {2.0, 1e12}) {
    ModelConfig config = Config(theta < 3 ? "copying" : "recalling");
    config.rope_theta = theta;
    ParameterLayout layout(config);
    Parameters weights(layout);
    EXPECT_THROW(InitialiseParameters(config, 1, weights), Error);
  }
}

}  // namespace
}  // namespace cairn
