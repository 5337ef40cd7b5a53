#include "baton/api/resume.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

namespace baton::api {

namespace {

constexpr const char* kHeader = "Last-Event-ID";
constexpr std::size_t kFields = 7;
// Raise it when an answer is cut into other events, or they have other contents: an id from before
// then belongs to no request.
constexpr std::uint64_t kStreamVersion = 1;

Error refused(const std::string& what) {
  return {ErrorCode::kInvalidArgument, std::string(kHeader) + " " + what, kHeader, 0};
}

template <class T>
bool read(std::string_view digits, T& number, int base = 10) {
  const char* const end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, number, base);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

std::vector<std::string_view> split(std::string_view text, char at, std::size_t most) {
  std::vector<std::string_view> parts;
  while (parts.size() + 1 < most) {
    const std::size_t found = text.find(at);
    if (found == std::string_view::npos) {
      break;
    }
    parts.push_back(text.substr(0, found));
    text.remove_prefix(found + 1);
  }
  parts.push_back(text);
  return parts;
}

// Lenient about digits: the caller compares with what the id is written as.
std::optional<EventId> parse(std::string_view text) {
  const auto fields = split(text, '.', kFields);
  EventId id;
  if (fields.size() != kFields || fields[0].size() != 32 ||
      !read(fields[0].substr(0, 16), id.answer.high, 16) ||
      !read(fields[0].substr(16), id.answer.low, 16) || !read(fields[1], id.created_s) ||
      !read(fields[2], id.seed) || !read(fields[3], id.max_tokens) ||
      !read(fields[4], id.request_digest, 16) || !read(fields[5], id.nodes_digest, 16)) {
    return std::nullopt;
  }
  for (const std::string_view count : split(fields[6], '-', kMaxChoices + 1)) {
    if (id.events.size() == kMaxChoices || !read(count, id.events.emplace_back())) {
      return std::nullopt;
    }
  }
  return id;
}

using Digest = std::array<std::uint8_t, SHA256_DIGEST_LENGTH>;

Digest sha256(const void* bytes, std::size_t count) {
  Digest digest{};
  SHA256(static_cast<const unsigned char*>(bytes), count, digest.data());
  return digest;
}

// 64 bits find every mistake; whoever looks for two bodies of one digest deceives himself only.
std::uint64_t leading_bits(const Digest& digest) {
  std::uint64_t bits = 0;
  for (std::size_t at = 0; at < sizeof(bits); ++at) {
    bits = (bits << 8) | digest[at];
  }
  return bits;
}

}  // namespace

std::string event_id_stem(const EventId& id) {
  return fmt::format("{}.{}.{}.{}.{:016x}.{:016x}.", to_string(id.answer), id.created_s, id.seed,
                     id.max_tokens, id.request_digest, id.nodes_digest);
}

void append_events_out(std::string& out, std::span<const std::uint32_t> events) {
  fmt::format_to(std::back_inserter(out), "{}", fmt::join(events, "-"));
}

Result<std::optional<EventId>> last_event_id(const http::HttpRequest& head) {
  const auto is_ours = [](const http::Header& header) { return header.first == "last-event-id"; };
  if (std::count_if(head.headers.begin(), head.headers.end(), is_ours) > 1) {
    return fail(refused("is given more than once"));
  }
  const std::string_view text = head.header("last-event-id").value_or(std::string_view());
  if (text.empty()) {
    return std::nullopt;
  }
  if (text.size() > kMaxEventIdBytes) {
    return fail(refused(fmt::format("has more than {} bytes", kMaxEventIdBytes)));
  }
  std::optional<EventId> id = parse(text);
  if (id) {
    std::string written = event_id_stem(*id);
    append_events_out(written, id->events);
    if (written == text && id->created_s >= 0 && id->max_tokens >= 1) {
      return id;
    }
  }
  return fail(refused("is not the id of an event of this server"));
}

EventId new_event_id(const GenerationRequest& request, const RequestId& answer,
                     std::int64_t created_s) {
  EventId id;
  id.answer = answer;
  id.created_s = created_s;
  id.seed = request.seed ? *request.seed : random_seed();
  id.events.resize(request.n);
  return id;
}

Status resume_from(const EventId& id, GenerationRequest& request) {
  if (!request.stream) {
    return fail(refused("is for streamed answers; this request does not ask for one"));
  }
  if (id.events.size() != request.n) {
    return fail(refused(fmt::format("belongs to another request: it tells of {} choices, not of {}",
                                    id.events.size(), request.n)));
  }
  request.seed = id.seed;
  request.max_tokens = id.max_tokens;
  return {};
}

std::uint64_t request_digest(Endpoint endpoint, std::string_view body, std::string_view model,
                             const message::Submit& submit, const EventId& id) {
  // Parts of fixed size, so that no two requests share their bytes.
  const Digest body_digest = sha256(body.data(), body.size());
  const Digest model_digest = sha256(model.data(), model.size());
  const Digest prompt_digest = sha256(submit.prompt.data(), submit.prompt.size() * sizeof(TokenId));
  std::string all;
  for (const Digest* digest : {&body_digest, &model_digest, &prompt_digest}) {
    all.append(digest->begin(), digest->end());
  }
  all += fmt::format("{}.{}.{}.{}.{}.{}", kStreamVersion, static_cast<int>(endpoint),
                     to_string(id.answer), id.created_s, submit.sampling.seed, submit.max_tokens);
  return leading_bits(sha256(all.data(), all.size()));
}

std::uint64_t nodes_digest(std::string_view exactness_tag) {
  return leading_bits(sha256(exactness_tag.data(), exactness_tag.size()));
}

Result<std::string> resumed_tag(const EventId& id, std::uint64_t digest,
                                std::span<const std::string> tags) {
  if (digest != id.request_digest) {
    return fail(refused("belongs to another request: send the same body to the same path"));
  }
  if (tags.empty()) {
    return fail({ErrorCode::kUnavailable, "no node is connected that could go on", "", 1'000});
  }
  const auto found = std::find_if(tags.begin(), tags.end(), [&](const std::string& tag) {
    return nodes_digest(tag) == id.nodes_digest;
  });
  if (found == tags.end()) {
    return fail(refused("comes from nodes of another model, KV dtype or version than those here"));
  }
  return *found;
}

Error past_the_end() { return refused("names events that this answer does not have"); }

}  // namespace baton::api
