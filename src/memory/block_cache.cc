#include "memory/block_cache.h"

#include <algorithm>

#include "base/error.h"

namespace cairn {

namespace {

// What a session of some hundred tokens reads in a large memory.
constexpr uint64_t kReserved = uint64_t{32} << 20;

}  // namespace

BlockCache::BlockCache(std::shared_ptr<const MemoryFile> file, size_t budget)
    : budget_(budget),
      file_(std::move(file)),
      record_bytes_(file_->identity().record_bytes()),
      pool_(std::make_shared<RecordPool>(record_bytes_)) {}

void BlockCache::Update(std::shared_ptr<const MemoryFile> file) {
  const std::lock_guard lock(mutex_);
  file_ = std::move(file);
}

std::shared_ptr<const MemoryFile> BlockCache::file() const {
  const std::lock_guard lock(mutex_);
  return file_;
}

size_t BlockCache::budget() const {
  const std::lock_guard lock(mutex_);
  return budget_;
}

void BlockCache::SetBudget(size_t budget) {
  const std::lock_guard lock(mutex_);
  budget_ = budget;
  MakeRoom(0);
}

void BlockCache::Reserve() {
  const std::shared_ptr<const MemoryFile> file = this->file();
  pool_->Reserve(std::min<uint64_t>({budget(), file->file_bytes(), kReserved}));
}

BlockCache::Counters BlockCache::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

BlockPin BlockCache::Get(size_t record, size_t block) {
  const Key key = KeyOf(record, block);
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto found = entries_.find(key);
    if (found == entries_.end()) break;
    if (found->second.data != nullptr) {
      found->second.used = true;
      ++counters_.hits;
      return BlockPin(found->second.data);
    }
    loaded_.wait(lock);  // somebody else reads it
  }
  ++counters_.misses;
  return BlockPin(Load(key, lock));
}

// Reads a record that has no entry yet; the lock is open meanwhile. On failure the entry goes again.
std::shared_ptr<const std::byte> BlockCache::Load(Key key, std::unique_lock<std::mutex>& lock) {
  entries_.emplace(key, Entry{});
  const std::shared_ptr<const MemoryFile> file = file_;
  MakeRoom(record_bytes_);
  counters_.bytes_held += record_bytes_;
  lock.unlock();
  std::shared_ptr<std::byte> data;
  try {
    data = RecordPool::Take(pool_);
    file->ReadRecord(static_cast<size_t>(key & ((Key{1} << 40) - 1)), static_cast<size_t>(key >> 40), data.get());
  } catch (...) {
    lock.lock();
    entries_.erase(key);
    counters_.bytes_held -= record_bytes_;
    loaded_.notify_all();
    throw;
  }
  lock.lock();
  Entry& entry = entries_.at(key);
  entry.data = data;
  entry.used = true;
  entry.place = clock_.size();
  clock_.push_back(key);
  counters_.bytes_read += record_bytes_;
  loaded_.notify_all();
  return data;
}

// The hand goes round: what was used since it last came gets another turn.
void BlockCache::MakeRoom(size_t bytes) {
  size_t passed = 0;
  while (!clock_.empty() && counters_.bytes_held + bytes > budget_ && passed < 2 * clock_.size() + 2) {
    hand_ %= clock_.size();
    const auto found = entries_.find(clock_[hand_]);
    Entry& entry = found->second;
    ++passed;
    if (entry.used || entry.data.use_count() > 1) {  // in use, or pinned
      entry.used = false;
      ++hand_;
      continue;
    }
    counters_.bytes_held -= record_bytes_;
    // The last one takes its place on the clock.
    clock_[hand_] = clock_.back();
    entries_.at(clock_[hand_]).place = hand_;
    clock_.pop_back();
    entries_.erase(found);
    passed = 0;
  }
}

void BlockCache::Prefetch(size_t record, std::span<const uint32_t> blocks) {
  std::vector<uint32_t> missing;
  std::unique_lock lock(mutex_);
  for (const uint32_t block : blocks) {
    if (entries_.count(KeyOf(record, block)) == 0) missing.push_back(block);
  }
  if (missing.empty()) return;
  const std::shared_ptr<const MemoryFile> file = file_;
  // Other threads get their blocks while the system is asked.
  lock.unlock();
  std::erase_if(missing, [&](uint32_t block) { return file->RecordIsNear(block, record); });
  if (missing.empty()) return;
  for (const uint32_t block : missing) file->ReadAhead(block, record);
  lock.lock();
  counters_.prefetched += missing.size();
}

}  // namespace cairn
