#include "apps/baton/bench_handoff.h"

#include "baton/files/gguf.h"
#include "baton/model/model.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/baton/options.h"
#include "bench/handoff/link.h"
#include "bench/handoff/machine.h"
#include "bench/handoff/measure.h"
#include "bench/handoff/report.h"
#include "bench/handoff/stop.h"
#include "bench/serving/report.h"
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

namespace baton::app {
namespace {

namespace bh = bench_handoff;

constexpr int kSignalled = 128;  // and the number of the signal, as shells count
// A node of this binary, even if another one is built meanwhile.
constexpr const char* kOwnProgram = "/proc/self/exe";

// For the nodes' logs; goes with its files.
class TemporaryFolder {
 public:
  static Result<std::unique_ptr<TemporaryFolder>> make() {
    std::string path = (std::filesystem::temp_directory_path() / "baton-handoff-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      return fail(ErrorCode::kIo, fmt::format("{}: {}", path, std::strerror(errno)));
    }
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(std::move(path)));
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::filesystem::path path) : path_(std::move(path)) {}
  std::filesystem::path path_;
};

Result<std::int32_t> context_of(const std::string& model_path) {
  if (model_path.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "--model is missing: give the path of a GGUF file with -m");
  }
  const auto wrong = [](const Error& error) {
    return fail(ErrorCode::kInvalidArgument, "--model: " + error.message);
  };
  const auto file = files::GgufFile::open(model_path);
  if (!file) {
    return wrong(file.error());
  }
  const auto model = model::describe_model(*file);
  if (!model) {
    return wrong(model.error());
  }
  return model->config.context_tokens;
}

// Everything that can be told to be wrong before a process is started.
Result<bh::Plan> make_plan(const BenchHandoffOptions& options) {
  bh::Plan plan;
  BATON_TRY(plan.prompt_tokens, bh::parse_lengths(options.lengths));
  BATON_TRY(plan.masks, bh::parse_masks(options.masks, bh::available_cpu_list()));
  BATON_TRY(const std::uint64_t kv_memory, parse_bytes(options.kv_memory, "--kv-memory"));
  if (kv_memory == 0) {
    return fail(ErrorCode::kInvalidArgument,
                "--kv-memory: 0 is no size here: five nodes share this machine");
  }
  BATON_TRY(const std::int32_t context, context_of(options.model_path));
  BATON_TRY_VOID(bh::check_lengths(plan.prompt_tokens, context, "the model's context"));
  if (!options.json_path.empty()) {
    if (const Status can = serving::check_can_save(options.json_path, "--json"); !can) {
      return fail(ErrorCode::kInvalidArgument, can.error().message);
    }
  }
  plan.model_path = options.model_path;
  plan.rounds = options.rounds;
  plan.kv_memory = options.kv_memory;
  plan.cancels = options.cancels;
  return plan;
}

// Starts the servers, fills `measured`, ends the servers.
Status measure(const bh::Plan& plan, const std::stop_token& stop, bh::Measured& measured) {
  BATON_TRY(const auto folder, TemporaryFolder::make());
  BATON_TRY(const auto servers, bh::Servers::start(plan, kOwnProgram, folder->path(), stop));
  BATON_TRY(bh::ServedModel model, bh::ask_for_model(servers->at(bh::Shape::kSingle).front));
  BATON_TRY_VOID(bh::check_lengths(plan.prompt_tokens, model.max_model_len,
                                   fmt::format("a node with --kv-memory {}", plan.kv_memory)));
  BATON_TRY(const auto raw,
            bh::RawSocket::open(plan.masks.prefill_cpus, plan.masks.decode_cpus, stop));
  const bh::Setup setup{plan, *servers, *raw, std::move(model), stop};
  Status status = bh::measure_rounds(setup, measured.lengths);
  if (status && plan.cancels) {
    status = bh::measure_cancels(setup, measured.cancels);
  }
  if (!status && !stop.stop_requested()) {
    std::fputs(servers->tails_of_ended().c_str(), stderr);
  }
  return status;
}

Result<int> run(const BenchHandoffOptions& options) {
  BATON_TRY(const bh::Plan plan, make_plan(options));
  if (!options.link.empty()) {
    BATON_TRY_VOID(bh::enter_link(options.link));  // before there are other threads
  }
  bh::Machine machine = bh::look_at_machine(options.model_path, options.link);
  bh::Measured measured;
  int signal = 0;
  {
    const bh::StopOnSignal stop;
    const Status status = measure(plan, stop.token(), measured);
    signal = stop.signal();
    if (!status && signal == 0) {
      return fail(status.error());
    }
  }
  if (signal != 0) {
    fmt::print(stderr, "interrupted: what has been measured follows\n");
  }
  machine.load_after = bh::load_average();
  std::fputs(bh::report_text(machine, measured).c_str(), stdout);
  if (!options.json_path.empty()) {
    BATON_TRY_VOID(serving::save_json(options.json_path,
                                      bh::report_json(machine, measured, signal != 0), "--json"));
  }
  return signal == 0 ? 0 : kSignalled + signal;
}

}  // namespace

int run_bench_handoff(const BenchHandoffOptions& options) {
  // Whoever reads the table may go; the nodes are ended all the same.
  std::signal(SIGPIPE, SIG_IGN);
  const auto code = run(options);
  if (!code) {
    fmt::print(stderr, "baton bench handoff: {}\n", code.error().message);
    return code.error().code == ErrorCode::kInvalidArgument ? kUsageError : 1;
  }
  return *code;
}

}  // namespace baton::app
