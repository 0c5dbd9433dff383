#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Tag = hn::ScalableTag<float>;

// Calls body(tag, i) for vectors that cover [0, count): whole ones, then single numbers.
template <class Body>
HWY_INLINE void ForVectors(size_t count, const Body& body) {
  const Tag d;
  const hn::FixedTag<float, 1> one;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= count; i += lanes) body(d, i);
  for (; i < count; ++i) body(one, i);
}

// Sum over i of body(tag, i), which gives a vector. Two accumulators hide the latency.
template <class Body>
HWY_INLINE float SumVectors(size_t count, const Body& body) {
  const Tag d;
  const hn::FixedTag<float, 1> one;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    a = hn::Add(a, body(d, i));
    b = hn::Add(b, body(d, i + lanes));
  }
  for (; i + lanes <= count; i += lanes) a = hn::Add(a, body(d, i));
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
  for (; i < count; ++i) sum += hn::GetLane(body(one, i));
  return sum;
}

void RmsNormRow(const RmsNormForward& args, size_t row, size_t columns) {
  const float* x = args.x + row * columns;
  if (args.add != nullptr) {
    const float* add = args.add + row * columns;
    float* sum = args.sum + row * columns;
    ForVectors(columns, [&](auto d, size_t i)
                            HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, add + i)), d, sum + i); });
    x = sum;
  }
  const float squares = SumVectors(columns, [&](auto d, size_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    return hn::Mul(v, v);
  });
  const float rstd = 1.0f / std::sqrt(squares / static_cast<float>(columns) + args.eps);
  float* y = args.y + row * columns;
  args.rstd[row] = rstd;
  ForVectors(columns, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, rstd)), hn::LoadU(d, args.weight + i)), d, y + i);
  });
}

void ReapplyRow(const float* x, float rstd, const float* weight, size_t columns, float* y) {
  ForVectors(columns, [&](auto d, size_t i) HWY_ATTR {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::Set(d, rstd)), hn::LoadU(d, weight + i)), d, y + i);
  });
}

void RmsNormBackwardRow(const RmsNormBackward& args, size_t row, size_t columns, float* dweight) {
  const float* x = args.x + row * columns;
  const float* dy = args.dy + row * columns;
  float* dx = args.dx + row * columns;
  const float rstd = args.rstd[row];
  const float dot = SumVectors(columns, [&](auto d, size_t i) HWY_ATTR {
    return hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, dy + i)), hn::LoadU(d, args.weight + i));
  });
  const float shrink = -dot * rstd * rstd * rstd / static_cast<float>(columns);
  ForVectors(columns, [&](auto d, size_t i) HWY_ATTR {
    const auto vx = hn::LoadU(d, x + i);
    const auto scaled = hn::Mul(hn::LoadU(d, dy + i), hn::Set(d, rstd));
    hn::StoreU(hn::MulAdd(scaled, vx, hn::LoadU(d, dweight + i)), d, dweight + i);
    const auto direct = hn::MulAdd(scaled, hn::LoadU(d, args.weight + i), hn::LoadU(d, dx + i));
    hn::StoreU(hn::MulAdd(vx, hn::Set(d, shrink), direct), d, dx + i);
  });
}

void RotaryRow(const RotaryArgs& args, size_t row) {
  const size_t half = args.dim / 2;
  const float* cosine = args.cosine + (row % args.table_rows) * half;
  const float* sine = args.sine + (row % args.table_rows) * half;
  const float sign = args.inverse ? -1.0f : 1.0f;
  for (size_t h = 0; h < args.heads; ++h) {
    float* head = args.data + row * args.row_stride + h * args.dim;
    if (args.interleaved) {
      for (size_t i = 0; i < half; ++i) {
        const float x = head[2 * i];
        const float y = head[2 * i + 1];
        const float s = sign * sine[i];
        head[2 * i] = x * cosine[i] - y * s;
        head[2 * i + 1] = x * s + y * cosine[i];
      }
      continue;
    }
    ForVectors(half, [&](auto d, size_t i) HWY_ATTR {
      const auto x = hn::LoadU(d, head + i);
      const auto y = hn::LoadU(d, head + half + i);
      const auto c = hn::LoadU(d, cosine + i);
      const auto s = hn::Mul(hn::LoadU(d, sine + i), hn::Set(d, sign));
      hn::StoreU(hn::NegMulAdd(y, s, hn::Mul(x, c)), d, head + i);
      hn::StoreU(hn::MulAdd(x, s, hn::Mul(y, c)), d, head + half + i);
    });
  }
}

