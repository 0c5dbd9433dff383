#include "formats/rotary_layout.h"

#include <cstring>

#include "base/error.h"

namespace cairn {

size_t RotarySourceRow(size_t row, size_t head_dim, RotaryLayout from, RotaryLayout to) {
  if (from == to) return row;
  const size_t head_start = row / head_dim * head_dim;
  const size_t i = row % head_dim;
  const size_t half = head_dim / 2;
  // Element `side` (0, 1) of pair `pair` stands at pair + side * half, or at 2 * pair + side.
  if (to == RotaryLayout::kInterleaved) return head_start + i / 2 + i % 2 * half;
  return head_start + 2 * (i % half) + i / half;
}

bool IsRotaryTensor(std::string_view name) {
  return name.ends_with(".self_attn.q_proj.weight") || name.ends_with(".self_attn.k_proj.weight");
}

void ReorderRotaryRows(const StoredTensor& tensor, size_t head_dim, RotaryLayout from, RotaryLayout to,
                       std::span<std::byte> out) {
  const size_t row_bytes = tensor.row_bytes();
  const size_t rows = tensor.shape.at(0);
  CAIRN_CHECK(rows % head_dim == 0 && tensor.bytes.size() == rows * row_bytes && out.size() == tensor.bytes.size());
  for (size_t row = 0; row < rows; ++row) {
    const size_t source = RotarySourceRow(row, head_dim, from, to);
    std::memcpy(out.data() + row * row_bytes, tensor.bytes.data() + source * row_bytes, row_bytes);
  }
}

}  // namespace cairn
