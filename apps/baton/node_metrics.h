// Names and labels of a node's metrics, over the atomics of engine, handoff and router. The names
// are fixed: dashboards rest on them.
#pragma once

#include "baton/engine/stats.h"
#include "baton/handoff/stats.h"
#include "baton/message/node.h"
#include "baton/router/stats.h"

#include "apps/baton/metrics.h"
#include <string>

namespace baton::membership {
struct MembershipStats;
}

namespace baton::app {

// Each pointer may be null: the role has no such part. They must outlive the page.
void add_node_metrics(MetricsPage& page, message::NodeRole role, const std::string& model_name,
                      const engine::EngineStats* engine, const handoff::HandoffStats* handoff,
                      const handoff::TransportStats* transport, const router::Stats* router);

void add_membership_metrics(MetricsPage& page, const membership::MembershipStats& stats);

}  // namespace baton::app
