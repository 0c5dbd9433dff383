// The config of a run: every mistake has a message that names the setting; the learning rate follows its closed form.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "model_makers.h"
#include "train/run_config.h"
#include "training_runs.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

RunConfig Parse(const Json& json, const RunOverrides& overrides = {}) {
  return ParseRunConfig(json.dump(), "run.json", "place", overrides);
}

// The message about TinyRun() with one value changed.
std::string ErrorWith(const std::string& pointer, const Json& value) {
  Json json = TinyRun();
  json[Json::json_pointer(pointer)] = value;
  return ErrorOf([&] { ResolveModel(Parse(json), *WithLandmark(TinyTokenizer())); });
}

std::string ErrorWithout(const std::string& section, const std::string& key) {
  Json json = TinyRun();
  (section.empty() ? json : json[section]).erase(key);
  return ErrorOf([&] { Parse(json); });
}

TEST(RunConfig, ReadsEverySetting) {
  const RunConfig config = Parse(TinyRun());
  EXPECT_EQ(config.data.train, std::filesystem::path("place/data"));
  EXPECT_EQ(config.output, std::filesystem::path("place/run"));
  EXPECT_EQ(config.training.steps, 12u);
  EXPECT_EQ(config.training.learning_rate, 0.01);
  EXPECT_EQ(config.training.min_learning_rate, 0.001);
  EXPECT_EQ(config.training.beta2, 0.95);
  EXPECT_FALSE(config.training.decay_norms);
  const ModelConfig model = ResolveModel(config, *WithLandmark(TinyTokenizer()));
  EXPECT_EQ(model.vocab_size, kTinyVocab + 1);
  EXPECT_EQ(model.landmark.landmark_id, static_cast<int64_t>(kTinyVocab));
  EXPECT_EQ(model.max_position_embeddings, 36u);
  EXPECT_EQ(model.bos_token_id, 1);
}

TEST(RunConfig, ContextMissTokenGetsAPlaceOfItsOwn) {
  Json json = TinyRun();
  json["model"]["landmark"]["context_miss"] = Json::object();
  const ModelConfig model = ResolveModel(Parse(json), *WithLandmark(TinyTokenizer()));
  EXPECT_EQ(model.landmark.context_miss.token_id, static_cast<int64_t>(kTinyVocab + 1));
  EXPECT_EQ(model.vocab_size, kTinyVocab + 2);
}

TEST(RunConfig, MistakesAreNamed) {
  ExpectMessage(ErrorWith("/trainin", 1), "trainin is not a setting");
  ExpectMessage(ErrorWith("/training/stps", 1), "training.stps is not a setting");
  ExpectMessage(ErrorWith("/data/valid", "x"), "data.valid is not a setting");
  ExpectMessage(ErrorWith("/model/hidden", 3), "model.hidden is not a setting");
  ExpectMessage(ErrorWith("/model/landmark/blocks", 3), "landmark.blocks is not a setting");
  ExpectMessage(ErrorWithout("", "data"), "data is missing");
  ExpectMessage(ErrorWithout("", "output"), "output is missing");
  ExpectMessage(ErrorWithout("", "training"), "training is missing");
  ExpectMessage(ErrorWithout("data", "train"), "data.train is missing");
  ExpectMessage(ErrorWithout("training", "steps"), "training.steps is missing");
  ExpectMessage(ErrorWithout("training", "learning_rate"), "training.learning_rate is missing");
  ExpectMessage(ErrorWithout("data", "validation"), "training.validate_every");
  ExpectMessage(ErrorWith("/training", 3), "training is not a JSON object");
  ExpectMessage(ErrorWith("/training/steps", 0), "training.steps is 0");
  ExpectMessage(ErrorWith("/training/steps", 1.5), "training.steps is not an integer");
  ExpectMessage(ErrorWith("/training/steps", -4), "training.steps is negative");
  ExpectMessage(ErrorWith("/training/batch_rows", 0), "training.batch_rows is 0");
  ExpectMessage(ErrorWith("/training/accumulate", 0), "training.accumulate is 0");
  ExpectMessage(ErrorWith("/training/context_length", 1), "training.context_length is 1");
  ExpectMessage(ErrorWith("/training/warmup_steps", 13), "training.warmup_steps is 13");
  ExpectMessage(ErrorWith("/training/learning_rate", 0), "training.learning_rate is 0");
  ExpectMessage(ErrorWith("/training/learning_rate", "high"), "training.learning_rate is not a number");
  ExpectMessage(ErrorWith("/training/min_learning_rate", 1), "training.min_learning_rate is 1");
  ExpectMessage(ErrorWith("/training/beta1", 1), "training.beta1 is 1");
  ExpectMessage(ErrorWith("/training/average", 1), "training.average is 1");
  ExpectMessage(ErrorWith("/training/recompute", 1), "training.recompute is neither true nor false");
  ExpectMessage(ErrorWith("/data/documents", "glued"), "data.documents is \"glued\"");
  ExpectMessage(ErrorWith("/data/train", 4), "data.train is not a text");
  ExpectMessage(ErrorWith("/landmark", Json::object()), "landmark stands beside model");
  ExpectMessage(ErrorWith("/lora", Json::object()), "lora is for 'cairn tune'");
  ExpectMessage(ErrorWith("/model/vocab_size", 100), "vocab_size");
  ExpectMessage(ErrorWith("/model/hidden_size", 33), "hidden_size 33 is not a multiple");
}

