#include "kernels/packed_panels.h"

#include <algorithm>
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

// Highway 1.0.3 names VNNI by its VEX form alone, which AVX-512 processors may lack.
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR \
  HWY_TARGET_STR_AVX3  \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq,avx512vnni"
#endif

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
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
constexpr int kTileRows = 4;
constexpr int kTilePanels = 3;
#else
constexpr int kTileRows = 4;
constexpr int kTilePanels = 1;
#endif

// ------------------------------------------------------------------------------------------- rows that are multiplied

// One block of 32 numbers to int8, its quads stored as Dot() wants them.
HWY_INLINE void QuantizeBlock(const float* in, const QuantizedRows& out, size_t index) {
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
  int8_t* quads = reinterpret_cast<int8_t*>(out.quads) + index * kBlockColumns;
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
    std::memcpy(reinterpret_cast<int64_t*>(out.quads) + index * kBlockQuads + g, pairs + 4 * g, sizeof(int64_t));
  }
#endif
  const int32_t total = finite ? hn::GetLane(hn::SumOfLanes(di, sum)) : 0;
  out.scales[index] = scale;
  out.starts[index] = -128 * total;
  out.offsets[index] = scale * static_cast<float>(total);
}

void QuantizeRow(const float* in, size_t columns, size_t row, const QuantizedRows& out) {
  const size_t whole = columns / kBlockColumns;
  for (size_t b = 0; b < whole; ++b) QuantizeBlock(in + b * kBlockColumns, out, row * out.blocks + b);
  if (whole < out.blocks) {
    float last[kBlockColumns] = {};
    std::memcpy(last, in + whole * kBlockColumns, (columns - whole * kBlockColumns) * sizeof(float));
    QuantizeBlock(last, out, row * out.blocks + whole);
  }
}

// ------------------------------------------------------------------------------------------------------ the integers

#if CAIRN_VNNI

using Quad = IVec;  // 4 bytes of weights a lane
using Left = IVec;  // the 4 bytes of a row that they are multiplied with, in every lane
constexpr size_t kQuadBytes = 4;

HWY_INLINE Left LoadLeft(const uint8_t* quad) {
  int32_t bytes;
  std::memcpy(&bytes, quad, sizeof(bytes));
  return hn::Set(ITag(), bytes);
}
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
constexpr size_t kQuadBytes = 8;

HWY_INLINE Left LoadLeft(const uint8_t* quad) {
  int32_t pairs[2];
  std::memcpy(pairs, quad, sizeof(pairs));
  return {hn::Set(ITag(), pairs[0]), hn::Set(ITag(), pairs[1])};
}

// sum + a.low * b.low + a.high * b.high in each lane.
HWY_INLINE IVec MulPairs(IVec a, IVec b, IVec sum) {
  const ITag di;
#if HWY_ARCH_X86
  const hn::Repartition<int16_t, ITag> d16;
  IVec unused = hn::Zero(di);
  return hn::ReorderWidenMulAccumulate(di, hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
#else
  const auto low = [&](IVec x) { return hn::ShiftRight<16>(hn::ShiftLeft<16>(x)); };
  sum = hn::Add(sum, hn::Mul(low(a), low(b)));
  return hn::Add(sum, hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b)));
#endif
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

// One panel of each kind: the weights of a quad, and the scales (and minima) of a block, for lanes v.
struct Int8Panel {
  static constexpr bool kMinima = false;
  static constexpr size_t kBlockBytes = kPanelRows * kBlockColumns;
  static constexpr size_t kScaleBytes = kPanelRows * 2;
  const uint8_t* weights;
  const uint8_t* scales;

  template <int kQuad>
  HWY_INLINE Quad Load(size_t block, int v) const {
    const uint8_t* at = weights + block * kBlockBytes + kQuad * 64 + v * kVecLanes * 4;
    return Bytes(hn::Load(ITag(), reinterpret_cast<const int32_t*>(at)));
  }
  HWY_INLINE FVec Scale(size_t block, int v) const {
    return LoadHalves(scales + block * kScaleBytes + v * kVecLanes * 2);
  }
  HWY_INLINE FVec Minimum(size_t, int) const { return hn::Zero(FTag()); }
  HWY_INLINE void Prefetch(size_t block) const {
    for (size_t i = 0; i < kBlockBytes; i += 64) hwy::Prefetch(weights + block * kBlockBytes + i);
  }
};

