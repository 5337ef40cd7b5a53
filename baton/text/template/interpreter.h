// Runs a parsed template once. A tree walk over immutable nodes; every node, loop item and byte
// made is charged against the limits, so that a template ends whatever it says. Nothing but Values
// is within reach. One interpreter per rendering, one thread.
#pragma once

#include "baton/base/result.h"
#include "baton/text/chat_template.h"
#include "baton/text/template/ast.h"
#include "baton/text/value.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton::text {

namespace jinja {

struct Arguments {
  List positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Interpreter;

}  // namespace jinja

struct Function {
  std::string name;
  std::function<Result<Value>(jinja::Interpreter&, const jinja::Arguments&)> call;
};

namespace jinja {

// Evaluations and blocks within one another, macros included: what bounds the stack (about 4 KiB
// each). A recursive macro takes about ten per call.
inline constexpr int kMaxRunDepth = 640;

class Interpreter {
 public:
  explicit Interpreter(const TemplateLimits& limits) : limits_(limits) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // `variables` win over the language's own functions.
  Result<Text> run(const Program& program, const Dict& variables);

  // For the language's functions, filters and operators.
  Status charge_steps(std::int64_t steps);
  Status charge_bytes(std::size_t bytes);
  // An error at the line that runs now.
  [[nodiscard]] tl::unexpected<Error> error(ErrorCode code, const std::string& what) const;
  [[nodiscard]] tl::unexpected<Error> type_error(const std::string& what) const {
    return error(ErrorCode::kInvalidArgument, what);
  }
  [[nodiscard]] const TemplateLimits& limits() const { return limits_; }
  // New values, charged and with their depth checked.
  Result<Value> make_text(Text text);
  Result<Value> make_list(List items);
  Result<Value> make_tuple(List items);
  Result<Value> make_dict(Dict items);
  Value make_namespace(Dict items);
  Result<Value> call(const Value& callee, const Arguments& arguments);

 private:
  enum class Flow : std::uint8_t { kNext, kBreak, kContinue };
  using Scope = std::vector<std::pair<std::string, Value>>;

  Result<Value> evaluate(const Expr& expr);
  Status enter();  // counts run_depth_ up; every caller counts it down
  Result<Value> evaluate_kind(const Expr& expr);
  Result<Value> evaluate_compare(const Expr& expr);
  Result<Value> evaluate_concat(const Expr& expr);
  Result<Value> evaluate_dict(const Expr& expr);
  Result<Value> evaluate_slice(const Expr& expr);
  Result<Value> evaluate_sign(const Expr& expr);
  Result<List> evaluate_all(const Expr& expr, std::size_t from);
  Result<Arguments> evaluate_arguments(const Expr& expr, std::size_t from);
  [[nodiscard]] Value look_up(const std::string& name) const;

  Result<Flow> execute(const Body& body);
  Result<Flow> execute_one(const Statement& statement);
  Result<Flow> execute_for(const Statement& statement);
  Result<Flow> execute_items(const Statement& statement, const List& items);
  Result<Flow> execute_if(const Statement& statement);
  Status execute_set_block(const Statement& statement);
  void define_macro(const Statement& statement);
  Result<Value> call_macro(const Statement& macro, std::size_t scopes, const Arguments& arguments);
  Status bind_parameters(const Statement& macro, const Arguments& arguments);
  Status assign(const Target& target, const Value& value);
  void set_variable(const std::string& name, Value value);
  Value loop_value(const List& items, std::size_t index);
  Status emit(const Text& text);

  const TemplateLimits& limits_;
  std::int64_t steps_ = 0;
  std::int64_t work_bytes_ = 0;
  int line_ = 1;
  int macro_depth_ = 0;
  int run_depth_ = 0;
  Dict globals_;
  std::vector<Scope> scopes_;
  Text* output_ = nullptr;
  std::vector<Value> namespaces_;  // emptied at the end: they may hold one another
};

}  // namespace jinja
}  // namespace baton::text