TEST(RunConfig, LoraMistakesAreNamed) {
  const auto error = [](const Json& lora) {
    Json json = TinyTuning();
    json["lora"] = lora;
    return ErrorOf([&] { Parse(json); });
  };
  EXPECT_EQ(error({{"rank", 4}}), "no error");
  ExpectMessage(error({{"rank", 0}}), "lora.rank is 0");
  ExpectMessage(error({{"alpha", -1}}), "lora.alpha is -1");
  ExpectMessage(error({{"targets", Json::array()}}), "lora.targets");
  ExpectMessage(error({{"targets", {"q"}}}), "lora.targets has \"q\"");
  ExpectMessage(error({{"targets", {"q_proj", "q_proj"}}}), "twice");
  ExpectMessage(error({{"save", "both"}}), "lora.save is \"both\"");
  ExpectMessage(error({{"r", 4}}), "lora.r is not a setting");
}

TEST(RunConfig, CommandLineWins) {
  RunOverrides overrides;
  overrides.steps = 500;
  overrides.output = "elsewhere";
  overrides.attention = AttentionKind::kFull;
  Json json = TinyRun();
  json["training"].erase("warmup_steps");
  json["model"]["landmark"]["positional_jump"] = 5;  // full attention has none
  const RunConfig config = Parse(json, overrides);
  EXPECT_EQ(config.training.steps, 500u);
  EXPECT_EQ(config.training.warmup_steps, 10u);
  EXPECT_EQ(config.output, std::filesystem::path("elsewhere"));
  EXPECT_EQ(ResolveModel(config, *WithLandmark(TinyTokenizer())).landmark.attention, AttentionKind::kFull);
}

TEST(RunConfig, ShippedConfigsAreSound) {
  const auto configs = std::filesystem::path(CAIRN_SOURCE_DIR) / "configs";
  size_t models = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(configs)) {
    if (entry.is_directory()) continue;
    SCOPED_TRACE(entry.path().string());
    const RunConfig config = ReadRunConfig(entry.path());
    if (!config.model) continue;
    ++models;
    const ModelConfig model = ResolveModel(config, *WithLandmark(TinyTokenizer()));
    EXPECT_GE(model.num_hidden_layers, 4u);
  }
  EXPECT_GE(models, 3u);
}

TEST(LearningRate, WarmsUpAndFollowsTheCosine) {
  TrainingConfig t;
  t.steps = 110;
  t.warmup_steps = 10;
  t.learning_rate = 2;
  t.min_learning_rate = 0.5;
  for (uint64_t i = 0; i < 10; ++i) EXPECT_DOUBLE_EQ(LearningRate(t, i), 0.2 * static_cast<double>(i + 1));
  EXPECT_DOUBLE_EQ(LearningRate(t, 10), 2);
  for (uint64_t i = 10; i < 110; ++i) {
    EXPECT_NEAR(LearningRate(t, i), 1.25 + 0.75 * std::cos(std::numbers::pi * static_cast<double>(i - 10) / 99), 1e-12);
  }
  EXPECT_DOUBLE_EQ(LearningRate(t, 109), 0.5);
  t.steps = t.warmup_steps = 1;
  EXPECT_DOUBLE_EQ(LearningRate(t, 0), 2);
}

}  // namespace
}  // namespace cairn
