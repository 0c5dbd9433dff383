// Backward pass of one tile of queries: recomputes the weights block by block from what the forward pass saved and adds
// up dq in scratch, dk and dv where the job says. Compiled for every instruction set.
#if defined(CAIRN_ATTENTION_FUSED_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_FUSED_BACKWARD_INL_H
#undef CAIRN_ATTENTION_FUSED_BACKWARD_INL_H
#else
#define CAIRN_ATTENTION_FUSED_BACKWARD_INL_H
#endif

#include <hwy/highway.h>

#include "attention/fused_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

class BackwardTile {
 public:
  BackwardTile(const BackwardJob& job, const QueryTile& tile, const BackwardScratch& scratch, const KeyGradients& grads)
      : job_(job),
        shape_(job.shape),
        tile_(tile),
        s_(scratch),
        grads_(grads),
        kv_head_(tile.head / shape_.group()),
        first_position_(shape_.prefix + tile.first),
        end_(RoundUp(tile.count, kColumnGroup)),
        padded_dim_(PaddedDim(shape_)),
        fetches_ahead_(FetchesAhead(shape_)) {}

  void Run() {
    Start();
    const size_t stride = shape_.stride();
    const size_t last_position = first_position_ + tile_.count - 1;
    const size_t first_block = first_position_ / stride;  // blocks before it are earlier for every query
    const size_t last_block = last_position / stride;
    const size_t merged = job_.in.miss || stride > kMergedKeys ? 1 : kMergedKeys / stride;
    size_t block = 0;
    if (stride <= kTileKeys) {
      for (; block < first_block; block += merged) EarlierBlocks(block, std::min(merged, first_block - block));
      block = first_block;
    }
    for (; block <= last_block; ++block) OneBlock(block, last_position);
    Finish();
  }

 private:
  // How strongly a block counts for queries after it: share * 2^(landmark score - max) * inverse, and what its gate's
  // gradient is compared with.
  struct Gate {
    const float* max;
    const float* inverse;
    const float* share;  // null: 1
    const float* delta;
  };

  void Start() {
    const size_t dim = shape_.dim;
    const float* q = job_.in.q.Row(tile_.batch, tile_.head, tile_.first);
    const float* dout = job_.dout.Row(tile_.batch, tile_.head, tile_.first);
    const float* out = job_.out.Row(tile_.batch, tile_.head, tile_.first);
    const size_t row = (tile_.batch * shape_.query_heads + tile_.head) * shape_.time + tile_.first;
    const float scale = shape_.score_scale();
    LoadTransposed(q, job_.in.q.time_stride, tile_.count, dim, scale * kLog2E, s_.qt);
    LoadTransposed(dout, job_.dout.time_stride, tile_.count, dim, 1.0f, s_.dot);
    for (size_t c = 0; c < kTileQueries; ++c) {
      const bool used = c < tile_.count;
      float* qn = s_.qn + c * padded_dim_;
      float* don = s_.don + c * padded_dim_;
      if (used) {
        for (size_t i = 0; i < dim; ++i) qn[i] = scale * q[c * job_.in.q.time_stride + i];
        std::copy(dout + c * job_.dout.time_stride, dout + c * job_.dout.time_stride + dim, don);
      }
      std::fill(qn + (used ? dim : 0), qn + padded_dim_, 0.0f);
      std::fill(don + (used ? dim : 0), don + padded_dim_, 0.0f);
    }
    LoadState(job_.saved.home_max + row, s_.max);
    LoadState(job_.saved.home_inverse + row, s_.inverse);
    OutputDelta(out, job_.out.time_stride, s_.home_delta);
    if (job_.in.miss) {
      LoadState(job_.saved.miss_max + row, s_.miss_max);
      LoadState(job_.saved.miss_inverse + row, s_.miss_inverse);
      OutputDelta(job_.saved.miss_out + row * dim, dim, s_.miss_delta);
    }
    std::fill(s_.dqt, s_.dqt + dim * kTileQueries, 0.0f);
    for (size_t c = 0; c < kTileQueries; ++c) overflow_ |= std::abs(s_.max[c]) > 0.5f * kScoreLimit;
    if (job_.in.miss) MissToken();
  }

