// Result<T> = a value or an Error. tl::expected now, std::expected when the compiler has it: the
// names are the same. BATON_TRY returns early with the error of an expression.
#pragma once

#include "baton/base/error.h"

#include <tl/expected.hpp>

#include <string>
#include <utility>

namespace baton {

template <class T>
using Result = tl::expected<T, Error>;
using Status = Result<void>;

inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }
inline tl::unexpected<Error> fail(ErrorCode code, std::string message, std::string param = {}) {
  return fail(Error{code, std::move(message), std::move(param), 0});
}

}  // namespace baton

#define BATON_CONCAT_INNER(a, b) a##b
#define BATON_CONCAT(a, b) BATON_CONCAT_INNER(a, b)

// BATON_TRY(auto value, expression): value of a Result, or return its error.
#define BATON_TRY(declaration, ...)                                               \
  auto BATON_CONCAT(try_result_, __LINE__) = (__VA_ARGS__);                       \
  if (!BATON_CONCAT(try_result_, __LINE__)) {                                     \
    return ::baton::fail(std::move(BATON_CONCAT(try_result_, __LINE__)).error()); \
  }                                                                               \
  declaration = *std::move(BATON_CONCAT(try_result_, __LINE__))

// BATON_TRY_VOID(expression): the same for a Status.
#define BATON_TRY_VOID(...)                                \
  do {                                                     \
    auto try_status = (__VA_ARGS__);                       \
    if (!try_status) {                                     \
      return ::baton::fail(std::move(try_status).error()); \
    }                                                      \
  } while (false)
