// Statements: output, loops, conditions, assignments, macros. See interpreter.h.
#include "baton/text/template/builtins.h"
#include "baton/text/template/interpreter.h"
#include "baton/text/template/operators.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::text::jinja {

Result<Text> Interpreter::run(const Program& program, const Dict& variables) {
  globals_ = global_functions();
  for (const auto& [name, value] : variables.entries()) {
    if (value.depth() > limits_.depth) {
      return error(ErrorCode::kPayloadTooLarge,
                   fmt::format("\"{}\" has more than {} levels", name.bytes(), limits_.depth));
    }
    globals_.set(name, value);
  }
  scopes_.emplace_back();
  Text output;
  output_ = &output;
  BATON_TRY_VOID(execute(program.body));
  return output;
}

Status Interpreter::emit(const Text& text) {
  BATON_TRY_VOID(charge_bytes(text.bytes().size()));
  output_->append(text);
  if (static_cast<std::int64_t>(output_->bytes().size()) > limits_.output_bytes) {
    return error(ErrorCode::kPayloadTooLarge,
                 fmt::format("the prompt has more than {} bytes", limits_.output_bytes));
  }
  return {};
}

Result<Interpreter::Flow> Interpreter::execute(const Body& body) {
  BATON_TRY_VOID(enter());
  Flow flow = Flow::kNext;
  for (auto statement = body.begin(); statement != body.end() && flow == Flow::kNext; ++statement) {
    BATON_TRY(flow, execute_one(*statement));
  }
  --run_depth_;
  return flow;
}

Result<Interpreter::Flow> Interpreter::execute_one(const Statement& statement) {
  line_ = statement.line;
  BATON_TRY_VOID(charge_steps(1));
  switch (statement.kind) {
    case StatementKind::kData:
      BATON_TRY_VOID(emit(statement.data.as_text()));
      return Flow::kNext;
    case StatementKind::kPrint: {
      BATON_TRY(const Value value, evaluate(*statement.expression));
      if (value.is_string()) {
        BATON_TRY_VOID(emit(value.as_text()));
        return Flow::kNext;
      }
      BATON_TRY(const Text text, to_text(*this, value));
      BATON_TRY_VOID(emit(text));
      return Flow::kNext;
    }
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kSet: {
      BATON_TRY(const Value value, evaluate(*statement.expression));
      BATON_TRY_VOID(assign(statement.target, value));
      return Flow::kNext;
    }
    case StatementKind::kSetBlock:
      BATON_TRY_VOID(execute_set_block(statement));
      return Flow::kNext;
    case StatementKind::kMacro:
      define_macro(statement);
      return Flow::kNext;
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
    case StatementKind::kPassThrough:
      return execute(statement.body);
  }
  return error(ErrorCode::kInternal, "unknown statement");
}

Result<Interpreter::Flow> Interpreter::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    if (branch.condition) {
      BATON_TRY(const Value condition, evaluate(*branch.condition));
      if (!condition.truthy()) {
        continue;
      }
    }
    return execute(branch.body);
  }
  return Flow::kNext;
}

Result<Interpreter::Flow> Interpreter::execute_for(const Statement& statement) {
  BATON_TRY(const Value iterable, evaluate(*statement.expression));
  line_ = statement.line;
  BATON_TRY(List items, iterate(*this, iterable));
  if (statement.condition) {
    List kept;
    for (Value& item : items) {
      scopes_.emplace_back();
      BATON_TRY_VOID(assign(statement.target, item));
      BATON_TRY(const Value condition, evaluate(*statement.condition));
      scopes_.pop_back();
      if (condition.truthy()) {
        kept.push_back(std::move(item));
      }
    }
    items = std::move(kept);
  }
  if (items.empty()) {
    return execute(statement.otherwise);
  }
  return execute_items(statement, items);
}

Result<Interpreter::Flow> Interpreter::execute_items(const Statement& statement,
                                                     const List& items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    line_ = statement.line;
    BATON_TRY_VOID(charge_steps(1));
    scopes_.emplace_back();
    if (statement.uses_loop) {
      set_variable("loop", loop_value(items, i));
    }
    BATON_TRY_VOID(assign(statement.target, items[i]));
    BATON_TRY(const Flow flow, execute(statement.body));
    scopes_.pop_back();
    if (flow == Flow::kBreak) {
      break;
    }
  }
  return Flow::kNext;
}

// The fields of `loop`, made anew for each item.
Value Interpreter::loop_value(const List& items, std::size_t index) {
  const auto i = static_cast<std::int64_t>(index);
  const auto count = static_cast<std::int64_t>(items.size());
  Dict loop;
  const auto set = [&loop](const char* name, Value value) {
    loop.set(Text(name, true), std::move(value));
  };
  set("index", Value::integer(i + 1));
  set("index0", Value::integer(i));
  set("revindex", Value::integer(count - i));
  set("revindex0", Value::integer(count - i - 1));
  set("first", Value::boolean(i == 0));
  set("last", Value::boolean(i + 1 == count));
  set("length", Value::integer(count));
  set("previtem", index == 0 ? Value::undefined("loop.previtem") : items[index - 1]);
  set("nextitem", index + 1 == items.size() ? Value::undefined("loop.nextitem") : items[index + 1]);
  const auto cycle = [index](Interpreter& run, const Arguments& arguments) -> Result<Value> {
    if (arguments.positional.empty()) {
      return run.type_error("loop.cycle() needs arguments");
    }
    return arguments.positional[index % arguments.positional.size()];
  };
  set("cycle", Value::function(std::make_shared<const Function>(Function{"cycle", cycle})));
  return Value::dict(std::move(loop));
}

