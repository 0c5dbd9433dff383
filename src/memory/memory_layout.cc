#include "memory/memory_layout.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/json.h"

namespace cairn::memory_layout {

namespace {

std::string IdentityToJson(const MemoryIdentity& identity) {
  nlohmann::ordered_json json;
  json["fingerprint"] = identity.fingerprint;
  json["model"] = identity.model.substr(0, 1000);
  json["layers"] = identity.layers;
  json["kv_heads"] = identity.kv_heads;
  json["dim"] = identity.block.dim;
  json["block_length"] = identity.block.tokens;
  json["format"] = NameOf(identity.block.format);
  json["local_layers"] = identity.local_layers;
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
    identity.local_layers = json.at("local_layers").get<uint64_t>();
    if (identity.local_layers >= identity.layers) {
      Fail("'{}': {} local layers of {} make no sense; the memory is damaged", name, identity.local_layers,
           identity.layers);
    }
  } catch (const nlohmann::json::exception&) {
    Fail("'{}': the header lacks a field; the memory is damaged", name);
  }
  return identity;
}

}  // namespace

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
  return header.blocks < (uint64_t{1} << 32) && header.local_blocks <= header.blocks &&
         header.meta_bytes < (uint64_t{1} << 32) && header.bytes == Places(identity, header).end &&
         header.bytes < kMostBytes;
}

std::vector<uint32_t> RecordPlaces(const MemoryIdentity& identity, const std::vector<BlockSpan>& spans) {
  std::vector<uint32_t> places = {0};
  for (const BlockSpan& span : spans) {
    const size_t kept = identity.records() - (span.keeps_local != 0 ? 0 : identity.local_records());
    places.push_back(static_cast<uint32_t>(places.back() + kept));
  }
  return places;
}

bool FooterIsGood(const SegmentFooter& footer, const SegmentHeader& header) {
  return footer.magic == kFooterMagic && footer.sequence == header.sequence && footer.offset == header.offset &&
         footer.header_checksum == header.checksum &&
         footer.checksum == Hash(&footer, offsetof(SegmentFooter, checksum));
}

CommitSlot ReadCommitSlots(int fd, const std::string& name, int* good) {
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
    Fail(
        "'{}' has format version {}, this cairn reads version {}; ingest the texts again, or use the cairn that made "
        "it",
        name, header.version, kVersion);
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

}  // namespace cairn::memory_layout
