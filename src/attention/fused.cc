// Cuts the work of the fused kernel into tiles, gives them to the threads, and dispatches to the code of the active
// instruction set.
#include "attention/fused.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/fused.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "attention/fused_backward-inl.h"
#include "attention/fused_forward-inl.h"

#if HWY_ONCE

#include <cmath>
#include <vector>

#include "base/aligned.h"
#include "base/error.h"
#include "base/threads.h"

namespace cairn {
namespace {

HWY_EXPORT(RunForwardTile);
HWY_EXPORT(RunBackwardTile);

size_t ForwardScratchFloats(const AttentionShape& shape, bool with_miss) {
  ArenaCursor cursor(nullptr);
  ForwardScratch(shape, with_miss, cursor);
  return cursor.used();
}

size_t BackwardScratchFloats(const AttentionShape& shape) {
  ArenaCursor cursor(nullptr);
  BackwardScratch(shape, cursor);
  return cursor.used();
}

// The pieces of a backward pass. A piece works on one KV head, and on all of its queries or on a range of them. Pieces
// of the same KV head add into key gradients of their own, which are summed in order afterwards: the result does not
// depend on which thread did what.
struct BackwardPlan {
  size_t heads;              // batch * kv_heads
  std::vector<size_t> cuts;  // query tiles of piece i of a head: [cuts[i], cuts[i + 1])
  size_t pieces() const { return cuts.size() - 1; }
};

BackwardPlan PlanBackward(const AttentionShape& shape) {
  const size_t tiles = DivideUp(shape.time, kTileQueries);
  const size_t threads = static_cast<size_t>(ThreadCount());
  BackwardPlan plan;
  plan.heads = shape.batch * shape.kv_heads;
  // Whole heads where they keep all threads busy to the end.
  const bool even = plan.heads % threads == 0 || plan.heads >= 8 * threads;
  const size_t pieces = even ? 1 : std::min({tiles, 2 * threads, size_t{16}});
  // The work up to a query grows with the keys it sees: prefix * t + t^2 / 2. Cut it into equal parts.
  const double prefix = static_cast<double>(shape.prefix);
  const double time = static_cast<double>(shape.time);
  const double total = prefix * time + 0.5 * time * time;
  plan.cuts.push_back(0);
  for (size_t i = 1; i < pieces; ++i) {
    const double part = total * static_cast<double>(i) / static_cast<double>(pieces);
    const double query = std::sqrt(prefix * prefix + 2 * part) - prefix;
    const size_t cut = std::min(tiles, static_cast<size_t>(query / static_cast<double>(kTileQueries) + 0.5));
    if (cut > plan.cuts.back()) plan.cuts.push_back(cut);
  }
  if (plan.cuts.back() < tiles) plan.cuts.push_back(tiles);
  return plan;
}

size_t PartialFloats(const AttentionShape& shape, const BackwardPlan& plan) {
  if (plan.pieces() == 1) return 0;
  return plan.heads * (plan.pieces() - 1) * 2 * shape.keys() * shape.dim;
}

void ZeroRows(float* data, size_t stride, size_t rows, size_t dim) {
  for (size_t r = 0; r < rows; ++r) std::fill(data + r * stride, data + r * stride + dim, 0.0f);
}

void AddRows(const float* from, float* to, size_t to_stride, size_t rows, size_t dim) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t i = 0; i < dim; ++i) to[r * to_stride + i] += from[r * dim + i];
  }
}

}  // namespace

size_t SavedFloats(const AttentionShape& shape, bool with_miss) {
  const size_t rows = RoundUp(shape.batch * shape.query_heads * shape.time, 16);
  return with_miss ? rows * (4 + shape.dim) : rows * 2;
}

FusedSaved LayOutSaved(const AttentionShape& shape, bool with_miss, float* memory) {
  const size_t rows = RoundUp(shape.batch * shape.query_heads * shape.time, 16);
  FusedSaved saved;
  saved.home_max = memory;
  saved.home_inverse = memory + rows;
  if (with_miss) {
    saved.miss_max = memory + 2 * rows;
    saved.miss_inverse = memory + 3 * rows;
    saved.miss_out = memory + 4 * rows;
  }
  return saved;
}

size_t ForwardScratchBytes(const AttentionShape& shape, bool with_miss) {
  return ForwardScratchFloats(shape, with_miss) * static_cast<size_t>(ThreadCount()) * sizeof(float);
}

size_t BackwardScratchBytes(const AttentionShape& shape, bool with_miss) {
  (void)with_miss;
  const size_t threads = static_cast<size_t>(ThreadCount());
  return (BackwardScratchFloats(shape) * threads + PartialFloats(shape, PlanBackward(shape))) * sizeof(float);
}

