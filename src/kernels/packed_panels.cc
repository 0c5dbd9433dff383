#include "kernels/packed_panels.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/packed_multiply.h"

// AVX-512 VNNI multiplies bytes; the other instruction sets widen them to 16 bits. The integers are the same.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/packed_panels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/vnni_target-inl.h"
// After it:
#include "kernels/mul_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FTag = hn::CappedTag<float, kPanelRows>;
using ITag = hn::RebindToSigned<FTag>;
using FVec = hn::Vec<FTag>;
using IVec = hn::Vec<ITag>;

constexpr int kVecLanes = static_cast<int>(hn::MaxLanes(FTag()));
constexpr int kVecs = static_cast<int>(kPanelRows) / kVecLanes;  // that make up the 16 rows of a panel

#undef CAIRN_VNNI
#if HWY_TARGET == HWY_AVX3_DL
#define CAIRN_VNNI 1
#else
#define CAIRN_VNNI 0
#endif

// Registers: kTileRows x kTilePanels x kVecs integer sums, as many f32 sums (that may spill: they are used once a
// block), the weights of a quad.
constexpr int kTileRows = 4;
#if HWY_TARGET == HWY_AVX3_DL
constexpr int kTilePanels = 3;
#elif HWY_TARGET == HWY_AVX3
constexpr int kTilePanels = 2;
#else
constexpr int kTilePanels = 1;
#endif

constexpr size_t kQuadBytes = CAIRN_VNNI ? 4 : 8;  // of the rows that are multiplied
constexpr size_t kTailAt = kBlockQuads * kQuadBytes;
constexpr size_t kRecordBytes = kTailAt + sizeof(RecordTail);

// ------------------------------------------------------------------------------------------- rows that are multiplied

// One block of 32 numbers to int8, its quads stored as Dot() wants them.
HWY_INLINE void QuantizeBlock(const float* in, uint8_t* record) {
  const FTag df;
  const ITag di;
  constexpr int kCount = static_cast<int>(kBlockColumns) / kVecLanes;
  FVec x[kCount];
  IVec largest = hn::Zero(di);
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    x[i] = hn::LoadU(df, in + i * kVecLanes);
    // As integers, so that infinities and NaN are larger than every number.
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(x[i])));
  }
  const float peak = hn::GetLane(hn::BitCast(df, hn::MaxOfLanes(di, largest)));
  const bool finite = peak <= std::numeric_limits<float>::max();
  const bool nonzero = peak >= kSmallestPeak;
  const float scale = finite ? (nonzero ? peak * (1.0f / 127.0f) : 0.0f) : std::numeric_limits<float>::quiet_NaN();
  const FVec inverse = hn::Set(df, finite && nonzero ? 127.0f / peak : 0.0f);
  IVec sum = hn::Zero(di);
#if CAIRN_VNNI
  int8_t* quads = reinterpret_cast<int8_t*>(record);
#else
  HWY_ALIGN int32_t pairs[kBlockColumns];
#endif
#pragma GCC unroll 8
  for (int i = 0; i < kCount; ++i) {
    const IVec q = hn::NearestInt(hn::Mul(x[i], inverse));
    sum = hn::Add(sum, q);
#if CAIRN_VNNI
    hn::StoreU(hn::DemoteTo(hn::Rebind<int8_t, ITag>(), q), hn::Rebind<int8_t, ITag>(), quads + i * kVecLanes);
#else
    // Columns 0 and 2 of a quad to the halves of its lane 0, 1 and 3 to those of lane 1.
    const IVec low = hn::And(q, hn::Set(di, 0xffff));
    hn::Store(hn::Or(low, hn::ShiftLeft<16>(hn::Shuffle1032(q))), di, pairs + i * kVecLanes);
#endif
  }
#if !CAIRN_VNNI
  for (size_t g = 0; g < kBlockQuads; ++g) {
    std::memcpy(record + g * kQuadBytes, pairs + 4 * g, kQuadBytes);
  }
#endif
  const int32_t total = finite ? hn::GetLane(hn::SumOfLanes(di, sum)) : 0;
  const int32_t start = -128 * total;
  const RecordTail tail{scale, scale * static_cast<float>(total), {start, start, start}, 0};
  std::memcpy(record + kTailAt, &tail, sizeof(tail));
}

