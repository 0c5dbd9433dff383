// Fuzzes the safetensors reader: any bytes give a file or an Error.
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "io/safetensors.h"
#include "tensor/convert.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const cairn::SafetensorsFile file(std::as_bytes(std::span(data, size)), "fuzz");
    for (const auto& [name, entry] : file.tensors()) {
      if (cairn::IsFloat(entry.dtype)) {
        file.ReadFloats(name);
      } else {
        file.ReadIntegers(name);
      }
    }
  } catch (const cairn::Error&) {
  }
  return 0;
}
