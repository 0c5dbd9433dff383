// The heart of byte-pair encoding, shared by every kind: a table of merges, and the loop that applies them best first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn {

// Immutable after the last Add; thread-safe to use then.
class MergeTable {
 public:
  struct Merge {
    int32_t merged;  // symbol that replaces the pair; -1 when the pair does not merge
    int32_t rank;    // smaller is earlier
  };

  // `expected` pairs are made room for; more may be added.
  explicit MergeTable(size_t expected);

  // A pair that is there already is replaced. Symbols are >= 0.
  void Add(int32_t left, int32_t right, Merge merge);
  Merge Find(int32_t left, int32_t right) const;

  // Merges the symbols in place: always the pair of the smallest rank, of equals the leftmost. O(n log n).
  void Apply(std::vector<int32_t>& symbols) const;

 private:
  struct Entry {
    uint64_t key;
    Merge merge;
  };
  void Grow(size_t capacity);
  size_t Slot(uint64_t key) const;
  void ApplyShort(std::vector<int32_t>& symbols) const;
  void ApplyLong(std::vector<int32_t>& symbols) const;

  std::vector<Entry> entries_;  // open addressing, a power of two
  size_t used_ = 0;
};

}  // namespace cairn
