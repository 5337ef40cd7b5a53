// The three servers that answer the same prompts, of real processes: a single node; a router with a
// prefill and a decode node; and the same with --stream-kv off.
#pragma once

#include "baton/base/result.h"
#include "baton/http/client.h"

#include "bench/handoff/node.h"
#include "bench/handoff/options.h"
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

namespace baton::bench_handoff {

enum class Shape : std::uint8_t { kSingle, kSplit, kWhole };
inline constexpr std::array kShapes = {Shape::kSingle, Shape::kSplit, Shape::kWhole};
inline constexpr std::array<std::string_view, kShapes.size()> kShapeNames = {"single", "split",
                                                                             "whole"};
constexpr std::size_t index_of(Shape shape) { return static_cast<std::size_t>(shape); }

struct Server {
  std::string name;
  // In the order of ending: the router goes first, so that it does not see its peers vanish.
  std::vector<std::unique_ptr<Node>> nodes;
  http::HttpTarget front;  // for clients
  // Of kSplit and kWhole.
  std::optional<http::HttpTarget> prefill;
  std::optional<http::HttpTarget> decode;

  ~Server();
};

// All are ready when this returns. `program`: path of baton. Logs go to `folder`. Errors:
// kUnavailable with the end of the log of the node that did not start; kIo; kCancelled. Thread: as
// Node's.
class Servers {
 public:
  static Result<std::unique_ptr<Servers>> start(const Plan& plan, const std::string& program,
                                                const std::filesystem::path& folder,
                                                const std::stop_token& stop);

  [[nodiscard]] const Server& at(Shape shape) const { return *servers_[index_of(shape)]; }
  // The last lines of nodes that have ended by themselves; empty: none has.
  [[nodiscard]] std::string tails_of_ended() const;

 private:
  Servers() = default;
  std::array<std::unique_ptr<Server>, kShapes.size()> servers_;
};

}  // namespace baton::bench_handoff
