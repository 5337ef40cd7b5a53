#!/usr/bin/env python3
"""Breaks what the simulation of clusters is there for, one edit at a time, and shows that it notices.

As tests/property/break_rules.py does for the rules of docs/exactness.md; the same usage.

usage: tests/simulation/break_rules.py [--folder FOLDER [--build BUILD]] [--only TEXT] [-j N]
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import breaking  # noqa: E402

SIMULATION = "simulation_test"
# Of these the simulation sees nothing: its links keep their order, an Ack that comes twice does harm
# only where two frames share a block, what is left of an ended epoch finds no sequence. Unit tests
# see them.
ROUTER, HANDOFF = "router_test", "handoff_test"
SEEDS = 1000

# (rule, what is broken, file, old text, new text, tests that must fail)
BREAKS = [
    ("router", "a token that came twice is delivered twice",
     "baton/router/router.cpp",
     "count(stats_->duplicates_dropped);\n      return;",
     "out.emplace_back(Deliver{std::move(token), sequence.route});\n      return;",
     [SIMULATION]),
    ("router", "a token that comes before its turn is delivered at once",
     "baton/router/router.cpp",
     "const auto at = sequence.ahead.find(sequence.next_index());",
     "const auto at = sequence.ahead.begin();",
     [ROUTER]),
    ("router", "a replay does not tell what was emitted",
     "baton/router/attempts.cpp",
     "  ++sequence.submit.key.epoch.value;\n  ++sequence.attempts;\n",
     "  ++sequence.submit.key.epoch.value;\n  ++sequence.attempts;\n"
     "  if (sequence.submit.emitted.size() > 3) {\n    sequence.submit.emitted.pop_back();\n  }\n",
     [SIMULATION]),
    ("lease", "a block is given back when its frame is begun, not when it is acked",
     "baton/handoff/send_handoff.cpp",
     "  ++frames_in_flight_;\n",
     "  ++frames_in_flight_;\n  settle(frames_[next_]);\n",
     [SIMULATION]),
    ("lease", "an ack is counted twice",
     "baton/handoff/send_handoff.cpp",
     "if (frame.acked || frame.blocks.group != range.group() ||",
     "if (frame.blocks.group != range.group() ||",
     [HANDOFF]),
    ("lease", "a reservation whose bytes have landed is not given back",
     "baton/handoff/decode_role.cpp",
     "  if (landed) {\n    context_.outbox.engine(message::Release{entry.lease});\n",
     "  if (landed) {\n",
     [SIMULATION]),
    ("lease", "a reservation is given back while bytes are on their way to it",
     "baton/handoff/decode_role.cpp",
     "const bool landed = entry.state == State::kReceiving && table_.close(at->first);",
     "const bool landed = entry.state == State::kReceiving;\n  table_.close(at->first);",
     [SIMULATION]),
    ("prefix", "a tile more than has arrived is shared",
     "baton/handoff/decode_role.cpp",
     "std::min(static_cast<std::int32_t>(tiles) * kv::kTileTokens,",
     "std::min(static_cast<std::int32_t>(tiles + 1) * kv::kTileTokens,",
     [SIMULATION]),
    ("abort", "a decode node ignores an abort while it receives",
     "baton/handoff/decode_role.cpp",
     "    if (entry.state == State::kClosing) {\n      continue;\n    }\n    if (abort.from &&",
     "    if (entry.state == State::kClosing || entry.state == State::kReceiving) {\n"
     "      continue;\n    }\n    if (abort.from &&",
     [SIMULATION]),
    ("abort", "a prefill node ignores an abort while it waits for the grant",
     "baton/handoff/prefill_role.cpp",
     "    if (entry.state == State::kEnding) {\n      continue;\n    }\n    if (abort.from &&",
     "    if (entry.state == State::kEnding || entry.state == State::kAwaitGrant) {\n"
     "      continue;\n    }\n    if (abort.from &&",
     [SIMULATION]),
    ("loss", "an owner forgets whom it lost with a node that had answered",
     "baton/handoff/owner.cpp",
     "if (leg.node == peer && !is_over(leg)) {",
     "if (leg.node == peer && !leg.answered) {",
     [SIMULATION]),
    ("loss", "a sequence that one Beat does not list counts as lost",
     "baton/handoff/leases.cpp",
     "watch.listed || now >= watch.certain_from",
     "true",
     [SIMULATION]),
    ("events", "a gap in what a node tells of its cache goes unnoticed",
     "baton/handoff/owner.cpp",
     "if (cached.number() != 0 && cached.number() != hearing.next) {",
     "if (cached.number() != 0 && hearing.next == 0) {",
     [HANDOFF]),
    ("events", "a router goes on believing in what was evicted",
     "baton/router/prefix_map.cpp",
     "    cache.reported.erase(name);\n",
     "    static_cast<void>(name);\n",
     [ROUTER]),
    ("epoch", "messages of an ended epoch are taken",
     "baton/handoff/late.cpp",
     "return found != epochs_.end() && epoch <= found->second;",
     "return found != epochs_.end() && epoch < found->second;",
     [HANDOFF]),
]

if __name__ == "__main__":
    breaking.main(__doc__, BREAKS, {SIMULATION: ["--seeds", str(SEEDS)]})
