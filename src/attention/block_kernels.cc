#include "attention/block_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "tensor/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/block_kernels.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

#include "kernels/broadcast_gemm-inl.h"
#include "kernels/exp-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cairn::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries of one block that are worked on together: their scores stay in the first-level cache.
inline constexpr size_t kRowsAtOnce = 24;

// Turns a row of scores into 2^(score - max) over its tokens; returns max and sum.
HWY_INLINE void SoftmaxRow(float* row, size_t tokens, float& max_out, float& sum_out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const TileVec lowest = hn::Set(d, -1e37f);
  TileVec max = lowest;
  size_t j = 0;
  for (; j + lanes <= tokens; j += lanes) max = hn::Max(max, hn::Load(d, row + j));
  const auto rest = hn::FirstN(d, tokens - j);
  if (j < tokens) max = hn::Max(max, hn::IfThenElse(rest, hn::Load(d, row + j), lowest));
  max = hn::MaxOfLanes(d, max);
  TileVec sum = hn::Zero(d);
  for (j = 0; j + lanes <= tokens; j += lanes) {
    const TileVec weight = Exp2(d, hn::Sub(hn::Load(d, row + j), max));
    hn::Store(weight, d, row + j);
    sum = hn::Add(sum, weight);
  }
  if (j < tokens) {
    const TileVec weight = hn::IfThenElseZero(rest, Exp2(d, hn::Sub(hn::Load(d, row + j), max)));
    hn::Store(weight, d, row + j);
    sum = hn::Add(sum, weight);
  }
  max_out = hn::GetLane(max);
  sum_out = hn::GetLane(hn::SumOfLanes(d, sum));
}

// out = out * keep + value * add.
HWY_INLINE void MergeRow(float* out, float keep, const float* value, float add, size_t dim) {
  const hn::CappedTag<float, 16> d;
  const size_t lanes = hn::Lanes(d);
  const auto vkeep = hn::Set(d, keep);
  const auto vadd = hn::Set(d, add);
  size_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const auto old = hn::Mul(hn::LoadU(d, out + i), vkeep);
    hn::StoreU(hn::MulAdd(hn::Load(d, value + i), vadd, old), d, out + i);
  }
  for (; i < dim; ++i) out[i] = out[i] * keep + value[i] * add;
}

// One row against kVecs vectors of columns, two values of k at a time: a lone row would wait for each sum otherwise.
template <int kVecs, class Right, class Store>
HWY_INLINE void OneRowMicro(const float* HWY_RESTRICT left, const Right& right, size_t depth, size_t column,
                            const Store& store) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  TileVec even[kVecs], odd[kVecs];
#pragma GCC unroll 8
  for (int n = 0; n < kVecs; ++n) even[n] = odd[n] = hn::Zero(d);
  const auto* HWY_RESTRICT b = right.data + column;
  size_t k = 0;
  for (; k + 2 <= depth; k += 2) {
    const TileVec x = hn::Set(d, left[k]);
    const TileVec y = hn::Set(d, left[k + 1]);
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) {
      even[n] = hn::MulAdd(x, LoadRight(b + static_cast<size_t>(n) * lanes), even[n]);
      odd[n] = hn::MulAdd(y, LoadRight(b + right.depth_stride + static_cast<size_t>(n) * lanes), odd[n]);
    }
    b += 2 * right.depth_stride;
  }
  if (k < depth) {
    const TileVec x = hn::Set(d, left[k]);
#pragma GCC unroll 8
    for (int n = 0; n < kVecs; ++n) even[n] = hn::MulAdd(x, LoadRight(b + static_cast<size_t>(n) * lanes), even[n]);
  }
#pragma GCC unroll 8
  for (int n = 0; n < kVecs; ++n) store(column + static_cast<size_t>(n) * lanes, hn::Add(even[n], odd[n]));
}