// 1 / (1 + e^-x), safe for every x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  const V power = hn::Min(hn::Mul(x, hn::Set(d, -1.44269504089f)), hn::Set(d, 126.0f));
  const V one = hn::Set(d, 1.0f);
  return hn::Div(one, hn::Add(one, Exp2(d, power)));
}

void SwiGluRow(const float* gate, const float* up, size_t columns, float* act) {
  ForVectors(columns, [&](auto d, size_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, gate + i);
    hn::StoreU(hn::Mul(hn::Mul(g, Sigmoid(d, g)), hn::LoadU(d, up + i)), d, act + i);
  });
}

void SwiGluBackwardRow(const float* gate, const float* up, const float* dact, size_t columns, float* dgate, float* dup,
                       float* act) {
  ForVectors(columns, [&](auto d, size_t i) HWY_ATTR {
    const auto g = hn::LoadU(d, gate + i);
    const auto u = hn::LoadU(d, up + i);
    const auto da = hn::LoadU(d, dact + i);
    const auto sigmoid = Sigmoid(d, g);
    const auto silu = hn::Mul(g, sigmoid);
    // d silu / dg. 1 - sigmoid comes first: sigmoid + silu - silu * sigmoid would lose the slope of a large gate.
    const auto slope = hn::MulAdd(silu, hn::Sub(hn::Set(d, 1.0f), sigmoid), sigmoid);
    hn::StoreU(hn::Mul(hn::Mul(da, u), slope), d, dgate + i);
    hn::StoreU(hn::Mul(da, silu), d, dup + i);
    hn::StoreU(hn::Mul(silu, u), d, act + i);
  });
}

double CrossEntropyRow(float* logits, int32_t target, size_t columns, float scale) {
  if (target < 0) {
    if (scale != 0) ForVectors(columns, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::Zero(d), d, logits + i); });
    return 0;
  }
  const Tag d;
  const size_t lanes = hn::Lanes(d);
  auto max_vector = hn::Set(d, logits[0]);
  auto broken = hn::Zero(d);  // Max and Exp2 swallow NaN, so it is looked for
  size_t i = 0;
  for (; i + lanes <= columns; i += lanes) {
    const auto v = hn::LoadU(d, logits + i);
    max_vector = hn::Max(max_vector, v);
    broken = hn::Or(broken, hn::VecFromMask(d, hn::IsNaN(v)));
  }
  float max = hn::GetLane(hn::MaxOfLanes(d, max_vector));
  bool is_broken = !hn::AllFalse(d, hn::IsNaN(broken));
  for (; i < columns; ++i) {
    max = std::max(max, logits[i]);
    is_broken |= std::isnan(logits[i]);
  }
  if (is_broken) {
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    if (scale != 0)
      ForVectors(columns, [&](auto t, size_t j) HWY_ATTR { hn::StoreU(hn::Set(t, kNaN), t, logits + j); });
    return kNaN;
  }
  constexpr float kLog2E = 1.44269504089f;
  const float wanted = logits[target] - max;
  float sum;
  if (scale == 0) {
    sum = SumVectors(columns, [&](auto t, size_t j) HWY_ATTR {
      return Exp2(t, hn::Mul(hn::Sub(hn::LoadU(t, logits + j), hn::Set(t, max)), hn::Set(t, kLog2E)));
    });
  } else {
    sum = SumVectors(columns, [&](auto t, size_t j) HWY_ATTR {
      const auto e = Exp2(t, hn::Mul(hn::Sub(hn::LoadU(t, logits + j), hn::Set(t, max)), hn::Set(t, kLog2E)));
      hn::StoreU(e, t, logits + j);
      return e;
    });
    const float factor = scale / sum;
    ForVectors(columns, [&](auto t, size_t j) HWY_ATTR {
      hn::StoreU(hn::Mul(hn::LoadU(t, logits + j), hn::Set(t, factor)), t, logits + j);
    });
    logits[target] -= scale;
  }
  return std::log(static_cast<double>(sum)) - static_cast<double>(wanted);
}

