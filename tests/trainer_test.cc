// Training runs inside one process: exact resuming, damaged checkpoints, accumulation, LoRA, growth and export.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>

#include "base/log.h"
#include "base/threads.h"
#include "formats/gguf_model.h"
#include "formats/huggingface.h"
#include "formats/llama2c.h"
#include "io/safetensors.h"
#include "model_makers.h"
#include "train/checkpoint.h"
#include "train/engine.h"
#include "train/lora.h"
#include "train/model_growth.h"
#include "train/trainer.h"
#include "training_runs.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    spdlog::set_level(spdlog::level::off);
    SetThreadCount(1);  // such small models only wait for each other's threads
    MakeTinyData(scratch_.path());
  }

  RunConfig Config(const Json& json) const { return ParseRunConfig(json.dump(), "run.json", scratch_.path()); }
  // A whole run into `output`.
  TrainResult Train(Json json, const std::string& output, const TrainerOptions& options = {}) {
    json["output"] = output;
    TrainJob job = PrepareTraining(Config(json));
    return RunTraining(job, options, *MakeSingleCommunicator());
  }
  std::vector<std::string> Losses(const std::string& output) const { return LossesOf(scratch_ / output / "log.jsonl"); }
  std::string Weights(const std::string& output) const {
    return ReadTextFile(scratch_ / output / "model/model.safetensors");
  }

  // Stops the run after `steps`.
  static TrainerOptions StopAfter(uint64_t steps) {
    TrainerOptions options;
    auto left = std::make_shared<uint64_t>(steps);
    options.stop = [left] { return --*left == 0; };
    return options;
  }
  static TrainerOptions Resuming() {
    TrainerOptions options;
    options.resume = true;
    return options;
  }

  ScratchDirectory scratch_{SmallFilesDirectory()};
};

// Everything that draws random numbers.
Json RunWithOptions() {
  Json json = TinyRun();
  json["model"]["landmark"]["positional_jump"] = 5;
  json["model"]["landmark"]["context_miss"] = {{"probability", 0.5}};
  json["training"]["accumulate"] = 2;
  json["training"]["log_every"] = 3;
  return json;
}

TEST_F(TrainerTest, LossFalls) {
  const TrainResult result = Train(TinyRun(), "a");
  const auto losses = Losses("a");
  EXPECT_EQ(losses.size(), 12u + 4u);  // validation at 0, 5, 10 and 12
  EXPECT_EQ(losses[0].rfind("validation 0 ", 0), 0u);
  EXPECT_LT(*result.validation_loss, 4.0);  // from ln(267) = 5.6
  EXPECT_EQ(ListCheckpoints(scratch_ / "a" / "checkpoints").size(), 2u);
}

TEST_F(TrainerTest, EveryKindOfAttentionTrains) {
  for (const char* kind : {"full", "xl"}) {
    Json json = TinyRun();
    json["model"]["landmark"] = {{"attention", kind}};
    if (std::string(kind) == "xl") json["model"]["landmark"]["xl_segment_length"] = 12;
    EXPECT_LT(*Train(json, kind).validation_loss, 4.0) << kind;
  }
}

