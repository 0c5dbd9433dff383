// Where tests find their files: a scratch directory of their own, and the shared folder where it exists.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace cairn {

// Where small files go that are synced often: a file system in memory where there is one with room, since a busy disk
// makes every sync wait. Else, and when TMPDIR is set, the usual place.
inline std::filesystem::path SmallFilesDirectory() {
  const std::filesystem::path memory = "/dev/shm";
  std::error_code error;
  const auto space = std::filesystem::space(memory, error);
  const bool usable = !error && space.available >= (std::uintmax_t{256} << 20) && access(memory.c_str(), W_OK) == 0;
  return usable && std::getenv("TMPDIR") == nullptr ? memory : std::filesystem::temp_directory_path();
}

// A directory that is removed again at the end of the test.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    std::string pattern = (parent / "cairn-test-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The folder of golden files and assets: CAIRN_SHARED, else ../shared beside the project. Empty when there is none.
inline std::filesystem::path SharedDirectory() {
  std::filesystem::path path = std::filesystem::path(CAIRN_SOURCE_DIR) / ".." / "shared";
  if (const char* text = std::getenv("CAIRN_SHARED"); text != nullptr && *text != '\0') path = text;
  return std::filesystem::is_directory(path) ? path : std::filesystem::path();
}

}  // namespace cairn

// First line of a test that needs the shared folder.
#define CAIRN_NEED_SHARED(variable)                                  \
  const std::filesystem::path variable = ::cairn::SharedDirectory(); \
  if (variable.empty()) GTEST_SKIP() << "no shared folder; set CAIRN_SHARED to the one that has golden/ and assets/"
