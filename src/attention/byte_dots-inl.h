// Products of bytes, for searches among rounded keys: 64 keys of a panel with several queries at once. Keys are
// unsigned bytes, queries signed ones. AVX-512 VNNI multiplies bytes; the other instruction sets widen them to 16 bits.
// The integers are the same. Compiled for every instruction set (see exp-inl.h about the guard).
#include <cstring>
#include <type_traits>

#include "attention/landmark_panels.h"

#if defined(CAIRN_ATTENTION_BYTE_DOTS) == defined(HWY_TARGET_TOGGLE)
#ifdef CAIRN_ATTENTION_BYTE_DOTS
#undef CAIRN_ATTENTION_BYTE_DOTS
#else
#define CAIRN_ATTENTION_BYTE_DOTS
#endif

#include <hwy/highway.h>

#include "kernels/vnni_target-inl.h"
// After it:
#include "kernels/mul_pairs-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FTag = hn::CappedTag<float, 16>;
using ITag = hn::RebindToSigned<FTag>;
using FVec = hn::Vec<FTag>;
using IVec = hn::Vec<ITag>;

constexpr size_t kLanes = hn::MaxLanes(FTag());
constexpr size_t kColumns = LandmarkPanels::kPanelColumns;

#undef CAIRN_VNNI
#if HWY_TARGET == HWY_AVX3_DL
#define CAIRN_VNNI 1
// Sums in registers: kScanRows x kScanVecs.
constexpr int kScanVecs = 4;
constexpr size_t kScanRows = 6;
#else
#define CAIRN_VNNI 0
constexpr int kScanVecs = 2;
constexpr size_t kScanRows = 3;
#endif

HWY_INLINE IVec LoadBytes(const uint8_t* at) { return hn::LoadU(ITag(), reinterpret_cast<const int32_t*>(at)); }

#if CAIRN_VNNI
using Quad = IVec;
HWY_INLINE Quad QuadOf(IVec bytes) { return bytes; }
HWY_INLINE Quad LeftQuad(const int8_t* at) {
  int32_t bytes;
  std::memcpy(&bytes, at, 4);
  return hn::Set(ITag(), bytes);
}
// Different fours in every lane.
HWY_INLINE Quad LeftQuads(const int8_t* at) { return hn::LoadU(ITag(), reinterpret_cast<const int32_t*>(at)); }
HWY_INLINE IVec Dot(IVec sum, Quad key, Quad query) { return IVec{_mm512_dpbusd_epi32(sum.raw, key.raw, query.raw)}; }
#else
// Numbers 0 and 2 of each quad, and 1 and 3, as 16-bit halves of a lane.
struct Quad {
  IVec even, odd;
};
HWY_INLINE Quad QuadOf(IVec bytes) {
  const ITag di;
  const IVec mask = hn::Set(di, 0x00ff00ff);
  return {hn::And(bytes, mask), hn::And(hn::ShiftRight<8>(bytes), mask)};
}
HWY_INLINE Quad LeftQuad(const int8_t* at) {
  const auto pair = [](int8_t low, int8_t high) {
    return static_cast<int32_t>((static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16) |
                                static_cast<uint16_t>(low));
  };
  return {hn::Set(ITag(), pair(at[0], at[2])), hn::Set(ITag(), pair(at[1], at[3]))};
}
// Different fours in every lane.
HWY_INLINE Quad LeftQuads(const int8_t* at) {
  const ITag di;
  const hn::Repartition<int16_t, ITag> d16;
  const auto bytes = hn::BitCast(d16, hn::LoadU(di, reinterpret_cast<const int32_t*>(at)));
  return {hn::BitCast(di, hn::ShiftRight<8>(hn::ShiftLeft<8>(bytes))), hn::BitCast(di, hn::ShiftRight<8>(bytes))};
}
HWY_INLINE IVec Dot(IVec sum, const Quad& key, const Quad& query) {
  return MulPairs(key.odd, query.odd, MulPairs(key.even, query.even, sum));
}
#endif  // CAIRN_VNNI
HWY_INLINE Quad LoadQuad(const uint8_t* at) { return QuadOf(LoadBytes(at)); }

