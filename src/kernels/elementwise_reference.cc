#include "kernels/elementwise_reference.h"

#include <algorithm>
#include <cmath>

namespace cairn {

namespace {

// 1 / (1 + e^-x) without overflow.
double Sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1 + e);
}

}  // namespace

RmsNormReference ReferenceRmsNorm(RowShape shape, const Doubles& x, const Doubles& weight, double eps) {
  RmsNormReference result{Doubles(shape.rows * shape.columns), Doubles(shape.rows)};
  for (size_t r = 0; r < shape.rows; ++r) {
    double squares = 0;
    for (size_t c = 0; c < shape.columns; ++c) squares += x[r * shape.columns + c] * x[r * shape.columns + c];
    result.rstd[r] = 1 / std::sqrt(squares / static_cast<double>(shape.columns) + eps);
    for (size_t c = 0; c < shape.columns; ++c) {
      result.y[r * shape.columns + c] = weight[c] * x[r * shape.columns + c] * result.rstd[r];
    }
  }
  return result;
}

void ReferenceRmsNormBackward(RowShape shape, const RmsNormReferenceInput& in, Doubles& dx, Doubles& dweight) {
  const size_t n = shape.columns;
  for (size_t r = 0; r < shape.rows; ++r) {
    const double rstd = in.rstd[r];
    double dot = 0;  // of the gradient that arrives at x * rstd with x
    for (size_t c = 0; c < n; ++c) dot += in.dy[r * n + c] * in.weight[c] * in.x[r * n + c];
    for (size_t c = 0; c < n; ++c) {
      const size_t i = r * n + c;
      dweight[c] += in.dy[i] * in.x[i] * rstd;
      dx[i] += rstd * in.dy[i] * in.weight[c] - in.x[i] * dot * rstd * rstd * rstd / static_cast<double>(n);
    }
  }
}

void ReferenceRotary(size_t rows, const RotaryArgs& args, Doubles& data) {
  const size_t half = args.dim / 2;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t h = 0; h < args.heads; ++h) {
      double* head = data.data() + r * args.row_stride + h * args.dim;
      for (size_t i = 0; i < half; ++i) {
        double& a = args.interleaved ? head[2 * i] : head[i];
        double& b = args.interleaved ? head[2 * i + 1] : head[half + i];
        const double c = args.cosine[(r % args.table_rows) * half + i];
        const double s = (args.inverse ? -1.0 : 1.0) * args.sine[(r % args.table_rows) * half + i];
        const double x = a, y = b;
        a = x * c - y * s;
        b = x * s + y * c;
      }
    }
  }
}

Doubles ReferenceSwiGlu(RowShape shape, const Doubles& gate_up) {
  Doubles act(shape.rows * shape.columns);
  for (size_t r = 0; r < shape.rows; ++r) {
    for (size_t c = 0; c < shape.columns; ++c) {
      const double gate = gate_up[r * 2 * shape.columns + c];
      act[r * shape.columns + c] = gate * Sigmoid(gate) * gate_up[(r * 2 + 1) * shape.columns + c];
    }
  }
  return act;
}

void ReferenceSwiGluBackward(RowShape shape, const Doubles& gate_up, const Doubles& dact, Doubles& dgate_up) {
  for (size_t r = 0; r < shape.rows; ++r) {
    for (size_t c = 0; c < shape.columns; ++c) {
      const size_t gate_at = r * 2 * shape.columns + c, up_at = gate_at + shape.columns;
      const double gate = gate_up[gate_at], sigmoid = Sigmoid(gate);
      const double d = dact[r * shape.columns + c];
      dgate_up[gate_at] = d * gate_up[up_at] * (sigmoid + gate * sigmoid * Sigmoid(-gate));
      dgate_up[up_at] = d * gate * sigmoid;
    }
  }
}

Doubles ReferenceCrossEntropy(RowShape shape, Doubles& logits, const std::vector<int32_t>& targets, double scale) {
  Doubles losses(shape.rows);
  for (size_t r = 0; r < shape.rows; ++r) {
    double* row = logits.data() + r * shape.columns;
    if (targets[r] < 0) {
      if (scale != 0) std::fill(row, row + shape.columns, 0.0);
      continue;
    }
    const double max = *std::max_element(row, row + shape.columns);
    double sum = 0;
    for (size_t c = 0; c < shape.columns; ++c) sum += std::exp(row[c] - max);
    losses[r] = std::log(sum) + max - row[targets[r]];
    if (scale == 0) continue;
    for (size_t c = 0; c < shape.columns; ++c) row[c] = std::exp(row[c] - max) / sum * scale;
    row[targets[r]] -= scale;
  }
  return losses;
}

void ReferenceAdd(const Doubles& from, Doubles& to) {
  for (size_t i = 0; i < to.size(); ++i) to[i] += from[i];
}

void ReferenceScale(double factor, Doubles& values) {
  for (double& value : values) value *= factor;
}

double ReferenceSumOfSquares(const Doubles& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

void ReferenceAddRows(RowShape shape, const Doubles& from, const std::vector<int32_t>& index, Doubles& to) {
  for (size_t r = 0; r < shape.rows; ++r) {
    if (index[r] < 0) continue;
    for (size_t c = 0; c < shape.columns; ++c) {
      to[static_cast<size_t>(index[r]) * shape.columns + c] += from[r * shape.columns + c];
    }
  }
}

void ReferenceAdamW(const AdamW& args, const Doubles& gradient, Doubles& weight, Doubles& first, Doubles& second) {
  const double beta1 = args.beta1, beta2 = args.beta2, rate = args.learning_rate;
  for (size_t i = 0; i < weight.size(); ++i) {
    const double g = gradient[i] * args.gradient_scale;
    first[i] = beta1 * first[i] + (1 - beta1) * g;
    second[i] = beta2 * second[i] + (1 - beta2) * g * g;
    const double step = first[i] / args.bias1 / (std::sqrt(second[i] / args.bias2) + args.eps);
    weight[i] -= rate * args.weight_decay * weight[i] + rate * step;
  }
}

}  // namespace cairn