void QuantizeRow(const float* in, size_t columns, uint8_t* records) {
  const size_t whole = columns / kBlockColumns;
  for (size_t b = 0; b < whole; ++b) QuantizeBlock(in + b * kBlockColumns, records + b * kRecordBytes);
  if (whole * kBlockColumns < columns) {
    float last[kBlockColumns] = {};
    std::memcpy(last, in + whole * kBlockColumns, (columns - whole * kBlockColumns) * sizeof(float));
    QuantizeBlock(last, records + whole * kRecordBytes);
  }
}

// ------------------------------------------------------------------------------------------------------ the integers

template <typename T>
HWY_INLINE T LoadAs(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

#if CAIRN_VNNI

using Quad = IVec;  // 4 bytes of weights a lane
using Left = IVec;  // the 4 bytes of a row that they are multiplied with, in every lane

HWY_INLINE Left LoadLeft(const uint8_t* quad) { return hn::Set(ITag(), LoadAs<int32_t>(quad)); }
HWY_INLINE IVec Dot(IVec sum, Quad w, Left a) { return IVec{_mm512_dpbusd_epi32(sum.raw, w.raw, a.raw)}; }

template <int kQuad>
HWY_INLINE Quad Nibbles(IVec bytes) {
  const ITag di;
  return hn::And(kQuad % 2 == 0 ? bytes : hn::ShiftRight<4>(bytes), hn::Set(di, 0x0f0f0f0f));
}
HWY_INLINE Quad Bytes(IVec bytes) { return bytes; }

#else

struct Quad {
  IVec even, odd;  // columns 0 and 2, and 1 and 3, as 16-bit halves of each lane
};
struct Left {
  IVec even, odd;
};

HWY_INLINE Left LoadLeft(const uint8_t* quad) {
  return {hn::Set(ITag(), LoadAs<int32_t>(quad)), hn::Set(ITag(), LoadAs<int32_t>(quad + 4))};
}

HWY_INLINE IVec Dot(IVec sum, const Quad& w, const Left& a) {
  return MulPairs(w.odd, a.odd, MulPairs(w.even, a.even, sum));
}

template <int kQuad>
HWY_INLINE Quad Nibbles(IVec bytes) {
  const IVec mask = hn::Set(ITag(), 0x000f000f);
  const IVec even = kQuad % 2 == 0 ? bytes : hn::ShiftRight<4>(bytes);
  return {hn::And(even, mask), hn::And(hn::ShiftRight<8>(even), mask)};
}
HWY_INLINE Quad Bytes(IVec bytes) {
  const IVec mask = hn::Set(ITag(), 0x00ff00ff);
  return {hn::And(bytes, mask), hn::And(hn::ShiftRight<8>(bytes), mask)};
}

#endif  // CAIRN_VNNI

// --------------------------------------------------------------------------------------------------------- the panels

HWY_INLINE FVec LoadHalves(const uint8_t* halves) {
  const hn::Rebind<hwy::float16_t, FTag> half;
  return hn::PromoteTo(FTag(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(halves)));
}

// Where the weights of one block after the other come from: quads and scales (and minima) of panel p, lanes v.

// A panel that streams by.
struct Int8Panel {
  static constexpr bool kMinima = false;
  static constexpr size_t kBlockBytes = kPanelRows * kBlockColumns;
  static constexpr size_t kScaleBytes = kPanelRows * 2;
  static constexpr size_t kAhead = 8 * kBlockBytes;
  const uint8_t* weights;
  const uint8_t* scales;

  template <int kQuad>
  HWY_INLINE Quad Load(int, int v) const {
    return Bytes(hn::Load(ITag(), reinterpret_cast<const int32_t*>(weights + kQuad * 64 + v * kVecLanes * 4)));
  }
  HWY_INLINE FVec Scale(int, int v) const { return LoadHalves(scales + v * kVecLanes * 2); }
  HWY_INLINE FVec Minimum(int, int) const { return hn::Zero(FTag()); }
  HWY_INLINE void Prefetch() const {
    for (size_t i = 0; i < kBlockBytes; i += 64) hwy::Prefetch(weights + kAhead + i);
  }
  HWY_INLINE void Next() {
    weights += kBlockBytes;
    scales += kScaleBytes;
  }
};

struct Int4Panel {
  static constexpr bool kMinima = true;
  static constexpr size_t kBlockBytes = kPanelRows * kBlockColumns / 2;
  static constexpr size_t kScaleBytes = kPanelRows * 4;
  static constexpr size_t kAhead = 16 * kBlockBytes;
  const uint8_t* weights;
  const uint8_t* scales;

  template <int kQuad>
  HWY_INLINE Quad Load(int, int v) const {
    const uint8_t* at = weights + kQuad / 2 * 64 + v * kVecLanes * 4;
    return Nibbles<kQuad>(hn::Load(ITag(), reinterpret_cast<const int32_t*>(at)));
  }
  HWY_INLINE FVec Scale(int, int v) const { return LoadHalves(scales + v * kVecLanes * 2); }
  HWY_INLINE FVec Minimum(int, int v) const { return LoadHalves(scales + kPanelRows * 2 + v * kVecLanes * 2); }
  HWY_INLINE void Prefetch() const {
    for (size_t i = 0; i < kBlockBytes; i += 64) hwy::Prefetch(weights + kAhead + i);
  }
  HWY_INLINE void Next() {
    weights += kBlockBytes;
    scales += kScaleBytes;
  }
};

// What is asked of the memory during each block of a slice: lines of the packed weights of the slice after it, in each
// panel of a group.
struct SliceAhead {
  const uint8_t* at;
  size_t panel_bytes;
  size_t lines;
};

// Some blocks of the panels of a group, unpacked to bytes and f32 in the order of their use: for each block its quads,
// of each the panels one after the other; then the scales, then the minima of the panels.
template <bool kHasMinima>
struct Slice {
  static constexpr bool kMinima = kHasMinima;
  static constexpr size_t kQuadStride = kTilePanels * 64;
  static constexpr size_t kScalesAt = kBlockQuads * kQuadStride;
  static constexpr size_t kMinimaAt = kScalesAt + kTilePanels * 64;
  static constexpr size_t kBlockBytes = kMinimaAt + (kHasMinima ? kTilePanels * 64 : 0);
  const uint8_t* at;
  SliceAhead ahead;

  template <int kQuad>
  HWY_INLINE Quad Load(int p, int v) const {
    return Bytes(
        hn::Load(ITag(), reinterpret_cast<const int32_t*>(at + kQuad * kQuadStride + p * 64 + v * kVecLanes * 4)));
  }
  HWY_INLINE FVec Scale(int p, int v) const {
    return hn::Load(FTag(), reinterpret_cast<const float*>(at + kScalesAt + p * 64 + v * kVecLanes * 4));
  }
  HWY_INLINE FVec Minimum(int p, int v) const {
    return hn::Load(FTag(), reinterpret_cast<const float*>(at + kMinimaAt + p * 64 + v * kVecLanes * 4));
  }
  HWY_INLINE void Prefetch() const {
    for (size_t line = 0; line < ahead.lines; ++line) {
#pragma GCC unroll 4
      for (int p = 0; p < kTilePanels; ++p) __builtin_prefetch(ahead.at + p * ahead.panel_bytes + line * 64, 0, 2);
    }
  }
  HWY_INLINE void Next() {
    at += kBlockBytes;
    ahead.at += ahead.lines * 64;
  }
};

template <int kQuad, class Source, int kRows, int kPanels>
HWY_INLINE void AddQuad(const Source& source, const uint8_t* const (&records)[kRows],
                        IVec (&sum)[kRows][kPanels][kVecs]) {
  Left a[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) a[r] = LoadLeft(records[r] + kQuad * kQuadBytes);
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const Quad w = source.template Load<kQuad>(p, v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r][p][v] = Dot(sum[r][p][v], w, a[r]);
    }
  }
}

