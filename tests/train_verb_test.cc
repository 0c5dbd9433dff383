// cairn train, tune and plot as real programs: signals, death at any moment, several processes, and wrong calls.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "formats/huggingface.h"
#include "model_makers.h"
#include "training_runs.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Words = std::vector<std::string>;
using Clock = std::chrono::steady_clock;

void Pause(std::chrono::milliseconds time) { std::this_thread::sleep_for(time); }

// A program of its own. One that is still running at the end is killed.
class Program {
 public:
  explicit Program(Words words) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    const std::string out = (scratch_ / "out").string(), err = (scratch_ / "err").string();
    pid_ = fork();
    if (pid_ != 0) return;
    for (const char* name : {"CAIRN_ISA", "CAIRN_LOG"}) unsetenv(name);
    setenv("CAIRN_THREADS", "1", 1);
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (!Ended()) Signal(SIGKILL), Wait();
  }

  pid_t pid() const { return pid_; }
  void Signal(int signal) const { kill(pid_, signal); }
  bool Ended() {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return ended_;
  }
  // Exit code; minus the signal when one ended the program.
  int Wait() {
    if (!ended_) waitpid(pid_, &status_, 0);
    ended_ = true;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
  }
  // False when the program still runs after that time.
  bool WaitFor(std::chrono::seconds limit) {
    for (const auto end = Clock::now() + limit; Clock::now() < end; Pause(std::chrono::milliseconds(5))) {
      if (Ended()) return true;
    }
    return false;
  }
  std::string out() const { return ReadTextFile(scratch_ / "out"); }
  std::string err() const { return ReadTextFile(scratch_ / "err"); }

  // Processes that it started.
  std::vector<pid_t> Children() const {
    std::vector<pid_t> children;
    std::error_code ignored;
    for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid_), ignored)) {
      std::ifstream text(task.path() / "children");
      for (pid_t child; text >> child;) children.push_back(child);
    }
    std::sort(children.begin(), children.end());
    return children;
  }

 private:
  ScratchDirectory scratch_{SmallFilesDirectory()};
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

Words Cairn(Words words) {
  words.insert(words.begin(), CAIRN_BINARY);
  return words;
}

// Runs cairn to its end.
struct Outcome {
  explicit Outcome(const Words& words) {
    Program program(Cairn(words));
    code = program.Wait();
    out = program.out();
    err = program.err();
  }
  int code;
  std::string out, err;
};

void ExpectOneLineError(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err.rfind("cairn: error: ", 0), 0u) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  ExpectMessage(outcome.err, part);
}

