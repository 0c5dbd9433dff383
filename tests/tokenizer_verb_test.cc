// cairn tokenizer and cairn data as a person calls them: from a text to a vocabulary, to shards and back.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "data/token_dataset.h"
#include "formats/gguf_model.h"
#include "formats/model_tokenizer.h"
#include "io/file.h"
#include "model_makers.h"
#include "test_files.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

struct Result {
  int code;
  std::string out;
  std::string err;
};

std::string Quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  quoted += "'";
  return quoted;
}

// A text of invented sentences; another one for each seed.
std::string MakeText(uint64_t seed, size_t lines) {
  const char* const words[] = {"the",  "stone",  "stands", "on",    "a",    "hill", "and",   "walkers", "read", "every",
                               "mark", "before", "night",  "falls", "over", "old",  "paths", "far",     "from", "home"};
  Random random(seed);
  std::string text;
  for (size_t i = 0; i < lines; ++i) {
    for (size_t w = 0; w < 8; ++w) {
      if (w > 0) text += ' ';
      text += words[random.Below(std::size(words))];
    }
    text += ".\n";
  }
  return text;
}

class TokenizerVerb : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = new ScratchDirectory;
    WriteFileAtomically(*shared_ / "text.txt", MakeText(1, 400));
    const Result result = Run({"tokenizer", "train", (*shared_ / "text.txt").string(), "--vocab", "340", "-o", Tok()});
    ASSERT_EQ(result.code, 0) << result.err;
    ExpectMessage(result.out, "340 tokens from 1 files");
    ExpectMessage(result.out, "landmark 339");
  }
  static void TearDownTestSuite() { delete shared_; }

  // `input` is what the program reads from standard input.
  static Result Run(const std::vector<std::string>& words, const std::string& input = "") {
    const ScratchDirectory streams;
    WriteFileAtomically(streams / "in", input);
    std::string command = CAIRN_BINARY;
    for (const std::string& word : words) command.append(" ").append(Quoted(word));
    for (const auto& [stream, name] : {std::pair("<", "in"), std::pair(">", "out"), std::pair("2>", "err")}) {
      command.append(" ").append(stream).append(Quoted((streams / name).string()));
    }
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadTextFile(streams / "out"), ReadTextFile(streams / "err")};
  }

  static Result Good(const std::vector<std::string>& words, const std::string& input = "") {
    Result result = Run(words, input);
    EXPECT_EQ(result.code, 0) << words[1] << ": " << result.err;
    return result;
  }

  // An error is one line on standard error, and nothing on standard output.
  static void Bad(const std::vector<std::string>& words, const std::string& message) {
    const Result result = Run(words);
    EXPECT_GT(result.code, 0) << message;
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(result.err.starts_with("cairn: error: ")) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    ExpectMessage(result.err, message);
  }

  static std::string Tok() { return (*shared_ / "tok.model").string(); }
  static std::string Text() { return (*shared_ / "text.txt").string(); }
  std::string Path(const std::string& name) const { return (scratch_ / name).string(); }
  std::string File(const std::string& name, const std::string& content) const {
    WriteFileAtomically(scratch_ / name, content);
    return Path(name);
  }

  // The documents of a split as text, "[bos]" where one begins with it.
  static std::vector<std::string> Documents(const std::string& directory, const std::string& split) {
    const auto data = TokenDataset::Open(directory, split);
    const auto tokenizer = LoadTokenizer(Tok());
    std::vector<int32_t> all(data->token_count());
    data->Read(0, all);
    std::vector<std::string> documents;
    for (size_t begin = 0, end; begin < all.size(); begin = end) {
      end = begin + 1;
      while (end < all.size() && all[end] != tokenizer->bos()) ++end;
      documents.push_back((all[begin] == tokenizer->bos() ? "[bos]" : "") +
                          tokenizer->Decode(std::span(all).subspan(begin, end - begin)));
    }
    return documents;
  }

  static ScratchDirectory* shared_;
  ScratchDirectory scratch_;
};
ScratchDirectory* TokenizerVerb::shared_ = nullptr;

const char kHard[] = "the stone <landmark> on </s><s> a hill\n\n  'quoted' caf\xc3\xa9 \xff\x01";

