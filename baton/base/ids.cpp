#include "baton/base/ids.h"

#include <fmt/format.h>

#include <random>

namespace baton {

std::string to_string(const RequestId& id) {
  return fmt::format("{:016x}{:016x}", id.high, id.low);
}

std::string to_string(const SequenceKey& key) {
  if (key.choice == kAllChoices) {
    return fmt::format("{}/*/{}", to_string(key.request), key.epoch.value);
  }
  return fmt::format("{}/{}/{}", to_string(key.request), key.choice.value, key.epoch.value);
}

RequestId random_request_id() {
  thread_local std::random_device entropy;
  const auto draw = [] {
    return (static_cast<std::uint64_t>(entropy()) << 32) | static_cast<std::uint64_t>(entropy());
  };
  RequestId id;
  id.high = draw();
  id.low = draw();
  return id;
}

}  // namespace baton
