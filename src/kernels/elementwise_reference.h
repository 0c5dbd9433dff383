// The naive twins of the passes in elementwise.h: plain loops in f64, one thread, for their tests and gradient checks.
// Arguments mean what they mean there; nothing is fast and nothing is shared with the fast passes.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/elementwise.h"

namespace cairn {

using Doubles = std::vector<double>;

struct RmsNormReference {
  Doubles y;     // [rows][columns]
  Doubles rstd;  // [rows]
};
RmsNormReference ReferenceRmsNorm(RowShape shape, const Doubles& x, const Doubles& weight, double eps);

struct RmsNormReferenceInput {
  const Doubles& x;
  const Doubles& rstd;
  const Doubles& weight;
  const Doubles& dy;
};
// Adds to dx and dweight.
void ReferenceRmsNormBackward(RowShape shape, const RmsNormReferenceInput& in, Doubles& dx, Doubles& dweight);

// Rotates `data`; args.data is not looked at.
void ReferenceRotary(size_t rows, const RotaryArgs& args, Doubles& data);

Doubles ReferenceSwiGlu(RowShape shape, const Doubles& gate_up);
void ReferenceSwiGluBackward(RowShape shape, const Doubles& gate_up, const Doubles& dact, Doubles& dgate_up);

// Returns each row's loss; replaces the logits as RunCrossEntropy does.
Doubles ReferenceCrossEntropy(RowShape shape, Doubles& logits, const std::vector<int32_t>& targets, double scale);

void ReferenceAdd(const Doubles& from, Doubles& to);
void ReferenceScale(double factor, Doubles& values);
double ReferenceSumOfSquares(const Doubles& values);
void ReferenceAddRows(RowShape shape, const Doubles& from, const std::vector<int32_t>& index, Doubles& to);

// One step on state in f64.
void ReferenceAdamW(const AdamW& args, const Doubles& gradient, Doubles& weight, Doubles& first, Doubles& second);

}  // namespace cairn
