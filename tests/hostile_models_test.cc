// Hostile and damaged model files, made here byte by byte: each must give an Error that says what is wrong.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "formats/gguf_file.h"
#include "formats/gguf_model.h"
#include "formats/huggingface.h"
#include "formats/llama2c.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "model_makers.h"
#include "test_files.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

template <typename T>
std::string Encode(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

// ---- safetensors ----

std::string Safetensors(const std::string& header, size_t data_bytes) {
  return Encode<uint64_t>(header.size()) + header + std::string(data_bytes, '\0');
}

TEST(HostileSafetensors, EachDamageHasItsMessage) {
  const struct {
    std::string bytes;
    const char* message;
  } cases[] = {
      {"", "too few for a safetensors file"},
      {"1234567", "too few for a safetensors file"},
      {Encode<uint64_t>(UINT64_MAX) + "{}", "header claims 18446744073709551615 bytes"},
      {Encode<uint64_t>(100) + "{}", "header claims 100 bytes"},
      {Safetensors("{", 0), "header is not valid JSON"},
      {Safetensors("[]", 0), "header is not a JSON object"},
      {Safetensors(std::string(100000, '['), 0), "nested too deeply"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7), "lies at bytes 0 to 8 of 7"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8), "lies at bytes 8 to 0"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "needs 12 bytes but has 8"},
      {Safetensors(R"({"a":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}})", 8), "element type 'Q9'"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "no non-negative integer"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}})", 8),
       "impossibly large"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0]}})", 8),
       "impossibly large"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "lacks a valid dtype, shape or data_offsets"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                   R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
                   12),
       "two tensors overlap"},
      {Safetensors(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                   R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                   8),
       "tensor 'a' stands twice"},
      {Safetensors(R"({"__metadata__":{"a":1}})", 0), "metadata 'a' is not a string"},
  };
  for (const auto& c : cases) EXPECT_ERROR(SafetensorsFile(Bytes(c.bytes), "file"), c.message);
}

// ---- Hugging Face directories ----

class HostileDirectory : public ::testing::Test {
 protected:
  HostileDirectory() { WriteHuggingFace(*RandomModel(TestConfig()), path_, {}); }

  void EditConfig(const std::function<void(Json&)>& edit) {
    Json config = Json::parse(ReadTextFile(path_ / "config.json"));
    edit(config);
    WriteFileAtomically(path_ / "config.json", config.dump());
  }

  // Writes the tensors again after `edit` of their list.
  void EditTensors(const std::function<void(std::vector<TensorToWrite>&)>& edit) {
    const SafetensorsFile file(path_ / "model.safetensors");
    std::vector<TensorToWrite> tensors;
    for (const auto& [name, entry] : file.tensors()) tensors.push_back({name, entry.dtype, entry.shape, entry.bytes});
    edit(tensors);
    WriteSafetensors(path_ / "model.safetensors", tensors, {});
  }

  void MakeIndex(const std::string& text) {
    fs::rename(path_ / "model.safetensors", path_ / "model-00001-of-00001.safetensors");
    WriteFileAtomically(path_ / "model.safetensors.index.json", text);
  }

  ScratchDirectory scratch_;
  fs::path path_ = scratch_ / "model";
};

TEST_F(HostileDirectory, MissingFiles) {
  fs::remove(path_ / "model.safetensors");
  EXPECT_ERROR(OpenModel(path_), "has neither model.safetensors nor model.safetensors.index.json");
  fs::remove(path_ / "config.json");
  EXPECT_ERROR(OpenModel(path_), "has no config.json");
  EXPECT_ERROR(OpenModel(scratch_ / "nothing"), "cannot open");
}

TEST_F(HostileDirectory, OnePartOfAModel) {
  EXPECT_ERROR(OpenModel(path_ / "model.safetensors"), "is only one part of a model");
  EXPECT_ERROR(OpenModel(path_ / "config.json"), "is only one part of a model");
}

