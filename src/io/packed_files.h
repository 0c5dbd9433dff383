// Texts in compressed files and archives: .gz, .xz, .tar and .tar.gz, .tar.xz, told by their content.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

struct PackedFile {
  std::string name;  // inside the archive; of the file itself where it is none
  std::string bytes;
};

// The regular files of an archive, or the one file itself, unpacked into RAM; a plain file is read as it is. At most
// `limit` bytes in all. Throws Error when the file is damaged or too large.
std::vector<PackedFile> ReadPackedFiles(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

// The same for the content of a file; `name` is used in messages and where it is no archive.
std::vector<PackedFile> UnpackFiles(std::string_view bytes, const std::string& name, size_t limit = size_t{1} << 30);

// By the first bytes: compressed, or an archive.
bool LooksPacked(const std::filesystem::path& path);

}  // namespace cairn
