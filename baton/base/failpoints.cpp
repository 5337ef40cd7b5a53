#include "baton/base/failpoints.h"

#include "baton/base/log.h"

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace baton::failpoints {
namespace {

enum class Action { kOn, kKill, kSleep };

struct Point {
  Action action = Action::kOn;
  int sleep_ms = 0;
  int only_hit = 0;  // 0 = every pass
  int passes = 0;
};

std::mutex mutex;
std::map<std::string, Point, std::less<>> points;

[[maybe_unused]] bool parse_number(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= 0;
}

[[maybe_unused]] Result<std::pair<std::string, Point>> parse_point(std::string_view item) {
  Point point;
  const auto bad = [&] {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--failpoints: cannot read '{}'; expected name[=on|error|kill|sleep:MS][@hit]",
                    item),
        "failpoints");
  };
  std::string_view name = item;
  if (const auto at = name.rfind('@'); at != std::string_view::npos) {
    if (!parse_number(name.substr(at + 1), point.only_hit) || point.only_hit == 0) {
      return bad();
    }
    name = name.substr(0, at);
  }
  if (const auto equal = name.find('='); equal != std::string_view::npos) {
    const std::string_view action = name.substr(equal + 1);
    name = name.substr(0, equal);
    if (action == "kill") {
      point.action = Action::kKill;
    } else if (action.starts_with("sleep:")) {
      point.action = Action::kSleep;
      if (!parse_number(action.substr(6), point.sleep_ms)) {
        return bad();
      }
    } else if (action != "on" && action != "error") {
      return bad();
    }
  }
  if (name.empty()) {
    return bad();
  }
  return std::pair{std::string(name), point};
}

}  // namespace

Status arm(std::string_view specification) {
  if (specification.empty()) {
    return {};
  }
#ifndef BATON_FAILPOINTS
  return fail(ErrorCode::kInvalidArgument, "--failpoints: this build has none; use the dev preset",
              "failpoints");
#else
  std::lock_guard lock(mutex);
  while (!specification.empty()) {
    const auto comma = specification.find(',');
    BATON_TRY(auto named, parse_point(specification.substr(0, comma)));
    log::warn("failpoint armed: {}", named.first);
    points.insert_or_assign(std::move(named.first), named.second);
    specification =
        comma == std::string_view::npos ? std::string_view{} : specification.substr(comma + 1);
  }
  return {};
#endif
}

bool hit(std::string_view name) {
  Point point;
  {
    std::lock_guard lock(mutex);
    const auto found = points.find(name);
    if (found == points.end()) {
      return false;
    }
    found->second.passes += 1;
    point = found->second;
  }
  if (point.only_hit != 0 && point.passes != point.only_hit) {
    return false;
  }
  if (point.action == Action::kKill) {
    ::kill(::getpid(), SIGKILL);
  }
  if (point.action == Action::kSleep) {
    std::this_thread::sleep_for(std::chrono::milliseconds(point.sleep_ms));
  }
  return point.action == Action::kOn;
}

void leak() {
  constexpr std::size_t kLeakedBytes = std::size_t{1} << 20U;
  if (hit("leak.memory")) {
    // Kept, not lost: a leak detector is not what is to find it. Written, so that it is resident.
    static std::vector<std::vector<char>> hoard;
    std::lock_guard lock(mutex);
    hoard.emplace_back(kLeakedBytes, 'x');
  }
  if (hit("leak.descriptor")) {
    static_cast<void>(::dup(STDERR_FILENO));
  }
}

}  // namespace baton::failpoints
