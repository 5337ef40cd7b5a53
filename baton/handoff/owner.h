// The owner's end of the protocol: whoever holds client connections sends sequences to nodes with
// it and gets their tokens back. It knows which leg (prefill, decode) of which sequence runs on
// which node, lists them in Beats, and turns every way to lose one into an event. It never retries:
// what to do next is the router's decision. Control thread only.
//
// An attempt (one epoch of a sequence) is one thing: when one leg ends badly, the other is aborted
// here and exactly one NodeRefused or NodeFinished goes out for it. A good end is a token with
// finish set. After either, nothing more comes for that key.
#pragma once

#include "baton/base/clock.h"
#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/handoff/cells.h"
#include "baton/handoff/leases.h"
#include "baton/handoff/options.h"
#include "baton/handoff/outbox.h"
#include "baton/handoff/transport.h"
#include "baton/message/node.h"
#include "baton/message/request.h"
#include "baton/net/async_event.h"

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <variant>
#include <vector>

namespace baton::handoff {

// Tokens of one step of a node. The decode node's first event repeats the prefill node's: drop by
// index. Only keys of live attempts.
struct NodeTokens {
  NodeId node;
  std::uint64_t step = 0;
  std::vector<message::Token> tokens;
};
// The node did not take the attempt (or its handoff failed, later = true). The attempt is over.
struct NodeRefused {
  NodeId node;
  message::Refused refused;
};
// The attempt ended without a last token: the node said so, died (kPeerLost), forgot the sequence
// (kPeerLost) or stood still (kDeadlineExceeded). The attempt is over.
struct NodeFinished {
  NodeId node;
  message::Finished finished;
};
struct NodeLoadChanged {
  NodeId node;
  message::NodeLoad load;
  bool draining = false;
};
// What the node has in its prefix cache. Only with CoordinatorOptions::hear_cached.
struct NodePrefixes {
  NodeId node;
  message::PrefixChanges changes;
};
// NodeDown comes before the NodeFinished of the attempts that were lost with it, so that a router
// does not choose the node again; it needs no per-request handling of its own.
using OwnerEvent =
    std::variant<NodeTokens, NodeRefused, NodeFinished, message::NodeUp, message::NodeDown,
                 NodeLoadChanged, NodePrefixes, PeerUnusable, PeerForgotten>;

class Owner {
 public:
  Owner(asio::any_io_executor control, const CoordinatorOptions& options, Outbox& outbox,
        Leases& leases);

  // Sends the leg. `node` may be this node itself. decode_node empty: the node decodes too;
  // prefill_node empty: the node prefills too. Never wait. Errors: kPeerLost (not connected now),
  // kOverloaded (too many attempts or its queue is full), kInvalidArgument (over the wire's
  // limits). After an error of the second leg, call abort() for the attempt.
  Status send_prefill(const NodeId& node, const message::Submit& submit, const NodeId& decode_node,
                      TimePoint now);
  Status send_decode(const NodeId& node, const message::Submit& submit, const NodeId& prefill_node,
                     TimePoint now);

  // Ends attempts: all of the request's choices when key.choice is kAllChoices, epochs up to
  // key.epoch. Sends Abort to every node that has a leg. No event follows for them. Idempotent.
  void abort(const SequenceKey& key, const Error& reason);
  // The same for the leg on one node only; the attempt stays for the other leg, unless that is a
  // prefill leg whose part is over.
  void abort(const NodeId& node, const SequenceKey& key, const Error& reason);

  // The next event; nothing once stopped. One waiter. drain() takes what is there, without waiting.
  asio::awaitable<std::optional<OwnerEvent>> next() { return events_.pop(); }
  std::vector<OwnerEvent> drain();

  [[nodiscard]] std::size_t active_attempts() const { return attempts_.size(); }

  // ---- for ServingCoordinator only -----------------------------------------------------------
  void on_tokens(const NodeId& from, std::uint64_t step, std::vector<message::Token> tokens);
  void on_refused(const NodeId& from, message::Refused refused);
  void on_finished(const NodeId& from, message::Finished finished);
  // A node's Abort: it could not read our message, or gave the sequence up.
  void on_abort(const NodeId& from, const SequenceKey& key, const Error& reason);
  void on_peer_up(const message::NodeInfo& info);
  void on_peer_down(const NodeId& peer, const Error& reason);
  void on_peer_unusable(PeerUnusable unusable);
  void on_peer_forgotten(PeerForgotten forgotten);
  void on_load(const NodeId& node, const message::NodeLoad& load, bool draining);
  void on_cached(const NodeId& node, const wire::pb::Cached& cached);
  // What the Beat to the node says of that.
  void fill_beat(const NodeId& node, wire::pb::Beat& beat) const;
  // Leases found that `node` no longer has the sequence, or stands still.
  void on_lost(const NodeId& node, const SequenceKey& key, const Error& reason);
  void stop();

 private:
  enum class LegRole : std::uint8_t { kPrefill, kDecode, kLocal };
  struct Leg {
    NodeId node;
    LegRole role = LegRole::kLocal;
    bool answered = false;  // it gave a token
  };
  // Nothing more comes of a prefill leg that gave its token.
  static bool is_over(const Leg& leg) { return leg.role == LegRole::kPrefill && leg.answered; }
  struct Attempt {
    std::vector<Leg> legs;  // at most two
    // The decode node has answered: it verified the KV, so the prefill leg cannot fail any more.
    bool decoding = false;
  };

  // What a connected node tells of its prefix cache.
  struct Hearing {
    std::uint64_t asks = 1;  // one more for each gap in its numbers
    std::uint64_t next = 0;  // the number that follows; 0: what comes means nothing before a 0
  };

  // With BATON_FAILPOINTS only, see cells.h. An event of a node, as of a decode or lone leg, and of
  // our own side.
  void count_cell(const NodeId& node, const SequenceKey& key, cells::OwnerEvent event);
  void count_cell(const SequenceKey& key, cells::OwnerEvent event) const;

  Status add_leg(const NodeId& node, const SequenceKey& key, wire::Control message, LegRole role,
                 TimePoint now);
  // Forgets the attempt; with a reason, every leg but the one on `ended_by` gets an Abort.
  void end_attempt(const SequenceKey& key, const NodeId& ended_by, const Error* reason);
  Leg* find_leg(const NodeId& node, const SequenceKey& key);
  bool take_token(const NodeId& from, const message::Token& token);
  void begin_decoding(const SequenceKey& key);
  void take_refusal(const NodeId& from, message::Refused refused);
  // The node's leg ended badly. False when the attempt goes on without it, or does not know it.
  bool is_end_of_attempt(const NodeId& node, const SequenceKey& key);

  const CoordinatorOptions& options_;
  Outbox& outbox_;
  Leases& leases_;
  net::AsyncQueue<OwnerEvent> events_;
  std::map<NodeId, Hearing> hearings_;
  std::map<SequenceKey, Attempt> attempts_;  // ordered: all choices of a request lie together
};

}  // namespace baton::handoff
