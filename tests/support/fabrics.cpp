#include "tests/support/fabrics.h"

#include "baton/base/check.h"
#include "baton/ucx/fabric.h"

#include <map>
#include <mutex>

namespace baton::testing {

namespace {

const std::map<std::string, std::string>& ways() {
  static const std::map<std::string, std::string> kWays = {{"ucx_shm", "shm,self"},
                                                           {"ucx_tcp", "tcp"}};
  return kWays;
}

}  // namespace

std::vector<std::string> fabric_kinds() {
  std::vector<std::string> kinds;
  for (const auto& [kind, transports] : ways()) {
    if (ucx::is_built()) {
      kinds.push_back(kind);
    }
  }
  return kinds;
}

std::shared_ptr<net::Fabric> fabric_of(const std::string& kind) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<net::Fabric>> made;
  const auto way = ways().find(kind);
  if (way == ways().end()) {
    return nullptr;
  }
  const std::lock_guard lock(mutex);
  auto& fabric = made[kind];
  if (!fabric) {
    auto opened = ucx::open_fabric({way->second});
    BATON_CHECK(opened.has_value(), "{}", opened ? "" : opened.error().message);
    fabric = *std::move(opened);
  }
  return fabric;
}

}  // namespace baton::testing
