// The passes of a transformer that are not matrix products: normalisation, rotary positions, SwiGLU, cross-entropy and
// AdamW, forward and backward, fused so that each tensor is read once. SIMD with run-time dispatch, all threads; the
// same result for any number of threads. Their naive twins are in elementwise_reference.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cairn {

// Rows of C numbers, dense.
struct RowShape {
  size_t rows;
  size_t columns;
};

// ---- RMSNorm: y = w * x * rstd, rstd = 1 / sqrt(mean(x^2) + eps) ----

// When `add` is not null, x + add takes the place of x and is stored to `sum`.
struct RmsNormForward {
  const float* x;
  const float* add;  // or null
  const float* weight;
  float eps;
  float* sum;  // x + add; may be add itself
  float* y;
  float* rstd;  // [rows]
};
void RunRmsNorm(RowShape shape, const RmsNormForward& args);

// y from a saved rstd.
void ReapplyRmsNorm(RowShape shape, const float* x, const float* rstd, const float* weight, float* y);

// dx += gradient through the norm; dweight += its own.
struct RmsNormBackward {
  const float* x;
  const float* rstd;
  const float* weight;
  const float* dy;
  float* dx;
  float* dweight;
};
void RunRmsNormBackward(RowShape shape, const RmsNormBackward& args);

// ---- Rotary positions, in place ----

struct RotaryArgs {
  float* data;  // [rows][row_stride], heads one after the other from the start of a row
  size_t row_stride;
  size_t heads;
  size_t dim;           // of a head, even
  const float* cosine;  // [table_rows][dim / 2]; row r of the data uses table row r % table_rows
  const float* sine;
  size_t table_rows;
  bool interleaved;  // pairs (0, 1), (2, 3), ...; else (0, dim/2), ...
  bool inverse;      // rotate back: the backward pass
};
void RunRotary(size_t rows, const RotaryArgs& args);

// ---- SwiGLU: act = silu(gate) * up; a row of `gate_up` is the gates, then the ups ----

void RunSwiGlu(RowShape shape, const float* gate_up, float* act);  // columns: of act
// Also gives act again, which the weight gradient of the next layer needs.
void RunSwiGluBackward(RowShape shape, const float* gate_up, const float* dact, float* dgate_up, float* act);

// ---- Cross-entropy ----

// Replaces logits by (softmax - one-hot target) * scale and stores each row's loss. Rows with a negative target become
// 0 and have loss 0. With scale 0 the logits are left alone. NaN among the logits makes the row's loss and gradient
// NaN.
void RunCrossEntropy(RowShape shape, float* logits, const int32_t* targets, float scale, double* losses);

// ---- Vectors ----

void RunAdd(size_t count, const float* from, float* to);    // to += from
void RunScale(size_t count, float factor, float* values);   // values *= factor
double RunSumOfSquares(size_t count, const float* values);  // in f64; NaN or infinity shows in the sum
// to[index[r]] += from[r]; rows with a negative index are left out.
void RunAddRows(size_t rows, size_t columns, const float* from, const int32_t* index, float* to);

// ---- AdamW ----

struct AdamW {
  float learning_rate;
  float beta1, beta2, eps;
  float weight_decay;    // 0 for tensors without
  float bias1, bias2;    // 1 - beta^step
  float gradient_scale;  // of clipping
};
void RunAdamW(size_t count, const AdamW& args, const float* gradient, float* weight, float* first, float* second);

}  // namespace cairn
