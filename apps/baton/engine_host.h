// The engine in its process: backend, scheduler, its thread, and the queue of its events, which are
// handed to one consumer on the control thread.
#pragma once

#include "baton/backend/backend.h"
#include "baton/engine/batch_scheduler.h"
#include "baton/handoff/coordinator.h"

#include "apps/baton/options.h"
#include <atomic>
#include <future>
#include <memory>
#include <thread>

namespace baton::app {

class EngineHost {
 public:
  // cache_key: EngineConfig::cache_key. Loads the model (progress to stderr) and allocates
  // everything. Throws StartupError.
  EngineHost(const ServeOptions& options, const Clock& clock, std::string cache_key);
  ~EngineHost();
  EngineHost(const EngineHost&) = delete;
  EngineHost& operator=(const EngineHost&) = delete;

  // Starts the engine thread. Before it, set who consumes events().
  void start();
  // Ends the thread; what runs ends as aborted. One that stands still for --stall-ms cannot be
  // ended: then the process is. Idempotent.
  void stop();
  // False once the engine thread has not come round for --stall-ms.
  [[nodiscard]] bool alive() const;
  // For how long the pool has had no room for whoever is next; 0: it has. Thread: any.
  [[nodiscard]] Duration without_room() const;

  [[nodiscard]] engine::BatchScheduler& scheduler() { return *scheduler_; }
  [[nodiscard]] engine::EventQueue& events() { return events_; }
  [[nodiscard]] const backend::BackendInfo& info() const { return backend_->info(); }
  [[nodiscard]] const engine::BlockGeometry& geometry() const { return geometry_; }
  [[nodiscard]] const engine::EngineStats& stats() const { return scheduler_->stats(); }
  [[nodiscard]] message::NodeLoad load() const;
  [[nodiscard]] handoff::EngineLink link();

 private:
  // Pages of the pool, from the system, while nobody waits for them.
  void touch_pool();

  const Clock& clock_;
  const Duration stall_;
  const bool touch_;
  engine::EventQueue events_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<engine::BatchScheduler> scheduler_;
  engine::BlockGeometry geometry_;
  std::thread thread_;
  std::thread toucher_;
  std::atomic<bool> stopping_ = false;
  std::promise<void> ended_;  // by the thread's last act
};

}  // namespace baton::app
