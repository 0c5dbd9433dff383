// Tokens to statements, by recursive descent.
#include "base/error.h"
#include "chat/jinja_expressions.h"

namespace cairn::jinja {

namespace {

class Parser : private ExpressionParser {
 public:
  Parser(std::vector<Token> tokens, int& line) : ExpressionParser(std::move(tokens), line) {}

  Body Run() { return ParseBody({}); }

 private:
  // Up to a block whose name is one of `ends`, which is left unread after its name.
  Body ParseBody(std::initializer_list<std::string_view> ends) {
    const Nesting nesting(*this);
    if (++block_depth_ > kMaxDepth / 2) Fail("blocks are nested more than {} levels deep", kMaxDepth / 2);
    Body body;
    for (;;) {
      auto statement = std::make_unique<Statement>();
      statement->line = token().line;
      if (Is(TokenKind::kEnd)) {
        if (ends.size() != 0) FailExpected(fmt::format("{{% {} %}}", *(ends.end() - 1)));
        break;
      }
      if (Is(TokenKind::kData)) {
        statement->text = MarkedText(Take().text);
      } else if (Is(TokenKind::kOutputBegin)) {
        Take();
        statement->kind = StatementKind::kOutput;
        statement->expr = Tuple();
        if (!Is(TokenKind::kOutputEnd)) FailExpected("}}");
        Take();
      } else {
        Take();
        const std::string name = ExpectName("the name of a statement");
        if (std::find(ends.begin(), ends.end(), name) != ends.end()) {
          end_name_ = name;
          break;
        }
        if (!ParseBlock(name, *statement)) continue;
      }
      body.push_back(std::move(statement));
    }
    --block_depth_;
    return body;
  }

  // False when there is nothing to do for it.
  bool ParseBlock(const std::string& name, Statement& statement) {
    if (name == "if") {
      If(statement);
    } else if (name == "for") {
      For(statement);
    } else if (name == "set") {
      Set(statement);
    } else if (name == "macro") {
      DefineMacro(statement);
    } else if (name == "break" || name == "continue") {
      if (loop_depth_ == 0) Fail("{{% {} %}} stands outside of a loop", name);
      statement.kind = name == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      ExpectBlockEnd();
    } else if (name == "generation" || name == "endgeneration") {
      ExpectBlockEnd();  // marks for training
      return false;
    } else {
      Fail("{{% {} %}} is not known here", name);
    }
    return true;
  }

  void If(Statement& statement) {
    statement.kind = StatementKind::kIf;
    for (;;) {
      ExprPtr condition = Tuple();
      ExpectBlockEnd();
      statement.branches.emplace_back(std::move(condition), ParseBody({"elif", "else", "endif"}));
      if (end_name_ != "elif") break;
    }
    if (end_name_ == "else") {
      ExpectBlockEnd();
      statement.otherwise = ParseBody({"endif"});
    }
    ExpectBlockEnd();
  }

  void For(Statement& statement) {
    statement.kind = StatementKind::kFor;
    const bool bracket = SkipOperator("(");
    do {
      statement.targets.push_back(ExpectName("a loop variable"));
    } while (SkipOperator(","));
    if (bracket) ExpectOperator(")");
    if (!SkipName("in")) FailExpected("'in'");
    statement.expr = Or();
    if (SkipName("if")) statement.condition = Expression();
    if (IsName("recursive")) Fail("recursive loops are not supported");
    ExpectBlockEnd();
    ++loop_depth_;
    statement.branches.emplace_back(nullptr, ParseBody({"else", "endfor"}));
    --loop_depth_;
    if (end_name_ == "else") {
      ExpectBlockEnd();
      statement.otherwise = ParseBody({"endfor"});
    }
    ExpectBlockEnd();
  }

  void Set(Statement& statement) {
    statement.kind = StatementKind::kSet;
    statement.targets.push_back(ExpectName("the name of a variable"));
    if (SkipOperator(".")) statement.targets.push_back(ExpectName("the name of a member"));
    if (SkipOperator("=")) {
      statement.expr = Tuple();
      ExpectBlockEnd();
      return;
    }
    ExpectBlockEnd();
    statement.branches.emplace_back(nullptr, ParseBody({"endset"}));
    ExpectBlockEnd();
  }

  void DefineMacro(Statement& statement) {
    statement.kind = StatementKind::kMacro;
    statement.macro = std::make_unique<Macro>();
    statement.macro->name = ExpectName("the name of the macro");
    ExpectOperator("(");
    auto& parameters = statement.macro->parameters;
    while (!SkipOperator(")")) {
      if (!parameters.empty()) ExpectOperator(",");
      std::string name = ExpectName("a parameter");
      ExprPtr value = SkipOperator("=") ? Expression() : nullptr;
      parameters.emplace_back(std::move(name), std::move(value));
    }
    ExpectBlockEnd();
    const size_t loops = std::exchange(loop_depth_, 0);
    statement.macro->body = ParseBody({"endmacro"});
    loop_depth_ = loops;
    if (Is(TokenKind::kName)) Take();  // {% endmacro name %}
    ExpectBlockEnd();
  }

  size_t block_depth_ = 0;
  size_t loop_depth_ = 0;
  std::string end_name_;  // of the block that ended the last body
};

}  // namespace

Body Parse(const std::string& source, const std::string& name) {
  int line = 1;
  try {
    return Parser(Tokenize(source, line), line).Run();
  } catch (const Error& error) {
    Fail("'{}', line {} of the chat template: {}", name, line, error.what());
  }
}

}  // namespace cairn::jinja
