// Operators of chat templates, on numbers, texts and lists.
#include <cmath>

#include "base/error.h"
#include "chat/jinja_library.h"

namespace cairn::jinja {

namespace {

double NumberOf(const Value& value) {
  if (value.is(Kind::kFloat)) return value.number;
  return value.is(Kind::kBool) ? (value.boolean ? 1 : 0) : static_cast<double>(value.integer);
}
int64_t IntegerOf(const Value& value) { return value.is(Kind::kBool) ? (value.boolean ? 1 : 0) : value.integer; }

[[noreturn]] void FailOperands(const std::string& op, const Value& a, const Value& b) {
  const auto shown = [](const Value& value) {
    return value.is(Kind::kUndefined) && value.name != nullptr ? "'" + *value.name + "', which is undefined,"
                                                               : std::string(NameOf(value.kind));
  };
  Fail("'{}' cannot be applied to {} and {}", op, shown(a), shown(b));
}

// Quotients and remainders are rounded down, as Python does.
Value OperateOnIntegers(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "/") {
    if (b == 0) Fail("division by zero");
    return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  } else if (op == "//" || op == "%") {
    if (b == 0) Fail("division by zero");
    if (b == -1) {  // the one quotient that may not fit
      overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
    } else {
      const bool rounded_up = a % b != 0 && (a < 0) != (b < 0);
      result = op == "//" ? a / b - (rounded_up ? 1 : 0) : a % b + (rounded_up ? b : 0);
    }
  } else {
    CAIRN_CHECK(op == "**");
    if (b < 0) return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)));
    result = 1;
    for (int64_t i = 0; i < b && !overflow && result != 0 && !(a == 1); ++i) {
      if (a == -1) {
        result = b % 2 == 0 ? 1 : -1;
        break;
      }
      overflow = __builtin_mul_overflow(result, a, &result);
    }
  }
  if (overflow) Fail("{} {} {} is too large a number", a, op, b);
  return Value::Int(result);
}

Value OperateOnFloats(const std::string& op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) Fail("division by zero");
  if (op == "/") return Value::Float(a / b);
  if (op == "//") return Value::Float(std::floor(a / b));
  return Value::Float(a - b * std::floor(a / b));
}

Value Repeat(Heap& heap, const Value& value, int64_t count) {
  const size_t times = count > 0 ? static_cast<size_t>(count) : 0;
  const size_t size = value.is_text() ? value.text->size() : value.list->size() * sizeof(Value);
  if (size != 0 && times > heap.limits().memory / size) Fail("repeating {} times asks for too much memory", count);
  heap.Charge(size * times);
  if (size == 0) return value;
  MarkedText text;
  List items;
  for (size_t i = 0; i < times; ++i) {
    if (value.is_text()) {
      text.Append(*value.text);
    } else {
      items.insert(items.end(), value.list->begin(), value.list->end());
    }
  }
  return value.is_text() ? heap.NewText(std::move(text)) : heap.NewList(std::move(items));
}

}  // namespace

Value Negate(const Value& value) {
  if (value.is(Kind::kFloat)) return Value::Float(-value.number);
  if (!value.is_integral()) Fail("{} has no negative", NameOf(value.kind));
  return OperateOnIntegers("-", 0, IntegerOf(value));
}

Value Operate(Heap& heap, const std::string& op, const Value& a, const Value& b) {
  if (op == "~") {
    MarkedText text = ToText(heap, a);
    Append(heap, text, ToText(heap, b));
    return heap.NewText(std::move(text));
  }
  if (a.is_integral() && b.is_integral()) return OperateOnIntegers(op, IntegerOf(a), IntegerOf(b));
  if (a.is_number() && b.is_number()) return OperateOnFloats(op, NumberOf(a), NumberOf(b));
  if (op == "+" && a.is_text() && b.is_text()) {
    heap.Charge(a.text->size() + b.text->size());
    MarkedText text = *a.text;
    text.Append(*b.text);
    return heap.NewText(std::move(text));
  }
  if (op == "+" && a.is(Kind::kList) && b.is(Kind::kList)) {
    heap.Charge((a.list->size() + b.list->size()) * sizeof(Value));
    List items = *a.list;
    items.insert(items.end(), b.list->begin(), b.list->end());
    return heap.NewList(std::move(items));
  }
  if (op == "*") {
    const bool a_repeats = a.is_text() || a.is(Kind::kList), b_repeats = b.is_text() || b.is(Kind::kList);
    if (a_repeats && b.is_integral()) return Repeat(heap, a, IntegerOf(b));
    if (b_repeats && a.is_integral()) return Repeat(heap, b, IntegerOf(a));
  }
  FailOperands(op, a, b);
}

}  // namespace cairn::jinja
