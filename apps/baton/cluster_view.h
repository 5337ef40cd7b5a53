// GET /cluster: what this process sees of its nodes and its latest requests, as JSON for the page
// at
// `/` and for scripts. Numbers, node names and reasons; no prompt, no text, no key.
// docs/cluster-view.md describes the fields.
#pragma once

#include "baton/cluster/records.h"
#include "baton/message/node.h"
#include "baton/router/router.h"

#include <string>
#include <vector>

namespace baton::app {

// Copies, taken on the control thread at one moment.
struct OwnerView {
  TimePoint now{};
  std::vector<cluster::NodeRecord> nodes;        // a single node's own record is not among them
  std::vector<router::RequestHistory> requests;  // oldest first
  router::Readiness readiness;
};

struct ClusterView {
  OwnerView owner;
  TimePoint started{};  // zero of all times in the body
  message::NodeInfo self;
  std::string model;
};

// Times are microseconds since the start of the process.
std::string cluster_body(const ClusterView& view, const router::Stats& stats);

}  // namespace baton::app
