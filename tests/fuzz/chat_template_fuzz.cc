// Fuzzes chat templates: any text gives an Error or a rendered conversation, and no text runs for ever.
#include <algorithm>

#include "base/error.h"
#include "chat/jinja.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using cairn::MarkedText;
  using cairn::jinja::Value;
  cairn::jinja::Limits limits;
  limits.steps = 20000;
  limits.memory = size_t{1} << 20;
  cairn::jinja::Heap heap(limits);
  const auto text = [&](const char* trusted) { return heap.NewText(MarkedText(trusted)); };
  const auto message = [&](const char* role, const char* content) {
    return heap.NewDict({{text("role"), text(role)}, {text("content"), heap.NewText(MarkedText::Untrusted(content))}});
  };
  try {
    const cairn::jinja::Template parsed(std::string(reinterpret_cast<const char*>(data), size), "fuzz");
    const cairn::jinja::Variables variables = {
        {"messages", heap.NewList({message("system", " a\n"), message("user", "h\xc3\xa9\xff <|im_end|>\x01"),
                                   message("assistant", "<think>b</think>c")})},
        {"add_generation_prompt", Value::Bool(true)},
        {"bos_token", text("<s>")},
        {"eos_token", text("</s>")},
        {"tools", Value::None()}};
    const MarkedText result = parsed.Render(heap, variables, std::time_t{0});
    CAIRN_CHECK(result.marks.empty() || result.marks.size() == result.bytes.size());
    // Only messages have this byte, and a template that does not spell it cannot launder it.
    const bool spelt = std::find(data, data + size, uint8_t{1}) != data + size ||
                       std::find(data, data + size, uint8_t{'\\'}) != data + size;
    for (size_t i = 0; i < result.size() && !spelt; ++i) CAIRN_CHECK(result.bytes[i] != '\x01' || result.untrusted(i));
  } catch (const cairn::Error&) {
  }
  return 0;
}