template <class Right, class Store>
HWY_INLINE void OneRow(const float* left, const Right& right, size_t depth, size_t columns, const Store& store) {
  const size_t lanes = hn::Lanes(TileTag());
  size_t column = 0;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  for (; column + 8 * lanes <= columns; column += 8 * lanes) OneRowMicro<8>(left, right, depth, column, store);
#endif
  for (; column + 4 * lanes <= columns; column += 4 * lanes) OneRowMicro<4>(left, right, depth, column, store);
  if (column + 3 * lanes == columns) return OneRowMicro<3>(left, right, depth, column, store);
  for (; column < columns; column += lanes) OneRowMicro<1>(left, right, depth, column, store);
}

template <class Right>
void ReadParts(const BlockShape& shape, const Right& keys, const Right& stored_values, size_t count,
               const float* queries, const RunningGroup* groups, float* gates, float* scratch) {
  const TileTag d;
  const size_t columns = shape.padded_columns();
  const size_t padded = shape.padded_dim();
  float* scores = scratch;
  float* values = scratch + kRowsAtOnce * columns;
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    const size_t rows = std::min(kRowsAtOnce, count - begin);
    if (rows == 1) {
      OneRow(queries + begin * shape.dim, keys, shape.dim, columns,
             [&](size_t column, TileVec sum) { hn::Store(sum, d, scores + column); });
    } else {
      Gemm(GemmLeft{queries + begin * shape.dim, shape.dim, 1}, keys, GemmDepth{shape.dim}, rows, 0, columns,
           [&](size_t row, size_t column, TileVec sum) { hn::Store(sum, d, scores + row * columns + column); });
    }
    float max[kRowsAtOnce];
    float sum[kRowsAtOnce];
    float gate[kRowsAtOnce];
    for (size_t r = 0; r < rows; ++r) {
      float* row = scores + r * columns;
      gate[r] = shape.landmark ? row[shape.tokens] : 0;
      SoftmaxRow(row, shape.tokens, max[r], sum[r]);
      if (!shape.landmark) gate[r] = max[r] + std::log2(sum[r]);
      gate[r] = std::clamp(gate[r], -1e37f, 1e37f);
    }
    if (rows == 1) {
      OneRow(scores, stored_values, shape.tokens, padded,
             [&](size_t column, TileVec value) { hn::Store(value, d, values + column); });
    } else {
      Gemm(GemmLeft{scores, columns, 1}, stored_values, GemmDepth{shape.tokens}, rows, 0, padded,
           [&](size_t row, size_t column, TileVec value) { hn::Store(value, d, values + row * padded + column); });
    }
    for (size_t r = 0; r < rows; ++r) {
      const RunningGroup& group = groups[begin + r];
      const float top = std::max(*group.max, gate[r]);
      const float keep = std::exp2(*group.max - top);
      const float add = std::exp2(gate[r] - top);
      MergeRow(group.out, keep, values + r * padded, add / sum[r], shape.dim);
      *group.max = top;
      *group.sum = *group.sum * keep + add;
      if (gates != nullptr) gates[begin + r] = gate[r];
    }
  }
}

// An int8 block as floats: keys and values as in a block of f32.
void ExpandInt8(const BlockShape& shape, const std::byte* block, float* out) {
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  const hn::Rebind<int8_t, TileTag> bytes;
  const auto* header = reinterpret_cast<const float*>(block);
  const auto* from = reinterpret_cast<const int8_t*>(block + shape.header_bytes());
  const auto expand = [&](size_t begin, size_t end, float scale) {
    const TileVec factor = hn::Set(d, scale);
    for (size_t i = begin; i < end; i += lanes) {
      const hn::Rebind<int32_t, TileTag> words;
      hn::Store(hn::Mul(hn::ConvertTo(d, hn::PromoteTo(words, hn::LoadU(bytes, from + i))), factor), d, out + i);
    }
  };
  expand(0, shape.key_numbers(), header[0]);
  expand(shape.key_numbers(), shape.numbers(), header[1]);
  if (!shape.landmark) return;
  for (size_t i = 0; i < shape.dim; ++i) out[i * shape.padded_columns() + shape.tokens] = header[2 + i];
}

