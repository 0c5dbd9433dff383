// The bytes of a memory file (docs/memory-format.md): its structures, their checks, and access to the disk. For the
// files that read, write and check memories; nobody else includes it.
#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "memory/memory_file.h"

namespace cairn::memory_layout {

constexpr uint64_t kPage = 4096;                         // segments begin on pages
constexpr uint64_t kFileMagic = 0x314d454d4e524143;      // "CARNMEM1"
constexpr uint64_t kSegmentMagic = 0x31474553'4e524143;  // "CARNSEG1"
constexpr uint64_t kFooterMagic = 0x31444e45'4e524143;   // "CARNEND1"
constexpr uint64_t kSlotMagic = 0x3154494d'4e524143;     // "CARNMIT1"
constexpr uint32_t kVersion = 3;                         // docs/memory-format.md says what others had
constexpr uint64_t kSlotOffset[2] = {kPage, 2 * kPage};  // the two commit slots, each on a page of its own
constexpr uint64_t kFirstSegment = 3 * kPage;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;

inline uint64_t Hash(const void* data, size_t size) { return XXH3_64bits(data, size); }

struct FileHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t json_bytes;
  char json[kPage - 24];
  uint64_t checksum;  // of everything before
};
static_assert(sizeof(FileHeader) == kPage);

// Written after a commit, alternating between two places: how far the file is committed. Tells a damaged last segment
// from one that a killed writer did not finish.
struct CommitSlot {
  uint64_t magic;
  uint64_t sequence;
  uint64_t bytes;
  uint64_t blocks;
  uint64_t checksum;
};

struct SegmentHeader {
  uint64_t magic;
  uint32_t version;
  uint32_t local_blocks;  // of them keep the records of local layers
  uint64_t sequence;      // 1, 2, 3, ...
  uint64_t offset;        // of this header in the file
  uint64_t first_block;
  uint64_t blocks;
  uint64_t bytes;       // of the segment, footer included, whole pages
  uint64_t meta_bytes;  // sources, JSON
  uint64_t meta_checksum, spans_checksum, tokens_checksum, landmarks_checksum, table_checksum;
  uint64_t checksum;  // of everything before
};

struct SegmentFooter {
  uint64_t magic;
  uint64_t sequence;
  uint64_t offset;
  uint64_t header_checksum;
  uint64_t checksum;
};

// Where the parts of a segment stand: header, sources, spans, tokens, landmarks, checksums of records, records, footer.
struct Places {
  uint64_t meta, spans, tokens, landmarks, table, records, footer, end;

  Places(const MemoryIdentity& identity, uint64_t blocks, uint64_t local_blocks, uint64_t meta_bytes) {
    const auto align = [](uint64_t x) { return RoundUp(x, 64); };
    const uint64_t all_records =
        blocks * (identity.records() - identity.local_records()) + local_blocks * identity.local_records();
    meta = align(sizeof(SegmentHeader));
    spans = align(meta + meta_bytes);
    tokens = align(spans + blocks * sizeof(BlockSpan));
    landmarks = align(tokens + blocks * identity.block.tokens * sizeof(int32_t));
    table = align(landmarks + blocks * identity.landmark_floats() * sizeof(float));
    records = RoundUp(table + all_records * sizeof(uint64_t), kPage);
    footer = align(records + all_records * identity.record_bytes());
    end = RoundUp(footer + sizeof(SegmentFooter), kPage);
  }
  Places(const MemoryIdentity& identity, const SegmentHeader& header)
      : Places(identity, header.blocks, header.local_blocks, header.meta_bytes) {}
};

// Place of each block's first record among those of a segment, and their number at the end.
std::vector<uint32_t> RecordPlaces(const MemoryIdentity& identity, const std::vector<BlockSpan>& spans);
// How many keep the records of local layers.
inline uint32_t LocalBlocks(const std::vector<BlockSpan>& spans) {
  uint32_t count = 0;
  for (const BlockSpan& span : spans) count += span.keeps_local != 0 ? 1 : 0;
  return count;
}
// Of a record of a block, from the place of its first one.
inline size_t RecordPlace(const MemoryIdentity& identity, const BlockSpan& span, size_t first, size_t record) {
  return first + record - (span.keeps_local != 0 ? 0 : identity.local_records());
}

// False at the end of the file; throws on errors of the disk.
bool ReadAt(int fd, const std::string& name, uint64_t offset, void* to, size_t size);
uint64_t SizeOf(int fd, const std::string& name);
int OpenFile(const std::filesystem::path& path, int flags);

// Of a new file.
FileHeader MakeFileHeader(const MemoryIdentity& identity);
// Throws Error when the file is no memory or its header is damaged.
MemoryIdentity ReadIdentity(int fd, const std::string& name);

std::string SourcesToJson(const std::vector<MemorySource>& sources);
std::vector<MemorySource> SourcesFromJson(const std::string& text, const std::string& name);

bool HeaderIsGood(const SegmentHeader& header, uint64_t offset, const MemoryIdentity& identity);
bool FooterIsGood(const SegmentFooter& footer, const SegmentHeader& header);

// The newest commit slot that is whole; bytes 0 when there is none. `good`, when given: how many are whole.
CommitSlot ReadCommitSlots(int fd, const std::string& name, int* good = nullptr);

}  // namespace cairn::memory_layout
