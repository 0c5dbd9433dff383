// Finds the text files that a command line names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace cairn {

struct TextFiles {
  std::vector<std::filesystem::path> files;    // in the order given; those of a directory sorted by path
  std::vector<std::filesystem::path> skipped;  // binary files
  uint64_t bytes = 0;                          // of `files`
};

// Directories are searched through; hidden files and directories in them are left out. Binary and compressed files are
// skipped, with a warning in the log. Throws Error when a path does not exist, or when no text is left.
TextFiles FindTextFiles(const std::vector<std::filesystem::path>& paths);

// By the first 64 KiB: a NUL byte or many control characters.
bool LooksBinary(const std::filesystem::path& path);

}  // namespace cairn
