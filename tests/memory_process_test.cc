// Memories under real processes: resident size within the budget, ingestion killed at random instants, readers beside
// a writer, a full disk. CAIRN_SOAK makes the runs long (make soak).
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "api_models.h"
#include "base/random.h"
#include "memory/memory_check.h"
#include "memory/memory_file.h"
#include "memory/memory_layout.h"
#include "tests/cairn_process.h"
#include "tests/test_files.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

namespace cairn {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string Lines(size_t count, const std::string& word, size_t first = 0) {
  std::string text;
  for (size_t i = 0; i < count; ++i)
    text += fmt::format("the {} bath {} a tea at the heath.\n", word, first + i * i % 977);
  return text;
}

// Every block of `path` is that of `whole`, which holds at least as many.
void ExpectPrefix(const fs::path& path, const MemoryFile& whole, size_t first = 0) {
  const MemoryFile file(path);
  ASSERT_LE(file.blocks(), whole.blocks());
  std::vector<std::byte> a(whole.identity().record_bytes()), b(a.size());
  for (size_t block = first; block < file.blocks(); ++block) {
    ASSERT_EQ(file.ReadTokens(block), whole.ReadTokens(block)) << "block " << block;
    ASSERT_EQ(file.spans()[block].last_byte, whole.spans()[block].last_byte) << "block " << block;
    for (size_t record = 0; record < whole.identity().records(); ++record) {
      file.ReadRecord(block, record, a.data());
      whole.ReadRecord(block, record, b.data());
      ASSERT_EQ(a, b) << "block " << block << ", record " << record;
    }
  }
}

bool Complete(const fs::path& path, size_t sources) {
  const MemoryFile file(path);
  size_t complete = 0;
  for (const MemorySource& source : file.sources()) complete += source.complete;
  return complete == sources;
}

class MemoryProcesses : public testing::Test {
 protected:
  ProcessResult Cairn(const std::vector<std::string>& words, const std::string& tag = "") const {
    return RunCairn(scratch_.path(), words, tag);
  }
  void Text(const std::string& name, const std::string& text) const { WriteFileAtomically(scratch_ / name, text); }