void ReadBlockImpl(const BlockShape& shape, const std::byte* block, size_t count, const float* queries,
                   const RunningGroup* groups, float* gates, float* scratch) {
  const size_t columns = shape.padded_columns();
  const size_t padded = shape.padded_dim();
  float* rest = scratch + (shape.format == BlockFormat::kInt8 ? RoundUp(shape.numbers(), 16) : 0);
  if (shape.format == BlockFormat::kF16) {
    const auto* numbers = reinterpret_cast<const uint16_t*>(block);
    ReadParts(shape, GemmRightHalf{numbers, columns}, GemmRightHalf{numbers + shape.key_numbers(), padded}, count,
              queries, groups, gates, rest);
    return;
  }
  const auto* numbers = reinterpret_cast<const float*>(block);
  if (shape.format == BlockFormat::kInt8) {
    ExpandInt8(shape, block, scratch);
    numbers = scratch;
  }
  ReadParts(shape, GemmRight{numbers, columns}, GemmRight{numbers + shape.key_numbers(), padded}, count, queries,
            groups, gates, rest);
}

// The product of queries with one panel, whichever numbers it holds.
template <class Store>
HWY_INLINE void PanelProduct(const LandmarkPanels& panels, size_t panel, const float* queries, size_t rows,
                             const Store& store) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const GemmLeft left{queries, panels.dim(), 1};
  if (panels.half()) {
    const GemmRightHalf right{reinterpret_cast<const uint16_t*>(panels.panel(panel)), kColumns};
    Gemm(left, right, GemmDepth{panels.dim()}, rows, 0, kColumns, store);
  } else {
    const GemmRight right{reinterpret_cast<const float*>(panels.panel(panel)), kColumns};
    Gemm(left, right, GemmDepth{panels.dim()}, rows, 0, kColumns, store);
  }
}

void FromHalfImpl(const uint16_t* from, size_t count, float* to) {
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(from + i))), d, to + i);
  }
}

// Queries whose scores of one panel are computed together.
inline constexpr size_t kSearchRows = 12;

// Offers columns [from, to) of a row of one panel's scores.
HWY_INLINE void OfferRow(const float* row, size_t from, size_t to, size_t first_block, BestBlocks& list) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  const size_t lanes = hn::Lanes(d);
  TileVec max = hn::Load(d, row);
  for (size_t c = lanes; c < kColumns; c += lanes) max = hn::Max(max, hn::Load(d, row + c));
  // Rarely does a panel hold anything better than what is known.
  if (hn::AllTrue(d, hn::Le(max, hn::Set(d, list.threshold())))) return;
  for (size_t c = from; c < to; ++c) {
    if (row[c] > list.threshold()) list.Offer(row[c], static_cast<int32_t>(first_block + c));
  }
}

void SearchLandmarksImpl(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                         BestBlocks* best, float* scratch) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  const size_t dim = panels.dim();
  HWY_ALIGN float scores[kSearchRows * kColumns];
  for (size_t panel = first / kColumns; panel * kColumns < last; ++panel) {
    const size_t from = std::max(first, panel * kColumns) - panel * kColumns;
    const size_t to = std::min(last, (panel + 1) * kColumns) - panel * kColumns;
    const auto* half = reinterpret_cast<const uint16_t*>(panels.panel(panel));
    const auto* whole = reinterpret_cast<const float*>(panels.panel(panel));
    if (count == 1) {
      const auto store = [&](size_t column, TileVec sum) { hn::Store(sum, d, scores + column); };
      if (panels.half()) {
        OneRow(queries, GemmRightHalf{half, kColumns}, dim, kColumns, store);
      } else {
        OneRow(queries, GemmRight{whole, kColumns}, dim, kColumns, store);
      }
      OfferRow(scores, from, to, panel * kColumns, best[0]);
      continue;
    }
    if (panels.half()) {
      FromHalfImpl(half, dim * kColumns, scratch);
      whole = scratch;
    }
    for (size_t begin = 0; begin < count; begin += kSearchRows) {
      const size_t rows = std::min(kSearchRows, count - begin);
      Gemm(GemmLeft{queries + begin * dim, dim, 1}, GemmRight{whole, kColumns}, GemmDepth{dim}, rows, 0, kColumns,
           [&](size_t row, size_t column, TileVec sum) { hn::Store(sum, d, scores + row * kColumns + column); });
      for (size_t r = 0; r < rows; ++r) {
        OfferRow(scores + r * kColumns, from, to, panel * kColumns, best[begin + r]);
      }
    }
  }
}

