// One process of `baton serve`: started, waited for, ended. It ends with this object, when a stop
// is asked for, and when this process dies, however that happens.
#pragma once

#include "baton/base/result.h"

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace baton::bench_handoff {

// The line "listening http=HOST:PORT serving=HOST:PORT" of a node; either may be missing.
struct Listening {
  std::string http;
  std::string serving;
};
// Nothing until that line is there whole.
[[nodiscard]] std::optional<Listening> parse_listening(std::string_view output);

// Thread: one for all calls, which lives as long as the process (it is the parent whose end the
// child is told of).
class Node {
 public:
  // `command`: path and arguments. Its output goes to files called `name` in `folder`.
  Node(std::string name, std::vector<std::string> command, const std::filesystem::path& folder,
       std::stop_token stop);
  ~Node();  // stop()
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  // Errors: kIo.
  Status start();
  // Errors: kUnavailable: it ended, or has said nothing for two minutes; with the end of its log.
  // kCancelled.
  Result<Listening> wait_listening();
  // Until condition() holds, with the same errors. `what`: of the message.
  Status wait_for(const std::string& what, const std::function<bool()>& condition);

  [[nodiscard]] bool running() const;
  // SIGTERM, and SIGKILL if that does not end it. Safe in any state.
  void stop();
  // Its command and the last lines that it wrote.
  [[nodiscard]] std::string tail() const;

 private:
  std::string name_;
  std::vector<std::string> command_;
  std::filesystem::path out_path_;
  std::filesystem::path log_path_;
  std::stop_token stop_;
  pid_t pid_ = -1;  // -1: not started, or ended and reaped
  // Kills it. Gone before the process is reaped: its number may be another's then.
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace baton::bench_handoff
