// Typed reads of one JSON value with an error that names the field and what was found there. Inside
// of api/ only: the one place that sees simdjson.
#pragma once

#include "baton/base/result.h"

#include <simdjson.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::api {

using Json = simdjson::dom::element;

Error wrong(std::string field, const std::string& what);  // kInvalidArgument
Error unsupported(std::string field, const std::string& what);
std::string_view json_type_name(Json value);  // "a string", "null", ...

// All errors: kInvalidArgument with param = field. Bounds are inclusive. A float without a fraction
// is an integer, as in JSON Schema.
Result<std::int64_t> read_integer(Json value, const std::string& field, std::int64_t least,
                                  std::int64_t most);
Result<double> read_number(Json value, const std::string& field, double least, double most);
Result<bool> read_bool(Json value, const std::string& field);
Result<std::string> read_string(Json value, const std::string& field);

// Whether a value asks for anything: not null, false, 0, "" or empty.
bool asks_for_something(Json value);

// For a body that simdjson refused because of a number out of range: the top-level field it is in;
// empty when there is none. Reads iteratively, trusts nothing.
std::string field_of_bad_number(std::string_view body);

}  // namespace baton::api
