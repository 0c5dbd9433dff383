#include "chat/jinja_expressions.h"

#include <charconv>

namespace cairn::jinja {

Token ExpressionParser::Take() {
  line_ = token().line;
  return token().kind == TokenKind::kEnd ? token() : tokens_[position_++];
}

std::string ExpressionParser::Shown() const {
  switch (token().kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kOutputEnd:
    case TokenKind::kBlockEnd:
      return "the end of the tag";
    default:
      return "'" + token().text + "'";
  }
}

void ExpressionParser::FailExpected(std::string_view what) {
  line_ = token().line;
  Fail("{} was expected instead of {}", what, Shown());
}

void ExpressionParser::ExpectOperator(std::string_view text) {
  if (!SkipOperator(text)) FailExpected(fmt::format("'{}'", text));
}

void ExpressionParser::ExpectBlockEnd() {
  if (!Is(TokenKind::kBlockEnd)) FailExpected("the end of the tag");
  Take();
}

std::string ExpressionParser::ExpectName(const char* what) {
  if (!Is(TokenKind::kName)) FailExpected(what);
  return Take().text;
}

ExprPtr ExpressionParser::New(ExprKind kind, std::string name) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = token().line;
  expr->name = std::move(name);
  return expr;
}

void ExpressionParser::Add(Expr& expr, ExprPtr child) {
  if (child != nullptr) Deepen(expr, *child);
  expr.children.push_back(std::move(child));
}

void ExpressionParser::Deepen(Expr& expr, const Expr& child) {
  expr.depth = std::max(expr.depth, child.depth + 1);
  if (expr.depth > kMaxDepth) Fail("an expression is nested more than {} levels deep", kMaxDepth);
}

ExprPtr ExpressionParser::Join(ExprKind kind, std::string name, ExprPtr left, ExprPtr right) {
  ExprPtr expr = New(kind, std::move(name));
  Add(*expr, std::move(left));
  Add(*expr, std::move(right));
  return expr;
}

ExprPtr ExpressionParser::Expression() {
  const Nesting nesting(*this);
  ExprPtr value = Or();
  while (SkipName("if")) {
    ExprPtr expr = New(ExprKind::kConditional);
    Add(*expr, std::move(value));
    Add(*expr, Or());
    Add(*expr, SkipName("else") ? Expression() : nullptr);
    value = std::move(expr);
  }
  return value;
}

ExprPtr ExpressionParser::Tuple() {
  ExprPtr first = Expression();
  if (!IsOperator(",")) return first;
  ExprPtr list = New(ExprKind::kList);
  Add(*list, std::move(first));
  while (SkipOperator(",")) {
    if (Is(TokenKind::kBlockEnd) || Is(TokenKind::kOutputEnd) || IsOperator(")")) break;
    Add(*list, Expression());
  }
  return list;
}

ExprPtr ExpressionParser::Or() {
  ExprPtr left = And();
  while (SkipName("or")) left = Join(ExprKind::kOr, "", std::move(left), And());
  return left;
}

ExprPtr ExpressionParser::And() {
  ExprPtr left = Not();
  while (SkipName("and")) left = Join(ExprKind::kAnd, "", std::move(left), Not());
  return left;
}

ExprPtr ExpressionParser::Not() {
  const Nesting nesting(*this);
  if (!IsName("not")) return Compare();
  ExprPtr expr = New(ExprKind::kNot);
  Take();
  Add(*expr, Not());
  return expr;
}

ExprPtr ExpressionParser::Compare() {
  ExprPtr left = Sum();
  ExprPtr expr;
  for (;;) {
    std::string op;
    if (Is(TokenKind::kOperator) && (token().text == "==" || token().text == "!=" || token().text == "<" ||
                                     token().text == "<=" || token().text == ">" || token().text == ">=")) {
      op = Take().text;
    } else if (SkipName("in")) {
      op = "in";
    } else if (IsName("not") && tokens_[position_ + 1].kind == TokenKind::kName &&
               tokens_[position_ + 1].text == "in") {
      Take(), Take();
      op = "not in";
    } else {
      return expr == nullptr ? std::move(left) : std::move(expr);
    }
    if (expr == nullptr) {
      expr = New(ExprKind::kCompare);
      Add(*expr, std::move(left));
    }
    expr->names.push_back(op);
    Add(*expr, Sum());
  }
}

ExprPtr ExpressionParser::Sum() {
  return Chain({"+", "-"}, [&] { return Concatenation(); });
}

ExprPtr ExpressionParser::Concatenation() {
  return Chain({"~"}, [&] { return Product(); });
}

ExprPtr ExpressionParser::Product() {
  return Chain({"*", "/", "//", "%"}, [&] { return Power(); });
}

ExprPtr ExpressionParser::Power() {
  return Chain({"**"}, [&] { return Unary(true); });
}