struct Int4Panel {
  static constexpr bool kMinima = true;
  static constexpr size_t kBlockBytes = kPanelRows * kBlockColumns / 2;
  static constexpr size_t kScaleBytes = kPanelRows * 4;
  const uint8_t* weights;
  const uint8_t* scales;

  template <int kQuad>
  HWY_INLINE Quad Load(size_t block, int v) const {
    const uint8_t* at = weights + block * kBlockBytes + kQuad / 2 * 64 + v * kVecLanes * 4;
    return Nibbles<kQuad>(hn::Load(ITag(), reinterpret_cast<const int32_t*>(at)));
  }
  HWY_INLINE FVec Scale(size_t block, int v) const {
    return LoadHalves(scales + block * kScaleBytes + v * kVecLanes * 2);
  }
  HWY_INLINE FVec Minimum(size_t block, int v) const {
    return LoadHalves(scales + block * kScaleBytes + kPanelRows * 2 + v * kVecLanes * 2);
  }
  HWY_INLINE void Prefetch(size_t block) const {
    for (size_t i = 0; i < kBlockBytes; i += 64) hwy::Prefetch(weights + block * kBlockBytes + i);
  }
};

template <int kQuad, class Panel, int kRows, int kPanels>
HWY_INLINE void AddQuad(const Panel* panels, size_t block, const uint8_t* const (&left)[kRows],
                        IVec (&sum)[kRows][kPanels][kVecs]) {
  Left a[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) a[r] = LoadLeft(left[r] + block * kBlockQuads * kQuadBytes + kQuad * kQuadBytes);
#pragma GCC unroll 4
  for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      const Quad w = panels[p].template Load<kQuad>(block, v);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) sum[r][p][v] = Dot(sum[r][p][v], w, a[r]);
    }
  }
}

// Adds the blocks [begin, end) of kPanels panels times kRows rows to `sums`; [kRows] rows of kPanels * 16, `stride`
// apart. The order of the additions of one sum depends on nothing but the blocks. `ahead` > 0 prefetches the weights
// that many blocks before their use.
template <class Panel, int kRows, int kPanels>
HWY_NOINLINE void Tile(const Panel* panels, const QuantizedRows& rows, size_t row, size_t begin, size_t end,
                       float* sums, size_t stride, size_t ahead) {
  const FTag df;
  const ITag di;
  const uint8_t* left[kRows];
  FVec total[kRows][kPanels][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    left[r] = rows.quads + (row + r) * rows.blocks * kBlockQuads * kQuadBytes;
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        total[r][p][v] = hn::LoadU(df, sums + r * stride + p * kPanelRows + v * kVecLanes);
      }
    }
  }
  const float* scales = rows.scales + row * rows.blocks;
  const int32_t* starts = rows.starts + row * rows.blocks;
  const float* offsets = rows.offsets + row * rows.blocks;
  for (size_t block = begin; block < end; ++block) {
    if (ahead != 0) {
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) panels[p].Prefetch(block + ahead);
    }
    IVec sum[kRows][kPanels][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      // int8: the weights are stored 128 too large.
      const IVec start = Panel::kMinima ? hn::Zero(di) : hn::Set(di, starts[r * rows.blocks + block]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sum[r][p][v] = start;
      }
    }
    AddQuad<0>(panels, block, left, sum);
    AddQuad<1>(panels, block, left, sum);
    AddQuad<2>(panels, block, left, sum);
    AddQuad<3>(panels, block, left, sum);
    AddQuad<4>(panels, block, left, sum);
    AddQuad<5>(panels, block, left, sum);
    AddQuad<6>(panels, block, left, sum);
    AddQuad<7>(panels, block, left, sum);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        const FVec scale = panels[p].Scale(block, v);
        const FVec minimum = panels[p].Minimum(block, v);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const FVec both = hn::Mul(scale, hn::Set(df, scales[r * rows.blocks + block]));
          total[r][p][v] = hn::MulAdd(hn::ConvertTo(df, sum[r][p][v]), both, total[r][p][v]);
          if (Panel::kMinima) {
            total[r][p][v] = hn::MulAdd(minimum, hn::Set(df, offsets[r * rows.blocks + block]), total[r][p][v]);
          }
        }
      }
    }
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

