// What chat templates can call: operators, methods of texts and dictionaries, filters and tests. Everything throws
// Error for what is not known or does not fit.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "chat/jinja_value.h"

namespace cairn::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The argument at this place or of this name, else undefined.
  Value Get(size_t place, std::string_view name = "") const;
  bool Has(size_t place, std::string_view name = "") const { return !Get(place, name).is(Kind::kUndefined); }
  std::string TextAt(size_t place, std::string_view name = "") const;  // throws Error unless it is a text
  int64_t IntAt(size_t place, std::string_view name, int64_t otherwise) const;
};

Value Negate(const Value& value);
// + - * / // % ** ~
Value Operate(Heap& heap, const std::string& op, const Value& a, const Value& b);

Value CallMethod(Heap& heap, const Value& object, const std::string& name, const Arguments& arguments);
Value CallFilter(Heap& heap, const std::string& name, const Value& value, const Arguments& arguments);
bool CallTest(Heap& heap, const std::string& name, const Value& value, const Arguments& arguments);

// What raise_exception() says; it is the template's own word.
class RaisedError : public Error {
 public:
  using Error::Error;
};
bool IsFunction(std::string_view name);
Value CallFunction(Heap& heap, const std::string& name, const Arguments& arguments, std::optional<std::time_t> now);

// Python's text methods that filters share. Places are bytes.
MarkedText Strip(const MarkedText& text, const std::string* characters, bool left, bool right);
enum class Letters {
  kUpper,
  kLower,
  kCapitalized,
  kTitle,         // the method: a word begins after anything that is no letter
  kTitleOfWords,  // the filter: a word begins after white space, a hyphen or a bracket
};
MarkedText WithLetters(Heap& heap, const MarkedText& text, Letters letters);
MarkedText Replace(Heap& heap, const MarkedText& text, const MarkedText& from, const MarkedText& to, int64_t most);
MarkedText JoinTexts(Heap& heap, const List& items, const MarkedText& between);

}  // namespace cairn::jinja
