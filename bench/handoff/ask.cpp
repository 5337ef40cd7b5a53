#include "bench/handoff/ask.h"

#include <boost/asio/use_future.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <utility>

namespace baton::bench_handoff {

namespace {

constexpr Duration kPatience = std::chrono::seconds(10);

asio::awaitable<Result<http::HttpAnswer>> fetch_page(const http::HttpTarget* target,
                                                     std::string path) {
  std::string method = "GET";
  std::string body;
  http::OnBytes keep_all;
  co_return co_await http::fetch(target, std::move(method), std::move(path), std::move(body),
                                 std::move(keep_all));
}

Result<std::string> page_of(const http::HttpTarget& target, const std::string& path) {
  BATON_TRY(http::HttpAnswer answer, get(target, path));
  if (answer.status != 200) {
    return fail(ErrorCode::kProtocol,
                fmt::format("{}{} answers {}", target.host, path, answer.status));
  }
  return std::move(answer.body);
}

}  // namespace

Result<http::HttpTarget> target_of(const std::string& address) {
  auto target = http::parse_http_url("http://" + address, "a node's address");
  if (!target) {
    return fail(ErrorCode::kProtocol, target.error().message);
  }
  return target;
}

Result<http::HttpAnswer> get(const http::HttpTarget& target, const std::string& path) {
  http::HttpTarget patient = target;
  patient.stall_timeout = kPatience;
  asio::io_context context;
  auto asked = asio::co_spawn(context, fetch_page(&patient, path), asio::use_future);
  context.run();
  return asked.get();
}

Result<MetricsText> scrape(const http::HttpTarget& target) {
  BATON_TRY(const std::string page, page_of(target, "/metrics"));
  return MetricsText::parse(page);
}

Result<ServedModel> ask_for_model(const http::HttpTarget& target) {
  BATON_TRY(const std::string text, page_of(target, "/v1/models"));
  const auto page = nlohmann::json::parse(text, nullptr, false);
  const nlohmann::json::json_pointer name("/data/0/id");
  const nlohmann::json::json_pointer tokens("/data/0/max_model_len");
  if (!page.is_object() || !page.contains(name) || !page[name].is_string() ||
      !page.contains(tokens) || !page[tokens].is_number_integer()) {
    return fail(ErrorCode::kProtocol, target.host + "/v1/models names no model: " + text);
  }
  return ServedModel{page[name].get<std::string>(), page[tokens].get<std::int32_t>()};
}

}  // namespace baton::bench_handoff