class TrainVerb : public ::testing::Test {
 protected:
  TrainVerb() {
    MakeTinyData(scratch_.path());
    Json run = TinyRun();
    run["training"]["steps"] = 300;
    run["training"]["checkpoint_every"] = 20;
    run["training"]["validate_every"] = 50;
    Write("run.json", run);
  }
  void Write(const std::string& name, const Json& json) { WriteFileAtomically(scratch_ / name, json.dump(2)); }
  std::string Path(const std::string& name) const { return (scratch_ / name).string(); }
  Words Train(const std::string& output, const Words& more = {}) const {
    Words words = {"train", Path("run.json"), "--output", Path(output)};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  std::vector<std::string> Losses(const std::string& output) const { return LossesOf(scratch_ / output / "log.jsonl"); }

  // Lines of the run's log so far.
  size_t Records(const std::string& output) const {
    std::error_code ignored;
    if (!fs::exists(scratch_ / output / "log.jsonl", ignored)) return 0;
    const std::string text = ReadTextFile(scratch_ / output / "log.jsonl");
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
  // Until the log has that many; false when the program ended before, or does not get there.
  bool AwaitRecords(Program& program, const std::string& output, size_t count) const {
    for (const auto end = Clock::now() + std::chrono::minutes(5); Clock::now() < end;) {
      if (Records(output) >= count) return true;
      if (program.Ended()) return false;
      Pause(std::chrono::milliseconds(1));
    }
    return false;
  }

  ScratchDirectory scratch_{SmallFilesDirectory()};
};

TEST_F(TrainVerb, InterruptSavesAndResumeIsExact) {
  ASSERT_EQ(Outcome(Train("whole")).code, 0);
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string output = signal == SIGINT ? "interrupted" : "terminated";
    SCOPED_TRACE(output);
    Program run(Cairn(Train(output, {"--json"})));
    ASSERT_TRUE(AwaitRecords(run, output, 30)) << run.err();
    run.Signal(signal);
    ASSERT_EQ(run.Wait(), 0) << run.err();
    const Json result = Json::parse(run.out());
    EXPECT_TRUE(result["interrupted"].get<bool>());
    EXPECT_FALSE(result.contains("result"));
    const auto steps = result["steps"].get<uint64_t>();
    EXPECT_LT(steps, 300u);
    EXPECT_EQ(result["checkpoint"], Path(fmt::format("{}/checkpoints/step-{:06}", output, steps)));
    EXPECT_TRUE(fs::exists(result["checkpoint"].get<std::string>() + "/state.json"));
    const Outcome rest(Train(output, {"--resume", "--json"}));
    ASSERT_EQ(rest.code, 0) << rest.err;
    EXPECT_EQ(Json::parse(rest.out)["steps"], 300);
    EXPECT_EQ(Losses(output), Losses("whole"));
    EXPECT_EQ(ReadTextFile(scratch_ / output / "model/model.safetensors"),
              ReadTextFile(scratch_ / "whole/model/model.safetensors"));
  }
}

TEST_F(TrainVerb, KilledAtAnyMomentResumesExactly) {
  ASSERT_EQ(Outcome(Train("whole")).code, 0);
  std::random_device random;
  std::string moments;
  for (size_t attempt = 0; attempt < 4; ++attempt) {
    Program run(Cairn(Train("killed", attempt == 0 ? Words{} : Words{"--resume"})));
    // What an earlier part logged beyond its checkpoint disappears first.
    Pause(std::chrono::milliseconds(random() % 50));
    const size_t records = 1 + attempt * 60 + random() % 60;
    const auto delay = std::chrono::microseconds(random() % 3000);
    AwaitRecords(run, "killed", records);
    std::this_thread::sleep_for(delay);
    run.Signal(SIGKILL);
    const int code = run.Wait();
    ASSERT_TRUE(code == -SIGKILL || code == 0) << run.err();
    moments += fmt::format("{} records and {} us; ", records, delay.count());
  }
  SCOPED_TRACE("killed after " + moments);
  const Outcome rest(Train("killed", {"--resume"}));
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(Losses("killed"), Losses("whole"));
  EXPECT_EQ(ReadTextFile(scratch_ / "killed/model/model.safetensors"),
            ReadTextFile(scratch_ / "whole/model/model.safetensors"));
}

TEST_F(TrainVerb, AnEarlierRunIsNotOverwritten) {
  ASSERT_EQ(Outcome(Train("a", {"--steps", "3"})).code, 0);
  const auto losses = Losses("a");
  ExpectOneLineError(Outcome(Train("a", {"--steps", "3"})), "already holds a run; continue it with --resume");
  EXPECT_EQ(Losses("a"), losses);
  EXPECT_EQ(Outcome(Train("a", {"--steps", "3", "--force"})).code, 0);
  EXPECT_EQ(Losses("a"), losses);
}

TEST_F(TrainVerb, BadConfigsAreOneLineErrors) {
  const auto expect = [&](auto change, const std::string& part) {
    Json json = TinyRun();
    change(json);
    Write("bad.json", json);
    ExpectOneLineError(Outcome({"train", Path("bad.json")}), part);
  };
  expect([](Json& j) { j["training"].erase("learning_rate"); }, "training.learning_rate is missing");
  expect([](Json& j) { j["training"]["setps"] = 3; }, "training.setps is not a setting");
  expect([](Json& j) { j["training"]["batch_rows"] = -1; }, "training.batch_rows is negative");
  expect([](Json& j) { j["data"]["train"] = "nowhere"; }, "nowhere");
  expect([](Json& j) { j["tokenizer"] = "nothing.model"; }, "nothing.model");
  expect([](Json& j) { j["model"]["num_attention_heads"] = 5; }, "num_attention_heads");
  expect([](Json& j) { j["lora"] = {{"rank", 2}}; }, "lora is for 'cairn tune'");
  WriteFileAtomically(scratch_ / "bad.json", "{\"model\": ");
  ExpectOneLineError(Outcome({"train", Path("bad.json")}), "bad.json");
  ExpectOneLineError(Outcome({"train", Path("missing.json")}), "missing.json");
  EXPECT_FALSE(fs::exists(scratch_ / "run"));
}

// The names of the elements, closed in the right order; "" when they are not.
std::string CheckElements(const std::string& text) {
  std::vector<std::string> open;
  std::string names;
  for (size_t at = 0; (at = text.find('<', at)) != std::string::npos;) {
    const size_t end = text.find('>', at);
    if (end == std::string::npos || text.find('<', at + 1) < end) return "";
    const std::string tag = text.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag.empty()) return "";
    if (tag[0] == '?' || tag[0] == '!') continue;
    const std::string name = tag.substr(tag[0] == '/', tag.find_first_of(" \n/", 1) - (tag[0] == '/'));
    if (tag[0] == '/') {
      if (open.empty() || open.back() != name) return "";
      open.pop_back();
    } else {
      names += name + " ";
      if (tag.back() != '/') open.push_back(name);
    }
  }
  return open.empty() ? names : "";
}