  ScratchDirectory scratch_{SmallFilesDirectory()};
};

// A model whose blocks are large and whose weights are small: 12 KB of memory a token.
ModelConfig WideConfig() {
  ModelConfig config = ApiConfig();
  config.num_hidden_layers = 3;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  config.max_position_embeddings = 256;
  config.landmark.block_length = 15;
  return config;
}

constexpr size_t kMegabyte = size_t{1} << 20;
// Beside the budget, the weights and the workspace, which a run on a small text has too: what the allocator does not
// give back, and a piece of the text with its tokens.
constexpr size_t kSlack = 6 * kMegabyte;

TEST_F(MemoryProcesses, ResidentSizeStaysWithinTheBudget) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep freed memory";
  WriteApiModel(scratch_ / "model", WideConfig());
  Text("small.txt", Lines(20, "one"));
  Text("large.txt", Lines(200, "two"));
  const std::string ram = "8MiB";
  const auto ingest = [&](const std::string& text, const std::string& memory) {
    const ProcessResult result =
        Cairn({"ingest", "-m", "model", "-o", memory, text, "--ram", ram, "--chunk", "150", "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return result.peak_resident;
  };
  const size_t small = ingest("small.txt", "small.cairn");
  const size_t large = ingest("large.txt", "large.cairn");
  const size_t file_bytes = static_cast<size_t>(fs::file_size(scratch_ / "large.cairn"));
  EXPECT_GT(file_bytes, 8 * 8 * kMegabyte);
  EXPECT_LT(large, small + 8 * kMegabyte + kSlack);
  const auto ask = [&](const std::string& memory) {
    // Without --json, which holds the reads of all tokens. A hot answer wanders over the whole memory.
    const ProcessResult result = Cairn({"ask", memory, "-m", "model", "-p", "the bath", "-n", "300", "-k", "16",
                                        "--temperature", "2", "--seed", "1", "--ram", ram});
    EXPECT_EQ(result.code, 0) << result.err;
    if (memory == "large.cairn") {
      // Enough was read that a cache without a limit would show.
      const size_t end = result.err.find(" MB read from disk");
      const size_t begin = result.err.rfind(' ', end - 1);
      EXPECT_TRUE(end != std::string::npos && std::stod(result.err.substr(begin)) > 3 * 8.4) << result.err;
    }
    return result.peak_resident;
  };
  const size_t ask_small = ask("small.cairn");
  const size_t ask_large = ask("large.cairn");
  EXPECT_LT(ask_large, ask_small + 8 * kMegabyte + kSlack);
  std::printf("peak resident: ingest %.1f MB (small text %.1f), ask %.1f MB (small memory %.1f); file %.1f MB\n",
              static_cast<double>(large) / 1e6, static_cast<double>(small) / 1e6, static_cast<double>(ask_large) / 1e6,
              static_cast<double>(ask_small) / 1e6, static_cast<double>(file_bytes) / 1e6);
}

// A text that is larger than everything else together: it is never in RAM as a whole.
TEST_F(MemoryProcesses, ALongTextIsReadPieceByPiece) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep freed memory";
  WriteApiModel(scratch_ / "model");
  Text("small.txt", Lines(20, "one"));
  {
    std::ofstream file(scratch_ / "long.txt");
    const std::string part = Lines(3000, "two");
    for (size_t size = 0; size < 64 * kMegabyte; size += part.size()) file << part;
  }
  const ProcessResult small = Cairn({"ingest", "-m", "model", "-o", "small.cairn", "small.txt", "--ram", "4MiB"});
  ASSERT_EQ(small.code, 0) << small.err;
  CairnProcess process(scratch_.path(), {"ingest", "-m", "model", "-o", "m.cairn", "long.txt", "--ram", "4MiB"});
  const auto committed = [&] {
    try {
      return MemoryFile(scratch_ / "m.cairn").commits();
    } catch (const Error&) {
      return size_t{0};  // not made yet
    }
  };
  while (process.Runs() && committed() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  process.Signal(SIGTERM);
  const ProcessResult result = process.Wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("the same command goes on from here"), std::string::npos) << result.out;
  EXPECT_GE(committed(), 2u);
  EXPECT_LT(result.peak_resident, small.peak_resident + 4 * kMegabyte + kSlack);
}

// The real process, killed while it starts, reads, computes and commits. What was committed stays, and in the end there
// is what there would have been without the kills.
TEST_F(MemoryProcesses, KilledIngestionsLoseNothingAndGoOn) {
  WriteApiModel(scratch_ / "model");
  Text("one.txt", Lines(60, "one"));
  Text("two.txt", Lines(60, "two"));
  // A small budget makes for small, that is many commits.
  const auto words = [](const std::string& memory) {
    return std::vector<std::string>{"ingest",  "-m",    "model",  "-o",      memory, "one.txt",
                                    "two.txt", "--ram", "100KiB", "--chunk", "21"};
  };
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_EQ(Cairn(words("whole.cairn")).code, 0);
  const double whole_us = std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
  const MemoryFile whole(scratch_ / "whole.cairn");
  EXPECT_GT(whole.commits(), 8u);
  const fs::path path = scratch_ / "k.cairn";
  Random random(4);
  size_t known = 0, finished = 0, torn = 0;
  const size_t rounds = SoakRounds(40, 2000);
  for (size_t round = 0; round < rounds; ++round) {
    {
      CairnProcess process(scratch_.path(), words("k.cairn"));
      usleep(static_cast<useconds_t>(random.Uniform() * whole_us));
      process.Signal(SIGKILL);
      process.Wait();
    }
    if (!fs::exists(path) || fs::file_size(path) < 3 * 4096) {
      ASSERT_EQ(known, 0u) << "round " << round;
      continue;
    }
    const MemoryCheck check = MemoryCheck::Run(path);
    ASSERT_TRUE(check.damages.empty()) << "round " << round << ": " << check.damages[0].part;
    torn += check.uncommitted_bytes > 0;
    ASSERT_GE(check.good_blocks, known) << "round " << round;
    ExpectPrefix(path, whole, known);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
    known = check.good_blocks;
    if (!Complete(path, 2)) continue;
    ASSERT_EQ(known, whole.blocks());
    ++finished;
    known = 0;
    fs::remove(path);
  }
  ASSERT_EQ(Cairn(words("k.cairn")).code, 0);
  ExpectPrefix(path, whole);
  EXPECT_EQ(MemoryFile(path).blocks(), whole.blocks());
  if (IsSoak()) {
    std::printf("%zu kills, %zu inside a commit, %zu memories finished\n", rounds, torn, finished);
    EXPECT_GT(torn, 0u);
    EXPECT_GT(finished, 0u);
  }
}

// Where each segment of a file ends.
std::vector<uint64_t> SegmentEnds(const fs::path& path) {
  const std::string bytes = ReadTextFile(path);
  std::vector<uint64_t> ends;
  for (uint64_t at = memory_layout::kFirstSegment; at + sizeof(memory_layout::SegmentHeader) <= bytes.size();) {
    memory_layout::SegmentHeader header;
    std::memcpy(&header, bytes.data() + at, sizeof header);
    at += header.bytes;
    ends.push_back(at);
  }
  return ends;
}

// The file as it was when it ended at `bytes`: it only grows at its end.
void WriteState(const fs::path& from, const fs::path& to, uint64_t bytes) {
  std::string state = ReadTextFile(from).substr(0, bytes);
  std::memset(state.data() + 4096, 0, 2 * 4096);  // commit slots: none
  std::ofstream(to, std::ios::binary).write(state.data(), static_cast<std::streamsize>(state.size()));
}

TEST_F(MemoryProcesses, ReadersBesideAWriterSeeCommittedStates) {
  WriteApiModel(scratch_ / "model");
  const size_t texts = SoakRounds(5, 60);
  for (size_t i = 0; i < texts; ++i)
    Text(fmt::format("{}.txt", i), Lines(12 + 3 * (i % 4), fmt::format("no {}", i), i));
  const auto ingest = [&](size_t i) {
    return std::vector<std::string>{"ingest",  "-m", "model", "-o",    "m.cairn", fmt::format("{}.txt", i),
                                    "--chunk", "21", "--ram", "100KiB"};
  };
  const auto ask = [](const std::string& memory) {
    return std::vector<std::string>{"ask", memory,          "-m", "model", "-p", "the bath", "-n",
                                    "6",   "--temperature", "0",  "--json"};
  };
  const auto search = [](const std::string& memory) {
    return std::vector<std::string>{"search", memory, "-m", "model", "a tea at", "-k", "4", "--json"};
  };
  ASSERT_EQ(Cairn(ingest(0)).code, 0);
  // What an answer says, without timings.
  const auto essence = [](const std::string& out) {
    const Json json = Json::parse(out);
    if (json.is_array()) return json.dump();
    return Json{json["text"], json["blocks_in_memory"], json["reads"]}.dump();
  };
  std::vector<std::string> problems[2], answers[2];
  std::atomic<bool> writing{true};
  const auto reader = [&](int number) {
    const auto words = number == 0 ? ask("m.cairn") : search("m.cairn");
    while (writing) {
      const ProcessResult result = Cairn(words, fmt::format("-reader{}", number));
      if (result.code != 0) {
        problems[number].push_back(fmt::format("exit code {}: {}", result.code, result.err));
        continue;
      }
      const std::string answer = essence(result.out);
      if (answers[number].empty() || answers[number].back() != answer) answers[number].push_back(answer);
    }
  };
  std::thread first(reader, 0), second(reader, 1);
  for (size_t i = 1; i < texts; ++i) {
    const ProcessResult result = Cairn(ingest(i), "-writer");
    EXPECT_EQ(result.code, 0) << result.err;
  }
  writing = false;
  first.join();
  second.join();
  for (const auto& list : problems) {
    for (const std::string& problem : list) ADD_FAILURE() << problem;
  }
  // Every state that was ever committed, and what it answers.
  const std::vector<uint64_t> ends = SegmentEnds(scratch_ / "m.cairn");
  ASSERT_EQ(ends.size(), MemoryFile(scratch_ / "m.cairn").commits());
  std::vector<std::string> expected[2];
  for (const uint64_t end : ends) {
    WriteState(scratch_ / "m.cairn", scratch_ / "state.cairn", end);
    for (int number = 0; number < 2; ++number) {
      const ProcessResult result = Cairn(number == 0 ? ask("state.cairn") : search("state.cairn"));
      ASSERT_EQ(result.code, 0) << result.err;
      expected[number].push_back(essence(result.out));
    }
  }
  for (int number = 0; number < 2; ++number) {
    size_t state = 0;
    for (const std::string& answer : answers[number]) {
      // In the order of the commits: no reader goes back.
      while (state < expected[number].size() && expected[number][state] != answer) ++state;
      ASSERT_LT(state, expected[number].size()) << "no committed state says: " << answer;
    }
    EXPECT_GT(answers[number].size(), 1u);
  }
  if (IsSoak()) {
    std::printf("%zu states, %zu and %zu distinct answers\n", ends.size(), answers[0].size(), answers[1].size());
  }
}

// What the process inside the private mount namespace found; written to a file, since gtest is outside.
class DiskReport {
 public:
  explicit DiskReport(const fs::path& path) : path_(path) {}
  void Expect(bool good, const std::string& what) {
    if (!good) problems_ += what + "\n";
  }
  ~DiskReport() { std::ofstream(path_) << problems_; }

