// Fuzzes the reader of compressed files and archives: any bytes give files, or an Error.
#include "base/error.h"
#include "io/packed_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    cairn::UnpackFiles({reinterpret_cast<const char*>(data), size}, "input", size_t{1} << 24);
  } catch (const cairn::Error&) {
  }
  return 0;
}
