// Round trips of models through every file format, and the real models of the shared folder.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/gguf_model.h"
#include "formats/huggingface.h"
#include "formats/llama2c.h"
#include "io/safetensors.h"
#include "model_makers.h"
#include "tensor/quant_blocks.h"
#include "test_files.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

// Without what a format may change: the layout and the element type's name.
ModelConfig Essence(ModelConfig config) {
  config.rotary_layout = RotaryLayout::kHalf;
  config.torch_dtype = "float32";
  config.other_keys = "{}";
  return config;
}

void Save(const ModelSource& source, const fs::path& path, const std::string& format) {
  if (format == "hf") WriteHuggingFace(source, path, {});
  if (format == "gguf") WriteGguf(source, path, {});
  if (format == "llama2c") WriteLlama2c(source, path);
}

std::vector<ModelConfig> TestConfigs() {
  std::vector<ModelConfig> configs(5, TestConfig());
  configs[1].tie_word_embeddings = true;
  configs[1].rotary_layout = RotaryLayout::kInterleaved;
  configs[1].landmark = LandmarkConfig();
  configs[2].landmark.positional_jump = 12;
  configs[2].landmark.context_miss = {true, 31, 0.25};
  configs[2].landmark.memory_training = {false, 3, 70, 5, DistractorSource::kBatch};
  configs[2].rms_norm_eps = 1e-6;
  configs[3].landmark = LandmarkConfig();
  configs[3].landmark.attention = AttentionKind::kXl;
  configs[3].landmark.xl_cache_length = 16;
  configs[3].eos_token_ids = {3, 4};
  configs[3].bos_token_id = -1;
  configs[4].landmark.attention = AttentionKind::kFull;  // a landmark token, but ordinary attention
  return configs;
}

TEST(Formats, RoundTripThroughEveryPairIsBitIdentical) {
  const ScratchDirectory scratch;
  uint64_t seed = 1;
  for (const ModelConfig& config : TestConfigs()) {
    const auto model = RandomModel(config, seed++);
    for (const std::string first : {"hf", "gguf", "llama2c"}) {
      const fs::path first_path = scratch / ("first-" + first + std::to_string(seed));
      Save(*model, first_path, first);
      const auto opened = OpenModel(first_path);
      EXPECT_EQ(NameOf(opened->format()), first);
      EXPECT_EQ(Essence(opened->config()), Essence(config)) << ToJson(opened->config());
      ExpectSameWeights(*model, *opened);
      for (const std::string second : {"hf", "gguf", "llama2c"}) {
        const fs::path second_path = scratch / ("second-" + first + second + std::to_string(seed));
        Save(*opened, second_path, second);
        const auto again = OpenModel(second_path);
        EXPECT_EQ(Essence(again->config()), Essence(config));
        ExpectSameWeights(*model, *again);
      }
    }
  }
}

TEST(Formats, RopeScalingAndWideHeadsSurviveWhereTheFormatCan) {
  const ScratchDirectory scratch;
  ModelConfig config = TestConfig();
  config.head_dim = 24;
  config.rope_theta = 500000;
  for (const RopeScaling scaling :
       {RopeScaling{RopeScalingKind::kLinear, 2.5}, RopeScaling{RopeScalingKind::kLlama3, 32}}) {
    config.rope_scaling = scaling;
    const auto model = RandomModel(config);
    for (const std::string format : {"hf", "gguf"}) {
      const fs::path path = scratch / (format + std::string(NameOf(scaling.kind)));
      Save(*model, path, format);
      EXPECT_EQ(Essence(OpenModel(path)->config()), Essence(config));
      ExpectSameWeights(*model, *OpenModel(path));
    }
    EXPECT_ERROR(WriteLlama2c(*model, scratch / "x.bin"), "llama2.c files have no place for head_dim 24");
  }
  config.rope_scaling.low_freq_factor = 2;
  EXPECT_ERROR(WriteGguf(*RandomModel(config), scratch / "x.gguf", {}), "GGUF has no place for llama3 rope_scaling");
  config = TestConfig();
  config.rope_theta = 20000;
  EXPECT_ERROR(WriteLlama2c(*RandomModel(config), scratch / "x.bin"), "llama2.c rotates with base 10000");
  EXPECT_FALSE(fs::exists(scratch / "x.bin"));
  EXPECT_FALSE(fs::exists(scratch / "x.gguf"));
}