void ScoreLandmarksImpl(const LandmarkPanels& panels, size_t count, const float* queries, size_t stride,
                        float* scores) {
  constexpr size_t kColumns = LandmarkPanels::kPanelColumns;
  const TileTag d;
  for (size_t panel = 0; panel * kColumns < panels.size(); ++panel) {
    PanelProduct(panels, panel, queries, count, [&](size_t row, size_t column, TileVec sum) {
      hn::StoreU(sum, d, scores + row * stride + panel * kColumns + column);
    });
  }
}

void ScoreKeysImpl(size_t dim, size_t count, const float* queries, const float* transposed, size_t columns,
                   float* scores) {
  const TileTag d;
  Gemm(GemmLeft{queries, dim, 1}, GemmRight{transposed, columns}, GemmDepth{dim}, count, 0, columns,
       [&](size_t row, size_t column, TileVec sum) { hn::StoreU(sum, d, scores + row * columns + column); });
}

void ToHalfImpl(const float* from, size_t count, uint16_t* to) {  // count: whole groups of 16
  const TileTag d;
  const hn::Rebind<hwy::float16_t, TileTag> half;
  const TileVec largest = hn::Set(d, 65504.0f);
  for (size_t i = 0; i < count; i += hn::Lanes(d)) {
    const TileVec value = hn::Min(hn::Max(hn::LoadU(d, from + i), hn::Neg(largest)), largest);
    hn::StoreU(hn::DemoteTo(half, value), half, reinterpret_cast<hwy::float16_t*>(to + i));
  }
}

}  // namespace cairn::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE

#include "base/error.h"

namespace cairn {
namespace {

HWY_EXPORT(ReadBlockImpl);
HWY_EXPORT(SearchLandmarksImpl);
HWY_EXPORT(ScoreLandmarksImpl);
HWY_EXPORT(ScoreKeysImpl);
HWY_EXPORT(ExpandInt8);
HWY_EXPORT(ToHalfImpl);
HWY_EXPORT(FromHalfImpl);

// This thread's scratch memory.
float* Scratch(size_t floats) {
  thread_local AlignedBuffer<float> buffer;
  if (buffer.size() < floats) buffer = AlignedBuffer<float>(floats);
  return buffer.data();
}

}  // namespace

std::string_view NameOf(BlockFormat format) {
  constexpr std::string_view kNames[] = {"f32", "f16", "int8"};
  return kNames[static_cast<size_t>(format)];
}

std::optional<BlockFormat> BlockFormatNamed(std::string_view name) {
  for (const auto format : {BlockFormat::kF32, BlockFormat::kF16, BlockFormat::kInt8}) {
    if (NameOf(format) == name) return format;
  }
  return std::nullopt;
}

void StoreBlock(const BlockShape& shape, const float* keys, const float* values, size_t stride, std::byte* block) {
  const size_t columns = shape.padded_columns();
  const bool plain = shape.format == BlockFormat::kF32;
  float* numbers = plain ? reinterpret_cast<float*>(block) : Scratch(RoundUp(shape.numbers(), 16));
  for (size_t i = 0; i < shape.dim; ++i) {
    float* row = numbers + i * columns;
    for (size_t j = 0; j < shape.columns(); ++j) row[j] = keys[j * stride + i];
    std::fill(row + shape.columns(), row + columns, 0.0f);
  }
  float* to = numbers + shape.key_numbers();
  for (size_t j = 0; j < shape.tokens; ++j, to += shape.padded_dim()) {
    std::copy_n(values + j * stride, shape.dim, to);
    std::fill(to + shape.dim, to + shape.padded_dim(), 0.0f);
  }
  if (plain) return;
  if (shape.format == BlockFormat::kF16) {
    HWY_DYNAMIC_DISPATCH(ToHalfImpl)(numbers, shape.numbers(), reinterpret_cast<uint16_t*>(block));
    return;
  }
  auto* header = reinterpret_cast<float*>(block);
  std::fill_n(header, shape.header_bytes() / sizeof(float), 0.0f);
  for (size_t i = 0; i < shape.dim && shape.landmark; ++i) {
    header[2 + i] = std::exchange(numbers[i * columns + shape.tokens], 0.0f);
  }
  auto* bytes = reinterpret_cast<int8_t*>(block + shape.header_bytes());
  for (const auto& [part, begin, end] :
       {std::tuple{0, size_t{0}, shape.key_numbers()}, std::tuple{1, shape.key_numbers(), shape.numbers()}}) {
    float largest = 0;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(numbers[i]));
    header[part] = largest / 127.0f;
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    for (size_t i = begin; i < end; ++i) bytes[i] = static_cast<int8_t>(std::lrint(numbers[i] * inverse));
  }
}

