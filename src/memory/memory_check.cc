#include "memory/memory_check.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "base/error.h"
#include "memory/memory_layout.h"
#include "memory/memory_writer.h"

namespace cairn {

using namespace memory_layout;

namespace {

// One segment as it stands in a file that may be damaged.
struct ScannedSegment {
  SegmentHeader header;
  bool whole_parts = true;  // everything but the records
  std::string meta;
  std::vector<BlockSpan> spans;
  std::vector<int32_t> tokens;
  std::vector<float> landmarks;
  std::vector<uint64_t> table;
  std::vector<bool> block_is_good;
};

// Walks through everything that was committed, naming what is damaged. `each` gets every segment with a readable
// header; records are handed to `record` as they are read.
class DamageScan {
 public:
  explicit DamageScan(const std::filesystem::path& path)
      : name_(path.string()), fd_(OpenFile(path, O_RDONLY)), closer_(nullptr, [fd = fd_](void*) { close(fd); }) {
    identity_ = ReadIdentity(fd_, name_);
  }

  const MemoryIdentity& identity() const { return identity_; }

  using Records = std::vector<std::vector<std::byte>>;  // of one segment, in the order of the file
  MemoryCheck Walk(const std::function<void(const ScannedSegment&, const Records&)>& each) {
    MemoryCheck check;
    int slots = 0;
    const CommitSlot slot = ReadCommitSlots(fd_, name_, &slots);
    if (slots < 2) check.damages.push_back({"commit slot", 0, 0});
    const uint64_t size = SizeOf(fd_, name_);
    uint64_t committed = kFirstSegment;
    size_t next_block = 0;
    for (uint64_t offset = kFirstSegment; offset + kPage <= size;) {
      SegmentHeader header;
      if (!ReadAt(fd_, name_, offset, &header, sizeof header) || !HeaderIsGood(header, offset, identity_)) {
        // Damaged, or not written to the end: the next segment begins on some later page.
        offset += kPage;
        continue;
      }
      SegmentFooter footer;
      const Places places(identity_, header);
      if (!ReadAt(fd_, name_, offset + places.footer, &footer, sizeof footer) || !FooterIsGood(footer, header)) {
        if (offset + header.bytes > slot.bytes) break;  // uncommitted
        check.damages.push_back({fmt::format("segment {}: footer", header.sequence), 0, 0});
      }
      if (header.first_block > next_block) {
        check.damages.push_back({fmt::format("the segment before block {}: header", header.first_block), next_block,
                                 header.first_block - next_block});
      }
      ScanSegment(header, places, check, each);
      next_block = header.first_block + header.blocks;
      offset += header.bytes;
      committed = offset;
    }
    if (slot.bytes > committed) {
      check.damages.push_back({fmt::format("the segment after block {}: header", next_block), next_block,
                               std::max<size_t>(slot.blocks, next_block) - next_block});
      committed = slot.bytes;
    }
    check.uncommitted_bytes = size > committed ? size - committed : 0;
    return check;
  }

