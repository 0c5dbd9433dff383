// cairn convert and cairn model info as a person calls them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "formats/huggingface.h"
#include "io/file.h"
#include "model_makers.h"
#include "test_files.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

struct Result {
  int code;
  std::string output;  // both streams
};

Result RunCairn(const std::string& arguments) {
  FILE* pipe = popen((std::string(CAIRN_BINARY) + " " + arguments + " 2>&1").c_str(), "r");
  Result result{-1, ""};
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) result.output.append(buffer, n);
  result.code = WEXITSTATUS(pclose(pipe));
  return result;
}

class ConvertVerb : public ::testing::Test {
 protected:
  ConvertVerb() {
    WriteHuggingFace(*model_, scratch_ / "hf", {});
    WriteFileAtomically(scratch_ / "hf/tokenizer.model", "a tokenizer");
  }
  std::string Path(const std::string& name) const { return (scratch_ / name).string(); }

  ScratchDirectory scratch_;
  std::shared_ptr<const ModelSource> model_ = RandomModel(TestConfig());
};

TEST_F(ConvertVerb, GuessesTheFormatFromTheName) {
  for (const auto& [name, format] : {std::pair("a.gguf", ModelFormat::kGguf), std::pair("a.bin", ModelFormat::kLlama2c),
                                     std::pair("again", ModelFormat::kHuggingFace)}) {
    const Result result = RunCairn("convert " + Path("hf") + " " + Path(name));
    EXPECT_EQ(result.code, 0) << result.output;
    ExpectMessage(result.output, "wrote " + Path(name));
    const auto opened = OpenModel(Path(name));
    EXPECT_EQ(opened->format(), format);
    ExpectSameWeights(*model_, *opened);
  }
  EXPECT_EQ(ReadTextFile(Path("again/tokenizer.model")), "a tokenizer");
}

TEST_F(ConvertVerb, FlagsAreObeyed) {
  const Result result = RunCairn("convert " + Path("hf") + " " + Path("model.x") + " --to gguf --dtype q8_0 --json");
  ASSERT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(OpenModel(Path("model.x"))->Get("model.layers.0.self_attn.q_proj.weight").type, StoredType::kQ8_0);
  EXPECT_EQ(RunCairn("convert " + Path("hf") + " " + Path("shards") + " --dtype bf16 --shard-size 20k").code, 0);
  EXPECT_TRUE(fs::exists(Path("shards/model.safetensors.index.json")));
}

TEST_F(ConvertVerb, Refuses) {
  const auto expect = [&](const std::string& arguments, const std::string& message) {
    const Result result = RunCairn("convert " + arguments);
    EXPECT_NE(result.code, 0) << arguments;
    ExpectMessage(result.output, message);
  };
  const std::string from = Path("hf") + " ";
  expect(from + Path("hf"), "is the model itself");
  WriteFileAtomically(Path("old.gguf"), "precious");
  expect(from + Path("old.gguf"), "exists; choose another name or add --force");
  EXPECT_EQ(ReadTextFile(Path("old.gguf")), "precious");
  EXPECT_EQ(RunCairn("convert " + from + Path("old.gguf") + " --force").code, 0);
  expect(from + Path("a.bin") + " --dtype f16", "llama2.c files hold f32 weights");
  expect(from + Path("a") + " --dtype q8_0", "Hugging Face directories hold f32, f16 or bf16");
  expect(from + Path("a.gguf") + " --shard-size 1M", "--shard-size is for Hugging Face directories");
  expect(from + Path("a.safetensors"), "name the directory");
  expect(from + Path("missing/a.gguf"), "cannot write");
  expect(Path("nothing") + " " + Path("a.gguf"), "cannot open");
}

TEST_F(ConvertVerb, ModelInfo) {
  const Result text = RunCairn("model info " + Path("hf") + " --tensors");
  EXPECT_EQ(text.code, 0);
  ExpectMessage(text.output, "attention landmark, block length 7, landmark id 32");
  ExpectMessage(text.output, "model.layers.1.mlp.down_proj.weight");
  const Result json = RunCairn("model info " + Path("hf") + " --tensors --json");
  const auto facts = nlohmann::json::parse(json.output);
  EXPECT_EQ(facts["parameters"], ParameterCount(TestConfig()));
  EXPECT_EQ(facts["config"]["landmark"]["block_length"], 7);
  EXPECT_EQ(facts["tensors"].size(), ExpectedTensors(TestConfig()).size());
}

}  // namespace
}  // namespace cairn
