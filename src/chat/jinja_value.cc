#include "chat/jinja_value.h"

#include <string.h>

#include <algorithm>

#include "base/error.h"
#include "tokenizer/utf8.h"

namespace cairn::jinja {

namespace {

// Values nested deeper than this are not compared: a namespace may contain itself.
constexpr int kMaxNesting = 60;

void CheckNesting(Heap& heap, int depth) {
  heap.Step();
  if (depth > kMaxNesting) Fail("a value is nested more than {} levels deep", kMaxNesting);
}

double NumberOf(const Value& value) {
  if (value.is(Kind::kFloat)) return value.number;
  return value.is(Kind::kBool) ? (value.boolean ? 1 : 0) : static_cast<double>(value.integer);
}
int64_t IntegerOf(const Value& value) { return value.is(Kind::kBool) ? (value.boolean ? 1 : 0) : value.integer; }

bool Equal(Heap& heap, const Value& a, const Value& b, int depth) {
  CheckNesting(heap, depth);
  if (a.is_integral() && b.is_integral()) return IntegerOf(a) == IntegerOf(b);
  if (a.is_number() && b.is_number()) return NumberOf(a) == NumberOf(b);
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kText:
      heap.Step(a.text->size() / 64);
      return a.text->bytes == b.text->bytes;
    case Kind::kList:
      if (a.list == b.list) return true;
      return std::equal(a.list->begin(), a.list->end(), b.list->begin(), b.list->end(),
                        [&](const Value& x, const Value& y) { return Equal(heap, x, y, depth + 1); });
    case Kind::kDict:
      if (a.dict == b.dict) return true;
      if (a.dict->size() != b.dict->size()) return false;
      return std::all_of(a.dict->begin(), a.dict->end(), [&](const auto& member) {
        const Value* other = Find(heap, *b.dict, member.first);
        return other != nullptr && Equal(heap, member.second, *other, depth + 1);
      });
    case Kind::kNamespace:
      return a.dict == b.dict;
    case Kind::kLoop:
      return a.loop == b.loop;
    case Kind::kMacro:
      return a.macro == b.macro;
    case Kind::kFunction:
      return *a.name == *b.name;
    default:
      return true;  // undefined, none
  }
}

// Where each character begins, and the end.
std::vector<size_t> Characters(Heap& heap, const std::string& text) {
  heap.Charge(text.size() * sizeof(size_t));
  std::vector<size_t> begins;
  for (size_t i = 0; i < text.size(); i += ReadUtf8(text, i).length) begins.push_back(i);
  begins.push_back(text.size());
  return begins;
}

int64_t Index(const Value& value, const char* what) {
  if (!value.is_integral()) Fail("{} must be a whole number, not {}", what, NameOf(value.kind));
  return IntegerOf(value);
}

Value LoopMember(const LoopState& loop, const std::string& name) {
  const auto count = static_cast<int64_t>(loop.items->size()), index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::Int(index + 1);
  if (name == "index0") return Value::Int(index);
  if (name == "first") return Value::Bool(index == 0);
  if (name == "last") return Value::Bool(index + 1 == count);
  if (name == "length") return Value::Int(count);
  if (name == "revindex") return Value::Int(count - index);
  if (name == "revindex0") return Value::Int(count - index - 1);
  if (name == "depth") return Value::Int(1);  // of recursion, which there is none
  if (name == "depth0") return Value::Int(0);
  if (name == "previtem") return index > 0 ? (*loop.items)[loop.index - 1] : Value();
  if (name == "nextitem") return index + 1 < count ? (*loop.items)[loop.index + 1] : Value();
  Fail("loop.{} is not known", name);
}

[[noreturn]] void FailUndefined(const Value& value, const char* use) {
  Fail("{} is undefined and {}", value.name == nullptr ? "a value" : "'" + *value.name + "'", use);
}

}  // namespace

Value Heap::NewText(MarkedText text) {
  Charge(sizeof(MarkedText) + text.bytes.size() + text.marks.size());
  texts_.push_back(std::move(text));
  return Value::Text(&texts_.back());
}

Value Heap::NewList(List items) {
  Charge(sizeof(List) + items.size() * sizeof(Value));
  lists_.push_back(std::move(items));
  Value value;
  value.kind = Kind::kList;
  value.list = &lists_.back();
  return value;
}

