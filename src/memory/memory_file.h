// A memory on disk, as readers see it: finished blocks of all layers, their landmarks, tokens and sources, in one
// append-only file with atomic commits. docs/memory-format.md describes the bytes. Readers see what was committed when
// they opened it, also while one writer appends.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "attention/block_kernels.h"

namespace cairn {

// What the file's blocks look like and which model made them. Fixed when the file is created.
struct MemoryIdentity {
  std::string fingerprint;  // of the model; another model's memory is refused
  std::string model;        // for people
  size_t layers = 0;
  size_t kv_heads = 0;
  BlockShape block;         // with landmark
  size_t local_layers = 0;  // the first layers, which choose nothing: no landmarks, and records of few blocks

  // A record is one KV head of one layer of one block: what a query reads. Record layer * kv_heads + head of a block.
  size_t record_bytes() const { return block.bytes(); }
  size_t records() const { return layers * kv_heads; }  // of a block that keeps all
  size_t local_records() const { return local_layers * kv_heads; }
  size_t landmark_floats() const { return (layers - local_layers) * kv_heads * block.dim; }
  bool operator==(const MemoryIdentity&) const = default;
};

// Where a block's text came from.
struct BlockSpan {
  uint32_t source = 0;                     // index into sources
  uint32_t padding = 0;                    // tokens at the end that only fill the block up
  uint64_t first_byte = 0, last_byte = 0;  // [first, last) of the source's text
  uint32_t keeps_local = 0;                // 1: with the records of local layers, which only what follows it may want
  uint32_t reserved = 0;
};

struct MemorySource {
  std::string name;
  uint64_t bytes = 0;     // of the whole text
  uint64_t checksum = 0;  // of the whole text
  bool forgotten = false;
  bool complete = false;  // every block of it is in the memory
};

// A committed state of the file. Immutable, thread-safe.
class MemoryFile {
 public:
  // Throws Error when it is no memory, or when a committed part is damaged; names what to do.
  explicit MemoryFile(const std::filesystem::path& path);
  ~MemoryFile();
  MemoryFile& operator=(const MemoryFile&) = delete;

  // The state now, with what was committed since; what is known already is not read again.
  std::shared_ptr<const MemoryFile> Reopened() const;

  const std::string& name() const { return name_; }
  const MemoryIdentity& identity() const { return identity_; }
  size_t blocks() const { return blocks_; }
  const std::vector<MemorySource>& sources() const { return sources_; }
  const std::vector<BlockSpan>& spans() const { return spans_; }  // by block
  uint64_t file_bytes() const { return committed_bytes_; }
  size_t commits() const;
  size_t table_bytes() const;  // of RAM that this needs: checksums and places of blocks
  bool forgotten(size_t block) const { return sources_[spans_[block].source].forgotten; }

  std::vector<int32_t> ReadTokens(size_t block) const;
  // Tokens of the blocks given in ascending order, appended to `tokens`.
  void ReadAllTokens(const std::vector<uint32_t>& blocks, std::vector<int32_t>& tokens) const;
  // Landmark keys of blocks [first, first + count), [block][layer that is not local][kv_head][dim], appended to `keys`.
  void ReadLandmarks(size_t first, size_t count, std::vector<float>& keys) const;
  // Whether the file has it: records of local layers are kept of few blocks.
  bool HasRecord(size_t block, size_t record) const {
    return record >= identity_.local_records() || spans_[block].keeps_local != 0;
  }
  // One record of one block, checked. Throws Error when it is damaged.
  void ReadRecord(size_t block, size_t record, std::byte* out) const;
  // Whether the system seems to hold it in RAM already: reading it is then a copy, and waits for no disk.
  // Has the system read it from disk, and does not wait for it.
  void ReadAhead(size_t block, size_t record) const;
  bool RecordIsNear(size_t block, size_t record) const;

 private:
  struct Segment;

  MemoryFile(const MemoryFile& other);
  void ReadSegments();
  const Segment& SegmentOf(size_t block) const;
  size_t RecordIndex(const Segment& segment, size_t block, size_t record) const;
  uint64_t RecordOffset(const Segment& segment, size_t block, size_t record) const;

  std::string name_;
  int fd_ = -1;
  MemoryIdentity identity_;
  std::vector<std::shared_ptr<const Segment>> segments_;  // shared with states of other moments
  std::vector<MemorySource> sources_;
  std::vector<BlockSpan> spans_;
  size_t blocks_ = 0;
  uint64_t committed_bytes_ = 0;
};

}  // namespace cairn