// Adds `blocks` blocks of kPanels panels times kRows rows to `sums`; [kRows] rows of kPanels * 16, `stride` apart.
// `first` is the record of the first row. The order of the additions of one sum depends on nothing but the blocks.
template <class Source, int kRows, int kPanels>
HWY_NOINLINE void Tile(Source source, size_t blocks, const uint8_t* first, size_t row_bytes, float* sums,
                       size_t stride) {
  const FTag df;
  const ITag di;
  const uint8_t* records[kRows];
  FVec total[kRows][kPanels][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    records[r] = first + r * row_bytes;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        total[r][p][v] = hn::LoadU(df, sums + r * stride + p * kPanelRows + v * kVecLanes);
      }
    }
  }
  for (size_t block = 0; block < blocks; ++block) {
    source.Prefetch();
    IVec sum[kRows][kPanels][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const uint8_t* starts = records[r] + kTailAt + offsetof(RecordTail, start);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v)
          sum[r][p][v] = Source::kMinima ? hn::Zero(di) : hn::Set(di, LoadAs<int32_t>(starts + 4 * p));
      }
    }
    AddQuad<0>(source, records, sum);
    AddQuad<1>(source, records, sum);
    AddQuad<2>(source, records, sum);
    AddQuad<3>(source, records, sum);
    AddQuad<4>(source, records, sum);
    AddQuad<5>(source, records, sum);
    AddQuad<6>(source, records, sum);
    AddQuad<7>(source, records, sum);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const FVec scale = hn::Set(df, LoadAs<float>(records[r] + kTailAt + offsetof(RecordTail, scale)));
      const FVec offset = hn::Set(df, LoadAs<float>(records[r] + kTailAt + offsetof(RecordTail, offset)));
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) {
          const FVec both = hn::Mul(scale, source.Scale(p, v));
          total[r][p][v] = hn::MulAdd(hn::ConvertTo(df, sum[r][p][v]), both, total[r][p][v]);
          if (Source::kMinima) total[r][p][v] = hn::MulAdd(source.Minimum(p, v), offset, total[r][p][v]);
        }
      }
      records[r] += kRecordBytes;
    }
    source.Next();
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        hn::StoreU(total[r][p][v], df, sums + r * stride + p * kPanelRows + v * kVecLanes);
      }
    }
  }
}

