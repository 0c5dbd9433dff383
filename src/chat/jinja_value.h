// The values of chat templates: what Python's would be, with texts that remember where they came from. Everything
// lives in a heap that is dropped whole after rendering, and every use of time and memory is counted there, since
// templates come from strangers.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chat/marked_text.h"

namespace cairn::jinja {

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kText,
  kList,  // tuples too
  kDict,
  kNamespace,  // a dict whose members can be set
  kLoop,       // the variable `loop`
  kMacro,
  kFunction,  // built in
};

struct Value;
struct Macro;  // jinja_ast.h
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  // in order of insertion

struct LoopState;

// A plain handle; what it points to lives in the Heap or in the template.
struct Value {
  Kind kind = Kind::kUndefined;
  union {
    bool boolean;
    int64_t integer;
    double number;
    const MarkedText* text;
    List* list;
    Dict* dict;  // namespaces too
    const LoopState* loop;
    const Macro* macro;
    const std::string* name;  // of a function; of what is undefined, or null
  };

  Value() : name(nullptr) {}
  static Value None() {
    Value value;
    value.kind = Kind::kNone;
    return value;
  }
  static Value Bool(bool boolean) {
    Value value;
    value.kind = Kind::kBool;
    value.boolean = boolean;
    return value;
  }
  static Value Int(int64_t integer) {
    Value value;
    value.kind = Kind::kInt;
    value.integer = integer;
    return value;
  }
  static Value Float(double number) {
    Value value;
    value.kind = Kind::kFloat;
    value.number = number;
    return value;
  }
  static Value Text(const MarkedText* text) {
    Value value;
    value.kind = Kind::kText;
    value.text = text;
    return value;
  }
  bool is(Kind other) const { return kind == other; }
  bool is_text() const { return kind == Kind::kText; }
  bool is_mapping() const { return kind == Kind::kDict || kind == Kind::kNamespace; }
  bool is_integral() const { return kind == Kind::kInt || kind == Kind::kBool; }
  bool is_number() const { return is_integral() || kind == Kind::kFloat; }
};

struct LoopState {
  const List* items = nullptr;
  size_t index = 0;  // from 0
};

// What a template may use before it is refused.
struct Limits {
  size_t steps = 5'000'000;
  size_t memory = size_t{256} << 20;  // bytes of all values ever made, and of the output
  size_t depth = 150;                 // of nested expressions, statements and macro calls
};

class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  Value NewText(MarkedText text);
  Value NewList(List items);
  Value NewDict(Dict items, Kind kind = Kind::kDict);
  LoopState* NewLoop();

  // Counts what is about to be done; throws Error beyond the limits.
  void Step(size_t count = 1);
  void Charge(size_t bytes);
  const Limits& limits() const { return limits_; }

 private:
  const Limits limits_;
  size_t steps_ = 0;
  size_t memory_ = 0;
  std::deque<MarkedText> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<LoopState> loops_;
};

// "text", "list", ... for messages.
const char* NameOf(Kind kind);

bool IsTrue(const Value& value);
bool IsEqual(Heap& heap, const Value& a, const Value& b);
// a < b for numbers and texts; throws Error for anything else.
bool IsLess(Heap& heap, const Value& a, const Value& b);
// The member, or null.
const Value* Find(Heap& heap, const Dict& dict, std::string_view key);
const Value* Find(Heap& heap, const Dict& dict, const Value& key);
// object.name where it is a member and no method; undefined when there is none.
Value Attribute(Heap& heap, const Value& object, const std::string& name);
// object[index].
Value Item(Heap& heap, const Value& object, const Value& index);
// object[start:stop:step]; undefined parts are left out.
Value Slice(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step);
// `needle in haystack`.
bool Contains(Heap& heap, const Value& haystack, const Value& needle);
// What a loop runs over: items, keys, characters.
List Iterate(Heap& heap, const Value& value);
// Python's len().
size_t Length(Heap& heap, const Value& value);

// Python's str().
MarkedText ToText(Heap& heap, const Value& value);
// Python's json.dumps(ensure_ascii=False); without indent when it is negative.
MarkedText ToJson(Heap& heap, const Value& value, int64_t indent);

// Appends, counting the bytes.
void Append(Heap& heap, MarkedText& to, const MarkedText& text);
void Append(Heap& heap, MarkedText& to, std::string_view trusted);

// The first occurrence from `begin` on, in linear time.
size_t FindText(Heap& heap, const std::string& text, const std::string& part, size_t begin = 0);

}  // namespace cairn::jinja
