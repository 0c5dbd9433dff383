// The two orders of the rows of q_proj and k_proj (see RotaryLayout), and the way between them. Only whole rows move,
// so it is lossless for every stored type.
#pragma once

#include <cstddef>
#include <string_view>

#include "model/config.h"
#include "tensor/stored_tensor.h"

namespace cairn {

// Row of the tensor in layout `from` that stands at `row` in layout `to`. Heads keep their place.
size_t RotarySourceRow(size_t row, size_t head_dim, RotaryLayout from, RotaryLayout to);

// Whether the rows of this tensor (Hugging Face name) depend on the layout.
bool IsRotaryTensor(std::string_view name);

// `tensor` [heads * head_dim, ...] in layout `from`, copied into layout `to`. `out` has the size of tensor.bytes.
void ReorderRotaryRows(const StoredTensor& tensor, size_t head_dim, RotaryLayout from, RotaryLayout to,
                       std::span<std::byte> out);

}  // namespace cairn
