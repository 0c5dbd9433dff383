#include "chat/jinja.h"

#include "base/error.h"
#include "chat/jinja_ast.h"
#include "chat/jinja_library.h"

namespace cairn::jinja {

namespace {

class Interpreter {
 public:
  Interpreter(Heap& heap, const Variables& variables, std::optional<std::time_t> now) : heap_(heap), now_(now) {
    scopes_.push_back(variables);
  }

  MarkedText Run(const Body& body) {
    Execute(body);
    return std::move(output_);
  }
  int line() const { return line_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  struct Nesting {
    explicit Nesting(Interpreter& interpreter) : depth(interpreter.depth_) {
      if (++depth > interpreter.heap_.limits().depth) {
        --depth;
        Fail("expressions and macro calls are nested too deeply");
      }
      interpreter.heap_.Step();
    }
    ~Nesting() { --depth; }
    size_t& depth;
  };

  // --- variables
  Value Lookup(const std::string& name) {
    for (size_t i = scopes_.size(); i > base_; --i) {
      if (const Value* found = FindIn(scopes_[i - 1], name)) return *found;
    }
    if (const Value* found = FindIn(scopes_[0], name)) return *found;
    Value value;
    value.name = &name;  // of the expression, which outlives the value
    if (IsFunction(name)) value.kind = Kind::kFunction;
    return value;
  }
  static Value* FindIn(Variables& scope, const std::string& name) {
    for (auto& [known, value] : scope) {
      if (known == name) return &value;
    }
    return nullptr;
  }
  void Set(const std::string& name, const Value& value) {
    Variables& scope = scopes_.back();
    heap_.Step(scope.size() / 8);
    if (Value* found = FindIn(scope, name)) {
      *found = value;
    } else {
      scope.emplace_back(name, value);
    }
  }

  // --- statements
  Flow Execute(const Body& body) {
    const Nesting nesting(*this);
    for (const auto& statement : body) {
      line_ = statement->line;
      heap_.Step();
      if (const Flow flow = Execute(*statement); flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  Flow Execute(const Statement& statement) {
    switch (statement.kind) {
      case StatementKind::kData:
        Append(heap_, output_, statement.text);
        return Flow::kNext;
      case StatementKind::kOutput:
        Append(heap_, output_, ToText(heap_, Evaluate(*statement.expr)));
        return Flow::kNext;
      case StatementKind::kIf:
        for (const auto& [condition, body] : statement.branches) {
          if (IsTrue(Evaluate(*condition))) return Execute(body);
        }
        return Execute(statement.otherwise);
      case StatementKind::kFor:
        return ExecuteFor(statement);
      case StatementKind::kSet:
        return ExecuteSet(statement);
      case StatementKind::kMacro: {
        Value value;
        value.kind = Kind::kMacro;
        value.macro = statement.macro.get();
        Set(statement.macro->name, value);
        return Flow::kNext;
      }
      case StatementKind::kBreak:
        return Flow::kBreak;
      case StatementKind::kContinue:
        return Flow::kContinue;
    }
    CAIRN_CHECK(false, "unknown statement");
  }

  void SetTargets(const Statement& statement, const Value& item) {
    if (statement.targets.size() == 1) return Set(statement.targets[0], item);
    const List parts = Iterate(heap_, item);
    if (parts.size() != statement.targets.size()) {
      Fail("an item has {} parts, but the loop names {} variables", parts.size(), statement.targets.size());
    }
    for (size_t i = 0; i < parts.size(); ++i) Set(statement.targets[i], parts[i]);
  }

  Flow ExecuteFor(const Statement& statement) {
    List items = Iterate(heap_, Evaluate(*statement.expr));
    if (statement.condition != nullptr) {
      List kept;
      for (const Value& item : items) {
        scopes_.emplace_back();
        SetTargets(statement, item);
        if (IsTrue(Evaluate(*statement.condition))) kept.push_back(item);
        scopes_.pop_back();
      }
      items = std::move(kept);
    }
    if (items.empty()) return Execute(statement.otherwise);
    const Value list = heap_.NewList(std::move(items));
    LoopState* loop = heap_.NewLoop();
    loop->items = list.list;
    Value loop_value;
    loop_value.kind = Kind::kLoop;
    loop_value.loop = loop;
    for (; loop->index < list.list->size(); ++loop->index) {
      scopes_.emplace_back();
      Set("loop", loop_value);
      SetTargets(statement, (*list.list)[loop->index]);
      const Flow flow = Execute(statement.branches[0].second);
      scopes_.pop_back();
      if (flow == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  Flow ExecuteSet(const Statement& statement) {
    Value value;
    Flow flow = Flow::kNext;
    if (statement.expr != nullptr) {
      value = Evaluate(*statement.expr);
    } else {
      MarkedText outer = std::exchange(output_, {});
      flow = Execute(statement.branches[0].second);
      value = heap_.NewText(std::exchange(output_, std::move(outer)));
    }
    if (statement.targets.size() == 1) {
      Set(statement.targets[0], value);
      return flow;
    }
    const Value object = Lookup(statement.targets[0]);
    const std::string& member = statement.targets[1];
    if (!object.is(Kind::kNamespace)) Fail("'{}' is no namespace, so its members cannot be set", statement.targets[0]);
    if (const Value* found = Find(heap_, *object.dict, member)) {
      *const_cast<Value*>(found) = value;
    } else {
      object.dict->emplace_back(heap_.NewText(MarkedText(member)), value);
    }
    return flow;
  }

  // --- expressions
  Value EvaluateOr(const ExprPtr& expr) { return expr == nullptr ? Value() : Evaluate(*expr); }

  Value Evaluate(const Expr& expr) {
    const Nesting nesting(*this);
    line_ = expr.line;
    const auto& children = expr.children;
    switch (expr.kind) {
      case ExprKind::kConstant:
        return expr.constant;
      case ExprKind::kName:
        return Lookup(expr.name);
      case ExprKind::kList: {
        List items;
        for (const ExprPtr& child : children) items.push_back(Evaluate(*child));
        return heap_.NewList(std::move(items));
      }
      case ExprKind::kDict:
        return EvaluateDict(expr);
      case ExprKind::kAttribute:
        return Attribute(heap_, Evaluate(*children[0]), expr.name);
      case ExprKind::kItem: {
        const Value object = Evaluate(*children[0]);
        return Item(heap_, object, Evaluate(*children[1]));
      }
      case ExprKind::kSlice: {
        const Value object = Evaluate(*children[0]);
        const Value start = EvaluateOr(children[1]), stop = EvaluateOr(children[2]), step = EvaluateOr(children[3]);
        return Slice(heap_, object, start, stop, step);
      }
      case ExprKind::kCall:
        return EvaluateCall(expr);
      case ExprKind::kFilter: {
        const Value value = Evaluate(*children[0]);
        return CallFilter(heap_, expr.name, value, EvaluateArguments(expr));
      }
      case ExprKind::kTest: {
        const Value value = Evaluate(*children[0]);
        return Value::Bool(CallTest(heap_, expr.name, value, EvaluateArguments(expr)));
      }
      case ExprKind::kNot:
        return Value::Bool(!IsTrue(Evaluate(*children[0])));
      case ExprKind::kUnary: {
        const Value value = Evaluate(*children[0]);
        return expr.name == "-" ? Negate(value) : Negate(Negate(value));
      }
      case ExprKind::kBinary: {
        const Value left = Evaluate(*children[0]);
        return Operate(heap_, expr.name, left, Evaluate(*children[1]));
      }
      case ExprKind::kCompare:
        return EvaluateCompare(expr);
      case ExprKind::kAnd: {
        const Value left = Evaluate(*children[0]);
        return IsTrue(left) ? Evaluate(*children[1]) : left;
      }
      case ExprKind::kOr: {
        const Value left = Evaluate(*children[0]);
        return IsTrue(left) ? left : Evaluate(*children[1]);
      }
      case ExprKind::kConditional:
        return IsTrue(Evaluate(*children[1])) ? Evaluate(*children[0]) : EvaluateOr(children[2]);
    }
    CAIRN_CHECK(false, "unknown expression");
  }

  Value EvaluateDict(const Expr& expr) {
    Dict dict;
    for (size_t i = 0; i < expr.children.size(); i += 2) {
      const Value key = Evaluate(*expr.children[i]), value = Evaluate(*expr.children[i + 1]);
      if (const Value* found = Find(heap_, dict, key)) {
        *const_cast<Value*>(found) = value;
      } else {
        dict.emplace_back(key, value);
      }
    }
    return heap_.NewDict(std::move(dict));
  }

  Value EvaluateCompare(const Expr& expr) {
    Value left = Evaluate(*expr.children[0]);
    for (size_t i = 0; i < expr.names.size(); ++i) {
      const Value right = Evaluate(*expr.children[i + 1]);
      if (!Compares(expr.names[i], left, right)) return Value::Bool(false);
      left = right;
    }
    return Value::Bool(true);
  }
  bool Compares(const std::string& op, const Value& a, const Value& b) {
    if (op == "==") return IsEqual(heap_, a, b);
    if (op == "!=") return !IsEqual(heap_, a, b);
    if (op == "in") return Contains(heap_, b, a);
    if (op == "not in") return !Contains(heap_, b, a);
    if (op == "<") return IsLess(heap_, a, b);
    if (op == ">") return IsLess(heap_, b, a);
    return op == "<=" ? !IsLess(heap_, b, a) : !IsLess(heap_, a, b);
  }

  Arguments EvaluateArguments(const Expr& expr) {
    Arguments arguments;
    for (size_t i = 1; i < expr.children.size(); ++i) arguments.positional.push_back(Evaluate(*expr.children[i]));
    for (const auto& [name, value] : expr.named) arguments.named.emplace_back(name, Evaluate(*value));
    return arguments;
  }

  Value EvaluateCall(const Expr& expr) {
    const Expr& callee = *expr.children[0];
    Value function;
    if (callee.kind == ExprKind::kAttribute) {
      const Value object = Evaluate(*callee.children[0]);
      const Value* member = object.is_mapping() ? Find(heap_, *object.dict, callee.name) : nullptr;
      if (member == nullptr || !member->is(Kind::kMacro)) {
        return CallMethod(heap_, object, callee.name, EvaluateArguments(expr));
      }
      function = *member;
    } else {
      function = Evaluate(callee);
    }
    const Arguments arguments = EvaluateArguments(expr);
    line_ = expr.line;
    if (function.is(Kind::kMacro)) return CallMacro(*function.macro, arguments);
    if (function.is(Kind::kFunction)) return CallFunction(heap_, *function.name, arguments, now_);
    if (function.is(Kind::kUndefined) && function.name != nullptr)
      Fail("the function '{}' is not known", *function.name);
    Fail("{} cannot be called", NameOf(function.kind));
  }

  Value CallMacro(const Macro& macro, const Arguments& arguments) {
    if (arguments.positional.size() > macro.parameters.size()) {
      Fail("the macro '{}' takes {} arguments, not {}", macro.name, macro.parameters.size(),
           arguments.positional.size());
    }
    const size_t base = std::exchange(base_, scopes_.size());
    scopes_.emplace_back();
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, otherwise] = macro.parameters[i];
      Value value = arguments.Get(i, name);
      if (value.is(Kind::kUndefined)) value = EvaluateOr(otherwise);
      scopes_.back().emplace_back(name, value);
    }
    MarkedText outer = std::exchange(output_, {});
    Execute(macro.body);
    const Value result = heap_.NewText(std::exchange(output_, std::move(outer)));
    scopes_.resize(base_);
    base_ = base;
    return result;
  }

  Heap& heap_;
  const std::optional<std::time_t> now_;
  std::vector<Variables> scopes_;  // the first is the template's, the rest those of loops and macros
  size_t base_ = 1;                // scopes from here on are seen, and the first
  MarkedText output_;
  size_t depth_ = 0;
  int line_ = 1;
};

}  // namespace

struct Template::Tree {
  std::string name;
  Body body;
};

Template::Template(const std::string& source, std::string name) {
  Body body = Parse(source, name);
  tree_ = std::make_unique<const Tree>(Tree{std::move(name), std::move(body)});
}
Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

MarkedText Template::Render(Heap& heap, const Variables& variables, std::optional<std::time_t> now) const {
  Interpreter interpreter(heap, variables, now);
  try {
    return interpreter.Run(tree_->body);
  } catch (const RaisedError& error) {
    Fail("'{}': the chat template refuses these messages: {}", tree_->name, error.what());
  } catch (const Error& error) {
    Fail("'{}', line {} of the chat template: {}", tree_->name, interpreter.line(), error.what());
  }
}

}  // namespace cairn::jinja
