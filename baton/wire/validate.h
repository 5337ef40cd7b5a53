// Presence, ranges and sizes of parsed messages: proto3 defaults are never trusted. Run before a
// message is sent and after it was received. What depends on the model (vocabulary, context) is for
// the receiver's engine to check. Errors: kProtocol naming message.field and the value.
#pragma once

#include "baton/wire/frames.h"

#include <string_view>

namespace baton::wire {

// 1-64 of [A-Za-z0-9._-].
bool valid_node_id(std::string_view id);

Status validate(const pb::Request& request);
Status validate(const pb::Prefill& message);
Status validate(const pb::Decode& message);
Status validate(const pb::Grant& message);
Status validate(const pb::Ack& message);
Status validate(const pb::Tokens& message);
Status validate(const pb::Refused& message);
Status validate(const pb::Finished& message);
Status validate(const pb::Abort& message);
Status validate(const pb::Beat& message);
Status validate(const pb::Cached& message);
Status validate(const pb::Commit& message);
Status validate(const pb::Hello& message);
Status validate(const pb::HelloReply& message);
Status validate(const pb::Lane& message);
Status validate(const Control& message);

}  // namespace baton::wire