TEST_F(TrainerTest, InterruptedAndResumedRunIsTheSame) {
  Train(RunWithOptions(), "whole");
  const TrainResult part = Train(RunWithOptions(), "parts", StopAfter(7));
  EXPECT_TRUE(part.interrupted);
  EXPECT_EQ(part.steps, 7u);
  EXPECT_FALSE(fs::exists(scratch_ / "parts" / "model"));
  const TrainResult rest = Train(RunWithOptions(), "parts", Resuming());
  EXPECT_FALSE(rest.interrupted);
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(TrainerTest, TheModelIsTheMeanOfTheStepsWeights) {
  Json json = TinyRun();
  json["training"]["steps"] = 4;
  std::vector<std::vector<float>> seen;  // before the steps
  TrainerOptions watching;
  watching.before_step = [&](uint64_t, Parameters& weights) {
    seen.emplace_back(weights.data(), weights.data() + weights.size());
  };
  json["output"] = "plain";
  TrainJob plain = PrepareTraining(Config(json));
  RunTraining(plain, watching, *MakeSingleCommunicator());
  seen.emplace_back(plain.weights->data(), plain.weights->data() + plain.weights->size());

  constexpr double kDecay = 0.7;
  json["training"]["average"] = kDecay;
  json["output"] = "mean";
  TrainJob mean = PrepareTraining(Config(json));
  const TrainResult result = RunTraining(mean, {}, *MakeSingleCommunicator());
  for (const ParameterSlot& slot : mean.layout->slots()) {
    for (size_t i = slot.offset; i < slot.offset + slot.size; ++i) {
      double sum = 0, weight = 0;
      for (size_t step = 1; step < seen.size(); ++step) {
        const double w = std::pow(kDecay, static_cast<double>(seen.size() - 1 - step));
        sum += w * seen[step][i];
        weight += w;
      }
      ASSERT_NEAR(mean.weights->data()[i], sum / weight, 1e-6) << slot.name;
    }
  }
  // Its loss was that of the mean: a run of no further step begins with it.
  const auto source = OpenModel(result.result);
  Json check = TinyTuning();
  check["output"] = "check";
  check["training"]["steps"] = 1;
  check["training"]["warmup_steps"] = 0;
  check["training"]["learning_rate"] = 1e-12;
  check["tokenizer"] = "landmark";
  TrainJob tune = PrepareTuning(Config(check), *source, result.result);
  EXPECT_NEAR(*RunTraining(tune, {}, *MakeSingleCommunicator()).validation_loss, *result.validation_loss, 1e-5);
}

TEST_F(TrainerTest, AnAverageIsResumed) {
  Json json = RunWithOptions();
  json["training"]["average"] = 0.9;
  Train(json, "whole");
  Train(json, "parts", StopAfter(7));
  Train(json, "parts", Resuming());
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
  Train(RunWithOptions(), "last");
  EXPECT_NE(Weights("last"), Weights("whole"));
}

TEST_F(TrainerTest, RecordsBeyondTheCheckpointAreComputedAgain) {
  Train(TinyRun(), "whole");
  TrainerOptions dies;  // after step 6; the last checkpoint is that of step 4
  dies.before_step = [](uint64_t step, Parameters&) {
    if (step == 6) throw std::runtime_error("killed");
  };
  EXPECT_THROW(Train(TinyRun(), "killed", dies), std::runtime_error);
  std::ofstream(scratch_ / "killed/log.jsonl", std::ios::app) << "{\"type\":\"step\",\"st";  // half a line
  Train(TinyRun(), "killed", Resuming());
  EXPECT_EQ(Losses("killed"), Losses("whole"));
  EXPECT_EQ(Weights("killed"), Weights("whole"));
}

TEST_F(TrainerTest, DamagedCheckpointsArePassedOver) {
  Train(TinyRun(), "whole");
  const auto damage = [&](const std::string& name, auto action) {
    SCOPED_TRACE(name);
    Train(TinyRun(), name, StopAfter(9));
    const fs::path newest = ListCheckpoints(scratch_ / name / "checkpoints").back();
    ASSERT_EQ(newest.filename(), "step-000009");
    action(newest);
    Train(TinyRun(), name, Resuming());
    EXPECT_EQ(Losses(name), Losses("whole"));
    EXPECT_EQ(Weights(name), Weights("whole"));
  };
  damage("truncated", [](const fs::path& p) { fs::resize_file(p / "model.safetensors", 5000); });
  damage("stateless", [](const fs::path& p) { fs::remove(p / "state.json"); });
  damage("flipped", [](const fs::path& p) {
    std::fstream file(p / "optimizer.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('\x55');
  });
  damage("unfinished", [](const fs::path& p) { fs::rename(p, p.string() + ".unfinished"); });
  EXPECT_FALSE(fs::exists(scratch_ / "unfinished/checkpoints/step-000009.unfinished"));
}

TEST_F(TrainerTest, AllCheckpointsDamagedIsAnError) {
  Train(TinyRun(), "a", StopAfter(2));
  fs::remove(scratch_ / "a/checkpoints/step-000002/state.json");
  EXPECT_ERROR(Train(TinyRun(), "a", Resuming()), "no checkpoint in");
}

TEST_F(TrainerTest, OtherSettingsAreNotResumed) {
  Train(TinyRun(), "a", StopAfter(2));
  Json json = TinyRun();
  json["training"]["seed"] = 4;
  EXPECT_ERROR(Train(json, "a", Resuming()), "training.seed");
  json = TinyRun();
  json["model"]["hidden_size"] = 64;
  EXPECT_ERROR(Train(json, "a", Resuming()), "model.hidden_size");
}

TEST_F(TrainerTest, OtherDataIsNotResumed) {
  Train(TinyRun(), "a", StopAfter(2));
  PrepareOptions prepare;
  std::string text = ReadTextFile(scratch_ / "text.txt");
  text[7] = text[7] == 'e' ? 'o' : 'e';  // as many tokens as before
  WriteFileAtomically(scratch_ / "text.txt", text);
  prepare.inputs = {scratch_ / "text.txt"};
  prepare.validation_fraction = 0.1;
  prepare.tokenizer = TinyTokenizer();
  prepare.output = scratch_ / "other-data";
  PrepareData(prepare);
  Json json = TinyRun();
  json["data"]["train"] = "other-data";
  EXPECT_ERROR(Train(json, "a", Resuming()), "other settings (data.train)");
  fs::rename(scratch_ / "data", scratch_ / "moved");  // the same tokens elsewhere are the same data
  json["data"] = {{"train", "moved"}, {"validation", "moved"}};
  EXPECT_EQ(Train(json, "a", Resuming()).steps, 12u);
}

Json RunWithBank() {
  Json json = TinyRun();
  json["model"]["landmark"]["memory_training"] = {
      {"k", 1}, {"chunk_length", 14}, {"distractors", "bank"}, {"distractor_blocks", 2}};
  json["training"]["context_length"] = 48;
  return json;
}

TEST_F(TrainerTest, TheBankOfEarlierBlocksIsResumed) {
  Train(RunWithBank(), "whole");
  Train(RunWithBank(), "parts", StopAfter(7));
  const fs::path bank = scratch_ / "parts/checkpoints/step-000007/bank.safetensors";
  ASSERT_TRUE(fs::exists(bank));
  fs::copy(scratch_ / "parts", scratch_ / "damaged", fs::copy_options::recursive);
  fs::copy(scratch_ / "parts", scratch_ / "foreign", fs::copy_options::recursive);
  Train(RunWithBank(), "parts", Resuming());
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
  // A damaged bank damages its checkpoint: the one before is taken.
  fs::resize_file(scratch_ / "damaged/checkpoints/step-000007/bank.safetensors", 100);
  Train(RunWithBank(), "damaged", Resuming());
  EXPECT_EQ(Losses("damaged"), Losses("whole"));
  // The bank matters: without it the losses are others.
  const fs::path state = scratch_ / "foreign/checkpoints/step-000007/state.json";
  Json json = Json::parse(ReadTextFile(state));
  json["files"].erase("bank.safetensors");
  WriteFileAtomically(state, json.dump());
  Train(RunWithBank(), "foreign", Resuming());
  EXPECT_NE(Losses("foreign"), Losses("whole"));
}

TEST_F(TrainerTest, AnEarlierRunIsNotOverwritten) {
  Train(TinyRun(), "a", StopAfter(2));
  EXPECT_ERROR(Train(TinyRun(), "a"), "already holds a run");
  TrainerOptions force;
  force.force = true;
  EXPECT_EQ(Train(TinyRun(), "a", force).steps, 12u);
}

TEST_F(TrainerTest, NonFiniteValuesStopTheRun) {
  TrainerOptions options;
  const auto poison = [](uint64_t at) {
    return [at](uint64_t step, Parameters& weights) {
      if (step == at) weights.Get("model.norm.weight")[0] = std::numeric_limits<float>::quiet_NaN();
    };
  };
  options.before_step = poison(0);
  EXPECT_ERROR(Train(TinyRun(), "a", options), "there is no checkpoint yet");
  options.before_step = poison(6);
  const std::string message = ErrorOf([&] { Train(TinyRun(), "b", options); });
  ExpectMessage(message, "step 7: the loss is not finite");
  ExpectMessage(message, "step-000004");
  ExpectMessage(message, "start over with --force");  // --resume refuses other settings
  Train(TinyRun(), "whole");
  Train(TinyRun(), "b", Resuming());  // the checkpoint was good
  EXPECT_EQ(Losses("b"), Losses("whole"));
}

TEST_F(TrainerTest, AccumulationEqualsOneBigBatch) {
  Json big = RunWithOptions(), small = RunWithOptions();
  big["training"]["batch_rows"] = 8;
  big["training"]["accumulate"] = 1;
  small["training"]["batch_rows"] = 2;
  small["training"]["accumulate"] = 4;
  for (Json* json : {&big, &small}) (*json)["training"]["validation_batches"] = 0;
  Train(big, "big");
  Train(small, "small");
  const auto a = Losses("big"), b = Losses("small");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    // Controlled landmarks of validation are drawn by row, too.
    EXPECT_NEAR(std::stod(a[i].substr(a[i].rfind(' '))), std::stod(b[i].substr(b[i].rfind(' '))), 2e-5) << a[i];
  }
}

TEST_F(TrainerTest, DataOfAnotherTokenizerIsRefused) {
  VocabularySpec spec = TinyTokenizer()->spec();
  std::swap(spec.scores[260], spec.scores[265]);
  std::swap(spec.pieces[260], spec.pieces[261]);
  fs::create_directories(scratch_ / "other");
  WithLandmark(MakeTokenizer(spec))->Save(scratch_ / "other");
  Json json = TinyRun();
  json["tokenizer"] = "other";
  EXPECT_ERROR(Train(json, "a"), "prepared with another tokenizer");
}

TEST(Draws, JumpsAndControl) {
  ModelConfig model = TestConfig();  // blocks of 7
  model.landmark.positional_jump = 5;
  model.landmark.context_miss.probability = 0.25;
  std::vector<int32_t> positions(100), again(100);
  std::set<int32_t> jumps;
  for (uint64_t sample = 0; sample < 50; ++sample) {
    DrawPositions(model, 1, sample, positions);
    DrawPositions(model, 1, sample, again);
    EXPECT_EQ(positions, again);
    EXPECT_EQ(positions[0], 0);
    for (size_t i = 1; i < positions.size(); ++i) {
      const int32_t extra = positions[i] - positions[i - 1] - 1;
      if (i % 8 == 0) {
        jumps.insert(extra);
      } else {
        EXPECT_EQ(extra, 0);
      }
    }
  }
  EXPECT_EQ(jumps, (std::set<int32_t>{1, 2, 3, 4, 5}));
  std::vector<uint8_t> controlled(4000);
  DrawControlled(model, 1, 7, controlled);
  EXPECT_NEAR(std::count(controlled.begin(), controlled.end(), 1), 1000, 150);
}

// ---- Tuning ----

class TuneTest : public TrainerTest {
 protected:
  TuneTest() {
    ModelConfig config = TestConfig();
    config.landmark = {};
    config.vocab_size = kTinyVocab;
    config.rotary_layout = RotaryLayout::kHalf;
    auto tensors = RandomTensors(config, 3);
    for (auto& [name, tensor] : tensors) {
      for (float& x : tensor.span()) x *= 0.1f;
    }
    base_ = MakeModelSource(config, std::move(tensors));
    WriteHuggingFace(*base_, scratch_ / "base", {});
  }
  TrainJob Job(Json json, const std::string& output) {
    json["output"] = output;
    return PrepareTuning(Config(json), *base_, scratch_ / "base");
  }
  TrainResult Tune(const Json& json, const std::string& output, const TrainerOptions& options = {}) {
    TrainJob job = Job(json, output);
    return RunTraining(job, options, *MakeSingleCommunicator());
  }
  std::shared_ptr<const ModelSource> base_;
};

std::vector<float> LogitsOf(const ModelSource& source, const std::vector<int32_t>& ids) {
  ModelConfig config = source.config();
  config.rotary_layout = RotaryLayout::kHalf;
  const ParameterLayout layout(config);
  Parameters weights(layout);
  LoadWeights(source, config, {}, weights);
  Engine engine(config, layout, {.rows = 1, .time = ids.size()});
  std::vector<float> logits(ids.size() * config.vocab_size);
  EngineBatch batch;
  batch.rows = 1;
  batch.time = ids.size();
  batch.input_ids = ids.data();
  engine.Logits(weights, batch, logits.data());
  return logits;
}

TEST_F(TuneTest, NewTokensStartAsTheMean) {
  Json json = TinyTuning();
  json["landmark"]["context_miss"] = {{"probability", 0.5}};
  const TrainJob job = Job(json, "a");
  EXPECT_EQ(job.model.vocab_size, kTinyVocab + 2);
  EXPECT_EQ(job.model.landmark.landmark_id, static_cast<int64_t>(kTinyVocab));
  EXPECT_EQ(job.model.landmark.context_miss.token_id, static_cast<int64_t>(kTinyVocab) + 1);
  EXPECT_EQ(job.tokenizer->landmark(), static_cast<int32_t>(kTinyVocab));
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    const Tensor old = base_->ReadFloats(name);
    const auto values = job.weights->Get(name);
    EXPECT_EQ(std::memcmp(old.data(), values.data(), old.span().size_bytes()), 0);
    for (size_t c = 0; c < 64; ++c) {
      double mean = 0;
      for (size_t row = 0; row < kTinyVocab; ++row) mean += old[row * 64 + c] / static_cast<double>(kTinyVocab);
      EXPECT_NEAR(values[kTinyVocab * 64 + c], mean, 1e-6);
      EXPECT_EQ(values[kTinyVocab * 64 + c], values[(kTinyVocab + 1) * 64 + c]);
    }
  }
}

