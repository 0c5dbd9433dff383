// cairn eval passkey, needle, kv and lines as a person calls them: results, going on after a kill, mistakes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
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

class EvalVerbs : public testing::Test {
 protected:
  EvalVerbs() {
    WriteApiModel(scratch_ / "model");
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("The bath number {} was at the heath. ", i);
    WriteFileAtomically(scratch_ / "book.txt", text);
  }

  Result Cairn(const std::string& words) const { return RunCairnLine(scratch_.path(), words, "CAIRN_SHARED=/none"); }

  void ExpectMistake(const std::string& words, const std::string& part) const {
    const Result result = Cairn(words);
    EXPECT_TRUE(result.code == 1 || result.code == 2) << words << ": " << result.code;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << words << ": " << result.err;
    EXPECT_NE(result.err.find(part), std::string::npos) << words << ": " << result.err;
  }

  size_t Lines(const std::string& name) const {
    if (!fs::exists(scratch_ / name)) return 0;
    const std::string text = ReadTextFile(scratch_ / name);
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  ScratchDirectory scratch_{SmallFilesDirectory()};
};

// The bundled model finds nine pass keys of ten at least, at a length twice as long as the context of a chunk and its
// retrieved blocks; without its memory it cannot.
TEST_F(EvalVerbs, TheBundledModelFindsPassKeys) {
  const std::string command =
      fmt::format("eval passkey -m '{}/models/cairn-tiny' --lengths 1K --trials 10 --json", CAIRN_SOURCE_DIR);
  const Result with = Cairn(command);
  ASSERT_EQ(with.code, 0) << with.err;
  EXPECT_GE(Json::parse(with.out)["lengths"][0]["right"].get<int>(), 9);
  const Result without = Cairn(command + " -k 0 --depths 0.1");
  ASSERT_EQ(without.code, 0) << without.err;
  EXPECT_LE(Json::parse(without.out)["lengths"][0]["right"].get<int>(), 1);
}

TEST_F(EvalVerbs, EveryTaskRuns) {
  for (const char* words :
       {"passkey --lengths 450,500", "passkey --lengths 450,500 --filler book.txt --joint space",
        "needle --lengths 400,500 --filler book.txt", "kv --lengths 400,500 --filler book.txt --keys 4",
        "kv --lengths 700,900 --style json", "lines --lengths 850,950 --memory-dir ."}) {
    const Result result = Cairn(fmt::format("eval {} -m model --trials 1 --depths 0,1 --json", words));
    ASSERT_EQ(result.code, 0) << words << result.err;
    const Json out = Json::parse(result.out);
    ASSERT_EQ(out["lengths"].size(), 2u);
    ASSERT_EQ(out["cells"].size(), 4u);
    for (const Json& sum : out["lengths"]) {
      EXPECT_EQ(sum["trials"], 2);
      for (const char* key : {"accuracy", "low", "high", "found_rate", "attended_positions", "tokens_per_second"}) {
        EXPECT_TRUE(sum[key].is_number()) << key;
      }
      EXPECT_LE(sum["prompt_tokens"], sum["length"]);
    }
  }
  const Result table = Cairn("eval passkey -m model --lengths 500 --trials 2 --by-depth");
  ASSERT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("if found"), std::string::npos) << table.out;
  const Result full = Cairn("eval passkey -m model --attention full --lengths 500 --trials 2 --json");
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_FALSE(Json::parse(full.out)["lengths"][0].contains("found"));
}

