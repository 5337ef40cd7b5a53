// Resuming a streamed answer at any owner: the id that each event of a stream carries, and how far
// a request that sends one back (Last-Event-ID) must agree with the request that began the answer.
// The id holds what the first owner chose by itself and nothing else: the new owner makes the
// answer from index 0 and leaves out the events that the client has. docs/decisions/008-resume.md.
// Pure; any thread.
#pragma once

#include "baton/api/request.h"
#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/http/message.h"
#include "baton/message/request.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baton::api {

// 32 + 19 + 20 + 10 + 2 x 16 digits, 6 dots, and 11 bytes for each choice.
inline constexpr std::size_t kMaxEventIdBytes = 119 + 11 * kMaxChoices;

// As text: ANSWER.CREATED.SEED.LIMIT.REQUEST.NODES.E0-E1-..., the numbers in decimal, answer and
// digests in lower-case hex. Nothing in it is secret, and nothing in it is believed: who alters one
// gets 400, or the answer to a request that they could have sent themselves.
struct EventId {
  RequestId answer;            // names the answer in its bodies, whoever makes it
  std::int64_t created_s = 0;  // of the bodies; Unix time
  std::int64_t seed = 0;
  std::int32_t max_tokens = 0;        // the resolved limit
  std::uint64_t request_digest = 0;   // see request_digest()
  std::uint64_t nodes_digest = 0;     // of the exactness tag
  std::vector<std::uint32_t> events;  // by choice: how many of its events are out; usage counts as
                                      // one more of choice 0

  bool operator==(const EventId&) const = default;
};

// All of it but `events`, with the dot that they follow: equal for the events of one answer.
std::string event_id_stem(const EventId& id);
void append_events_out(std::string& out, std::span<const std::uint32_t> events);

// What a request asks to resume from; nothing when the header is absent or empty. Errors:
// kInvalidArgument, param "Last-Event-ID": given twice, too long, or not written by event_id_stem.
Result<std::optional<EventId>> last_event_id(const http::HttpRequest& head);

// The id of an answer that begins here; its digests are still 0.
EventId new_event_id(const GenerationRequest& request, const RequestId& answer,
                     std::int64_t created_s);

// Gives the request what the first owner chose: seed and limit. Errors: kInvalidArgument, param
// "Last-Event-ID": the request is not streamed, or has another number of choices.
Status resume_from(const EventId& id, GenerationRequest& request);

// Over all that the events of an answer depend on besides the nodes: the bytes of the body, where
// it was sent, the model's name, the prompt's ids (template and tokenizer), limit and seed, the
// name of the answer, and the way in which this version cuts an answer into events.
std::uint64_t request_digest(Endpoint endpoint, std::string_view body, std::string_view model,
                             const message::Submit& submit, const EventId& id);
std::uint64_t nodes_digest(std::string_view exactness_tag);

// The one of `tags` (those of the nodes here) within which the answer was begun. Errors:
// kInvalidArgument, param "Last-Event-ID": it belongs to a request with another digest, or none of
// the nodes computes alike.
Result<std::string> resumed_tag(const EventId& id, std::uint64_t digest,
                                std::span<const std::string> tags);

// The id is well made, but names events that the answer turned out not to have.
Error past_the_end();

}  // namespace baton::api