 private:
  fs::path path_;
  std::string problems_;
};

constexpr int kNotPermitted = 77;

bool WriteProc(const char* path, const std::string& text) {
  const int fd = open(path, O_WRONLY);
  if (fd < 0) return false;
  const bool good = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(fd);
  return good;
}

// A file system of its own with `kilobytes` of room at `place`, seen by this process and its children only.
bool MountSmallDisk(const fs::path& place, size_t kilobytes) {
  const uid_t user = getuid();
  const gid_t group = getgid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  WriteProc("/proc/self/setgroups", "deny");
  if (!WriteProc("/proc/self/uid_map", fmt::format("0 {} 1", user))) return false;
  if (!WriteProc("/proc/self/gid_map", fmt::format("0 {} 1", group))) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return mount("cairn", place.c_str(), "tmpfs", 0, fmt::format("size={}k", kilobytes).c_str()) == 0;
}

TEST_F(MemoryProcesses, AFullDiskStopsIngestionAndLosesNothing) {
  WriteApiModel(scratch_ / "model");
  Text("one.txt", Lines(60, "one"));
  const auto words = [](const std::string& memory) {
    return std::vector<std::string>{"ingest",  "-m",    "model",  "-o",      memory,
                                    "one.txt", "--ram", "100KiB", "--chunk", "21"};
  };
  ASSERT_EQ(Cairn(words("whole.cairn")).code, 0);
  const MemoryFile whole(scratch_ / "whole.cairn");
  const size_t disk = whole.file_bytes() / 1024 + 64;
  fs::create_directory(scratch_ / "disk");
  const fs::path memory = scratch_ / "disk" / "m.cairn";
  const size_t rounds = SoakRounds(4, 100);
  const pid_t child = fork();
  if (child == 0) {
    DiskReport* report = new DiskReport(scratch_ / "report.txt");  // _exit runs no destructors
    if (!MountSmallDisk(scratch_ / "disk", disk)) _exit(kNotPermitted);
    Random random(8);
    for (size_t round = 0; round < rounds; ++round) {
      const size_t free = 16 + random.Below(whole.file_bytes() / 1024 - 16);  // kilobytes
      const std::string at = fmt::format("{} KB free: ", free);
      std::ofstream(scratch_ / "disk" / "ballast") << std::string((disk - free) * 1024, 'x');
      const ProcessResult full = Cairn(words("disk/m.cairn"));
      report->Expect(full.code == 1, at + fmt::format("exit code {}", full.code));
      report->Expect(full.err.find("No space left on device") != std::string::npos &&
                         full.err.find("what was committed before is safe") != std::string::npos,
                     at + "message: " + full.err);
      size_t before = 0;
      try {
        report->Expect(MemoryCheck::Run(memory).damages.empty(), at + "damaged");
        const MemoryFile file(memory);
        before = file.blocks();
        std::vector<std::byte> a(whole.identity().record_bytes()), b(a.size());
        for (size_t block = 0; block < before; ++block) {
          for (size_t record = 0; record < whole.identity().records(); ++record) {
            file.ReadRecord(block, record, a.data());
            whole.ReadRecord(block, record, b.data());
            report->Expect(a == b, at + fmt::format("block {} differs", block));
          }
        }
        if (before > 0) {
          const ProcessResult asked = Cairn({"ask", "disk/m.cairn", "-m", "model", "-p", "the bath", "-n", "2"});
          report->Expect(asked.code == 0, at + "ask: " + asked.err);
        }
      } catch (const Error& error) {
        // With no room for the header there is no memory yet.
        report->Expect(free < 64, at + error.what());
      }
      fs::remove(scratch_ / "disk" / "ballast");
      const ProcessResult on = Cairn(words("disk/m.cairn"));
      report->Expect(on.code == 0, at + "going on: " + on.err);
      report->Expect(before == 0 || on.out.find("continued") != std::string::npos, at + on.out);
      try {
        report->Expect(MemoryFile(memory).blocks() == whole.blocks(), at + "blocks are missing in the end");
      } catch (const Error& error) {
        report->Expect(false, at + error.what());
      }
      fs::remove(memory);
    }
    delete report;
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotPermitted)
    GTEST_SKIP() << "no private mounts here; run as root or allow user namespaces";
  ASSERT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(ReadTextFile(scratch_ / "report.txt"), "");
}

}  // namespace
}  // namespace cairn
