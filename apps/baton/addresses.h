// Where this process listens and whom it dials, from its flags. Errors are StartupErrors that name
// the flag.
#pragma once

#include "baton/base/error.h"
#include "baton/membership/peer_list.h"
#include "baton/net/address.h"

#include "apps/baton/options.h"

namespace baton::app {

// Roles that clients talk to: they hold the model's text side and the requests.
[[nodiscard]] bool owns_clients(const ServeOptions& options);
[[nodiscard]] bool serves_http(const ServeOptions& options);
net::HostPort http_address(const ServeOptions& options);
// Only when --serving-bind is given.
net::HostPort serving_address(const ServeOptions& options);
// What other nodes are told to dial: --serving-advertise, or `bound`, where this one listens.
net::HostPort advertised(const ServeOptions& options, const net::HostPort& bound);
membership::PeerList prefill_peers(const ServeOptions& options);
membership::PeerList decode_peers(const ServeOptions& options);

// Binds and lets go again: a taken port, or one for nodes that needs a guard and has none, is told
// before minutes are spent on loading a model.
void check_can_listen(const ServeOptions& options, bool nodes_guarded);

}  // namespace baton::app
