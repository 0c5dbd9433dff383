// Filters and tests of chat templates: `value | filter(...)` and `value is test(...)`.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "chat/jinja_library.h"

namespace cairn::jinja {

namespace {

Value ToInteger(const Value& value, int64_t otherwise) {
  if (value.is_integral()) return Value::Int(value.is(Kind::kBool) ? (value.boolean ? 1 : 0) : value.integer);
  double number = std::nan("");
  if (value.is(Kind::kFloat)) number = value.number;
  if (value.is_text()) {
    const std::string text = Strip(*value.text, nullptr, true, true).bytes;
    const char* end = text.data() + text.size();
    int64_t integer = 0;
    if (const auto read = std::from_chars(text.data(), end, integer); read.ec == std::errc() && read.ptr == end) {
      return Value::Int(integer);
    }
    if (const auto read = std::from_chars(text.data(), end, number); read.ec != std::errc() || read.ptr != end) {
      return Value::Int(otherwise);
    }
  }
  return Value::Int(std::abs(number) < 9e18 ? static_cast<int64_t>(number) : otherwise);
}

Value ToFloat(const Value& value, double otherwise) {
  if (value.is(Kind::kFloat)) return value;
  if (value.is_integral()) return Value::Float(static_cast<double>(ToInteger(value, 0).integer));
  if (value.is_text()) {
    const std::string text = Strip(*value.text, nullptr, true, true).bytes;
    double number = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    if (read.ec == std::errc() && read.ptr == text.data() + text.size()) return Value::Float(number);
  }
  return Value::Float(otherwise);
}

// The member that "a.b" names.
Value Member(Heap& heap, Value value, const Value& path) {
  if (!path.is_text()) return Item(heap, value, path);
  const std::string& name = path.text->bytes;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (value.is(Kind::kUndefined)) return value;
    value = Item(heap, value, heap.NewText(MarkedText(name.substr(begin, end - begin))));
    begin = end + 1;
  }
  return value;
}

// select, reject and their attr forms: what a test says of each item, or of its member.
Value Select(Heap& heap, const std::string& name, const Value& value, const Arguments& arguments) {
  const bool of_member = name.ends_with("attr"), keeps = name.starts_with("select");
  const size_t test_place = of_member ? 1 : 0;
  Arguments rest;
  for (size_t i = test_place + 1; i < arguments.positional.size(); ++i)
    rest.positional.push_back(arguments.positional[i]);
  List kept;
  for (const Value& item : Iterate(heap, value)) {
    heap.Step();
    const Value subject = of_member ? Member(heap, item, arguments.Get(0)) : item;
    const bool passes =
        arguments.Has(test_place) ? CallTest(heap, arguments.TextAt(test_place), subject, rest) : IsTrue(subject);
    if (passes == keeps) kept.push_back(item);
  }
  return heap.NewList(std::move(kept));
}

Value Map(Heap& heap, const Value& value, const Arguments& arguments) {
  const Value attribute = arguments.Get(arguments.positional.size(), "attribute");
  const Value otherwise = arguments.Get(arguments.positional.size(), "default");
  Arguments rest;
  for (size_t i = 1; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  List results;
  for (const Value& item : Iterate(heap, value)) {
    heap.Step();
    if (attribute.is(Kind::kUndefined)) {
      results.push_back(CallFilter(heap, arguments.TextAt(0), item, rest));
    } else {
      const Value member = Member(heap, item, attribute);
      results.push_back(member.is(Kind::kUndefined) ? otherwise : member);
    }
  }
  return heap.NewList(std::move(results));
}

Value Sort(Heap& heap, List items, const Arguments& arguments) {
  const Value attribute = arguments.Get(2, "attribute");
  const auto key = [&](const Value& item) {
    return attribute.is(Kind::kUndefined) ? item : Member(heap, item, attribute);
  };
  const bool reverse = IsTrue(arguments.Get(0, "reverse"));
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return reverse ? IsLess(heap, key(b), key(a)) : IsLess(heap, key(a), key(b));
  });
  return heap.NewList(std::move(items));
}

Value Unique(Heap& heap, const List& items) {
  List result;
  for (const Value& item : items) {
    const bool known =
        std::any_of(result.begin(), result.end(), [&](const Value& other) { return IsEqual(heap, item, other); });
    if (!known) result.push_back(item);
  }
  return heap.NewList(std::move(result));
}

// Lines after the first are moved to the right; empty ones are not.
MarkedText Indent(Heap& heap, const MarkedText& text, const Arguments& arguments) {
  const int64_t width = arguments.IntAt(0, "width", 4);
  if (width < 0 || width > 1000) Fail("indent() cannot be {}", width);
  const std::string spaces(static_cast<size_t>(width), ' ');
  const bool first = IsTrue(arguments.Get(1, "first")), blank = IsTrue(arguments.Get(2, "blank"));
  MarkedText result;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.bytes.find('\n', begin), text.size());
    if (begin == 0 ? first : (blank || end > begin)) Append(heap, result, spaces);
    Append(heap, result, text.Part(begin, end + 1 - begin));
    begin = end + 1;
  }
  return result;
}

Value FirstOrLast(Heap& heap, const Value& value, bool first) {
  const List items = Iterate(heap, value);
  if (items.empty()) return {};
  return first ? items.front() : items.back();
}

}  // namespace