void AddRange(const float* from, size_t count, float* to) {
  ForVectors(count, [&](auto d, size_t i)
                        HWY_ATTR { hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i); });
}

void ScaleRange(float factor, size_t count, float* values) {
  ForVectors(count, [&](auto d, size_t i)
                        HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, factor)), d, values + i); });
}

// In f64: squares of small and large gradients are outside of f32.
double SumSquaresRange(const float* values, size_t count) {
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> narrow;
  const size_t lanes = hn::Lanes(d);
  auto a = hn::Zero(d);
  auto b = hn::Zero(d);
  size_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    const auto x = hn::PromoteTo(d, hn::LoadU(narrow, values + i));
    const auto y = hn::PromoteTo(d, hn::LoadU(narrow, values + i + lanes));
    a = hn::MulAdd(x, x, a);
    b = hn::MulAdd(y, y, b);
  }
  double sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(a, b)));
  for (; i < count; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  return sum;
}

void AdamWRange(const AdamW& a, size_t count, const float* gradient, float* weight, float* first, float* second) {
  const float step = a.learning_rate / a.bias1;
  const float root = 1.0f / std::sqrt(a.bias2);
  const float keep = 1.0f - a.learning_rate * a.weight_decay;
  ForVectors(count, [&](auto d, size_t i) HWY_ATTR {
    const auto g = hn::Mul(hn::LoadU(d, gradient + i), hn::Set(d, a.gradient_scale));
    const auto m = hn::MulAdd(hn::LoadU(d, first + i), hn::Set(d, a.beta1), hn::Mul(g, hn::Set(d, 1.0f - a.beta1)));
    const auto v =
        hn::MulAdd(hn::LoadU(d, second + i), hn::Set(d, a.beta2), hn::Mul(hn::Mul(g, g), hn::Set(d, 1.0f - a.beta2)));
    hn::StoreU(m, d, first + i);
    hn::StoreU(v, d, second + i);
    const auto denominator = hn::MulAdd(hn::Sqrt(v), hn::Set(d, root), hn::Set(d, a.eps));
    const auto w = hn::Mul(hn::LoadU(d, weight + i), hn::Set(d, keep));
    hn::StoreU(hn::NegMulAdd(hn::Set(d, step), hn::Div(m, denominator), w), d, weight + i);
  });
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/aligned.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/threads.h"

namespace cairn {
namespace {

HWY_EXPORT(RmsNormRow);
HWY_EXPORT(ReapplyRow);
HWY_EXPORT(RmsNormBackwardRow);
HWY_EXPORT(RotaryRow);
HWY_EXPORT(SwiGluRow);
HWY_EXPORT(SwiGluBackwardRow);
HWY_EXPORT(CrossEntropyRow);
HWY_EXPORT(AddRange);
HWY_EXPORT(ScaleRange);
HWY_EXPORT(SumSquaresRange);
HWY_EXPORT(AdamWRange);

constexpr size_t kRowChunk = 16;
constexpr size_t kValueChunk = size_t{1} << 16;

// body(begin, end) over chunks of [0, count). The chunks do not depend on the number of threads.
template <class Body>
void ForChunks(size_t count, size_t chunk, const Body& body) {
  ParallelFor(DivideUp(count, chunk), [&](size_t i, int) { body(i * chunk, std::min(count, (i + 1) * chunk)); });
}

template <class Body>
void ForRows(size_t rows, const Body& body) {
  ForChunks(rows, kRowChunk, [&](size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) body(row);
  });
}

}  // namespace

void RunRmsNorm(RowShape shape, const RmsNormForward& args) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(RmsNormRow);
  ForRows(shape.rows, [&](size_t row) { kernel(args, row, shape.columns); });
}

void ReapplyRmsNorm(RowShape shape, const float* x, const float* rstd, const float* weight, float* y) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(ReapplyRow);
  const size_t n = shape.columns;
  ForRows(shape.rows, [&](size_t row) { kernel(x + row * n, rstd[row], weight, n, y + row * n); });
}

