// Memory for cached records: distinct, aligned, reused, and given back to the system.
#include "memory/record_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <set>
#include <thread>

#include "base/random.h"

namespace cairn {
namespace {

TEST(RecordPool, RecordsDoNotOverlapAndComeBack) {
  for (const size_t bytes : {1, 64, 1000, 25700, 700000, 3000000}) {
    const auto pool = std::make_shared<RecordPool>(bytes);
    std::vector<std::shared_ptr<std::byte>> taken;
    for (size_t i = 0; i < 100; ++i) {
      taken.push_back(RecordPool::Take(pool));
      ASSERT_EQ(reinterpret_cast<uintptr_t>(taken.back().get()) % 64, 0u);
      std::memset(taken.back().get(), static_cast<int>(i), bytes);
    }
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_EQ(taken[i].get()[0], static_cast<std::byte>(i));
      EXPECT_EQ(taken[i].get()[bytes - 1], static_cast<std::byte>(i));
    }
    // What came back is taken again before the system is asked.
    const size_t held = pool->held_bytes();
    EXPECT_GE(held, 100 * bytes);
    EXPECT_LE(held, 100 * (bytes + 64) + (1 << 20));
    const std::byte* last = taken.back().get();
    taken.pop_back();
    taken.push_back(RecordPool::Take(pool));
    EXPECT_EQ(taken.back().get(), last);
    EXPECT_EQ(pool->held_bytes(), held);
    taken.clear();
    EXPECT_LE(pool->held_bytes(), std::max<size_t>(bytes + 64, 1 << 20));
  }
}

TEST(RecordPool, WhatIsReservedIsTakenFirst) {
  const auto pool = std::make_shared<RecordPool>(50000);
  pool->Reserve(size_t{5} << 20);
  const size_t reserved = pool->held_bytes();
  EXPECT_GT(reserved, size_t{4} << 20);
  EXPECT_LE(reserved, size_t{5} << 20);
  std::vector<std::shared_ptr<std::byte>> taken;
  for (size_t i = 0; i < 80; ++i) taken.push_back(RecordPool::Take(pool));
  EXPECT_EQ(pool->held_bytes(), reserved);
}

TEST(RecordPool, RecordsOutliveTheirTakers) {
  std::shared_ptr<std::byte> record;
  {
    const auto pool = std::make_shared<RecordPool>(5000);
    record = RecordPool::Take(pool);
  }
  std::memset(record.get(), 7, 5000);
  EXPECT_EQ(record.get()[4999], std::byte{7});
}

TEST(RecordPool, ThreadsShareIt) {
  constexpr size_t kBytes = 30000;
  const auto pool = std::make_shared<RecordPool>(kBytes);
  std::vector<std::thread> threads;
  std::atomic<size_t> wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t));
      std::vector<std::shared_ptr<std::byte>> mine;
      for (size_t round = 0; round < 3000; ++round) {
        if (mine.size() < 60 && random.Below(2) == 0) {
          mine.push_back(RecordPool::Take(pool));
          std::memset(mine.back().get(), t, kBytes);
        } else if (!mine.empty()) {
          const size_t at = random.Below(mine.size());
          wrong += mine[at].get()[random.Below(kBytes)] != static_cast<std::byte>(t);
          std::swap(mine[at], mine.back());
          mine.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_LE(pool->held_bytes(), size_t{1} << 20);
}

}  // namespace
}  // namespace cairn
