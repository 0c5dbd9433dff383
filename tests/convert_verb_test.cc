// cairn convert and cairn model info as a person calls them.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "formats/gguf_model.h"
#include "formats/huggingface.h"
#include "formats/model_tokenizer.h"
#include "io/file.h"
#include "model_makers.h"
#include "test_files.h"
#include "tokenizer/llama2c_vocabulary.h"

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

// ---- Tokenizers ----

// All bytes and a few pieces, as SentencePiece has them, and the landmark last.
VocabularySpec SmallSpec() {
  VocabularySpec spec;
  const auto add = [&](const std::string& piece, TokenType type, float score) {
    spec.pieces.push_back(piece);
    spec.types.push_back(type);
    spec.scores.push_back(score);
  };
  add("<unk>", TokenType::kUnknown, 0);
  add("<s>", TokenType::kControl, 0);
  add("</s>", TokenType::kControl, 0);
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    add(name, TokenType::kByte, 0);
  }
  float score = 0;
  for (const char* piece :
       {"\xe2\x96\x81t", "he", "\xe2\x96\x81the", "on", "\xe2\x96\x81", "t", "h", "e", "o", "n", "s"}) {
    add(piece, TokenType::kNormal, score--);
  }
  add(kLandmarkPiece, TokenType::kControl, 0);
  spec.bos = 1, spec.eos = 2, spec.unknown = 0;
  spec.landmark = static_cast<int32_t>(spec.pieces.size()) - 1;
  return spec;
}

ModelConfig ConfigFor(const VocabularySpec& spec) {
  ModelConfig config = TestConfig();
  config.vocab_size = spec.pieces.size();
  config.landmark.landmark_id = *spec.landmark;
  return config;
}

const char kText[] = "the stone <landmark> on the </s> th\xc3\xa9 \xff\n  hen";

void ExpectSameVocabulary(const GgufVocabulary& a, const GgufVocabulary& b) {
  EXPECT_EQ(a.model, b.model);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.scores, b.scores);
  EXPECT_EQ(a.types, b.types);
  EXPECT_EQ(a.merges, b.merges);
  EXPECT_EQ(a.bos_id, b.bos_id);
  EXPECT_EQ(a.eos_id, b.eos_id);
  EXPECT_EQ(a.unknown_id, b.unknown_id);
  EXPECT_EQ(a.chat_template, b.chat_template);
}

void ExpectConverts(const std::string& from, const std::string& to) {
  const Result result = RunCairn("convert " + from + " " + to);
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_EQ(result.output.find("warning"), std::string::npos) << result.output;
}

class ConvertTokenizer : public ConvertVerb {};

TEST_F(ConvertTokenizer, GgufToDirectoryAndBack) {
  const VocabularySpec spec = SmallSpec();
  GgufWriteOptions options;
  options.vocabulary = GgufFromSpec(spec);
  options.vocabulary->chat_template = "{{ messages }}";
  WriteGguf(*RandomModel(ConfigFor(spec)), Path("a.gguf"), options);
  ExpectConverts(Path("a.gguf"), Path("a"));
  ExpectConverts(Path("a"), Path("b.gguf"));
  ExpectSameVocabulary(*OpenModel(Path("a.gguf"))->vocabulary(), *OpenModel(Path("b.gguf"))->vocabulary());
  const auto expected = MakeTokenizer(spec);
  for (const char* name : {"a.gguf", "a", "b.gguf"}) {
    const auto tokenizer = LoadModelTokenizer(Path(name));
    EXPECT_EQ(tokenizer->Encode(kText), expected->Encode(kText)) << name;
    EXPECT_EQ(tokenizer->fingerprint(), expected->fingerprint()) << name;
    EXPECT_EQ(tokenizer->landmark(), spec.landmark) << name;
    EXPECT_EQ(tokenizer->bos(), spec.bos) << name;
  }
}