Status Interpreter::execute_set_block(const Statement& statement) {
  Text captured;
  Text* const outer = std::exchange(output_, &captured);
  scopes_.emplace_back();
  const Result<Flow> flow = execute(statement.body);
  scopes_.pop_back();
  output_ = outer;
  if (!flow) {
    return fail(flow.error());
  }
  return assign(statement.target, Value::text(std::move(captured)));
}

void Interpreter::define_macro(const Statement& statement) {
  const std::size_t scopes = scopes_.size();
  const auto run_macro = [&statement, scopes](Interpreter& run, const Arguments& arguments) {
    return run.call_macro(statement, scopes, arguments);
  };
  set_variable(
      statement.name,
      Value::function(std::make_shared<const Function>(Function{statement.name, run_macro})));
}

// The body sees its parameters and the scopes in which the macro was defined, not its caller's.
Result<Value> Interpreter::call_macro(const Statement& macro, std::size_t scopes,
                                      const Arguments& arguments) {
  if (macro_depth_ >= limits_.depth) {
    return error(ErrorCode::kPayloadTooLarge,
                 fmt::format("more than {} macro calls within one another", limits_.depth));
  }
  ++macro_depth_;
  const auto visible = static_cast<std::ptrdiff_t>(std::min(scopes, scopes_.size()));
  std::vector<Scope> hidden(std::make_move_iterator(scopes_.begin() + visible),
                            std::make_move_iterator(scopes_.end()));
  scopes_.resize(static_cast<std::size_t>(visible));
  scopes_.emplace_back();
  Text captured;
  Text* const outer = std::exchange(output_, &captured);
  Status status = bind_parameters(macro, arguments);
  if (status) {
    if (const Result<Flow> flow = execute(macro.body); !flow) {
      status = fail(flow.error());
    }
  }
  output_ = outer;
  scopes_.resize(static_cast<std::size_t>(visible));
  std::move(hidden.begin(), hidden.end(), std::back_inserter(scopes_));
  --macro_depth_;
  if (!status) {
    return fail(status.error());
  }
  return Value::text(std::move(captured));
}

Status Interpreter::bind_parameters(const Statement& macro, const Arguments& arguments) {
  if (arguments.positional.size() > macro.parameters.size()) {
    return type_error(fmt::format("macro \"{}\" takes at most {} arguments, {} given", macro.name,
                                  macro.parameters.size(), arguments.positional.size()));
  }
  for (const auto& [name, value] : arguments.named) {
    const bool known = std::any_of(macro.parameters.begin(), macro.parameters.end(),
                                   [&name = name](const Parameter& p) { return p.name == name; });
    if (!known) {
      return type_error(fmt::format("macro \"{}\" has no parameter \"{}\"", macro.name, name));
    }
  }
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(),
                     [&](const auto& argument) { return argument.first == parameter.name; });
    if (i < arguments.positional.size()) {
      set_variable(parameter.name, arguments.positional[i]);
    } else if (named != arguments.named.end()) {
      set_variable(parameter.name, named->second);
    } else if (parameter.fallback) {
      BATON_TRY(Value value, evaluate(*parameter.fallback));
      set_variable(parameter.name, std::move(value));
    } else {
      set_variable(parameter.name, Value::undefined(parameter.name));
    }
  }
  return {};
}

void Interpreter::set_variable(const std::string& name, Value value) {
  for (auto& [variable, old] : scopes_.back()) {
    if (variable == name) {
      old = std::move(value);
      return;
    }
  }
  scopes_.back().emplace_back(name, std::move(value));
}

Status Interpreter::assign(const Target& target, const Value& value) {
  if (!target.several.empty()) {
    BATON_TRY(const List items, iterate(*this, value));
    if (items.size() != target.several.size()) {
      return type_error(fmt::format("{} values for {} names", items.size(), target.several.size()));
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      BATON_TRY_VOID(assign(target.several[i], items[i]));
    }
    return {};
  }
  if (target.attribute.empty()) {
    set_variable(target.name, value);
    return {};
  }
  const Value space = look_up(target.name);
  if (space.kind() != Value::Kind::kNamespace) {
    return type_error(fmt::format("\"{}.{}\" cannot be set: \"{}\" is not a namespace", target.name,
                                  target.attribute, target.name));
  }
  space.as_namespace().set(Text(target.attribute, true), value);
  return {};
}

}  // namespace baton::text::jinja
