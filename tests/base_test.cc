// Tests of src/base: errors, checked arithmetic, aligned memory, parallel loops, random numbers, instruction sets.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/aligned.h"
#include "base/checked.h"
#include "base/cpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/random.h"
#include "base/threads.h"

namespace cairn {
namespace {

// The message of the Error (or BugError) that `body` throws; fails when it throws none.
template <typename Exception, typename Body>
std::string MessageOf(Body body) {
  try {
    body();
  } catch (const Exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

void ExpectContains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

// Sets an environment variable until the end of the test.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ~ScopedVariable() { old_.empty() ? unsetenv(name_) : setenv(name_, old_.c_str(), 1); }

 private:
  const char* name_;
  std::string old_;
};

TEST(Errors, FailFormatsItsMessage) {
  EXPECT_EQ(MessageOf<Error>([] { Fail("'{}' has {} bytes", "a.bin", 3); }), "'a.bin' has 3 bytes");
}

TEST(Errors, CheckNamesConditionAndPlace) {
  const int two = 2;
  EXPECT_NO_THROW(CAIRN_CHECK(two == 2));
  const std::string plain = MessageOf<BugError>([&] { CAIRN_CHECK(two == 3); });
  ExpectContains(plain, "base_test.cc:");
  ExpectContains(plain, "check failed: two == 3");
  ExpectContains(MessageOf<BugError>([&] { CAIRN_CHECK(two == 3, "two is {}", two); }), "two == 3: two is 2");
}

TEST(Checked, ReportsOverflow) {
  EXPECT_EQ(CheckedMul(1u << 31, 2u), uint64_t{1} << 32);
  EXPECT_EQ(CheckedMul(UINT64_MAX, 1), UINT64_MAX);
  EXPECT_EQ(CheckedMul(UINT64_MAX, 0), 0u);
  EXPECT_EQ(CheckedMul(uint64_t{1} << 32, uint64_t{1} << 32), std::nullopt);
  EXPECT_EQ(CheckedAdd(UINT64_MAX, 0), UINT64_MAX);
  EXPECT_EQ(CheckedAdd(UINT64_MAX, 1), std::nullopt);
  EXPECT_EQ(CheckedProduct({}), 1u);
  EXPECT_EQ(CheckedProduct(std::vector<uint64_t>{2, 3, 7}), 42u);
  EXPECT_EQ(CheckedProduct(std::vector<uint64_t>{uint64_t{1} << 33, uint64_t{1} << 33}), std::nullopt);
}

TEST(Checked, Rounds) {
  EXPECT_EQ(DivideUp(0, 8), 0u);
  EXPECT_EQ(DivideUp(1, 8), 1u);
  EXPECT_EQ(DivideUp(8, 8), 1u);
  EXPECT_EQ(DivideUp(9, 8), 2u);
  EXPECT_EQ(RoundUp(9, 8), 16u);
}

TEST(AlignedBuffer, IsAlignedAndZeroed) {
  for (const size_t size : {size_t{1}, size_t{15}, size_t{1000}, (size_t{5} << 20) / sizeof(float) + 3}) {
    const AlignedBuffer<float> buffer(size);
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
    size_t zeros = 0;
    for (const float value : buffer) zeros += value == 0.0f;
    EXPECT_EQ(zeros, size);
  }
  const AlignedBuffer<float> large((size_t{8} << 20) / sizeof(float));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large.data()) % (size_t{2} << 20), 0u);
}

TEST(AlignedBuffer, MovesWithoutCopying) {
  AlignedBuffer<int> first(10);
  std::iota(first.begin(), first.end(), 0);
  const int* data = first.data();
  AlignedBuffer<int> second(std::move(first));
  EXPECT_EQ(second.data(), data);
  EXPECT_TRUE(first.empty());  // NOLINT: the state after a move is promised
  EXPECT_EQ(first.data(), nullptr);
  AlignedBuffer<int> third(3);
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 10u);
  EXPECT_EQ(third[9], 9);
  EXPECT_EQ(third.span().size(), 10u);
}

