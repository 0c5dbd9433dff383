#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "eval/golden_kinds.h"

namespace cairn {

template <typename T>
GoldenCheck Compare(const std::string& implementation, const std::string& tensor, std::span<const T> actual,
                    std::span<const float> expected, double tolerance) {
  CAIRN_CHECK(actual.size() == expected.size());
  double largest = 0;
  double difference = 0;
  bool finite = true;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double a = static_cast<double>(actual[i]);
    const double e = static_cast<double>(expected[i]);
    finite = finite && std::isfinite(a) && std::isfinite(e);
    largest = std::max(largest, std::abs(e));
    difference = std::max(difference, std::abs(a - e));
  }
  GoldenCheck check{implementation, tensor, difference, 0, tolerance, false};
  check.relative_error = difference == 0 ? 0 : difference / largest;
  if (!finite) check.absolute_error = check.relative_error = INFINITY;
  check.ok = finite && check.relative_error <= tolerance;
  return check;
}

Tensor ReadShaped(const SafetensorsFile& file, const std::string& name, const Shape& shape) {
  Tensor tensor = file.ReadFloats(name);
  if (tensor.shape() != shape) {
    Fail("'{}': tensor '{}' has shape {} where {} is expected", file.name(), name, ToString(tensor.shape()),
         ToString(shape));
  }
  return tensor;
}

template GoldenCheck Compare<float>(const std::string&, const std::string&, std::span<const float>,
                                    std::span<const float>, double);
template GoldenCheck Compare<double>(const std::string&, const std::string&, std::span<const double>,
                                     std::span<const float>, double);

}  // namespace cairn
