// The bodies of etcd's v3 JSON gateway (proto3 JSON of etcd's rpc.proto): keys and values in
// base64, 64-bit numbers as strings, fields of their default value left out. And what baton keeps
// there: PREFIX/nodes/ID = {"role":"decode","address":"10.0.0.2:7002"}. Pure; any thread.
#pragma once

#include "baton/base/result.h"
#include "baton/membership/member_set.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton::membership::etcd {

struct KeyValue {
  std::string key;
  std::string value;
};

// ---- requests
std::string grant_body(std::int64_t ttl_s);
std::string lease_body(const std::string& lease);  // of keepalive and of revoke
std::string put_body(const KeyValue& pair, const std::string& lease);
// All keys that begin with the prefix, as of now, or their changes from that revision on.
std::string range_body(const std::string& prefix);
std::string watch_body(const std::string& prefix, std::int64_t from_revision);

// ---- answers. Errors of all: kProtocol, what is missing; kUnavailable, in etcd's words.
struct Snapshot {
  std::int64_t revision = 0;
  std::vector<KeyValue> pairs;
};
struct Event {
  bool deleted = false;  // then there is no value
  KeyValue pair;
};
struct WatchAnswer {
  bool ended = false;  // cancelled by etcd, for instance since it has compacted what was asked for
  std::vector<Event> events;
};
Result<std::string> parse_grant(const std::string& body);        // the lease's id
Result<std::int64_t> parse_keep_alive(const std::string& body);  // seconds left; 0: no such lease
Result<Snapshot> parse_range(const std::string& body);
Result<WatchAnswer> parse_watch(const std::string& line);
// The `error` or `message` of an answer other than 200, else the beginning of the body.
std::string error_text(const std::string& body);

// ---- nodes
std::string nodes_prefix(const std::string& prefix);  // "/baton" -> "/baton/nodes/"
KeyValue node_pair(const std::string& prefix, const std::string& id, const Member& member);
// Errors: kProtocol naming the key (no object, another role, no address).
Result<Member> parse_node(const KeyValue& pair);

std::string base64(std::string_view bytes);
std::optional<std::string> from_base64(std::string_view text);

}  // namespace baton::membership::etcd
