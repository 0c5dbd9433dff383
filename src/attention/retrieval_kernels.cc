#include "attention/retrieval_kernels.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/retrieval_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "attention/softmax_row-inl.h"
#include "kernels/broadcast_gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries that are worked on together: their scores stay in the first-level cache.
inline constexpr size_t kBackwardRows = 48;

// `weights` holds the scores of a row, `scores` the products of its dout with the values. They become gate * w, and the
// gradients of the scores.
HWY_INLINE void GradientRow(const BlockShape& shape, float home_max, float home_inverse, float home_delta,
                            float* weights, float* scores) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const size_t columns = shape.padded_columns();
  const float gate = std::exp2(weights[shape.tokens] - home_max) * home_inverse;
  float max, sum;
  SoftmaxRow(weights, shape.tokens, max, sum);
  weights[shape.tokens] = 0;
  TileVec dots = hn::Zero(d);
  for (size_t j = 0; j < columns; j += lanes) {
    dots = hn::MulAdd(hn::Load(d, weights + j), hn::Load(d, scores + j), dots);
  }
  const float delta = hn::GetLane(hn::SumOfLanes(d, dots)) / sum;
  const TileVec factor = hn::Set(d, gate / sum);
  for (size_t j = 0; j < columns; j += lanes) {
    const TileVec weight = hn::Mul(hn::Load(d, weights + j), factor);
    hn::Store(weight, d, weights + j);
    hn::Store(hn::Mul(weight, hn::Sub(hn::Load(d, scores + j), hn::Set(d, delta))), d, scores + j);
  }
  scores[shape.tokens] = gate * (delta - home_delta);
}

void ReadBlockBackwardImpl(const BlockShape& shape, const BlockGradients& block, float* scratch) {
  const TileTag d;
  const size_t columns = shape.padded_columns();
  const size_t padded = shape.padded_dim();
  const float* keys_transposed = block.pack;
  const float* values_transposed = block.pack + shape.key_numbers();
  const float* keys = block.pack + 2 * shape.key_numbers();
  float* weights = scratch;
  float* scores = scratch + kBackwardRows * columns;
  for (size_t begin = 0; begin < block.count; begin += kBackwardRows) {
    const size_t rows = std::min(kBackwardRows, block.count - begin);
    const float* queries = block.queries + begin * padded;
    const float* dout = block.dout + begin * padded;
    const auto store_to = [&](float* to) {
      return [=](size_t row, size_t column, TileVec sum) { hn::Store(sum, TileTag(), to + row * columns + column); };
    };
    Gemm(GemmLeft{queries, padded, 1}, GemmRight{keys_transposed, columns}, GemmDepth{shape.dim}, rows, 0, columns,
         store_to(weights));
    Gemm(GemmLeft{dout, padded, 1}, GemmRight{values_transposed, columns}, GemmDepth{shape.dim}, rows, 0, columns,
         store_to(scores));
    for (size_t r = 0; r < rows; ++r) {
      float* row = weights + r * columns;
      std::fill(row + shape.columns(), row + columns, 0.0f);
      GradientRow(shape, block.home_max[begin + r], block.home_inverse[begin + r], block.home_delta[begin + r], row,
                  scores + r * columns);
    }
    Gemm(GemmLeft{scores, columns, 1}, GemmRight{keys, padded}, GemmDepth{shape.columns()}, rows, 0, padded,
         [&](size_t row, size_t column, TileVec sum) {
           hn::Store(sum, d, block.dqueries + (begin + row) * padded + column);
         });
    const auto add_to = [&](float* to) {
      return [=](size_t row, size_t column, TileVec sum) {
        float* at = to + row * padded + column;
        hn::Store(hn::Add(hn::Load(TileTag(), at), sum), TileTag(), at);
      };
    };
    Gemm(GemmLeft{scores, 1, columns}, GemmRight{queries, padded}, GemmDepth{rows}, shape.columns(), 0, padded,
         add_to(block.dkeys));
    Gemm(GemmLeft{weights, 1, columns}, GemmRight{dout, padded}, GemmDepth{rows}, shape.tokens, 0, padded,
         add_to(block.dvalues));
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "kernels/thread_scratch.h"

namespace cairn {
namespace {

HWY_EXPORT(ReadBlockBackwardImpl);

}  // namespace

size_t BackwardPackFloats(const BlockShape& shape) {
  return 2 * shape.key_numbers() + shape.columns() * shape.padded_dim();
}

void PackForBackward(const BlockShape& shape, const float* keys, const float* values, size_t stride, float* pack) {
  TransposeRows(shape, keys, shape.columns(), stride, pack);
  TransposeRows(shape, values, shape.tokens, stride, pack + shape.key_numbers());
  float* rows = pack + 2 * shape.key_numbers();
  for (size_t j = 0; j < shape.columns(); ++j, rows += shape.padded_dim()) {
    std::copy_n(keys + j * stride, shape.dim, rows);
    std::fill(rows + shape.dim, rows + shape.padded_dim(), 0.0f);
  }
}

void ReadBlockBackward(const BlockShape& shape, const BlockGradients& block) {
  float* scratch = ThreadScratch<float, class RetrievalKernels>(2 * 48 * shape.padded_columns());
  HWY_DYNAMIC_DISPATCH(ReadBlockBackwardImpl)(shape, block, scratch);
}

}  // namespace cairn
#endif  // HWY_ONCE
