// Weights that training from scratch starts with.
#pragma once

#include <cstdint>

#include "model/parameters.h"

namespace cairn {

// Normal with deviation `initializer_range` (0.02), the projections that write to the residual stream divided by
// sqrt(2 * layers); norms are 1.
//
// With "initializer": "copying" among the model's other keys the attention begins with what it would otherwise have to
// find: heads of the first layer look at the tokens one, two and three places back, one head of the second layer and
// all heads of the later ones look for places that stand after the same token and copy what stands there, and the rest
// gather what their block holds, by which blocks are chosen. Where local layers see the block before, landmarks also
// hold its last tokens, so that the block that goes on after them can be chosen. Everything stays as trainable as
// random weights are.
void InitialiseParameters(const ModelConfig& config, uint64_t seed, Parameters& parameters);

}  // namespace cairn
