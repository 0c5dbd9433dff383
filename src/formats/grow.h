// A larger model that computes the same as a smaller one: what was learnt is kept, and there is room for more.
#pragma once

#include <cstdint>
#include <memory>

#include "formats/model_source.h"

namespace cairn {

// Sizes of the larger model; 0: as before.
struct GrowOptions {
  uint64_t hidden_size = 0;
  uint64_t num_attention_heads = 0;
  uint64_t num_key_value_heads = 0;
  uint64_t intermediate_size = 0;
  uint64_t seed = 1;
};

// The old weights stand in the first rows and columns of the new ones. New heads, units and coordinates read what they
// find at random and write nothing yet, so the model computes what it did, and learns from the first step on. Throws
// Error where a size would shrink, or where old heads would get other KV heads.
std::shared_ptr<const ModelSource> GrowModel(const ModelSource& from, const GrowOptions& options);

}  // namespace cairn