TEST(AlignedBuffer, EmptyAndImpossibleSizes) {
  const AlignedBuffer<double> empty(0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_TRUE(empty.empty());
  ExpectContains(MessageOf<Error>([] { AlignedBuffer<double> buffer(SIZE_MAX / sizeof(double)); }), "cannot allocate");
  // The number of bytes would wrap around to a small one.
  ExpectContains(MessageOf<Error>([] { AlignedBuffer<double> buffer(SIZE_MAX / sizeof(double) + 2); }),
                 "cannot allocate");
}

class ThreadsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { SetThreadCount(GetParam()); }
  void TearDown() override { SetThreadCount(0); }
};

TEST_P(ThreadsTest, CoversEveryIndexOnce) {
  for (const size_t count : {0, 1, 2, 3, 7, 1000}) {
    std::vector<std::atomic<int>> calls(count);
    std::atomic<bool> bad_thread = false;
    ParallelFor(count, [&](size_t index, int thread) {
      ++calls[index];
      if (thread < 0 || thread >= ThreadCount()) bad_thread = true;
    });
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(calls[i], 1) << "index " << i << " of " << count;
    EXPECT_FALSE(bad_thread);
  }
}

TEST_P(ThreadsTest, ThreadNumbersAreExclusive) {
  // Two bodies with the same number never run at the same time: scratch may be indexed by it.
  std::vector<std::atomic<int>> busy(static_cast<size_t>(ThreadCount()));
  std::atomic<bool> clash = false;
  ParallelFor(2000, [&](size_t, int thread) {
    if (++busy[static_cast<size_t>(thread)] != 1) clash = true;
    --busy[static_cast<size_t>(thread)];
  });
  EXPECT_FALSE(clash);
}

TEST_P(ThreadsTest, ThrowsAgainAndStaysUsable) {
  std::atomic<int> calls = 0;
  const auto body = [&](size_t index, int) {
    ++calls;
    if (index == 3) Fail("index {}", index);
    // Slow enough that the failure is noticed even where its thread has to wait for a core.
    if (index > 3) std::this_thread::sleep_for(std::chrono::microseconds(1));
  };
  EXPECT_EQ(MessageOf<Error>([&] { ParallelFor(100000, body); }), "index 3");
  EXPECT_LT(calls, 100000);
  std::atomic<int> after = 0;
  ParallelFor(10, [&](size_t, int) { ++after; });
  EXPECT_EQ(after, 10);
}

TEST_P(ThreadsTest, NestedLoopsRunOnTheirCaller) {
  std::vector<std::atomic<int>> calls(8 * 5);
  ParallelFor(8, [&](size_t outer, int) {
    std::set<int> threads;  // unguarded: the inner loop must not be parallel
    ParallelFor(5, [&](size_t inner, int thread) {
      threads.insert(thread);
      ++calls[outer * 5 + inner];
    });
    EXPECT_EQ(threads.size(), 1u);
  });
  for (const auto& call : calls) EXPECT_EQ(call, 1);
}

INSTANTIATE_TEST_SUITE_P(Counts, ThreadsTest, ::testing::Values(1, 2, 4));

TEST(Threads, CountCanBeSetAndReset) {
  const int usual = ThreadCount();
  EXPECT_GE(usual, 1);
  SetThreadCount(3);
  EXPECT_EQ(ThreadCount(), 3);
  ExpectContains(MessageOf<Error>([] { SetThreadCount(-1); }), "-1 threads");
  ExpectContains(MessageOf<Error>([] { SetThreadCount(1025); }), "1025 threads");
  EXPECT_EQ(ThreadCount(), 3);
  SetThreadCount(0);
  EXPECT_EQ(ThreadCount(), usual);
}

