// Fuzzes the GGUF reader: any bytes give a model or an Error.
#include "formats/gguf_model.h"
#include "fuzz_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    cairn::ReadEverything(*cairn::ModelFromGguf(std::as_bytes(std::span(data, size)), "fuzz", nullptr));
  } catch (const cairn::Error&) {
  }
  return 0;
}