TEST(Formats, HuggingFaceTypesAndShards) {
  const ScratchDirectory scratch;
  const auto model = RandomModel(TestConfig());
  for (const auto& [type, dtype, name] : {std::tuple(StoredType::kF16, DType::kF16, "float16"),
                                          std::tuple(StoredType::kBF16, DType::kBF16, "bfloat16")}) {
    HuggingFaceWriteOptions options;
    options.type = type;
    options.shard_bytes = 20000;
    const fs::path path = scratch / name;
    const auto written = WriteHuggingFace(*model, path, options);
    ASSERT_TRUE(fs::exists(path / "model.safetensors.index.json"));
    EXPECT_GE(written.size(), 4u);
    uint64_t weights = 0;
    for (const WrittenFile& file : written) {
      EXPECT_EQ(file.bytes, fs::file_size(file.path));
      if (file.path.extension() != ".safetensors") continue;
      const SafetensorsFile shard(file.path);
      EXPECT_EQ(shard.MetadataText("format"), "pt");
      for (const auto& [tensor, entry] : shard.tensors()) {
        EXPECT_EQ(entry.dtype, dtype);
        weights += entry.bytes.size();
      }
    }
    const auto index = nlohmann::json::parse(ReadTextFile(path / "model.safetensors.index.json"));
    EXPECT_EQ(index["metadata"]["total_size"], weights);
    const auto opened = OpenModel(path);
    EXPECT_EQ(opened->config().torch_dtype, name);
    for (const auto& [tensor, stored] : opened->tensors()) {
      const Tensor expected = model->ReadFloats(tensor);
      const Tensor actual = opened->ReadFloats(tensor);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i],
                    std::abs(expected[i]) * (type == StoredType::kF16 ? 0x1p-11f : 0x1p-8f) + 1e-7f);
      }
    }
    // Written again in one file, as stored: the shards of the earlier model must go.
    WriteHuggingFace(*opened, path, {});
    EXPECT_FALSE(fs::exists(path / "model.safetensors.index.json"));
    EXPECT_FALSE(fs::exists(path / "model-00001-of-00002.safetensors"));
    ExpectSameWeights(*opened, *OpenModel(path));
  }
  EXPECT_ERROR(WriteHuggingFace(*model, scratch / "q", {.type = StoredType::kQ8_0}),
               "safetensors files have no type q8_0");
  EXPECT_FALSE(fs::exists(scratch / "q"));
}

TEST(Formats, GgufTypesFallBackWhereRowsDoNotFit) {
  const ScratchDirectory scratch;
  const auto model = RandomModel(TestConfig());
  WriteGguf(*model, scratch / "q.gguf", {.type = StoredType::kQ8_0});
  const auto opened = OpenModel(scratch / "q.gguf");
  EXPECT_EQ(opened->Get("model.layers.1.self_attn.q_proj.weight").type, StoredType::kQ8_0);
  EXPECT_EQ(opened->Get("model.layers.1.mlp.down_proj.weight").type, StoredType::kF16);  // rows of 40
  EXPECT_EQ(opened->Get("model.norm.weight").type, StoredType::kF32);
  // Whole rows move between layouts, so quantised weights stay bit-identical.
  WriteGguf(*opened, scratch / "again.gguf", {});
  ExpectSameWeights(*opened, *OpenModel(scratch / "again.gguf"));
  WriteHuggingFace(*opened, scratch / "hf", {});
  ExpectSameWeights(*opened, *OpenModel(scratch / "hf"));
  ModelConfig config = TestConfig();
  auto tensors = RandomTensors(config, 3);
  tensors["lm_head.weight"][5] = std::numeric_limits<float>::infinity();
  EXPECT_ERROR(
      WriteGguf(*MakeModelSource(config, std::move(tensors)), scratch / "inf.gguf", {.type = StoredType::kQ8_0}),
      "tensor 'lm_head.weight' has values that are not finite");
  EXPECT_FALSE(fs::exists(scratch / "inf.gguf"));
}

