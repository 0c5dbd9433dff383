// Attention that reads chosen blocks of a memory, forward and backward: the training form of the method's sections 3
// and
// 4. Each query of each head chooses k blocks by their landmarks, which are mapped into slots, and reads them through
// their gates; its local attention (fused.h) shares the same home group. Queries and keys come rotated to their true
// positions; a block in another slot is read by rotating the query by the difference alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/fused.h"
#include "attention/rotary.h"

namespace cairn {

// One block of the memory. k and v point to its first token in the KV head 0, heads `head_stride` apart.
struct MemoryBlock {
  const float* k;
  const float* v;
  size_t time_stride;
  size_t head_stride;
  ptrdiff_t index;  // number of the block in its own text: its keys are rotated from there on
  // Where the gradients go, laid out as k and v; null: the block takes none.
  float* dk = nullptr;
  float* dv = nullptr;
  size_t gradient_time_stride = 0;
  size_t gradient_head_stride = 0;
  // The block's packs for the pass, one a KV head; null: made when they are needed, and made again by the next chunk.
  const std::byte* packs = nullptr;
};

// Rotations by whole blocks, -limit .. limit of them: all that reading from other slots needs. Immutable.
class BlockTurns {
 public:
  // `frequencies`: angle per position of each rotary pair, [dim / 2]; `stride`: positions of a block and its landmark.
  BlockTurns(std::span<const double> frequencies, RotaryLayout layout, size_t stride, size_t limit);

  // to = `from` turned on by `blocks` blocks, or back. In place is fine.
  void Apply(ptrdiff_t blocks, const float* from, float* to, bool back) const;

 private:
  RotaryLayout layout_;
  size_t half_;
  ptrdiff_t limit_;
  std::vector<float> cosine_, sine_;  // [2 limit + 1][half]
};

struct RetrievalShape {
  size_t query_heads = 1;
  size_t kv_heads = 1;
  size_t dim = 2;  // even
  size_t block_length = 1;
  size_t top_k = 1;
  const BlockTurns* turns = nullptr;

  size_t stride() const { return block_length + 1; }
};

// The queries of one row of a batch in one chunk, all heads. Views have one batch row; time counts from the chunk's
// start. The chunk starts on a block border.
struct RetrievalChunk {
  size_t time;
  ptrdiff_t first_block;                // number of the block that its first query stands in
  std::span<const MemoryBlock> memory;  // in text order: distractors first, the latest own block last
  HeadsView<const float> q;
  HeadsView<float> out;  // holds the local attention's output; becomes the whole
  // Home group's state of the local attention (see FusedSaved); becomes that of the whole. [query_head][time], heads
  // `state_stride` apart.
  float* home_max;
  float* home_inverse;
  size_t state_stride;
  // [query_head][time][top_k] indexes into memory; k' = min(top_k, memory.size()) of them are set. The first is
  // negative where the context-miss token kept the query from reading.
  int32_t* chosen;
  size_t distractors = 0;  // the first blocks of the memory that are
  // With a context-miss token all landmarks of the memory are under it: they are a softmax group of their own, whose
  // state this becomes, as FusedSaved has it. `home_max` and `home_inverse` then stay the local attention's, which the
  // token's key was part of.
  const float* miss_key = nullptr;  // rotated, [kv_head][dim]; null: no token
  float miss_cutoff = 0;            // a query whose share of the token is under it reads nothing
  float* miss_max = nullptr;
  float* miss_inverse = nullptr;
  float* miss_out = nullptr;  // [query_head][time][dim], heads `state_stride` rows apart
};

// How many of k' chosen blocks are distractors: half of them, less where there are too few, more where own blocks are
// too few. Own blocks so compete with the best distractors in every softmax, and never lose their place to them: a
// block that is not read gets no gradient, and would never learn to be found. A single choice is free.
size_t DistractorsChosen(size_t top_k, size_t distractors, size_t own);

// Keys and values of one KV head of a block in the layout of a pass, aligned to 64 bytes.
size_t RetrievalPackBytes(const RetrievalShape& shape, bool backward);
void PackBlock(const RetrievalShape& shape, const MemoryBlock& block, size_t kv_head, bool backward, std::byte* pack);

// The query heads of a chunk that share a KV head. KV heads are independent.
void RetrievalForward(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t kv_head);

struct RetrievalGradients {
  HeadsView<const float> dout;
  HeadsView<float> dq;  // added to
};

// The context-miss token's share of the home group of a query.
float MissShare(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t head, size_t time);

// `chunk` as RetrievalForward left it. Adds to dq and to the blocks' gradients. What the context-miss token's own score
// gets comes from FusedBackward, which finds the memory's state where its own controlled group would be.
void RetrievalBackward(const RetrievalShape& shape, const RetrievalChunk& chunk, size_t kv_head,
                       const RetrievalGradients& gradients);

}  // namespace cairn
