// The part of the parser that reads expressions, with Jinja's precedences.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "chat/jinja_ast.h"
#include "chat/jinja_lexer.h"

namespace cairn::jinja {

class ExpressionParser {
 protected:
  // Of nested brackets, operators in a row and blocks: what is walked recursively later.
  static constexpr size_t kMaxDepth = 100;

  // `line` follows the tokens that are read, for messages.
  ExpressionParser(std::vector<Token> tokens, int& line) : tokens_(std::move(tokens)), line_(line) {}

  // --- tokens
  const Token& token() const { return tokens_[position_]; }
  bool Is(TokenKind kind) const { return token().kind == kind; }
  bool IsOperator(std::string_view text) const { return Is(TokenKind::kOperator) && token().text == text; }
  bool IsName(std::string_view text) const { return Is(TokenKind::kName) && token().text == text; }
  bool SkipOperator(std::string_view text) { return IsOperator(text) && (Take(), true); }
  bool SkipName(std::string_view text) { return IsName(text) && (Take(), true); }
  Token Take();
  std::string Shown() const;
  [[noreturn]] void FailExpected(std::string_view what);
  void ExpectOperator(std::string_view text);
  void ExpectBlockEnd();
  std::string ExpectName(const char* what);
  // --- expressions
  ExprPtr New(ExprKind kind, std::string name = "") const;
  void Add(Expr& expr, ExprPtr child);
  void Deepen(Expr& expr, const Expr& child);
  ExprPtr Join(ExprKind kind, std::string name, ExprPtr left, ExprPtr right);
  ExprPtr Expression();
  // Without brackets, a comma makes a list.
  ExprPtr Tuple();
  ExprPtr Or();
  ExprPtr And();
  ExprPtr Not();
  ExprPtr Compare();
  ExprPtr Sum();
  ExprPtr Concatenation();
  ExprPtr Product();
  ExprPtr Power();
  ExprPtr Unary(bool with_filters);
  ExprPtr Constant(Value value) const;
  ExprPtr Primary();
  ExprPtr Name();
  ExprPtr Postfix(ExprPtr value);
  ExprPtr Subscript(ExprPtr value);
  // (a, b, name=c) after a function, filter or test; the brackets may be missing for the last two.
  ExprPtr Call(ExprKind kind, std::string name, ExprPtr value);
  ExprPtr Filters(ExprPtr value);
  ExprPtr Test(ExprPtr value);

  // Counts the recursion of the parser itself.
  struct Nesting {
    explicit Nesting(ExpressionParser& parser) : depth(parser.depth_) {
      if (++depth > kMaxDepth * 4) Fail("the template is nested too deeply");
    }
    ~Nesting() { --depth; }
    size_t& depth;
  };

  // Left to right, operators of equal rank.
  template <typename Operand>
  ExprPtr Chain(std::initializer_list<std::string_view> operators, Operand operand) {
    ExprPtr left = operand();
    for (;;) {
      bool found = false;
      for (const std::string_view op : operators) {
        if (!SkipOperator(op)) continue;
        left = Join(ExprKind::kBinary, std::string(op), std::move(left), operand());
        found = true;
        break;
      }
      if (!found) return left;
    }
  }

  const std::vector<Token> tokens_;
  size_t position_ = 0;
  int& line_;
  size_t depth_ = 0;
};

}  // namespace cairn::jinja
