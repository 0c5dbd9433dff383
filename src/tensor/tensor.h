// Element types, shapes, and a tensor that owns its values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/aligned.h"

namespace cairn {

enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool };

size_t SizeOf(DType dtype);
std::string_view NameOf(DType dtype);  // as safetensors spells it: "F32"

// Sizes, outermost first.
using Shape = std::vector<uint64_t>;

std::string ToString(const Shape& shape);  // "[2, 3]"

// A dense row-major f32 tensor. Move-only; Clone() copies.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(Shape shape);  // zeros

  const Shape& shape() const { return shape_; }
  size_t size() const { return data_.size(); }
  float* data() { return data_.data(); }
  const float* data() const { return data_.data(); }
  std::span<float> span() { return data_.span(); }
  std::span<const float> span() const { return data_.span(); }
  float& operator[](size_t i) { return data_[i]; }
  float operator[](size_t i) const { return data_[i]; }

  Tensor Clone() const;

 private:
  Shape shape_;
  AlignedBuffer<float> data_;
};

}  // namespace cairn
