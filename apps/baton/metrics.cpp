#include "apps/baton/metrics.h"

#include "baton/base/check.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>
#include <sstream>

namespace baton::app {

MetricsPage::Family& MetricsPage::family(const std::string& name, const std::string& help,
                                         Type type) {
  const auto found = std::find_if(families_.begin(), families_.end(),
                                  [&](const Family& one) { return one.name == name; });
  if (found != families_.end()) {
    BATON_CHECK(found->type == type, "metric {} has two types", name);
    return *found;
  }
  families_.push_back({name, help, type, {}});
  return families_.back();
}

void MetricsPage::add_counter(const std::string& name, const std::string& help, Labels labels,
                              std::function<double()> read) {
  family(name, help, Type::kCounter).series.push_back({std::move(labels), std::move(read), {}});
}

void MetricsPage::add_gauge(const std::string& name, const std::string& help, Labels labels,
                            std::function<double()> read) {
  family(name, help, Type::kGauge).series.push_back({std::move(labels), std::move(read), {}});
}

void MetricsPage::add_histogram(const std::string& name, const std::string& help, Labels labels,
                                std::function<HistogramValue()> read) {
  family(name, help, Type::kHistogram).series.push_back({std::move(labels), {}, std::move(read)});
}

namespace {

void fill(prometheus::ClientMetric::Histogram& out, const HistogramValue& value) {
  std::uint64_t count = 0;
  const auto add = [&](double bound, std::uint64_t more) {
    count += more;
    prometheus::ClientMetric::Bucket bucket;
    bucket.upper_bound = bound;
    bucket.cumulative_count = count;
    out.bucket.push_back(bucket);
  };
  for (const auto& [bound, more] : value.buckets) {
    add(bound, more);
  }
  add(std::numeric_limits<double>::infinity(), value.above);
  out.sample_count = count;
  out.sample_sum = value.sum;
}

}  // namespace

std::string MetricsPage::render() const {
  std::vector<prometheus::MetricFamily> page;
  page.reserve(families_.size());
  for (const Family& family : families_) {
    prometheus::MetricFamily out;
    out.name = family.name;
    out.help = family.help;
    out.type = family.type == Type::kCounter ? prometheus::MetricType::Counter
               : family.type == Type::kGauge ? prometheus::MetricType::Gauge
                                             : prometheus::MetricType::Histogram;
    for (const Series& series : family.series) {
      prometheus::ClientMetric metric;
      for (const auto& [key, value] : series.labels) {
        prometheus::ClientMetric::Label label;
        label.name = key;
        label.value = value;
        metric.label.push_back(std::move(label));
      }
      if (family.type == Type::kHistogram) {
        fill(metric.histogram, series.read_histogram());
      } else if (family.type == Type::kCounter) {
        metric.counter.value = series.read();
      } else {
        metric.gauge.value = series.read();
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
