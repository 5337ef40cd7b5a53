// etcd by its v3 JSON gateway, over plain HTTP: one call, or one stream of lines, at a time. Of
// several endpoints the one that answered last is asked; after a failure it is the next one's turn.
// Thread: the awaiting coroutine's executor, which must be serial.
#pragma once

#include "baton/http/client.h"

#include <functional>
#include <string>
#include <vector>

namespace baton::membership {

class EtcdClient {
 public:
  explicit EtcdClient(std::vector<http::HttpTarget> endpoints);

  // Posts and returns the body of a 200. Errors: kUnavailable (no connection, or etcd says why),
  // kDeadlineExceeded, kPeerLost, kProtocol.
  asio::awaitable<Result<std::string>> call(std::string path, std::string body);

  // Posts and hands on each line of the answer until one is not wanted more, the answer ends, or
  // nothing comes for `silence`, which all are a good end once there was a line. Errors: as call's,
  // before the first line; a line without an end within 1 MiB (kProtocol).
  using OnLine = std::function<bool(const std::string& line)>;
  asio::awaitable<Status> stream(std::string path, std::string body, Duration silence,
                                 OnLine on_line);

 private:
  void note(bool answered);

  std::vector<http::HttpTarget> endpoints_;
  std::size_t current_ = 0;
};

}  // namespace baton::membership
