// Methods of texts, dictionaries and lists in chat templates; as Python's.
#include <string.h>
#include <unicode/uchar.h>

#include <algorithm>

#include "base/error.h"
#include "chat/jinja_library.h"
#include "tokenizer/utf8.h"

namespace cairn::jinja {

namespace {

bool IsSpaceCode(uint32_t code) {
  return (code >= 9 && code <= 13) || (code >= 28 && code <= 32) || code == 0x85 || code == 0xa0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200a) || code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
         code == 0x3000;
}

// The character that ends at `end`.
Utf8Character ReadBackwards(const std::string& text, size_t end) {
  for (size_t length = std::min<size_t>(4, end); length > 1; --length) {
    const Utf8Character c = ReadUtf8(text, end - length);
    if (c.length == length && c.code < kInvalidByte) return c;
  }
  return ReadUtf8(std::string_view(text).substr(end - 1, 1), 0);
}

// Without a separator at runs of white space, which gives no empty parts.
List Split(Heap& heap, const MarkedText& text, const Value& separator, int64_t most) {
  List parts;
  const auto more = [&] { return most < 0 || static_cast<int64_t>(parts.size()) < most; };
  if (separator.is(Kind::kUndefined) || separator.is(Kind::kNone)) {
    MarkedText rest = Strip(text, nullptr, true, false);
    heap.Charge(rest.size());
    for (size_t begin = 0; begin < rest.size();) {
      size_t end = begin;
      if (more()) {
        while (end < rest.size() && !IsSpaceCode(ReadUtf8(rest.bytes, end).code))
          end += ReadUtf8(rest.bytes, end).length;
      } else {
        end = rest.size();
      }
      parts.push_back(heap.NewText(rest.Part(begin, end - begin)));
      while (end < rest.size() && IsSpaceCode(ReadUtf8(rest.bytes, end).code)) end += ReadUtf8(rest.bytes, end).length;
      begin = end;
    }
    return parts;
  }
  if (!separator.is_text() || separator.text->size() == 0) Fail("split() needs a text that is not empty");
  size_t begin = 0;
  for (size_t at; more() && (at = FindText(heap, text.bytes, separator.text->bytes, begin)) != std::string::npos;) {
    parts.push_back(heap.NewText(text.Part(begin, at - begin)));
    begin = at + separator.text->size();
  }
  parts.push_back(heap.NewText(text.Part(begin)));
  return parts;
}

List SplitFromRight(Heap& heap, const MarkedText& text, const Value& separator, int64_t most) {
  if (!separator.is_text() || separator.text->size() == 0) Fail("rsplit() needs a text that is not empty");
  // Backwards, since only the search forwards is linear.
  heap.Charge(text.size() + separator.text->size());
  const std::string backwards(text.bytes.rbegin(), text.bytes.rend());
  const std::string part(separator.text->bytes.rbegin(), separator.text->bytes.rend());
  List parts;
  size_t end = text.size();
  while (most < 0 || static_cast<int64_t>(parts.size()) < most) {
    const size_t found = FindText(heap, backwards, part, text.size() - end);
    if (found == std::string::npos) break;
    const size_t begin = text.size() - found;
    parts.push_back(heap.NewText(text.Part(begin, end - begin)));
    end = begin - part.size();
  }
  parts.push_back(heap.NewText(text.Part(0, end)));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

List SplitLines(Heap& heap, const MarkedText& text) {
  List lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.bytes.find_first_of("\r\n", begin), text.size());
    lines.push_back(heap.NewText(text.Part(begin, end - begin)));
    begin = end + (text.bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return lines;
}

// startswith, endswith: with a text, or any of a list of texts.
bool HasEnd(const MarkedText& text, const Value& argument, bool at_begin) {
  if (argument.is(Kind::kList)) {
    return std::any_of(argument.list->begin(), argument.list->end(),
                       [&](const Value& item) { return item.is_text() && HasEnd(text, item, at_begin); });
  }
  if (!argument.is_text()) Fail("{} needs a text", at_begin ? "startswith()" : "endswith()");
  const std::string& part = argument.text->bytes;
  return at_begin ? text.bytes.starts_with(part) : text.bytes.ends_with(part);
}

int64_t CharactersBefore(Heap& heap, const std::string& text, size_t at) {
  if (at == std::string::npos) return -1;
  heap.Step(at / 64);
  int64_t count = 0;
  for (size_t i = 0; i < at; i += ReadUtf8(text, i).length) ++count;
  return count;
}

Value CallTextMethod(Heap& heap, const MarkedText& text, const std::string& name, const Arguments& arguments) {
  heap.Charge(text.size());
  if (name == "strip" || name == "lstrip" || name == "rstrip") {
    const bool given = arguments.Has(0) && !arguments.Get(0).is(Kind::kNone);
    const std::string characters = given ? arguments.TextAt(0) : "";
    heap.Step(characters.size() * text.size() / 64);
    return heap.NewText(Strip(text, given ? &characters : nullptr, name != "rstrip", name != "lstrip"));
  }
  if (name == "split")
    return heap.NewList(Split(heap, text, arguments.Get(0, "sep"), arguments.IntAt(1, "maxsplit", -1)));
  if (name == "rsplit")
    return heap.NewList(SplitFromRight(heap, text, arguments.Get(0, "sep"), arguments.IntAt(1, "maxsplit", -1)));
  if (name == "splitlines") return heap.NewList(SplitLines(heap, text));
  if (name == "startswith") return Value::Bool(HasEnd(text, arguments.Get(0), true));
  if (name == "endswith") return Value::Bool(HasEnd(text, arguments.Get(0), false));
  if (name == "upper") return heap.NewText(WithLetters(heap, text, Letters::kUpper));
  if (name == "lower") return heap.NewText(WithLetters(heap, text, Letters::kLower));
  if (name == "title") return heap.NewText(WithLetters(heap, text, Letters::kTitle));
  if (name == "capitalize") return heap.NewText(WithLetters(heap, text, Letters::kCapitalized));
  if (name == "join") {
    return heap.NewText(JoinTexts(heap, Iterate(heap, arguments.Get(0)), text));
  }
  if (name == "replace") {
    const Value from = arguments.Get(0, "old"), to = arguments.Get(1, "new");
    if (!from.is_text() || !to.is_text()) Fail("replace() needs two texts");
    return heap.NewText(Replace(heap, text, *from.text, *to.text, arguments.IntAt(2, "count", -1)));
  }
  if (name == "find" || name == "index") {
    const size_t at = FindText(heap, text.bytes, arguments.TextAt(0));
    if (at == std::string::npos && name == "index") Fail("index(): the text was not found");
    return Value::Int(CharactersBefore(heap, text.bytes, at));
  }
  if (name == "count") {
    const std::string part = arguments.TextAt(0);
    if (part.empty()) Fail("count() needs a text that is not empty");
    int64_t count = 0;
    for (size_t at = 0; (at = FindText(heap, text.bytes, part, at)) != std::string::npos; at += part.size()) ++count;
    return Value::Int(count);
  }
  if (name == "removeprefix" || name == "removesuffix") {
    const std::string part = arguments.TextAt(0);
    const bool prefix = name == "removeprefix";
    if (!HasEnd(text, arguments.Get(0), prefix)) return heap.NewText(text);
    return heap.NewText(text.Part(prefix ? part.size() : 0, text.size() - part.size()));
  }
  if (name == "isdigit" || name == "isalpha" || name == "isspace") {
    const auto fits = [&](char c) {
      if (name == "isspace") return IsSpaceCode(static_cast<uint8_t>(c));
      return name == "isdigit" ? c >= '0' && c <= '9' : (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    return Value::Bool(text.size() > 0 && std::all_of(text.bytes.begin(), text.bytes.end(), fits));
  }
  Fail("texts have no method {}()", name);
}

Value CallDictMethod(Heap& heap, const Dict& dict, const std::string& name, const Arguments& arguments) {
  if (name == "get") {
    if (const Value* found = Find(heap, dict, arguments.Get(0))) return *found;
    return arguments.Has(1) ? arguments.Get(1) : Value::None();
  }
  List items;
  heap.Charge(dict.size() * sizeof(Value));
  for (const auto& [key, value] : dict) {
    if (name == "items") {
      items.push_back(heap.NewList({key, value}));
    } else if (name == "keys" || name == "values") {
      items.push_back(name == "keys" ? key : value);
    } else {
      break;
    }
  }
  if (name == "items" || name == "keys" || name == "values") return heap.NewList(std::move(items));
  Fail("dictionaries have no method {}()", name);
}

}  // namespace

Value Arguments::Get(size_t place, std::string_view name) const {
  if (place < positional.size()) return positional[place];
  for (const auto& [given, value] : named) {
    if (given == name) return value;
  }
  return {};
}

std::string Arguments::TextAt(size_t place, std::string_view name) const {
  const Value value = Get(place, name);
  if (!value.is_text()) Fail("argument {} must be a text, not {}", place + 1, NameOf(value.kind));
  return value.text->bytes;
}

int64_t Arguments::IntAt(size_t place, std::string_view name, int64_t otherwise) const {
  const Value value = Get(place, name);
  if (value.is(Kind::kUndefined) || value.is(Kind::kNone)) return otherwise;
  if (!value.is_integral()) Fail("argument {} must be a whole number, not {}", place + 1, NameOf(value.kind));
  return value.is(Kind::kBool) ? (value.boolean ? 1 : 0) : value.integer;
}

MarkedText Strip(const MarkedText& text, const std::string* characters, bool left, bool right) {
  const auto goes = [&](const Utf8Character& c, size_t at) {
    if (characters == nullptr) return IsSpaceCode(c.code);
    for (size_t i = 0; i < characters->size(); i += ReadUtf8(*characters, i).length) {
      if (characters->compare(i, ReadUtf8(*characters, i).length, text.bytes, at, c.length) == 0) return true;
    }
    return false;
  };
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    const Utf8Character c = ReadUtf8(text.bytes, begin);
    if (!goes(c, begin)) break;
    begin += c.length;
  }
  while (right && end > begin) {
    const Utf8Character c = ReadBackwards(text.bytes, end);
    if (c.length > end - begin || !goes(c, end - c.length)) break;
    end -= c.length;
  }
  return text.Part(begin, end - begin);
}

MarkedText WithLetters(Heap& heap, const MarkedText& text, Letters letters) {
  heap.Charge(text.size() * 2);
  MarkedText result;
  uint32_t last = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Character c = ReadUtf8(text.bytes, i);
    const bool begins = i == 0 || (letters == Letters::kTitle && !u_isalpha(static_cast<UChar32>(last))) ||
                        (letters == Letters::kTitleOfWords &&
                         (IsSpaceCode(last) || (last < 128 && strchr("-({[<", static_cast<int>(last)))));
    const bool upper = letters == Letters::kUpper || (letters != Letters::kLower && begins);
    last = c.code;
    const auto code = static_cast<UChar32>(c.code);
    const UChar32 changed = c.code >= kInvalidByte ? code : upper ? u_toupper(code) : u_tolower(code);
    if (changed == code) {
      result.Append(text, i, c.length);
    } else {
      std::string bytes;
      AppendUtf8(static_cast<uint32_t>(changed), bytes);
      result.Append(text.untrusted(i) ? MarkedText::Untrusted(std::move(bytes)) : MarkedText(std::move(bytes)));
    }
    i += c.length;
  }
  return result;
}

MarkedText Replace(Heap& heap, const MarkedText& text, const MarkedText& from, const MarkedText& to, int64_t most) {
  MarkedText result;
  size_t begin = 0;
  for (int64_t count = 0; most < 0 || count < most; ++count) {
    heap.Step();
    size_t at = FindText(heap, text.bytes, from.bytes, begin);
    if (from.size() == 0 && count > 0) {  // before each character and at the end, as Python does
      if (begin >= text.size()) break;
      at = begin + ReadUtf8(text.bytes, begin).length;
    }
    if (at == std::string::npos) break;
    heap.Charge(at - begin + to.size());
    result.Append(text, begin, at - begin);
    result.Append(to);
    begin = at + from.size();
  }
  heap.Charge(text.size() - begin);
  result.Append(text, begin);
  return result;
}

MarkedText JoinTexts(Heap& heap, const List& items, const MarkedText& between) {
  MarkedText result;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) Append(heap, result, between);
    Append(heap, result, ToText(heap, items[i]));
  }
  return result;
}

Value CallMethod(Heap& heap, const Value& object, const std::string& name, const Arguments& arguments) {
  if (object.is_text()) return CallTextMethod(heap, *object.text, name, arguments);
  if (object.is_mapping()) return CallDictMethod(heap, *object.dict, name, arguments);
  if (object.is(Kind::kUndefined)) {
    Fail("{} is undefined, so {}() cannot be called", object.name == nullptr ? "a value" : "'" + *object.name + "'",
         name);
  }
  if (object.is(Kind::kList) && (name == "index" || name == "count")) {
    int64_t count = 0;
    for (size_t i = 0; i < object.list->size(); ++i) {
      if (!IsEqual(heap, (*object.list)[i], arguments.Get(0))) continue;
      if (name == "index") return Value::Int(static_cast<int64_t>(i));
      ++count;
    }
    if (name == "count") return Value::Int(count);
    Fail("index(): the list has no such item");
  }
  Fail("{} has no method {}()", NameOf(object.kind), name);
}

}  // namespace cairn::jinja