ExprPtr ExpressionParser::Unary(bool with_filters) {
  const Nesting nesting(*this);
  ExprPtr value;
  if (IsOperator("-") || IsOperator("+")) {
    value = New(ExprKind::kUnary, token().text);
    Take();
    Add(*value, Unary(false));
  } else {
    value = Primary();
  }
  value = Postfix(std::move(value));
  return with_filters ? Filters(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::Constant(Value value) const {
  ExprPtr expr = New(ExprKind::kConstant);
  expr->constant = value;
  return expr;
}

ExprPtr ExpressionParser::Primary() {
  const Nesting nesting(*this);
  switch (token().kind) {
    case TokenKind::kName:
      return Name();
    case TokenKind::kString: {
      ExprPtr expr = New(ExprKind::kConstant);
      while (Is(TokenKind::kString)) expr->text.bytes += Take().text;
      expr->constant = Value::Text(&expr->text);
      return expr;
    }
    case TokenKind::kInteger: {
      const std::string text = Take().text;
      int64_t value = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
        Fail("the number {} is too large", text);
      return Constant(Value::Int(value));
    }
    case TokenKind::kFloat: {
      const std::string text = Take().text;
      double value = 0;
      if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc())
        Fail("the number {} is out of range", text);
      return Constant(Value::Float(value));
    }
    default:
      break;
  }
  if (SkipOperator("(")) {
    ExprPtr value = SkipOperator(")") ? New(ExprKind::kList) : nullptr;
    if (value != nullptr) return value;
    value = Tuple();
    ExpectOperator(")");
    return value;
  }
  if (SkipOperator("[")) {
    ExprPtr list = New(ExprKind::kList);
    while (!SkipOperator("]")) {
      if (!list->children.empty()) ExpectOperator(",");
      if (SkipOperator("]")) break;
      Add(*list, Expression());
    }
    return list;
  }
  if (SkipOperator("{")) {
    ExprPtr dict = New(ExprKind::kDict);
    while (!SkipOperator("}")) {
      if (!dict->children.empty()) ExpectOperator(",");
      if (SkipOperator("}")) break;
      Add(*dict, Expression());
      ExpectOperator(":");
      Add(*dict, Expression());
    }
    return dict;
  }
  FailExpected("a value");
}

ExprPtr ExpressionParser::Name() {
  const std::string name = Take().text;
  if (name == "true" || name == "True") return Constant(Value::Bool(true));
  if (name == "false" || name == "False") return Constant(Value::Bool(false));
  if (name == "none" || name == "None") return Constant(Value::None());
  return New(ExprKind::kName, name);
}

ExprPtr ExpressionParser::Postfix(ExprPtr value) {
  for (;;) {
    if (SkipOperator(".")) {
      if (Is(TokenKind::kInteger)) {  // list.0
        value = Join(ExprKind::kItem, "", std::move(value), Primary());
        continue;
      }
      ExprPtr expr = New(ExprKind::kAttribute, ExpectName("the name of a member"));
      Add(*expr, std::move(value));
      value = std::move(expr);
    } else if (IsOperator("[")) {
      value = Subscript(std::move(value));
    } else if (IsOperator("(")) {
      value = Call(ExprKind::kCall, "", std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::Subscript(ExprPtr value) {
  Take();
  ExprPtr first = IsOperator(":") ? nullptr : Tuple();
  if (SkipOperator("]")) return Join(ExprKind::kItem, "", std::move(value), std::move(first));
  ExprPtr expr = Join(ExprKind::kSlice, "", std::move(value), std::move(first));
  for (int i = 0; i < 2; ++i) {
    const bool given = SkipOperator(":") && !IsOperator(":") && !IsOperator("]");
    Add(*expr, given ? Expression() : nullptr);
  }
  ExpectOperator("]");
  return expr;
}

ExprPtr ExpressionParser::Call(ExprKind kind, std::string name, ExprPtr value) {
  ExprPtr expr = New(kind, std::move(name));
  Add(*expr, std::move(value));
  if (!SkipOperator("(")) return expr;
  while (!SkipOperator(")")) {
    if (expr->children.size() > 1 || !expr->named.empty()) {
      ExpectOperator(",");
      if (SkipOperator(")")) break;
    }
    if (Is(TokenKind::kName) && tokens_[position_ + 1].kind == TokenKind::kOperator &&
        tokens_[position_ + 1].text == "=") {
      std::string argument = Take().text;
      Take();
      ExprPtr given = Expression();
      Deepen(*expr, *given);
      expr->named.emplace_back(std::move(argument), std::move(given));
    } else {
      if (!expr->named.empty()) FailExpected("a named argument");
      Add(*expr, Expression());
    }
  }
  return expr;
}

ExprPtr ExpressionParser::Filters(ExprPtr value) {
  for (;;) {
    if (SkipOperator("|")) {
      std::string name = ExpectName("the name of a filter");
      value = Call(ExprKind::kFilter, std::move(name), std::move(value));
    } else if (SkipName("is")) {
      value = Test(std::move(value));
    } else if (IsOperator("(")) {
      value = Call(ExprKind::kCall, "", std::move(value));
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::Test(ExprPtr value) {
  const bool negated = SkipName("not");
  std::string name = ExpectName("the name of a test");
  ExprPtr test;
  const bool ends =
      IsName("else") || IsName("or") || IsName("and") || IsName("is") || IsName("if") || IsName("not") || IsName("in");
  const bool has_argument = (Is(TokenKind::kName) && !ends) || Is(TokenKind::kString) || Is(TokenKind::kInteger) ||
                            Is(TokenKind::kFloat) || IsOperator("[") || IsOperator("{");
  if (IsOperator("(") || !has_argument) {
    test = Call(ExprKind::kTest, std::move(name), std::move(value));
  } else {
    test = New(ExprKind::kTest, std::move(name));
    Add(*test, std::move(value));
    Add(*test, Postfix(Primary()));
  }
  if (!negated) return test;
  ExprPtr expr = New(ExprKind::kNot);
  Add(*expr, std::move(test));
  return expr;
}

}  // namespace cairn::jinja
