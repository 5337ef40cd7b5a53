#include "apps/baton/kv_transport.h"

#include "baton/base/log.h"
#include "baton/ucx/fabric.h"

namespace baton::app {

std::shared_ptr<net::Fabric> load_fabric(const ServeOptions& options, const Guard& guard) {
  const bool has_kv =
      options.role == message::NodeRole::kPrefill || options.role == message::NodeRole::kDecode;
  if (!has_kv || options.kv_transport == "tcp") {
    return nullptr;
  }
  const bool demanded = options.kv_transport == "ucx";
  if (guard.nodes) {
    if (demanded) {
      throw StartupError(
          "--kv-transport ucx: UCX does not encrypt, and with --node-tls-cert all that nodes send "
          "is meant to be; use --kv-transport tcp (or auto), or --cluster-token-file instead of "
          "TLS "
          "where the network is trusted");
    }
    log::info("KV goes over TCP: node connections use TLS, and UCX does not encrypt");
    return nullptr;
  }
  auto fabric = ucx::open_fabric({});
  if (fabric) {
    return *std::move(fabric);
  }
  if (demanded) {
    throw StartupError("--kv-transport ucx: " + fabric.error().message);
  }
  log::info("KV goes over TCP: {}", fabric.error().message);
  return nullptr;
}

}  // namespace baton::app
