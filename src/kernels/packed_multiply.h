// What the two halves of packed_panels.cc, the one that is compiled for every instruction set and the one that is
// compiled once, hand each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_panels.h"

namespace cairn {

// What a block of 32 numbers of a row that is multiplied becomes: its quads, which lie as the instruction set wants
// them, and behind them this.
struct RecordTail {
  float scale;   // of the int8; NaN where a number of the block is not finite
  float offset;  // the scale times the sum of the int8, for the minima of int4
  // -128 times that sum, because int8 weights are stored 128 too large; once for each panel of a group, since a load
  // is cheaper than copying a register.
  int32_t start[3];
  int32_t padding;
};

// The rows that are multiplied: [m][blocks] records.
struct QuantizedRows {
  uint8_t* records = nullptr;
  size_t row_bytes = 0;
};

// Blocks in which no number is larger count as zeros, because the inverse of their scale would be infinite.
constexpr float kSmallestPeak = 1e-30f;

constexpr size_t kFewRows = 4;      // above, unpacking slices of the panels pays
constexpr size_t kChunkRows = 256;  // that stay in the second cache while the panels pass by

struct PanelProduct {
  PanelLayout layout;
  const uint8_t* packed;
  QuantizedRows rows;
  size_t m;
  float* out;  // [m][layout.rows]
  bool accumulate;
  size_t next_group;  // groups of panels from one that a thread works on to its next, most likely; to prefetch
};

// What one call works on, by instruction set.
struct PanelTiling {
  size_t rows;
  size_t panels;        // of a group
  size_t record_bytes;  // of a block of 32 numbers
  size_t slice_bytes;   // scratch memory of MultiplyManyRows, beside the sums
};

}  // namespace cairn
