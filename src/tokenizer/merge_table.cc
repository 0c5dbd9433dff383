#include "tokenizer/merge_table.h"

#include <bit>
#include <limits>
#include <queue>

namespace cairn {

namespace {

constexpr uint64_t kEmpty = std::numeric_limits<uint64_t>::max();
constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
// Up to here scanning all pairs again after each merge is faster than a heap.
constexpr size_t kShort = 40;

uint64_t KeyOf(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable(size_t expected) { Grow(std::bit_ceil(expected * 2 + 16)); }

size_t MergeTable::Slot(uint64_t key) const {
  const size_t mask = entries_.size() - 1;
  uint64_t hash = key * 0x9e3779b97f4a7c15u;
  hash ^= hash >> 32;
  size_t slot = hash & mask;
  while (entries_[slot].key != kEmpty && entries_[slot].key != key) slot = (slot + 1) & mask;
  return slot;
}

void MergeTable::Grow(size_t capacity) {
  std::vector<Entry> old(capacity, Entry{kEmpty, {-1, kNever}});
  old.swap(entries_);
  for (const Entry& entry : old) {
    if (entry.key != kEmpty) entries_[Slot(entry.key)] = entry;
  }
}

void MergeTable::Add(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = KeyOf(left, right);
  size_t slot = Slot(key);
  if (entries_[slot].key == kEmpty) {
    if (++used_ * 2 > entries_.size()) {
      Grow(entries_.size() * 2);
      slot = Slot(key);
    }
    entries_[slot].key = key;
  }
  entries_[slot].merge = merge;
}

MergeTable::Merge MergeTable::Find(int32_t left, int32_t right) const {
  return entries_[Slot(KeyOf(left, right))].merge;
}

void MergeTable::Apply(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  symbols.size() <= kShort ? ApplyShort(symbols) : ApplyLong(symbols);
}

void MergeTable::ApplyShort(std::vector<int32_t>& symbols) const {
  Merge pairs[kShort];  // pairs[i] is that of symbols i and i + 1
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = Find(symbols[i], symbols[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].merged < 0) break;
    symbols[best] = pairs[best].merged;
    for (size_t i = best + 1; i + 1 < n; ++i) symbols[i] = symbols[i + 1], pairs[i - 1] = pairs[i];
    --n;
    if (best > 0) pairs[best - 1] = Find(symbols[best - 1], symbols[best]);
    if (best + 1 < n) pairs[best] = Find(symbols[best], symbols[best + 1]);
  }
  symbols.resize(n);
}

void MergeTable::ApplyLong(std::vector<int32_t>& symbols) const {
  // A doubly linked list over the places of `symbols`; -1 marks a place that was merged away.
  const size_t n = symbols.size();
  std::vector<size_t> previous(n), next(n);
  for (size_t i = 0; i < n; ++i) previous[i] = i - 1, next[i] = i + 1;

  struct Candidate {
    int32_t rank;
    size_t place;
    int32_t left, right;  // the symbols it was made for; it is stale when they have changed
    int32_t merged;
  };
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.place > b.place;
  };
  std::priority_queue<Candidate, std::vector<Candidate>, decltype(later)> queue(later);
  const auto consider = [&](size_t place) {
    const Merge merge = Find(symbols[place], symbols[next[place]]);
    if (merge.merged >= 0) queue.push({merge.rank, place, symbols[place], symbols[next[place]], merge.merged});
  };
  for (size_t i = 0; i + 1 < n; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    const size_t right = next[top.place];
    if (symbols[top.place] != top.left || right == n || symbols[right] != top.right) continue;
    symbols[top.place] = top.merged;
    symbols[right] = -1;
    next[top.place] = next[right];
    if (next[right] != n) {
      previous[next[right]] = top.place;
      consider(top.place);
    }
    if (top.place > 0) consider(previous[top.place]);
  }
  size_t kept = 0;
  for (size_t i = 0; i < n; i = next[i]) symbols[kept++] = symbols[i];
  symbols.resize(kept);
}

}  // namespace cairn