TEST_F(TuneTest, AForeignTokenizerIsRefused) {
  ModelConfig config = base_->config();
  config.vocab_size = 100;
  config.bos_token_id = 1;
  Json json = TinyTuning();
  json["output"] = "a";
  EXPECT_ERROR(PrepareTuning(Config(json), *RandomModel(config), "small"), "name the model's own tokenizer");
}

TEST_F(TuneTest, FullTuningLowersTheLoss) {
  Tune(TinyTuning(), "a");
  const auto losses = Losses("a");
  EXPECT_LT(std::stod(losses.back().substr(losses.back().rfind(' '))),
            std::stod(losses.front().substr(losses.front().rfind(' '))));
  const auto tuned = OpenModel(scratch_ / "a/model");
  EXPECT_EQ(tuned->config().landmark.block_length, 7u);
  EXPECT_EQ(LoadTokenizer(scratch_ / "a/model")->landmark(), static_cast<int32_t>(kTinyVocab));
}

Json LoraRun(const char* save) {
  Json json = TinyTuning();
  json["lora"] = {{"rank", 4}, {"alpha", 8}, {"targets", {"q_proj", "v_proj", "down_proj"}}, {"save", save}};
  return json;
}

TEST_F(TuneTest, LoraStartsAtTheBaseAndLeavesItAlone) {
  Tune(TinyTuning(), "full");
  TrainJob job = Job(LoraRun("adapter"), "lora");
  const TrainResult result = RunTraining(job, {}, *MakeSingleCommunicator());
  EXPECT_EQ(Losses("lora")[0], Losses("full")[0]);  // validation before the first step
  EXPECT_EQ(Losses("lora")[1], Losses("full")[1]);  // and the first batch
  EXPECT_LT(*result.validation_loss, std::stod(Losses("lora")[0].substr(13)));
  EXPECT_EQ(result.result, scratch_ / "lora/adapter");
  // Matrices that are no targets, norms and old embeddings are the base's.
  size_t unchanged = 0;
  for (const ParameterSlot& slot : job.layout->slots()) {
    const Tensor old = base_->ReadFloats(slot.name, RotaryLayout::kHalf);
    const bool same = std::memcmp(old.data(), job.weights->Get(slot).data(), old.span().size_bytes()) == 0;
    const bool target = slot.name.find("q_proj") != std::string::npos ||
                        slot.name.find("v_proj") != std::string::npos ||
                        slot.name.find("down_proj") != std::string::npos;
    EXPECT_EQ(same, !target) << slot.name;
    unchanged += same;
  }
  EXPECT_GT(unchanged, 0u);
  // The landmark's embedding was trained.
  const auto rows = job.weights->Get("model.embed_tokens.weight").subspan(kTinyVocab * 64, 64);
  const auto fresh = Job(LoraRun("adapter"), "unused");
  EXPECT_NE(std::memcmp(rows.data(), fresh.weights->Get("model.embed_tokens.weight").data() + kTinyVocab * 64, 256), 0);
}