  // Columns past the last query are 0, and so add nothing to any gradient.
  void LoadState(const float* from, float* state) {
    std::copy(from, from + tile_.count, state);
    std::fill(state + tile_.count, state + kTileQueries, 0.0f);
  }

  // state[c] = out of query c . dout, summed in the order of ScoreTile: where the output is one value alone, the
  // gradient of its weight then vanishes exactly. Uses dqt as scratch.
  void OutputDelta(const float* out, size_t out_stride, float* state) {
    const TileTag d;
    LoadTransposed(out, out_stride, tile_.count, shape_.dim, 1.0f, s_.dqt);
    for (size_t c = 0; c < kTileQueries; c += hn::Lanes(d)) {
      TileVec sum = hn::Zero(d);
      for (size_t i = 0; i < shape_.dim; ++i) {
        sum = hn::MulAdd(hn::Load(d, s_.dqt + i * kTileQueries + c), hn::Load(d, s_.dot + i * kTileQueries + c), sum);
      }
      hn::Store(sum, d, state + c);
    }
  }

  const float* MissKey() const { return job_.in.miss.key + (tile_.batch * shape_.kv_heads + kv_head_) * shape_.dim; }

  // The context-miss token's own score: a member of the home group whose upstream gradient is miss_delta.
  void MissToken() {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    ScoreOneKey(MissKey(), s_.qt, shape_.dim, s_.miss_share);
    for (size_t c = 0; c < kTileQueries; c += lanes) {
      const TileVec score = hn::Load(d, s_.miss_share + c);
      const TileVec share = hn::Mul(Exp2(d, hn::Sub(score, hn::Load(d, s_.max + c))), hn::Load(d, s_.inverse + c));
      const TileVec delta = hn::Sub(hn::Load(d, s_.miss_delta + c), hn::Load(d, s_.home_delta + c));
      hn::Store(share, d, s_.miss_share + c);
      hn::Store(hn::Mul(share, delta), d, s_.miss_grad + c);
    }
    AddQueryGradient(MissKey(), 0, 1, s_.miss_grad, 0);
    AddRows(s_.miss_grad, s_.qn, 1, 0, grads_.dmiss, 0);
  }

  const float* Key(size_t index) const { return job_.in.k.Row(tile_.batch, kv_head_, index); }
  const float* Value(size_t index) const { return job_.in.v.Row(tile_.batch, kv_head_, index); }
  bool Controlled(size_t block) const {
    return job_.in.miss && job_.in.miss.controlled != nullptr &&
           job_.in.miss.controlled[tile_.batch * shape_.blocks() + block] != 0;
  }
  Gate GateOf(size_t block) const {
    if (Controlled(block)) return {s_.miss_max, s_.miss_inverse, s_.miss_share, s_.miss_delta};
    return {s_.max, s_.inverse, nullptr, s_.home_delta};
  }

  // dqt += keys^T . grads, over `rows` rows.
  void AddQueryGradient(const float* keys, size_t key_stride, size_t rows, const float* grads, size_t begin) {
    const TileTag d;
    float* dqt = s_.dqt;
    Gemm(GemmLeft{keys, 1, key_stride}, GemmRight{grads, kTileQueries}, GemmDepth{rows}, shape_.dim, begin, end_,
         [=](size_t i, size_t c, TileVec sum) HWY_ATTR {
           float* at = dqt + i * kTileQueries + c;
           hn::Store(hn::Add(hn::Load(d, at), sum), d, at);
         });
  }