Value Heap::NewDict(Dict items, Kind kind) {
  Charge(sizeof(Dict) + items.size() * 2 * sizeof(Value));
  dicts_.push_back(std::move(items));
  Value value;
  value.kind = kind;
  value.dict = &dicts_.back();
  return value;
}

LoopState* Heap::NewLoop() {
  Charge(sizeof(LoopState));
  return &loops_.emplace_back();
}

void Heap::Step(size_t count) {
  steps_ += count;
  if (steps_ > limits_.steps) Fail("the template does not come to an end; it was given up after {} steps", steps_);
}

void Heap::Charge(size_t bytes) {
  if (bytes > limits_.memory - memory_) Fail("the template asks for more than {} bytes", limits_.memory);
  memory_ += bytes;
  Step(bytes / 256);
}

const char* NameOf(Kind kind) {
  constexpr const char* kNames[] = {"undefined",   "none",   "true or false", "a whole number",
                                    "a number",    "a text", "a list",        "a dictionary",
                                    "a namespace", "a loop", "a macro",       "a function"};
  return kNames[static_cast<size_t>(kind)];
}

bool IsTrue(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.boolean;
    case Kind::kInt:
      return value.integer != 0;
    case Kind::kFloat:
      return value.number != 0;
    case Kind::kText:
      return value.text->size() != 0;
    case Kind::kList:
      return !value.list->empty();
    case Kind::kDict:
      return !value.dict->empty();
    default:
      return true;
  }
}

bool IsEqual(Heap& heap, const Value& a, const Value& b) { return Equal(heap, a, b, 0); }

bool IsLess(Heap& heap, const Value& a, const Value& b) {
  heap.Step();
  if (a.is_integral() && b.is_integral()) return IntegerOf(a) < IntegerOf(b);
  if (a.is_number() && b.is_number()) return NumberOf(a) < NumberOf(b);
  if (a.is_text() && b.is_text()) {
    heap.Step(std::min(a.text->size(), b.text->size()) / 64);
    return a.text->bytes < b.text->bytes;
  }
  Fail("{} and {} cannot be ordered", NameOf(a.kind), NameOf(b.kind));
}

const Value* Find(Heap& heap, const Dict& dict, std::string_view key) {
  heap.Step(dict.size() / 8);
  for (const auto& [name, value] : dict) {
    if (name.is_text() && name.text->bytes == key) return &value;
  }
  return nullptr;
}

const Value* Find(Heap& heap, const Dict& dict, const Value& key) {
  if (key.is_text()) return Find(heap, dict, key.text->bytes);
  for (const auto& [name, value] : dict) {
    if (IsEqual(heap, name, key)) return &value;
  }
  return nullptr;
}

Value Attribute(Heap& heap, const Value& object, const std::string& name) {
  if (object.is(Kind::kUndefined)) FailUndefined(object, "has no members");
  if (object.is(Kind::kLoop)) return LoopMember(*object.loop, name);
  if (object.is_mapping()) {
    if (const Value* found = Find(heap, *object.dict, name)) return *found;
  }
  Value undefined;
  undefined.name = &name;
  return undefined;
}

Value Item(Heap& heap, const Value& object, const Value& index) {
  if (object.is(Kind::kUndefined)) FailUndefined(object, "has no members");
  Value undefined;
  if (object.is_mapping() || object.is(Kind::kLoop)) {
    if (object.is(Kind::kLoop)) return index.is_text() ? LoopMember(*object.loop, index.text->bytes) : undefined;
    const Value* found = Find(heap, *object.dict, index);
    if (found != nullptr) return *found;
    if (index.is_text()) undefined.name = &index.text->bytes;
    return undefined;
  }
  if (!object.is(Kind::kList) && !object.is_text()) return undefined;
  if (index.is_text()) return undefined;
  int64_t i = Index(index, "an index");
  const auto size = static_cast<int64_t>(Length(heap, object));
  if (i < 0) i += size;
  if (i < 0 || i >= size) return undefined;
  if (object.is(Kind::kList)) return (*object.list)[static_cast<size_t>(i)];
  const auto begins = Characters(heap, object.text->bytes);
  const size_t begin = begins[static_cast<size_t>(i)];
  return heap.NewText(object.text->Part(begin, begins[static_cast<size_t>(i) + 1] - begin));
}

