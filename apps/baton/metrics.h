// The /metrics page: names and labels here, values read from the atomics of each module when the
// page is asked for. Nothing is counted twice and no hot path knows of Prometheus.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace baton::app {

using Labels = std::vector<std::pair<std::string, std::string>>;

class MetricsPage {
 public:
  // `read` is called on the thread that renders; it must be safe beside the module's own threads.
  // Registration happens before the first render. A name may be added several times with other
  // labels.
  void add_counter(const std::string& name, const std::string& help, Labels labels,
                   std::function<double()> read);
  void add_gauge(const std::string& name, const std::string& help, Labels labels,
                 std::function<double()> read);

  // Prometheus text format 0.0.4. Thread: any.
  [[nodiscard]] std::string render() const;

 private:
  struct Series {
    Labels labels;
    std::function<double()> read;
  };
  struct Family {
    std::string name;
    std::string help;
    bool is_counter = false;
    std::vector<Series> series;
  };
  Family& family(const std::string& name, const std::string& help, bool is_counter);

  std::vector<Family> families_;
};

}  // namespace baton::app
