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
  std::vector<double> frequencies = {};  // angle per position of each rotary pair, [dim / 2]; empty: by the base
  bool exact_positions = false;          // true positions instead of slots
  // With grouped queries, the heads of a group choose separately; true: they choose together, by the maximum of their
  // softmax values.
  bool group_chooses_together = false;
  // With a context-miss token: where its share c of the home group is below this, the memory is not read.
  double miss_cutoff = 0;
};

// What another implementation did with a chunk. Where its choices are as good as the reference's but for rounding, the
// reference follows them, so that both can be compared although they rounded differently.
struct ForeignChoices {
  size_t chosen = 0;              // k'
  std::vector<int32_t> blocks{};  // [time][query_head][k'], numbered from the start of the text, ascending;
                                  // negative where the context-miss token kept a query from choosing
  std::vector<uint8_t> read{};    // [time][query_head]: whether the memory was read; matters with a context-miss token
  double tolerance = 0;           // of scores, their softmax's logarithm, and the context-miss token's share
};

// How a chunk's choices compare, each of a row and head.
struct ChoiceComparison {
  size_t choices = 0;
  size_t ties = 0;       // other blocks of the same score
  size_t near_ties = 0;  // other blocks, or another side of the cutoff, within the tolerance
  size_t wrong = 0;      // beyond it: not followed

  void operator+=(const ChoiceComparison& other) {
    choices += other.choices;
    ties += other.ties;
    near_ties += other.near_ties;
    wrong += other.wrong;
  }
};

// T is float or double. Feed() takes one chunk after the other; everything fed stays in the object. A copy goes its own
// way.
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
    const ForeignChoices* follow = nullptr;
  };
  void Feed(const Chunk& chunk);

  void set_top_k(size_t k) { options_.top_k = k; }
  // Back to `blocks` finished blocks, evicted ones included, and `unfinished` tokens. They must still be there.
  void Truncate(size_t blocks, size_t unfinished);

  size_t blocks() const { return first_block_ + memory_.size(); }  // finished blocks so far, evicted ones included
  size_t first_block() const { return first_block_; }              // the oldest that is kept
  size_t unfinished() const { return unfinished_; }
  size_t position() const { return blocks() * (options_.block_length + 1) + unfinished_; }

  // Of the last chunk: [time][query_head], blocks in text order.
  const std::vector<std::vector<BlockRead>>& reads() const { return reads_; }
  const ChoiceComparison& comparison() const { return comparison_; }  // with what it followed

 private:
  // Keys and values of a stretch of tokens, [token][kv_head][dim].
  struct Tokens {
    std::vector<T> k;
    std::vector<T> v;
  };

  void PreparePositions(size_t count);
  void Rotate(const T* from, ptrdiff_t position, T* to) const;
  T Score(const T* rotated_query, const T* key, ptrdiff_t position) const;
  std::vector<T> LandmarkScores(const T* q, size_t position, size_t kv_head, size_t top_k) const;
  std::vector<size_t> TakeLargest(const std::vector<T>& values, size_t k, bool alone) const;
  bool Follow(const ForeignChoices& foreign, size_t cell, const std::vector<T>& values, std::vector<size_t>& chosen);
  std::vector<std::vector<size_t>> Choose(const Chunk& chunk, size_t start, size_t top_k);

  MemoryReferenceOptions options_;
  std::vector<Tokens> memory_;  // finished blocks, landmark last
  size_t first_block_ = 0;      // number of the oldest block kept
  Tokens carried_;              // the unfinished block
  size_t unfinished_ = 0;       // its tokens
  std::vector<std::vector<BlockRead>> reads_;
  ChoiceComparison comparison_;
  std::vector<T> cosine_, sine_;  // of positions -1, 0, 1, ..., [position][dim / 2]
};

// Rotates one head's vector to `position`, naively.
template <typename T>
void RotateReference(const T* from, size_t dim, double position, double base, RotaryLayout layout, T* to);

}  // namespace cairn