Value Slice(Heap& heap, const Value& object, const Value& start, const Value& stop, const Value& step) {
  if (object.is(Kind::kUndefined)) FailUndefined(object, "cannot be cut");
  if (!object.is(Kind::kList) && !object.is_text()) return {};
  const auto left_out = [](const Value& value) { return value.is(Kind::kUndefined) || value.is(Kind::kNone); };
  const int64_t by = left_out(step) ? 1 : Index(step, "the step of a cut");
  if (by == 0) Fail("the step of a cut is 0");
  std::vector<size_t> begins;
  if (object.is_text()) begins = Characters(heap, object.text->bytes);
  const auto size = static_cast<int64_t>(object.is_text() ? begins.size() - 1 : object.list->size());
  // As Python: bounds are clipped to what a walk in this direction can reach.
  const int64_t low = by > 0 ? 0 : -1, high = by > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, int64_t otherwise) {
    if (left_out(value)) return otherwise;
    const int64_t i = Index(value, "a bound of a cut");
    return std::clamp(i < 0 ? i + size : i, low, high);
  };
  const int64_t from = bound(start, by > 0 ? low : high), to = bound(stop, by > 0 ? high : low);
  List items;
  MarkedText text;
  for (int64_t i = from; by > 0 ? i < to : i > to;) {
    heap.Step();
    const auto at = static_cast<size_t>(i);
    if (object.is_text()) {
      text.Append(*object.text, begins[at], begins[at + 1] - begins[at]);
    } else {
      items.push_back((*object.list)[at]);
    }
    if (by > 0 ? by >= to - i : by <= to - i) break;  // the next would be beyond, or too large a number
    i += by;
  }
  return object.is_text() ? heap.NewText(std::move(text)) : heap.NewList(std::move(items));
}

bool Contains(Heap& heap, const Value& haystack, const Value& needle) {
  if (haystack.is_text()) {
    if (!needle.is_text()) Fail("{} cannot be searched for in a text", NameOf(needle.kind));
    return FindText(heap, haystack.text->bytes, needle.text->bytes) != std::string::npos;
  }
  if (haystack.is_mapping()) return Find(heap, *haystack.dict, needle) != nullptr;
  if (haystack.is(Kind::kUndefined)) return false;
  if (!haystack.is(Kind::kList)) Fail("{} has no members to look for", NameOf(haystack.kind));
  return std::any_of(haystack.list->begin(), haystack.list->end(),
                     [&](const Value& item) { return IsEqual(heap, item, needle); });
}

List Iterate(Heap& heap, const Value& value) {
  List items;
  if (value.is(Kind::kList)) {
    heap.Charge(value.list->size() * sizeof(Value));
    items = *value.list;
  } else if (value.is(Kind::kDict)) {
    heap.Charge(value.dict->size() * sizeof(Value));
    for (const auto& member : *value.dict) items.push_back(member.first);
  } else if (value.is_text()) {
    const auto begins = Characters(heap, value.text->bytes);
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
      items.push_back(heap.NewText(value.text->Part(begins[i], begins[i + 1] - begins[i])));
    }
  } else if (!value.is(Kind::kUndefined)) {
    Fail("{} has no members to go through", NameOf(value.kind));
  }
  return items;
}

size_t Length(Heap& heap, const Value& value) {
  if (value.is(Kind::kList)) return value.list->size();
  if (value.is(Kind::kDict)) return value.dict->size();
  if (value.is(Kind::kUndefined)) return 0;
  if (!value.is_text()) Fail("{} has no length", NameOf(value.kind));
  heap.Step(value.text->size() / 64);
  size_t count = 0;
  for (size_t i = 0; i < value.text->size(); i += ReadUtf8(value.text->bytes, i).length) ++count;
  return count;
}

size_t FindText(Heap& heap, const std::string& text, const std::string& part, size_t begin) {
  if (begin > text.size()) return std::string::npos;
  // memmem is linear, std::string::find is not.
  const void* found = memmem(text.data() + begin, text.size() - begin, part.data(), part.size());
  const size_t at =
      found == nullptr ? std::string::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  heap.Step(((found == nullptr ? text.size() : at) - begin + part.size()) / 64);
  return at;
}

}  // namespace cairn::jinja
