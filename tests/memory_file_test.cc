// The memory file: what is committed comes back, damage is named and never silent, a killed or full-disk writer loses
// nothing that was committed.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/random.h"
#include "io/file.h"
#include "memory/memory_check.h"
#include "memory/memory_file.h"
#include "memory/memory_writer.h"
#include "tests/cairn_process.h"
#include "tests/test_files.h"

namespace cairn {
namespace {

namespace fs = std::filesystem;

MemoryIdentity TinyIdentity() {
  MemoryIdentity identity;
  identity.fingerprint = "0123456789abcdef";
  identity.model = "tiny";
  identity.layers = 3;
  identity.kv_heads = 2;
  identity.local_layers = 1;
  identity.block = {4, 3, true, BlockFormat::kF16};
  return identity;
}

// Everything about block b can be computed from its number.
struct TestBlocks {
  MemorySegment segment;
  std::vector<std::vector<std::byte>> bytes;
};

std::vector<std::byte> RecordOf(const MemoryIdentity& identity, size_t block, size_t number) {
  std::vector<std::byte> record(identity.record_bytes());
  Random random(block * 31 + number);
  for (std::byte& b : record) b = static_cast<std::byte>(random.Below(256));
  return record;
}

TestBlocks MakeBlocks(const MemoryIdentity& identity, size_t first, size_t count) {
  TestBlocks made;
  for (size_t b = first; b < first + count; ++b) {
    made.segment.spans.push_back({0, 0, b * 10, b * 10 + 10, b % 3 == 1 ? 1u : 0u});
    const size_t local = b % 3 == 1 ? 0 : identity.local_records();
    for (size_t t = 0; t < identity.block.tokens; ++t) made.segment.tokens.push_back(static_cast<int32_t>(b * 100 + t));
    for (size_t i = 0; i < identity.landmark_floats(); ++i) {
      made.segment.landmarks.push_back(static_cast<float>(b) + 0.001f * static_cast<float>(i));
    }
    for (size_t r = local; r < identity.records(); ++r) made.bytes.push_back(RecordOf(identity, b, r));
  }
  for (const auto& record : made.bytes) made.segment.records.push_back(record.data());
  made.segment.sources = {{"book.txt", 1000, 7, false, false}};
  return made;
}

void Append(const fs::path& path, const std::vector<size_t>& counts) {
  MemoryWriter writer(path, TinyIdentity());
  for (const size_t count : counts) writer.Commit(MakeBlocks(TinyIdentity(), writer.blocks(), count).segment);
}

// Throws, or every block is what it was.
void ExpectWhole(const fs::path& path, size_t blocks) {
  const MemoryIdentity identity = TinyIdentity();
  const MemoryFile file(path);
  ASSERT_EQ(file.blocks(), blocks);
  std::vector<std::byte> record(identity.record_bytes());
  std::vector<float> keys;
  file.ReadLandmarks(0, blocks, keys);
  ASSERT_EQ(keys.size(), blocks * identity.landmark_floats());
  const TestBlocks expected = MakeBlocks(identity, 0, blocks);
  EXPECT_EQ(keys, expected.segment.landmarks);
  for (size_t b = 0; b < blocks; ++b) {
    EXPECT_EQ(file.spans()[b].first_byte, b * 10);
    EXPECT_EQ(file.ReadTokens(b).front(), static_cast<int32_t>(b * 100));
    for (size_t r = 0; r < identity.records(); ++r) {
      EXPECT_EQ(file.HasRecord(b, r), r >= identity.local_records() || b % 3 == 1);
      if (!file.HasRecord(b, r)) continue;
      file.ReadRecord(b, r, record.data());
      EXPECT_EQ(record, RecordOf(identity, b, r));
    }
  }
}

TEST(MemoryFile, WhatIsCommittedComesBack) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  const fs::path path = scratch / "a.cairn";
  Append(path, {3, 1});
  ExpectWhole(path, 4);
  Append(path, {0, 5});
  ExpectWhole(path, 9);
  const MemoryCheck check = MemoryCheck::Run(path);
  EXPECT_TRUE(check.damages.empty());
  EXPECT_EQ(check.good_blocks, 9u);
  EXPECT_EQ(check.uncommitted_bytes, 0u);
  EXPECT_EQ(MemoryFile(path).identity(), TinyIdentity());
}

TEST(MemoryFile, AnotherModelAndAnotherWriterAreRefused) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  const fs::path path = scratch / "a.cairn";
  Append(path, {2});
  MemoryIdentity other = TinyIdentity();
  other.fingerprint = "fedcba9876543210";
  EXPECT_THROW(MemoryWriter(path, other), Error);
  other = TinyIdentity();
  other.block.tokens = 7;
  EXPECT_THROW(MemoryWriter(path, other), Error);
  const MemoryWriter first(path, TinyIdentity());
  EXPECT_THROW(MemoryWriter(path, TinyIdentity()), Error);
  ExpectWhole(path, 2);  // readers do not mind
  EXPECT_THROW(MemoryFile(scratch / "none.cairn"), Error);
  WriteFileAtomically(scratch / "text.cairn", "no memory at all");
  EXPECT_THROW(MemoryFile(scratch / "text.cairn"), Error);
}

TEST(MemoryFile, AReaderKeepsItsStateWhileOneAppends) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  const fs::path path = scratch / "a.cairn";
  Append(path, {2});
  const MemoryFile reader(path);
  Append(path, {4});
  EXPECT_EQ(reader.blocks(), 2u);
  std::vector<std::byte> record(TinyIdentity().record_bytes());
  reader.ReadRecord(1, 1, record.data());
  EXPECT_EQ(record, RecordOf(TinyIdentity(), 1, 1));
  ExpectWhole(path, 6);
}

