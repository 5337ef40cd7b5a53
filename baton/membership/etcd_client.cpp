#include "baton/membership/etcd_client.h"

#include "baton/base/check.h"
#include "baton/membership/etcd_messages.h"

#include <fmt/format.h>

#include <utility>

namespace baton::membership {

namespace {

constexpr Duration kConnectTimeout = std::chrono::seconds(2);
constexpr Duration kCallTimeout = std::chrono::seconds(3);
constexpr std::size_t kMaxLineBytes = std::size_t{1} << 20U;  // etcd's own limit is 1.5 MiB

tl::unexpected<Error> refused(const http::HttpTarget& endpoint, const http::HttpAnswer& answer) {
  return fail(ErrorCode::kUnavailable, fmt::format("etcd at {} answers {}: {}", endpoint.host,
                                                   answer.status, etcd::error_text(answer.body)));
}

}  // namespace

EtcdClient::EtcdClient(std::vector<http::HttpTarget> endpoints) : endpoints_(std::move(endpoints)) {
  BATON_CHECK(!endpoints_.empty());
  for (http::HttpTarget& endpoint : endpoints_) {
    endpoint.connect_timeout = kConnectTimeout;
    endpoint.stall_timeout = kCallTimeout;
  }
}

void EtcdClient::note(bool answered) {
  if (!answered) {
    current_ = (current_ + 1) % endpoints_.size();
  }
}

asio::awaitable<Result<std::string>> EtcdClient::call(std::string path, std::string body) {
  const http::HttpTarget* endpoint = &endpoints_[current_];
  std::string method = "POST";
  http::OnBytes keep_all;
  auto answer = co_await http::fetch(endpoint, std::move(method), std::move(path), std::move(body),
                                     std::move(keep_all));
  note(answer && answer->status == 200);
  if (!answer) {
    co_return fail(answer.error().code, "etcd: " + answer.error().message);
  }
  if (answer->status != 200) {
    co_return refused(*endpoint, *answer);
  }
  co_return std::move(answer->body);
}

asio::awaitable<Status> EtcdClient::stream(std::string path, std::string body, Duration silence,
                                           OnLine on_line) {
  http::HttpTarget endpoint = endpoints_[current_];
  endpoint.stall_timeout = silence;
  std::string line;
  bool any = false;
  bool too_long = false;
  http::OnBytes on_bytes = [&](std::string_view bytes, TimePoint) {
    while (!bytes.empty()) {
      const std::size_t end = bytes.find('\n');
      line += bytes.substr(0, end);
      too_long = line.size() > kMaxLineBytes;
      if (too_long || end == std::string_view::npos) {
        return !too_long;
      }
      bytes.remove_prefix(end + 1);
      any = true;
      if (!on_line(std::exchange(line, {}))) {
        return false;
      }
    }
    return true;
  };
  std::string method = "POST";
  auto answer = co_await http::fetch(&endpoint, std::move(method), std::move(path), std::move(body),
                                     std::move(on_bytes));
  if (answer && answer->status != 200) {
    note(false);
    co_return refused(endpoint, *answer);
  }
  if (too_long) {
    co_return fail(ErrorCode::kProtocol, "etcd: a line of its answer does not end");
  }
  if (!answer && !any) {
    note(false);
    co_return fail(answer.error().code, "etcd: " + answer.error().message);
  }
  co_return Status{};
}

}  // namespace baton::membership
