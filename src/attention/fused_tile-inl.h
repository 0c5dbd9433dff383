// Pieces that the forward and the backward kernel share: transposed tiles and the passes over a tile of scores. Lanes
// are queries, so that every reduction of a softmax is vertical. Compiled for every instruction set.
#if defined(CAIRN_ATTENTION_FUSED_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_FUSED_TILE_INL_H
#undef CAIRN_ATTENTION_FUSED_TILE_INL_H
#else
#define CAIRN_ATTENTION_FUSED_TILE_INL_H
#endif

#include <hwy/highway.h>

#include "attention/fused_plan.h"
#include "kernels/broadcast_gemm-inl.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Calls body(integral_constant<vectors>, column) for column ranges that cover [begin, end): four vectors at a time for
// the instruction-level parallelism, then one.
template <class Body>
HWY_INLINE void ForColumns(size_t begin, size_t end, const Body& body) {
  const size_t lanes = hn::Lanes(TileTag());
  size_t column = begin;
  for (; column + 4 * lanes <= end; column += 4 * lanes) body(std::integral_constant<int, 4>(), column);
  for (; column < end; column += lanes) body(std::integral_constant<int, 1>(), column);
}

// to[i][c] = factor * from[c][i] for c < count; columns from count on become 0.
HWY_INLINE void LoadTransposed(const float* from, size_t from_stride, size_t count, size_t dim, float factor,
                               float* HWY_RESTRICT to) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const size_t lanes = hn::Lanes(d);
  const auto scale = hn::Set(d, factor);
  const auto offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(from_stride)));
  size_t c = 0;
  if (from_stride < (size_t{1} << 26)) {
    for (; c + lanes <= count; c += lanes) {
      const float* base = from + c * from_stride;
      for (size_t i = 0; i < dim; ++i) {
        hn::Store(hn::Mul(scale, hn::GatherIndex(d, base + i, offsets)), d, to + i * kTileQueries + c);
      }
    }
  }
  for (; c < kTileQueries; ++c) {
    for (size_t i = 0; i < dim; ++i) to[i * kTileQueries + c] = c < count ? factor * from[c * from_stride + i] : 0.0f;
  }
}

// to[c][i] = factors[c] * from[i][c] for c < count.
HWY_INLINE void StoreTransposed(const float* HWY_RESTRICT from, size_t count, size_t dim, const float* factors,
                                float* to, size_t to_stride) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const size_t lanes = hn::Lanes(d);
  const auto offsets = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(kTileQueries)));
  for (size_t c = 0; c < count; ++c) {
    float* row = to + c * to_stride;
    const auto factor = hn::Set(d, factors[c]);
    size_t i = 0;
    for (; i + lanes <= dim; i += lanes) {
      hn::StoreU(hn::Mul(factor, hn::GatherIndex(d, from + i * kTileQueries + c, offsets)), d, row + i);
    }
    for (; i < dim; ++i) row[i] = factors[c] * from[i * kTileQueries + c];
  }
}

HWY_INLINE void FillState(float* state, float value) {
  for (size_t c = 0; c < kTileQueries; ++c) state[c] = value;
}

// A stretch of rows of a score tile: ordinary tokens of one block.
struct TileRows {
  size_t count;
  // Row r stands at key index key_offset + r relative to the tile's first query, so that column c sees it when
  // c >= key_offset + r. Only looked at in mixed tiles.
  ptrdiff_t key_offset;
};

// Which lanes of the vector at `column` see row r. Offsets are clamped to what f32 holds exactly.
template <class V>
HWY_INLINE auto SeesRow(V columns, const TileRows& rows, size_t r) {
  const TileTag d;
  const ptrdiff_t first = std::clamp<ptrdiff_t>(rows.key_offset + static_cast<ptrdiff_t>(r), -1, kTileQueries);
  return hn::Ge(columns, hn::Set(d, static_cast<float>(first)));
}

HWY_INLINE TileVec ColumnIndex(size_t column) {
  const TileTag d;
  return hn::Iota(d, static_cast<float>(column));
}

