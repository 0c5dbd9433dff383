#include "kernels/rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rows.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void DotRowsImpl(const RowsView& shape, const float* query, const float* rows, float* scores) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < shape.count; ++j) {
    const float* row = rows + j * shape.stride;
    auto sum = hn::Zero(d);
    size_t i = 0;
    for (; i + lanes <= shape.columns; i += lanes) {
      sum = hn::MulAdd(hn::LoadU(d, query + i), hn::LoadU(d, row + i), sum);
    }
    float total = hn::GetLane(hn::SumOfLanes(d, sum));
    for (; i < shape.columns; ++i) total += query[i] * row[i];
    scores[j] = total;
  }
}

void AddWeightedRowsImpl(const RowsView& shape, const float* weights, const float* rows, float* to) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < shape.count; ++j) {
    const float* row = rows + j * shape.stride;
    const auto weight = hn::Set(d, weights[j]);
    size_t i = 0;
    for (; i + lanes <= shape.columns; i += lanes) {
      hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, row + i), hn::LoadU(d, to + i)), d, to + i);
    }
    for (; i < shape.columns; ++i) to[i] += weights[j] * row[i];
  }
}

void AddOuterImpl(const RowsView& shape, const float* weights, const float* from, float* rows) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  for (size_t j = 0; j < shape.count; ++j) {
    float* row = rows + j * shape.stride;
    const auto weight = hn::Set(d, weights[j]);
    size_t i = 0;
    for (; i + lanes <= shape.columns; i += lanes) {
      hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, from + i), hn::LoadU(d, row + i)), d, row + i);
    }
    for (; i < shape.columns; ++i) row[i] += weights[j] * from[i];
  }
}

void ScaleRowImpl(float factor, float* row, size_t columns) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto by = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= columns; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), by), d, row + i);
  for (; i < columns; ++i) row[i] *= factor;
}

void TurnRowImpl(const RowTurn& turn, const float* from, float* to) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto sign = hn::Set(d, turn.back ? -1.0f : 1.0f);
  size_t i = 0;
  for (; i + lanes <= turn.half; i += lanes) {
    const auto c = hn::LoadU(d, turn.cosine + i);
    const auto s = hn::Mul(hn::LoadU(d, turn.sine + i), sign);
    auto x = hn::Zero(d), y = hn::Zero(d);
    if (turn.interleaved) {
      hn::LoadInterleaved2(d, from + 2 * i, x, y);
    } else {
      x = hn::LoadU(d, from + i);
      y = hn::LoadU(d, from + turn.half + i);
    }
    const auto a = hn::NegMulAdd(y, s, hn::Mul(x, c));
    const auto b = hn::MulAdd(x, s, hn::Mul(y, c));
    if (turn.interleaved) {
      hn::StoreInterleaved2(a, b, d, to + 2 * i);
    } else {
      hn::StoreU(a, d, to + i);
      hn::StoreU(b, d, to + turn.half + i);
    }
  }
  const float scalar_sign = turn.back ? -1.0f : 1.0f;
  for (; i < turn.half; ++i) {
    const size_t a = turn.interleaved ? 2 * i : i;
    const size_t b = turn.interleaved ? 2 * i + 1 : i + turn.half;
    const float x = from[a];
    const float y = from[b];
    const float s = scalar_sign * turn.sine[i];
    to[a] = x * turn.cosine[i] - y * s;
    to[b] = x * s + y * turn.cosine[i];
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
namespace {
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(AddWeightedRowsImpl);
HWY_EXPORT(AddOuterImpl);
HWY_EXPORT(ScaleRowImpl);
HWY_EXPORT(TurnRowImpl);
}  // namespace

void DotRows(const RowsView& shape, const float* query, const float* rows, float* scores) {
  HWY_DYNAMIC_DISPATCH(DotRowsImpl)(shape, query, rows, scores);
}
void AddWeightedRows(const RowsView& shape, const float* weights, const float* rows, float* to) {
  HWY_DYNAMIC_DISPATCH(AddWeightedRowsImpl)(shape, weights, rows, to);
}
void AddOuter(const RowsView& shape, const float* weights, const float* from, float* rows) {
  HWY_DYNAMIC_DISPATCH(AddOuterImpl)(shape, weights, from, rows);
}

void ScaleRow(float factor, float* row, size_t columns) { HWY_DYNAMIC_DISPATCH(ScaleRowImpl)(factor, row, columns); }
void TurnRow(const RowTurn& turn, const float* from, float* to) { HWY_DYNAMIC_DISPATCH(TurnRowImpl)(turn, from, to); }

}  // namespace cairn
#endif  // HWY_ONCE