// Every bit of a small memory, one after the other (some bits of a page in the short form): either nothing that is read
// changes, or an Error says so; the check names it; the repair keeps every other block.
TEST(MemoryFile, AFlippedBitIsNeverSilent) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  const fs::path path = scratch / "a.cairn";
  Append(path, {2, 3, 1});
  const std::string whole = ReadTextFile(path);
  const bool long_run = IsSoak();
  Random random(5);
  size_t noticed = 0;
  for (size_t at = 0; at < whole.size(); at += long_run ? 1 : 1 + random.Below(40)) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.Below(8)));
    { std::ofstream(path, std::ios::binary).write(damaged.data(), static_cast<std::streamsize>(damaged.size())); }
    bool threw = false;
    try {
      ExpectWhole(path, 6);
    } catch (const Error&) {
      threw = true;
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "byte " << at;
    noticed += threw;
    if (at < 4096) continue;  // the identity: nothing can be read without it
    const MemoryCheck check = MemoryCheck::Run(path);
    if (threw) {
      EXPECT_FALSE(check.damages.empty()) << "byte " << at;
      const fs::path repaired = scratch / "repaired.cairn";
      fs::remove(repaired);
      const size_t lost = RepairMemory(path, repaired);
      EXPECT_EQ(MemoryFile(repaired).blocks(), 6 - lost) << "byte " << at;
      EXPECT_EQ(check.good_blocks, 6 - lost) << "byte " << at;
      EXPECT_LE(lost, 3u) << "byte " << at;  // one segment at most
      EXPECT_TRUE(MemoryCheck::Run(repaired).damages.empty());
    }
  }
  EXPECT_GT(noticed, 20u);
}

TEST(MemoryFile, ATornTailIsCutOff) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  const fs::path path = scratch / "a.cairn";
  Append(path, {2});
  const uint64_t committed = fs::file_size(path);
  Append(path, {3});
  const std::string whole = ReadTextFile(path);
  size_t whole_states = 0;
  // A killed writer has not written its commit slot, nor perhaps all of its segment.
  for (size_t size = committed; size < whole.size(); size += IsSoak() ? 1 : 97) {
    std::string torn = whole.substr(0, size);
    const std::string first_state = [&] {
      const fs::path clean = scratch / "clean.cairn";
      fs::remove(clean);
      Append(clean, {2});
      return ReadTextFile(clean);
    }();
    std::memcpy(torn.data(), first_state.data(), 3 * 4096);
    { std::ofstream(path, std::ios::binary).write(torn.data(), static_cast<std::streamsize>(torn.size())); }
    // What follows the footer only fills the page up.
    const size_t found = MemoryFile(path).blocks();
    EXPECT_EQ(found, whole.size() - size > 4096 - 64 ? 2u : found);
    EXPECT_TRUE(found == 2 || found == 5);
    whole_states += found == 5;
    ExpectWhole(path, found);
    EXPECT_TRUE(MemoryCheck::Run(path).damages.empty());
    Append(path, {3});
    ExpectWhole(path, found + 3);
  }
  EXPECT_GT(whole_states, 0u);
}

TEST(MemoryFile, KilledAtAnyMomentNothingCommittedIsLost) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  const fs::path path = scratch / "a.cairn";
  Random random(9);
  const size_t rounds = SoakRounds(200, 5000);
  size_t known = 0;
  for (size_t round = 0; round < rounds; ++round) {
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(pipes[0]);
      try {
        MemoryWriter writer(path, TinyIdentity());
        for (;;) {
          writer.Commit(MakeBlocks(TinyIdentity(), writer.blocks(), 1 + round % 3).segment);
          const uint64_t blocks = writer.blocks();
          if (write(pipes[1], &blocks, sizeof blocks) < 0) break;
        }
      } catch (...) {
      }
      _exit(1);
    }
    close(pipes[1]);
    usleep(static_cast<useconds_t>(random.Below(3000)));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    uint64_t blocks = 0;
    while (read(pipes[0], &blocks, sizeof blocks) == sizeof blocks) known = static_cast<size_t>(blocks);
    close(pipes[0]);
    if (!fs::exists(path)) continue;
    try {
      const size_t found = MemoryFile(path).blocks();
      ASSERT_GE(found, known) << "round " << round;
      known = found;
    } catch (const Error& error) {
      // Killed while the file was being created: there is nothing yet, and the next writer begins anew.
      ASSERT_EQ(known, 0u) << "round " << round << ": " << error.what();
    }
    if (known > 400) {  // keep it quick
      ExpectWhole(path, known);
      fs::remove(path);
      known = 0;
    }
  }
  Append(path, {1});
  ExpectWhole(path, known + 1);
}

TEST(MemoryFile, AFullDiskLosesNothing) {
  const ScratchDirectory scratch(SmallFilesDirectory());
  const fs::path path = scratch / "a.cairn";
  Append(path, {3});
  const auto size = static_cast<rlim_t>(fs::file_size(path));
  // A limit on the size of files stands for a full disk.
  rlimit old;
  getrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t room : {0, 100, 4096, 5000, 8000}) {
    rlimit tight = old;
    tight.rlim_cur = size + room;
    MemoryWriter writer(path, TinyIdentity());
    const TestBlocks more = MakeBlocks(TinyIdentity(), 3, 20);
    setrlimit(RLIMIT_FSIZE, &tight);
    EXPECT_THROW(writer.Commit(more.segment), Error);
    setrlimit(RLIMIT_FSIZE, &old);
    ExpectWhole(path, 3);
    EXPECT_TRUE(MemoryCheck::Run(path).damages.empty());
  }
  Append(path, {20});
  ExpectWhole(path, 23);
}

}  // namespace
}  // namespace cairn