TEST_F(TrainVerb, PlotDrawsTwoRuns) {
  ASSERT_EQ(Outcome(Train("first", {"--steps", "6"})).code, 0);
  ASSERT_EQ(Outcome(Train("second", {"--steps", "6", "--attention", "full"})).code, 0);
  const Outcome plot({"plot", Path("first/log.jsonl"), Path("second"), "-o", Path("loss.svg")});
  ASSERT_EQ(plot.code, 0) << plot.err;
  const std::string svg = ReadTextFile(scratch_ / "loss.svg");
  ExpectMessage(CheckElements(svg), "svg ");
  ExpectMessage(CheckElements(svg), "path ");
  for (const char* name : {"first", "second"}) ExpectMessage(svg, name);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  ExpectOneLineError(Outcome({"plot", Path("nothing.jsonl"), "-o", Path("b.svg")}), "nothing.jsonl");
  WriteFileAtomically(scratch_ / "empty.jsonl", "");
  ExpectOneLineError(Outcome({"plot", Path("first"), Path("empty.jsonl"), "-o", Path("b.svg")}), "empty.jsonl");
  EXPECT_FALSE(fs::exists(scratch_ / "b.svg"));
}

TEST_F(TrainVerb, LoraIsTunedAndMerged) {
  ModelConfig config = TestConfig();
  config.landmark = {};
  config.vocab_size = kTinyVocab;
  WriteHuggingFace(*RandomModel(config), scratch_ / "base", {});
  TinyTokenizer()->Save(scratch_ / "base");
  Json json = TinyTuning();
  json.erase("tokenizer");  // the base's
  json["lora"] = {{"rank", 4}, {"alpha", 8}, {"targets", {"q_proj"}}, {"save", "adapter"}};
  Write("tune.json", json);
  const Outcome tune({"tune", "--from", Path("base"), Path("tune.json"), "--json"});
  ASSERT_EQ(tune.code, 0) << tune.err;
  EXPECT_EQ(Json::parse(tune.out)["result"], Path("run/adapter"));
  const Words merge = {"tune", "--from", Path("base"), "--merge", Path("run/adapter"), "-o", Path("merged")};
  const Outcome merged(merge);
  ASSERT_EQ(merged.code, 0) << merged.err;
  const auto base = OpenModel(scratch_ / "base"), model = OpenModel(scratch_ / "merged");
  EXPECT_EQ(model->config().landmark.block_length, 7u);
  EXPECT_EQ(model->config().vocab_size, kTinyVocab + 1);
  EXPECT_EQ(LoadTokenizer(scratch_ / "merged")->landmark(), static_cast<int32_t>(kTinyVocab));
  const auto same = [&](const std::string& name) { return SameBits(base->ReadFloats(name), model->ReadFloats(name)); };
  EXPECT_FALSE(same("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_TRUE(same("model.layers.1.self_attn.v_proj.weight"));
  ExpectOneLineError(Outcome(merge), "add --force to replace it");
  ExpectOneLineError(Outcome({"tune", "--from", Path("base")}), "no CONFIG given");
}

// ---- Several processes ----

class TrainWithMpi : public TrainVerb {
 protected:
  void SetUp() override {
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // the MPI library's own
    Program probe({"mpirun", "--version"});
    if (probe.Wait() != 0) GTEST_SKIP() << "no mpirun";
    Program build(Mpi({"train", Path("no-such.json")}));
    build.Wait();
    if (build.err().find("this build has no MPI") != std::string::npos) GTEST_SKIP() << "cairn was built without MPI";
  }
  static Words Mpi(const Words& words) {
    Words result = {"mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", CAIRN_BINARY};
    result.insert(result.end(), words.begin(), words.end());
    return result;
  }
};

TEST_F(TrainWithMpi, TwoProcessesGiveTheLossesOfOne) {
  ASSERT_EQ(Outcome(Train("one", {"--steps", "50"})).code, 0);
  Program two(Mpi(Train("two", {"--steps", "50"})));
  ASSERT_EQ(two.Wait(), 0) << two.err();
  const auto a = Losses("one"), b = Losses("two");
  ASSERT_EQ(a.size(), b.size());
  ASSERT_EQ(a.size(), 50u + 2u);
  for (size_t i = 0; i < a.size(); ++i) {
    const size_t value = a[i].rfind(' ');
    EXPECT_EQ(a[i].substr(0, value), b[i].substr(0, b[i].rfind(' ')));
    EXPECT_NEAR(std::stod(a[i].substr(value)), std::stod(b[i].substr(b[i].rfind(' '))), 1e-4) << a[i];
  }
}

TEST_F(TrainWithMpi, ADeadProcessEndsTheOthers) {
  for (const size_t victim : {0, 1}) {
    const std::string output = fmt::format("dead-{}", victim);
    SCOPED_TRACE(output);
    Program run(Mpi(Train(output, {"--steps", "1000000"})));
    ASSERT_TRUE(AwaitRecords(run, output, 25)) << run.err();
    const auto children = run.Children();
    ASSERT_EQ(children.size(), 2u);
    kill(children[victim], SIGKILL);
    ASSERT_TRUE(run.WaitFor(std::chrono::seconds(20))) << run.err();
    EXPECT_NE(run.Wait(), 0);
    ExpectMessage(run.err(), fmt::format("rank {}", victim));
    ExpectMessage(run.err(), "Killed");
    // The survivor is gone, and what it saved is sound.
    for (int i = 0; i < 1000 && kill(children[1 - victim], 0) == 0; ++i) Pause(std::chrono::milliseconds(5));
    EXPECT_NE(kill(children[1 - victim], 0), 0);
  }
}

TEST_F(TrainWithMpi, AnErrorOfOneProcessEndsTheOthers) {
  Json json = TinyRun();
  json["training"]["batch_rows"] = 3;
  Write("odd.json", json);
  Program run(Mpi({"train", Path("odd.json")}));
  ASSERT_TRUE(run.WaitFor(std::chrono::seconds(20))) << run.err();
  EXPECT_NE(run.Wait(), 0);
  ExpectMessage(run.err(), "training.batch_rows is 3, which 2 processes cannot share evenly");
}

}  // namespace
}  // namespace cairn
