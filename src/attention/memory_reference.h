// Naive attention with a memory (method, sections 3 and 4): a text is fed chunk by chunk; each chunk attends to itself,
// to the unfinished block carried over, and to blocks of the memory that its queries choose by their landmarks. Keys
// are rotated at use, one position at a time. The oracle of the inference engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "attention/granularity.h"
#include "attention/rotary.h"

namespace cairn {

struct MemoryReferenceOptions {
  size_t query_heads = 1;
  size_t kv_heads = 1;
  size_t dim = 1;  // even
  size_t block_length = 1;
  size_t top_k = 1;          // blocks to retrieve
  size_t memory_blocks = 0;  // blocks kept, the latest ones; 0: all
  Granularity granularity = Granularity::kHeadAndToken;
  RotaryLayout rotary = RotaryLayout::kInterleaved;
  double rotary_base = 10000;
  // With grouped queries, the heads of a group choose separately; true: they choose together, by the maximum of their
  // softmax values.
  bool group_chooses_together = false;
  // With a context-miss token: where its share c of the home group is below this, the memory is not read.
  double miss_cutoff = 0;
};

// T is float or double. Feed() takes one chunk after the other; everything fed stays in the object.
template <typename T>
class MemoryReference {
 public:
  explicit MemoryReference(const MemoryReferenceOptions& options);

  // q [time][query_head][dim], k and v [time][kv_head][dim], all before rotation, landmarks included: they must stand
  // where the block length says. out [time][query_head][dim]. `start` is the position of the chunk's first token; by
  // default (k' + 1) * S plus the length of the unfinished block, or the true position while the memory is empty.
  struct Chunk {
    size_t time;
    const T* q;
    const T* k;
    const T* v;
    T* out;
    std::optional<size_t> start;
    // Context-miss token, [kv_head][dim] before rotation, or null. It stands at position -1 and controls all landmarks
    // of the memory.
    const T* miss_key = nullptr;
  };
  void Feed(const Chunk& chunk);

  size_t blocks() const { return first_block_ + memory_.size(); }  // finished blocks so far, evicted ones included
  size_t position() const { return blocks() * (options_.block_length + 1) + unfinished_; }

  // Of the last chunk: [time][query_head], blocks in text order.
  const std::vector<std::vector<BlockRead>>& reads() const { return reads_; }

 private:
  // Keys and values of a stretch of tokens, [token][kv_head][dim].
  struct Tokens {
    std::vector<T> k;
    std::vector<T> v;
  };

  T Score(const T* rotated_query, const T* key, double position) const;
  std::vector<T> LandmarkScores(const T* q, size_t position, size_t kv_head, size_t top_k) const;
  std::vector<std::vector<size_t>> Choose(const Chunk& chunk, size_t start, size_t top_k) const;

  MemoryReferenceOptions options_;
  std::vector<Tokens> memory_;  // finished blocks, landmark last
  size_t first_block_ = 0;      // number of the oldest block kept
  Tokens carried_;              // the unfinished block
  size_t unfinished_ = 0;       // its tokens
  std::vector<std::vector<BlockRead>> reads_;
};

// Rotates one head's vector to `position`, naively.
template <typename T>
void RotateReference(const T* from, size_t dim, double position, double base, RotaryLayout layout, T* to);

}  // namespace cairn