TEST_F(HostileDirectory, ConfigAndWeightsDisagree) {
  EditConfig([](Json& config) { config["num_hidden_layers"] = 3; });
  EXPECT_ERROR(OpenModel(path_), "lacks the tensor 'model.layers.2.self_attn.q_proj.weight'");
  EditConfig([](Json& config) { config["num_hidden_layers"] = 1; });
  EXPECT_ERROR(OpenModel(path_), "has the tensor 'model.layers.1.input_layernorm.weight', which its config does not");
  EditConfig([](Json& config) { config["num_hidden_layers"] = 2, config["num_key_value_heads"] = 4; });
  EXPECT_ERROR(OpenModel(path_),
               "'model.layers.0.self_attn.k_proj.weight' has shape [32, 64], but the config asks for [64, 64]");
  EditConfig([](Json& config) { config["num_key_value_heads"] = 2, config["vocab_size"] = 40; });
  EXPECT_ERROR(OpenModel(path_), "'model.embed_tokens.weight' has shape [33, 64], but the config asks for [40, 64]");
  EditConfig([](Json& config) { config.erase("vocab_size"); });
  EXPECT_ERROR(OpenModel(path_), "config.json': vocab_size is missing");
}

TEST_F(HostileDirectory, TiedModelsMayKeepTheCopy) {
  EditConfig([](Json& config) { config["tie_word_embeddings"] = true; });
  EXPECT_EQ(OpenModel(path_)->tensors().count("lm_head.weight"), 0u);
}

TEST_F(HostileDirectory, WrongTensors) {
  EditTensors(
      [](auto& tensors) { std::erase_if(tensors, [](const auto& t) { return t.name == "model.norm.weight"; }); });
  EXPECT_ERROR(OpenModel(path_), "lacks the tensor 'model.norm.weight'");
  const std::vector<std::byte> zeros(64 * 8);
  EditTensors([&](auto& tensors) { tensors.push_back({"model.norm.weight", DType::kF64, {64}, zeros}); });
  EXPECT_ERROR(OpenModel(path_), "tensor 'model.norm.weight' has the type F64; weights must be F32, F16 or BF16");
  EditTensors([&](auto& tensors) {
    tensors.back() = {"model.norm.weight", DType::kF32, {64, 2}, zeros};
    tensors.push_back({"model.layers.0.self_attn.q_proj.bias", DType::kF32, {128}, zeros});
  });
  EXPECT_ERROR(OpenModel(path_), "has the tensor 'model.layers.0.self_attn.q_proj.bias'");
}