TEST_F(ConvertTokenizer, Llama2cKeepsItBesideTheModel) {
  const VocabularySpec spec = SmallSpec();
  const auto expected = MakeTokenizer(spec);
  WriteHuggingFace(*RandomModel(ConfigFor(spec)), scratch_ / "from", {});
  expected->Save(scratch_ / "from");
  ExpectConverts(Path("from"), Path("a.bin"));
  ASSERT_TRUE(fs::exists(Path("a.tokenizer.bin")));
  EXPECT_EQ(LoadModelTokenizer(Path("a.bin"))->Encode(kText), expected->Encode(kText));
  ExpectConverts(Path("a.bin"), Path("back"));
  ExpectConverts(Path("a.bin"), Path("back.gguf"));
  ExpectConverts(Path("back.gguf"), Path("again.bin"));
  for (const char* name : {"back", "back.gguf", "again.bin"}) {
    const auto tokenizer = LoadModelTokenizer(Path(name));
    EXPECT_EQ(tokenizer->Encode(kText), expected->Encode(kText)) << name;
    EXPECT_EQ(tokenizer->landmark(), spec.landmark) << name;
  }
  EXPECT_EQ(ReadTextFile(Path("a.tokenizer.bin")), ReadTextFile(Path("again.tokenizer.bin")));
  // A tokenizer without its model is not overwritten either.
  fs::remove(Path("again.bin"));
  const Result refused = RunCairn("convert " + Path("from") + " " + Path("again.bin"));
  EXPECT_NE(refused.code, 0);
  ExpectMessage(refused.output, "again.tokenizer.bin' exists");
}

TEST_F(ConvertTokenizer, ByteLevelThroughGguf) {
  VocabularySpec spec;
  spec.kind = VocabularyKind::kByteLevelBpe;
  spec.add_dummy_prefix = false;
  spec.split_patterns = SplitPatternsOf("llama-bpe");
  spec.ignore_merges = true;
  // GPT-2's spelling of the bytes: printable ones stand for themselves, the others follow from U+0100.
  const auto utf8 = [](int code) {
    return std::string{static_cast<char>(0xc0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3f))};
  };
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
    spec.pieces.push_back(byte < 127 && printable ? std::string(1, static_cast<char>(byte))
                                                  : utf8(printable ? byte : next++));
  }
  spec.merges = {{"h", "e"}, {"t", "he"}};
  for (const char* piece : {"he", "the"}) spec.pieces.push_back(piece);
  spec.types.assign(spec.pieces.size(), TokenType::kNormal);
  for (const char* piece : {"<|begin_of_text|>", kLandmarkPiece}) {
    spec.pieces.push_back(piece);
    spec.types.push_back(TokenType::kControl);
  }
  spec.bos = 258, spec.landmark = 259;
  ModelConfig config = ConfigFor(spec);
  config.bos_token_id = 258;
  config.eos_token_ids = {};
  const auto expected = MakeTokenizer(spec);
  WriteHuggingFace(*RandomModel(config), scratch_ / "from", {});
  expected->Save(scratch_ / "from");
  ExpectConverts(Path("from"), Path("a.gguf"));
  ExpectConverts(Path("a.gguf"), Path("back"));
  ExpectConverts(Path("back"), Path("b.gguf"));
  ExpectSameVocabulary(*OpenModel(Path("a.gguf"))->vocabulary(), *OpenModel(Path("b.gguf"))->vocabulary());
  for (const char* name : {"a.gguf", "back"}) {
    const auto tokenizer = LoadModelTokenizer(Path(name));
    EXPECT_EQ(tokenizer->Encode(kText), expected->Encode(kText)) << name;
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(kText)), kText) << name;
    EXPECT_EQ(tokenizer->fingerprint(), expected->fingerprint()) << name;
    EXPECT_EQ(tokenizer->landmark(), spec.landmark) << name;
  }
  // llama2.c has no such tokenizers: the weights are written, and a warning says what is missing.
  const Result result = RunCairn("convert " + Path("from") + " " + Path("a.bin"));
  EXPECT_EQ(result.code, 0) << result.output;
  ExpectMessage(result.output, "no tokenizer is written");
  EXPECT_FALSE(fs::exists(Path("a.tokenizer.bin")));
}

TEST_F(ConvertTokenizer, WeightsGoWithoutABrokenTokenizer) {
  const Result result = RunCairn("convert " + Path("hf") + " " + Path("a.gguf"));
  EXPECT_EQ(result.code, 0) << result.output;
  ExpectMessage(result.output, "no tokenizer is taken over: '" + Path("hf/tokenizer.model") + "'");
  EXPECT_FALSE(OpenModel(Path("a.gguf"))->vocabulary());
}