TEST_F(TokenizerVerb, EncodesAndDecodes) {
  for (const std::string& text : {std::string("the stone"), std::string(kHard), std::string("<landmark>")}) {
    const std::string ids = Good({"tokenizer", "encode", "-t", Tok()}, text).out;
    EXPECT_EQ(Good({"tokenizer", "decode", "-t", Tok()}, ids).out, text);
    EXPECT_EQ(Good({"tokenizer", "encode", "-t", Tok(), "-f", File("in.txt", text)}).out, ids);
    EXPECT_EQ(Good({"tokenizer", "encode", "-t", Tok(), "-p", text}).out, ids);
    EXPECT_EQ(ids.find("339"), std::string::npos) << "text gave the landmark: " << ids;
  }
}

TEST_F(TokenizerVerb, EncodesAsJson) {
  const auto json = nlohmann::json::parse(
      Good({"tokenizer", "encode", "-t", Tok(), "-p", "the <landmark>", "--json", "--pieces", "--bos"}).out);
  ASSERT_EQ(json["ids"].size(), json["pieces"].size());
  EXPECT_EQ(json["ids"][0], 1);
  EXPECT_EQ(json["pieces"][0], "<s>");
  EXPECT_EQ(json["pieces"][1], "\xe2\x96\x81the");
  std::vector<std::string> words = {"tokenizer", "decode", "-t", Tok(), "--json"};
  for (const auto& id : json["ids"]) words.push_back(id.dump());
  EXPECT_EQ(nlohmann::json::parse(Good(words).out)["text"], "the <landmark>");
}

TEST_F(TokenizerVerb, TellsAboutATokenizer) {
  const auto info = nlohmann::json::parse(Good({"tokenizer", "info", "-t", Tok(), "--json"}).out);
  EXPECT_EQ(info["kind"], "sentencepiece-bpe");
  EXPECT_EQ(info["vocab_size"], 340);
  EXPECT_EQ(info["landmark"], 339);
  ExpectMessage(Good({"tokenizer", "info", "-t", Tok()}).out, info["fingerprint"].get<std::string>());
}

TEST_F(TokenizerVerb, TrainingIsRepeatable) {
  Good({"tokenizer", "train", Text(), "--vocab", "340", "-o", Path("again.model")});
  EXPECT_EQ(ReadTextFile(Path("again.model")), ReadTextFile(Tok()));
}

TEST_F(TokenizerVerb, ReadsTheVocabularyInsideAGgufFile) {
  ModelConfig config = TestConfig();
  config.vocab_size = 340;
  config.landmark.landmark_id = 339;
  GgufWriteOptions options;
  options.vocabulary = GgufFromSpec(LoadTokenizer(Tok())->spec());
  WriteGguf(*RandomModel(config), Path("model.gguf"), options);
  EXPECT_EQ(Good({"tokenizer", "encode", "-t", Path("model.gguf")}, kHard).out,
            Good({"tokenizer", "encode", "-t", Tok()}, kHard).out);
  EXPECT_EQ(nlohmann::json::parse(Good({"tokenizer", "info", "-t", Path("model.gguf"), "--json"}).out),
            nlohmann::json::parse(Good({"tokenizer", "info", "-t", Tok(), "--json"}).out));
}

TEST_F(TokenizerVerb, AddsALandmark) {
  // A vocabulary without one: the trained one in llama2.c's form, its last token left out.
  VocabularySpec spec = LoadTokenizer(Tok())->spec();
  spec.pieces.pop_back(), spec.types.pop_back(), spec.scores.pop_back();
  spec.landmark.reset();
  spec.source.clear();
  fs::create_directory(Path("plain"));
  MakeTokenizer(spec)->Save(Path("plain"));
  ExpectMessage(Good({"tokenizer", "add-landmark", "-t", Path("plain"), "-o", Path("marked")}).out, "landmark 339");
  EXPECT_EQ(Good({"tokenizer", "encode", "-t", Path("marked")}, kHard).out,
            Good({"tokenizer", "encode", "-t", Path("plain")}, kHard).out);
  Bad({"tokenizer", "add-landmark", "-t", Tok(), "-o", Path("twice")}, "has a landmark already: token 339");
}

