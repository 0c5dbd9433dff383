// Fuzzes the readers of tokenizer files: any bytes give an Error, or a tokenizer that keeps its promises.
#include "base/error.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer =
        cairn::ParseTokenizer(std::string(reinterpret_cast<const char*>(data), size), "/nowhere/fuzz");
    const std::string text = "ab <s> \xff\n the <landmark> \xe2\x96\x81" + std::string(60, 'a');
    for (const int32_t id : tokenizer->Encode(text))
      CAIRN_CHECK(id >= 0 && static_cast<size_t>(id) < tokenizer->vocab_size());
    tokenizer->Decode(tokenizer->EncodeMiddle(text));
    const auto marked = cairn::WithLandmark(tokenizer);
    CAIRN_CHECK(marked->Encode(text) == tokenizer->Encode(text));
    CAIRN_CHECK(marked->fingerprint() == tokenizer->fingerprint() || tokenizer->landmark());
  } catch (const cairn::Error&) {
  }
  return 0;
}