template <class Panel, int kPanels>
HWY_INLINE void TileOfRows(size_t count, const Panel* panels, const QuantizedRows& rows, size_t row, size_t begin,
                           size_t end, float* sums, size_t stride, size_t ahead) {
  static_assert(kTileRows == 4);
  switch (count) {
    case 1:
      return Tile<Panel, 1, kPanels>(panels, rows, row, begin, end, sums, stride, ahead);
    case 2:
      return Tile<Panel, 2, kPanels>(panels, rows, row, begin, end, sums, stride, ahead);
    case 3:
      return Tile<Panel, 3, kPanels>(panels, rows, row, begin, end, sums, stride, ahead);
    default:
      return Tile<Panel, 4, kPanels>(panels, rows, row, begin, end, sums, stride, ahead);
  }
}

template <class Panel>
HWY_INLINE Panel PanelAt(const PanelProduct& product, size_t panel) {
  const uint8_t* start = product.packed + panel * product.layout.panel_bytes();
  return {start, start + product.layout.scale_offset()};
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

// At most kTileRows rows: the weights stream by once, panel after panel.
template <class Panel>
HWY_INLINE void FewRows(const PanelProduct& product, size_t first_panel, size_t last_panel) {
  const size_t blocks = product.layout.blocks();
  for (size_t panel = first_panel; panel < last_panel; ++panel) {
    const Panel w = PanelAt<Panel>(product, panel);
    float sums[kTileRows * kPanelRows] = {};
    TileOfRows<Panel, 1>(product.m, &w, product.rows, 0, 0, blocks, sums, kPanelRows, product.ahead);
    const size_t column = panel * kPanelRows;
    Deliver(product, 0, product.m, column, std::min(kPanelRows, product.layout.rows - column), sums, kPanelRows);
  }
}

// Rows [first_row, last_row) times the panels [first_panel, last_panel) (at most kTilePanels). `sums` has room for
// 16 * kTilePanels numbers a row.
template <class Panel>
HWY_INLINE void ManyRows(const PanelProduct& product, size_t first_panel, size_t last_panel, size_t first_row,
                         size_t last_row, float* sums) {
  const size_t count = last_panel - first_panel;
  const size_t width = count * kPanelRows;
  std::memset(sums, 0, (last_row - first_row) * width * sizeof(float));
  Panel w[kTilePanels] = {};
  for (size_t p = 0; p < count; ++p) w[p] = PanelAt<Panel>(product, first_panel + p);
  // Slices of the panels that stay in the first cache while all rows pass by.
  constexpr size_t kSliceBlocks = 16;
  const size_t blocks = product.layout.blocks();
  for (size_t begin = 0; begin < blocks; begin += kSliceBlocks) {
    const size_t end = std::min(blocks, begin + kSliceBlocks);
    for (size_t row = first_row; row < last_row; row += kTileRows) {
      const size_t rows = std::min<size_t>(kTileRows, last_row - row);
      float* at = sums + (row - first_row) * width;
      if (count == kTilePanels) {
        TileOfRows<Panel, kTilePanels>(rows, w, product.rows, row, begin, end, at, width, 0);
      } else {
        for (size_t p = 0; p < count; ++p) {
          TileOfRows<Panel, 1>(rows, w + p, product.rows, row, begin, end, at + p * kPanelRows, width, 0);
        }
      }
    }
  }
  const size_t column = first_panel * kPanelRows;
  Deliver(product, first_row, last_row - first_row, column, std::min(width, product.layout.rows - column), sums, width);
}

void MultiplyFewRows(const PanelProduct& product, size_t first_panel, size_t last_panel) {
  if (product.layout.int4) {
    FewRows<Int4Panel>(product, first_panel, last_panel);
  } else {
    FewRows<Int8Panel>(product, first_panel, last_panel);
  }
}

void MultiplyManyRows(const PanelProduct& product, size_t group, size_t first_row, size_t last_row, float* sums) {
  const size_t first = group * kTilePanels;
  const size_t last = std::min(product.layout.panels(), first + kTilePanels);
  if (product.layout.int4) {
    ManyRows<Int4Panel>(product, first, last, first_row, last_row, sums);
  } else {
    ManyRows<Int8Panel>(product, first, last, first_row, last_row, sums);
  }
}

PanelTiling Tiling() { return {kTileRows, kTilePanels, kBlockQuads * kQuadBytes}; }

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/aligned.h"
#include "base/threads.h"

namespace cairn {

namespace {

HWY_EXPORT(QuantizeRow);
HWY_EXPORT(MultiplyFewRows);
HWY_EXPORT(MultiplyManyRows);
HWY_EXPORT(Tiling);

// Memory of one thread that grows to the largest product and stays.
template <typename T, int kUse>
T* Scratch(size_t size) {
  thread_local AlignedBuffer<T> buffer;
  if (buffer.size() < size) buffer = AlignedBuffer<T>(size);
  return buffer.data();
}

QuantizedRows RowsScratch(size_t m, size_t blocks, size_t block_bytes) {
  QuantizedRows rows;
  rows.blocks = blocks;
  rows.quads = Scratch<uint8_t, 0>(m * blocks * block_bytes);
  rows.scales = Scratch<float, 1>(2 * m * blocks);
  rows.offsets = rows.scales + m * blocks;
  rows.starts = Scratch<int32_t, 2>(m * blocks);
  return rows;
}

}  // namespace

void MultiplyPanels(const PanelLayout& layout, const uint8_t* packed, size_t m, const float* in, float* out,
                    bool accumulate) {
  const PanelTiling tiling = HWY_DYNAMIC_DISPATCH(Tiling)();
  const size_t threads = static_cast<size_t>(ThreadCount());
  PanelProduct product{layout, packed, RowsScratch(m, layout.blocks(), tiling.block_bytes), m, out, accumulate, 0};
  const auto quantize = [&](size_t row) {
    HWY_DYNAMIC_DISPATCH(QuantizeRow)(in + row * layout.columns, layout.columns, row, product.rows);
  };
  // Waking the threads costs more than this many numbers do.
  constexpr size_t kFewNumbers = 16384;
  if (m * layout.columns <= kFewNumbers) {
    for (size_t row = 0; row < m; ++row) quantize(row);
  } else {
    ParallelFor(m, [&](size_t row, int) { quantize(row); });
  }
  if (m <= tiling.rows) {
    constexpr size_t kTaskBytes = 128 << 10;
    product.ahead = kPrefetchBlocks;
    const size_t run =
        std::max<size_t>(1, std::min(kTaskBytes / layout.panel_bytes(), (layout.panels() + threads - 1) / threads));
    const size_t tasks = (layout.panels() + run - 1) / run;
    const auto body = [&](size_t task, int) {
      HWY_DYNAMIC_DISPATCH(MultiplyFewRows)(product, task * run, std::min(layout.panels(), (task + 1) * run));
    };
    constexpr size_t kFewBytes = 64 << 10;
    if (layout.bytes() <= kFewBytes) {
      for (size_t task = 0; task < tasks; ++task) body(task, 0);
    } else {
      ParallelFor(tasks, body);
    }
    return;
  }
  // The rows of a chunk stay in the second cache while the panels pass by.
  const size_t groups = (layout.panels() + tiling.panels - 1) / tiling.panels;
  const size_t chunks = std::max<size_t>((m + kChunkRows - 1) / kChunkRows,
                                         groups >= 4 * threads ? 1 : std::min(m / 16 + 1, 4 * threads / groups));
  const size_t chunk = ((m + chunks - 1) / chunks + tiling.rows - 1) / tiling.rows * tiling.rows;
  const size_t chunk_count = (m + chunk - 1) / chunk;
  ParallelFor(groups * chunk_count, [&](size_t task, int) {
    const size_t first = task / groups * chunk;
    float* sums = Scratch<float, 3>(chunk * tiling.panels * kPanelRows);
    HWY_DYNAMIC_DISPATCH(MultiplyManyRows)(product, task % groups, first, std::min(m, first + chunk), sums);
  });
}

}  // namespace cairn
#endif  // HWY_ONCE