TEST_F(TokenizerVerb, ErrorsAreOneLine) {
  Bad({"tokenizer", "encode", "-t", Path("nothing"), "-p", "x"}, "nothing");
  Bad({"tokenizer", "encode", "-t", scratch_.path().string(), "-p", "x"}, "has no tokenizer.model");
  Bad({"tokenizer", "encode", "-t", File("empty", ""), "-p", "x"}, "is empty");
  Bad({"tokenizer", "encode", "-t", File("text", "This is no tokenizer."), "-p", "x"}, "text'");
  Bad({"tokenizer", "encode", "-t", File("cut.gguf", "GGUF"), "-p", "x"}, "cut.gguf'");
  Bad({"tokenizer", "encode", "-p", "x"}, "--tokenizer is required");
  Bad({"tokenizer", "decode", "-t", Tok(), "340"}, "token id 340 is outside");
  Bad({"tokenizer", "decode", "-t", Tok(), "12x"}, "'12x' is not a token id");
  Bad({"tokenizer", "train", Text(), "--vocab", "32000", "-o", Path("a")}, "give more text or a smaller --vocab");
  Bad({"tokenizer", "train", Path("nothing"), "-o", Path("a")}, "does not exist");
  Bad({"tokenizer", "train", Text(), "--vocab", "340", "-o", Path("no/such/a")}, "cannot write");
  EXPECT_FALSE(fs::exists(Path("a")));
}

// ---- cairn data ----

TEST_F(TokenizerVerb, PreparesWhatTheTextSays) {
  const std::string a = MakeText(2, 20) + kHard, b = MakeText(3, 5);
  Good({"data", "prepare", File("a.txt", a), File("b.txt", b), "-t", Tok(), "-o", Path("d")});
  EXPECT_EQ(Documents(Path("d"), "train"), (std::vector<std::string>{"[bos]" + a, "[bos]" + b}));
  EXPECT_EQ(TokenDataset::Splits(Path("d")), std::vector<std::string>{"train"});
  ExpectMessage(Good({"data", "verify", Path("d"), "-t", Tok()}).out, "sound: ");
}

TEST_F(TokenizerVerb, HoldsOutAShare) {
  const std::string text = MakeText(4, 200);
  const auto json = nlohmann::json::parse(
      Good({"data", "prepare", File("a.txt", text), "-t", Tok(), "-o", Path("d"), "--validation", "0.1", "--json"})
          .out);
  const auto train = Documents(Path("d"), "train"), validation = Documents(Path("d"), "validation");
  ASSERT_EQ(train.size(), 1u);
  ASSERT_EQ(validation.size(), 1u);
  EXPECT_EQ(train[0] + validation[0].substr(5), "[bos]" + text);
  EXPECT_NEAR(static_cast<double>(validation[0].size()), 0.1 * static_cast<double>(text.size()), 100);
  EXPECT_EQ(validation[0].substr(0, 5), "[bos]");
  EXPECT_EQ(train[0].back(), '\n');
  EXPECT_EQ(json["train"]["tokens"], TokenDataset::Open(Path("d"), "train")->token_count());
  EXPECT_EQ(json["validation"]["tokens"], TokenDataset::Open(Path("d"), "validation")->token_count());
}

TEST_F(TokenizerVerb, HoldsOutFiles) {
  fs::create_directory(Path("texts"));
  const std::string a = MakeText(5, 9), b = MakeText(6, 9);
  File("texts/a.txt", a);
  File("texts/b.txt", b);
  // Also when the file is among the inputs.
  Good({"data", "prepare", Path("texts"), "-t", Tok(), "-o", Path("d"), "--validation-files", Path("texts/b.txt")});
  EXPECT_EQ(Documents(Path("d"), "train"), std::vector<std::string>{"[bos]" + a});
  EXPECT_EQ(Documents(Path("d"), "validation"), std::vector<std::string>{"[bos]" + b});
  Bad({"data", "prepare", Path("texts"), "-t", Tok(), "-o", Path("e"), "--validation-files", Path("texts/b.txt"),
       "--validation", "0.1"},
      "excludes");
}

TEST_F(TokenizerVerb, SeparatorAndNoBos) {
  const std::string file = File("a.txt", "the stone<|end|>on a hill<|end|>far");
  Good({"data", "prepare", file, "-t", Tok(), "-o", Path("d"), "--separator", "<|end|>"});
  EXPECT_EQ(Documents(Path("d"), "train"), (std::vector<std::string>{"[bos]the stone", "[bos]on a hill", "[bos]far"}));
  EXPECT_EQ(TokenDataset::Open(Path("d"), "train")->document_count(), 3u);
  Good({"data", "prepare", file, "-t", Tok(), "-o", Path("plain"), "--no-bos"});
  EXPECT_EQ(Documents(Path("plain"), "train"), std::vector<std::string>{"the stone<|end|>on a hill<|end|>far"});
}

