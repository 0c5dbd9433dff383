// Memory for the records of a cache, taken from the system in pieces of many records: to ask for each one by itself
// costs more than to read it, and several threads that allocate and free would make the heap several times as large as
// what is held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace cairn {

// Thread-safe. Pieces that hold no record go back to the system, but for one.
class RecordPool {
 public:
  explicit RecordPool(size_t record_bytes);
  ~RecordPool();
  RecordPool(const RecordPool&) = delete;
  RecordPool& operator=(const RecordPool&) = delete;

  // Room for a record, aligned to 64 bytes, not initialised; it comes back when its last owner is gone. Throws Error
  // where there is no memory.
  static std::shared_ptr<std::byte> Take(const std::shared_ptr<RecordPool>& pool);

  // Asks the system for so many bytes now, so that records need not wait for it: memory that is touched for the first
  // time may cost more than to read a record into it.
  void Reserve(size_t bytes);
  size_t held_bytes() const;  // from the system

 private:
  struct Piece {
    std::byte* data;
    std::vector<uint32_t> spare;  // numbers of records that are free
  };

  Piece* NewPiece();
  void GiveBack(Piece* piece, uint32_t number);

  const size_t stride_;   // of a record
  const size_t records_;  // of a piece
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::vector<Piece*> open_;  // those with room
};

}  // namespace cairn
