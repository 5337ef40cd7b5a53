#include "bench/handoff/machine.h"

#include "baton/base/cpu_features.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "bench/handoff/program.h"
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <thread>

namespace baton::bench_handoff {

namespace {

constexpr std::chrono::seconds kLook{2};

struct CpuTime {
  std::uint64_t all = 0;
  std::uint64_t idle = 0;
};

// Of all CPUs since the machine started; clock ticks.
CpuTime cpu_time() {
  std::ifstream in("/proc/stat");
  std::string word;
  in >> word;
  std::array<std::uint64_t, 8> fields{};  // user nice system idle iowait irq softirq steal
  CpuTime time;
  for (std::uint64_t& field : fields) {
    in >> field;
    time.all += field;
  }
  time.idle = fields[3] + fields[4];
  return time;
}

double busy_share() {
  const CpuTime before = cpu_time();
  std::this_thread::sleep_for(kLook);
  const CpuTime after = cpu_time();
  const auto all = static_cast<double>(std::max<std::uint64_t>(after.all - before.all, 1));
  return 1 - static_cast<double>(after.idle - before.idle) / all;
}

std::string cpu_name() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown CPU";
}

std::string commit_of(const std::string& binary) {
  const std::string folder = std::filesystem::path(binary).parent_path().string();
  auto said = run_program({"git", "-C", folder, "describe", "--always", "--dirty", "--abbrev=7"});
  return said ? *std::move(said) : "unknown";
}

}  // namespace

double load_average() {
  double load = 0;
  return getloadavg(&load, 1) == 1 ? load : 0;
}

std::string own_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "/proc/self/exe" : path.string();
}

Machine look_at_machine(const std::string& model_path, const std::string& link) {
  Machine machine;
  machine.binary = own_path();
  machine.commit = commit_of(machine.binary);
  machine.date = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
  machine.cpu = cpu_name();
  machine.cores = available_cpus();
  machine.model = std::filesystem::path(model_path).filename().string();
  machine.link = link.empty() ? "loopback" : link;
  machine.load_before = load_average();
  machine.busy_before = busy_share();
  return machine;
}

}  // namespace baton::bench_handoff