TEST_F(EvalVerbs, PromptsOfFiles) {
  std::ofstream(scratch_ / "kv.jsonl")
      << R"({"ordered_kv_records": [["a", "b"], ["c", "d"]], "key": "a", "value": "b"})"
      << "\n";
  const Result result = Cairn("eval kv -m model --file kv.jsonl --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json out = Json::parse(result.out);
  EXPECT_EQ(out["unit"], "pairs");
  EXPECT_EQ(out["lengths"][0]["length"], 2);
}

TEST_F(EvalVerbs, AKilledRunGoesOn) {
  const std::string words = "eval passkey -m model --lengths 450,500 --trials 6 --depths 0,0.5,1 -o ";
  ASSERT_EQ(Cairn(words + "whole").code, 0);
  EXPECT_EQ(Lines("whole/results.jsonl"), 36u);
  EXPECT_TRUE(fs::exists(scratch_ / "whole/accuracy.svg"));
  EXPECT_TRUE(fs::exists(scratch_ / "whole/heat.svg"));
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(scratch_.path().c_str()) != 0) _exit(9);
    if (std::freopen("/dev/null", "w", stdout) == nullptr || std::freopen("/dev/null", "w", stderr) == nullptr)
      _exit(9);
    execl(CAIRN_BINARY, "cairn", "eval", "passkey", "-m", "model", "--lengths", "450,500", "--trials", "6", "--depths",
          "0,0.5,1", "-o", "killed", static_cast<char*>(nullptr));
    _exit(9);
  }
  while (Lines("killed/results.jsonl") < 3 && waitpid(child, nullptr, WNOHANG) == 0) usleep(1000);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const size_t before = Lines("killed/results.jsonl");
  EXPECT_GE(before, 3u);
  ASSERT_EQ(Cairn(words + "killed").code, 0);
  // Every trial once, with the results of the run that was not killed.
  const auto read = [&](const std::string& name) {
    std::vector<std::string> lines;
    std::ifstream in(scratch_ / name);
    for (std::string line; std::getline(in, line);) {
      Json json = Json::parse(line);
      for (const char* key : {"read_seconds", "answer_seconds", "tokens_read"}) json.erase(key);
      lines.push_back(json.dump());
    }
    std::sort(lines.begin(), lines.end());
    return lines;
  };
  EXPECT_EQ(read("killed/results.jsonl"), read("whole/results.jsonl"));
  // More trials go on too; other settings are refused.
  ASSERT_EQ(Cairn("eval passkey -m model --lengths 450,500 --trials 7 --depths 0,0.5,1 -o killed").code, 0);
  EXPECT_EQ(Lines("killed/results.jsonl"), 42u);
  ExpectMistake(words + "killed --seed 3", "seed was 0");
  ExpectMistake(words + "killed -k 2", "k was 4");
  ExpectMistake("eval lines -m model --lengths 900 -o killed", "other settings");
}

TEST_F(EvalVerbs, TablesHaveARowForEveryRowOfThePaper) {
  const Result result = Cairn("eval table2 -m landmark=model book.txt --max-tokens 300 --json");
  ASSERT_EQ(result.code, 0) << result.err;
  const Json out = Json::parse(result.out);
  ASSERT_EQ(out["rows"].size(), 9u);
  for (const Json& row : out["rows"]) {
    EXPECT_EQ(row["books"]["tokens"], 300);
    EXPECT_GT(row["books"]["perplexity"], 1);
  }
  EXPECT_NE(out["rows"][0]["books"]["loss"], out["rows"][1]["books"]["loss"]);
  const Result markdown = Cairn("eval table1 -m full=model book.txt --max-tokens 100 --format markdown");
  ASSERT_EQ(markdown.code, 0) << markdown.err;
  EXPECT_EQ(std::count(markdown.out.begin(), markdown.out.end(), '\n'), 15) << markdown.out;
  ExpectMistake("eval table3 -m miss=model book.txt", "no context-miss token");
  ExpectMistake("eval table1 -m xl=model book.txt", "not trained as a Transformer-XL");
  ExpectMistake("eval table1 -m other=model book.txt", "--model other=model");
  ExpectMistake("eval table1 -m full=model -m full=model book.txt", "was given already");
  ExpectMistake("eval table2 -m full=model book.txt", "none of the given models");
}

TEST_F(EvalVerbs, MistakesAreOneLine) {
  ExpectMistake("eval passkey -m model --lengths 100", "a prompt of 100 tokens is too short");
  for (const char* length : {"0", "many", "4Q", "-5", "99999999999", "K"}) {
    ExpectMistake(fmt::format("eval passkey -m model --lengths {}", length), "--lengths");
  }
  for (const char* depth : {"2", "-0.5", "deep", "nan"}) {
    ExpectMistake(fmt::format("eval passkey -m model --depths={}", depth), "--depths");
  }
  ExpectMistake("eval passkey -m model --trials 0", "--trials");
  ExpectMistake("eval passkey -m model --trials -3", "--trials");
  ExpectMistake("eval needle -m model", "--filler");
  ExpectMistake("eval needle -m model --filler none.txt", "none.txt");
  WriteFileAtomically(scratch_ / "empty.txt", " \n");
  ExpectMistake("eval needle -m model --filler empty.txt --lengths 500", "filler is empty");
  WriteFileAtomically(scratch_ / "bad.json", "{\"fact\": ");
  ExpectMistake("eval passkey -m model --prompt bad.json", "bad.json");
  ExpectMistake("eval needle -m model --filler book.txt --needles bad.json", "bad.json, line 1");
  ExpectMistake("eval kv -m model --file bad.json", "bad.json, line 1");
  ExpectMistake("eval lines -m model --file book.txt", "book.txt, line 1");
  ExpectMistake("eval kv -m model --filler book.txt --keys 0", "--keys");
  ExpectMistake("eval passkey -m model --memory-dir none --lengths 500", "--memory-dir");
  ExpectMistake("eval passkey -m model --lengths 500 -o book.txt", "--output");
}

}  // namespace
}  // namespace cairn