void RunRmsNormBackward(RowShape shape, const RmsNormBackward& args) {
  if (shape.rows == 0) return;
  const auto kernel = HWY_DYNAMIC_DISPATCH(RmsNormBackwardRow);
  // One partial weight gradient for each of a fixed number of row ranges, added up in order.
  const size_t pieces = std::min<size_t>(32, DivideUp(shape.rows, kRowChunk));
  const size_t piece_rows = DivideUp(shape.rows, pieces);
  AlignedBuffer<float> partial(pieces * shape.columns);
  ParallelFor(pieces, [&](size_t piece, int) {
    const size_t end = std::min(shape.rows, (piece + 1) * piece_rows);
    for (size_t row = piece * piece_rows; row < end; ++row) {
      kernel(args, row, shape.columns, partial.data() + piece * shape.columns);
    }
  });
  for (size_t piece = 0; piece < pieces; ++piece) {
    HWY_DYNAMIC_DISPATCH(AddRange)(partial.data() + piece * shape.columns, shape.columns, args.dweight);
  }
}

void RunRotary(size_t rows, const RotaryArgs& args) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(RotaryRow);
  ForRows(rows, [&](size_t row) { kernel(args, row); });
}

void RunSwiGlu(RowShape shape, const float* gate_up, float* act) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(SwiGluRow);
  const size_t n = shape.columns;
  ForRows(shape.rows, [&](size_t row) { kernel(gate_up + row * 2 * n, gate_up + row * 2 * n + n, n, act + row * n); });
}

void RunSwiGluBackward(RowShape shape, const float* gate_up, const float* dact, float* dgate_up, float* act) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(SwiGluBackwardRow);
  const size_t n = shape.columns;
  ForRows(shape.rows, [&](size_t row) {
    const float* gate = gate_up + row * 2 * n;
    float* dgate = dgate_up + row * 2 * n;
    kernel(gate, gate + n, dact + row * n, n, dgate, dgate + n, act + row * n);
  });
}

void RunCrossEntropy(RowShape shape, float* logits, const int32_t* targets, float scale, double* losses) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(CrossEntropyRow);
  ForRows(shape.rows, [&](size_t row) {
    CAIRN_CHECK(targets[row] < static_cast<int32_t>(shape.columns), "target {}", targets[row]);
    losses[row] = kernel(logits + row * shape.columns, targets[row], shape.columns, scale);
  });
}

void RunAdd(size_t count, const float* from, float* to) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(AddRange);
  ForChunks(count, kValueChunk, [&](size_t begin, size_t end) { kernel(from + begin, end - begin, to + begin); });
}

void RunScale(size_t count, float factor, float* values) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(ScaleRange);
  ForChunks(count, kValueChunk, [&](size_t begin, size_t end) { kernel(factor, end - begin, values + begin); });
}

double RunSumOfSquares(size_t count, const float* values) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(SumSquaresRange);
  std::vector<double> sums(DivideUp(count, kValueChunk));
  ForChunks(count, kValueChunk,
            [&](size_t begin, size_t end) { sums[begin / kValueChunk] = kernel(values + begin, end - begin); });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void RunAddRows(size_t rows, size_t columns, const float* from, const int32_t* index, float* to) {
  // Each thread takes a range of columns of all rows: rows that share a destination never meet, and the order is fixed.
  const auto kernel = HWY_DYNAMIC_DISPATCH(AddRange);
  const size_t chunk = std::max<size_t>(16, RoundUp(DivideUp(columns, 8), 16));
  ForChunks(columns, chunk, [&](size_t begin, size_t end) {
    for (size_t r = 0; r < rows; ++r) {
      if (index[r] < 0) continue;
      kernel(from + r * columns + begin, end - begin, to + static_cast<size_t>(index[r]) * columns + begin);
    }
  });
}

void RunAdamW(size_t count, const AdamW& args, const float* gradient, float* weight, float* first, float* second) {
  const auto kernel = HWY_DYNAMIC_DISPATCH(AdamWRange);
  ForChunks(count, kValueChunk, [&](size_t begin, size_t end) {
    kernel(args, end - begin, gradient + begin, weight + begin, first + begin, second + begin);
  });
}

}  // namespace cairn
#endif  // HWY_ONCE