TEST(Formats, GgufVocabularyIsKeptAndPadded) {
  const ScratchDirectory scratch;
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  for (int i = 0; i < 32; ++i) {
    vocabulary.tokens.push_back("token" + std::to_string(i));
    vocabulary.scores.push_back(static_cast<float>(-i) / 3);
    vocabulary.types.push_back(kGgufTokenNormal);
  }
  vocabulary.merges = {"a b", "ab c"};
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  vocabulary.unknown_id = 0;
  vocabulary.add_bos = true;
  vocabulary.add_space_prefix = false;
  vocabulary.chat_template = "{{ messages }}";
  vocabulary.other.push_back(
      {"tokenizer.ggml.padding_token_id", static_cast<uint32_t>(GgufType::kU32), std::string("\5\0\0\0", 4)});
  WriteGguf(*RandomModel(TestConfig()), scratch / "a.gguf", {.vocabulary = vocabulary});
  const auto opened = OpenModel(scratch / "a.gguf");
  vocabulary.tokens.push_back("<landmark>");
  vocabulary.scores.push_back(0);
  vocabulary.types.push_back(kGgufTokenControl);
  ASSERT_TRUE(opened->vocabulary());
  EXPECT_EQ(*opened->vocabulary(), vocabulary);
  WriteGguf(*opened, scratch / "b.gguf", {});
  EXPECT_EQ(*OpenModel(scratch / "b.gguf")->vocabulary(), vocabulary);
  vocabulary.tokens.resize(100);
  EXPECT_ERROR(WriteGguf(*opened, scratch / "c.gguf", {.vocabulary = vocabulary}),
               "the vocabulary has 100 tokens, but the model 33");
}

TEST(Formats, Llama2cSidecarMustAgree) {
  const ScratchDirectory scratch;
  const auto model = RandomModel(TestConfig());
  WriteLlama2c(*model, scratch / "a.bin");
  ASSERT_TRUE(fs::exists(scratch / "a.bin.json"));
  ModelConfig wrong = OpenModel(scratch / "a.bin")->config();
  wrong.vocab_size = 40;
  WriteFileAtomically(scratch / "a.bin.json", ToJson(wrong));
  EXPECT_ERROR(OpenModel(scratch / "a.bin"), "vocab_size contradicts the header");
  ModelConfig plain = TestConfig();
  plain.landmark = {};
  WriteLlama2c(*RandomModel(plain), scratch / "a.bin");
  EXPECT_FALSE(fs::exists(scratch / "a.bin.json"));
}

TEST(Formats, Llama2cVersion1) {
  ModelConfig config = TestConfig();
  config.landmark = {};
  config.rotary_layout = RotaryLayout::kInterleaved;
  const auto model = RandomModel(config);
  std::string bytes(256, '\0');
  const int32_t numbers[] = {0x616b3432, 1, 64, 40, 2, 4, 2, 33, 32};
  std::memcpy(bytes.data(), numbers, sizeof(numbers));
  const auto add = [&](const std::string& name) {
    const auto raw = model->Get(name).bytes;
    bytes.append(reinterpret_cast<const char*>(raw.data()), raw.size());
  };
  const auto add_layers = [&](const std::string& name) {
    for (const char* layer : {"model.layers.0.", "model.layers.1."}) add(layer + name + ".weight");
  };
  add_layers("input_layernorm");
  add_layers("post_attention_layernorm");
  add("model.norm.weight");
  add("model.embed_tokens.weight");
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                           "mlp.gate_proj", "mlp.down_proj", "mlp.up_proj"}) {
    add_layers(name);
  }
  add("lm_head.weight");
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "v1.bin", bytes);
  const auto opened = OpenModel(scratch / "v1.bin");
  EXPECT_FALSE(opened->config().tie_word_embeddings);
  ExpectSameWeights(*model, *opened);
  bytes[4] = 2;
  WriteFileAtomically(scratch / "v2.bin", bytes);
  EXPECT_ERROR(OpenModel(scratch / "v2.bin"), "is a llama2.c file of version 2");
}

// A limit on file sizes stands in for the full disk: the write fails half-way with an error code.
TEST(Formats, AFullDiskLeavesNothingBehind) {
  const ScratchDirectory scratch;
  ModelConfig config = TestConfig();
  const auto model = RandomModel(config);
  fs::create_directory(scratch / "old");
  WriteHuggingFace(*model, scratch / "old", {});
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 50000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const auto other = RandomModel(config, 9);
  EXPECT_ERROR(WriteHuggingFace(*other, scratch / "hf", {}), "cannot write");
  EXPECT_ERROR(WriteHuggingFace(*other, scratch / "old", {}), "cannot write");
  EXPECT_ERROR(WriteGguf(*other, scratch / "a.gguf", {}), "cannot write");
  EXPECT_ERROR(WriteLlama2c(*other, scratch / "a.bin"), "cannot write");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(scratch.path())) names.push_back(entry.path().filename().string());
  EXPECT_EQ(names, std::vector<std::string>{"old"});
  ExpectSameWeights(*model, *OpenModel(scratch / "old"));
}