void LoadBlock(const BlockShape& shape, const std::byte* block, size_t tokens, size_t stride, float* keys,
               float* values) {
  const auto* numbers = reinterpret_cast<const float*>(block);
  if (shape.format != BlockFormat::kF32) {
    float* scratch = Scratch(RoundUp(shape.numbers(), 16));
    if (shape.format == BlockFormat::kF16) {
      HWY_DYNAMIC_DISPATCH(FromHalfImpl)(reinterpret_cast<const uint16_t*>(block), shape.numbers(), scratch);
    } else {
      HWY_DYNAMIC_DISPATCH(ExpandInt8)(shape, block, scratch);
    }
    numbers = scratch;
  }
  const float* from = numbers + shape.key_numbers();
  for (size_t j = 0; j < tokens; ++j) {
    for (size_t i = 0; i < shape.dim; ++i) keys[j * stride + i] = numbers[i * shape.padded_columns() + j];
    std::copy_n(from + j * shape.padded_dim(), shape.dim, values + j * stride);
  }
}

void ReadBlock(const BlockShape& shape, const std::byte* block, size_t count, const float* queries,
               const RunningGroup* groups, float* gates) {
  const size_t expanded = shape.format == BlockFormat::kInt8 ? RoundUp(shape.numbers(), 16) : 0;
  float* scratch = Scratch(expanded + 24 * (shape.padded_columns() + shape.padded_dim()));
  HWY_DYNAMIC_DISPATCH(ReadBlockImpl)(shape, block, count, queries, groups, gates, scratch);
}

LandmarkPanels::LandmarkPanels(const LandmarkPanels& other)
    : dim_(other.dim_), half_(other.half_), size_(other.size_), uniform_(other.uniform_) {
  if (size_ == 0) return;
  Reserve(size_);
  std::copy_n(other.data_.data(), RoundUp(size_, kPanelColumns) * dim_ * number_bytes(), data_.data());
}

LandmarkPanels& LandmarkPanels::operator=(const LandmarkPanels& other) {
  LandmarkPanels copy(other);
  *this = std::move(copy);
  return *this;
}

void LandmarkPanels::Reserve(size_t size) {
  const size_t panel = kPanelColumns * dim_ * number_bytes();
  const size_t wanted = DivideUp(size, kPanelColumns) * panel;
  if (wanted <= data_.size()) return;
  // Panels that exist keep their place; growth by half.
  AlignedBuffer<std::byte> bigger(std::max(wanted, DivideUp(size_ + size_ / 2, kPanelColumns) * panel));
  std::copy(data_.begin(), data_.end(), bigger.begin());
  data_ = std::move(bigger);
}

void LandmarkPanels::Append(const float* key) {
  Reserve(size_ + 1);
  std::byte* column = Column(size_);
  for (size_t i = 0; i < dim_; ++i) {
    std::byte* number = column + i * kPanelColumns * number_bytes();
    if (half_) {
      const uint16_t bits = FloatToHalf(std::clamp(key[i], -65504.0f, 65504.0f));
      std::memcpy(number, &bits, 2);
    } else {
      std::memcpy(number, &key[i], 4);
    }
    const std::byte* first = data_.data() + i * kPanelColumns * number_bytes();
    uniform_ = uniform_ && std::memcmp(number, first, number_bytes()) == 0;
  }
  ++size_;
}

