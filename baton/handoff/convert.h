// Between the values of message/ and the Protobuf of the wire. Everything from a peer is checked
// here (presence, ranges, counts): proto3 defaults are never trusted, and what passes is safe to
// hand to the engine, which checks against its model. Pure; any thread.
#pragma once

#include "baton/base/result.h"
#include "baton/message/request.h"
#include "baton/wire/messages.pb.h"

#include <cstddef>
#include <string>
#include <vector>

namespace baton::handoff {

// A request rides in one frame of at most 1 MiB; the rest is for the ids around it.
inline constexpr std::size_t kMaxRequestBytes = (1U << 20U) - 4096;
inline constexpr std::size_t kMaxReasonBytes = 1'024;  // of a peer's text, for logs and clients

// Errors: kContextTooLong (over kMaxRequestBytes), kInvalidArgument (over the wire's limits).
Result<wire::pb::Request> request_to_wire(const message::Submit& submit);
// Errors: kProtocol or kInvalidArgument, naming the field.
Result<message::Submit> request_from_wire(const SequenceKey& key, const wire::pb::Request& request);

wire::pb::Token token_to_wire(const message::Token& token);
Result<message::Token> token_from_wire(const wire::pb::Token& token);  // Errors: kProtocol
wire::pb::Tokens tokens_to_wire(std::uint64_t step, const std::vector<message::Token>& tokens);

wire::pb::Refused refused_to_wire(bool later, const Error& error);
message::Refused refused_from_wire(const SequenceKey& key, const wire::pb::Refused& refused);
wire::pb::Finished finished_to_wire(message::FinishReason reason, const Error& error);
message::Finished finished_from_wire(const SequenceKey& key, const wire::pb::Finished& finished);
wire::pb::Abort abort_to_wire(const Error& reason);
Error abort_from_wire(const wire::pb::Abort& abort);

}  // namespace baton::handoff
