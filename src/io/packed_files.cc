#include "io/packed_files.h"

#include <lzma.h>
#include <zlib.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>

#include "base/error.h"
#include "io/file.h"

namespace cairn {

namespace {

constexpr std::string_view kXzMagic("\xfd\x37\x7a\x58\x5a\x00", 6);
constexpr std::string_view kGzipMagic("\x1f\x8b", 2);
constexpr size_t kTarBlock = 512;
constexpr size_t kStep = size_t{1} << 20;

bool IsTar(std::string_view bytes) { return bytes.size() >= kTarBlock && bytes.substr(257, 5) == "ustar"; }

[[noreturn]] void FailDamaged(const std::string& name) { Fail("'{}' is damaged; get it again", name); }

void CheckLimit(const std::string& name, size_t size, size_t limit) {
  if (size > limit) Fail("'{}' is too large: more than {} bytes when it is unpacked", name, limit);
}

std::string UnpackXzBytes(std::string_view packed, const std::string& name, size_t limit) {
  lzma_stream stream = LZMA_STREAM_INIT;
  const std::unique_ptr<lzma_stream, decltype(&lzma_end)> end(&stream, &lzma_end);
  if (lzma_stream_decoder(&stream, uint64_t{1} << 30, LZMA_CONCATENATED) != LZMA_OK) FailDamaged(name);
  stream.next_in = reinterpret_cast<const uint8_t*>(packed.data());
  stream.avail_in = packed.size();
  std::string bytes;
  for (;;) {
    const size_t before = bytes.size();
    bytes.resize(before + kStep);
    stream.next_out = reinterpret_cast<uint8_t*>(bytes.data() + before);
    stream.avail_out = kStep;
    const lzma_ret result = lzma_code(&stream, LZMA_FINISH);
    bytes.resize(before + kStep - stream.avail_out);
    CheckLimit(name, bytes.size(), limit);
    if (result == LZMA_STREAM_END) return bytes;
    if (result != LZMA_OK) FailDamaged(name);
  }
}

std::string UnpackGzipBytes(std::string_view packed, const std::string& name, size_t limit) {
  z_stream stream = {};
  if (inflateInit2(&stream, 15 + 16) != Z_OK) FailDamaged(name);
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> end(&stream, &inflateEnd);
  std::string bytes;
  // Input in steps, since its size is 32 bits wide here. A file may hold several streams one after the other.
  for (size_t taken = 0;;) {
    const size_t offered = std::min(packed.size() - taken, kStep);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + taken));
    stream.avail_in = static_cast<uInt>(offered);
    const size_t before = bytes.size();
    bytes.resize(before + kStep);
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + before);
    stream.avail_out = static_cast<uInt>(kStep);
    const int result = inflate(&stream, Z_NO_FLUSH);
    bytes.resize(before + kStep - stream.avail_out);
    taken += offered - stream.avail_in;
    CheckLimit(name, bytes.size(), limit);
    if (result == Z_STREAM_END) {
      if (taken == packed.size()) return bytes;
      if (inflateReset(&stream) != Z_OK) FailDamaged(name);
    } else if (result != Z_OK) {
      FailDamaged(name);
    }
  }
}

std::vector<PackedFile> ReadTar(std::string_view archive, const std::string& name) {
  std::vector<PackedFile> files;
  const auto field = [](std::string_view header, size_t at, size_t size) {
    const std::string_view text = header.substr(at, size);
    return std::string(text.substr(0, text.find('\0')));
  };
  for (size_t at = 0; at + kTarBlock <= archive.size();) {
    const std::string_view header = archive.substr(at, kTarBlock);
    if (header.find_first_not_of('\0') == std::string_view::npos) break;
    if (!IsTar(header)) FailDamaged(name);
    uint64_t size = 0;
    for (const char c : field(header, 124, 12)) {
      if (c == ' ') continue;
      if (c < '0' || c > '7' || size > (uint64_t{1} << 40)) FailDamaged(name);
      size = size * 8 + static_cast<uint64_t>(c - '0');
    }
    at += kTarBlock;
    if (size > archive.size() - at) FailDamaged(name);
    if (header[156] == '0' || header[156] == '\0') {
      const std::string prefix = field(header, 345, 155);
      const std::string entry = field(header, 0, 100);
      files.push_back(
          {header.substr(257, 6) == std::string_view("ustar\0", 6) && !prefix.empty() ? prefix + "/" + entry : entry,
           std::string(archive.substr(at, size))});
    }
    at += (size + kTarBlock - 1) / kTarBlock * kTarBlock;
  }
  if (files.empty()) Fail("'{}' is an archive without files", name);
  return files;
}

}  // namespace

bool LooksPacked(const std::filesystem::path& path) {
  const MappedFile file(path);
  const std::string_view bytes(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return bytes.starts_with(kXzMagic) || bytes.starts_with(kGzipMagic) || IsTar(bytes);
}

std::vector<PackedFile> ReadPackedFiles(const std::filesystem::path& path, size_t limit) {
  const MappedFile file(path);
  return UnpackFiles({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()}, path.string(), limit);
}

std::vector<PackedFile> UnpackFiles(std::string_view bytes, const std::string& name, size_t limit) {
  std::string unpacked;
  if (bytes.starts_with(kXzMagic)) {
    unpacked = UnpackXzBytes(bytes, name, limit);
  } else if (bytes.starts_with(kGzipMagic)) {
    unpacked = UnpackGzipBytes(bytes, name, limit);
  } else {
    CheckLimit(name, bytes.size(), limit);
    unpacked = bytes;
  }
  if (IsTar(unpacked)) return ReadTar(unpacked, name);
  return {{name, std::move(unpacked)}};
}

}  // namespace cairn
