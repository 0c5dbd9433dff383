// Packing: rows of any stored type to panels of int8 and int4, and back to floats.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/packed_panels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packed_pack.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#ifndef CAIRN_KERNELS_PACKED_PACK_ONCE
#define CAIRN_KERNELS_PACKED_PACK_ONCE
namespace cairn {

// A block of 16 rows on its way to integers; column by column, so that a lane is a row.
struct FloatBlock {
  float values[kBlockColumns][kPanelRows];
  float scales[kPanelRows];
  float minima[kPanelRows];
  int32_t q[kBlockColumns][kPanelRows];
};

}  // namespace cairn
#endif

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using PackTag = hn::CappedTag<float, kPanelRows>;

// scales = the largest magnitude / 127.
void ScalesOfInt8(FloatBlock& block) {
  const PackTag d;
  for (size_t r = 0; r < kPanelRows; r += hn::Lanes(d)) {
    auto largest = hn::Zero(d);
    for (size_t c = 0; c < kBlockColumns; ++c) {
      largest = hn::Max(largest, hn::Abs(hn::LoadU(d, &block.values[c][r])));
    }
    hn::StoreU(hn::Mul(largest, hn::Set(d, 1.0f / 127.0f)), d, &block.scales[r]);
    hn::StoreU(hn::Zero(d), d, &block.minima[r]);
  }
}

// The scale and minimum of the least squared error among a few ranges, from all values to three quarters of their range
// (what lies outside is cut), each after the best straight line through its own integers.
void ScalesOfInt4(FloatBlock& block) {
  const PackTag d;
  constexpr float kCount = static_cast<float>(kBlockColumns);
  for (size_t r = 0; r < kPanelRows; r += hn::Lanes(d)) {
    auto low = hn::LoadU(d, &block.values[0][r]);
    auto high = low;
    for (size_t c = 1; c < kBlockColumns; ++c) {
      const auto x = hn::LoadU(d, &block.values[c][r]);
      low = hn::Min(low, x);
      high = hn::Max(high, x);
    }
    const auto middle = hn::Mul(hn::Add(low, high), hn::Set(d, 0.5f));
    const auto range = hn::Sub(high, low);
    auto best = hn::Set(d, std::numeric_limits<float>::max());
    auto scale = hn::Zero(d);
    auto minimum = low;
    for (int attempt = 0; attempt < 8; ++attempt) {
      const auto width = hn::Mul(range, hn::Set(d, 1.0f - 0.035f * static_cast<float>(attempt)));
      const auto inverse = hn::Div(hn::Set(d, 15.0f), width);  // infinite for equal values: then every test below fails
      auto sum_q = hn::Zero(d), sum_qq = hn::Zero(d), sum_x = hn::Zero(d), sum_xq = hn::Zero(d), sum_xx = hn::Zero(d);
      for (size_t c = 0; c < kBlockColumns; ++c) {
        const auto x = hn::Sub(hn::LoadU(d, &block.values[c][r]), middle);
        auto q = hn::Round(hn::MulAdd(x, inverse, hn::Set(d, 7.5f)));
        q = hn::Min(hn::Max(q, hn::Zero(d)), hn::Set(d, 15.0f));
        sum_q = hn::Add(sum_q, q);
        sum_qq = hn::MulAdd(q, q, sum_qq);
        sum_x = hn::Add(sum_x, x);
        sum_xq = hn::MulAdd(x, q, sum_xq);
        sum_xx = hn::MulAdd(x, x, sum_xx);
      }
      const auto count = hn::Set(d, kCount);
      const auto determinant = hn::Sub(hn::Mul(count, sum_qq), hn::Mul(sum_q, sum_q));
      const auto slope = hn::Div(hn::Sub(hn::Mul(count, sum_xq), hn::Mul(sum_x, sum_q)), determinant);
      const auto offset = hn::Div(hn::Sub(sum_x, hn::Mul(slope, sum_q)), count);
      const auto error = hn::Sub(hn::Sub(sum_xx, hn::Mul(slope, sum_xq)), hn::Mul(offset, sum_x));
      const auto better = hn::And(hn::Gt(slope, hn::Zero(d)), hn::Lt(error, best));
      best = hn::IfThenElse(better, error, best);
      scale = hn::IfThenElse(better, slope, scale);
      minimum = hn::IfThenElse(better, hn::Add(offset, middle), minimum);
    }
    hn::StoreU(scale, d, &block.scales[r]);
    hn::StoreU(minimum, d, &block.minima[r]);
  }
}

