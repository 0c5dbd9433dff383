// cairn generate as a person calls it, hostile input included: the prompts, models and flags that can go wrong, and
// what it prints.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "formats/gguf_model.h"
#include "io/file.h"
#include "model_makers.h"
#include "test_files.h"

namespace cairn {
namespace {

using Words = std::vector<std::string>;
using Json = nlohmann::json;

struct Result {
  int code;
  std::string out;
  std::string err;
};

// Bytes, and pieces that make "stonehillstonehill..." short.
GgufVocabulary Vocabulary() {
  GgufVocabulary vocabulary;
  vocabulary.model = "llama";
  const auto add = [&](const std::string& text, GgufTokenType type) {
    vocabulary.scores.push_back(-static_cast<float>(vocabulary.tokens.size()));
    vocabulary.tokens.push_back(text);
    vocabulary.types.push_back(type);
  };
  add("<unk>", kGgufTokenUnknown);
  add("<s>", kGgufTokenControl);
  add("</s>", kGgufTokenControl);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), kGgufTokenByte);
  for (const char* piece : {"st", "on", "eh", "il", "l", "s", "t", "o", "n", "e", "h", "i", "ston", "ehil", "stonehil",
                            "stonehill", "\xe2\x96\x81", "\xe2\x96\x81stonehill"}) {
    add(piece, kGgufTokenNormal);
  }
  std::string chain = "stonehill";
  for (int i = 0; i < 4; ++i) add(chain += chain, kGgufTokenNormal);
  vocabulary.bos_id = 1;
  vocabulary.eos_id = 2;
  vocabulary.unknown_id = 0;
  vocabulary.add_bos = true;
  return vocabulary;
}

