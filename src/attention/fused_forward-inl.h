// Forward pass of one tile of queries. A block is folded into the home group as one key whose score is the landmark's
// and whose value is the block's own softmax average; for queries inside the block its tokens join the home group
// themselves. Compiled for every instruction set.
#if defined(CAIRN_ATTENTION_FUSED_FORWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_FUSED_FORWARD_INL_H
#undef CAIRN_ATTENTION_FUSED_FORWARD_INL_H
#else
#define CAIRN_ATTENTION_FUSED_FORWARD_INL_H
#endif

#include <hwy/highway.h>

#include "attention/fused_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

class ForwardTile {
 public:
  ForwardTile(const ForwardJob& job, const QueryTile& tile, const ForwardScratch& scratch)
      : job_(job),
        shape_(job.shape),
        tile_(tile),
        s_(scratch),
        kv_head_(tile.head / shape_.group()),
        first_position_(shape_.prefix + tile.first),
        end_(RoundUp(tile.count, kColumnGroup)),
        fetches_ahead_(FetchesAhead(shape_)) {}

  void Run() {
    Start();
    const size_t stride = shape_.stride();
    const size_t last_position = first_position_ + tile_.count - 1;
    const size_t first_block = first_position_ / stride;  // blocks before it are earlier for every query
    const size_t last_block = last_position / stride;
    const size_t merged = job_.in.miss || stride > kMergedKeys ? 1 : kMergedKeys / stride;
    if (stride <= kTileKeys) {
      for (size_t block = 0; block < first_block; block += merged) {
        EarlierBlocks(block, std::min(merged, first_block - block));
      }
      for (size_t block = first_block; block <= last_block; ++block) OneBlock(block, last_position);
    } else {
      for (size_t block = 0; block <= last_block; ++block) OneBlock(block, last_position);
    }
    Finish();
  }

 private:
  // One softmax group's running state: home, or the controlled landmarks.
  struct Group {
    float* max;
    float* sum;
    float* out;
  };

  void Start() {
    const float* q = job_.in.q.Row(tile_.batch, tile_.head, tile_.first);
    LoadTransposed(q, job_.in.q.time_stride, tile_.count, shape_.dim, shape_.score_scale() * kLog2E, s_.qt);
    FillState(s_.max, -kScoreLimit);
    FillState(s_.sum, 0.0f);
    std::fill(s_.out, s_.out + shape_.dim * kTileQueries, 0.0f);
    if (!job_.in.miss) return;
    // The context-miss token is the home group's first member; its value counts as zero.
    ScoreOneKey(job_.in.miss.key + (tile_.batch * shape_.kv_heads + kv_head_) * shape_.dim, s_.qt, shape_.dim,
                s_.miss_score);
    std::copy(s_.miss_score, s_.miss_score + kTileQueries, s_.max);
    FillState(s_.sum, 1.0f);
    FillState(s_.miss_max, -kScoreLimit);
    FillState(s_.miss_sum, 0.0f);
    std::fill(s_.miss, s_.miss + shape_.dim * kTileQueries, 0.0f);
  }

  const float* Key(size_t index) const { return job_.in.k.Row(tile_.batch, kv_head_, index); }
  const float* Value(size_t index) const { return job_.in.v.Row(tile_.batch, kv_head_, index); }
  void FetchAhead(size_t key, size_t count) const {
    if (!fetches_ahead_ || key + count > shape_.keys()) return;
    FetchRows(Key(key), job_.in.k.time_stride, count, shape_.dim);
    FetchRows(Value(key), job_.in.v.time_stride, count, shape_.dim);
  }
  Group HomeGroup() const { return {s_.max, s_.sum, s_.out}; }
  Group MissGroup() const { return {s_.miss_max, s_.miss_sum, s_.miss}; }
  bool Controlled(size_t block) const {
    return job_.in.miss && job_.in.miss.controlled != nullptr &&
           job_.in.miss.controlled[tile_.batch * shape_.blocks() + block] != 0;
  }

  // out = keep * out + add * (weights . values), for `depth` rows of the score tile.
  void AddValues(const float* values, const GemmDepth& depth, size_t begin, float* out) {
    const TileTag d;
    const float* keep = s_.keep;
    const float* add = s_.add;
    Gemm(GemmLeft{values, 1, job_.in.v.time_stride}, GemmRight{s_.scores, kTileQueries}, depth, shape_.dim, begin, end_,
         [=](size_t i, size_t c, TileVec sum) HWY_ATTR {
           float* at = out + i * kTileQueries + c;
           const TileVec kept = hn::Mul(hn::Load(d, at), hn::Load(d, keep + c));
           hn::Store(hn::MulAdd(sum, hn::Load(d, add + c), kept), d, at);
         });
  }

