// Small models for the tests of file formats, and comparison of models bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/random.h"
#include "formats/model_source.h"
#include "formats/rotary_layout.h"

namespace cairn {

// Grouped queries, rows that fit no block type in the feed-forward part, and a landmark.
inline ModelConfig TestConfig() {
  ModelConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 40;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 33;
  config.max_position_embeddings = 32;
  config.rms_norm_eps = 1e-5;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  config.landmark.attention = AttentionKind::kLandmark;
  config.landmark.block_length = 7;
  config.landmark.landmark_id = 32;
  return config;
}

inline std::map<std::string, Tensor> RandomTensors(const ModelConfig& config, uint64_t seed) {
  Random random(seed);
  std::map<std::string, Tensor> tensors;
  for (const ExpectedTensor& expected : ExpectedTensors(config)) {
    Tensor tensor(expected.shape);
    for (float& value : tensor.span()) value = static_cast<float>(random.Normal());
    tensors[expected.name] = std::move(tensor);
  }
  return tensors;
}

inline std::shared_ptr<const ModelSource> RandomModel(const ModelConfig& config, uint64_t seed = 1) {
  return MakeModelSource(config, RandomTensors(config, seed));
}

inline bool SameBits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.span().size_bytes()) == 0;
}

// Every weight as f32 in one layout, bit by bit.
inline void ExpectSameWeights(const ModelSource& a, const ModelSource& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : a.tensors()) {
    EXPECT_TRUE(SameBits(a.ReadFloats(name, RotaryLayout::kHalf), b.ReadFloats(name, RotaryLayout::kHalf))) << name;
  }
}

template <typename Action>
std::string ErrorOf(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline void ExpectMessage(const std::string& actual, const std::string& expected) {
  EXPECT_NE(actual.find(expected), std::string::npos) << "expected: " << expected << "\nactual:   " << actual;
}

#define EXPECT_ERROR(action, text)                                           \
  do {                                                                       \
    SCOPED_TRACE(#action);                                                   \
    ::cairn::ExpectMessage(::cairn::ErrorOf([&] { (void)(action); }), text); \
  } while (false)

}  // namespace cairn