class GenerateVerb : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new ScratchDirectory(SmallFilesDirectory());
    const GgufVocabulary vocabulary = Vocabulary();
    ModelConfig config;
    config.hidden_size = 8;
    config.intermediate_size = 8;
    config.num_hidden_layers = 1;
    config.num_attention_heads = config.num_key_value_heads = 1;
    config.head_dim = 8;
    config.vocab_size = vocabulary.tokens.size() + 1;
    config.max_position_embeddings = 128;
    config.rms_norm_eps = 1e-5;
    config.bos_token_id = 1;
    config.eos_token_ids = {2};
    config.landmark.attention = AttentionKind::kLandmark;
    config.landmark.block_length = 7;
    config.landmark.landmark_id = static_cast<int64_t>(vocabulary.tokens.size());
    auto tensors = RandomTensors(config, 1);
    // Nothing but letters is ever probable: neither the end nor bytes that are no text.
    const Tensor& embedding = tensors.at("model.embed_tokens.weight");
    Tensor& head = tensors.at("lm_head.weight");
    for (size_t id = 0; id < config.vocab_size; ++id) {
      const bool text = id >= 3 + 'a' && id <= 3 + 'z';
      for (size_t i = 0; i < 8 && !text; ++i) head.data()[id * 8 + i] *= 1e-3f;
    }
    ASSERT_EQ(embedding.shape()[0], config.vocab_size);
    WriteGguf(*MakeModelSource(config, std::move(tensors)), Model(), {.vocabulary = vocabulary});
  }
  static void TearDownTestSuite() { delete shared_; }

  static std::string Model() { return (*shared_ / "tiny.gguf").string(); }

  // The program, with its words after "generate"; `input` is its standard input.
  static Result Run(const Words& words, const std::string& input = "") {
    const ScratchDirectory streams(SmallFilesDirectory());
    WriteFileAtomically(streams / "in", input);
    std::string command = std::string("CAIRN_THREADS=1 ") + CAIRN_BINARY + " generate";
    for (std::string word : words) {
      for (size_t at = 0; (at = word.find('\'', at)) != std::string::npos; at += 4) word.replace(at, 1, "'\\''");
      command.append(" '").append(word).append("'");
    }
    for (const auto& [stream, name] : {std::pair("<", "in"), std::pair(">", "out"), std::pair("2>", "err")}) {
      command.append(" ").append(stream).append((streams / name).string());
    }
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadTextFile(streams / "out"), ReadTextFile(streams / "err")};
  }

  static Result Good(Words words, const std::string& input = "") {
    words.insert(words.begin(), {"-m", Model()});
    Result result = Run(words, input);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
  static Json GoodJson(Words words, const std::string& input = "") {
    words.push_back("--json");
    return Json::parse(Good(words, input).out);
  }

  // An error is one line on standard error, and nothing on standard output.
  static void Bad(const Words& words, const std::string& message) {
    const Result result = Run(words);
    EXPECT_GT(result.code, 0) << message;
    EXPECT_LT(result.code, 126) << message;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.err.starts_with("cairn: error: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    ExpectMessage(result.err, message);
  }
  static void BadFlag(Words words, const std::string& message) {
    SCOPED_TRACE(words[0] + " " + words[1]);
    words.insert(words.begin(), {"-m", Model(), "-p", "stone"});
    Bad(words, message);
  }

  static ScratchDirectory* shared_;
  ScratchDirectory scratch_{SmallFilesDirectory()};
};
ScratchDirectory* GenerateVerb::shared_ = nullptr;

TEST_F(GenerateVerb, PrintsThePromptAndWhatFollows) {
  const Result result = Good({"-p", "stone hill", "-n", "5", "--temperature", "0"});
  EXPECT_TRUE(result.out.starts_with("stone hill")) << result.out;
  EXPECT_EQ(result.out.size(), std::string("stone hill").size() + 5 + 1)
      << result.out;  // five letters and a line's end
  ExpectMessage(result.err, "generated 5 tokens");
  const Result bare = Good({"-p", "stone hill", "-n", "5", "--temperature", "0", "--no-prompt"});
  EXPECT_EQ("stone hill" + bare.out, result.out);
  const Result file = Good({"-f", "-", "-p", " hill", "-n", "5", "--temperature", "0", "--no-prompt"}, "stone");
  EXPECT_EQ(file.out, bare.out);
}

TEST_F(GenerateVerb, AnyPromptIsRead) {
  EXPECT_EQ(GoodJson({"-p", "", "-n", "3"})["prompt_tokens"], 1);  // bos
  EXPECT_EQ(GoodJson({"-n", "3"})["prompt_tokens"], 1);
  EXPECT_EQ(GoodJson({"-p", "stonehill", "-n", "3"})["prompt_tokens"], 2);
  EXPECT_EQ(GoodJson({"-p", "stone", "-n", "0"})["generated_tokens"], 0);
  const std::string broken("\xff\xfe stone \xe2\x96\0\xc3", 13);
  const Result result = Good({"-f", "-", "-n", "3", "--json"}, broken);
  ExpectMessage(result.err, "not UTF-8");
  EXPECT_EQ(Json::parse(result.out)["generated_tokens"], 3);
  EXPECT_EQ(Good({"-f", "-", "-n", "3"}, broken).out.substr(0, broken.size()), broken);
  // Spellings of control tokens are text.
  EXPECT_GT(GoodJson({"-p", "</s><s>", "-n", "1"})["prompt_tokens"], 6);
}

TEST_F(GenerateVerb, ALineOfTenMegabytesIsRead) {
  std::string line;
  while (line.size() < 10000000) line += "stonehill";
  const Json result = GoodJson({"-f", "-", "-n", "3", "--memory-blocks", "100"}, line);
  EXPECT_EQ(result["generated_tokens"], 3);
  EXPECT_EQ(result["blocks_in_memory"], 100);
  EXPECT_GT(result["prompt_tokens"], 10000000 / 9 / 16);
  // The prompt is not repeated when it is long.
  EXPECT_LT(Good({"-f", "-", "-n", "3", "--memory-blocks", "100"}, line.substr(0, 100000)).out.size(), 100u);
}

TEST_F(GenerateVerb, SettingsBeyondTrainingAreWarnedOf) {
  EXPECT_EQ(Good({"-p", "stone", "-n", "2", "-k", "2"}).err.find("trained with"), std::string::npos);
  ExpectMessage(Good({"-p", "stone", "-n", "2", "--chunk", "200"}).err, "trained with 128");
  ExpectMessage(Good({"-p", "stone", "-n", "2", "-k", "1000000000000"}).err, "trained with 128");
  ExpectMessage(Good({"-p", "stone", "-n", "2", "-k", "18446744073709551615"}).err, "trained with 128");
  ExpectMessage(Good({"-p", "stone", "-n", "200", "--attention", "full"}).err, "128 positions");
}

TEST_F(GenerateVerb, SameSeedSameText) {
  const Words words = {"-p", "stone hill", "-n", "40", "--temperature", "1.5", "--seed"};
  const auto text = [&](const std::string& seed) {
    Words all = words;
    all.push_back(seed);
    return Good(all).out;
  };
  EXPECT_EQ(text("7"), text("7"));
  EXPECT_NE(text("7"), text("8"));
}

TEST_F(GenerateVerb, StopsAtAText) {
  const Words words = {"-p", "stone hill", "-n", "30", "--temperature", "1", "--top-k", "4", "--seed", "3"};
  const std::string whole = GoodJson(words)["text"];
  ASSERT_EQ(whole.size(), 30u);
  const std::string stop = whole.substr(10, 3);
  Words stopping = words;
  stopping.insert(stopping.end(), {"--stop", "never", "--stop", stop});
  const Json result = GoodJson(stopping);
  EXPECT_EQ(result["end"], "stop");
  EXPECT_EQ(result["text"], whole.substr(0, whole.find(stop)));
  EXPECT_EQ(GoodJson(words)["end"], "length");
}

TEST_F(GenerateVerb, ShowsWhatWasRead) {
  const std::string prompt = "the old stone stands on a hill and walkers read every mark";
  const Words words = {"-p", prompt, "-n", "4", "-k", "2", "--chunk", "14", "--temperature", "0"};
  Words show = words;
  show.push_back("--show-reads");
  const std::string out = Good(show).out;
  const size_t list = out.find("blocks read most");
  ASSERT_NE(list, std::string::npos) << out;
  const Json result = GoodJson(words);
  const std::string whole = prompt + result["text"].get<std::string>();
  const Json& reads = result["reads"];
  ASSERT_EQ(reads["tokens"].size(), 4u);
  ASSERT_GE(reads["blocks"].size(), 2u);
  for (const Json& block : reads["blocks"]) {
    const std::string text = block["text"];
    EXPECT_FALSE(text.empty());
    EXPECT_NE(whole.find(text), std::string::npos) << text;
    EXPECT_EQ(block["last_token"].get<size_t>() - block["first_token"].get<size_t>(), 6u);
    EXPECT_NE(out.find(text, list), std::string::npos) << text << "\n" << out;
  }
  for (const Json& token : reads["tokens"]) {
    for (const Json& layer : token["layers"]) {
      double sum = 0;
      for (const Json& block : layer["blocks"]) sum += block["weight"].get<double>();
      EXPECT_GT(sum, 0);
      EXPECT_LE(sum, 1 + 1e-6);
    }
  }
  show.insert(show.end(), {"--attention", "full"});
  ExpectMessage(Good(show).out, "full attention reads everything");
}

TEST_F(GenerateVerb, EveryKindOfWeightsRuns) {
  for (const char* kind : {"f32", "f16", "int8", "int4"}) {
    EXPECT_EQ(GoodJson({"-p", "stone", "-n", "3", "--weights", kind})["generated_tokens"], 3) << kind;
  }
}

TEST_F(GenerateVerb, BadModels) {
  Bad({"-m", (scratch_ / "none.gguf").string(), "-p", "x"}, "none.gguf");
  Bad({"-m", scratch_.path().string(), "-p", "x"}, scratch_.path().string());
  const std::string whole = ReadTextFile(Model());
  for (const size_t size : {size_t{0}, size_t{3}, size_t{100}, whole.size() / 2, whole.size() - 1}) {
    WriteFileAtomically(scratch_ / "cut.gguf", whole.substr(0, size));
    Bad({"-m", (scratch_ / "cut.gguf").string(), "-p", "x"}, "cut.gguf");
  }
  WriteFileAtomically(scratch_ / "text.gguf", std::string(100000, 'x'));
  Bad({"-m", (scratch_ / "text.gguf").string(), "-p", "x"}, "text.gguf");
}

TEST_F(GenerateVerb, BadFlags) {
  Bad({"-p", "x"}, "model");
  BadFlag({"-f", (scratch_ / "none.txt").string()}, "none.txt");
  BadFlag({"-t", (scratch_ / "none.model").string()}, "none.model");
  for (const char* value : {"-1", "x", "1.5", "99999999999999999999999"}) BadFlag({"-n", value}, value);
  for (const char* flag : {"-k", "--chunk", "--block", "--memory-blocks", "--seed"}) BadFlag({flag, "-1"}, "'-1'");
  BadFlag({"--chunk", "18446744073709551615"}, "too long");
  BadFlag({"--block", "18446744073709551615"}, "too long");
  BadFlag({"--granularity", "all"}, "all");
  BadFlag({"--positions", "none"}, "none");
  BadFlag({"--attention", "half"}, "half");
  BadFlag({"--weights", "int3"}, "int3");
  BadFlag({"--cutoff", "0.5"}, "context-miss");
  BadFlag({"--cutoff", "2"}, "between 0 and 1");
  BadFlag({"--cutoff", "nan"}, "between 0 and 1");
  BadFlag({"--temperature", "-1"}, "temperature");
  BadFlag({"--temperature", "nan"}, "temperature");
  BadFlag({"--top-p", "2"}, "top-p");
  BadFlag({"--min-p", "-0.5"}, "min-p");
  BadFlag({"--repetition-penalty", "0"}, "repetition");
  BadFlag({"--no-such-flag", "1"}, "no-such-flag");
}

}  // namespace
}  // namespace cairn