template <class Source, int kPanels>
HWY_INLINE void TileOfRows(size_t count, const Source& source, size_t blocks, const uint8_t* first, size_t row_bytes,
                           float* sums, size_t stride) {
  static_assert(kTileRows == 4);
  switch (count) {
    case 1:
      return Tile<Source, 1, kPanels>(source, blocks, first, row_bytes, sums, stride);
    case 2:
      return Tile<Source, 2, kPanels>(source, blocks, first, row_bytes, sums, stride);
    case 3:
      return Tile<Source, 3, kPanels>(source, blocks, first, row_bytes, sums, stride);
    default:
      return Tile<Source, 4, kPanels>(source, blocks, first, row_bytes, sums, stride);
  }
}

// out = or += the sums of [count] rows, [width] columns.
HWY_INLINE void Deliver(const PanelProduct& product, size_t row, size_t count, size_t column, size_t width,
                        const float* sums, size_t stride) {
  for (size_t r = 0; r < count; ++r) {
    float* out = product.out + (row + r) * product.layout.rows + column;
    const float* from = sums + r * stride;
    if (product.accumulate) {
      for (size_t i = 0; i < width; ++i) out[i] += from[i];
    } else {
      std::memcpy(out, from, width * sizeof(float));
    }
  }
}

// Few rows: the weights stream by once, panel after panel.
template <class Panel>
HWY_INLINE void FewRows(const PanelProduct& product, size_t first_panel, size_t last_panel) {
  const PanelLayout& layout = product.layout;
  for (size_t panel = first_panel; panel < last_panel; ++panel) {
    const uint8_t* start = product.packed + panel * layout.panel_bytes();
    const size_t column = panel * kPanelRows;
    for (size_t row = 0; row < product.m; row += kTileRows) {
      const size_t count = std::min<size_t>(kTileRows, product.m - row);
      float sums[kTileRows * kPanelRows] = {};
      TileOfRows<Panel, 1>(count, Panel{start, start + layout.scale_offset()}, layout.blocks(),
                           product.rows.records + row * product.rows.row_bytes, product.rows.row_bytes, sums,
                           kPanelRows);
      Deliver(product, row, count, column, std::min(kPanelRows, layout.rows - column), sums, kPanelRows);
    }
  }
}

// Blocks of a slice: with its 3 panels of bytes it stays in the first cache while all rows pass by.
constexpr size_t kSliceBlocks = 16;

