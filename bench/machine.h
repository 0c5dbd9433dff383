// The limits of this machine, measured: every benchmark reports its speed as a part of them.
#pragma once

namespace cairn {

struct MachineLimits {
  double f32_gflops;  // fused multiply-adds of all threads together, 2 operations each
  double read_gbs;    // streaming reads of all threads together, GB/s (10^9)
};

// The first of them alone, in about a tenth of a second.
double MeasureF32Gflops();

// Multiply-adds of the integers that products of int8 use, 2 operations each, 10^9 a second: bytes where the active
// instruction set has VNNI, else 16-bit numbers. In about a tenth of a second.
double MeasureInt8Gops();

// Takes about half a second. Uses ThreadCount() threads and the active instruction set.
MachineLimits MeasureMachine();

}  // namespace cairn