void FusedForward(const AttentionShape& shape, const FusedInput& in, HeadsView<float> out, const FusedSaved* saved) {
  CheckShape(shape);
  const bool with_miss = static_cast<bool>(in.miss);
  const size_t scratch_floats = ForwardScratchFloats(shape, with_miss);
  const size_t tiles = DivideUp(shape.time, kTileQueries);
  const size_t heads = shape.batch * shape.query_heads;
  // Kept by the calling thread: inference comes here for every layer of every chunk.
  thread_local AlignedBuffer<float> scratch;
  const size_t wanted = scratch_floats * static_cast<size_t>(ThreadCount());
  if (scratch.size() < wanted) scratch = AlignedBuffer<float>(wanted);
  float* const memory = scratch.data();
  const ForwardJob job{shape, in, out, saved};
  ParallelFor(tiles * heads, [&](size_t index, int thread) {
    // The last tiles see the most keys: they go first, so that the threads end together.
    const size_t tile_index = tiles - 1 - index / heads;
    const size_t head = index % heads;
    const size_t first = tile_index * kTileQueries;
    const QueryTile tile{head / shape.query_heads, head % shape.query_heads, first,
                         std::min(kTileQueries, shape.time - first)};
    ArenaCursor cursor(memory + scratch_floats * static_cast<size_t>(thread));
    HWY_DYNAMIC_DISPATCH(RunForwardTile)(job, tile, ForwardScratch(shape, with_miss, cursor));
  });
}

void FusedBackward(const AttentionShape& shape, const FusedInput& in, HeadsView<const float> out,
                   HeadsView<const float> dout, const FusedSaved& saved, const FusedGradients& gradients) {
  CheckShape(shape);
  const BackwardPlan plan = PlanBackward(shape);
  const size_t pieces = plan.pieces();
  const size_t dim = shape.dim;
  const size_t keys = shape.keys();
  const size_t scratch_floats = BackwardScratchFloats(shape);
  AlignedBuffer<float> scratch(scratch_floats * static_cast<size_t>(ThreadCount()));
  AlignedBuffer<float> partial(PartialFloats(shape, plan));
  AlignedBuffer<float> dmiss(in.miss ? plan.heads * pieces * dim : 0);
  const BackwardJob job{shape, in, out, dout, saved, gradients.dq};

  ParallelFor(plan.heads * pieces, [&](size_t index, int thread) {
    const size_t piece = pieces - 1 - index / plan.heads;
    const size_t kv = index % plan.heads;
    const size_t batch = kv / shape.kv_heads;
    const size_t kv_head = kv % shape.kv_heads;
    KeyGradients grads;
    if (piece == 0) {
      grads = {gradients.dk.Row(batch, kv_head, 0), gradients.dk.time_stride, gradients.dv.Row(batch, kv_head, 0),
               gradients.dv.time_stride, nullptr};
      ZeroRows(grads.dk, grads.dk_stride, keys, dim);
      ZeroRows(grads.dv, grads.dv_stride, keys, dim);
    } else {
      float* base = partial.data() + (kv * (pieces - 1) + piece - 1) * 2 * keys * dim;
      grads = {base, dim, base + keys * dim, dim, nullptr};
    }
    if (in.miss) grads.dmiss = dmiss.data() + (kv * pieces + piece) * dim;
    for (size_t member = 0; member < shape.group(); ++member) {
      for (size_t t = plan.cuts[piece]; t < plan.cuts[piece + 1]; ++t) {
        const size_t first = t * kTileQueries;
        const QueryTile tile{batch, kv_head * shape.group() + member, first,
                             std::min(kTileQueries, shape.time - first)};
        ArenaCursor cursor(scratch.data() + scratch_floats * static_cast<size_t>(thread));
        HWY_DYNAMIC_DISPATCH(RunBackwardTile)(job, tile, BackwardScratch(shape, cursor), grads);
      }
    }
  });

  if (pieces > 1) {
    ParallelFor(plan.heads, [&](size_t kv, int) {
      const size_t batch = kv / shape.kv_heads;
      const size_t kv_head = kv % shape.kv_heads;
      for (size_t piece = 1; piece < pieces; ++piece) {
        const float* base = partial.data() + (kv * (pieces - 1) + piece - 1) * 2 * keys * dim;
        AddRows(base, gradients.dk.Row(batch, kv_head, 0), gradients.dk.time_stride, keys, dim);
        AddRows(base + keys * dim, gradients.dv.Row(batch, kv_head, 0), gradients.dv.time_stride, keys, dim);
      }
    });
  }
  if (in.miss) {
    std::fill(gradients.dmiss, gradients.dmiss + plan.heads * dim, 0.0f);
    for (size_t kv = 0; kv < plan.heads; ++kv) {
      for (size_t piece = 0; piece < pieces; ++piece) {
        AddRows(dmiss.data() + (kv * pieces + piece) * dim, gradients.dmiss + kv * dim, dim, 1, dim);
      }
    }
  }
}

}  // namespace cairn
#endif  // HWY_ONCE
