#include "baton/wire/validate.h"

#include "baton/wire/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace baton::wire {

namespace {

// Highest ErrorCode value with room for codes of newer peers, which read as kInternal.
constexpr std::uint32_t kMaxErrorCode = 255;

tl::unexpected<Error> bad(std::string_view field, std::string_view what) {
  return fail(ErrorCode::kProtocol, fmt::format("{} {}", field, what), std::string(field));
}

template <class T>
Status in_range(std::string_view field, T value, std::int64_t least, std::int64_t most) {
  const auto wide = static_cast<std::int64_t>(value);
  if (wide < least || wide > most) {
    return bad(field, fmt::format("is {}, must be in [{}, {}]", wide, least, most));
  }
  return {};
}

Status at_most(std::string_view field, std::size_t count, std::size_t most) {
  if (count > most) {
    return bad(field, fmt::format("has {} entries or bytes, at most {} are allowed", count, most));
  }
  return {};
}

Status exactly(std::string_view field, const std::string& bytes, std::size_t size) {
  if (bytes.size() != size) {
    return bad(field, fmt::format("has {} bytes, must have {}", bytes.size(), size));
  }
  return {};
}

Status empty_or_exactly(std::string_view field, const std::string& bytes, std::size_t size) {
  return bytes.empty() ? Status{} : exactly(field, bytes, size);
}

Status present(std::string_view field, bool is_there) {
  if (!is_there) {
    return bad(field, "is missing");
  }
  return {};
}

Status real(std::string_view field, std::uint32_t bits, float least, float most) {
  const auto value = std::bit_cast<float>(bits);
  if (!(value >= least && value <= most)) {  // also NaN
    return bad(field, fmt::format("is {}, must be in [{}, {}]", value, least, most));
  }
  return {};
}

Status not_nan(std::string_view field, std::uint32_t bits) {
  if (std::isnan(std::bit_cast<float>(bits))) {
    return bad(field, "is not a number");
  }
  return {};
}

Status node(std::string_view field, const std::string& id) {
  if (!valid_node_id(id)) {
    return bad(field, "is no node id (1-64 of [A-Za-z0-9._-])");
  }
  return {};
}

Status node_or_empty(std::string_view field, const std::string& id) {
  return id.empty() ? Status{} : node(field, id);
}

Status token_ids(std::string_view field, const google::protobuf::RepeatedField<std::int32_t>& ids) {
  const auto negative = std::find_if(ids.begin(), ids.end(), [](auto id) { return id < 0; });
  if (negative != ids.end()) {
    return bad(field, fmt::format("has the id {}", *negative));
  }
  return {};
}

Status validate_sampling(const pb::Sampling& sampling) {
  constexpr float kLargest = 1e9F;
  BATON_TRY_VOID(real("sampling.temperature", sampling.temperature_bits(), 0.0F, kLargest));
  BATON_TRY_VOID(in_range("sampling.top_k", sampling.top_k(), 0, INT32_MAX));
  BATON_TRY_VOID(real("sampling.top_p", sampling.top_p_bits(), 0.0F, 1.0F));
  BATON_TRY_VOID(real("sampling.min_p", sampling.min_p_bits(), 0.0F, 1.0F));
  BATON_TRY_VOID(real("sampling.typical_p", sampling.typical_p_bits(), 0.0F, 1.0F));
  BATON_TRY_VOID(
      real("sampling.repetition_penalty", sampling.repetition_penalty_bits(), 0.0F, kLargest));
  BATON_TRY_VOID(
      real("sampling.presence_penalty", sampling.presence_penalty_bits(), -kLargest, kLargest));
  BATON_TRY_VOID(
      real("sampling.frequency_penalty", sampling.frequency_penalty_bits(), -kLargest, kLargest));
  BATON_TRY_VOID(at_most("sampling.logit_bias",
                         static_cast<std::size_t>(sampling.logit_bias_size()),
                         static_cast<std::size_t>(kMaxLogitBias)));
  for (const pb::Bias& bias : sampling.logit_bias()) {
    BATON_TRY_VOID(in_range("sampling.logit_bias.token", bias.token(), 0, INT32_MAX));
    BATON_TRY_VOID(not_nan("sampling.logit_bias.bias", bias.bias_bits()));
  }
  return in_range("sampling.top_logprobs", sampling.top_logprobs(), -1, kMaxTopLogprobs);
}

Status validate_ranges(std::string_view field,
                       const google::protobuf::RepeatedPtrField<pb::TileRange>& ranges) {
  BATON_TRY_VOID(at_most(field, static_cast<std::size_t>(ranges.size()),
                         static_cast<std::size_t>(kMaxTileRanges)));
  for (const pb::TileRange& range : ranges) {
    BATON_TRY_VOID(in_range(field, range.group(), 0, kMaxKvGroups - 1));
    BATON_TRY_VOID(in_range(field, range.tiles(), 1, kMaxSequenceTokens / 32));
    BATON_TRY_VOID(in_range(field, range.first_tile(), 0,
                            kMaxSequenceTokens / 32 - std::int64_t{range.tiles()}));
  }
  return {};
}

Status validate_token(std::string_view field, const pb::Token& token) {
  BATON_TRY_VOID(present(field, token.request_high() != 0 || token.request_low() != 0));
  BATON_TRY_VOID(in_range(field, token.index(), 0, kMaxSequenceTokens));
  BATON_TRY_VOID(in_range(field, token.token(), 0, INT32_MAX));
  BATON_TRY_VOID(not_nan(field, token.logprob_bits()));
  BATON_TRY_VOID(at_most(field, static_cast<std::size_t>(token.top_size()),
                         static_cast<std::size_t>(kMaxTopLogprobs)));
  for (const pb::TokenLogprob& other : token.top()) {
    BATON_TRY_VOID(in_range(field, other.token(), 0, INT32_MAX));
    BATON_TRY_VOID(not_nan(field, other.logprob_bits()));
  }
  BATON_TRY_VOID(present("token.finish", pb::Finish_IsValid(token.finish())));
  return in_range(field, token.cached_tokens(), 0, kMaxSequenceTokens);
}

Status validate_error(std::string_view field, std::uint32_t code, const std::string& message) {
  BATON_TRY_VOID(in_range(field, code, 0, kMaxErrorCode));
  return at_most(field, message.size(), kMaxTextBytes);
}

Status validate_kv_group(const pb::KvGroup& group) {
  BATON_TRY_VOID(in_range("hello.groups.kind", group.kind(), 0, 1));
  BATON_TRY_VOID(in_range("hello.groups.window_tokens", group.window_tokens(),
                          group.kind() == 1 ? 1 : 0, kMaxSequenceTokens));
  BATON_TRY_VOID(in_range("hello.groups.layers", group.layers(), 1, 1 << 16));
  BATON_TRY_VOID(in_range("hello.groups.kv_heads", group.kv_heads(), 1, 1 << 16));
  BATON_TRY_VOID(in_range("hello.groups.head_dim", group.head_dim(), 1, 1 << 16));
  BATON_TRY_VOID(present("hello.groups.dtype", !group.dtype().empty()));
  return at_most("hello.groups.dtype", group.dtype().size(), 32);
}

}  // namespace

