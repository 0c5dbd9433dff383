#include "memory/memory_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"

namespace cairn {

namespace {

constexpr uint64_t kPage = 4096;                         // segments begin on pages
constexpr uint64_t kFileMagic = 0x314d454d4e524143;      // "CARNMEM1"
constexpr uint64_t kSegmentMagic = 0x31474553'4e524143;  // "CARNSEG1"
constexpr uint64_t kFooterMagic = 0x31444e45'4e524143;   // "CARNEND1"
constexpr uint64_t kSlotMagic = 0x3154494d'4e524143;     // "CARNMIT1"
constexpr uint32_t kVersion = 1;
constexpr uint64_t kSlotOffset[2] = {kPage, 2 * kPage};  // the two commit slots, each on a page of its own
constexpr uint64_t kFirstSegment = 3 * kPage;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;

uint64_t Hash(const void* data, size_t size) { return XXH3_64bits(data, size); }

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
  uint32_t reserved;
  uint64_t sequence;  // 1, 2, 3, ...
  uint64_t offset;    // of this header in the file
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

  Places(const MemoryIdentity& identity, uint64_t blocks, uint64_t meta_bytes) {
    const auto align = [](uint64_t x) { return RoundUp(x, 64); };
    meta = align(sizeof(SegmentHeader));
    spans = align(meta + meta_bytes);
    tokens = align(spans + blocks * sizeof(BlockSpan));
    landmarks = align(tokens + blocks * identity.block.tokens * sizeof(int32_t));
    table = align(landmarks + blocks * identity.landmark_floats() * sizeof(float));
    records = RoundUp(table + blocks * identity.layers * sizeof(uint64_t), kPage);
    footer = align(records + blocks * identity.layers * identity.record_bytes());
    end = RoundUp(footer + sizeof(SegmentFooter), kPage);
  }
};

// False at the end of the file; throws on errors of the disk.
bool ReadAt(int fd, const std::string& name, uint64_t offset, void* to, size_t size) {
  auto* out = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t n = pread(fd, out, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) Fail("cannot read '{}': {}", name, std::strerror(errno));
    if (n == 0) return false;
    out += n;
    offset += static_cast<uint64_t>(n);
    size -= static_cast<size_t>(n);
  }
  return true;
}

uint64_t SizeOf(int fd, const std::string& name) {
  struct stat info;
  if (fstat(fd, &info) != 0) Fail("cannot read '{}': {}", name, std::strerror(errno));
  return static_cast<uint64_t>(info.st_size);
}

