// Fuzzes config.json: any text gives a config that survives its round trip, or an Error.
#include "base/error.h"
#include "model/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto config = cairn::ParseModelConfig({reinterpret_cast<const char*>(data), size}, "fuzz");
    CAIRN_CHECK(cairn::ParseModelConfig(cairn::ToJson(config), "again") == config);
    cairn::ExpectedTensors(config);
    cairn::RotaryFrequencies(config);
  } catch (const cairn::Error&) {
  }
  return 0;
}