bool valid_node_id(std::string_view id) {
  return !id.empty() && id.size() <= kMaxNodeIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '_' || c == '-';
         });
}

Status validate(const pb::Request& request) {
  BATON_TRY_VOID(present("request.prompt", request.prompt_size() > 0));
  BATON_TRY_VOID(token_ids("request.prompt", request.prompt()));
  BATON_TRY_VOID(token_ids("request.emitted", request.emitted()));
  BATON_TRY_VOID(present("request.sampling", request.has_sampling()));
  BATON_TRY_VOID(validate_sampling(request.sampling()));
  BATON_TRY_VOID(in_range("request.max_tokens", request.max_tokens(),
                          std::int64_t{request.emitted_size()} + 1, kMaxSequenceTokens));
  BATON_TRY_VOID(in_range("request.min_tokens", request.min_tokens(), 0, kMaxSequenceTokens));
  BATON_TRY_VOID(at_most("request.stop_token_ids",
                         static_cast<std::size_t>(request.stop_token_ids_size()),
                         static_cast<std::size_t>(kMaxStopTokenIds)));
  BATON_TRY_VOID(token_ids("request.stop_token_ids", request.stop_token_ids()));
  return exactly("request.cache_namespace", request.cache_namespace(), kNamespaceBytes);
}