  // `count` whole blocks that come before every query of the tile, as one tile of keys.
  void EarlierBlocks(size_t first, size_t count) {
    const size_t length = shape_.block_length;
    const size_t stride = shape_.stride();
    ScoreTile(Key(first * stride), job_.in.k.time_stride, count * stride, s_.qt, shape_.dim, 0, end_, s_.scores);
    FetchAhead((first + count) * stride, count * stride);
    const Group group = Controlled(first) ? MissGroup() : HomeGroup();
    ForColumns(0, end_, [&](auto vecs, size_t column) HWY_ATTR {
      if (count == 1) {
        FoldOne<vecs()>(group, column);
      } else {
        FoldMerged<vecs()>(group, column, count);
      }
    });
    AddValues(Value(first * stride), GemmDepth{length, count, 1}, 0, group.out);
  }

  // One earlier block: its weights stay unscaled, `add` carries gate / sum.
  template <int kVecs>
  HWY_INLINE void FoldOne(const Group& group, size_t column) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    TileVec max[kVecs];
    TileVec sum[kVecs];
    const TileRows rows{shape_.block_length, 0};
    MaxPass<kVecs, false>(s_.scores, rows, column, max);
    ExpPass<kVecs, false>(s_.scores, rows, column, max, sum);
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      const TileVec gate_score = ClampScore(hn::Load(d, s_.scores + shape_.block_length * kTileQueries + c));
      const TileVec old_max = hn::Load(d, group.max + c);
      const TileVec new_max = hn::Max(old_max, gate_score);
      const TileVec keep = Exp2(d, hn::Sub(old_max, new_max));
      const TileVec gate = Exp2(d, hn::Sub(gate_score, new_max));
      hn::Store(keep, d, s_.keep + c);
      hn::Store(hn::Div(gate, sum[n]), d, s_.add + c);
      hn::Store(new_max, d, group.max + c);
      hn::Store(hn::MulAdd(hn::Load(d, group.sum + c), keep, gate), d, group.sum + c);
    }
  }

  // Several earlier blocks: each has its own factor, so it is multiplied into the weights.
  template <int kVecs>
  HWY_INLINE void FoldMerged(const Group& group, size_t column, size_t count) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    const size_t length = shape_.block_length;
    TileVec new_max[kVecs];
    for (int n = 0; n < kVecs; ++n) new_max[n] = hn::Load(d, group.max + column + static_cast<size_t>(n) * lanes);
    for (size_t b = 0; b < count; ++b) {
      float* scores = s_.scores + b * shape_.stride() * kTileQueries;
      TileVec max[kVecs];
      TileVec sum[kVecs];
      MaxPass<kVecs, false>(scores, TileRows{length, 0}, column, max);
      ExpPass<kVecs, false>(scores, TileRows{length, 0}, column, max, sum);
      for (int n = 0; n < kVecs; ++n) {
        const size_t c = column + static_cast<size_t>(n) * lanes;
        hn::Store(sum[n], d, s_.block_add + b * kTileQueries + c);
        new_max[n] = hn::Max(new_max[n], ClampScore(hn::Load(d, scores + length * kTileQueries + c)));
      }
    }
    TileVec total[kVecs];
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      const TileVec keep = Exp2(d, hn::Sub(hn::Load(d, group.max + c), new_max[n]));
      total[n] = hn::Mul(hn::Load(d, group.sum + c), keep);
      hn::Store(keep, d, s_.keep + c);
      hn::Store(hn::Set(d, 1.0f), d, s_.add + c);
      hn::Store(new_max[n], d, group.max + c);
    }
    for (size_t b = 0; b < count; ++b) {
      float* scores = s_.scores + b * shape_.stride() * kTileQueries;
      TileVec factor[kVecs];
      for (int n = 0; n < kVecs; ++n) {
        const size_t c = column + static_cast<size_t>(n) * lanes;
        const TileVec gate = Exp2(d, hn::Sub(ClampScore(hn::Load(d, scores + length * kTileQueries + c)), new_max[n]));
        total[n] = hn::Add(total[n], gate);
        factor[n] = hn::Div(gate, hn::Load(d, s_.block_add + b * kTileQueries + c));
      }
      for (size_t r = 0; r < length; ++r) {
        for (int n = 0; n < kVecs; ++n) {
          float* at = scores + r * kTileQueries + column + static_cast<size_t>(n) * lanes;
          hn::Store(hn::Mul(hn::Load(d, at), factor[n]), d, at);
        }
      }
    }
    for (int n = 0; n < kVecs; ++n) hn::Store(total[n], d, group.sum + column + static_cast<size_t>(n) * lanes);
  }

  // A block that some queries of the tile stand in, or one too long for a single tile: its own softmax runs over
  // several tiles of keys, then the whole is folded in.
  void OneBlock(size_t block, size_t last_position) {
    const size_t first_key = block * shape_.stride();
    const BlockColumns columns = ClassifyColumns(first_position_, first_key, shape_.stride());
    const size_t tokens = std::min(shape_.block_length, last_position + 1 - first_key);
    const bool gated = columns.earlier < tile_.count;  // some query comes after the block
    const bool controlled = gated && Controlled(block);
    const bool single = tokens <= kTileKeys;
    const size_t step = single ? kTileKeys : kLongTileKeys;
    FillState(s_.block_max, -kScoreLimit);
    FillState(s_.block_sum, 0.0f);
    const float* landmark = s_.scores;
    for (size_t done = 0; done < tokens; done += step) {
      const size_t count = std::min(tokens - done, step);
      const size_t key = first_key + done;
      // Queries before these keys see none of them; keys before the first query need no masks.
      const size_t begin = ClassifyColumns(first_position_, key, 1).begin;
      const bool masked = key + count - 1 > first_position_;
      const TileRows rows{count, static_cast<ptrdiff_t>(key) - static_cast<ptrdiff_t>(first_position_)};
      ScoreTile(Key(key), job_.in.k.time_stride, count + (single && gated), s_.qt, shape_.dim, begin, end_, s_.scores);
      FetchAhead(key + count, count);
      ForColumns(begin, end_, [&](auto vecs, size_t column) HWY_ATTR {
        if (masked) {
          GrowBlock<vecs(), true>(rows, column);
        } else {
          GrowBlock<vecs(), false>(rows, column);
        }
      });
      if (single) {
        landmark = s_.scores + count * kTileQueries;
        if (controlled) break;
        FoldStates(HomeGroup(), columns.home, kTileQueries, columns, landmark);
        AddValues(Value(key), GemmDepth{count}, begin, s_.out);
        return;
      }
      if (done == 0) std::fill(s_.block, s_.block + shape_.dim * kTileQueries, 0.0f);
      AddValues(Value(key), GemmDepth{count}, begin, s_.block);
    }
    if (controlled && single) {
      // Queries inside the block read it through the home group, those after it through the controlled one.
      FoldStates(HomeGroup(), columns.home, columns.earlier, columns, landmark);
      AddValues(Value(first_key), GemmDepth{tokens}, columns.begin, s_.out);
      FoldStates(MissGroup(), columns.earlier, kTileQueries, columns, landmark);
      AddValues(Value(first_key), GemmDepth{tokens}, columns.begin, s_.miss);
      return;
    }
    if (gated) {
      ScoreTile(Key(first_key + shape_.block_length), 0, 1, s_.qt, shape_.dim, columns.begin, end_, s_.scores);
    }
    FoldStates(HomeGroup(), columns.home, controlled ? columns.earlier : kTileQueries, columns, landmark);
    FoldOutput(s_.out, columns.begin);
    if (controlled) {
      FoldStates(MissGroup(), columns.earlier, kTileQueries, columns, landmark);
      FoldOutput(s_.miss, columns.begin);
    }
  }

  // Adds a tile of keys to the running softmax of the block.
  template <int kVecs, bool kMixed>
  HWY_INLINE void GrowBlock(const TileRows& rows, size_t column) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    TileVec max[kVecs];
    TileVec sum[kVecs];
    TileVec old_max[kVecs];
    MaxPass<kVecs, kMixed>(s_.scores, rows, column, max);
    for (int n = 0; n < kVecs; ++n) {
      old_max[n] = hn::Load(d, s_.block_max + column + static_cast<size_t>(n) * lanes);
      max[n] = hn::Max(max[n], old_max[n]);
    }
    ExpPass<kVecs, kMixed>(s_.scores, rows, column, max, sum);
    for (int n = 0; n < kVecs; ++n) {
      const size_t c = column + static_cast<size_t>(n) * lanes;
      const TileVec keep = Exp2(d, hn::Sub(old_max[n], max[n]));
      hn::Store(keep, d, s_.keep + c);
      hn::Store(hn::Set(d, 1.0f), d, s_.add + c);
      hn::Store(max[n], d, s_.block_max + c);
      hn::Store(hn::MulAdd(hn::Load(d, s_.block_sum + c), keep, sum[n]), d, s_.block_sum + c);
    }
  }

  // Folds the block's running softmax into the state of `group` for the columns [from, to): as one gated key for
  // queries after the block, as its tokens themselves for queries inside it. Leaves the factors of the outputs in
  // keep and add.
  void FoldStates(const Group& group, size_t from, size_t to, const BlockColumns& columns, const float* landmark) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    for (size_t c = columns.begin; c < end_; c += lanes) {
      const TileVec index = ColumnIndex(c);
      const auto takes_part = hn::And(hn::Ge(index, hn::Set(d, static_cast<float>(from))),
                                      hn::Lt(index, hn::Set(d, static_cast<float>(to))));
      const auto inside = hn::Lt(index, hn::Set(d, static_cast<float>(columns.earlier)));
      const TileVec block_max = hn::Load(d, s_.block_max + c);
      const TileVec block_sum = hn::Load(d, s_.block_sum + c);
      const TileVec old_max = hn::Load(d, group.max + c);
      // Where no query comes after the block, there is no landmark row; `inside` then hides what stands there.
      const TileVec score = hn::IfThenElse(inside, block_max, ClampScore(hn::Load(d, landmark + c)));
      const TileVec new_max = hn::IfThenElse(takes_part, hn::Max(old_max, score), old_max);
      const TileVec keep = Exp2(d, hn::Sub(old_max, new_max));
      const TileVec weight = hn::IfThenElseZero(takes_part, Exp2(d, hn::Sub(score, new_max)));
      const TileVec add = hn::IfThenElse(inside, weight, hn::Div(weight, block_sum));
      hn::Store(keep, d, s_.keep + c);
      hn::Store(hn::IfThenElseZero(takes_part, add), d, s_.add + c);
      hn::Store(new_max, d, group.max + c);
      const TileVec share = hn::IfThenElse(inside, hn::Mul(weight, block_sum), weight);
      hn::Store(hn::MulAdd(hn::Load(d, group.sum + c), keep, share), d, group.sum + c);
    }
  }

  // out = keep * out + add * (the block's output).
  void FoldOutput(float* out, size_t begin) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    for (size_t i = 0; i < shape_.dim; ++i) {
      for (size_t c = begin; c < end_; c += lanes) {
        float* at = out + i * kTileQueries + c;
        const TileVec kept = hn::Mul(hn::Load(d, at), hn::Load(d, s_.keep + c));
        const TileVec value = hn::Load(d, s_.block + i * kTileQueries + c);
        hn::Store(hn::MulAdd(value, hn::Load(d, s_.add + c), kept), d, at);
      }
    }
  }

  void Finish() {
    const size_t row = (tile_.batch * shape_.query_heads + tile_.head) * shape_.time + tile_.first;
    float* inverse = s_.keep;
    for (size_t c = 0; c < kTileQueries; ++c) inverse[c] = s_.sum[c] > 0 ? 1.0f / s_.sum[c] : 0.0f;
    if (job_.saved != nullptr) {
      std::copy(s_.max, s_.max + tile_.count, job_.saved->home_max + row);
      std::copy(inverse, inverse + tile_.count, job_.saved->home_inverse + row);
    }
    if (job_.in.miss) FinishMiss(row);
    StoreTransposed(s_.out, tile_.count, shape_.dim, inverse, job_.out.Row(tile_.batch, tile_.head, tile_.first),
                    job_.out.time_stride);
  }

  // Adds the controlled group's output, weighted by the context-miss token's share c, to the home output. Home output
  // is still to be divided by its sum, so c enters as 2^(score - max).
  void FinishMiss(size_t row) {
    const TileTag d;
    const size_t lanes = hn::Lanes(d);
    float* miss_inverse = s_.add;
    for (size_t c = 0; c < kTileQueries; ++c) miss_inverse[c] = s_.miss_sum[c] > 0 ? 1.0f / s_.miss_sum[c] : 0.0f;
    for (size_t c = 0; c < end_; c += lanes) {
      const TileVec share = Exp2(d, hn::Sub(hn::Load(d, s_.miss_score + c), hn::Load(d, s_.max + c)));
      const TileVec factor = hn::Mul(share, hn::Load(d, miss_inverse + c));
      for (size_t i = 0; i < shape_.dim; ++i) {
        float* at = s_.out + i * kTileQueries + c;
        hn::Store(hn::MulAdd(hn::Load(d, s_.miss + i * kTileQueries + c), factor, hn::Load(d, at)), d, at);
      }
    }
    if (job_.saved == nullptr) return;
    std::copy(s_.miss_max, s_.miss_max + tile_.count, job_.saved->miss_max + row);
    std::copy(miss_inverse, miss_inverse + tile_.count, job_.saved->miss_inverse + row);
    StoreTransposed(s_.miss, tile_.count, shape_.dim, miss_inverse, job_.saved->miss_out + row * shape_.dim,
                    shape_.dim);
  }

  static constexpr float kLog2E = 1.44269504089f;

  const ForwardJob& job_;
  const AttentionShape& shape_;
  const QueryTile& tile_;
  const ForwardScratch& s_;
  const size_t kv_head_;
  const size_t first_position_;  // key index of the tile's first query
  const size_t end_;             // columns in use, rounded up to a group
  const bool fetches_ahead_;
};

void RunForwardTile(const ForwardJob& job, const QueryTile& tile, const ForwardScratch& scratch) {
  ForwardTile(job, tile, scratch).Run();
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