std::string IdentityToJson(const MemoryIdentity& identity) {
  nlohmann::ordered_json json;
  json["fingerprint"] = identity.fingerprint;
  json["model"] = identity.model.substr(0, 1000);
  json["layers"] = identity.layers;
  json["kv_heads"] = identity.kv_heads;
  json["dim"] = identity.block.dim;
  json["block_length"] = identity.block.tokens;
  json["format"] = NameOf(identity.block.format);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

MemoryIdentity IdentityFromJson(const std::string& text, const std::string& name) {
  const nlohmann::json json = ParseJson(text, name);
  MemoryIdentity identity;
  try {
    const auto size = [&](const char* key, uint64_t most) {
      const auto value = json.at(key).get<uint64_t>();
      if (value < 1 || value > most) Fail("'{}': {} = {} makes no sense; the memory is damaged", name, key, value);
      return static_cast<size_t>(value);
    };
    identity.fingerprint = json.at("fingerprint").get<std::string>();
    identity.model = json.at("model").get<std::string>();
    identity.layers = size("layers", 1 << 12);
    identity.kv_heads = size("kv_heads", 1 << 12);
    identity.block.dim = size("dim", 1 << 12);
    identity.block.tokens = size("block_length", 1 << 20);
    const auto format = BlockFormatNamed(json.at("format").get<std::string>());
    if (!format) Fail("'{}': unknown block format; use a newer cairn", name);
    identity.block.format = *format;
  } catch (const nlohmann::json::exception&) {
    Fail("'{}': the header lacks a field; the memory is damaged", name);
  }
  return identity;
}

std::string SourcesToJson(const std::vector<MemorySource>& sources) {
  nlohmann::json json = nlohmann::json::array();
  for (const MemorySource& source : sources) {
    json.push_back({{"name", source.name},
                    {"bytes", source.bytes},
                    {"checksum", source.checksum},
                    {"forgotten", source.forgotten},
                    {"complete", source.complete}});
  }
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<MemorySource> SourcesFromJson(const std::string& text, const std::string& name) {
  std::vector<MemorySource> sources;
  try {
    for (const auto& entry : ParseJson(text, name)) {
      sources.push_back({entry.at("name").get<std::string>(), entry.at("bytes").get<uint64_t>(),
                         entry.at("checksum").get<uint64_t>(), entry.at("forgotten").get<bool>(),
                         entry.at("complete").get<bool>()});
    }
  } catch (const nlohmann::json::exception&) {
    Fail("'{}': the list of sources is damaged; run cairn verify", name);
  }
  return sources;
}

bool HeaderIsGood(const SegmentHeader& header, uint64_t offset, const MemoryIdentity& identity) {
  if (header.magic != kSegmentMagic || header.version != kVersion || header.offset != offset) return false;
  if (header.checksum != Hash(&header, offsetof(SegmentHeader, checksum))) return false;
  return header.blocks < (uint64_t{1} << 32) && header.meta_bytes < (uint64_t{1} << 32) &&
         header.bytes == Places(identity, header.blocks, header.meta_bytes).end && header.bytes < kMostBytes;
}

bool FooterIsGood(const SegmentFooter& footer, const SegmentHeader& header) {
  return footer.magic == kFooterMagic && footer.sequence == header.sequence && footer.offset == header.offset &&
         footer.header_checksum == header.checksum &&
         footer.checksum == Hash(&footer, offsetof(SegmentFooter, checksum));
}

// The newest commit slot that is whole; bytes 0 when there is none.
CommitSlot ReadCommitSlots(int fd, const std::string& name, int* good = nullptr) {
  CommitSlot best{};
  int count = 0;
  for (const uint64_t offset : kSlotOffset) {
    CommitSlot slot;
    if (!ReadAt(fd, name, offset, &slot, sizeof slot)) continue;
    if (slot.magic != kSlotMagic || slot.checksum != Hash(&slot, offsetof(CommitSlot, checksum))) continue;
    ++count;
    if (slot.sequence >= best.sequence) best = slot;
  }
  if (good != nullptr) *good = count;
  return best;
}

FileHeader MakeFileHeader(const MemoryIdentity& identity) {
  FileHeader header;
  std::memset(&header, 0, sizeof header);
  const std::string json = IdentityToJson(identity);
  CAIRN_CHECK(json.size() <= sizeof header.json);
  header.magic = kFileMagic;
  header.version = kVersion;
  header.json_bytes = static_cast<uint32_t>(json.size());
  std::memcpy(header.json, json.data(), json.size());
  header.checksum = Hash(&header, offsetof(FileHeader, checksum));
  return header;
}

MemoryIdentity ReadIdentity(int fd, const std::string& name) {
  FileHeader header;
  if (!ReadAt(fd, name, 0, &header, sizeof header) || header.magic != kFileMagic) {
    Fail("'{}' is not a memory; cairn ingest makes one", name);
  }
  if (header.version != kVersion) {
    Fail("'{}' has format version {}, this cairn reads version {}; use the cairn that made it", name, header.version,
         kVersion);
  }
  if (header.checksum != Hash(&header, offsetof(FileHeader, checksum)) || header.json_bytes > sizeof header.json) {
    Fail("'{}': the header is damaged; restore the file from a copy", name);
  }
  return IdentityFromJson({header.json, header.json_bytes}, name);
}

int OpenFile(const std::filesystem::path& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (fd < 0) Fail("cannot open '{}': {}; check the path", path.string(), std::strerror(errno));
  return fd;
}

}  // namespace

struct MemoryFile::Segment {
  SegmentHeader header;
  Places places;
  std::vector<uint64_t> table;  // checksums of records, [block][layer]
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

void MemoryFile::ReadSegments() {
  // The slot is read first: what it promises must be found.
  const CommitSlot slot = ReadCommitSlots(fd_, name_);
  uint64_t offset = std::max(committed_bytes_, kFirstSegment);
  const size_t known = segments_.size();
  for (;;) {
    SegmentHeader header;
    SegmentFooter footer;
    const bool good = ReadAt(fd_, name_, offset, &header, sizeof header) && HeaderIsGood(header, offset, identity_) &&
                      ReadAt(fd_, name_, offset + Places(identity_, header.blocks, header.meta_bytes).footer, &footer,
                             sizeof footer) &&
                      FooterIsGood(footer, header);
    if (!good) break;
    if (header.sequence != segments_.size() + 1 || header.first_block != blocks_) {
      Fail("'{}': segment {} does not follow the one before; run cairn verify --repair", name_, segments_.size() + 1);
    }
    segments_.push_back({header, Places(identity_, header.blocks, header.meta_bytes), {}});
    blocks_ += header.blocks;
    offset += header.bytes;
  }
  committed_bytes_ = offset;
  if (slot.bytes > offset) {
    Fail("'{}': segment {} is damaged ({} blocks were committed before it); run cairn verify --repair", name_,
         segments_.size() + 1, blocks_);
  }
  spans_.reserve(blocks_);
  for (size_t s = known; s < segments_.size(); ++s) {
    Segment& segment = segments_[s];
    const SegmentHeader& header = segment.header;
    const auto part = [&](uint64_t place, void* to, size_t size, uint64_t checksum, const char* what) {
      if (!ReadAt(fd_, name_, header.offset + place, to, size) || Hash(to, size) != checksum) {
        Fail("'{}': the {} of segment {} are damaged; run cairn verify --repair", name_, what, s + 1);
      }
    };
    std::vector<BlockSpan> spans(header.blocks);
    part(segment.places.spans, spans.data(), spans.size() * sizeof(BlockSpan), header.spans_checksum,
         "sources of blocks");
    spans_.insert(spans_.end(), spans.begin(), spans.end());
    segment.table.resize(header.blocks * identity_.layers);
    part(segment.places.table, segment.table.data(), segment.table.size() * sizeof(uint64_t), header.table_checksum,
         "checksums");
    if (s + 1 == segments_.size()) {
      std::string text(header.meta_bytes, '\0');
      part(segment.places.meta, text.data(), text.size(), header.meta_checksum, "sources");
      sources_ = SourcesFromJson(text, name_);
    }
  }
  for (const BlockSpan& span : spans_) {
    if (span.source >= sources_.size() || span.padding > identity_.block.tokens) {
      Fail("'{}': a block names a source that is not there; run cairn verify --repair", name_);
    }
  }
}

const MemoryFile::Segment& MemoryFile::SegmentOf(size_t block) const {
  CAIRN_CHECK(block < blocks_);
  const auto after = std::upper_bound(segments_.begin(), segments_.end(), block,
                                      [](size_t b, const Segment& s) { return b < s.header.first_block; });
  // A segment without blocks begins where the next one does.
  auto segment = after - 1;
  while (segment->header.blocks == 0) --segment;
  return *segment;
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
  for (const Segment& segment : segments_) {
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

void MemoryFile::ReadRecord(size_t block, size_t layer, std::byte* out) const {
  CAIRN_CHECK(layer < identity_.layers);
  const Segment& segment = SegmentOf(block);
  const size_t index = (block - segment.header.first_block) * identity_.layers + layer;
  const size_t bytes = identity_.record_bytes();
  if (!ReadAt(fd_, name_, segment.header.offset + segment.places.records + index * bytes, out, bytes) ||
      Hash(out, bytes) != segment.table[index]) {
    Fail("'{}': layer {} of block {} is damaged; run cairn verify --repair", name_, layer, block);
  }
}

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
  CAIRN_CHECK(segment.records.size() == count * identity_.layers);
  const std::string meta = SourcesToJson(segment.sources);
  const Places places(identity_, count, meta.size());
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

  using Records = std::vector<std::vector<std::byte>>;  // [block][layer], of one segment
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
      const Places places(identity_, header.blocks, header.meta_bytes);
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
    part(places.table, segment.table, header.blocks * identity_.layers, header.table_checksum, "checksums");
    Records records(header.blocks * identity_.layers, std::vector<std::byte>(identity_.record_bytes()));
    for (size_t b = 0; b < header.blocks; ++b) {
      bool good = segment.whole_parts;
      for (size_t l = 0; l < identity_.layers; ++l) {
        const size_t index = b * identity_.layers + l;
        std::vector<std::byte>& record = records[index];
        const bool readable =
            ReadAt(fd_, name_, header.offset + places.records + index * record.size(), record.data(), record.size());
        if (!segment.whole_parts || (readable && Hash(record.data(), record.size()) == segment.table[index])) continue;
        good = false;
        check.damages.push_back(
            {fmt::format("segment {}: record of block {}, layer {}", header.sequence, header.first_block + b, l),
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
  const size_t layers = scan.identity().layers;
  const size_t length = scan.identity().block.tokens;
  const size_t floats = scan.identity().landmark_floats();
  size_t lost = 0;
  size_t next_block = 0;
  std::vector<MemorySource> sources;
  const MemoryCheck check = scan.Walk([&](const ScannedSegment& segment, const DamageScan::Records& records) {
    lost += segment.header.first_block - std::min<size_t>(next_block, segment.header.first_block);
    next_block = segment.header.first_block + segment.header.blocks;
    MemorySegment good;
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
      for (size_t l = 0; l < layers; ++l) good.records.push_back(records[b * layers + l].data());
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