TEST_F(HostileDirectory, TruncatedWeights) {
  const std::string bytes = ReadTextFile(path_ / "model.safetensors");
  WriteFileAtomically(path_ / "model.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_ERROR(OpenModel(path_), "the file is truncated or damaged");
  WriteFileAtomically(path_ / "model.safetensors", "");
  EXPECT_ERROR(OpenModel(path_), "has 0 bytes, too few for a safetensors file");
}

TEST_F(HostileDirectory, Indexes) {
  const auto index = [](const std::string& file) { return Json{{"weight_map", {{"model.norm.weight", file}}}}.dump(); };
  MakeIndex(index("model-00002-of-00002.safetensors"));
  const auto expect = [&](const std::string& text, const char* message) {
    WriteFileAtomically(path_ / "model.safetensors.index.json", text);
    EXPECT_ERROR(OpenModel(path_), message);
  };
  expect(index("model-00002-of-00002.safetensors"),
         "names the file 'model-00002-of-00002.safetensors', which is missing");
  expect(index("../model/model-00001-of-00001.safetensors"), "is not the name of a file in the directory");
  expect(index("/etc/passwd"), "is not the name of a file in the directory");
  expect(index(".."), "is not the name of a file in the directory");
  expect(index(std::string("a\0b", 3)), "is not the name of a file in the directory");
  expect(index(""), "is not the name of a file in the directory");
  expect(index("config.json"), "safetensors header claims");
  expect(index("model-00001-of-00001.safetensors"), "lacks the tensor 'model.embed_tokens.weight'");
  expect(R"({"weight_map":{"no.such.tensor":"model-00001-of-00001.safetensors"}})", "has no tensor 'no.such.tensor'");
  expect(R"({"weight_map":{"model.norm.weight":7}})", "the file of tensor 'model.norm.weight' is not a string");
  expect(R"({"weight_map":[]})", "has no weight_map");
  expect("[]", "has no weight_map");
  expect("{", "is not valid JSON");
}

// ---- GGUF ----

std::string GgufString(const std::string& text) { return Encode<uint64_t>(text.size()) + text; }

// Values and tensors of a GGUF file as a test states them.
struct GgufSketch {
  std::vector<std::pair<std::string, std::string>> values;  // key; type and value, encoded
  struct Info {
    std::string name;
    std::vector<uint64_t> sizes;  // innermost first
    uint32_t type;
    uint64_t offset;
  };
  std::vector<Info> tensors;
  size_t data_bytes = 0;

  void U32(const std::string& key, uint32_t value) { values.emplace_back(key, Encode<uint32_t>(4) + Encode(value)); }
  void F32(const std::string& key, float value) { values.emplace_back(key, Encode<uint32_t>(6) + Encode(value)); }
  void Text(const std::string& key, const std::string& value) {
    values.emplace_back(key, Encode<uint32_t>(8) + GgufString(value));
  }
  void Set(const std::string& key, const std::string& encoded) {
    std::erase_if(values, [&](const auto& value) { return value.first == key; });
    values.emplace_back(key, encoded);
  }
  Info& Tensor(const std::string& name) {
    for (Info& info : tensors) {
      if (info.name == name) return info;
    }
    ADD_FAILURE() << name;
    return tensors[0];
  }

  std::string Build() const {
    std::string out = "GGUF" + Encode<uint32_t>(3) + Encode<uint64_t>(tensors.size()) + Encode<uint64_t>(values.size());
    for (const auto& [key, value] : values) out += GgufString(key) + value;
    for (const Info& info : tensors) {
      out += GgufString(info.name) + Encode(static_cast<uint32_t>(info.sizes.size()));
      for (const uint64_t size : info.sizes) out += Encode(size);
      out += Encode(info.type) + Encode(info.offset);
    }
    out.resize((out.size() + 31) / 32 * 32, '\0');
    return out + std::string(data_bytes, '\1');
  }
};

GgufSketch GoodGguf() {
  GgufSketch sketch;
  sketch.Text("general.architecture", "llama");
  sketch.U32("llama.context_length", 32);
  sketch.U32("llama.embedding_length", 64);
  sketch.U32("llama.block_count", 2);
  sketch.U32("llama.feed_forward_length", 40);
  sketch.U32("llama.attention.head_count", 4);
  sketch.U32("llama.attention.head_count_kv", 2);
  sketch.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  ModelConfig config = TestConfig();
  for (const ExpectedTensor& tensor : ExpectedTensors(config)) {
    const std::vector<uint64_t> sizes(tensor.shape.rbegin(), tensor.shape.rend());
    sketch.tensors.push_back({GgufTensorName(tensor.name), sizes, 0, sketch.data_bytes});
    sketch.data_bytes += (*StoredBytes(StoredType::kF32, tensor.shape) + 31) / 32 * 32;
  }
  return sketch;
}

TEST(HostileGguf, TheUndamagedOneOpens) {
  const std::string bytes = GoodGguf().Build();
  const auto model = ModelFromGguf(Bytes(bytes), "file", nullptr);
  EXPECT_EQ(model->config().vocab_size, 33u);
  EXPECT_EQ(model->config().rms_norm_eps, 1e-5);
  EXPECT_FALSE(model->vocabulary());
}

TEST(HostileGguf, EachDamageHasItsMessage) {
  using Sketch = GgufSketch;
  const auto set = [](const char* key, std::string encoded) { return [=](Sketch& s) { s.Set(key, encoded); }; };
  const auto u32 = [&](const char* key, uint32_t value) { return set(key, Encode<uint32_t>(4) + Encode(value)); };
  const auto text = [&](const char* key, const char* value) {
    return set(key, Encode<uint32_t>(8) + GgufString(value));
  };
  // An array: its element type, length and elements.
  const auto array = [&](const char* key, uint32_t type, uint64_t count, const std::string& elements) {
    return set(key, Encode<uint32_t>(9) + Encode(type) + Encode(count) + elements);
  };
  const struct {
    std::function<void(Sketch&)> damage;
    const char* message;
  } cases[] = {
      {text("general.architecture", "gpt2"), "general.architecture is \"gpt2\""},
      {u32("general.architecture", 3), "'general.architecture' is not a string"},
      {[](Sketch& s) { std::erase_if(s.values, [](auto& v) { return v.first == "llama.block_count"; }); },
       "'llama.block_count' is missing"},
      {text("llama.block_count", "2"), "'llama.block_count' is not an integer"},
      {set("llama.block_count", Encode<uint32_t>(6) + Encode(2.0f)), "'llama.block_count' is not an integer"},
      {set("llama.block_count", Encode<uint32_t>(10) + Encode(UINT64_MAX)), "'llama.block_count' is absurdly large"},
      {set("llama.block_count", Encode<uint32_t>(5) + Encode(-2)), "'llama.block_count' is -2, which is negative"},
      {u32("llama.block_count", 4000000), "num_hidden_layers is 4000000"},
      {u32("llama.block_count", 3),
       "lacks the tensor 'blk.2.attn_q.weight' ('model.layers.2.self_attn.q_proj.weight')"},
      {u32("llama.block_count", 1), "has the tensor 'blk.1.attn_k.weight', which a LLaMA model does not have"},
      {u32("llama.embedding_length", 128), "has shape [33, 64], but the config asks for [33, 128]"},
      {u32("llama.attention.head_count_kv", 3), "num_attention_heads 4 is not a multiple of num_key_value_heads 3"},
      {u32("llama.attention.head_count", 0), "num_attention_heads is 0"},
      {u32("llama.rope.dimension_count", 8), "'llama.rope.dimension_count' is 8, but the heads have 16 elements"},
      {text("llama.rope.scaling.type", "yarn"), "llama.rope.scaling.type is \"yarn\""},
      {u32("llama.expert_count", 8), "is a mixture of experts"},
      {u32("split.count", 3), "is one part of a split GGUF model"},
      {u32("llama.vocab_size", 34), "the vocabulary has 34 tokens, but 'token_embd.weight' has 33 rows"},
      {set("llama.attention.layer_norm_rms_epsilon", Encode<uint32_t>(6) + Encode(NAN)), "rms_norm_eps is nan"},
      {u32("general.alignment", 24), "general.alignment is 24, not a power of two"},
      {u32("general.alignment", 0), "general.alignment is 0, not a power of two"},
      {u32("general.alignment", 4096), "which is not a multiple of the alignment 4096"},
      {set("x", Encode<uint32_t>(13)), "'x' has the unknown value type 13"},
      {set("x", Encode<uint32_t>(7) + "\2"), "'x' has a truth value that is neither 0 nor 1"},
      {set("x", Encode<uint32_t>(8) + Encode(UINT64_MAX)), "a string at byte"},
      {array("x", 8, UINT64_MAX, ""), "length of an array is 18446744073709551615, impossible"},
      {array("x", 4, uint64_t{1} << 62, ""), "length of an array is 4611686018427387904, impossible"},
      {array("x", 99, 1, ""), "'x' has the unknown value type 99"},
      {array("x", 9, 1,
             Encode<uint32_t>(9) + Encode<uint64_t>(1) + Encode<uint32_t>(9) + Encode<uint64_t>(1) +
                 Encode<uint32_t>(9) + Encode<uint64_t>(1) + Encode<uint32_t>(9) + Encode<uint64_t>(0)),
       "the arrays of 'x' are nested too deeply"},
      {[](Sketch& s) { s.values.push_back(s.values[0]); }, "the metadata key 'general.architecture' stands twice"},
      {[](Sketch& s) { s.Set(std::string(70000, 'k'), Encode<uint32_t>(0) + "\1"); },
       "a metadata key claims 70000 bytes"},
      {array("tokenizer.ggml.tokens", 8, 1, GgufString("a")),
       "the vocabulary has 1 tokens, but 'token_embd.weight' has 33"},
      {array("tokenizer.ggml.tokens", 4, 1, Encode(7)), "'tokenizer.ggml.tokens' is not an array of strings"},
      {array("tokenizer.ggml.scores", 6, 2, Encode(1.0f) + Encode(2.0f)), "scores has 2 entries for 0 tokens"},
      {array("tokenizer.ggml.token_type", 8, 1, GgufString("a")),
       "'tokenizer.ggml.token_type' is not an array of numbers"},
      {u32("tokenizer.ggml.eos_token_id", 33), "eos_token_id is 33, but the vocabulary has 33 tokens"},
      {u32("cairn.landmark.block_length", 7), "landmark.landmark_id is missing"},
      {u32("cairn.landmark.color", 7), "landmark.color is not a setting that Cairn knows"},
      {u32("cairn.landmark.a.b.c", 7), "'cairn.landmark.a.b.c' is not a setting that Cairn knows"},
      {array("cairn.landmark.block_length", 4, 1, Encode(7)), "'cairn.landmark.block_length' is not an integer"},
      {[](Sketch& s) { s.Tensor("output.weight").type = 3; }, "tensor 'output.weight' has the GGUF element type 3"},
      {[](Sketch& s) { s.Tensor("output.weight").type = 12; }, "of type q4_K cannot have the shape [33, 64]"},
      {[](Sketch& s) { s.Tensor("output.weight").sizes = {}; }, "tensor 'output.weight' has 0 sizes"},
      {[](Sketch& s) { s.Tensor("output.weight").sizes.assign(5, 1); }, "tensor 'output.weight' has 5 sizes"},
      {[](Sketch& s) {
         s.Tensor("output.weight").sizes = {uint64_t{1} << 33, uint64_t{1} << 33};
       },
       "too large"},
      {[](Sketch& s) { s.Tensor("output.weight").sizes = {uint64_t{1} << 62}; }, "too large"},
      {[](Sketch& s) {
         s.Tensor("output.weight").sizes = {33, 64};
       },
       "has shape [64, 33], but the config asks for [33, 64]"},
      {[](Sketch& s) { s.Tensor("output.weight").offset += 4; }, "which is not a multiple of the alignment 32"},
      {[](Sketch& s) { s.Tensor("output.weight").offset = UINT64_MAX - 31; },
       "tensor 'output.weight' needs 8448 bytes"},
      {[](Sketch& s) { s.Tensor("output.weight").offset -= 32; }, "two tensors overlap"},
      {[](Sketch& s) { s.Tensor("output.weight").offset = 0; }, "two tensors overlap"},
      {[](Sketch& s) { s.Tensor("output.weight").name = "token_embd.weight"; },
       "tensor 'token_embd.weight' stands twice"},
      {[](Sketch& s) { s.Tensor("token_embd.weight").name = "embeddings"; }, "lacks the tensor 'token_embd.weight'"},
      {[](Sketch& s) { s.Tensor("output.weight").name = std::string(300, 'n'); }, "a tensor's name claims 300 bytes"},
      {[](Sketch& s) { s.Tensor("blk.1.ffn_up.weight").name = "blk.1.ffn_up.bias"; },
       "lacks the tensor 'blk.1.ffn_up.weight'"},
      {[](Sketch& s) { s.data_bytes -= 32; }, "the file is truncated or damaged"},
  };
  for (const auto& c : cases) {
    GgufSketch sketch = GoodGguf();
    c.damage(sketch);
    const std::string bytes = sketch.Build();
    EXPECT_ERROR(ModelFromGguf(Bytes(bytes), "file", nullptr), c.message);
  }
}

TEST(HostileGguf, Headers) {
  const auto open = [](const std::string& bytes) { return ModelFromGguf(Bytes(bytes), "file", nullptr); };
  EXPECT_ERROR(open("GGU"), "is not a GGUF file");
  EXPECT_ERROR(open("GGUF"), "the version at byte 4 needs 4 bytes");
  EXPECT_ERROR(open("GGUF" + Encode<uint32_t>(1)), "is a GGUF file of version 1");
  EXPECT_ERROR(open("GGUF" + Encode<uint32_t>(0x03000000)), "versions 2 and 3, little-endian");
  EXPECT_ERROR(open("GGUF" + Encode<uint32_t>(3) + Encode<uint64_t>(UINT64_MAX) + Encode<uint64_t>(0)),
               "number of tensors is 18446744073709551615, impossible");
  EXPECT_ERROR(open("GGUF" + Encode<uint32_t>(3) + Encode<uint64_t>(0) + Encode<uint64_t>(uint64_t{1} << 40)),
               "number of metadata values is 1099511627776, impossible");
  EXPECT_ERROR(open("GGUF" + Encode<uint32_t>(3) + Encode<uint64_t>(0) + Encode<uint64_t>(0)), "general.architecture");
}

TEST(HostileGguf, EveryTruncationIsAnError) {
  const std::string bytes = GoodGguf().Build();
  for (size_t size = 0; size < bytes.size(); size += size < 4000 ? 1 : 997) {
    const std::string part = bytes.substr(0, size);
    EXPECT_THROW(ModelFromGguf(Bytes(part), "file", nullptr), Error) << size;
  }
}

// ---- llama2.c ----

std::string Llama2c(std::vector<int32_t> header, size_t floats) {
  std::string out;
  for (const int32_t number : header) out += Encode(number);
  return out + std::string(4 * floats, '\0');
}

TEST(HostileLlama2c, EachDamageHasItsMessage) {
  ModelConfig config = TestConfig();
  config.tie_word_embeddings = true;
  const size_t floats = ParameterCount(config) + 32 * 16;
  const auto open = [](const std::string& bytes) {
    return ModelFromLlama2c(Bytes(bytes), "file", nullptr, std::nullopt);
  };
  const std::string good = Llama2c({64, 40, 2, 4, 2, 33, 32}, floats);
  EXPECT_EQ(open(good)->config().vocab_size, 33u);
  EXPECT_ERROR(open(good.substr(0, 20)), "has 20 bytes, too few");
  EXPECT_ERROR(open(good.substr(0, good.size() - 1)), "it is truncated, damaged or no llama2.c model");
  EXPECT_ERROR(open(good + "x"), "it is truncated, damaged or no llama2.c model");
  EXPECT_ERROR(open(Llama2c({64, 40, 2, 4, 2, -33, 32}, floats)), "it is truncated, damaged or no llama2.c model");
  EXPECT_ERROR(open(Llama2c({-64, 40, 2, 4, 2, 33, 32}, floats)), "sizes in its header that no llama2.c model has");
  EXPECT_ERROR(open(Llama2c({64, 40, 2147483647, 4, 2, 33, 32}, floats)),
               "sizes in its header that no llama2.c model has");
  EXPECT_ERROR(open(Llama2c({64, 40, 2, 4, 2, INT32_MIN, 32}, floats)),
               "sizes in its header that no llama2.c model has");
  EXPECT_ERROR(open(Llama2c({64, 40, 2, 5, 1, 33, 32}, floats)), "the width 64 is not a multiple of the 5 heads");
  EXPECT_ERROR(open(Llama2c({64, 40, 2, 4, 3, 33, 32}, floats)), "num_attention_heads 4 is not a multiple of");
  EXPECT_ERROR(open(Llama2c({1 << 20, 1 << 20, 4096, 64, 64, 1 << 24, 1 << 30}, 10)), "but its header asks for");
  EXPECT_ERROR(open(Llama2c({0x616b3432, 7}, 100)), "is a llama2.c file of version 7");
  EXPECT_ERROR(open(Llama2c({0x616b3432, 1}, 10)), "too few for a llama2.c header");
}

TEST(OpenModel, RefusesOtherFiles) {
  const ScratchDirectory scratch;
  WriteFileAtomically(scratch / "a.txt", "Once upon a time there was a file that was no model at all.");
  EXPECT_ERROR(OpenModel(scratch / "a.txt"), "is no model that Cairn reads");
  WriteFileAtomically(scratch / "empty", "");
  EXPECT_ERROR(OpenModel(scratch / "empty"), "is no model that Cairn reads");
}

}  // namespace
}  // namespace cairn
