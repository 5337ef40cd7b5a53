// A parsed template. Immutable after parsing, shared by all renderings.
#pragma once

#include "baton/text/value.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace baton::text::jinja {

enum class ExprKind : std::uint8_t {
  kConstant,
  kName,
  kList,
  kTuple,
  kDict,       // arguments: key, value, key, value, ...
  kAttribute,  // arguments[0].name
  kItem,       // arguments[0][arguments[1]]
  kSlice,      // arguments[0][a:b:c]; 1-3 may be null
  kCall,       // arguments[0](arguments[1..], named)
  kFilter,     // arguments[0] | name(arguments[1..], named)
  kTest,       // arguments[0] is name(arguments[1..])
  kNegate,     // -x
  kPlus,       // +x
  kNot,
  kAnd,
  kOr,
  kBinary,     // name: + - * / // % **
  kCompare,    // arguments[0] operators[0] arguments[1] operators[1] ...
  kConcat,     // ~ of all arguments
  kCondition,  // arguments[1] if arguments[0] else arguments[2] (may be null)
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 1;
  int height = 1;  // bounds the recursion of evaluation and destruction
  Value constant;
  std::string name;
  std::vector<ExprPtr> arguments;
  std::vector<std::pair<std::string, ExprPtr>> named;
  std::vector<std::string> operators;
};

// What a `set` or `for` assigns to: a name, `space.name`, or several names.
struct Target {
  std::string name;
  std::string attribute;        // namespace attribute; else empty
  std::vector<Target> several;  // if not empty, name is not used
};

enum class StatementKind : std::uint8_t {
  kData,
  kPrint,
  kFor,
  kIf,
  kSet,
  kSetBlock,
  kMacro,
  kBreak,
  kContinue,
  kPassThrough,  // {% generation %}: its body
};

struct Statement;
using Body = std::vector<Statement>;

struct Branch {
  ExprPtr condition;  // null for else
  Body body;
};

struct Parameter {
  std::string name;
  ExprPtr fallback;  // null: none
};

struct Statement {
  StatementKind kind = StatementKind::kData;
  int line = 1;
  Value data;                         // kData
  ExprPtr expression;                 // kPrint, kSet; kFor: the iterable
  ExprPtr condition;                  // kFor: `for x in y if condition`
  Target target;                      // kSet, kSetBlock, kFor
  std::string name;                   // kMacro
  std::vector<Parameter> parameters;  // kMacro
  Body body;                          // kFor, kSetBlock, kMacro, kPassThrough
  Body otherwise;                     // kFor: else
  std::vector<Branch> branches;       // kIf
  bool uses_loop = true;              // kFor: the body names `loop`
};

struct Program {
  Body body;
};

}  // namespace baton::text::jinja