// Products of kRows queries with all keys of a panel, [quads][kColumns][4] bytes: sums [kRows][kColumns]. A Query has
// `quads`, [quads][4] signed bytes, and `start`, which its sums begin with.
template <size_t kRows, class Query>
HWY_NOINLINE void PanelDots(const uint8_t* panel, size_t quads, const Query* queries, int32_t* sums) {
  const ITag di;
  for (size_t column = 0; column < kColumns; column += kScanVecs * kLanes) {
    IVec sum[kRows][kScanVecs];
    const int8_t* left[kRows];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
      left[r] = queries[r].quads;
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) sum[r][v] = hn::Set(di, queries[r].start);
    }
    const uint8_t* at = panel + column * 4;
    for (size_t q = 0; q < quads; ++q, at += kColumns * 4) {
      Quad keys[kScanVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) keys[v] = LoadQuad(at + static_cast<size_t>(v) * kLanes * 4);
#pragma GCC unroll 8
      for (size_t r = 0; r < kRows; ++r) {
        const Quad x = LeftQuad(left[r] + q * 4);
#pragma GCC unroll 4
        for (int v = 0; v < kScanVecs; ++v) sum[r][v] = Dot(sum[r][v], keys[v], x);
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) {
        hn::Store(sum[r][v], di, sums + r * kColumns + column + static_cast<size_t>(v) * kLanes);
      }
    }
  }
}

template <class Query>
HWY_INLINE void PanelRows(size_t rows, const uint8_t* panel, size_t quads, const Query* queries, int32_t* sums) {
  size_t done = 0;
  const auto run = [&](auto rows_constant) {
    constexpr size_t kRows = decltype(rows_constant)::value;
    PanelDots<kRows>(panel, quads, queries + done, sums + done * kColumns);
    done += kRows;
  };
  while (rows - done >= kScanRows) run(std::integral_constant<size_t, kScanRows>());
#if CAIRN_VNNI
  if (rows - done >= 4) run(std::integral_constant<size_t, 4>());
#endif
  while (rows - done >= 2) run(std::integral_constant<size_t, 2>());
  if (rows - done == 1) run(std::integral_constant<size_t, 1>());
}

// The same with keys of half bytes, [groups][kColumns][4]: the lower halves are the first four numbers of a group of
// eight, the upper ones the others. done(row, column, sums of the kLanes keys from `column` on) gets what comes out.
template <size_t kRows, class Query, class Done>
HWY_INLINE void NibbleDots(const uint8_t* panel, size_t groups, const Query* queries, const Done& done) {
  const ITag di;
  const IVec mask = hn::Set(di, 0x0f0f0f0f);
  for (size_t column = 0; column < kColumns; column += kScanVecs * kLanes) {
    IVec sum[kRows][kScanVecs];
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) sum[r][v] = hn::Set(di, queries[r].start);
    }
    const uint8_t* at = panel + column * 4;
    for (size_t g = 0; g < groups; ++g, at += kColumns * 4) {
      IVec both[kScanVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) both[v] = LoadBytes(at + static_cast<size_t>(v) * kLanes * 4);
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Quad keys[kScanVecs];
#pragma GCC unroll 4
        for (int v = 0; v < kScanVecs; ++v) {
          keys[v] = QuadOf(hn::And(half == 0 ? both[v] : hn::ShiftRight<4>(both[v]), mask));
        }
#pragma GCC unroll 8
        for (size_t r = 0; r < kRows; ++r) {
          const Quad x = LeftQuad(queries[r].quads + g * 8 + static_cast<size_t>(half) * 4);
#pragma GCC unroll 4
          for (int v = 0; v < kScanVecs; ++v) sum[r][v] = Dot(sum[r][v], keys[v], x);
        }
      }
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kScanVecs; ++v) done(r, column + static_cast<size_t>(v) * kLanes, sum[r][v]);
    }
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // CAIRN_ATTENTION_BYTE_DOTS
