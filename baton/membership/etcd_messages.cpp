#include "baton/membership/etcd_messages.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <utility>

namespace baton::membership::etcd {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::size_t kShownBytes = 200;

tl::unexpected<Error> wrong(std::string_view what) {
  return fail(ErrorCode::kProtocol, "etcd's answer: " + std::string(what));
}

// The first key after all those that begin with the prefix.
std::string range_end(std::string prefix) {
  while (!prefix.empty() && static_cast<unsigned char>(prefix.back()) == 0xFF) {
    prefix.pop_back();
  }
  if (prefix.empty()) {
    return std::string(1, '\0');  // to the end of all
  }
  ++prefix.back();
  return prefix;
}

Json parse(const std::string& text) { return Json::parse(text, nullptr, false); }

const Json* member_of(const Json& object, const char* key) {
  if (!object.is_object()) {
    return nullptr;
  }
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

// A number, written as such or as a string; 0 when it is left out or no number.
std::int64_t number_of(const Json& object, const char* key) {
  const Json* value = member_of(object, key);
  if (value != nullptr && value->is_number_integer()) {
    return value->get<std::int64_t>();
  }
  std::int64_t number = 0;
  if (value != nullptr && value->is_string()) {
    const auto& text = value->get_ref<const std::string&>();
    std::from_chars(text.data(), text.data() + text.size(), number);
  }
  return number;
}

std::string text_of(const Json& object, const char* key) {
  const Json* value = member_of(object, key);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

Result<KeyValue> pair_of(const Json& object) {
  auto key = from_base64(text_of(object, "key"));
  auto value = from_base64(text_of(object, "value"));
  if (!key || !value || key->empty()) {
    return wrong("a key or value that is not base64");
  }
  return KeyValue{*std::move(key), *std::move(value)};
}

// `result` of a streaming call's line.
Result<Json> result_of(const std::string& line) {
  const Json whole = parse(line);
  if (member_of(whole, "error") != nullptr) {
    return fail(ErrorCode::kUnavailable, "etcd: " + error_text(line));
  }
  const Json* result = member_of(whole, "result");
  if (result == nullptr || !result->is_object()) {
    return wrong("no result: " + line.substr(0, kShownBytes));
  }
  return *result;
}

}  // namespace

std::string grant_body(std::int64_t ttl_s) {
  Json body;
  body["TTL"] = std::to_string(ttl_s);
  return body.dump();
}

std::string lease_body(const std::string& lease) {
  Json body;
  body["ID"] = lease;
  return body.dump();
}

std::string put_body(const KeyValue& pair, const std::string& lease) {
  Json body;
  body["key"] = base64(pair.key);
  body["value"] = base64(pair.value);
  body["lease"] = lease;
  return body.dump();
}

std::string range_body(const std::string& prefix) {
  Json body;
  body["key"] = base64(prefix);
  body["range_end"] = base64(range_end(prefix));
  return body.dump();
}

std::string watch_body(const std::string& prefix, std::int64_t from_revision) {
  Json body;
  body["create_request"]["key"] = base64(prefix);
  body["create_request"]["range_end"] = base64(range_end(prefix));
  body["create_request"]["start_revision"] = std::to_string(from_revision);
  return body.dump();
}

Result<std::string> parse_grant(const std::string& body) {
  const Json answer = parse(body);
  std::string lease = text_of(answer, "ID");
  if (lease.empty()) {
    return wrong("no lease: " + body.substr(0, kShownBytes));
  }
  return lease;
}

Result<std::int64_t> parse_keep_alive(const std::string& body) {
  BATON_TRY(const Json result, result_of(body));
  return number_of(result, "TTL");
}

Result<Snapshot> parse_range(const std::string& body) {
  const Json answer = parse(body);
  const Json* header = member_of(answer, "header");
  Snapshot snapshot;
  snapshot.revision = header == nullptr ? 0 : number_of(*header, "revision");
  if (snapshot.revision <= 0) {
    return wrong("no revision: " + body.substr(0, kShownBytes));
  }
  if (const Json* pairs = member_of(answer, "kvs"); pairs != nullptr && pairs->is_array()) {
    for (const Json& each : *pairs) {
      BATON_TRY(KeyValue pair, pair_of(each));
      snapshot.pairs.push_back(std::move(pair));
    }
  }
  return snapshot;
}

Result<WatchAnswer> parse_watch(const std::string& line) {
  BATON_TRY(const Json result, result_of(line));
  WatchAnswer answer;
  const Json* canceled = member_of(result, "canceled");
  answer.ended = (canceled != nullptr && canceled->is_boolean() && canceled->get<bool>()) ||
                 number_of(result, "compact_revision") > 0;
  if (const Json* events = member_of(result, "events"); events != nullptr && events->is_array()) {
    for (const Json& each : *events) {
      const Json* kv = member_of(each, "kv");
      if (kv == nullptr) {
        return wrong("an event without a key");
      }
      BATON_TRY(KeyValue pair, pair_of(*kv));
      answer.events.push_back({text_of(each, "type") == "DELETE", std::move(pair)});
    }
  }
  return answer;
}

std::string error_text(const std::string& body) {
  const Json answer = parse(body);
  const Json* error = member_of(answer, "error");
  for (const Json* where : {&answer, error}) {
    for (const char* key : {"message", "error"}) {
      if (where != nullptr && !text_of(*where, key).empty()) {
        return text_of(*where, key);
      }
    }
  }
  return body.substr(0, kShownBytes);
}

std::string nodes_prefix(const std::string& prefix) { return prefix + "/nodes/"; }

KeyValue node_pair(const std::string& prefix, const std::string& id, const Member& member) {
  Json value;
  value["role"] = message::role_name(member.role);
  value["address"] = net::to_string(member.address);
  return {nodes_prefix(prefix) + id, value.dump()};
}

Result<Member> parse_node(const KeyValue& pair) {
  const Json value = parse(pair.value);
  const std::string role = text_of(value, "role");
  auto address = net::parse_host_port(text_of(value, "address"));
  for (const message::NodeRole known : {message::NodeRole::kPrefill, message::NodeRole::kDecode}) {
    if (role == message::role_name(known) && address) {
      return Member{known, *std::move(address)};
    }
  }
  return fail(ErrorCode::kProtocol,
              "etcd: " + pair.key + " is no node: " + pair.value.substr(0, kShownBytes));
}

std::string base64(std::string_view bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    const std::size_t count = std::min<std::size_t>(3, bytes.size() - at);
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      text += i <= count ? kDigits[bits >> (18 - 6 * i) & 63U] : '=';
    }
  }
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) {
    return std::nullopt;
  }
  while (text.ends_with('=')) {
    text.remove_suffix(1);
  }
  std::string bytes;
  std::uint32_t bits = 0;
  unsigned have = 0;
  for (const char c : text) {
    const std::size_t digit = kDigits.find(c);
    if (digit == std::string_view::npos) {
      return std::nullopt;
    }
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    have += 6;
    if (have >= 8) {
      have -= 8;
      bytes += static_cast<char>(bits >> have & 0xFFU);
    }
  }
  return bytes;
}

}  // namespace baton::membership::etcd
