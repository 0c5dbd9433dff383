#include "memory/record_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"

namespace cairn {

namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

RecordPool::RecordPool(size_t record_bytes)
    : stride_(RoundUp(std::max<size_t>(record_bytes, 1), 64)), records_(std::max<size_t>(1, kPieceBytes / stride_)) {}

RecordPool::~RecordPool() {
  for (const auto& piece : pieces_) munmap(piece->data, records_ * stride_);
}

void RecordPool::Reserve(size_t bytes) {
  const std::lock_guard lock(mutex_);
  while ((pieces_.size() + 1) * records_ * stride_ <= bytes) open_.push_back(NewPiece());
}

size_t RecordPool::held_bytes() const {
  const std::lock_guard lock(mutex_);
  return pieces_.size() * records_ * stride_;
}

RecordPool::Piece* RecordPool::NewPiece() {
  const size_t bytes = records_ * stride_;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) Fail("no memory for {} bytes of blocks; give less --ram", bytes);
#ifdef MADV_POPULATE_WRITE
  // All pages at once; one by one, when they are written to, they cost several times as much. Where the system cannot
  // do it, nothing is lost.
  [[maybe_unused]] const int ignored = madvise(data, bytes, MADV_POPULATE_WRITE);
#endif
  auto piece = std::make_unique<Piece>(Piece{static_cast<std::byte*>(data), std::vector<uint32_t>(records_)});
  std::iota(piece->spare.rbegin(), piece->spare.rend(), 0u);
  pieces_.push_back(std::move(piece));
  return pieces_.back().get();
}

std::shared_ptr<std::byte> RecordPool::Take(const std::shared_ptr<RecordPool>& pool) {
  Piece* piece;
  uint32_t number;
  {
    const std::lock_guard lock(pool->mutex_);
    if (pool->open_.empty()) pool->open_.push_back(pool->NewPiece());
    piece = pool->open_.back();
    number = piece->spare.back();
    piece->spare.pop_back();
    if (piece->spare.empty()) pool->open_.pop_back();
  }
  return {piece->data + number * pool->stride_, [pool, piece, number](std::byte*) { pool->GiveBack(piece, number); }};
}

void RecordPool::GiveBack(Piece* piece, uint32_t number) {
  const std::lock_guard lock(mutex_);
  if (piece->spare.empty()) open_.push_back(piece);
  piece->spare.push_back(number);
  if (piece->spare.size() < records_ || open_.size() < 2) return;
  munmap(piece->data, records_ * stride_);
  open_.erase(std::find(open_.begin(), open_.end(), piece));
  pieces_.erase(std::find_if(pieces_.begin(), pieces_.end(), [&](const auto& p) { return p.get() == piece; }));
}

}  // namespace cairn