 private:
  void ScanSegment(const SegmentHeader& header, const Places& places, MemoryCheck& check,
                   const std::function<void(const ScannedSegment&, const Records&)>& each) const {
    ScannedSegment segment;
    segment.header = header;
    const auto part = [&](uint64_t place, auto& out, size_t count, uint64_t checksum, const char* what) {
      out.resize(count);
      const size_t bytes = count * sizeof(out[0]);
      if (ReadAt(fd_, name_, header.offset + place, out.data(), bytes) && Hash(out.data(), bytes) == checksum) return;
      segment.whole_parts = false;
      check.damages.push_back(
          {fmt::format("segment {}: {}", header.sequence, what), header.first_block, header.blocks});
    };
    part(places.meta, segment.meta, header.meta_bytes, header.meta_checksum, "sources");
    part(places.spans, segment.spans, header.blocks, header.spans_checksum, "sources of blocks");
    part(places.tokens, segment.tokens, header.blocks * identity_.block.tokens, header.tokens_checksum, "tokens");
    part(places.landmarks, segment.landmarks, header.blocks * identity_.landmark_floats(), header.landmarks_checksum,
         "landmarks");
    // The header vouches for how many there are, but where the spans are damaged not for whose they are.
    std::vector<uint32_t> first = RecordPlaces(identity_, segment.spans);
    const size_t searched = identity_.records() - identity_.local_records();
    const size_t all = header.blocks * searched + header.local_blocks * identity_.local_records();
    part(places.table, segment.table, all, header.table_checksum, "checksums");
    if (segment.whole_parts && first.back() != all) {
      segment.whole_parts = false;
      check.damages.push_back(
          {fmt::format("segment {}: number of records", header.sequence), header.first_block, header.blocks});
    }
    // One at a time unless somebody wants them all.
    Records records(each ? all : 1, std::vector<std::byte>(identity_.record_bytes()));
    for (size_t b = 0; b < header.blocks; ++b) {
      bool good = segment.whole_parts;
      for (size_t index = segment.whole_parts ? first[b] : all; index < (segment.whole_parts ? first[b + 1] : all);
           ++index) {
        const size_t left_out = segment.spans[b].keeps_local != 0 ? 0 : identity_.local_records();
        const size_t r = index - first[b] + left_out;
        std::vector<std::byte>& record = records[each ? index : 0];
        const bool readable =
            ReadAt(fd_, name_, header.offset + places.records + index * record.size(), record.data(), record.size());
        if (readable && Hash(record.data(), record.size()) == segment.table[index]) continue;
        good = false;
        check.damages.push_back({fmt::format("segment {}: record of block {}, layer {}, head {}", header.sequence,
                                             header.first_block + b, r / identity_.kv_heads, r % identity_.kv_heads),
                                 header.first_block + b, 1});
      }
      segment.block_is_good.push_back(good);
      check.good_blocks += good;
    }
    if (each) each(segment, records);
  }

  std::string name_;
  int fd_;
  std::shared_ptr<void> closer_;
  MemoryIdentity identity_;
};

}  // namespace

MemoryCheck MemoryCheck::Run(const std::filesystem::path& path) { return DamageScan(path).Walk(nullptr); }

size_t RepairMemory(const std::filesystem::path& from, const std::filesystem::path& to) {
  DamageScan scan(from);
  MemoryWriter writer(to, scan.identity());
  if (writer.blocks() != 0) Fail("'{}' exists and is not empty; name a new file for the repaired memory", to.string());
  const size_t length = scan.identity().block.tokens;
  const size_t floats = scan.identity().landmark_floats();
  size_t lost = 0;
  size_t next_block = 0;
  std::vector<MemorySource> sources;
  const MemoryCheck check = scan.Walk([&](const ScannedSegment& segment, const DamageScan::Records& records) {
    lost += segment.header.first_block - std::min<size_t>(next_block, segment.header.first_block);
    next_block = segment.header.first_block + segment.header.blocks;
    MemorySegment good;
    const std::vector<uint32_t> first = RecordPlaces(scan.identity(), segment.spans);
    if (segment.whole_parts) sources = SourcesFromJson(segment.meta, from.string());
    for (size_t b = 0; b < segment.header.blocks; ++b) {
      if (!segment.block_is_good[b] || segment.spans[b].source >= sources.size()) {
        ++lost;
        continue;
      }
      good.spans.push_back(segment.spans[b]);
      good.tokens.insert(good.tokens.end(), segment.tokens.begin() + static_cast<ptrdiff_t>(b * length),
                         segment.tokens.begin() + static_cast<ptrdiff_t>((b + 1) * length));
      good.landmarks.insert(good.landmarks.end(), segment.landmarks.begin() + static_cast<ptrdiff_t>(b * floats),
                            segment.landmarks.begin() + static_cast<ptrdiff_t>((b + 1) * floats));
      for (size_t index = first[b]; index < first[b + 1]; ++index) good.records.push_back(records[index].data());
    }
    good.sources = sources;
    writer.Commit(good);
  });
  for (const MemoryDamage& damage : check.damages) {
    if (damage.first_block >= next_block) lost += damage.blocks;  // beyond the last segment that could be found
  }
  return lost;
}

}  // namespace cairn