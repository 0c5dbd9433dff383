// What the fuzz targets of model files do with a model that opened: read every value.
#pragma once

#include "base/error.h"
#include "formats/model_source.h"

namespace cairn {

inline void ReadEverything(const ModelSource& source) {
  for (const auto& [name, tensor] : source.tensors()) {
    CAIRN_CHECK(source.ReadFloats(name, RotaryLayout::kHalf).shape() == tensor.shape);
  }
  CAIRN_CHECK(ParseModelConfig(ToJson(source.config()), "again") == source.config());
}

}  // namespace cairn
