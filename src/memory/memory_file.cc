#include "memory/memory_file.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "memory/memory_layout.h"

namespace cairn {

using namespace memory_layout;

struct MemoryFile::Segment {
  SegmentHeader header;
  Places places;
  std::vector<uint32_t> first_records{};  // see RecordPlaces
  std::vector<uint64_t> table{};          // checksums of records
};

MemoryFile::MemoryFile(const std::filesystem::path& path) : name_(path.string()) {
  fd_ = OpenFile(path, O_RDONLY);
  try {
    identity_ = ReadIdentity(fd_, name_);
    ReadSegments();
  } catch (...) {
    close(fd_);
    throw;
  }
}

MemoryFile::MemoryFile(const MemoryFile& other)
    : name_(other.name_),
      fd_(fcntl(other.fd_, F_DUPFD_CLOEXEC, 0)),
      identity_(other.identity_),
      segments_(other.segments_),
      sources_(other.sources_),
      spans_(other.spans_),
      blocks_(other.blocks_),
      committed_bytes_(other.committed_bytes_) {
  if (fd_ < 0) Fail("cannot open '{}': {}", name_, std::strerror(errno));
}

std::shared_ptr<const MemoryFile> MemoryFile::Reopened() const {
  std::shared_ptr<MemoryFile> copy(new MemoryFile(*this));
  copy->ReadSegments();
  return copy;
}

MemoryFile::~MemoryFile() { close(fd_); }

size_t MemoryFile::commits() const { return segments_.size(); }

size_t MemoryFile::table_bytes() const {
  size_t bytes = blocks_ * (sizeof(BlockSpan) + sizeof(uint32_t)) + segments_.size() * sizeof(Segment);
  for (const auto& segment : segments_) bytes += segment->table.size() * sizeof(uint64_t);
  return bytes;
}

void MemoryFile::ReadSegments() {
  // The slot is read first: what it promises must be found.
  const CommitSlot slot = ReadCommitSlots(fd_, name_);
  uint64_t offset = std::max(committed_bytes_, kFirstSegment);
  std::vector<std::shared_ptr<Segment>> fresh;
  for (;;) {
    SegmentHeader header;
    SegmentFooter footer;
    const bool good = ReadAt(fd_, name_, offset, &header, sizeof header) && HeaderIsGood(header, offset, identity_) &&
                      ReadAt(fd_, name_, offset + Places(identity_, header).footer, &footer, sizeof footer) &&
                      FooterIsGood(footer, header);
    if (!good) break;
    if (header.sequence != segments_.size() + fresh.size() + 1 || header.first_block != blocks_) {
      Fail("'{}': segment {} does not follow the one before; run cairn verify --repair", name_,
           segments_.size() + fresh.size() + 1);
    }
    fresh.push_back(std::make_shared<Segment>(Segment{header, Places(identity_, header)}));
    blocks_ += header.blocks;
    offset += header.bytes;
  }
  committed_bytes_ = offset;
  if (slot.bytes > offset) {
    Fail("'{}': segment {} is damaged ({} blocks were committed before it); run cairn verify --repair", name_,
         segments_.size() + fresh.size() + 1, blocks_);
  }
  spans_.reserve(blocks_);
  const size_t known = spans_.size();
  for (const std::shared_ptr<Segment>& entry : fresh) {
    Segment& segment = *entry;
    const SegmentHeader& header = segment.header;
    const auto part = [&](uint64_t place, void* to, size_t size, uint64_t checksum, const char* what) {
      if (!ReadAt(fd_, name_, header.offset + place, to, size) || Hash(to, size) != checksum) {
        Fail("'{}': the {} of segment {} are damaged; run cairn verify --repair", name_, what, header.sequence);
      }
    };
    std::vector<BlockSpan> spans(header.blocks);
    part(segment.places.spans, spans.data(), spans.size() * sizeof(BlockSpan), header.spans_checksum,
         "sources of blocks");
    spans_.insert(spans_.end(), spans.begin(), spans.end());
    segment.first_records = RecordPlaces(identity_, spans);
    if (LocalBlocks(spans) != header.local_blocks) {
      Fail("'{}': segment {} does not hold what it says; run cairn verify --repair", name_, header.sequence);
    }
    segment.table.resize(segment.first_records.back());
    part(segment.places.table, segment.table.data(), segment.table.size() * sizeof(uint64_t), header.table_checksum,
         "checksums");
    if (entry == fresh.back()) {
      std::string text(header.meta_bytes, '\0');
      part(segment.places.meta, text.data(), text.size(), header.meta_checksum, "sources");
      sources_ = SourcesFromJson(text, name_);
    }
  }
  segments_.insert(segments_.end(), fresh.begin(), fresh.end());
  for (size_t b = known; b < spans_.size(); ++b) {
    const BlockSpan& span = spans_[b];
    if (span.source >= sources_.size() || span.padding > identity_.block.tokens) {
      Fail("'{}': a block names a source that is not there; run cairn verify --repair", name_);
    }
  }
}

const MemoryFile::Segment& MemoryFile::SegmentOf(size_t block) const {
  CAIRN_CHECK(block < blocks_);
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), block,
                                      [](size_t b, const auto& s) { return b < s->header.first_block; });
  // A segment without blocks begins where the next one does.
  auto segment = after - 1;
  while ((*segment)->header.blocks == 0) --segment;
  return **segment;
}

