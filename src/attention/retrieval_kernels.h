// The products of training with a memory: all queries of a chunk that read the same block, against that block, backward
// (the forward pass is that of inference, block_kernels.h). Single-threaded pieces.
#pragma once

#include <cstddef>

#include "attention/block_kernels.h"

namespace cairn {

// A block of one KV head as the backward pass streams it: keys transposed, [dim][padded_columns]; values transposed,
// the same with nothing in the landmark's column; keys, [columns][padded_dim].
size_t BackwardPackFloats(const BlockShape& shape);
void PackForBackward(const BlockShape& shape, const float* keys, const float* values, size_t stride, float* pack);

struct BlockGradients {
  const float* pack;
  size_t count;               // queries that read the block
  const float* queries;       // [count][padded_dim], turned to the block's slot, scores in units of log 2
  const float* dout;          // [count][padded_dim]
  const float* home_max;      // [count], of each query's home group, in units of log 2
  const float* home_inverse;  // [count], one over its sum
  const float* home_delta;    // [count], dout . out
  float* dqueries;            // [count][padded_dim]: of the products with keys, to be scaled
  float* dkeys;               // [columns][padded_dim], added to: in the same units as `queries`
  float* dvalues;             // [tokens][padded_dim], added to
};

// Gradients of a block that every query reads through its landmark's gate (method, section 2).
void ReadBlockBackward(const BlockShape& shape, const BlockGradients& block);

}  // namespace cairn
