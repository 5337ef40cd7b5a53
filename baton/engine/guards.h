// What a request must be before anything is allocated for it: after these checks, ids are indices
// into the vocabulary and every sum fits its type.
#pragma once

#include "baton/backend/backend.h"
#include "baton/base/result.h"
#include "baton/message/request.h"

#include <cstdint>

namespace baton::engine {

// Most stop ids of one request: each is barred and compared at every token.
inline constexpr std::size_t kMaxStopTokenIds = 1024;

// Errors: kInvalidArgument (param names the field), kContextTooLong, kUnsupported (all choices in
// one sequence).
Status check_request(const message::Submit& submit, const backend::BackendInfo& info,
                     std::int32_t max_context_tokens);

}  // namespace baton::engine
