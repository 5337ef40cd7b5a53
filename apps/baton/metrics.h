// The /metrics page: names and labels here, values read from the atomics of each module when the
// page is asked for. Nothing is counted twice and no hot path knows of Prometheus.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace baton::app {

using Labels = std::vector<std::pair<std::string, std::string>>;

struct HistogramValue {
  std::vector<std::pair<double, std::uint64_t>> buckets;  // (upper bound, count), not cumulative
  std::uint64_t above = 0;                                // the last bound
  double sum = 0.0;
};

class MetricsPage {
 public:
  // `read` is called on the thread that renders; it must be safe beside the module's own threads.
  // Registration happens before the first render. A name may be added several times with other
  // labels.
  void add_counter(const std::string& name, const std::string& help, Labels labels,
                   std::function<double()> read);
  void add_gauge(const std::string& name, const std::string& help, Labels labels,
                 std::function<double()> read);
  void add_histogram(const std::string& name, const std::string& help, Labels labels,
                     std::function<HistogramValue()> read);

  // Prometheus text format 0.0.4. Thread: any.
  [[nodiscard]] std::string render() const;

 private:
  enum class Type : std::uint8_t { kCounter, kGauge, kHistogram };
  struct Series {
    Labels labels;
    std::function<double()> read;
    std::function<HistogramValue()> read_histogram;  // of a histogram, instead
  };
  struct Family {
    std::string name;
    std::string help;
    Type type = Type::kGauge;
    std::vector<Series> series;
  };
  Family& family(const std::string& name, const std::string& help, Type type);

  std::vector<Family> families_;
};

}  // namespace baton::app
