#include "bench/handoff/node.h"

#include "baton/base/clock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/handoff/stop.h"
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace baton::bench_handoff {

namespace {

constexpr Duration kStart = std::chrono::minutes(2);  // a large model on a slow disk
constexpr Duration kEnd = std::chrono::seconds(10);
constexpr std::size_t kTailLines = 25;
constexpr int kCannotRun = 127;  // as shells say it

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string field(std::string_view line, std::string_view key) {
  const std::size_t begin = line.find(key);
  if (begin == std::string_view::npos) {
    return "";
  }
  const std::string_view rest = line.substr(begin + key.size());
  return std::string(rest.substr(0, rest.find(' ')));
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> out;
  out.reserve(words.size() + 1);
  for (const std::string& word : words) {
    out.push_back(const_cast<char*>(word.c_str()));  // execve does not write to them
  }
  out.push_back(nullptr);
  return out;
}

// Ours without BATON_*: each flag of a node has such a variable, and one of the user's must not get
// in.
std::vector<std::string> variables_of_nodes() {
  std::vector<std::string> kept;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("BATON_")) {
      kept.emplace_back(*variable);
    }
  }
  return kept;
}

// Between fork and exec, where only calls are allowed that take no lock.
[[noreturn]] void become(char* const* command, char* const* variables, int out, int log,
                         pid_t parent) {
  setsid();  // Ctrl-C at a terminal reaches the parent alone, which ends the nodes in order
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(kCannotRun);  // it died before the line above
  }
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  dup2(out, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  execve(command[0], command, variables);
  const char* const why = std::strerror(errno);
  static_cast<void>(!write(STDERR_FILENO, why, std::strlen(why)));
  _exit(kCannotRun);
}

}  // namespace

std::optional<Listening> parse_listening(std::string_view output) {
  while (true) {
    const std::size_t end = output.find('\n');
    if (end == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view line = output.substr(0, end);
    if (line.starts_with("listening")) {
      return Listening{field(line, " http="), field(line, " serving=")};
    }
    output.remove_prefix(end + 1);
  }
}

Node::Node(std::string name, std::vector<std::string> command, const std::filesystem::path& folder,
           std::stop_token stop)
    : name_(std::move(name)),
      command_(std::move(command)),
      out_path_(folder / (name_ + ".out")),
      log_path_(folder / (name_ + ".log")),
      stop_(std::move(stop)) {}

Node::~Node() { stop(); }

Status Node::start() {
  const auto create = [](const std::filesystem::path& path) {
    return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  };
  const int out = create(out_path_);
  const int log = create(log_path_);
  // Everything that allocates is done before the fork.
  const std::vector<std::string> variables = variables_of_nodes();
  const std::vector<char*> command_words = pointers(command_);
  const std::vector<char*> variable_words = pointers(variables);
  const pid_t parent = getpid();
  if (out >= 0 && log >= 0) {
    pid_ = fork();
  }
  if (pid_ == 0) {
    become(command_words.data(), variable_words.data(), out, log, parent);
  }
  const int error = errno;
  close(out);
  close(log);
  if (pid_ < 0) {
    return fail(ErrorCode::kIo, fmt::format("{}: cannot start: {}", name_, std::strerror(error)));
  }
  on_stop_.emplace(stop_, [pid = pid_] { kill(pid, SIGKILL); });
  return {};
}

bool Node::running() const {
  siginfo_t ended{};
  return pid_ > 0 &&
         waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

Status Node::wait_for(const std::string& what, const std::function<bool()>& condition) {
  bool ended = false;
  const bool came = wait_until(stop_, kStart, [&] {
    ended = !running();
    return ended || condition();
  });
  BATON_TRY_VOID(still_wanted(stop_));
  if (ended) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{} ended instead of: {}\n{}", name_, what, tail()));
  }
  if (!came) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("{}: not within {} s: {}\n{}", name_,
                            std::chrono::duration_cast<std::chrono::seconds>(kStart).count(), what,
                            tail()));
  }
  return {};
}

Result<Listening> Node::wait_listening() {
  std::optional<Listening> found;
  BATON_TRY_VOID(wait_for("listening", [&] {
    found = parse_listening(read_file(out_path_));
    return found.has_value();
  }));
  return *std::move(found);
}

void Node::stop() {
  if (pid_ <= 0) {
    return;
  }
  on_stop_.reset();
  kill(pid_, SIGTERM);
  if (!wait_until({}, kEnd, [this] { return !running(); })) {
    fmt::print(stderr, "{} ignores SIGTERM: killed\n", name_);
    kill(pid_, SIGKILL);
  }
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

std::string Node::tail() const {
  std::istringstream said(read_file(out_path_) + read_file(log_path_));
  std::deque<std::string> lines;
  for (std::string line; std::getline(said, line);) {
    lines.push_back(std::move(line));
    if (lines.size() > kTailLines) {
      lines.pop_front();
    }
  }
  return fmt::format("--- {}: {}\n{}", name_, fmt::join(command_, " "), fmt::join(lines, "\n"));
}

}  // namespace baton::bench_handoff
