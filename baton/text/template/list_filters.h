// Filters on lists and dicts; filters.cpp has the table. arguments.positional[0] is the value.
#pragma once

#include "baton/base/result.h"
#include "baton/text/template/interpreter.h"

namespace baton::text::jinja {

Result<Value> dictsort(Interpreter& run, const Arguments& arguments);
Result<Value> first(Interpreter& run, const Arguments& arguments);
Result<Value> items(Interpreter& run, const Arguments& arguments);
Result<Value> join(Interpreter& run, const Arguments& arguments);
Result<Value> last(Interpreter& run, const Arguments& arguments);
Result<Value> list(Interpreter& run, const Arguments& arguments);
Result<Value> map(Interpreter& run, const Arguments& arguments);
Result<Value> max(Interpreter& run, const Arguments& arguments);
Result<Value> min(Interpreter& run, const Arguments& arguments);
Result<Value> reject(Interpreter& run, const Arguments& arguments);
Result<Value> rejectattr(Interpreter& run, const Arguments& arguments);
Result<Value> reverse(Interpreter& run, const Arguments& arguments);
Result<Value> select(Interpreter& run, const Arguments& arguments);
Result<Value> selectattr(Interpreter& run, const Arguments& arguments);
Result<Value> sort(Interpreter& run, const Arguments& arguments);
Result<Value> sum(Interpreter& run, const Arguments& arguments);
Result<Value> unique(Interpreter& run, const Arguments& arguments);

}  // namespace baton::text::jinja
