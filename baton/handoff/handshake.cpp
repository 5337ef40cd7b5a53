#include "baton/handoff/handshake.h"

#include <fmt/format.h>

#include <algorithm>

namespace baton::handoff {

namespace {

using wire::pb::Hello;

constexpr auto kRouterRole = static_cast<std::uint32_t>(message::NodeRole::kRouter);

std::string describe_protocol(const Hello& hello) {
  return fmt::format("{} to {}", hello.protocol_min(), hello.protocol_max());
}

std::string describe_boot(const Hello& hello) {
  return fmt::format("{} (boot {:016x}{:016x})", hello.node_id(), hello.boot_high(),
                     hello.boot_low());
}

std::string describe_groups(const Hello& hello) {
  std::string text;
  for (const auto& group : hello.groups()) {
    text += fmt::format("{}{} layers x {} heads x {} {}", text.empty() ? "" : ", ", group.layers(),
                        group.kv_heads(), group.head_dim(), group.dtype());
    if (group.kind() == 1) {
      text += fmt::format(" window {}", group.window_tokens());
    }
  }
  return text.empty() ? "none" : text;
}

std::optional<Mismatch> compare(const char* field, const std::string& ours,
                                const std::string& theirs) {
  if (ours == theirs) {
    return std::nullopt;
  }
  return Mismatch{field, ours, theirs};
}

}  // namespace

std::optional<Mismatch> find_mismatch(const Hello& ours, const Hello& theirs) {
  if (ours.node_id() == theirs.node_id()) {
    return Mismatch{"node_id", describe_boot(ours), describe_boot(theirs)};
  }
  if (std::max(ours.protocol_min(), theirs.protocol_min()) >
      std::min(ours.protocol_max(), theirs.protocol_max())) {
    return Mismatch{"protocol", describe_protocol(ours), describe_protocol(theirs)};
  }
  if (auto found =
          compare("tokenizer_digest", ours.tokenizer_digest(), theirs.tokenizer_digest())) {
    return found;
  }
  if (ours.role() == kRouterRole || theirs.role() == kRouterRole) {
    return std::nullopt;
  }
  if (auto found = compare("model_digest", ours.model_digest(), theirs.model_digest())) {
    return found;
  }
  if (auto found = compare("groups", describe_groups(ours), describe_groups(theirs))) {
    return found;
  }
  return compare("exactness_tag", ours.exactness_tag(), theirs.exactness_tag());
}

std::uint16_t negotiated_version(const Hello& ours, const Hello& theirs) {
  return static_cast<std::uint16_t>(std::min(ours.protocol_max(), theirs.protocol_max()));
}

Error mismatch_error(const Mismatch& mismatch, const std::string& peer) {
  std::string why = fmt::format("{} differs: ours is '{}', theirs is '{}'", mismatch.field,
                                mismatch.ours, mismatch.theirs);
  if (mismatch.field == kTokenField) {
    why = fmt::format("{}; give all nodes the same --cluster-token-file",
                      mismatch.ours == kNoToken     ? "it asks for a cluster token and we have none"
                      : mismatch.theirs == kNoToken ? "it has no cluster token"
                                                    : "it has another cluster token");
  } else if (mismatch.field == "node_id") {
    why = fmt::format("two nodes have one name: here {}, there {}; give each its own --node-id",
                      mismatch.ours, mismatch.theirs);
  }
  return Error{ErrorCode::kHandshakeMismatch, fmt::format("cannot pair with {}: {}", peer, why),
               mismatch.field};
}

Hello make_hello(const message::NodeInfo& info, const kv::KvLayout& layout,
                 const std::string& model_digest, const std::string& tokenizer_digest) {
  Hello hello;
  hello.set_protocol_min(wire::kProtocolMin);
  hello.set_protocol_max(wire::kProtocolMax);
  hello.set_node_id(info.id.value);
  hello.set_role(static_cast<std::uint32_t>(info.role));
  hello.set_exactness_tag(info.exactness_tag);
  hello.set_model_digest(model_digest);
  hello.set_tokenizer_digest(tokenizer_digest);
  for (const kv::KvGroup& group : layout.groups) {
    auto* added = hello.add_groups();
    added->set_kind(group.kind == kv::GroupKind::kWindow ? 1 : 0);
    added->set_window_tokens(group.window_tokens);
    added->set_layers(static_cast<std::int32_t>(group.layers.size()));
    added->set_kv_heads(group.kv_heads);
    added->set_head_dim(group.head_dim);
    added->set_dtype(std::string(kv::kv_dtype_name(group.dtype)));
  }
  hello.set_block_tokens(layout.block_tokens);
  hello.set_max_context_tokens(info.max_context_tokens);
  hello.set_pool_tokens(info.pool_tokens);
  const RequestId boot = random_request_id();
  hello.set_boot_high(boot.high);
  hello.set_boot_low(boot.low);
  return hello;
}

message::NodeInfo node_info(const Hello& hello, std::string address) {
  message::NodeInfo info;
  info.id = NodeId{hello.node_id()};
  info.role = static_cast<message::NodeRole>(hello.role());
  info.address = std::move(address);
  info.exactness_tag = hello.exactness_tag();
  info.max_context_tokens = hello.max_context_tokens();
  info.pool_tokens = hello.pool_tokens();
  return info;
}

}  // namespace baton::handoff