TEST_F(TuneTest, MergedEqualsAdapter) {
  Tune(LoraRun("adapter"), "adapter");
  Tune(LoraRun("merged"), "merged");
  EXPECT_EQ(Losses("adapter"), Losses("merged"));
  const SafetensorsFile file(scratch_ / "adapter/adapter/adapter_model.safetensors");
  EXPECT_TRUE(file.Has("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight"));
  EXPECT_EQ(file.Get("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight").shape, (Shape{64, 4}));
  const auto merged = MergeAdapter(*OpenModel(scratch_ / "base"), scratch_ / "adapter/adapter");
  ExpectSameWeights(*merged, *OpenModel(scratch_ / "merged/model"));
  ModelConfig other = base_->config();
  other.intermediate_size = 44;
  EXPECT_ERROR(MergeAdapter(*RandomModel(other), scratch_ / "adapter/adapter"), "another shape");
}

TEST_F(TuneTest, LoraResumesExactly) {
  Tune(LoraRun("merged"), "whole");
  Tune(LoraRun("merged"), "parts", StopAfter(5));
  Tune(LoraRun("merged"), "parts", Resuming());
  EXPECT_EQ(Losses("parts"), Losses("whole"));
  EXPECT_EQ(Weights("parts"), Weights("whole"));
}

