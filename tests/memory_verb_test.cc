// The verbs of memories as a person calls them: ingest, ask, search, inspect, verify, forget.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "api_models.h"
#include "io/file.h"
#include "tests/cairn_process.h"
#include "tests/test_files.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

using Result = ProcessResult;

class MemoryVerbs : public testing::Test {
 protected:
  MemoryVerbs() {
    WriteApiModel(scratch_ / "model");
    for (const char* name : {"one", "two"}) {
      std::string text;
      for (int i = 0; i < 150; ++i) text += fmt::format("the {} bath {} a tea at the heath. ", name, i);
      WriteFileAtomically(scratch_ / (std::string(name) + ".txt"), text);
    }
  }

  std::string Path(const std::string& name) const { return (scratch_ / name).string(); }

  // Words are quoted; `scratch` stands for the directory.
  Result Cairn(const std::string& words) const { return RunCairnLine(scratch_.path(), words); }

  ScratchDirectory scratch_{SmallFilesDirectory()};
};

TEST_F(MemoryVerbs, FromTextsToCitedAnswers) {
  Result result = Cairn("ingest -m model -o m.cairn one.txt --json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out)["sources"][0]["state"], "added");
  result = Cairn("ingest -m model -o m.cairn one.txt two.txt");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("already there  one.txt"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("added          two.txt"), std::string::npos) << result.out;

  result = Cairn("inspect m.cairn --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json inspected = Json::parse(result.out);
  EXPECT_EQ(inspected["sources"].size(), 2u);
  EXPECT_TRUE(inspected["sources"][1]["complete"].get<bool>());

  result = Cairn("ask m.cairn -m model -p 'the bath' -n 8 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json answer = Json::parse(result.out);
  ASSERT_FALSE(answer["reads"]["blocks"].empty());
  bool cites = false;
  for (const Json& block : answer["reads"]["blocks"]) {
    if (!block.contains("source")) continue;
    cites = true;
    const std::string text = ReadTextFile(scratch_ / block["source"].get<std::string>());
    const auto first = block["first_byte"].get<size_t>();
    const auto last = block["last_byte"].get<size_t>();
    ASSERT_LE(last, text.size());
    // The block's text is what stands there (the last block of a source is filled up).
    EXPECT_NE(block["text"].get<std::string>().find(text.substr(first, last - first)), std::string::npos);
  }
  EXPECT_TRUE(cites);
  // The memory remembers where the model was.
  EXPECT_EQ(Json::parse(Cairn("ask m.cairn -p 'the bath' -n 8 --json").out)["text"], answer["text"]);

  result = Cairn("search m.cairn -m model 'two bath' -k 3 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(Json::parse(result.out).size(), 3u);

  EXPECT_EQ(Cairn("forget m.cairn --source two.txt").code, 0);
  result = Cairn("search m.cairn -m model 'two bath' -k 1000 --json");
  for (const Json& passage : Json::parse(result.out)) EXPECT_EQ(passage["source"], "one.txt");
  EXPECT_EQ(Cairn("verify m.cairn").code, 0);
}

TEST_F(MemoryVerbs, AnotherModelIsRefused) {
  ModelConfig config = ApiConfig();
  config.rms_norm_eps = 1e-6;
  WriteApiModel(scratch_ / "other", config);
  ASSERT_EQ(Cairn("ingest -m model -o m.cairn one.txt").code, 0);
  for (const char* words :
       {"ask m.cairn -m other -p the -n 2", "search m.cairn -m other the", "ingest -m other -o m.cairn two.txt"}) {
    const Result result = Cairn(words);
    EXPECT_EQ(result.code, 1) << words;
    EXPECT_NE(result.err.find("another model"), std::string::npos) << result.err;
  }
}

TEST_F(MemoryVerbs, DamageIsNamedAndRepaired) {
  ASSERT_EQ(Cairn("ingest -m model -o m.cairn one.txt").code, 0);
  std::string bytes = ReadTextFile(scratch_ / "m.cairn");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  std::ofstream(scratch_ / "m.cairn", std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  Result result = Cairn("verify m.cairn");
  EXPECT_EQ(result.code, 1);
  EXPECT_NE(result.out.find("damaged: segment"), std::string::npos) << result.out;
  result = Cairn("verify m.cairn --repair good.cairn");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(Cairn("verify good.cairn").code, 0);
  EXPECT_EQ(Cairn("ask good.cairn -m model -p the -n 3").code, 0);
}

TEST_F(MemoryVerbs, MistakesAreOneLine) {
  EXPECT_NE(Cairn("ask none.cairn -m model -p a").err.find("none.cairn"), std::string::npos);
  WriteFileAtomically(scratch_ / "text.cairn", "hello");
  EXPECT_NE(Cairn("inspect text.cairn").err.find("not a memory"), std::string::npos);
  EXPECT_NE(Cairn("ingest -m model -o m.cairn none.txt").err.find("none.txt"), std::string::npos);
  EXPECT_NE(Cairn("ingest -m model -o m.cairn one.txt --chunk 10").err.find("whole number of blocks"),
            std::string::npos);
  ASSERT_EQ(Cairn("ingest -m model -o m.cairn one.txt").code, 0);
  EXPECT_NE(Cairn("forget m.cairn --source nobody").err.find("it has: one.txt"), std::string::npos);
  WriteFileAtomically(scratch_ / "one.txt", "changed");
  EXPECT_NE(Cairn("ingest -m model -o m.cairn one.txt").err.find("another content"), std::string::npos);
}

}  // namespace
}  // namespace cairn
