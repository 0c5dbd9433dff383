// A parsed template: expressions and statements.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "chat/jinja_value.h"

namespace cairn::jinja {

enum class ExprKind : uint8_t {
  kConstant,
  kName,
  kList,       // children
  kDict,       // children: key, value, key, value, ...
  kAttribute,  // child.name
  kItem,       // child[child]
  kSlice,      // child[child:child:child], each bound may be null
  kCall,       // child(children..., named...)
  kFilter,     // child | name(children..., named...)
  kTest,       // child is name(children...)
  kNot,        // not child
  kUnary,      // name is "-" or "+"
  kBinary,     // child name child: + - * / // % ** ~
  kCompare,    // child op child op child ...; operators are in names
  kAnd,
  kOr,
  kConditional,  // child[0] if child[1] else child[2]; the last may be null
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  size_t depth = 1;  // of the tree below; limited, since it is walked recursively
  std::string name;  // variable, attribute, operator, filter or test
  MarkedText text;   // what `constant` points to when it is a text
  Value constant;
  std::vector<ExprPtr> children;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> names;
};

enum class StatementKind : uint8_t { kData, kOutput, kIf, kFor, kSet, kMacro, kBreak, kContinue };

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

// A macro's parameters; a default may be null.
struct Macro {
  std::string name;
  std::vector<std::pair<std::string, ExprPtr>> parameters;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  int line = 0;
  MarkedText text;                   // kData
  std::vector<std::string> targets;  // kFor: loop variables; kSet: name, or namespace and member
  ExprPtr expr;                      // kOutput; kFor: what is gone through; kSet: the value, null for a block
  ExprPtr condition;                 // kFor: `if` after it, may be null
  // kIf: one body a condition. kFor and kSet: one body.
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;                // kIf, kFor: else
  std::unique_ptr<Macro> macro;  // kMacro
};

// Throws Error with the line for what is not understood; `name` says where the template came from.
Body Parse(const std::string& source, const std::string& name);

}  // namespace cairn::jinja
