// The weight matrices of inference in the layouts that its products stream: f32 and f16 as rows, int8 and int4 in
// panels of 16 rows and blocks of 32 columns with their own scales. One matrix serves many rows at once (reading a
// prompt) and one row at a time (generating).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "tensor/stored_tensor.h"

namespace cairn {

enum class WeightKind { kF32, kF16, kInt8, kInt4 };

std::string_view NameOf(WeightKind kind);  // "f32", "f16", "int8", "int4"
std::optional<WeightKind> WeightKindNamed(std::string_view name);

// The kind that loses nothing and wastes nothing for a stored type: q8_0 and q6_K -> int8, q4_0 and q4_K -> int4,
// f16 -> f16, f32 and bf16 -> f32.
WeightKind NaturalKind(StoredType type);

// Immutable and thread-safe once packed.
//
// int8: 32 values share a scale; int4: 32 values share a scale and a minimum, so that q4_0 and q4_K both fit.
// The numbers of the rows that are multiplied are themselves rounded to int8, 32 to a scale, for these two kinds. A row
// with a number that is not finite then gives NaN throughout; f32 and f16 follow IEEE.
class PackedMatrix {
 public:
  PackedMatrix();
  // The tensors' rows one below the other; all have the same number of columns. Where `kind` is what a tensor holds
  // already (f32, f16), and there is one aligned tensor, its bytes are used in place: they must outlive this.
  PackedMatrix(std::span<const StoredTensor> parts, WeightKind kind);
  PackedMatrix(PackedMatrix&&) noexcept;
  PackedMatrix& operator=(PackedMatrix&&) noexcept;
  ~PackedMatrix();

  size_t rows() const;     // n: outputs
  size_t columns() const;  // k: inputs
  WeightKind kind() const;
  size_t bytes() const;  // that one product reads

  // out[m][n] = in[m][k] W^T, or out += with `accumulate`. Rows of `in` and `out` are dense. All threads; callable from
  // several threads at once. A row's result does not depend on the rows beside it nor on the number of threads, bit by
  // bit.
  void Multiply(size_t m, const float* in, float* out, bool accumulate = false) const;

  // Row n of the matrix as this kind holds it; [columns].
  void ReadRow(size_t row, float* out) const;

 private:
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace cairn
