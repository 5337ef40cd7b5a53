#include "bench/handoff/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>

namespace baton::bench_handoff {

namespace {

// One `name="value"` at the start of `text`, which moves past it and a comma. \\, \" and \n of the
// value are escapes.
bool take_label(std::string_view& text, std::map<std::string, std::string>& labels) {
  const std::size_t equals = text.find("=\"");
  if (equals == std::string_view::npos) {
    return false;
  }
  const std::string name(text.substr(0, equals));
  text.remove_prefix(equals + 2);
  std::string value;
  while (!text.empty() && text.front() != '"') {
    if (text.front() == '\\' && text.size() > 1) {
      text.remove_prefix(1);
      value += text.front() == 'n' ? '\n' : text.front();
    } else {
      value += text.front();
    }
    text.remove_prefix(1);
  }
  if (text.empty()) {
    return false;
  }
  text.remove_prefix(1);
  if (text.starts_with(',')) {
    text.remove_prefix(1);
  }
  labels[name] = std::move(value);
  return true;
}

}  // namespace

bool MetricsText::parse_line(std::string_view line, Series& out) {
  const std::size_t name_end = line.find_first_of("{ ");
  if (line.starts_with('#') || name_end == std::string_view::npos || name_end == 0) {
    return false;
  }
  out.name = std::string(line.substr(0, name_end));
  line.remove_prefix(name_end);
  if (line.starts_with('{')) {
    line.remove_prefix(1);
    while (!line.starts_with('}')) {
      if (!take_label(line, out.labels)) {
        return false;
      }
    }
    line.remove_prefix(1);
  }
  while (line.starts_with(' ')) {
    line.remove_prefix(1);
  }
  line = line.substr(0, line.find(' '));  // a time stamp may follow
  if (line.starts_with('+')) {
    line.remove_prefix(1);  // from_chars takes no "+Inf"
  }
  const char* const end = line.data() + line.size();
  const auto read = std::from_chars(line.data(), end, out.value);
  return !line.empty() && read.ec == std::errc() && read.ptr == end;
}

MetricsText MetricsText::parse(std::string_view page) {
  MetricsText text;
  while (!page.empty()) {
    const std::size_t end = page.find('\n');
    std::string_view line = page.substr(0, end);
    page.remove_prefix(end == std::string_view::npos ? page.size() : end + 1);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    if (Series series; parse_line(line, series)) {
      text.series_.push_back(std::move(series));
    }
  }
  return text;
}

Result<double> MetricsText::sum(std::string_view name,
                                const std::map<std::string, std::string>& labels) const {
  bool there = false;
  double total = 0;
  for (const Series& series : series_) {
    if (series.name != name) {
      continue;
    }
    there = true;
    const bool wanted = std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
      const auto found = series.labels.find(label.first);
      return found != series.labels.end() && found->second == label.second;
    });
    total += wanted ? series.value : 0;
  }
  if (!there) {
    return fail(ErrorCode::kProtocol, fmt::format("/metrics has no {}", name));
  }
  return total;
}

Result<HandoffCounters> handoff_counters(const MetricsText& page) {
  HandoffCounters counters;
  BATON_TRY(counters.exposed_s, page.sum("baton_handoff_exposed_seconds_sum"));
  BATON_TRY(counters.handoffs, page.sum("baton_handoff_exposed_seconds_count"));
  BATON_TRY(counters.kv_bytes, page.sum("baton_handoff_bytes_total", {{"dir", "sent"}}));
  return counters;
}

Result<double> owned_blocks(const MetricsText& page) {
  constexpr std::string_view kBlocks = "baton_pool_blocks";
  BATON_TRY(const double all, page.sum(kBlocks));
  BATON_TRY(const double free, page.sum(kBlocks, {{"state", "free"}}));
  BATON_TRY(const double cached, page.sum(kBlocks, {{"state", "cached"}}));
  return all - free - cached;
}

Result<bool> idle(const MetricsText& page) {
  BATON_TRY(double busy, owned_blocks(page));
  for (const std::string_view name : {"baton_sequences_running", "baton_sequences_reserved",
                                      "baton_sequences_handing_off", "baton_queue_depth"}) {
    BATON_TRY(const double some, page.sum(name));
    busy += some;
  }
  return busy == 0;
}

}  // namespace baton::bench_handoff
