// The writing side of a memory on disk: atomic commits at the end of the file.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "memory/memory_file.h"

namespace cairn {

// What one commit adds. `records` [block][layer][kv_head], without local layers where a block does not keep them,
// `landmarks` [block][layer that is not local][kv_head][dim].
struct MemorySegment {
  std::vector<BlockSpan> spans;           // one a block
  std::vector<int32_t> tokens;            // block_length a block
  std::vector<float> landmarks;           // as in the records, f32
  std::vector<const std::byte*> records;  // record_bytes() each
  std::vector<MemorySource> sources;      // all sources as they are after this commit
};

// The one writer. Holds a lock on the file; what a killed writer left uncommitted is cut off.
class MemoryWriter {
 public:
  // Creates the file, or opens it for appending. Throws Error when another process writes to it, or when it belongs to
  // another model.
  MemoryWriter(const std::filesystem::path& path, const MemoryIdentity& identity);
  MemoryWriter(const MemoryWriter&) = delete;
  MemoryWriter& operator=(const MemoryWriter&) = delete;
  ~MemoryWriter();

  // Durable when it returns. When it throws (a full disk) the file is as it was before.
  void Commit(const MemorySegment& segment);

  size_t blocks() const { return blocks_; }
  const std::vector<MemorySource>& sources() const { return sources_; }

 private:
  void WriteAt(uint64_t offset, const void* data, size_t size);
  void Sync();
  void WriteCommitSlot();

  std::string name_;
  int fd_ = -1;
  MemoryIdentity identity_;
  std::vector<MemorySource> sources_;
  uint64_t end_ = 0;
  uint64_t sequence_ = 0;
  size_t blocks_ = 0;
};

}  // namespace cairn