Status validate(const pb::Prefill& message) {
  BATON_TRY_VOID(present("prefill.request", message.has_request()));
  BATON_TRY_VOID(validate(message.request()));
  BATON_TRY_VOID(node_or_empty("prefill.decode_node", message.decode_node()));
  return node("prefill.reply_to", message.reply_to());
}

Status validate(const pb::Decode& message) {
  BATON_TRY_VOID(present("decode.request", message.has_request()));
  BATON_TRY_VOID(validate(message.request()));
  BATON_TRY_VOID(node_or_empty("decode.prefill_node", message.prefill_node()));
  return node("decode.reply_to", message.reply_to());
}

Status validate(const pb::Grant& message) {
  if (!message.tokens_digest().empty()) {
    BATON_TRY_VOID(exactly("grant.tokens_digest", message.tokens_digest(), kDigestBytes));
  }
  return validate_ranges("grant.ranges", message.ranges());
}

Status validate(const pb::Ack& message) { return validate_ranges("ack.ranges", message.ranges()); }

Status validate(const pb::Tokens& message) {
  BATON_TRY_VOID(at_most("tokens.tokens", static_cast<std::size_t>(message.tokens_size()),
                         static_cast<std::size_t>(kMaxTokensPerFrame)));
  for (const pb::Token& token : message.tokens()) {
    BATON_TRY_VOID(validate_token("tokens.tokens", token));
  }
  return {};
}

Status validate(const pb::Refused& message) {
  BATON_TRY_VOID(validate_error("refused.message", message.code(), message.message()));
  BATON_TRY_VOID(at_most("refused.param", message.param().size(), kMaxTextBytes / 4));
  return in_range("refused.retry_after_ms", message.retry_after_ms(), 0, 86'400'000);
}

Status validate(const pb::Finished& message) {
  BATON_TRY_VOID(present("finished.reason", pb::Finish_IsValid(message.reason()) &&
                                                message.reason() != pb::FINISH_NONE));
  return validate_error("finished.message", message.code(), message.message());
}

Status validate(const pb::Abort& message) {
  return validate_error("abort.message", message.code(), message.message());
}

Status validate(const pb::Beat& message) {
  BATON_TRY_VOID(at_most("beat.held", static_cast<std::size_t>(message.held_size()),
                         static_cast<std::size_t>(kMaxHeld)));
  if (message.free_blocks() > message.total_blocks()) {
    return bad("beat.free_blocks",
               fmt::format("is {} of {}", message.free_blocks(), message.total_blocks()));
  }
  return {};
}

Status validate(const pb::Cached& message) {
  return at_most("cached.names",
                 static_cast<std::size_t>(message.added_size()) +
                     static_cast<std::size_t>(message.removed_size()),
                 static_cast<std::size_t>(kMaxPrefixNames));
}

