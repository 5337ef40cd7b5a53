#include "apps/baton/engine_host.h"

#include "baton/backend/cpu/cpu_backend.h"
#include "baton/base/log.h"
#include "baton/tensor/buffer.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace baton::app {
namespace {

// Events are at most a few per sequence and step; the engine never waits for room (it pushes past
// the bound, which admission limits), so the number only sizes the queue's first allocation.
constexpr std::size_t kEventCapacity = 65'536;
// Rows of one step. Larger prefill chunks gain nothing once weights are reused 512 times.
constexpr std::int32_t kMaxStepTokens = 512;

class ProgressBar {
 public:
  void show(std::uint64_t done_bytes, std::uint64_t total_bytes) {
    const int percent = total_bytes == 0 ? 100 : static_cast<int>(done_bytes * 100 / total_bytes);
    if (percent == shown_ || isatty(STDERR_FILENO) == 0) {
      return;
    }
    shown_ = percent;
    fmt::print(stderr, "\rloading weights {:3d} %{}", percent, percent == 100 ? "\n" : "");
    std::fflush(stderr);
  }

 private:
  int shown_ = -1;
};

backend::CpuBackendOptions backend_options(const ServeOptions& options) {
  backend::CpuBackendOptions result;
  result.model_path = options.model_path;
  result.isa = options.isa;
  result.threads = options.threads;
  const auto dtype = kv::parse_kv_dtype(options.kv_dtype);
  if (!dtype) {
    throw StartupError("--kv-dtype: " + dtype.error().message);
  }
  result.kv_dtype = *dtype;
  result.block_tokens = options.block_tokens;
  const auto kv_memory = parse_bytes(options.kv_memory, "--kv-memory");
  if (!kv_memory) {
    throw StartupError(kv_memory.error());
  }
  result.kv_memory_bytes = *kv_memory;
  result.max_context_tokens = options.context_tokens;
  result.max_step_tokens = std::max(kMaxStepTokens, options.max_num_seqs);
  result.max_num_seqs = options.max_num_seqs;
  return result;
}

}  // namespace

EngineHost::EngineHost(const ServeOptions& options, const Clock& clock, std::string cache_key)
    : clock_(clock),
      stall_(std::chrono::milliseconds(options.stall_ms)),
      touch_(options.kv_touch == "on" ||
             (options.kv_touch == "auto" && options.role != message::NodeRole::kSingle)),
      events_(kEventCapacity) {
  ProgressBar bar;
  auto made = backend::make_cpu_backend(
      backend_options(options),
      [&bar](std::uint64_t done, std::uint64_t total) { bar.show(done, total); },
      [](const backend::MemoryPlan& plan) { log::info("memory: {}", backend::describe(plan)); });
  if (!made) {
    throw StartupError(made.error());
  }
  backend_ = *std::move(made);
  engine::EngineConfig config;
  config.max_num_seqs = options.max_num_seqs;
  config.max_step_ms = options.max_step_ms;
  config.max_context_tokens = options.context_tokens;
  config.max_waiting = options.max_queue;
  config.queue_deadline_ms = options.queue_deadline_ms;
  config.prefix_cache = options.prefix_cache == "on";
  config.cache_key = std::move(cache_key);
  scheduler_ = std::make_unique<engine::BatchScheduler>(*backend_, clock, config, events_);
  geometry_ = scheduler_->probe_block_geometry();
  log::info("context {} tokens, pool {} tokens, exactness tag {}", geometry_.max_context_tokens,
            geometry_.pool_tokens, backend_->info().exactness_tag);
}

EngineHost::~EngineHost() { stop(); }

void EngineHost::start() {
  if (touch_) {
    touch_pool();
  }
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "baton-engine");
    scheduler_->run();
    ended_.set_value();
  });
}

void EngineHost::touch_pool() {
  std::vector<std::span<std::byte>> blocks;
  const std::vector<std::uint32_t>& group_blocks = backend_->info().group_blocks;
  for (std::size_t group = 0; group < group_blocks.size(); ++group) {
    for (std::uint32_t block = 0; block < group_blocks[group]; ++block) {
      blocks.push_back(backend_->block_bytes(group, kv::BlockId{block}));
    }
  }
  toucher_ = std::thread([this, blocks = std::move(blocks)] {
    pthread_setname_np(pthread_self(), "baton-touch");
    // Linux: of this thread alone. Whatever else there is to do comes first.
    static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), 19));
    for (const std::span<std::byte> block : blocks) {
      if (stopping_) {
        return;
      }
      tensor::take_pages(block);
    }
  });
}

void EngineHost::stop() {
  stopping_ = true;
  if (toucher_.joinable()) {
    toucher_.join();
  }
  if (!thread_.joinable()) {
    return;
  }
  scheduler_->stop();
  if (ended_.get_future().wait_for(stall_) == std::future_status::timeout) {
    log::error("the engine thread does not end within {} ms: exiting without it",
               std::chrono::duration_cast<std::chrono::milliseconds>(stall_).count());
    std::_Exit(EXIT_FAILURE);  // connections break, so peers and clients know at once
  }
  thread_.join();
}

bool EngineHost::alive() const {
  const TimePoint seen(Duration(stats().last_turn_ns.load(std::memory_order_relaxed)));
  return clock_.now() - seen < stall_;
}

Duration EngineHost::without_room() const {
  const std::int64_t since = stats().no_room_since_ns.load(std::memory_order_relaxed);
  return since == 0 ? Duration{} : clock_.now() - TimePoint(Duration(since));
}

message::NodeLoad EngineHost::load() const {
  message::NodeLoad load;
  const engine::EngineStats& now = stats();
  load.running = now.running + now.handing_off + now.reserved;
  load.waiting = now.waiting;
  // What is cached and nobody's can be taken like a free block.
  load.total_blocks = now.groups[0].total_blocks;
  load.free_blocks = std::min<std::uint64_t>(
      std::uint64_t{now.groups[0].free_blocks} + now.groups[0].cached_blocks, load.total_blocks);
  load.step_count = now.step_count;
  load.turn_count = now.turn_count;
  return load;
}

handoff::EngineLink EngineHost::link() {
  handoff::EngineLink link;
  link.post = [this](message::EngineCommand&& command) {
    return scheduler_->post(std::move(command));
  };
  link.events = &events_;
  link.layout = backend_->info().layout;
  link.load = [this] { return load(); };
  return link;
}

}  // namespace baton::app
