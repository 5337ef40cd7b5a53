// The names of the tables, and what an input of a role machine means for which of its sequences.
#include "baton/handoff/cells.h"

#include "baton/handoff/decode_role.h"
#include "baton/handoff/prefill_role.h"

namespace baton::handoff {

CellTable& cells::prefill() {
  static CellTable table(
      "prefill role", {"none", "prefilling", "await_grant", "sending", "await_ack", "ending"},
      {"Prefill",        "Grant",           "Grant, bad", "Ack of ranges", "Ack of all",
       "Ack, bad",       "Abort, owner",    "Abort, D",   "Abort, self",   "owner down",
       "D down",         "owner lost",      "D lost",     "frame sent",    "frame failed",
       "Commit sent",    "Commit failed",   "progress",   "prefill done",  "prefill done, end",
       "engine refused", "engine finished", "deadline",   "no link to D"});
  return table;
}

CellTable& cells::decode() {
  static CellTable table(
      "decode role", {"none", "reserving", "receiving", "landing", "closing"},
      {"Decode",      "reserved",       "Blocks",          "Blocks, bad",  "Commit",
       "Commit, end", "Commit, bad",    "all landed",      "Abort, owner", "Abort, P",
       "Abort, self", "owner down",     "P down",          "owner lost",   "P lost",
       "P up",        "engine refused", "engine finished", "deadline",     "no link to P"});
  return table;
}

CellTable& cells::owner() {
  static CellTable table("owner", {"none", "asked", "prefilled", "decoding", "alone"},
                         {"token", "last token", "refused", "finished", "Abort", "lost", "down",
                          "token of P", "last of P", "refused of P", "finished of P", "Abort of P",
                          "P lost", "P down", "abort", "abort of a leg", "stop"});
  return table;
}

#ifdef BATON_FAILPOINTS

namespace {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};

// The place of a sequence's state: 0 without an entry.
template <class Entries>
std::size_t place(const Entries& entries, const SequenceKey& key) {
  const auto at = entries.find(key);
  return at == entries.end() ? 0 : 1 + static_cast<std::size_t>(at->second.state);
}

// Aborts, lost peers and lost sequences mean the same to both roles but for who the other node is.
template <class Event, class Entries, class Other>
void count_ends(CellTable& table, const Entries& entries, const AbortInput& abort, Other other) {
  const std::vector<SequenceKey> named = keys_named_by(entries, abort.key);
  if (named.empty()) {
    table.hit(0, abort.from ? Event::kAbortOwner : Event::kAbortSelf);
  }
  for (const SequenceKey& key : named) {
    const auto& entry = entries.at(key);
    if (!abort.from) {
      table.hit(place(entries, key), Event::kAbortSelf);
    } else if (*abort.from == entry.reply_to) {
      table.hit(place(entries, key), Event::kAbortOwner);
    } else if (*abort.from == other(entry)) {
      table.hit(place(entries, key), Event::kAbortCounterpart);
    }
  }
}
template <class Event, class Entries, class Other>
void count_ends(CellTable& table, const Entries& entries, const PeerDown& down, Other other) {
  for (const auto& [key, entry] : entries) {
    if (entry.reply_to == down.peer) {
      table.hit(place(entries, key), Event::kOwnerDown);
    } else if (other(entry) == down.peer) {
      table.hit(place(entries, key), Event::kCounterpartDown);
    }
  }
}
template <class Event, class Entries, class Other>
void count_ends(CellTable& table, const Entries& entries, const LostSequence& lost, Other other) {
  const auto at = entries.find(lost.key);
  const bool mine =
      at == entries.end() || lost.peer == at->second.reply_to || lost.peer == other(at->second);
  if (mine) {
    table.hit(place(entries, lost.key),
              lost.kind == WatchKind::kOwner ? Event::kOwnerLost : Event::kCounterpartLost);
  }
}

}  // namespace

