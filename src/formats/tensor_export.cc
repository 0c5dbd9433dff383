#include "formats/tensor_export.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "formats/rotary_layout.h"

namespace cairn {

void ExportTensor(const ModelSource& source, const std::string& tensor, StoredType type, RotaryLayout layout,
                  const ByteSink& sink) {
  const StoredTensor& stored = source.Get(tensor);
  const RotaryLayout from = source.config().rotary_layout;
  const bool reorder = IsRotaryTensor(tensor) && from != layout;
  if (type == stored.type && !reorder) return sink(stored.bytes);

  const size_t columns = stored.row_elements();
  const size_t rows = columns == 0 ? 0 : static_cast<size_t>(stored.shape.size() < 2 ? 1 : stored.shape[0]);
  const size_t row_bytes = stored.row_bytes();
  CAIRN_CHECK(columns % BlockElements(type) == 0, "{} does not fit rows of {}", NameOf(type), columns);
  std::vector<float> values(columns);
  std::vector<std::byte> out(columns / BlockElements(type) * BlockBytes(type));
  for (size_t row = 0; row < rows; ++row) {
    const size_t source_row = reorder ? RotarySourceRow(row, source.config().head_dim, from, layout) : row;
    const auto bytes = stored.bytes.subspan(source_row * row_bytes, row_bytes);
    if (type == stored.type) {
      sink(bytes);
      continue;
    }
    ConvertStoredToFloat(stored.type, bytes, values);
    if (IsQuantized(type) && !std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      Fail("'{}': tensor '{}' has values that are not finite and cannot be quantised", source.name(), tensor);
    }
    ConvertFloatToStored(type, values, out);
    sink(out);
  }
}

}  // namespace cairn
