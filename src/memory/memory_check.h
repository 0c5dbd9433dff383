// Damaged memories: what is wrong with one, and saving what is good of it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace cairn {

// A part of a memory that is damaged.
struct MemoryDamage {
  std::string part;                    // "header", "commit slot", "segment 3: record of block 17, layer 2", ...
  size_t first_block = 0, blocks = 0;  // that it makes unreadable; none for parts that are kept twice
};

struct MemoryCheck {
  std::vector<MemoryDamage> damages;
  size_t good_blocks = 0;
  uint64_t uncommitted_bytes = 0;  // left behind by a killed writer; harmless

  // Reads every byte. Never throws for damage, only when the file cannot be opened or its identity is lost.
  static MemoryCheck Run(const std::filesystem::path& path);
};

// Writes what is good of `from` to `to`: blocks that are readable in all layers. Returns how many blocks were left out.
size_t RepairMemory(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace cairn