// Blocks [begin, end) of panel `p` of a group.
template <bool kInt4>
HWY_INLINE void Unpack(const PanelLayout& layout, const uint8_t* panel, size_t p, size_t begin, size_t end,
                       uint8_t* out) {
  const hn::CappedTag<uint8_t, 64> d8;
  const FTag df;
  for (size_t block = begin; block < end; ++block, out += Slice<kInt4>::kBlockBytes) {
    const uint8_t* from = panel + block * layout.block_bytes();
    uint8_t* to = out + p * 64;
    for (size_t i = 0; i < 64; i += hn::Lanes(d8)) {
      if (kInt4) {
        for (size_t pair = 0; pair < kBlockQuads / 2; ++pair) {
          const auto bytes = hn::Load(d8, from + pair * 64 + i);
          const auto mask = hn::Set(d8, 15);
          const hn::Repartition<uint16_t, decltype(d8)> d16;
          const auto high = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes)));
          hn::Store(hn::And(bytes, mask), d8, to + 2 * pair * Slice<kInt4>::kQuadStride + i);
          hn::Store(hn::And(high, mask), d8, to + (2 * pair + 1) * Slice<kInt4>::kQuadStride + i);
        }
      } else {
        for (size_t g = 0; g < kBlockQuads; ++g) {
          hn::Store(hn::Load(d8, from + g * 64 + i), d8, to + g * Slice<kInt4>::kQuadStride + i);
        }
      }
    }
    const uint8_t* scales = panel + layout.scale_offset() + block * layout.scale_bytes();
    for (size_t i = 0; i < kPanelRows; i += kVecLanes) {
      float* floats = reinterpret_cast<float*>(to + Slice<kInt4>::kScalesAt) + i;
      hn::Store(LoadHalves(scales + i * 2), df, floats);
      if (kInt4) {
        float* minima = reinterpret_cast<float*>(to + Slice<kInt4>::kMinimaAt) + i;
        hn::Store(LoadHalves(scales + (kPanelRows + i) * 2), df, minima);
      }
    }
  }
}

// Spreads the packed weights of the slice from block `begin` on over the `tiles` tiles that are worked on before.
// After the last slice of a group comes the first of the one that this thread is likely to get next.
HWY_INLINE SliceAhead Ahead(const PanelProduct& product, size_t first_panel, size_t begin, size_t tiles) {
  const PanelLayout& layout = product.layout;
  if (begin >= layout.blocks()) {
    begin = 0;
    first_panel += product.next_group * kTilePanels;
  }
  if (first_panel + kTilePanels > layout.panels()) return {product.packed, 0, 0};
  const size_t block_lines = layout.block_bytes() / 64;
  return {product.packed + first_panel * layout.panel_bytes() + begin * layout.block_bytes(), layout.panel_bytes(),
          (block_lines + tiles - 1) / tiles};
}

// Rows [first_row, last_row) times a group of panels. `scratch` has room for a slice, `sums` for 16 * kTilePanels
// numbers a row.
template <bool kInt4>
HWY_INLINE void ManyRows(const PanelProduct& product, size_t group, size_t first_row, size_t last_row, uint8_t* scratch,
                         float* sums) {
  const PanelLayout& layout = product.layout;
  const size_t first_panel = group * kTilePanels;
  const size_t count = std::min<size_t>(kTilePanels, layout.panels() - first_panel);
  constexpr size_t kWidth = kTilePanels * kPanelRows;
  std::memset(sums, 0, (last_row - first_row) * kWidth * sizeof(float));
  // Panels that a last group lacks.
  if (count < kTilePanels) std::memset(scratch, 0, kSliceBlocks * Slice<kInt4>::kBlockBytes);
  const size_t tiles = (last_row - first_row + kTileRows - 1) / kTileRows;
  for (size_t begin = 0; begin < layout.blocks(); begin += kSliceBlocks) {
    const size_t end = std::min(layout.blocks(), begin + kSliceBlocks);
    for (size_t p = 0; p < count; ++p) {
      Unpack<kInt4>(layout, product.packed + (first_panel + p) * layout.panel_bytes(), p, begin, end, scratch);
    }
    SliceAhead ahead = Ahead(product, first_panel, end, tiles);
    const uint8_t* ahead_end = ahead.at + kSliceBlocks * layout.block_bytes();
    for (size_t row = first_row; row < last_row; row += kTileRows) {
      TileOfRows<Slice<kInt4>, kTilePanels>(std::min<size_t>(kTileRows, last_row - row), Slice<kInt4>{scratch, ahead},
                                            end - begin,
                                            product.rows.records + row * product.rows.row_bytes + begin * kRecordBytes,
                                            product.rows.row_bytes, sums + (row - first_row) * kWidth, kWidth);
      ahead.at += (end - begin) * ahead.lines * 64;
      if (ahead.at >= ahead_end) ahead.lines = 0;
    }
  }
  const size_t column = first_panel * kPanelRows;
  Deliver(product, first_row, last_row - first_row, column, std::min(kWidth, layout.rows - column), sums, kWidth);
}