TEST_F(TokenizerVerb, ForceReplaces) {
  const std::string a = File("a.txt", "the stone"), b = File("b.txt", "far from home");
  Good({"data", "prepare", a, "-t", Tok(), "-o", Path("d")});
  Bad({"data", "prepare", b, "-t", Tok(), "-o", Path("d")}, "holds prepared data already");
  EXPECT_EQ(Documents(Path("d"), "train"), std::vector<std::string>{"[bos]the stone"});
  Good({"data", "prepare", b, "-t", Tok(), "-o", Path("d"), "--force"});
  EXPECT_EQ(Documents(Path("d"), "train"), std::vector<std::string>{"[bos]far from home"});
}

TEST_F(TokenizerVerb, InfoIsJson) {
  Good({"data", "prepare", Text(), "-t", Tok(), "-o", Path("d"), "--validation", "0.2", "--shard", "0.001"});
  const auto info = nlohmann::json::parse(Good({"data", "info", Path("d"), "--json"}).out);
  const auto tokenizer = LoadTokenizer(Tok());
  EXPECT_EQ(info["tokenizer"]["fingerprint"], tokenizer->fingerprint());
  EXPECT_EQ(info["tokenizer"]["vocab_size"], 340);
  for (const char* split : {"train", "validation"}) {
    const auto data = TokenDataset::Open(Path("d"), split);
    EXPECT_EQ(info["splits"][split]["tokens"], data->token_count());
    EXPECT_EQ(info["splits"][split]["shards"], data->shard_count());
    EXPECT_EQ(info["splits"][split]["sources"].size(), 1u);
  }
  EXPECT_GT(info["splits"]["train"]["shards"], 3);
  ExpectMessage(Good({"data", "info", Path("d")}).out, info["splits"]["train"]["tokens"].dump() + " tokens");
}

TEST_F(TokenizerVerb, VerifyFindsAFlippedByte) {
  Good({"data", "prepare", Text(), "-t", Tok(), "-o", Path("d")});
  const std::string shard = Path("d/train-00000.tokens"), sound = ReadTextFile(shard);
  // In the header, in the index, in the middle and at the end.
  for (const size_t at : {size_t{17}, size_t{64}, sound.size() / 2, sound.size() - 1}) {
    std::string flipped = sound;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    WriteFileAtomically(shard, flipped);
    Bad({"data", "verify", Path("d")}, at == 64 ? "split 'train'" : "train-00000.tokens");
  }
  WriteFileAtomically(shard, sound.substr(0, sound.size() - 2));
  Bad({"data", "verify", Path("d")}, "train-00000.tokens");
  WriteFileAtomically(shard, sound);
  ExpectMessage(Good({"data", "verify", Path("d")}).out, "sound: ");
}

TEST_F(TokenizerVerb, VerifyFindsAnotherTokenizer) {
  Good({"data", "prepare", Text(), "-t", Tok(), "-o", Path("d")});
  Good({"tokenizer", "train", Text(), "--vocab", "320", "-o", Path("other.model")});
  Bad({"data", "verify", Path("d"), "-t", Path("other.model")}, "tokenizer");
}

TEST_F(TokenizerVerb, DataErrorsAreOneLine) {
  Bad({"data", "prepare", Path("nothing"), "-t", Tok(), "-o", Path("d")}, "does not exist");
  Bad({"data", "prepare", Text(), "-t", Path("nothing"), "-o", Path("d")}, "nothing");
  Bad({"data", "prepare", Text(), "-o", Path("d")}, "--tokenizer is required");
  Bad({"data", "prepare", Text(), "-t", Tok(), "-o", Path("d"), "--validation", "1.5"}, "--validation");
  Bad({"data", "prepare", Text(), "-t", Tok(), "-o", File("file", "x")}, "file'");
  Bad({"data", "info", Path("nothing")}, "nothing");
  Bad({"data", "verify", scratch_.path().string()}, "manifest.json");
  File("manifest.json", "{}");
  Bad({"data", "info", scratch_.path().string()}, "manifest.json");
}

}  // namespace
}  // namespace cairn
