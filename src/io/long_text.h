// A text of any length that is read piece by piece, and more than once, without standing in RAM as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace cairn {

// Move-only. Reading is thread-safe.
class LongText {
 public:
  // A file, as long as it is now: what is appended later is not seen.
  static LongText OfFile(const std::filesystem::path& path);
  // Everything that comes out of a descriptor (a pipe, standard input), by way of a temporary file without a name.
  static LongText OfStream(int fd, const std::string& name);
  // Bytes that live elsewhere and outlive this.
  static LongText OfBytes(std::string_view bytes);

  LongText(LongText&& other) noexcept;
  LongText& operator=(LongText&& other) noexcept;
  ~LongText();

  uint64_t size() const { return size_; }
  // The bytes from `offset` on, as many as `out` takes. Throws Error when the file has become shorter.
  void Read(uint64_t offset, std::span<char> out) const;
  // XXH3, 64 bits, of all bytes.
  uint64_t Checksum() const;

 private:
  LongText() = default;

  std::string name_;
  int fd_ = -1;  // -1: bytes_
  std::string_view bytes_;
  uint64_t size_ = 0;
};

}  // namespace cairn