void MultiplyFewRows(const PanelProduct& product, size_t first_panel, size_t last_panel) {
  if (product.layout.int4) {
    FewRows<Int4Panel>(product, first_panel, last_panel);
  } else {
    FewRows<Int8Panel>(product, first_panel, last_panel);
  }
}

void MultiplyManyRows(const PanelProduct& product, size_t group, size_t first_row, size_t last_row, uint8_t* scratch,
                      float* sums) {
  if (product.layout.int4) {
    ManyRows<true>(product, group, first_row, last_row, scratch, sums);
  } else {
    ManyRows<false>(product, group, first_row, last_row, scratch, sums);
  }
}

PanelTiling Tiling() { return {kTileRows, kTilePanels, kRecordBytes, kSliceBlocks * Slice<true>::kBlockBytes}; }

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/threads.h"
#include "kernels/thread_scratch.h"

namespace cairn {

namespace {

HWY_EXPORT(QuantizeRow);
HWY_EXPORT(MultiplyFewRows);
HWY_EXPORT(MultiplyManyRows);
HWY_EXPORT(Tiling);

template <typename T, int kUse>
T* Scratch(size_t size) {
  return ThreadScratch<T, std::integral_constant<int, kUse>>(size);
}

}  // namespace

void MultiplyPanels(const PanelLayout& layout, const uint8_t* packed, size_t m, const float* in, float* out,
                    bool accumulate) {
  const PanelTiling tiling = HWY_DYNAMIC_DISPATCH(Tiling)();
  const size_t threads = static_cast<size_t>(ThreadCount());
  PanelProduct product{layout, packed, {}, m, out, accumulate, threads};
  product.rows.row_bytes = layout.blocks() * tiling.record_bytes;
  product.rows.records = Scratch<uint8_t, 0>(m * product.rows.row_bytes);
  const auto quantize = [&](size_t row, int) {
    HWY_DYNAMIC_DISPATCH(QuantizeRow)
    (in + row * layout.columns, layout.columns, product.rows.records + row * product.rows.row_bytes);
  };
  // Waking the threads costs more than this many numbers do.
  constexpr size_t kFewNumbers = 16384;
  if (m * layout.columns <= kFewNumbers) {
    for (size_t row = 0; row < m; ++row) quantize(row, 0);
  } else {
    ParallelFor(m, quantize);
  }
  if (m <= kFewRows) {
    constexpr size_t kTaskBytes = 128 << 10;
    const size_t share = (layout.panels() + threads - 1) / threads;
    const size_t run = std::max<size_t>(1, std::min(kTaskBytes / layout.panel_bytes(), share));
    const size_t tasks = (layout.panels() + run - 1) / run;
    const auto body = [&](size_t task, int) {
      HWY_DYNAMIC_DISPATCH(MultiplyFewRows)(product, task * run, std::min(layout.panels(), (task + 1) * run));
    };
    constexpr size_t kFewBytes = 128 << 10;
    if (layout.bytes() <= kFewBytes) {
      for (size_t task = 0; task < tasks; ++task) body(task, 0);
    } else {
      ParallelFor(tasks, body);
    }
    return;
  }
  const size_t groups = (layout.panels() + tiling.panels - 1) / tiling.panels;
  const size_t chunks = std::max<size_t>((m + kChunkRows - 1) / kChunkRows,
                                         groups >= 4 * threads ? 1 : std::min(m / 16 + 1, 4 * threads / groups));
  const size_t chunk = ((m + chunks - 1) / chunks + tiling.rows - 1) / tiling.rows * tiling.rows;
  const size_t chunk_count = (m + chunk - 1) / chunk;
  ParallelFor(groups * chunk_count, [&](size_t task, int) {
    const size_t first = task / groups * chunk;
    uint8_t* scratch = Scratch<uint8_t, 1>(tiling.slice_bytes);
    float* sums = Scratch<float, 2>(chunk * tiling.panels * kPanelRows);
    HWY_DYNAMIC_DISPATCH(MultiplyManyRows)
    (product, task % groups, first, std::min(m, first + chunk), scratch, sums);
  });
}

}  // namespace cairn
#endif  // HWY_ONCE