TEST_F(ConvertTokenizer, SaysWhatWasLookedFor) {
  fs::remove(Path("hf/tokenizer.model"));
  EXPECT_ERROR(LoadModelTokenizer(Path("hf")), "has no tokenizer.model, tokenizer.json or tokenizer.bin");
  ASSERT_EQ(RunCairn("convert " + Path("hf") + " " + Path("a.gguf")).code, 0);
  EXPECT_ERROR(LoadModelTokenizer(Path("a.gguf")), "has no vocabulary inside (tokenizer.ggml.tokens)");
  ASSERT_EQ(RunCairn("convert " + Path("hf") + " " + Path("a.bin")).code, 0);
  EXPECT_ERROR(LoadModelTokenizer(Path("a.bin")), "looked for '" + Path("a.tokenizer.bin") + "', '" +
                                                      Path("tokenizer.bin") + "', '" + Path("tokenizer.model") + "'");
  // One of another model is passed over, and said to be.
  WriteFileAtomically(Path("tokenizer.bin"), WriteLlama2cVocabulary(SmallSpec()));
  EXPECT_ERROR(LoadModelTokenizer(Path("a.bin")), "tokenizer.bin' has 271 tokens and belongs to another model");
  MakeTokenizer(SmallSpec())->Save(Path("hf"));
  EXPECT_ERROR(LoadModelTokenizer(Path("hf")), "has 271 tokens, but the model");
  EXPECT_ERROR(LoadModelTokenizer(Path("nothing")), "cannot open");
}

TEST_F(ConvertTokenizer, RefusesHostileVocabularies) {
  const GgufVocabulary good = GgufFromSpec(SmallSpec());
  const auto expect = [&](const auto& change, const std::string& message) {
    GgufVocabulary bad = good;
    change(bad);
    EXPECT_ERROR(MakeTokenizer(SpecFromGguf(bad, "x")), message);
  };
  expect([](auto& v) { v.model = "bert"; }, "vocabularies of kind 'bert' are not read");
  expect([](auto& v) { v.scores.clear(); }, "has no scores");
  expect([](auto& v) { v.bos_id = 1 << 20; }, "outside the vocabulary");
  expect([](auto& v) { v.eos_id = -5; }, "outside the vocabulary");
  expect([](auto& v) { v.types[5] = 77; }, "type 77");
  expect([](auto& v) { v.model = "gpt2", v.merges = {"alone"}; }, "names no pair");
  expect([](auto& v) { v.model = "gpt2", v.pre = "unheard-of"; }, "'unheard-of' is not known");
}

TEST_F(ConvertTokenizer, MergesBecomeScores) {
  VocabularySpec spec = SmallSpec();
  const auto expected = MakeTokenizer(spec);
  spec.merges = {{"\xe2\x96\x81", "t"}, {"h", "e"}, {"\xe2\x96\x81t", "he"}, {"o", "n"}};
  spec.scores.clear();
  const auto scored = MakeTokenizer(SpecFromGguf(GgufFromSpec(spec), "x"));
  EXPECT_EQ(scored->Encode(kText), expected->Encode(kText));
  spec.merges.push_back({"\xe2\x96\x81", "t"});
  EXPECT_ERROR(GgufFromSpec(spec), "do not stand together");
}

TEST_F(ConvertTokenizer, RealVocabulary) {
  CAIRN_NEED_SHARED(shared);
  const fs::path original = shared / "assets/stories260K-f32.gguf";
  ExpectConverts(original.string(), Path("a"));
  ExpectConverts(Path("a"), Path("b.gguf"));
  ExpectSameVocabulary(*OpenModel(original)->vocabulary(), *OpenModel(Path("b.gguf"))->vocabulary());
  const auto expected = LoadTokenizer(shared / "assets/tok512.bin");
  const std::string text = std::string("Once upon a time, Lily's dog found 3 stones.\n\n") + kText;
  for (const fs::path& path : {original, fs::path(Path("a")), fs::path(Path("b.gguf"))}) {
    const auto tokenizer = LoadModelTokenizer(path);
    EXPECT_EQ(tokenizer->Encode(text), expected->Encode(text)) << path;
    EXPECT_EQ(tokenizer->fingerprint(), expected->fingerprint()) << path;
  }
  // A llama2.c file finds its tokenizer under llama2.c's usual name.
  fs::copy_file(shared / "assets/stories260K.bin", Path("stories.bin"));
  fs::copy_file(shared / "assets/tok512.bin", Path("tokenizer.bin"));
  EXPECT_EQ(LoadModelTokenizer(Path("stories.bin"))->Encode(text), expected->Encode(text));
  ExpectConverts(Path("stories.bin"), Path("c.gguf"));
  EXPECT_EQ(LoadModelTokenizer(Path("c.gguf"))->fingerprint(), expected->fingerprint());
}

}  // namespace
}  // namespace cairn
