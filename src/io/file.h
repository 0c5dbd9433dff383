// Files: read-only maps, and writing that replaces a file whole or not at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

namespace cairn {

// A file mapped read-only. Move-only; the bytes live as long as the object. Thread-safe to read. The file must
// not shrink meanwhile (the system would then kill the process on access).
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& name() const { return name_; }  // for messages

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string name_;
};

// Writes `path` by way of a temporary file beside it: `write` is given a sink that appends bytes; then the data is
// flushed to disk and renamed into place. When anything fails the old file is untouched and Error is thrown.
using ByteSink = std::function<void(std::span<const std::byte>)>;
void WriteFileAtomically(const std::filesystem::path& path, const std::function<void(const ByteSink&)>& write);

// Convenience for text.
void WriteFileAtomically(const std::filesystem::path& path, std::string_view text);

// The whole of a text file, at most `limit` bytes.
std::string ReadTextFile(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

}  // namespace cairn
