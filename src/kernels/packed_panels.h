// How the panels of int8 and int4 matrices lie in memory, and the steps of their products. Private to PackedMatrix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/stored_tensor.h"

namespace cairn {

constexpr size_t kPanelRows = 16;     // outputs, one a lane
constexpr size_t kBlockColumns = 32;  // share a scale
constexpr size_t kBlockQuads = kBlockColumns / 4;

// Panel after panel, in each the blocks of its 16 rows one after the other; rows and columns are padded with zeros.
//
// int8: each block is 8 quads of 64 bytes; quad g holds for each of the 16 rows the columns 4 g .. 4 g + 3 as q + 128.
//   Behind the blocks of the panel stand their scales, 16 f16 a block. w = scale * q.
// int4: each block is 4 pairs of 64 bytes; pair p holds quad 2 p in the low nibbles and quad 2 p + 1 in the high ones.
//   Behind them stand 16 f16 scales and 16 f16 minima a block. w = scale * q + minimum, q in 0 .. 15.
struct PanelLayout {
  bool int4 = false;
  size_t rows = 0;     // without padding
  size_t columns = 0;  // without padding

  size_t panels() const { return (rows + kPanelRows - 1) / kPanelRows; }
  size_t blocks() const { return (columns + kBlockColumns - 1) / kBlockColumns; }
  size_t block_bytes() const { return kPanelRows * kBlockColumns / (int4 ? 2 : 1); }
  size_t scale_bytes() const { return kPanelRows * 2 * (int4 ? 2 : 1); }  // of one block
  size_t scale_offset() const { return blocks() * block_bytes(); }        // from the start of the panel
  size_t panel_bytes() const { return (blocks() * (block_bytes() + scale_bytes()) + 63) / 64 * 64; }
  size_t bytes() const { return panels() * panel_bytes(); }
};

// Fills `out` (layout.bytes(), zeroed) from the tensors' rows one below the other. All threads.
void PackPanels(const PanelLayout& layout, std::span<const StoredTensor> parts, uint8_t* out);

// Row `row` of the matrix; [columns].
void ReadPanelRow(const PanelLayout& layout, const uint8_t* packed, size_t row, float* out);

// out[m][rows] = or += in[m][columns] W^T. All threads; callable from several threads at once.
void MultiplyPanels(const PanelLayout& layout, const uint8_t* packed, size_t m, const float* in, float* out,
                    bool accumulate);

}  // namespace cairn
