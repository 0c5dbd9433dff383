// How the fused kernel cuts its work: tile sizes, scratch layout, and the arguments of one piece of work. Shared by the
// dispatching code (fused.cc) and the code that is compiled per instruction set (fused_*-inl.h).
#pragma once

#include <algorithm>
#include <cstddef>

#include "attention/fused.h"
#include "base/arena.h"
#include "base/checked.h"

namespace cairn {

inline constexpr size_t kTileQueries = 128;  // columns of every transposed tile
inline constexpr size_t kColumnGroup = 16;   // columns are left out in groups of this
inline constexpr size_t kTileKeys = 128;     // rows of a score tile at most; a longer block takes several
inline constexpr size_t kLongTileKeys = 60;  // rows of each tile of such a block: whole groups of the product's rows
inline constexpr size_t kMergedKeys = 64;    // short earlier blocks share a tile up to this many rows

// Scores beyond this magnitude are clamped, so that differences stay finite. Also stands for "nothing seen yet".
inline constexpr float kScoreLimit = 1e37f;

// Whether one head's keys and values are more than a core's own cache holds: the next tile's are then fetched ahead.
inline bool FetchesAhead(const AttentionShape& shape) {
  return shape.keys() * shape.dim * 2 * sizeof(float) > (1u << 20);
}

inline size_t PaddedDim(const AttentionShape& shape) { return RoundUp(shape.dim, kColumnGroup); }

// A column state is one float for each query of the tile.
struct ForwardScratch {
  float* qt;      // [dim][128] queries, transposed, scaled to log-2 scores
  float* scores;  // [kTileKeys + 1][128], then weights
  float* out;     // [dim][128] home group's running output
  float* block;   // [dim][128] running output inside a block of several tiles
  float* miss;    // [dim][128] the same of the controlled landmarks' group
  float* max;     // [128] running maximum of the home group
  float* sum;     // [128]
  float* miss_max;
  float* miss_sum;
  float* miss_score;
  float* block_max;
  float* block_sum;
  float* keep;       // [128] factor of the old output when a tile is added
  float* add;        // [128] factor of the new product
  float* block_add;  // [kMergedKeys][128] the same for each of several merged blocks

  ForwardScratch(const AttentionShape& shape, bool with_miss, ArenaCursor& cursor) {
    const size_t tile = shape.dim * kTileQueries;
    qt = cursor.Take(tile);
    scores = cursor.Take((kTileKeys + 1) * kTileQueries);
    out = cursor.Take(tile);
    block = cursor.Take(tile);
    miss = cursor.Take(with_miss ? tile : 0);
    for (float** state : {&max, &sum, &miss_max, &miss_sum, &miss_score, &block_max, &block_sum, &keep, &add}) {
      *state = cursor.Take(kTileQueries);
    }
    block_add = cursor.Take(kMergedKeys * kTileQueries);
  }
};

struct BackwardScratch {
  float* qt;      // [dim][128] queries, transposed, scaled to log-2 scores
  float* dot;     // [dim][128] output gradients, transposed
  float* qn;      // [128][padded dim] queries times the score scale
  float* don;     // [128][padded dim] output gradients
  float* dqt;     // [dim][128]
  float* scores;  // [kTileKeys + 1][128], then weights
  float* grads;   // [kTileKeys + 1][128] dL/dweight, then dL/dscore
  float* max;     // saved column states of the tile
  float* inverse;
  float* home_delta;  // do . o
  float* miss_max;
  float* miss_inverse;
  float* miss_share;  // c
  float* miss_delta;  // do . (what the controlled group alone gives)
  float* miss_grad;   // dL/d(score of the context-miss token)
  float* block_max;   // statistics of the block under work
  float* block_sum;
  float* block_delta;

  BackwardScratch(const AttentionShape& shape, ArenaCursor& cursor) {
    const size_t tile = shape.dim * kTileQueries;
    const size_t padded = PaddedDim(shape) * kTileQueries;
    qt = cursor.Take(tile);
    dot = cursor.Take(tile);
    qn = cursor.Take(padded);
    don = cursor.Take(padded);
    dqt = cursor.Take(tile);
    scores = cursor.Take((kTileKeys + 1) * kTileQueries);
    grads = cursor.Take((kTileKeys + 1) * kTileQueries);
    for (float** state : {&max, &inverse, &home_delta, &miss_max, &miss_inverse, &miss_share, &miss_delta, &miss_grad,
                          &block_max, &block_sum, &block_delta}) {
      *state = cursor.Take(kTileQueries);
    }
  }
};

// The tile of queries [first, first + count) of one head.
struct QueryTile {
  size_t batch;
  size_t head;
  size_t first;
  size_t count;
};

struct ForwardJob {
  const AttentionShape& shape;
  const FusedInput& in;
  HeadsView<float> out;
  const FusedSaved* saved;
};

struct BackwardJob {
  const AttentionShape& shape;
  const FusedInput& in;
  HeadsView<const float> out;
  HeadsView<const float> dout;
  const FusedSaved& saved;
  HeadsView<float> dq;
};

// Where one piece of backward work adds its key and value gradients: rows of one KV head.
struct KeyGradients {
  float* dk;
  size_t dk_stride;
  float* dv;
  size_t dv_stride;
  float* dmiss;  // [dim] or null
};

// What the queries of a tile are to one block. Columns ascend in time, so each class is a range of columns:
// [0, home) do not see the block, [home, earlier) are inside it, [earlier, 128) come after it.
struct BlockColumns {
  size_t home;
  size_t earlier;
  size_t begin;  // `home` rounded down to a column group: where work starts

  bool mixed() const { return earlier > begin; }
};

inline BlockColumns ClassifyColumns(size_t first_position, size_t first_key, size_t stride) {
  const auto column_of = [&](size_t key) {
    return key <= first_position ? 0 : std::min(key - first_position, kTileQueries);
  };
  BlockColumns columns;
  columns.home = column_of(first_key);
  columns.earlier = column_of(first_key + stride);
  columns.begin = columns.home / kColumnGroup * kColumnGroup;
  return columns;
}

}  // namespace cairn