// The nearest integers to (value - minimum) / scale in [lowest, highest].
void NearestIntegers(FloatBlock& block, float lowest, float highest) {
  const PackTag d;
  const hn::RebindToSigned<PackTag> di;
  for (size_t r = 0; r < kPanelRows; r += hn::Lanes(d)) {
    const auto scale = hn::LoadU(d, &block.scales[r]);
    const auto minimum = hn::LoadU(d, &block.minima[r]);
    const auto zero = hn::Eq(scale, hn::Zero(d));
    const auto inverse =
        hn::IfThenZeroElse(zero, hn::Div(hn::Set(d, 1.0f), hn::IfThenElse(zero, hn::Set(d, 1.0f), scale)));
    for (size_t c = 0; c < kBlockColumns; ++c) {
      const auto x = hn::Mul(hn::Sub(hn::LoadU(d, &block.values[c][r]), minimum), inverse);
      const auto q = hn::Min(hn::Max(x, hn::Set(d, lowest)), hn::Set(d, highest));
      hn::StoreU(hn::NearestInt(q), di, &block.q[c][r]);
    }
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "tensor/convert.h"
#include "tensor/quant_blocks.h"

namespace cairn {

namespace {

HWY_EXPORT(ScalesOfInt8);
HWY_EXPORT(ScalesOfInt4);
HWY_EXPORT(NearestIntegers);

struct SourceRow {
  StoredType type;
  std::span<const std::byte> bytes;
};

// Where the numbers of row `lane` of a panel go.
class Writer {
 public:
  Writer(const PanelLayout& layout, uint8_t* panel) : layout_(layout), panel_(panel) {}

  // The 4 columns of a quad as bytes, q + 128.
  void Quad8(size_t block, size_t quad, size_t lane, uint32_t bytes) {
    std::memcpy(panel_ + block * layout_.block_bytes() + quad * 64 + lane * 4, &bytes, 4);
  }
  // The nibbles (one a byte) of quads 2 pair and 2 pair + 1.
  void Pair4(size_t block, size_t pair, size_t lane, uint32_t low, uint32_t high) {
    const uint32_t bytes = low | (high << 4);
    std::memcpy(panel_ + block * layout_.block_bytes() + pair * 64 + lane * 4, &bytes, 4);
  }
  void Scale(size_t block, size_t lane, uint16_t half) { Half(block, lane, half); }
  void Minimum(size_t block, size_t lane, uint16_t half) { Half(block, kPanelRows + lane, half); }

 private:
  void Half(size_t block, size_t index, uint16_t half) {
    std::memcpy(panel_ + layout_.scale_offset() + block * layout_.scale_bytes() + index * 2, &half, 2);
  }

  const PanelLayout& layout_;
  uint8_t* panel_;
};

bool IsRepacked(const PanelLayout& layout, StoredType type) {
  return layout.int4 ? type == StoredType::kQ4_0 || type == StoredType::kQ4_K : type == StoredType::kQ8_0;
}

uint32_t LoadWord(const std::byte* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

uint16_t LoadHalf(const std::byte* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return half;
}

// A word of nibbles, one a byte.
uint32_t LowNibbles(uint32_t word) { return word & 0x0f0f0f0f; }
uint32_t HighNibbles(uint32_t word) { return (word >> 4) & 0x0f0f0f0f; }

void RepackQ8_0(const std::byte* source, size_t begin, size_t end, size_t lane, Writer& writer) {
  source += begin * kQ8_0Bytes;
  for (size_t b = begin; b < end; ++b, source += kQ8_0Bytes) {
    writer.Scale(b, lane, LoadHalf(source));
    for (size_t g = 0; g < kBlockQuads; ++g) writer.Quad8(b, g, lane, LoadWord(source + 2 + 4 * g) ^ 0x80808080u);
  }
}

void RepackQ4_0(const std::byte* source, size_t begin, size_t end, size_t lane, Writer& writer) {
  source += begin * kQ4_0Bytes;
  for (size_t b = begin; b < end; ++b, source += kQ4_0Bytes) {
    const uint16_t scale = LoadHalf(source);
    writer.Scale(b, lane, scale);
    // Exact: only the exponent changes, unless it overflows, and such a scale never was a weight's.
    writer.Minimum(b, lane, FloatToHalf(HalfToFloat(scale) * -8.0f));
    for (size_t p = 0; p < 2; ++p) {
      const uint32_t first = LoadWord(source + 2 + 8 * p);
      const uint32_t second = LoadWord(source + 6 + 8 * p);
      writer.Pair4(b, p, lane, LowNibbles(first), LowNibbles(second));
      writer.Pair4(b, p + 2, lane, HighNibbles(first), HighNibbles(second));
    }
  }
}

void RepackQ4_K(const std::byte* source, size_t begin, size_t end, size_t lane, Writer& writer) {
  source += begin / 8 * kQ4_KBytes;
  for (size_t b = begin; b < end; b += 8, source += kQ4_KBytes) {
    const float scale = HalfToFloat(LoadHalf(source));
    const float minimum = HalfToFloat(LoadHalf(source + 2));
    const auto byte = [&](size_t i) { return std::to_integer<int>(source[4 + i]); };
    for (size_t part = 0; part < 8; ++part) {
      // As in DequantizeQ4_K.
      const int part_scale = part < 4 ? byte(part) & 63 : (byte(part + 4) & 15) | ((byte(part - 4) >> 6) << 4);
      const int part_minimum = part < 4 ? byte(part + 4) & 63 : (byte(part + 4) >> 4) | ((byte(part) >> 6) << 4);
      writer.Scale(b + part, lane, FloatToHalf(scale * static_cast<float>(part_scale)));
      writer.Minimum(b + part, lane, FloatToHalf(-minimum * static_cast<float>(part_minimum)));
      const std::byte* nibbles = source + 16 + part / 2 * 32;
      for (size_t p = 0; p < 4; ++p) {
        const uint32_t first = LoadWord(nibbles + 8 * p);
        const uint32_t second = LoadWord(nibbles + 8 * p + 4);
        if (part % 2 == 0) {
          writer.Pair4(b + part, p, lane, LowNibbles(first), LowNibbles(second));
        } else {
          writer.Pair4(b + part, p, lane, HighNibbles(first), HighNibbles(second));
        }
      }
    }
  }
}

// Some blocks of all rows, then the next: what is written stays in the first cache until it is whole.
void Repack(const PanelLayout& layout, std::span<const SourceRow> rows, Writer& writer) {
  constexpr size_t kStep = 8;  // blocks; one of q4_K
  for (size_t begin = 0; begin < layout.blocks(); begin += kStep) {
    const size_t end = std::min(layout.blocks(), begin + kStep);
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      if (!IsRepacked(layout, rows[lane].type)) continue;
      const std::byte* source = rows[lane].bytes.data();
      switch (rows[lane].type) {
        case StoredType::kQ8_0:
          RepackQ8_0(source, begin, end, lane, writer);
          break;
        case StoredType::kQ4_0:
          RepackQ4_0(source, begin, end, lane, writer);
          break;
        default:
          RepackQ4_K(source, begin, end, lane, writer);
      }
    }
  }
}

// Rounds to the f16 that is stored; larger than f16 can say is cut.
float RoundToHalf(float value) { return HalfToFloat(FloatToHalf(std::clamp(value, -65504.0f, 65504.0f))); }

void WriteLane(const FloatBlock& floats, bool int4, size_t block, size_t lane, Writer& writer) {
  const auto quad = [&](size_t g, int32_t add) {
    uint32_t word = 0;
    for (size_t i = 0; i < 4; ++i) word |= static_cast<uint32_t>(floats.q[4 * g + i][lane] + add) << (8 * i);
    return word;
  };
  writer.Scale(block, lane, FloatToHalf(floats.scales[lane]));
  if (int4) {
    writer.Minimum(block, lane, FloatToHalf(floats.minima[lane]));
    for (size_t p = 0; p < 4; ++p) writer.Pair4(block, p, lane, quad(2 * p, 0), quad(2 * p + 1, 0));
  } else {
    for (size_t g = 0; g < kBlockQuads; ++g) writer.Quad8(block, g, lane, quad(g, 128));
  }
}

// The lanes of `rows` whose type is not repacked as it is. `floats` has room for 16 padded rows.
void QuantizeLanes(const PanelLayout& layout, std::span<const SourceRow> rows, std::vector<float>& floats,
                   Writer& writer) {
  const size_t padded = layout.blocks() * kBlockColumns;
  floats.assign(kPanelRows * padded, 0.0f);
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    if (IsRepacked(layout, rows[lane].type)) continue;
    ConvertStoredToFloat(rows[lane].type, rows[lane].bytes, std::span(&floats[lane * padded], layout.columns));
  }
  FloatBlock block;
  for (size_t b = 0; b < layout.blocks(); ++b) {
    for (size_t lane = 0; lane < kPanelRows; ++lane) {
      const float* from = &floats[lane * padded + b * kBlockColumns];
      for (size_t c = 0; c < kBlockColumns; ++c) block.values[c][lane] = from[c];
    }
    if (layout.int4) {
      HWY_DYNAMIC_DISPATCH(ScalesOfInt4)(block);
    } else {
      HWY_DYNAMIC_DISPATCH(ScalesOfInt8)(block);
    }
    for (float& scale : block.scales) scale = RoundToHalf(scale);
    for (float& minimum : block.minima) minimum = RoundToHalf(minimum);
    HWY_DYNAMIC_DISPATCH(NearestIntegers)(block, layout.int4 ? 0.0f : -127.0f, layout.int4 ? 15.0f : 127.0f);
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      if (!IsRepacked(layout, rows[lane].type)) WriteLane(block, layout.int4, b, lane, writer);
    }
  }
}

}  // namespace

void PackPanels(const PanelLayout& layout, std::span<const StoredTensor> parts, uint8_t* out) {
  std::vector<size_t> ends;  // the first row after each part
  for (const StoredTensor& part : parts) {
    ends.push_back((ends.empty() ? 0 : ends.back()) + part.bytes.size() / part.row_bytes());
  }
  CAIRN_CHECK(!ends.empty() && ends.back() == layout.rows);
  ParallelFor(layout.panels(), [&](size_t panel, int) {
    thread_local std::vector<float> floats;
    SourceRow rows[kPanelRows];
    const size_t count = std::min(kPanelRows, layout.rows - panel * kPanelRows);
    bool quantize = false;
    Writer writer(layout, out + panel * layout.panel_bytes());
    for (size_t lane = 0; lane < count; ++lane) {
      const size_t row = panel * kPanelRows + lane;
      const size_t index = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), row) - ends.begin());
      const StoredTensor& part = parts[index];
      const size_t row_in_part = row - (index == 0 ? 0 : ends[index - 1]);
      rows[lane] = {part.type, part.bytes.subspan(row_in_part * part.row_bytes(), part.row_bytes())};
      quantize = quantize || !IsRepacked(layout, part.type);
    }
    Repack(layout, std::span(rows, count), writer);
    if (quantize) QuantizeLanes(layout, std::span(rows, count), floats, writer);
  });
}

void ReadPanelRow(const PanelLayout& layout, const uint8_t* packed, size_t row, float* out) {
  const size_t lane = row % kPanelRows;
  const uint8_t* panel = packed + row / kPanelRows * layout.panel_bytes();
  for (size_t c = 0; c < layout.columns; ++c) {
    const size_t block = c / kBlockColumns;
    const size_t quad = c % kBlockColumns / 4;
    const auto half = [&](size_t index) {
      uint16_t bits;
      std::memcpy(&bits, panel + layout.scale_offset() + block * layout.scale_bytes() + index * 2, 2);
      return HalfToFloat(bits);
    };
    const uint8_t* values = panel + block * layout.block_bytes();
    if (layout.int4) {
      const uint8_t pair = values[quad / 2 * 64 + lane * 4 + c % 4];
      const int q = quad % 2 == 0 ? pair & 15 : pair >> 4;
      out[c] = half(lane) * static_cast<float>(q) + half(kPanelRows + lane);
    } else {
      out[c] = half(lane) * static_cast<float>(static_cast<int>(values[quad * 64 + lane * 4 + c % 4]) - 128);
    }
  }
}

}  // namespace cairn
#endif  // HWY_ONCE
