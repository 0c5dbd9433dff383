#include "kernels/packed_matrix.h"

#include <cstring>
#include <vector>

#include "base/aligned.h"
#include "base/error.h"
#include "base/threads.h"
#include "kernels/packed_panels.h"
#include "kernels/packed_rows.h"
#include "tensor/convert.h"

namespace cairn {

namespace {

struct KindName {
  WeightKind kind;
  std::string_view name;
};

constexpr KindName kKinds[] = {
    {WeightKind::kF32, "f32"}, {WeightKind::kF16, "f16"}, {WeightKind::kInt8, "int8"}, {WeightKind::kInt4, "int4"}};

bool IsInteger(WeightKind kind) { return kind == WeightKind::kInt8 || kind == WeightKind::kInt4; }

size_t RowsOf(const StoredTensor& tensor) { return tensor.bytes.size() / tensor.row_bytes(); }

// The rows of all parts as f32 or f16, one below the other.
void ConvertRows(std::span<const StoredTensor> parts, StoredType type, std::byte* out) {
  for (const StoredTensor& part : parts) {
    const size_t columns = part.row_elements();
    const size_t row_bytes = columns * BlockBytes(type);
    ParallelFor(RowsOf(part), [&](size_t row, int) {
      const auto from = part.bytes.subspan(row * part.row_bytes(), part.row_bytes());
      if (part.type == type) {
        std::memcpy(out + row * row_bytes, from.data(), row_bytes);
        return;
      }
      thread_local std::vector<float> floats;
      floats.resize(columns);
      ConvertStoredToFloat(part.type, from, floats);
      ConvertFloatToStored(type, floats, std::span(out + row * row_bytes, row_bytes));
    });
    out += RowsOf(part) * row_bytes;
  }
}

}  // namespace

std::string_view NameOf(WeightKind kind) {
  for (const KindName& entry : kKinds) {
    if (entry.kind == kind) return entry.name;
  }
  CAIRN_CHECK(false, "unknown kind of weights");
}

std::optional<WeightKind> WeightKindNamed(std::string_view name) {
  for (const KindName& entry : kKinds) {
    if (entry.name == name) return entry.kind;
  }
  return std::nullopt;
}

WeightKind NaturalKind(StoredType type) {
  switch (type) {
    case StoredType::kF16:
      return WeightKind::kF16;
    case StoredType::kQ8_0:
    case StoredType::kQ6_K:
      return WeightKind::kInt8;
    case StoredType::kQ4_0:
    case StoredType::kQ4_K:
      return WeightKind::kInt4;
    default:
      return WeightKind::kF32;
  }
}

struct PackedMatrix::Impl {
  WeightKind kind = WeightKind::kF32;
  PanelLayout layout;               // rows and columns of every kind
  AlignedBuffer<std::byte> owned;   // empty where the tensor's own bytes serve
  const std::byte* data = nullptr;  // owned.data(), or those
};

PackedMatrix::PackedMatrix() : impl_(std::make_unique<Impl>()) {}
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;
PackedMatrix& PackedMatrix::operator=(PackedMatrix&&) noexcept = default;
PackedMatrix::~PackedMatrix() = default;

PackedMatrix::PackedMatrix(std::span<const StoredTensor> parts, WeightKind kind) {
  auto impl = std::make_unique<Impl>();
  CAIRN_CHECK(!parts.empty());
  impl->kind = kind;
  impl->layout.int4 = kind == WeightKind::kInt4;
  impl->layout.columns = parts.front().row_elements();
  CAIRN_CHECK(impl->layout.columns > 0);
  for (const StoredTensor& part : parts) {
    CAIRN_CHECK(part.row_elements() == impl->layout.columns && part.bytes.size() % part.row_bytes() == 0);
    impl->layout.rows += RowsOf(part);
  }
  if (IsInteger(kind)) {
    impl->owned = AlignedBuffer<std::byte>(impl->layout.bytes());
    PackPanels(impl->layout, parts, reinterpret_cast<uint8_t*>(impl->owned.data()));
  } else {
    const StoredType type = kind == WeightKind::kF32 ? StoredType::kF32 : StoredType::kF16;
    const auto address = reinterpret_cast<uintptr_t>(parts.front().bytes.data());
    if (parts.size() == 1 && parts.front().type == type && address % BlockBytes(type) == 0) {
      impl->data = parts.front().bytes.data();
    } else {
      impl->owned = AlignedBuffer<std::byte>(impl->layout.rows * impl->layout.columns * BlockBytes(type));
      ConvertRows(parts, type, impl->owned.data());
    }
  }
  if (impl->data == nullptr) impl->data = impl->owned.data();
  impl_ = std::move(impl);
}

size_t PackedMatrix::rows() const { return impl_->layout.rows; }
size_t PackedMatrix::columns() const { return impl_->layout.columns; }
WeightKind PackedMatrix::kind() const { return impl_->kind; }

size_t PackedMatrix::bytes() const {
  if (IsInteger(impl_->kind)) return impl_->layout.bytes();
  return rows() * columns() * (impl_->kind == WeightKind::kF32 ? 4 : 2);
}

void PackedMatrix::Multiply(size_t m, const float* in, float* out, bool accumulate) const {
  if (m == 0 || rows() == 0) return;
  if (IsInteger(impl_->kind)) {
    const auto* packed = reinterpret_cast<const uint8_t*>(impl_->data);
    return MultiplyPanels(impl_->layout, packed, m, in, out, accumulate);
  }
  MultiplyRows({impl_->data, impl_->kind == WeightKind::kF16, rows(), columns(), m, in, out, accumulate});
}

void PackedMatrix::ReadRow(size_t row, float* out) const {
  CAIRN_CHECK(row < rows());
  if (IsInteger(impl_->kind)) {
    return ReadPanelRow(impl_->layout, reinterpret_cast<const uint8_t*>(impl_->data), row, out);
  }
  const StoredType type = impl_->kind == WeightKind::kF32 ? StoredType::kF32 : StoredType::kF16;
  const size_t row_bytes = columns() * BlockBytes(type);
  ConvertStoredToFloat(type, std::span(impl_->data + row * row_bytes, row_bytes), std::span(out, columns()));
}

}  // namespace cairn
