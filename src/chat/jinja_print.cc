// Values as text: Python's str() and json.dumps().
#include <cmath>

#include "base/error.h"
#include "chat/jinja_value.h"

namespace cairn::jinja {

namespace {

// Values nested deeper than this are not printed: a namespace may contain itself.
constexpr int kMaxNesting = 60;

void CheckNesting(Heap& heap, int depth) {
  heap.Step();
  if (depth > kMaxNesting) Fail("a value is nested more than {} levels deep", kMaxNesting);
}

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

// How a byte is spelt in a literal, JSON's or Python's; empty where it stands for itself.
std::string Escape(char c, char quote, bool json) {
  constexpr std::string_view kCodes = "\n\t\r\b\f", kLetters = "ntrbf";
  if (c == quote || c == '\\') return fmt::format("\\{}", c);
  if (const size_t known = kCodes.find(c); known < (json ? size_t{5} : size_t{3})) {
    return fmt::format("\\{}", kLetters[known]);
  }
  const auto code = static_cast<unsigned>(static_cast<uint8_t>(c));
  if (json && code < 0x20) return fmt::format("\\u{:04x}", code);
  if (!json && (code < 0x20 || code == 0x7f)) return fmt::format("\\x{:02x}", code);
  return "";
}

// Spells text as a literal: JSON's, or Python's repr().
void AppendQuoted(Heap& heap, MarkedText& to, const MarkedText& text, bool json) {
  const bool has_single = text.bytes.find('\'') != std::string::npos;
  const char quote = json || (has_single && text.bytes.find('"') == std::string::npos) ? '"' : '\'';
  heap.Charge(text.size() + 2);
  to.Append(std::string_view(&quote, 1));
  for (size_t i = 0; i < text.size(); ++i) {
    std::string escaped = Escape(text.bytes[i], quote, json);
    if (escaped.empty()) {
      to.Append(text, i, 1);
    } else {
      heap.Charge(escaped.size());
      to.Append(text.untrusted(i) ? MarkedText::Untrusted(std::move(escaped)) : MarkedText(std::move(escaped)));
    }
  }
  to.Append(std::string_view(&quote, 1));
}

// Python's repr().
void AppendLiteral(Heap& heap, MarkedText& to, const Value& value, int depth) {
  CheckNesting(heap, depth);
  if (value.is_text()) {
    AppendQuoted(heap, to, *value.text, false);
  } else if (value.is(Kind::kList)) {
    Append(heap, to, "[");
    for (size_t i = 0; i < value.list->size(); ++i) {
      if (i > 0) Append(heap, to, ", ");
      AppendLiteral(heap, to, (*value.list)[i], depth + 1);
    }
    Append(heap, to, "]");
  } else if (value.is(Kind::kDict)) {
    Append(heap, to, "{");
    for (size_t i = 0; i < value.dict->size(); ++i) {
      if (i > 0) Append(heap, to, ", ");
      AppendLiteral(heap, to, (*value.dict)[i].first, depth + 1);
      Append(heap, to, ": ");
      AppendLiteral(heap, to, (*value.dict)[i].second, depth + 1);
    }
    Append(heap, to, "}");
  } else if (value.is(Kind::kUndefined)) {
    Append(heap, to, "Undefined");
  } else {
    Append(heap, to, ToText(heap, value));
  }
}

struct JsonWriter {
  Heap& heap;
  MarkedText& to;
  int64_t indent;

  void Break(int depth) {
    if (indent < 0) return;
    const auto width = static_cast<size_t>(indent) * static_cast<size_t>(depth);
    heap.Charge(width + 1);
    to.Append("\n");
    to.Append(std::string_view(std::string(width, ' ')));
  }
  void Write(const Value& value, int depth) {
    CheckNesting(heap, depth);
    if (value.is_text()) {
      AppendQuoted(heap, to, *value.text, true);
    } else if (value.is(Kind::kList) || value.is(Kind::kDict)) {
      WriteContainer(value, depth);
    } else if (value.is(Kind::kBool)) {
      Append(heap, to, value.boolean ? "true" : "false");
    } else if (value.is(Kind::kNone)) {
      Append(heap, to, "null");
    } else if (value.is_number()) {
      Append(heap, to, ToText(heap, value));
    } else {
      Fail("tojson cannot write what is {}", NameOf(value.kind));
    }
  }
  void WriteContainer(const Value& value, int depth) {
    const bool list = value.is(Kind::kList);
    const size_t size = list ? value.list->size() : value.dict->size();
    Append(heap, to, list ? "[" : "{");
    for (size_t i = 0; i < size; ++i) {
      if (i > 0) Append(heap, to, indent < 0 ? ", " : ",");
      Break(depth + 1);
      if (list) {
        Write((*value.list)[i], depth + 1);
        continue;
      }
      const auto& [key, member] = (*value.dict)[i];
      AppendQuoted(heap, to, ToText(heap, key), true);
      Append(heap, to, ": ");
      Write(member, depth + 1);
    }
    if (size > 0) Break(depth);
    Append(heap, to, list ? "]" : "}");
  }
};

}  // namespace

MarkedText ToText(Heap& heap, const Value& value) {
  MarkedText text;
  switch (value.kind) {
    case Kind::kUndefined:
      break;
    case Kind::kNone:
      return MarkedText("None");
    case Kind::kBool:
      return MarkedText(value.boolean ? "True" : "False");
    case Kind::kInt:
      return MarkedText(std::to_string(value.integer));
    case Kind::kFloat:
      return MarkedText(FloatText(value.number));
    case Kind::kText:
      heap.Charge(value.text->size());
      return *value.text;
    case Kind::kList:
    case Kind::kDict:
      AppendLiteral(heap, text, value, 0);
      break;
    default:
      Fail("{} cannot be printed", NameOf(value.kind));
  }
  return text;
}

MarkedText ToJson(Heap& heap, const Value& value, int64_t indent) {
  if (indent > 64) Fail("tojson: an indent of {} is too large", indent);
  MarkedText text;
  JsonWriter{heap, text, indent}.Write(value, 0);
  return text;
}

void Append(Heap& heap, MarkedText& to, const MarkedText& text) {
  heap.Charge(text.size());
  to.Append(text);
}
void Append(Heap& heap, MarkedText& to, std::string_view trusted) {
  heap.Charge(trusted.size());
  to.Append(trusted);
}

}  // namespace cairn::jinja
