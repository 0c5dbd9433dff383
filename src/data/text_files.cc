#include "data/text_files.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "io/file.h"

namespace cairn {

namespace {

constexpr size_t kProbe = size_t{64} << 10;

void Consider(const std::filesystem::path& path, TextFiles& found) {
  if (LooksBinary(path)) {
    spdlog::warn("skipped '{}': it is binary, not text", path.string());
    found.skipped.push_back(path);
    return;
  }
  found.bytes += std::filesystem::file_size(path);
  found.files.push_back(path);
}

std::vector<std::filesystem::path> FilesUnder(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> files;
  using Iterator = std::filesystem::recursive_directory_iterator;
  for (Iterator i(directory), end; i != end; ++i) {
    const bool hidden = i->path().filename().string().front() == '.';
    if (hidden && i->is_directory()) i.disable_recursion_pending();
    if (!hidden && i->is_regular_file()) files.push_back(i->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

bool LooksBinary(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto probe = file.bytes().subspan(0, std::min(kProbe, file.bytes().size()));
  size_t controls = 0;
  for (const std::byte b : probe) {
    const auto c = static_cast<uint8_t>(b);
    if (c == 0) return true;
    controls += (c < 0x20 && !(c >= 0x08 && c <= 0x0d) && c != 0x1b) || c == 0x7f;
  }
  return controls * 50 > probe.size();
}

TextFiles FindTextFiles(const std::vector<std::filesystem::path>& paths) {
  TextFiles found;
  for (const auto& path : paths) {
    try {
      if (!std::filesystem::exists(path)) Fail("'{}' does not exist; check the path", path.string());
      if (!std::filesystem::is_directory(path)) {
        Consider(path, found);
        continue;
      }
      for (const auto& file : FilesUnder(path)) Consider(file, found);
    } catch (const std::filesystem::filesystem_error& error) {
      Fail("cannot read '{}': {}", path.string(), error.what());
    }
  }
  if (found.files.empty()) Fail("there is no text file in what was named; name text files or directories of them");
  return found;
}

}  // namespace cairn
