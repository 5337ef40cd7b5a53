// Which nodes may pair: pure functions over two Hellos. Both sides run the same rule, so both can
// name the field and both values.
#pragma once

#include "baton/kv/layout.h"
#include "baton/message/node.h"
#include "baton/wire/frames.h"

#include <optional>
#include <string>

namespace baton::handoff {

// Why a pair is refused: the field of Hello, and what each side has.
struct Mismatch {
  std::string field;
  std::string ours;
  std::string theirs;
};

// The field of a refusal for want of the same cluster token (cluster_token.h). Neither value is
// ever the token.
inline constexpr const char* kTokenField = "cluster_token";
inline constexpr const char* kNoToken = "none";  // the value of the side that has none

// Engine nodes (single, prefill, decode) must agree on protocol range, model digest, tokenizer
// digest, KV groups and dtype, and exactness tag; with a router only protocol range and tokenizer
// digest count. block_tokens and limits may differ. A node never pairs with itself or its namesake.
std::optional<Mismatch> find_mismatch(const wire::pb::Hello& ours, const wire::pb::Hello& theirs);

// The highest version both know. Only after find_mismatch said nothing.
std::uint16_t negotiated_version(const wire::pb::Hello& ours, const wire::pb::Hello& theirs);

// kHandshakeMismatch with "node p1 refuses node d1: model_digest differs: p1 has X, d1 has Y".
Error mismatch_error(const Mismatch& mismatch, const std::string& peer);

// Our Hello. A router gives an empty layout, digest and tag. boot_* are drawn at random.
wire::pb::Hello make_hello(const message::NodeInfo& info, const kv::KvLayout& layout,
                           const std::string& model_digest, const std::string& tokenizer_digest);

message::NodeInfo node_info(const wire::pb::Hello& hello, std::string address);

}  // namespace baton::handoff
