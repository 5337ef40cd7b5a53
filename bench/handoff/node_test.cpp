// Processes as nodes: shells that say what nodes say.
#include "bench/handoff/node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/handoff/program.h"
#include "bench/handoff/raw_socket.h"
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <thread>

namespace baton::bench_handoff {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(NodeListening, IsReadOnceTheLineIsWhole) {
  EXPECT_FALSE(parse_listening(""));
  EXPECT_FALSE(parse_listening("listening http=127.0.0.1:80"));
  const auto both = parse_listening("noise\nlistening http=127.0.0.1:80 serving=127.0.0.1:90\nx");
  ASSERT_TRUE(both);
  EXPECT_EQ(both->http, "127.0.0.1:80");
  EXPECT_EQ(both->serving, "127.0.0.1:90");
  const auto one = parse_listening("listening serving=[::1]:90\n");
  ASSERT_TRUE(one);
  EXPECT_EQ(one->http, "");
  EXPECT_EQ(one->serving, "[::1]:90");
}

class TestFolder {
 public:
  TestFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "node-test-XXXXXX").string();
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

class NodeTest : public testing::Test {
 protected:
  std::unique_ptr<Node> shell(const std::string& script) {
    return std::make_unique<Node>("shell", std::vector<std::string>{"/bin/sh", "-c", script},
                                  folder_, stop_.get_token());
  }
  // The process that a script wrote into a file of its folder; it is there once it listens.
  [[nodiscard]] pid_t written_pid() const {
    pid_t pid = 0;
    std::ifstream(folder_ / "pid") >> pid;
    EXPECT_GT(pid, 0);
    return pid;
  }
  [[nodiscard]] std::string listen_and(const std::string& rest) const {
    return "echo $$ > " + (folder_ / "pid").string() + "; echo listening http=127.0.0.1:1; " + rest;
  }

  TestFolder files_;
  std::filesystem::path folder_ = files_.path();
  std::stop_source stop_;
};

TEST_F(NodeTest, ListensAndIsEnded) {
  const auto node = shell(listen_and("exec sleep 1000"));
  ASSERT_TRUE(node->start());
  const auto listening = node->wait_listening();
  ASSERT_TRUE(listening) << listening.error().message;
  EXPECT_EQ(listening->http, "127.0.0.1:1");
  EXPECT_TRUE(node->running());
  const pid_t pid = written_pid();
  EXPECT_EQ(kill(pid, 0), 0);
  node->stop();
  EXPECT_FALSE(node->running());
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  node->stop();  // nothing to do
}

TEST_F(NodeTest, EndsWithItsObject) {
  auto node = shell(listen_and("exec sleep 1000"));
  ASSERT_TRUE(node->start());
  ASSERT_TRUE(node->wait_listening());
  const pid_t pid = written_pid();
  node.reset();
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST_F(NodeTest, OneThatEndsByItselfIsToldWithTheEndOfItsLog) {
  const auto node = shell("for i in $(seq 100); do echo line $i >&2; done; exit 3");
  ASSERT_TRUE(node->start());
  const auto listening = node->wait_listening();
  ASSERT_FALSE(listening);
  EXPECT_EQ(listening.error().code, ErrorCode::kUnavailable);
  EXPECT_THAT(listening.error().message, HasSubstr("/bin/sh"));
  EXPECT_THAT(listening.error().message, HasSubstr("line 76\n"));
  EXPECT_THAT(listening.error().message, HasSubstr("line 100"));
  EXPECT_THAT(listening.error().message, Not(HasSubstr("line 75\n")));
}

TEST_F(NodeTest, AProgramThatIsNotThere) {
  Node node("none", {"/nowhere/baton"}, folder_, {});
  ASSERT_TRUE(node.start());
  const auto listening = node.wait_listening();
  ASSERT_FALSE(listening);
  EXPECT_THAT(listening.error().message, HasSubstr("No such file"));
}

TEST_F(NodeTest, AStopEndsItAndTheWait) {
  const auto node = shell(listen_and("exec sleep 1000"));
  ASSERT_TRUE(node->start());
  ASSERT_TRUE(node->wait_listening());
  std::thread stopper([this] { stop_.request_stop(); });
  const Status waited = node->wait_for("nothing", [] { return false; });
  stopper.join();
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, ErrorCode::kCancelled);
  siginfo_t ended{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(written_pid()), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(ended.si_code, CLD_KILLED);
  EXPECT_EQ(ended.si_status, SIGKILL);
}

// Nodes must end even if this process is killed and can do nothing more.
TEST_F(NodeTest, EndsWhenItsParentIsKilled) {
  const pid_t parent = fork();
  if (parent == 0) {
    Node node("shell", {"/bin/sh", "-c", listen_and("exec sleep 1000")}, folder_, {});
    const bool good = node.start() && node.wait_listening();
    raise(good ? SIGKILL : SIGTERM);
  }
  int status = 0;
  ASSERT_EQ(waitpid(parent, &status, 0), parent);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_EQ(WTERMSIG(status), SIGKILL);
  const pid_t pid = written_pid();
  // Whoever inherits it reaps it; a zombie has ended, too.
  const auto ended = [pid] {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number;
    std::string name;
    std::string state;
    return !(stat >> number >> name >> state) || state == "Z" || state == "X";
  };
  for (int tries = 0; tries < 1'000 && !ended(); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(ended());
}

TEST_F(NodeTest, VariablesOfTheUserDoNotReachIt) {
  ASSERT_EQ(setenv("BATON_THREADS", "7", 1), 0);
  ASSERT_EQ(setenv("OTHER_THREADS", "8", 1), 0);
  const auto node = shell("echo listening http=$BATON_THREADS:$OTHER_THREADS; exec sleep 1000");
  ASSERT_TRUE(node->start());
  EXPECT_EQ(node->wait_listening().value().http, ":8");
  unsetenv("BATON_THREADS");
  unsetenv("OTHER_THREADS");
}

TEST(RunProgram, SaysWhatItPrinted) {
  EXPECT_EQ(run_program({"sh", "-c", "echo one; echo two >&2"}).value(), "one\ntwo");
  EXPECT_THAT(run_program({"sh", "-c", "echo no >&2; exit 4"}).error().message, HasSubstr("no"));
  EXPECT_EQ(run_program({"sh", "-c", "exit 4"}).error().code, ErrorCode::kIo);
  EXPECT_THAT(run_program({"no-such-program"}).error().message, HasSubstr("No such file"));
  EXPECT_EQ(run_program({"no-such-program"}).error().code, ErrorCode::kNotFound);
}

TEST(RawSocket, MovesBytesUntilItIsStopped) {
  std::stop_source stop;
  const auto raw = RawSocket::open({0}, {0}, stop.get_token());
  ASSERT_TRUE(raw) << raw.error().message;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{3} << 20U}) {
    const auto time = (*raw)->transfer(bytes);
    ASSERT_TRUE(time) << time.error().message;
    EXPECT_GT(*time, Duration::zero());
  }
  stop.request_stop();
  EXPECT_FALSE((*raw)->transfer(1));
}

}  // namespace
}  // namespace baton::bench_handoff
