#include "apps/baton/metrics.h"

#include "baton/base/check.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <sstream>

namespace baton::app {

MetricsPage::Family& MetricsPage::family(const std::string& name, const std::string& help,
                                         bool is_counter) {
  const auto found = std::find_if(families_.begin(), families_.end(),
                                  [&](const Family& one) { return one.name == name; });
  if (found != families_.end()) {
    BATON_CHECK(found->is_counter == is_counter, "metric {} has two types", name);
    return *found;
  }
  families_.push_back({name, help, is_counter, {}});
  return families_.back();
}

void MetricsPage::add_counter(const std::string& name, const std::string& help, Labels labels,
                              std::function<double()> read) {
  family(name, help, true).series.push_back({std::move(labels), std::move(read)});
}

void MetricsPage::add_gauge(const std::string& name, const std::string& help, Labels labels,
                            std::function<double()> read) {
  family(name, help, false).series.push_back({std::move(labels), std::move(read)});
}

std::string MetricsPage::render() const {
  std::vector<prometheus::MetricFamily> page;
  page.reserve(families_.size());
  for (const Family& family : families_) {
    prometheus::MetricFamily out;
    out.name = family.name;
    out.help = family.help;
    out.type = family.is_counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
    for (const Series& series : family.series) {
      prometheus::ClientMetric metric;
      for (const auto& [key, value] : series.labels) {
        prometheus::ClientMetric::Label label;
        label.name = key;
        label.value = value;
        metric.label.push_back(std::move(label));
      }
      const double value = series.read();
      if (family.is_counter) {
        metric.counter.value = value;
      } else {
        metric.gauge.value = value;
      }
      out.metric.push_back(std::move(metric));
    }
    page.push_back(std::move(out));
  }
  std::ostringstream text;
  text.precision(17);
  prometheus::TextSerializer{}.Serialize(text, page);
  return text.str();
}

}  // namespace baton::app