void PrefillRole::count_cells(const PrefillInput& input) const {
  using Event = cells::PrefillEvent;
  CellTable& table = cells::prefill();
  const auto hit = [&](const SequenceKey& key, Event event) {
    table.hit(place(entries_, key), event);
  };
  const auto is_from_other = [&](const SequenceKey& key, const NodeId& from) {
    const auto at = entries_.find(key);
    return at != entries_.end() && from != at->second.decode_node;
  };
  const auto has_grant = [&](const SequenceKey& key) {
    const auto at = entries_.find(key);
    return at != entries_.end() && at->second.has_grant;
  };
  const auto decode_node = [](const Entry& entry) { return entry.decode_node; };
  std::visit(
      Overloaded{
          [&](const PrefillRoleRequest& request) { hit(request.submit.key, Event::kPrefill); },
          [&](const GrantInput& grant) {
            const bool bad = is_from_other(grant.key, grant.from) || has_grant(grant.key);
            hit(grant.key, bad ? Event::kBadGrant : Event::kGrant);
          },
          [&](const AckInput& ack) {
            hit(ack.key, is_from_other(ack.key, ack.from) ? Event::kBadAck
                         : ack.ack.all()                  ? Event::kAckAll
                                                          : Event::kAckRanges);
          },
          [&](const AbortInput& abort) { count_ends<Event>(table, entries_, abort, decode_node); },
          [&](const PeerDown& down) { count_ends<Event>(table, entries_, down, decode_node); },
          [&](const LostSequence& lost) { count_ends<Event>(table, entries_, lost, decode_node); },
          [&](const FrameSent& sent) {
            hit(sent.key, sent.result ? Event::kFrameSent : Event::kFrameFailed);
          },
          [&](const CommitSent& sent) {
            hit(sent.key, sent.status ? Event::kCommitSent : Event::kCommitFailed);
          },
          [&](const message::PrefillProgress& progress) { hit(progress.key, Event::kProgress); },
          [&](const message::PrefillDone& done) {
            const bool ended =
                !done.first.empty() && done.first.front().finish != message::FinishReason::kNone;
            hit(done.key, ended ? Event::kDoneEnd : Event::kDone);
          },
          [&](const message::Refused& refused) { hit(refused.key, Event::kRefused); },
          [&](const message::Finished& finished) { hit(finished.key, Event::kFinished); },
      },
      input);
}

void DecodeRole::count_cells(const DecodeInput& input) const {
  using Event = cells::DecodeEvent;
  CellTable& table = cells::decode();
  const auto hit = [&](const SequenceKey& key, Event event) {
    table.hit(place(entries_, key), event);
  };
  const auto is_from_other = [&](const SequenceKey& key, const NodeId& from) {
    const auto at = entries_.find(key);
    return at != entries_.end() && from != at->second.prefill_node;
  };
  const auto prefill_node = [](const Entry& entry) { return entry.prefill_node; };
  std::visit(
      Overloaded{
          [&](const DecodeRoleHandoff& handoff) { hit(handoff.submit.key, Event::kDecode); },
          [&](const BlocksReceived& frame) {
            const bool bad = !frame.status || is_from_other(frame.key, frame.peer);
            hit(frame.key, bad ? Event::kBadBlocks : Event::kBlocks);
          },
          [&](const CommitReceived& commit) {
            const auto& first = commit.commit.first();
            const bool ended = !first.empty() && first[0].finish() != wire::pb::FINISH_NONE;
            hit(commit.key, is_from_other(commit.key, commit.peer) ? Event::kBadCommit
                            : ended                                ? Event::kCommitEnd
                                                                   : Event::kCommit);
          },
          [&](const AbortInput& abort) { count_ends<Event>(table, entries_, abort, prefill_node); },
          [&](const PeerUp& up) {
            for (const auto& [key, entry] : entries_) {
              if (entry.prefill_node == up.info.id) {
                hit(key, Event::kCounterpartUp);
              }
            }
          },
          [&](const PeerDown& down) { count_ends<Event>(table, entries_, down, prefill_node); },
          [&](const LostSequence& lost) { count_ends<Event>(table, entries_, lost, prefill_node); },
          [&](const ReservationIdle& idle) { hit(idle.key, Event::kLanded); },
          [&](const message::Reserved& reserved) { hit(reserved.key, Event::kReserved); },
          [&](const message::Refused& refused) { hit(refused.key, Event::kRefused); },
          [&](const message::Finished& finished) { hit(finished.key, Event::kFinished); },
      },
      input);
}

void PrefillRole::count_late(const SequenceKey& key, bool linked) const {
  cells::prefill().hit(place(entries_, key),
                       linked ? cells::PrefillEvent::kDeadline : cells::PrefillEvent::kNoLink);
}

void DecodeRole::count_late(const SequenceKey& key, const Error& error) const {
  const bool no_link = error.code == ErrorCode::kPeerLost;
  cells::decode().hit(place(entries_, key),
                      no_link ? cells::DecodeEvent::kNoLink : cells::DecodeEvent::kDeadline);
}

#endif

}  // namespace baton::handoff