  // to[r] += sum over columns c >= begin of weights[r][c] * rows[c]; `rows` is [128][padded dim].
  void AddRows(const float* weights, const float* rows, size_t count, size_t begin, float* to, size_t to_stride) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const size_t dim = shape_.dim;
    Gemm(GemmLeft{weights + begin, kTileQueries, 1}, GemmRight{rows + begin * padded_dim_, padded_dim_},
         GemmDepth{end_ - begin}, count, 0, RoundUp(dim, lanes), [=](size_t r, size_t i, TileVec sum) HWY_ATTR {
           float* at = to + r * to_stride + i;
           if (HWY_LIKELY(i + lanes <= dim)) {
             hn::StoreU(hn::Add(hn::LoadU(d, at), sum), d, at);
           } else {
             HWY_ALIGN float tail[16];
             hn::Store(sum, d, tail);
             for (size_t j = 0; i + j < dim; ++j) at[j] += tail[j];
           }
         });
  }

  // Weights and score gradients of the tile are ready: the three products that use them.
  void AddGradients(size_t first_key, size_t rows, size_t begin) {
    AddRows(s_.scores, s_.don, rows, begin, grads_.dv + first_key * grads_.dv_stride, grads_.dv_stride);
    AddRows(s_.grads, s_.qn, rows, begin, grads_.dk + first_key * grads_.dk_stride, grads_.dk_stride);
    AddQueryGradient(Key(first_key), job_.in.k.time_stride, rows, s_.grads, begin);
  }

  // Scores, and dL/dweight = value . dout.
  void LoadTile(size_t first_key, size_t rows, size_t begin) {
    ScoreTile(Key(first_key), job_.in.k.time_stride, rows, s_.qt, shape_.dim, begin, end_, s_.scores);
    ScoreTile(Value(first_key), job_.in.v.time_stride, rows, s_.dot, shape_.dim, begin, end_, s_.grads);
    if (HWY_UNLIKELY(overflow_)) ClampColumns(s_.scores, rows, begin, end_);
    const size_t next = first_key + rows;
    if (fetches_ahead_ && next + rows <= shape_.keys()) {
      FetchRows(Key(next), job_.in.k.time_stride, rows, shape_.dim);
      FetchRows(Value(next), job_.in.v.time_stride, rows, shape_.dim);
      FetchRows(grads_.dk + next * grads_.dk_stride, grads_.dk_stride, rows, shape_.dim);
      FetchRows(grads_.dv + next * grads_.dv_stride, grads_.dv_stride, rows, shape_.dim);
    }
  }

  // Replaces scores by 2^(score - max) and gives the sums of these and of these times dL/dweight.
  template <int kVecs, bool kMixed>
  HWY_INLINE void WeightPass(float* scores, const float* grads, const TileRows& rows, size_t column,
                             const TileVec (&max)[kVecs], TileVec (&sum)[kVecs], TileVec (&delta)[kVecs]) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    for (int n = 0; n < kVecs; ++n) sum[n] = delta[n] = hn::Zero(d);
    for (size_t r = 0; r < rows.count; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) {
        const size_t c = column + static_cast<size_t>(n) * lanes;
        float* at = scores + r * kTileQueries + c;
        TileVec p = Exp2(d, hn::Sub(hn::Load(d, at), max[n]));
        if constexpr (kMixed) p = hn::IfThenElseZero(SeesRow(ColumnIndex(c), rows, r), p);
        sum[n] = hn::Add(sum[n], p);
        delta[n] = hn::MulAdd(p, hn::Load(d, grads + r * kTileQueries + c), delta[n]);
        hn::Store(p, d, at);
      }
    }
  }

  // weight = factor * weight; grad = weight * (grad - delta).
  template <int kVecs>
  HWY_INLINE void GradientPass(float* scores, float* grads, size_t rows, size_t column, const TileVec (&factor)[kVecs],
                               const TileVec (&delta)[kVecs]) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    for (size_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
      for (int n = 0; n < kVecs; ++n) {
        const size_t at = r * kTileQueries + column + static_cast<size_t>(n) * lanes;
        const TileVec weight = hn::Mul(hn::Load(d, scores + at), factor[n]);
        hn::Store(weight, d, scores + at);
        hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, grads + at), delta[n])), d, grads + at);
      }
    }
  }

  // The gate of a block for one vector of queries after it.
  HWY_INLINE TileVec GateWeight(const Gate& gate, TileVec landmark_score, size_t c) {
    const TileTag d;
    TileVec weight =
        hn::Mul(Exp2(d, hn::Sub(ClampScore(landmark_score), hn::Load(d, gate.max + c))), hn::Load(d, gate.inverse + c));
    if (gate.share != nullptr) weight = hn::Mul(weight, hn::Load(d, gate.share + c));
    return weight;
  }

  // `count` whole blocks that come before every query of the tile.
  void EarlierBlocks(size_t first, size_t count) {
    const size_t stride = shape_.stride();
    const Gate gate = GateOf(first);
    LoadTile(first * stride, count * stride, 0);
    ForColumns(0, end_, [&](auto vecs, size_t column) HWY_ATTR {
      for (size_t b = 0; b < count; ++b) EarlierBlock<vecs()>(gate, b * stride * kTileQueries, column);
    });
    AddGradients(first * stride, count * stride, 0);
  }

  template <int kVecs>
  HWY_INLINE void EarlierBlock(const Gate& gate, size_t tile_offset, size_t column) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    float* scores = s_.scores + tile_offset;
    float* grads = s_.grads + tile_offset;
    const TileRows rows{shape_.block_length, 0};
    TileVec max[kVecs];
    TileVec factor[kVecs];
    TileVec delta[kVecs];
    MaxPass<kVecs, false>(scores, rows, column, max);
    WeightPass<kVecs, false>(scores, grads, rows, column, max, factor, delta);
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      const size_t landmark = shape_.block_length * kTileQueries + c;
      const TileVec inverse = hn::Div(hn::Set(d, 1.0f), factor[n]);
      const TileVec weight = GateWeight(gate, hn::Load(d, scores + landmark), c);
      delta[n] = hn::Mul(delta[n], inverse);
      factor[n] = hn::Mul(weight, inverse);
      hn::Store(hn::Zero(d), d, scores + landmark);
      hn::Store(hn::Mul(weight, hn::Sub(delta[n], hn::Load(d, gate.delta + c))), d, grads + landmark);
    }
    GradientPass<kVecs>(scores, grads, rows.count, column, factor, delta);
  }

  // A block that some queries of the tile stand in, or one too long for a single tile of keys.
  void OneBlock(size_t block, size_t last_position) {
    const size_t first_key = block * shape_.stride();
    const BlockColumns columns = ClassifyColumns(first_position_, first_key, shape_.stride());
    const size_t tokens = std::min(shape_.block_length, last_position + 1 - first_key);
    const bool gated = columns.earlier < tile_.count;  // some query comes after the block
    const Gate gate = GateOf(block);
    if (tokens <= kTileKeys) {
      LoadTile(first_key, tokens + gated, columns.begin);
      const TileRows rows = RowsFrom(first_key, tokens);
      ForColumns(columns.begin, end_,
                 [&](auto vecs, size_t column) HWY_ATTR { ShortBlock<vecs()>(gate, columns, rows, gated, column); });
      AddGradients(first_key, tokens + gated, columns.begin);
      return;
    }
    // A long block is read twice where queries come after it: their gradient needs the statistics of the whole first.
    if (gated) {
      LongStatistics(first_key, tokens, columns);
      LongGate(gate, first_key + shape_.block_length, columns);
    } else {
      std::copy(s_.max, s_.max + kTileQueries, s_.block_max);
      std::copy(s_.inverse, s_.inverse + kTileQueries, s_.block_sum);
      std::copy(s_.home_delta, s_.home_delta + kTileQueries, s_.block_delta);
    }
    for (size_t done = 0; done < tokens; done += kLongTileKeys) {
      const size_t count = std::min(tokens - done, kLongTileKeys);
      const size_t key = first_key + done;
      const size_t begin = ClassifyColumns(first_position_, key, 1).begin;
      const bool masked = key + count - 1 > first_position_;
      LoadTile(key, count, begin);
      const TileRows rows = RowsFrom(key, count);
      ForColumns(begin, end_, [&](auto vecs, size_t column) HWY_ATTR {
        if (masked) {
          LongTile<vecs(), true>(rows, column);
        } else {
          LongTile<vecs(), false>(rows, column);
        }
      });
      AddGradients(key, count, begin);
    }
  }

  TileRows RowsFrom(size_t key, size_t count) const {
    return {count, static_cast<ptrdiff_t>(key) - static_cast<ptrdiff_t>(first_position_)};
  }

  // Queries inside the block measure its tokens against the home group; queries after it, against the block.
  template <int kVecs>
  HWY_INLINE void ShortBlock(const Gate& gate, const BlockColumns& columns, const TileRows& rows, bool gated,
                             size_t column) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const TileVec boundary = hn::Set(d, static_cast<float>(columns.earlier));
    TileVec max[kVecs];
    TileVec factor[kVecs];
    TileVec delta[kVecs];
    MaxPass<kVecs, true>(s_.scores, rows, column, max);
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      max[n] = hn::IfThenElse(hn::Lt(ColumnIndex(c), boundary), hn::Load(d, s_.max + c), max[n]);
    }
    WeightPass<kVecs, true>(s_.scores, s_.grads, rows, column, max, factor, delta);
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      const auto inside = hn::Lt(ColumnIndex(c), boundary);
      if (gated) {
        const size_t landmark = rows.count * kTileQueries + c;
        const TileVec inverse = hn::Div(hn::Set(d, 1.0f), factor[n]);
        const TileVec weight = GateWeight(gate, hn::Load(d, s_.scores + landmark), c);
        delta[n] = hn::Mul(delta[n], inverse);
        factor[n] = hn::Mul(weight, inverse);
        hn::Store(hn::Zero(d), d, s_.scores + landmark);
        const TileVec gate_grad = hn::Mul(weight, hn::Sub(delta[n], hn::Load(d, gate.delta + c)));
        hn::Store(hn::IfThenZeroElse(inside, gate_grad), d, s_.grads + landmark);
      }
      factor[n] = hn::IfThenElse(inside, hn::Load(d, s_.inverse + c), factor[n]);
      delta[n] = hn::IfThenElse(inside, hn::Load(d, s_.home_delta + c), delta[n]);
    }
    GradientPass<kVecs>(s_.scores, s_.grads, rows.count, column, factor, delta);
  }

  // Maximum, sum and sum of weight times dL/dweight of a long block, for the queries after it.
  void LongStatistics(size_t first_key, size_t tokens, const BlockColumns& columns) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const size_t begin = columns.earlier / kColumnGroup * kColumnGroup;
    FillState(s_.block_max, -kScoreLimit);
    FillState(s_.block_sum, 0.0f);
    FillState(s_.block_delta, 0.0f);
    for (size_t done = 0; done < tokens; done += kLongTileKeys) {
      const size_t count = std::min(tokens - done, kLongTileKeys);
      LoadTile(first_key + done, count, begin);
      const TileRows rows{count, 0};
      for (size_t c = begin; c < end_; c += lanes) {
        TileVec max[1];
        TileVec sum[1];
        TileVec delta[1];
        MaxPass<1, false>(s_.scores, rows, c, max);
        const TileVec old_max = hn::Load(d, s_.block_max + c);
        max[0] = hn::Max(max[0], old_max);
        WeightPass<1, false>(s_.scores, s_.grads, rows, c, max, sum, delta);
        const TileVec keep = Exp2(d, hn::Sub(old_max, max[0]));
        hn::Store(max[0], d, s_.block_max + c);
        hn::Store(hn::MulAdd(hn::Load(d, s_.block_sum + c), keep, sum[0]), d, s_.block_sum + c);
        hn::Store(hn::MulAdd(hn::Load(d, s_.block_delta + c), keep, delta[0]), d, s_.block_delta + c);
      }
    }
  }

  // Turns the statistics into what LongTile needs (reference maximum, factor, delta), and does the landmark's gradient.
  void LongGate(const Gate& gate, size_t landmark_key, const BlockColumns& columns) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const TileVec boundary = hn::Set(d, static_cast<float>(columns.earlier));
    ScoreTile(Key(landmark_key), 0, 1, s_.qt, shape_.dim, columns.begin, end_, s_.scores);
    for (size_t c = columns.begin; c < end_; c += lanes) {
      const auto inside = hn::Lt(ColumnIndex(c), boundary);
      const TileVec weight = GateWeight(gate, hn::Load(d, s_.scores + c), c);
      const TileVec inverse = hn::Div(hn::Set(d, 1.0f), hn::Load(d, s_.block_sum + c));
      const TileVec delta = hn::Mul(hn::Load(d, s_.block_delta + c), inverse);
      const TileVec gate_grad = hn::Mul(weight, hn::Sub(delta, hn::Load(d, gate.delta + c)));
      hn::Store(hn::IfThenZeroElse(inside, gate_grad), d, s_.grads + c);
      hn::Store(hn::IfThenElse(inside, hn::Load(d, s_.max + c), hn::Load(d, s_.block_max + c)), d, s_.block_max + c);
      hn::Store(hn::IfThenElse(inside, hn::Load(d, s_.inverse + c), hn::Mul(weight, inverse)), d, s_.block_sum + c);
      hn::Store(hn::IfThenElse(inside, hn::Load(d, s_.home_delta + c), delta), d, s_.block_delta + c);
    }
    AddRows(s_.grads, s_.qn, 1, columns.begin, grads_.dk + landmark_key * grads_.dk_stride, 0);
    AddQueryGradient(Key(landmark_key), 0, 1, s_.grads, columns.begin);
  }

  template <int kVecs, bool kMixed>
  HWY_INLINE void LongTile(const TileRows& rows, size_t column) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    TileVec max[kVecs];
    TileVec factor[kVecs];
    TileVec delta[kVecs];
    TileVec unused_sum[kVecs];
    TileVec unused_delta[kVecs];
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      max[n] = hn::Load(d, s_.block_max + c);
      factor[n] = hn::Load(d, s_.block_sum + c);
      delta[n] = hn::Load(d, s_.block_delta + c);
    }
    WeightPass<kVecs, kMixed>(s_.scores, s_.grads, rows, column, max, unused_sum, unused_delta);
    GradientPass<kVecs>(s_.scores, s_.grads, rows.count, column, factor, delta);
  }

  void Finish() {
    FillState(s_.block_sum, shape_.score_scale());
    StoreTransposed(s_.dqt, tile_.count, shape_.dim, s_.block_sum, job_.dq.Row(tile_.batch, tile_.head, tile_.first),
                    job_.dq.time_stride);
  }

  static constexpr float kLog2E = 1.44269504089f;

  const BackwardJob& job_;
  const AttentionShape& shape_;
  const QueryTile& tile_;
  const BackwardScratch& s_;
  const KeyGradients& grads_;
  const size_t kv_head_;
  const size_t first_position_;  // key index of the tile's first query
  const size_t end_;             // columns in use, rounded up to a group
  const size_t padded_dim_;
  const bool fetches_ahead_;
  bool overflow_ = false;  // the forward pass clamped scores
};

void RunBackwardTile(const BackwardJob& job, const QueryTile& tile, const BackwardScratch& scratch,
                     const KeyGradients& grads) {
  BackwardTile(job, tile, scratch, grads).Run();
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