Value CallFilter(Heap& heap, const std::string& name, const Value& value, const Arguments& arguments) {
  if (name == "default" || name == "d") {
    const bool missing = value.is(Kind::kUndefined) || (IsTrue(arguments.Get(1, "boolean")) && !IsTrue(value));
    if (!missing) return value;
    return arguments.Has(0, "default_value") ? arguments.Get(0, "default_value") : heap.NewText({});
  }
  if (name == "tojson") return heap.NewText(ToJson(heap, value, arguments.IntAt(0, "indent", -1)));
  if (name == "length" || name == "count") return Value::Int(static_cast<int64_t>(Length(heap, value)));
  if (name == "first" || name == "last") return FirstOrLast(heap, value, name == "first");
  if (name == "list") return heap.NewList(Iterate(heap, value));
  if (name == "items") {
    if (value.is(Kind::kUndefined)) return heap.NewList({});
    if (!value.is(Kind::kDict)) Fail("items needs a dictionary, not {}", NameOf(value.kind));
    return CallMethod(heap, value, "items", {});
  }
  if (name == "dictsort") {
    if (!value.is(Kind::kDict)) Fail("dictsort needs a dictionary, not {}", NameOf(value.kind));
    Arguments by_key;
    by_key.named.emplace_back("attribute", Value::Int(0));
    return Sort(heap, *CallMethod(heap, value, "items", {}).list, by_key);
  }
  if (name == "join") {
    List items = Iterate(heap, value);
    if (const Value attribute = arguments.Get(1, "attribute"); !attribute.is(Kind::kUndefined)) {
      for (Value& item : items) item = Member(heap, item, attribute);
    }
    const MarkedText between = arguments.Has(0, "d") ? ToText(heap, arguments.Get(0, "d")) : MarkedText();
    return heap.NewText(JoinTexts(heap, items, between));
  }
  if (name == "reverse") {
    List items = Iterate(heap, value);
    std::reverse(items.begin(), items.end());
    return value.is_text() ? heap.NewText(JoinTexts(heap, items, {})) : heap.NewList(std::move(items));
  }
  if (name == "sort") return Sort(heap, Iterate(heap, value), arguments);
  if (name == "unique") return Unique(heap, Iterate(heap, value));
  if (name == "map") return Map(heap, value, arguments);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return Select(heap, name, value, arguments);
  }
  if (name == "int") return ToInteger(value, arguments.IntAt(0, "default", 0));
  if (name == "float") return ToFloat(value, 0);
  if (name == "abs") return Negate(IsLess(heap, value, Value::Int(0)) ? value : Negate(value));
  if (name == "safe") return value;

  // The rest work on what the value prints as.
  if (name == "string") return value.is_text() ? value : heap.NewText(ToText(heap, value));
  if (name == "trim") {
    const bool given = arguments.Has(0, "chars");
    const std::string characters = given ? arguments.TextAt(0, "chars") : "";
    const MarkedText text = ToText(heap, value);
    heap.Step(characters.size() * text.size() / 64);
    return heap.NewText(Strip(text, given ? &characters : nullptr, true, true));
  }
  if (name == "upper") return heap.NewText(WithLetters(heap, ToText(heap, value), Letters::kUpper));
  if (name == "lower") return heap.NewText(WithLetters(heap, ToText(heap, value), Letters::kLower));
  if (name == "capitalize") return heap.NewText(WithLetters(heap, ToText(heap, value), Letters::kCapitalized));
  if (name == "title") return heap.NewText(WithLetters(heap, ToText(heap, value), Letters::kTitleOfWords));
  if (name == "indent") return heap.NewText(Indent(heap, ToText(heap, value), arguments));
  if (name == "replace") {
    const MarkedText from = ToText(heap, arguments.Get(0, "old")), to = ToText(heap, arguments.Get(1, "new"));
    return heap.NewText(Replace(heap, ToText(heap, value), from, to, arguments.IntAt(2, "count", -1)));
  }
  Fail("the filter '{}' is not known", name);
}

bool CallTest(Heap& heap, const std::string& name, const Value& value, const Arguments& arguments) {
  if (name == "defined") return !value.is(Kind::kUndefined);
  if (name == "undefined") return value.is(Kind::kUndefined);
  if (name == "none") return value.is(Kind::kNone);
  if (name == "string") return value.is_text();
  if (name == "mapping") return value.is(Kind::kDict);
  if (name == "sequence" || name == "iterable") {
    return value.is_text() || value.is(Kind::kList) || value.is(Kind::kDict) || value.is(Kind::kUndefined);
  }
  if (name == "number") return value.is_number();
  if (name == "integer") return value.is(Kind::kInt);
  if (name == "float") return value.is(Kind::kFloat);
  if (name == "boolean") return value.is(Kind::kBool);
  if (name == "true") return value.is(Kind::kBool) && value.boolean;
  if (name == "false") return value.is(Kind::kBool) && !value.boolean;
  if (name == "callable") return value.is(Kind::kMacro) || value.is(Kind::kFunction);
  if (name == "eq" || name == "equalto" || name == "sameas") return IsEqual(heap, value, arguments.Get(0));
  if (name == "ne") return !IsEqual(heap, value, arguments.Get(0));
  if (name == "lt" || name == "lessthan") return IsLess(heap, value, arguments.Get(0));
  if (name == "gt" || name == "greaterthan") return IsLess(heap, arguments.Get(0), value);
  if (name == "le") return !IsLess(heap, arguments.Get(0), value);
  if (name == "ge") return !IsLess(heap, value, arguments.Get(0));
  if (name == "in") return Contains(heap, arguments.Get(0), value);
  if (name == "odd" || name == "even" || name == "divisibleby") {
    const Value by = name == "divisibleby" ? arguments.Get(0) : Value::Int(2);
    const Value rest = Operate(heap, "%", value, by);
    return (name == "odd") != IsEqual(heap, rest, Value::Int(0));
  }
  if (name == "upper" || name == "lower") {
    const MarkedText text = ToText(heap, value);
    return WithLetters(heap, text, name == "upper" ? Letters::kUpper : Letters::kLower).bytes == text.bytes;
  }
  Fail("the test '{}' is not known", name);
}

}  // namespace cairn::jinja