// Asks for rows that the next tile will read.
HWY_INLINE void FetchRows(const float* rows, size_t stride, size_t count, size_t dim) {
  for (size_t r = 0; r < count; ++r) {
    for (size_t i = 0; i < dim; i += 16) __builtin_prefetch(rows + r * stride + i, 0, 2);
  }
}

// Clamps the scores of some columns: the rare path for scores that overflowed.
HWY_NOINLINE void ClampColumns(float* scores, size_t rows, size_t begin, size_t end) {
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = begin; c < end; ++c) {
      float& score = scores[r * kTileQueries + c];
      score = std::min(std::max(score, -kScoreLimit), kScoreLimit);
    }
  }
}

HWY_INLINE TileVec ClampScore(TileVec score) {
  const TileTag d;
  return hn::Min(hn::Max(score, hn::Set(d, -kScoreLimit)), hn::Set(d, kScoreLimit));
}

// Column maxima of the rows, -kScoreLimit where a lane sees none. Clamps scores that overflowed on the way.
template <int kVecs, bool kMixed>
HWY_INLINE void MaxPass(float* HWY_RESTRICT scores, const TileRows& rows, size_t column, TileVec (&max)[kVecs]) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const TileVec lowest = hn::Set(d, -kScoreLimit);
  for (int attempt = 0; attempt < 2; ++attempt) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n)
      max[n] = kMixed ? lowest : hn::Load(d, scores + column + static_cast<size_t>(n) * lanes);
    for (size_t r = 0; r < rows.count; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) {
        const size_t c = column + static_cast<size_t>(n) * lanes;
        TileVec s = hn::Load(d, scores + r * kTileQueries + c);
        if constexpr (kMixed) s = hn::IfThenElse(SeesRow(ColumnIndex(c), rows, r), s, lowest);
        max[n] = hn::Max(max[n], s);
      }
    }
    TileVec largest = hn::Abs(max[0]);
    for (int n = 1; n < kVecs; ++n) largest = hn::Max(largest, hn::Abs(max[n]));
    if (HWY_LIKELY(hn::AllFalse(d, hn::Gt(largest, hn::Set(d, kScoreLimit))))) return;
    ClampColumns(scores, rows.count, column, column + kVecs * lanes);
  }
}

// Replaces scores by 2^(score - max), 0 where a lane does not see the row, and gives the column sums.
template <int kVecs, bool kMixed>
HWY_INLINE void ExpPass(float* HWY_RESTRICT scores, const TileRows& rows, size_t column, const TileVec (&max)[kVecs],
                        TileVec (&sum)[kVecs]) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
#pragma GCC unroll 4
  for (int n = 0; n < kVecs; ++n) sum[n] = hn::Zero(d);
  for (size_t r = 0; r < rows.count; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      float* at = scores + r * kTileQueries + c;
      TileVec p = Exp2(d, hn::Sub(hn::Load(d, at), max[n]));
      if constexpr (kMixed) p = hn::IfThenElseZero(SeesRow(ColumnIndex(c), rows, r), p);
      sum[n] = hn::Add(sum[n], p);
      hn::Store(p, d, at);
    }
  }
}

// scores[r][c] = key r . query c for all rows of the tile, landmark rows included.
HWY_INLINE void ScoreTile(const float* keys, size_t key_stride, size_t rows, const float* qt, size_t dim, size_t begin,
                          size_t end, float* scores) {
  const TileTag d;
  Gemm(GemmLeft{keys, key_stride, 1}, GemmRight{qt, kTileQueries}, GemmDepth{dim}, rows, begin, end,
       [=](size_t r, size_t c, TileVec sum) HWY_ATTR { hn::Store(sum, d, scores + r * kTileQueries + c); });
}

// state[c] = key . query c, clamped.
HWY_INLINE void ScoreOneKey(const float* key, const float* qt, size_t dim, float* state) {
  ScoreTile(key, 0, 1, qt, dim, 0, kTileQueries, state);
  ClampColumns(state, 1, 0, kTileQueries);
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