void LandmarkPanels::Read(size_t index, float* key) const {
  CAIRN_CHECK(index < size_);
  const std::byte* column = panel(index / kPanelColumns) + index % kPanelColumns * number_bytes();
  for (size_t i = 0; i < dim_; ++i) {
    const std::byte* number = column + i * kPanelColumns * number_bytes();
    if (half_) {
      uint16_t bits;
      std::memcpy(&bits, number, 2);
      key[i] = HalfToFloat(bits);
    } else {
      std::memcpy(&key[i], number, 4);
    }
  }
}

void LandmarkPanels::Truncate(size_t size) {
  CAIRN_CHECK(size <= size_);
  size_ = size;
  uniform_ = uniform_ || size <= 1;
}

void LandmarkPanels::EraseFront(size_t count) {
  CAIRN_CHECK(count <= size_);
  LandmarkPanels rest(dim_, half_);
  std::vector<float> key(dim_);
  for (size_t i = count; i < size_; ++i) {
    Read(i, key.data());
    rest.Append(key.data());
  }
  *this = std::move(rest);
}

void BestBlocks::Offer(float score, int32_t block) {
  if (count_ == k_ && (k_ == 0 || !(score > scores_[k_ - 1]))) return;
  size_t at = count_ < k_ ? count_++ : k_ - 1;
  for (; at > 0 && score > scores_[at - 1]; --at) {
    scores_[at] = scores_[at - 1];
    blocks_[at] = blocks_[at - 1];
  }
  scores_[at] = score;
  blocks_[at] = block;
}

void TakeBest(std::span<const float> scores, size_t k, int32_t* blocks) {
  CAIRN_CHECK(k <= scores.size());
  if (k == 0) return;
  std::vector<std::pair<float, int32_t>> queue(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) queue[i] = {scores[i], static_cast<int32_t>(i)};
  const auto better = [](const auto& a, const auto& b) { return a.first > b.first; };
  const auto end = queue.begin() + static_cast<ptrdiff_t>(k);
  if (k * 64 <= scores.size()) {
    std::partial_sort(queue.begin(), end, queue.end(), better);
  } else {
    std::nth_element(queue.begin(), end - 1, queue.end(), better);
  }
  for (size_t i = 0; i < k; ++i) blocks[i] = queue[i].second;
}

void SearchLandmarks(const LandmarkPanels& panels, size_t first, size_t last, size_t count, const float* queries,
                     BestBlocks* best) {
  CAIRN_CHECK(last <= panels.size());
  if (first >= last || count == 0) return;
  float* scratch = Scratch(panels.dim() * LandmarkPanels::kPanelColumns);
  HWY_DYNAMIC_DISPATCH(SearchLandmarksImpl)(panels, first, last, count, queries, best, scratch);
}

void ScoreKeys(size_t dim, size_t count, const float* queries, size_t keys, const float* rows, float* scores) {
  const size_t columns = RoundUp(keys, 16);
  float* transposed = Scratch(dim * columns);
  for (size_t i = 0; i < dim; ++i) {
    for (size_t j = 0; j < keys; ++j) transposed[i * columns + j] = rows[j * dim + i];
    std::fill(transposed + i * columns + keys, transposed + (i + 1) * columns, 0.0f);
  }
  HWY_DYNAMIC_DISPATCH(ScoreKeysImpl)(dim, count, queries, transposed, columns, scores);
}

void ScoreLandmarks(const LandmarkPanels& panels, size_t count, const float* queries, size_t stride, float* scores) {
  CAIRN_CHECK(stride >= RoundUp(panels.size(), LandmarkPanels::kPanelColumns));
  HWY_DYNAMIC_DISPATCH(ScoreLandmarksImpl)(panels, count, queries, stride, scores);
}

}  // namespace cairn
#endif  // HWY_ONCE
