// What the two halves of packed_panels.cc, the one that is compiled for every instruction set and the one that is
// compiled once, hand each other.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/packed_panels.h"

namespace cairn {

// The rows that are multiplied, rounded to int8 with a scale for 32 numbers: [m][blocks].
struct QuantizedRows {
  size_t blocks = 0;
  uint8_t* quads = nullptr;   // how 4 numbers lie is up to the instruction set
  float* scales = nullptr;    // NaN for a block with a number that is not finite
  int32_t* starts = nullptr;  // -128 times the sum of the block's integers
  float* offsets = nullptr;   // the scale times that sum
};

// Blocks in which no number is larger count as zeros, because the inverse of their scale would be infinite.
constexpr float kSmallestPeak = 1e-30f;

constexpr size_t kPrefetchBlocks = 8;
constexpr size_t kChunkRows = 256;

struct PanelProduct {
  PanelLayout layout;
  const uint8_t* packed;
  QuantizedRows rows;
  size_t m;
  float* out;  // [m][layout.rows]
  bool accumulate;
  size_t ahead;  // blocks to prefetch
};

// What one call works on, by instruction set.
struct PanelTiling {
  size_t rows;
  size_t panels;
  size_t block_bytes;  // of quantised rows
};

}  // namespace cairn