Status validate(const pb::Commit& message) {
  BATON_TRY_VOID(exactly("commit.digest", message.digest(), kDigestBytes));
  BATON_TRY_VOID(exactly("commit.tokens_digest", message.tokens_digest(), kDigestBytes));
  BATON_TRY_VOID(in_range("commit.kv_tokens", message.kv_tokens(), 1, kMaxSequenceTokens));
  BATON_TRY_VOID(in_range("commit.first", message.first_size(), 1, kMaxFirstTokens));
  for (const pb::Token& token : message.first()) {
    BATON_TRY_VOID(validate_token("commit.first", token));
  }
  return in_range("commit.cached_tokens", message.cached_tokens(), 0, kMaxSequenceTokens);
}

Status validate(const pb::Hello& message) {
  constexpr std::uint32_t kRouter = 3;
  BATON_TRY_VOID(in_range("hello.protocol_min", message.protocol_min(), 1, 65535));
  BATON_TRY_VOID(
      in_range("hello.protocol_max", message.protocol_max(), message.protocol_min(), 65535));
  BATON_TRY_VOID(node("hello.node_id", message.node_id()));
  BATON_TRY_VOID(in_range("hello.role", message.role(), 0, kRouter));
  BATON_TRY_VOID(present("hello.boot", message.boot_high() != 0 || message.boot_low() != 0));
  BATON_TRY_VOID(in_range("hello.serving_port", message.serving_port(), 0, 65535));
  BATON_TRY_VOID(empty_or_exactly("hello.nonce", message.nonce(), kNonceBytes));
  BATON_TRY_VOID(at_most("hello.fabric", message.fabric().size(), kMaxFabricNameBytes));
  BATON_TRY_VOID(at_most("hello.exactness_tag", message.exactness_tag().size(), kMaxTextBytes));
  BATON_TRY_VOID(at_most("hello.model_digest", message.model_digest().size(), kMaxTextBytes));
  BATON_TRY_VOID(
      at_most("hello.tokenizer_digest", message.tokenizer_digest().size(), kMaxTextBytes));
  BATON_TRY_VOID(present("hello.tokenizer_digest", !message.tokenizer_digest().empty()));
  BATON_TRY_VOID(at_most("hello.groups", static_cast<std::size_t>(message.groups_size()),
                         static_cast<std::size_t>(kMaxKvGroups)));
  for (const pb::KvGroup& group : message.groups()) {
    BATON_TRY_VOID(validate_kv_group(group));
  }
  if (message.role() == kRouter) {
    return {};
  }
  BATON_TRY_VOID(present("hello.exactness_tag", !message.exactness_tag().empty()));
  BATON_TRY_VOID(present("hello.model_digest", !message.model_digest().empty()));
  BATON_TRY_VOID(present("hello.groups", message.groups_size() > 0));
  BATON_TRY_VOID(in_range("hello.block_tokens", message.block_tokens(), 32, 256));
  BATON_TRY_VOID(
      in_range("hello.max_context_tokens", message.max_context_tokens(), 1, kMaxSequenceTokens));
  return in_range("hello.pool_tokens", message.pool_tokens(), 1, INT64_MAX);
}

Status validate(const pb::HelloReply& message) {
  if (message.has_hello()) {
    BATON_TRY_VOID(validate(message.hello()));
  }
  BATON_TRY_VOID(at_most("hello_reply.field", message.field().size(), kMaxTextBytes));
  BATON_TRY_VOID(at_most("hello_reply.ours", message.ours().size(), kMaxTextBytes));
  BATON_TRY_VOID(at_most("hello_reply.theirs", message.theirs().size(), kMaxTextBytes));
  BATON_TRY_VOID(empty_or_exactly("hello_reply.proof", message.proof(), kProofBytes));
  return present("hello_reply.field", message.accepted() || !message.field().empty());
}

Status validate(const pb::Lane& message) {
  BATON_TRY_VOID(present("lane.address", !message.address().empty()));
  return at_most("lane.address", message.address().size(), kMaxLaneAddressBytes);
}

Status validate(const Control& message) {
  return std::visit([](const auto& body) { return validate(body); }, message);
}

}  // namespace baton::wire
