// Blocks of a memory file in RAM, within a byte budget: the hot tier. Which block goes when room is needed is decided
// by the clock algorithm; reading is done by whole records, never by page faults.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "memory/memory_file.h"
#include "memory/record_pool.h"

namespace cairn {

// Keeps one KV head of one layer of one block readable. Move-only.
class BlockPin {
 public:
  BlockPin() = default;
  explicit BlockPin(std::shared_ptr<const std::byte> data) : data_(std::move(data)) {}
  BlockPin(BlockPin&&) = default;
  BlockPin& operator=(BlockPin&&) = default;
  BlockPin(const BlockPin&) = delete;
  BlockPin& operator=(const BlockPin&) = delete;

  const std::byte* data() const { return data_.get(); }

 private:
  std::shared_ptr<const std::byte> data_;
};

// Thread-safe. What is asked for ahead the system reads meanwhile: to wake threads for it cost more than the disk.
class BlockCache {
 public:
  // `budget`: bytes of blocks kept; pinned ones may exceed it for as long as they are pinned.
  BlockCache(std::shared_ptr<const MemoryFile> file, size_t budget);

  // Throws Error when the record is damaged.
  BlockPin Get(size_t record, size_t block);
  // Has the system read from disk, all at once, what is neither here nor in its RAM and will be asked for now.
  void Prefetch(size_t record, std::span<const uint32_t> blocks);

  // The same file after more was committed to it.
  void Update(std::shared_ptr<const MemoryFile> file);
  std::shared_ptr<const MemoryFile> file() const;

  struct Counters {
    uint64_t hits = 0;
    uint64_t misses = 0;      // read when they were wanted
    uint64_t prefetched = 0;  // of these the system was told before
    uint64_t bytes_read = 0;
    size_t bytes_held = 0;
  };
  Counters counters() const;
  size_t budget() const;
  // Takes RAM for the first blocks now rather than when they are read: within the budget, and no more than the file
  // has.
  void Reserve();
  // Blocks beyond a smaller budget go at once.
  void SetBudget(size_t budget);

 private:
  struct Entry {
    std::shared_ptr<const std::byte> data;  // null while it is being read
    bool used = false;                      // since the clock's hand passed
    size_t place = 0;                       // on the clock
  };
  using Key = uint64_t;
  static Key KeyOf(size_t record, size_t block) { return static_cast<Key>(record) << 40 | block; }

  std::shared_ptr<const std::byte> Load(Key key, std::unique_lock<std::mutex>& lock);
  void MakeRoom(size_t bytes);

  mutable std::mutex mutex_;
  size_t budget_;
  std::condition_variable loaded_;
  std::shared_ptr<const MemoryFile> file_;
  std::unordered_map<Key, Entry> entries_;
  std::vector<Key> clock_;
  const size_t record_bytes_;
  std::shared_ptr<RecordPool> pool_;
  size_t hand_ = 0;
  Counters counters_;
};

}  // namespace cairn