TEST(Threads, EnvironmentIsChecked) {
  {
    const ScopedVariable variable("CAIRN_THREADS", "5");
    EXPECT_EQ(internal::DefaultThreadCount(), 5);
  }
  for (const char* bad : {"0", "-2", "2x", "many", "99999", " ", "1e3"}) {
    const ScopedVariable variable("CAIRN_THREADS", bad);
    ExpectContains(MessageOf<Error>([] { internal::DefaultThreadCount(); }), std::string("CAIRN_THREADS is '") + bad);
  }
}

TEST(Logging, EnvironmentIsChecked) {
  const ScopedVariable variable("CAIRN_LOG", "loud");
  ExpectContains(MessageOf<Error>([] { InitLogging(); }), "CAIRN_LOG is 'loud'");
}

TEST(Random, IsTheSameEverywhere) {
  Random random(42);
  // The published xoshiro256** seeded by splitmix64(42).
  EXPECT_EQ(random.Next(), 1546998764402558742u);
  EXPECT_EQ(random.Next(), 6990951692964543102u);
  Random same(42);
  Random other(43);
  EXPECT_EQ(same.Next(), 1546998764402558742u);
  EXPECT_NE(other.Next(), 1546998764402558742u);
  Random fork = random;
  EXPECT_EQ(fork.Next(), random.Next());
}

TEST(Random, StaysInBounds) {
  Random random(1);
  std::vector<int> counts(10);
  for (int i = 0; i < 10000; ++i) {
    const uint64_t below = random.Below(10);
    ASSERT_LT(below, 10u);
    ++counts[below];
    const double uniform = random.Uniform();
    ASSERT_GE(uniform, 0.0);
    ASSERT_LT(uniform, 1.0);
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);  // five standard deviations
  EXPECT_EQ(random.Below(1), 0u);
  EXPECT_LT(random.Below(UINT64_MAX), UINT64_MAX);
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  Random random(2);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const double value = random.Normal();
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / kCount, 0.0, 0.04);
  EXPECT_NEAR(squares / kCount, 1.0, 0.05);
}

TEST(InstructionSets, CanBeForced) {
  const auto sets = InstructionSets();
  ASSERT_FALSE(sets.empty());
  const std::string usual = ActiveInstructionSet().name;
  for (const auto& set : sets) {
    ForceInstructionSet(set.name);
    EXPECT_EQ(ActiveInstructionSet().name, set.name);
    EXPECT_EQ(ActiveInstructionSet().target, set.target);
  }
  std::string upper = sets.back().name;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  ForceInstructionSet(upper);
  EXPECT_EQ(ActiveInstructionSet().name, sets.back().name);
  // Forcing must not forget the better ones.
  EXPECT_EQ(InstructionSets().size(), sets.size());
  ForceInstructionSet("");
  EXPECT_EQ(ActiveInstructionSet().name, sets.front().name);
  ForceInstructionSet(usual);
}

TEST(InstructionSets, UnknownNameIsAnErrorThatListsTheKnown) {
  const std::string before = ActiveInstructionSet().name;
  const std::string message = MessageOf<Error>([] { ForceInstructionSet("abacus"); });
  ExpectContains(message, "'abacus'");
  for (const auto& set : InstructionSets()) ExpectContains(message, set.name);
  EXPECT_EQ(ActiveInstructionSet().name, before);
}

TEST(InstructionSets, EnvironmentIsObeyed) {
  const std::string usual = ActiveInstructionSet().name;
  {
    const ScopedVariable variable("CAIRN_ISA", InstructionSets().back().name.c_str());
    InitInstructionSet();
    EXPECT_EQ(ActiveInstructionSet().name, InstructionSets().back().name);
  }
  {
    const ScopedVariable variable("CAIRN_ISA", "abacus");
    EXPECT_THROW(InitInstructionSet(), Error);
  }
  ForceInstructionSet(usual);
}

TEST(InstructionSets, ProcessorHasAName) { EXPECT_FALSE(ProcessorName().empty()); }

}  // namespace
}  // namespace cairn
