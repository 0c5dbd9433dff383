// Fuzzes the llama2.c reader: any bytes give a model or an Error. Input that ends with a brace has, after its last line
// feed, the config beside the file.
#include <algorithm>

#include "formats/llama2c.h"
#include "fuzz_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    std::optional<std::string> sidecar;
    if (size > 0 && data[size - 1] == '}') {
      size_t start = size;
      while (start > 0 && data[start - 1] != '\n') --start;
      sidecar.emplace(reinterpret_cast<const char*>(data) + start, size - start);
      size = start == 0 ? 0 : start - 1;
    }
    cairn::ReadEverything(*cairn::ModelFromLlama2c(std::as_bytes(std::span(data, size)), "fuzz", nullptr, sidecar));
  } catch (const cairn::Error&) {
  }
  return 0;
}
