#include "attention/attention.h"

#include "base/error.h"

namespace cairn {

void CheckShape(const AttentionShape& shape) {
  CAIRN_CHECK(shape.batch >= 1 && shape.time >= 1);
  CAIRN_CHECK(shape.kv_heads >= 1 && shape.query_heads >= 1 && shape.query_heads % shape.kv_heads == 0,
              "{} query heads, {} KV heads", shape.query_heads, shape.kv_heads);
  CAIRN_CHECK(shape.dim >= 1 && shape.dim <= kMaxHeadDim, "head dimension {}", shape.dim);
  CAIRN_CHECK(shape.block_length >= 1 && shape.block_length <= kNoLandmarks);
  CAIRN_CHECK(shape.keys() < (size_t{1} << 30), "{} keys", shape.keys());
}

}  // namespace cairn
