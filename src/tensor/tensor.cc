#include "tensor/tensor.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace cairn {

size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kI16:
      return 2;
    case DType::kI8:
    case DType::kU8:
    case DType::kBool:
      return 1;
  }
  CAIRN_CHECK(false, "unknown element type");
}

std::string_view NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "F64";
    case DType::kF32:
      return "F32";
    case DType::kF16:
      return "F16";
    case DType::kBF16:
      return "BF16";
    case DType::kI64:
      return "I64";
    case DType::kI32:
      return "I32";
    case DType::kI16:
      return "I16";
    case DType::kI8:
      return "I8";
    case DType::kU8:
      return "U8";
    case DType::kBool:
      return "BOOL";
  }
  CAIRN_CHECK(false, "unknown element type");
}

std::string ToString(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

Tensor::Tensor(Shape shape) : shape_(std::move(shape)) {
  const auto size = CheckedProduct(shape_);
  if (!size || !CheckedMul(*size, sizeof(float)))
    Fail("a tensor of shape {} is too large for this machine", ToString(shape_));
  data_ = AlignedBuffer<float>(*size);
}

Tensor Tensor::Clone() const {
  Tensor copy(shape_);
  std::copy(data_.begin(), data_.end(), copy.data_.begin());
  return copy;
}

}  // namespace cairn