TEST(SharedModels, Stories260KIsTheSameInBothFormats) {
  CAIRN_NEED_SHARED(shared);
  const auto llama2c = OpenModel(shared / "assets/stories260K.bin");
  const auto gguf = OpenModel(shared / "assets/stories260K-f32.gguf");
  EXPECT_EQ(llama2c->config().num_attention_heads, 8u);
  EXPECT_EQ(llama2c->config().num_key_value_heads, 4u);
  EXPECT_TRUE(llama2c->config().tie_word_embeddings);
  EXPECT_FALSE(gguf->config().tie_word_embeddings);
  for (const auto& [name, tensor] : llama2c->tensors()) {
    EXPECT_TRUE(SameBits(llama2c->ReadFloats(name), gguf->ReadFloats(name))) << name;
  }
  EXPECT_TRUE(SameBits(llama2c->ReadFloats("model.embed_tokens.weight"), gguf->ReadFloats("lm_head.weight")));
  ASSERT_TRUE(gguf->vocabulary());
  EXPECT_EQ(gguf->vocabulary()->tokens.size(), 512u);
  EXPECT_EQ(gguf->vocabulary()->model, "llama");
  EXPECT_EQ(gguf->vocabulary()->tokens[1], "<s>");
  EXPECT_EQ(gguf->vocabulary()->types[3], kGgufTokenByte);

  const ScratchDirectory scratch;
  for (const auto& source : {llama2c, gguf}) {
    Save(*source, scratch / "hf", "hf");
    Save(*OpenModel(scratch / "hf"), scratch / "a.gguf", "gguf");
    Save(*OpenModel(scratch / "a.gguf"), scratch / "a.bin", "llama2c");
    ExpectSameWeights(*source, *OpenModel(scratch / "a.bin"));
    EXPECT_EQ(OpenModel(scratch / "a.bin")->config(), OpenModel(scratch / "a.gguf")->config());
  }
  // All but the tables of angles is the file that we began with.
  Save(*llama2c, scratch / "b.bin", "llama2c");
  const size_t same = 28 + 4 * ParameterCount(llama2c->config());
  EXPECT_EQ(ReadTextFile(scratch / "b.bin").substr(0, same),
            ReadTextFile(shared / "assets/stories260K.bin").substr(0, same));
  Save(*gguf, scratch / "b.gguf", "gguf");
  EXPECT_EQ(*OpenModel(scratch / "b.gguf")->vocabulary(), *gguf->vocabulary());
}

bool Unpack(const fs::path& from, const fs::path& to) {
  return std::system(("xz -dc '" + from.string() + "' > '" + to.string() + "' 2> /dev/null").c_str()) == 0;
}

TEST(SharedModels, Stories15MAndItsQuantisedForm) {
  CAIRN_NEED_SHARED(shared);
  const ScratchDirectory scratch;
  if (!Unpack(shared / "assets/stories15M.bin.xz", scratch / "f32.bin") ||
      !Unpack(shared / "assets/stories15M-q8_0.gguf.xz", scratch / "q8.gguf")) {
    GTEST_SKIP() << "xz is missing";
  }
  const auto f32 = OpenModel(scratch / "f32.bin");
  const auto q8 = OpenModel(scratch / "q8.gguf");
  EXPECT_EQ(ParameterCount(f32->config()), 15191712u);
  EXPECT_TRUE(f32->config().tie_word_embeddings);
  for (const auto& [name, tensor] : f32->tensors()) {
    const Tensor expected = f32->ReadFloats(name, RotaryLayout::kInterleaved);
    const Tensor actual = q8->ReadFloats(name, RotaryLayout::kInterleaved);
    if (q8->Get(name).type == StoredType::kF32) {
      EXPECT_TRUE(SameBits(expected, actual)) << name;
      continue;
    }
    ASSERT_EQ(q8->Get(name).type, StoredType::kQ8_0) << name;
    size_t wrong = 0;
    for (size_t block = 0; block < expected.size(); block += 32) {
      float largest = 0;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::abs(expected[i]));
      for (size_t i = block; i < block + 32; ++i) {
        wrong += std::abs(expected[i] - actual[i]) > largest * (1.0f / 254 + 0x1p-11f);
      }
    }
    EXPECT_EQ(wrong, 0u) << name;
  }
  // Our own quantisation gives the very bytes of the file.
  WriteGguf(*f32, scratch / "ours.gguf", {.type = StoredType::kQ8_0});
  const auto ours = OpenModel(scratch / "ours.gguf");
  for (const auto& [name, tensor] : ours->tensors()) {
    const auto theirs = q8->Get(name).bytes;
    ASSERT_EQ(tensor.bytes.size(), theirs.size()) << name;
    EXPECT_EQ(std::memcmp(tensor.bytes.data(), theirs.data(), theirs.size()), 0) << name;
  }
}

}  // namespace
}  // namespace cairn
