// A page of /metrics (Prometheus text format), read. Pure. Thread: any.
#pragma once

#include "baton/base/result.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace baton::bench_handoff {

class MetricsText {
 public:
  // Comments and lines of another shape are skipped.
  [[nodiscard]] static MetricsText parse(std::string_view page);

  // Of the series of that name that have these labels, whatever others they have. Errors: kProtocol
  // when the page has no such metric at all: a renamed one must not read 0.
  [[nodiscard]] Result<double> sum(std::string_view name,
                                   const std::map<std::string, std::string>& labels = {}) const;

 private:
  struct Series {
    std::string name;
    std::map<std::string, std::string> labels;
    double value = 0;
  };
  static bool parse_line(std::string_view line, Series& out);

  std::vector<Series> series_;
};

// What a prefill node has counted of handoffs.
struct HandoffCounters {
  double exposed_s = 0;  // from the end of a prefill to its last Ack, all together
  double handoffs = 0;   // that went well
  double kv_bytes = 0;   // sent
};
// Errors: as sum().
[[nodiscard]] Result<HandoffCounters> handoff_counters(const MetricsText& page);

// Whether no sequence is in the engine, waits for it, or owns a KV block. Errors: as sum().
[[nodiscard]] Result<bool> idle(const MetricsText& page);
// KV blocks that sequences own: neither free nor only cached. Errors: as sum().
[[nodiscard]] Result<double> owned_blocks(const MetricsText& page);

}  // namespace baton::bench_handoff
