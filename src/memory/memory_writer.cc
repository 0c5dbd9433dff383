#include "memory/memory_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "memory/memory_layout.h"

namespace cairn {

using namespace memory_layout;

namespace {

// So that the name of a new file outlives a power cut, as its bytes do. File systems that cannot do it do not need it.
void SyncDirectory(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  const int fd = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  [[maybe_unused]] const int ignored = fsync(fd);
  close(fd);
}

}  // namespace

MemoryWriter::MemoryWriter(const std::filesystem::path& path, const MemoryIdentity& identity)
    : name_(path.string()), identity_(identity) {
  CAIRN_CHECK(identity.block.landmark && identity.layers > 0);
  fd_ = OpenFile(path, O_RDWR | O_CREAT);
  try {
    if (flock(fd_, LOCK_EX | LOCK_NB) != 0) Fail("'{}' is being written to by another process; wait for it", name_);
    if (SizeOf(fd_, name_) < kFirstSegment) {
      // New, or killed while it was being created.
      const FileHeader header = MakeFileHeader(identity_);
      if (ftruncate(fd_, 0) != 0) Fail("cannot write '{}': {}", name_, std::strerror(errno));
      end_ = kFirstSegment;
      WriteAt(0, &header, sizeof header);
      WriteCommitSlot();
      WriteCommitSlot();
      const std::vector<char> zeros(kFirstSegment - kSlotOffset[1] - sizeof(CommitSlot), 0);
      WriteAt(kSlotOffset[1] + sizeof(CommitSlot), zeros.data(), zeros.size());
      Sync();
      SyncDirectory(path);
      return;
    }
    const MemoryFile file(path);
    if (file.identity() != identity_) {
      if (file.identity().fingerprint != identity_.fingerprint) {
        Fail("'{}' was made with another model ('{}'); use that one, or another memory", name_, file.identity().model);
      }
      Fail("'{}' keeps {} blocks of {} tokens; it cannot take {} blocks of {}", name_,
           NameOf(file.identity().block.format), file.identity().block.tokens, NameOf(identity_.block.format),
           identity_.block.tokens);
    }
    sources_ = file.sources();
    blocks_ = file.blocks();
    sequence_ = file.commits();
    end_ = file.file_bytes();
    if (ftruncate(fd_, static_cast<off_t>(end_)) != 0) Fail("cannot write '{}': {}", name_, std::strerror(errno));
  } catch (...) {
    close(fd_);
    throw;
  }
}

MemoryWriter::~MemoryWriter() { close(fd_); }

void MemoryWriter::WriteAt(uint64_t offset, const void* data, size_t size) {
  const auto* from = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = pwrite(fd_, from, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("cannot write '{}': {}; what was committed before is safe", name_, std::strerror(errno));
    from += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
}

void MemoryWriter::Sync() {
  if (fdatasync(fd_) != 0)
    Fail("cannot write '{}': {}; what was committed before is safe", name_, std::strerror(errno));
}

void MemoryWriter::WriteCommitSlot() {
  CommitSlot slot{kSlotMagic, sequence_, end_, blocks_, 0};
  slot.checksum = Hash(&slot, offsetof(CommitSlot, checksum));
  // A new file has both.
  if (sequence_ == 0) WriteAt(kSlotOffset[1], &slot, sizeof slot);
  WriteAt(kSlotOffset[sequence_ % 2], &slot, sizeof slot);
}

void MemoryWriter::Commit(const MemorySegment& segment) {
  const size_t count = segment.spans.size();
  CAIRN_CHECK(segment.tokens.size() == count * identity_.block.tokens);
  CAIRN_CHECK(segment.landmarks.size() == count * identity_.landmark_floats());
  CAIRN_CHECK(segment.records.size() == RecordPlaces(identity_, segment.spans).back());
  const std::string meta = SourcesToJson(segment.sources);
  const Places places(identity_, count, LocalBlocks(segment.spans), meta.size());
  std::vector<uint64_t> table;
  for (const std::byte* record : segment.records) table.push_back(Hash(record, identity_.record_bytes()));
  SegmentHeader header;
  std::memset(&header, 0, sizeof header);
  header.magic = kSegmentMagic;
  header.version = kVersion;
  header.sequence = sequence_ + 1;
  header.offset = end_;
  header.first_block = blocks_;
  header.blocks = count;
  header.local_blocks = LocalBlocks(segment.spans);
  header.bytes = places.end;
  header.meta_bytes = meta.size();
  header.meta_checksum = Hash(meta.data(), meta.size());
  header.spans_checksum = Hash(segment.spans.data(), count * sizeof(BlockSpan));
  header.tokens_checksum = Hash(segment.tokens.data(), segment.tokens.size() * 4);
  header.landmarks_checksum = Hash(segment.landmarks.data(), segment.landmarks.size() * 4);
  header.table_checksum = Hash(table.data(), table.size() * 8);
  header.checksum = Hash(&header, offsetof(SegmentHeader, checksum));
  SegmentFooter footer{kFooterMagic, header.sequence, end_, header.checksum, 0};
  footer.checksum = Hash(&footer, offsetof(SegmentFooter, checksum));
  try {
    if (ftruncate(fd_, static_cast<off_t>(end_ + places.end)) != 0) {
      Fail("cannot write '{}': {}; what was committed before is safe", name_, std::strerror(errno));
    }
    WriteAt(end_, &header, sizeof header);
    WriteAt(end_ + places.meta, meta.data(), meta.size());
    WriteAt(end_ + places.spans, segment.spans.data(), count * sizeof(BlockSpan));
    WriteAt(end_ + places.tokens, segment.tokens.data(), segment.tokens.size() * 4);
    WriteAt(end_ + places.landmarks, segment.landmarks.data(), segment.landmarks.size() * 4);
    WriteAt(end_ + places.table, table.data(), table.size() * 8);
    for (size_t i = 0; i < segment.records.size(); ++i) {
      WriteAt(end_ + places.records + i * identity_.record_bytes(), segment.records[i], identity_.record_bytes());
    }
    // Everything must be on the disk before the footer says so.
    Sync();
    WriteAt(end_ + places.footer, &footer, sizeof footer);
    Sync();
  } catch (...) {
    [[maybe_unused]] const int ignored = ftruncate(fd_, static_cast<off_t>(end_));
    throw;
  }
  end_ += places.end;
  ++sequence_;
  blocks_ += count;
  sources_ = segment.sources;
  WriteCommitSlot();
}

}  // namespace cairn