std::vector<int32_t> MemoryFile::ReadTokens(size_t block) const {
  std::vector<int32_t> tokens;
  ReadAllTokens({static_cast<uint32_t>(block)}, tokens);
  return tokens;
}

void MemoryFile::ReadAllTokens(const std::vector<uint32_t>& blocks, std::vector<int32_t>& tokens) const {
  const size_t length = identity_.block.tokens;
  const Segment* loaded = nullptr;
  std::vector<int32_t> part;  // of one segment, which has one checksum
  for (const uint32_t block : blocks) {
    const Segment& segment = SegmentOf(block);
    if (&segment != loaded) {
      part.resize(segment.header.blocks * length);
      if (!ReadAt(fd_, name_, segment.header.offset + segment.places.tokens, part.data(), part.size() * 4) ||
          Hash(part.data(), part.size() * 4) != segment.header.tokens_checksum) {
        Fail("'{}': the tokens of segment {} are damaged; run cairn verify --repair", name_, segment.header.sequence);
      }
      loaded = &segment;
    }
    const auto begin = part.begin() + static_cast<ptrdiff_t>((block - segment.header.first_block) * length);
    tokens.insert(tokens.end(), begin, begin + static_cast<ptrdiff_t>(length));
  }
}

void MemoryFile::ReadLandmarks(size_t first, size_t count, std::vector<float>& keys) const {
  const size_t floats = identity_.landmark_floats();
  std::vector<float> part;
  for (const auto& entry : segments_) {
    const Segment& segment = *entry;
    const size_t begin = segment.header.first_block;
    const size_t end = begin + segment.header.blocks;
    if (end <= first || begin >= first + count) continue;
    part.resize(segment.header.blocks * floats);
    if (!ReadAt(fd_, name_, segment.header.offset + segment.places.landmarks, part.data(), part.size() * 4) ||
        Hash(part.data(), part.size() * 4) != segment.header.landmarks_checksum) {
      Fail("'{}': the landmarks of segment {} are damaged; run cairn verify --repair", name_, segment.header.sequence);
    }
    const size_t from = std::max(first, begin) - begin;
    const size_t to = std::min(first + count, end) - begin;
    keys.insert(keys.end(), part.begin() + static_cast<ptrdiff_t>(from * floats),
                part.begin() + static_cast<ptrdiff_t>(to * floats));
  }
}

size_t MemoryFile::RecordIndex(const Segment& segment, size_t block, size_t record) const {
  CAIRN_CHECK(record < identity_.records() && HasRecord(block, record));
  const size_t first = segment.first_records[block - segment.header.first_block];
  return RecordPlace(identity_, spans_[block], first, record);
}

uint64_t MemoryFile::RecordOffset(const Segment& segment, size_t block, size_t record) const {
  return segment.header.offset + segment.places.records +
         RecordIndex(segment, block, record) * identity_.record_bytes();
}

void MemoryFile::ReadRecord(size_t block, size_t record, std::byte* out) const {
  const Segment& segment = SegmentOf(block);
  const size_t bytes = identity_.record_bytes();
  if (!ReadAt(fd_, name_, RecordOffset(segment, block, record), out, bytes) ||
      Hash(out, bytes) != segment.table[RecordIndex(segment, block, record)]) {
    Fail("'{}': layer {} of block {} is damaged; run cairn verify --repair", name_, record / identity_.kv_heads, block);
  }
}

void MemoryFile::ReadAhead(size_t block, size_t record) const {
  const auto offset = static_cast<off_t>(RecordOffset(SegmentOf(block), block, record));
  // Where the system cannot do it, the record is read when it is wanted.
  [[maybe_unused]] const int ignored =
      posix_fadvise(fd_, offset, static_cast<off_t>(identity_.record_bytes()), POSIX_FADV_WILLNEED);
}

bool MemoryFile::RecordIsNear(size_t block, size_t record) const {
  // Its last byte: where that is in RAM the pages before it mostly are. Not every file system can tell.
  char last = 0;
  const iovec to{&last, 1};
  const auto offset = static_cast<off_t>(RecordOffset(SegmentOf(block), block, record) + identity_.record_bytes() - 1);
  return preadv2(fd_, &to, 1, offset, RWF_NOWAIT) == 1;
}

}  // namespace cairn
