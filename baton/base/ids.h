// Ids that cross folder borders. One-field structs, so that an index, a count and an id do not mix.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>

namespace baton {

// A token of the model's vocabulary. Values are in [0, vocabulary size) once validated.
using TokenId = std::int32_t;

// What a prefix of whole tiles is called by all nodes of a cluster; see kv/tile_digest.h.
using PrefixName = std::uint64_t;

// Chosen by the owner, unique for ever (128 random bits).
struct RequestId {
  std::uint64_t high = 0;
  std::uint64_t low = 0;
  auto operator<=>(const RequestId&) const = default;
};
std::string to_string(const RequestId& id);  // 32 hex digits
RequestId random_request_id();               // from the system's entropy; any thread

// Which of the n answers of a request.
struct Choice {
  std::uint32_t value = 0;
  auto operator<=>(const Choice&) const = default;
};
inline constexpr Choice kAllChoices{std::numeric_limits<std::uint32_t>::max()};

// Attempt number of a sequence: a higher epoch replaces a lower one.
struct Epoch {
  std::uint32_t value = 0;
  auto operator<=>(const Epoch&) const = default;
};

// What every message and frame names.
struct SequenceKey {
  RequestId request;
  Choice choice;
  Epoch epoch;
  auto operator<=>(const SequenceKey&) const = default;
};
std::string to_string(const SequenceKey& key);

// A node's name in the cluster (`--node-id`): 1-64 of [A-Za-z0-9._-].
struct NodeId {
  std::string value;
  auto operator<=>(const NodeId&) const = default;
};

}  // namespace baton

template <>
struct std::hash<baton::RequestId> {
  std::size_t operator()(const baton::RequestId& id) const noexcept {
    return static_cast<std::size_t>(id.high * 0x9E3779B97F4A7C15ULL ^ id.low);
  }
};
template <>
struct std::hash<baton::SequenceKey> {
  std::size_t operator()(const baton::SequenceKey& key) const noexcept {
    const std::uint64_t tail =
        (static_cast<std::uint64_t>(key.choice.value) << 32) | key.epoch.value;
    return std::hash<baton::RequestId>{}(key.request) ^
           static_cast<std::size_t>(tail * 0xC2B2AE3D27D4EB4FULL);
  }
};
template <>
struct std::hash<baton::NodeId> {
  std::size_t operator()(const baton::NodeId& id) const noexcept {
    return std::hash<std::string>{}(id.value);
  }
};
