// config.json: what is read, what is refused with which words, and the round trip.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/config.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

Json SmallConfig() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 48},
          {"intermediate_size", 80},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 61},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"}};
}

ModelConfig Parse(const Json& json) { return ParseModelConfig(json.dump(), "config.json"); }

std::string ErrorOf(const std::string& text) {
  try {
    ParseModelConfig(text, "config.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfig, ReadsFieldsAndDefaults) {
  const ModelConfig config = Parse(SmallConfig());
  EXPECT_EQ(config.hidden_size, 48u);
  EXPECT_EQ(config.head_dim, 12u);
  EXPECT_EQ(config.key_size(), 24u);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(config.rotary_layout, RotaryLayout::kHalf);
  EXPECT_EQ(config.landmark, LandmarkConfig());
  EXPECT_FALSE(config.has_landmark());
}

TEST(ModelConfig, ReadsTheLandmarkSection) {
  Json json = SmallConfig();
  json["landmark"] = {
      {"block_length", 7},
      {"landmark_id", 60},
      {"positional_jump", 30},
      {"context_miss", {{"token_id", 59}, {"probability", 0.25}}},
      {"memory_training",
       {{"enabled", false}, {"k", 4}, {"chunk_length", 70}, {"distractors", "bank"}, {"distractor_blocks", 8}}}};
  const LandmarkConfig landmark = Parse(json).landmark;
  EXPECT_EQ(landmark.attention, AttentionKind::kLandmark);
  EXPECT_EQ(landmark.block_length, 7u);
  EXPECT_EQ(landmark.landmark_id, 60);
  EXPECT_EQ(landmark.positional_jump, 30u);
  EXPECT_TRUE(landmark.context_miss.enabled);
  EXPECT_EQ(landmark.context_miss.probability, 0.25);
  EXPECT_FALSE(landmark.memory_training.enabled);
  EXPECT_EQ(landmark.memory_training.k, 4u);
  EXPECT_EQ(landmark.memory_training.chunk_length, 70u);
  EXPECT_EQ(landmark.memory_training.distractors, DistractorSource::kBank);
}

TEST(ModelConfig, RoundTripKeepsEverything) {
  std::vector<Json> configs(6, SmallConfig());
  configs[1]["landmark"] = {{"block_length", 7},
                            {"landmark_id", 60},
                            {"context_miss", {{"token_id", 59}}},
                            {"memory_training", {{"enabled", false}, {"chunk_length", 4096}}}};
  configs[2]["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  configs[2]["head_dim"] = 16;
  configs[2]["tie_word_embeddings"] = true;
  configs[3]["rope_scaling"] = {{"rope_type", "llama3"},
                                {"factor", 32.0},
                                {"low_freq_factor", 1.0},
                                {"high_freq_factor", 4.0},
                                {"original_max_position_embeddings", 8192}};
  configs[3]["eos_token_id"] = {3, 4, 5};
  configs[3]["rope_interleaved"] = true;
  configs[4]["landmark"] = {{"attention", "xl"}, {"xl_cache_length", 256}};
  configs[4]["bos_token_id"] = nullptr;
  configs[5]["pad_token_id"] = 7;
  configs[5]["transformers_version"] = "4.40.0";
  for (const Json& json : configs) {
    const ModelConfig config = Parse(json);
    EXPECT_EQ(ParseModelConfig(ToJson(config), "again"), config) << json;
  }
  const Json written = Json::parse(ToJson(Parse(configs[5])));
  EXPECT_EQ(written["pad_token_id"], 7);
  EXPECT_EQ(written["model_type"], "llama");
  EXPECT_EQ(written["architectures"], Json({"LlamaForCausalLM"}));
  EXPECT_EQ(Parse(configs[4]).bos_token_id, -1);
}

TEST(ModelConfig, RefusesWithTheFieldsName) {
  struct Case {
    std::function<void(Json&)> damage;
    const char* message;
  };
  const auto set = [](const char* key, Json value) { return [=](Json& json) { json[key] = value; }; };
  const auto landmark = [](Json value) { return [=](Json& json) { json["landmark"] = value; }; };
  const Case cases[] = {
      {[](Json& json) { json.erase("hidden_size"); }, "hidden_size is missing"},
      {[](Json& json) { json.erase("vocab_size"); }, "vocab_size is missing"},
      {[](Json& json) { json.erase("num_hidden_layers"); }, "num_hidden_layers is missing"},
      {set("hidden_size", 50), "hidden_size 50 is not a multiple of num_attention_heads 4"},
      {set("num_key_value_heads", 3), "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
      {set("num_key_value_heads", 0), "num_key_value_heads is 0"},
      {set("num_attention_heads", 0), "num_attention_heads is 0"},
      {set("num_hidden_layers", -1), "num_hidden_layers is -1, which is negative"},
      {set("num_hidden_layers", 1000000), "num_hidden_layers is 1000000"},
      {set("hidden_size", 18446744073709551615u), "hidden_size is 18446744073709551615, which is absurdly large"},
      {set("hidden_size", int64_t{1} << 40), "hidden_size is 1099511627776"},
      {set("hidden_size", 48.5), "hidden_size is not an integer"},
      {set("hidden_size", "48"), "hidden_size is not an integer"},
      {set("head_dim", 7), "head_dim is 7, but rotary pairs need an even one"},
      {set("head_dim", 0), "head_dim is 0"},
      {set("rms_norm_eps", -1e-5), "rms_norm_eps is -1e-05"},
      {set("rms_norm_eps", "small"), "rms_norm_eps is not a number"},
      {set("rope_theta", 0), "rope_theta is 0"},
      {set("tie_word_embeddings", 1), "tie_word_embeddings is neither true nor false"},
      {set("model_type", "gpt2"), "model_type is \"gpt2\""},
      {set("architectures", {"GPT2LMHeadModel"}), "architectures is not"},
      {[](Json& json) { json.erase("model_type"), json.erase("architectures"); }, "model_type is missing"},
      {set("hidden_act", "gelu"), "hidden_act is \"gelu\""},
      {set("attention_bias", true), "attention_bias is true"},
      {set("quantization_config", {{"bits", 4}}), "quantization_config"},
      {set("bos_token_id", 61), "bos_token_id is 61, but the vocabulary has 61 tokens"},
      {set("eos_token_id", {2, 99}), "eos_token_id is 99"},
      {set("eos_token_id", -5), "eos_token_id is -5"},
      {set("torch_dtype", "int8"), "torch_dtype is 'int8'"},
      {set("dtype", "float16"), "no error"},
      {[](Json& json) { json["dtype"] = "float16", json["torch_dtype"] = "float32"; }, "contradict each other"},
      {set("rope_scaling", {{"type", "yarn"}, {"factor", 4}}), "rope_scaling.rope_type is \"yarn\""},
      {set("rope_scaling", {{"type", "linear"}}), "rope_scaling.factor is missing"},
      {set("rope_scaling", {{"type", "linear"}, {"factor", 0}}), "rope_scaling.factor is 0"},
      {set("rope_scaling", 3), "rope_scaling is not a JSON object"},
      {set("rope_scaling", {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 5}}),
       "rope_scaling.low_freq_factor 5 is not below high_freq_factor 4"},
      {landmark({{"block_length", 7}, {"landmark_id", 61}}), "landmark.landmark_id is 61, but the vocabulary has 61"},
      {landmark({{"landmark_id", 60}}), "landmark.block_length is missing"},
      {landmark({{"block_length", 7}}), "landmark.landmark_id is missing"},
      {landmark({{"block_length", -7}, {"landmark_id", 60}}), "landmark.block_length is -7"},
      {landmark({{"attention", "sparse"}}), "landmark.attention is \"sparse\""},
      {landmark({{"blocklength", 7}}), "landmark.blocklength is not a setting that Cairn knows"},
      {landmark("yes"), "landmark is not a JSON object"},
      {landmark({{"block_length", 7}, {"landmark_id", 60}, {"context_miss", {{"enabled", true}}}}),
       "landmark.context_miss.token_id is missing"},
      {landmark({{"block_length", 7}, {"landmark_id", 60}, {"context_miss", {{"token_id", 60}}}}),
       "landmark.context_miss.token_id and landmark.landmark_id are both 60"},
      {landmark({{"block_length", 7}, {"landmark_id", 60}, {"context_miss", {{"token_id", 5}, {"probability", 1.5}}}}),
       "landmark.context_miss.probability is 1.5"},
      {landmark({{"attention", "full"}, {"local_layers", 1}}), "landmark.local_layers needs landmark.attention"},
      {landmark({{"attention", "landmark"}, {"block_length", 5}, {"landmark_id", 3}, {"local_layers", 99}}),
       "one must read the memory"},
      {landmark({{"block_length", 5}, {"landmark_id", 3}, {"local_blocks", 2}}), "set landmark.local_layers"},
      {landmark({{"block_length", 5}, {"landmark_id", 3}, {"local_layers", 1}, {"local_blocks", 5000}}),
       "more than 1024"},
      {landmark({{"block_length", 5}, {"landmark_id", 3}, {"context_miss", {{"token_id", 5}, {"cutoff", 1.5}}}}),
       "landmark.context_miss.cutoff is 1.5"},
      {landmark({{"attention", "full"}, {"positional_jump", 3}}), "landmark.positional_jump needs landmark.attention"},
      {landmark({{"attention", "full"}, {"xl_cache_length", 3}}), "landmark.xl_cache_length needs landmark.attention"},
      {landmark({{"block_length", 7}, {"landmark_id", 60}, {"memory_training", {{"distractor_blocks", 3}}}}),
       "landmark.memory_training.distractors is \"none\" but distractor_blocks is 3"},
      {landmark({{"block_length", 7}, {"landmark_id", 60}, {"memory_training", {{"chunk_length", 0}}}}),
       "landmark.memory_training.chunk_length is 0"},
      {landmark({{"block_length", 7}, {"landmark_id", 60}, {"memory_training", {{"chunk_length", 50}}}}),
       "chunk_length 50 is not a multiple of landmark.block_length 7"},
      {landmark({{"block_length", 7},
                 {"landmark_id", 60},
                 {"positional_jump", 3},
                 {"memory_training", {{"chunk_length", 70}}}}),
       "memory_training cannot be combined with positional_jump"},
  };
  for (const Case& c : cases) {
    Json json = SmallConfig();
    c.damage(json);
    const std::string message = ErrorOf(json.dump());
    EXPECT_NE(message.find(c.message), std::string::npos) << "expected: " << c.message << "\nactual:   " << message;
  }
}

TEST(ModelConfig, RefusesWhatIsNoObject) {
  EXPECT_NE(ErrorOf("").find("is not valid JSON"), std::string::npos);
  EXPECT_NE(ErrorOf("{\"hidden_size\": 4").find("is not valid JSON"), std::string::npos);
  EXPECT_NE(ErrorOf("[1, 2]").find("is not a JSON object"), std::string::npos);
  EXPECT_NE(ErrorOf("{\"a\": 1, \"a\": 2}").find("the key 'a' stands twice"), std::string::npos);
  EXPECT_NE(ErrorOf("{\"a\": 1e999}").find("is not valid JSON"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(100000, '[')).find("nested more than"), std::string::npos);
}

TEST(ModelConfig, ExpectedTensorsAgreeWithTheParameterCount) {
  for (const bool tied : {false, true}) {
    Json json = SmallConfig();
    json["tie_word_embeddings"] = tied;
    json["head_dim"] = 16;
    const ModelConfig config = Parse(json);
    uint64_t sum = 0;
    bool has_head = false;
    for (const ExpectedTensor& tensor : ExpectedTensors(config)) {
      uint64_t count = 1;
      for (const uint64_t size : tensor.shape) count *= size;
      sum += count;
      has_head |= tensor.name == "lm_head.weight";
      if (tensor.name == "model.layers.1.self_attn.k_proj.weight") {
        EXPECT_EQ(tensor.shape, (Shape{32, 48}));
      }
      if (tensor.name == "model.layers.1.self_attn.o_proj.weight") {
        EXPECT_EQ(tensor.shape, (Shape{48, 64}));
      }
    }
    EXPECT_EQ(sum, ParameterCount(config));
    EXPECT_EQ(has_head, !tied);
  }
}

TEST(ModelConfig, RotaryFrequencies) {
  Json json = SmallConfig();
  json["head_dim"] = 128;
  json["rope_theta"] = 500000.0;
  const std::vector<double> plain = RotaryFrequencies(Parse(json));
  ASSERT_EQ(plain.size(), 64u);
  EXPECT_DOUBLE_EQ(plain[0], 1.0);
  EXPECT_NEAR(plain[32], 1 / std::sqrt(500000.0), 1e-12);
  json["rope_scaling"] = {{"type", "linear"}, {"factor", 4}};
  EXPECT_DOUBLE_EQ(RotaryFrequencies(Parse(json))[5], plain[5] / 4);
  json["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 8}, {"original_max_position_embeddings", 8192}};
  const std::vector<double> scaled = RotaryFrequencies(Parse(json));
  EXPECT_DOUBLE_EQ(scaled[0], plain[0]);        // many turns: as before
  EXPECT_DOUBLE_EQ(scaled[63], plain[63] / 8);  // less than one turn in 8192 positions
  // Pair 32 makes 1.84 turns: (1.84 - 1) / 3 of the way.
  const double keep = (8192 * plain[32] / (2 * M_PI) - 1) / 3;
  EXPECT_NEAR(scaled[32], plain[32] * ((1 - keep) / 8 + keep), 1e-12);
}

}  // namespace
}  // namespace cairn