TEST_F(TuneTest, AnotherBaseIsNotResumed) {
  Tune(LoraRun("merged"), "a", StopAfter(5));
  auto tensors = RandomTensors(base_->config(), 3);
  for (auto& [name, tensor] : tensors) {
    for (float& x : tensor.span()) x *= 0.1f;
  }
  const auto same = MakeModelSource(base_->config(), std::move(tensors));
  Json json = LoraRun("merged");
  json["output"] = "a";
  TrainJob other = PrepareTuning(Config(json), *RandomModel(base_->config(), 4), scratch_ / "base");
  EXPECT_ERROR(RunTraining(other, Resuming(), *MakeSingleCommunicator()), "other settings (base)");
  TrainJob moved = PrepareTuning(Config(json), *same, scratch_ / "elsewhere");
  EXPECT_EQ(RunTraining(moved, Resuming(), *MakeSingleCommunicator()).steps, 12u);
}

TEST_F(TuneTest, LoraGradientsAgreeWithDifferences) {
  TrainJob job = Job(LoraRun("adapter"), "a");
  const LoraConfig& config = *job.config.lora;
  LoraTrainable lora(*job.weights, config, job.new_tokens, 1);
  Random random(9);
  for (size_t i = 0; i < lora.size(); ++i) lora.values()[i] += static_cast<float>(random.Normal() * 0.05);
  // A made-up loss: sum of coefficient * weight, whose gradient is the coefficients.
  Parameters coefficients(*job.layout);
  for (size_t i = 0; i < coefficients.size(); ++i) coefficients.data()[i] = static_cast<float>(random.Normal());
  const auto loss = [&] {
    lora.Apply();
    double sum = 0;
    for (size_t i = 0; i < coefficients.size(); ++i)
      sum += static_cast<double>(coefficients.data()[i]) * job.weights->data()[i];
    return sum;
  };
  const std::vector<float> gradient(lora.Gradient(coefficients), lora.Gradient(coefficients) + lora.size());
  for (const TrainableTensor& tensor : lora.tensors()) {
    const size_t i = tensor.offset + random.Below(tensor.size);
    const float before = lora.values()[i];
    lora.values()[i] = before + 0.125f;
    const double up = loss();
    lora.values()[i] = before - 0.125f;
    const double down = loss();
    lora.values()[i] = before;
    EXPECT_NEAR(gradient[i], (up - down) / 0.25, 2e-3 * std::max(1.0, std::abs((up - down) / 0.25))) << tensor.name;
  }
}

TEST_F(TuneTest, EveryFormatGivesTheSameLogits) {
  Tune(TinyTuning(), "a");
  const auto model = OpenModel(scratch_ / "a/model");
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.push_back(i % 8 == 7 ? static_cast<int32_t>(kTinyVocab) : 3 + i * 5);
  const auto expected = LogitsOf(*model, ids);
  WriteHuggingFace(*model, scratch_ / "again", {});
  WriteGguf(*model, scratch_ / "model.gguf", {});
  WriteLlama2c(*model, scratch_ / "model.bin");
  for (const char* name : {"again", "model.gguf", "model.bin"}) {
    const auto opened = OpenModel(scratch_ / name);
    EXPECT_EQ(opened->config().landmark, model->config().landmark) << name;
    EXPECT_EQ(LogitsOf(*opened, ids), expected) << name;
  }
}

}  // namespace
}  // namespace cairn
