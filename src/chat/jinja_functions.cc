// The functions that every chat template can call.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "chat/jinja_library.h"

namespace cairn::jinja {

namespace {

Value Range(Heap& heap, const Arguments& arguments) {
  const bool two = arguments.Has(1);
  const int64_t first = arguments.IntAt(0, "", 0), start = two ? first : 0;
  const int64_t stop = two ? arguments.IntAt(1, "", 0) : first, step = arguments.IntAt(2, "", 1);
  if (step == 0) Fail("range() needs a step that is not 0");
  List items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    heap.Charge(sizeof(Value));
    heap.Step();
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return heap.NewList(std::move(items));
}

std::string FormatTime(const std::string& format, std::time_t time) {
  constexpr std::string_view kKnown = "aAbBdeHIjmMpSyYFTDRZcxX%";
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') continue;
    i += i + 1 < format.size() && format[i + 1] == '-' ? 2 : 1;  // %-d: no leading zero
    if (i >= format.size() || kKnown.find(format[i]) == std::string_view::npos) {
      Fail("strftime_now() does not know the format '{}'", format);
    }
  }
  if (format.empty()) return "";
  std::tm parts{};
  localtime_r(&time, &parts);
  std::array<char, 1024> buffer;
  const size_t size = std::strftime(buffer.data(), buffer.size(), format.c_str(), &parts);
  if (size == 0) Fail("strftime_now() was given a format that is too long");
  return std::string(buffer.data(), size);
}

}  // namespace

bool IsFunction(std::string_view name) {
  constexpr std::array<std::string_view, 5> kNames = {"range", "dict", "namespace", "raise_exception", "strftime_now"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

Value CallFunction(Heap& heap, const std::string& name, const Arguments& arguments, std::optional<std::time_t> now) {
  if (name == "raise_exception") throw RaisedError(ToText(heap, arguments.Get(0, "message")).bytes);
  if (name == "range") return Range(heap, arguments);
  if (name == "strftime_now") {
    return heap.NewText(MarkedText(FormatTime(arguments.TextAt(0, "format"), now ? *now : std::time(nullptr))));
  }
  CAIRN_CHECK(name == "dict" || name == "namespace");
  Dict members;
  if (arguments.Has(0)) {
    if (!arguments.Get(0).is_mapping()) Fail("{}() needs a dictionary or named members", name);
    members = *arguments.Get(0).dict;
  }
  for (const auto& given : arguments.named) {
    std::erase_if(
        members, [&](const auto& member) { return member.first.is_text() && member.first.text->bytes == given.first; });
    members.emplace_back(heap.NewText(MarkedText(given.first)), given.second);
  }
  return heap.NewDict(std::move(members), name == "namespace" ? Kind::kNamespace : Kind::kDict);
}

}  // namespace cairn::jinja
