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

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cairn {
namespace {
HWY_EXPORT(DotRowsImpl);
HWY_EXPORT(AddWeightedRowsImpl);
HWY_EXPORT(AddOuterImpl);
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

}  // namespace cairn
#endif  // HWY_ONCE
