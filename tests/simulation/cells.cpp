#include "tests/simulation/cells.h"

#include "baton/base/cells.h"
#include "baton/handoff/cells.h"
#include "baton/router/cells.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace baton::simulation {

namespace {

// Why cells of a table are not to be met here. Names separated by '|', "*" for all.
struct Rule {
  std::string_view table;
  std::string_view states;
  std::string_view events;
  bool possible = false;  // it may happen here, and another test makes it happen
  std::string_view reason;
};

constexpr bool kMay = true;
constexpr bool kCannot = false;

// The first that names a cell counts. What is "seldom" is met fewer than ten times in 1,000 seeds.
constexpr std::string_view kSeldom = "seldom (role_table.*, RouterTable.*)";
constexpr std::string_view kAboutAnEntry =
    "it is about an entry: without one it counts as the good one or the owner's, or not at all";
constexpr std::string_view kBreach = "who sends it breaks the protocol (role_table.*)";
constexpr std::string_view kHeldAlready = "the coordinator drops a request of a sequence it holds";

constexpr auto kRules = std::to_array<Rule>({
    // ---- prefill role
    {"prefill role", "prefilling|await_grant|sending|await_ack|ending", "Prefill", kCannot,
     kHeldAlready},
    {"prefill role", "none", "Grant, bad|Ack, bad|Abort, D|owner down|D down|deadline|no link to D",
     kCannot, kAboutAnEntry},
    {"prefill role", "sending|await_ack|ending", "Grant", kCannot,
     "these have their Grant: a second one counts as bad"},
    {"prefill role", "*", "Grant, bad|Ack, bad", kMay, kBreach},
    {"prefill role", "prefilling|ending", "Ack of all", kMay, kBreach},
    {"prefill role", "await_grant", "Ack of ranges|Ack of all|frame sent|frame failed", kCannot,
     "nothing leaves before the Grant"},
    {"prefill role", "await_ack", "frame sent|frame failed", kCannot, "all frames are sent"},
    {"prefill role", "none", "frame sent|frame failed", kCannot,
     "an entry stays until its frames are answered"},
    {"prefill role", "prefilling|await_grant|await_ack", "Commit sent|Commit failed", kCannot,
     "the Commit leaves in sending, or with an end at index 0, and is answered once"},
    {"prefill role", "await_grant|sending|await_ack", "progress|prefill done|prefill done, end",
     kCannot, "the engine says so once, and nothing of the kind after it"},
    {"prefill role", "await_grant|sending|await_ack|ending", "engine refused", kCannot,
     "the engine refuses only who waits for room, and takes none back that is being sent"},
    {"prefill role", "ending", "deadline|no link to D", kCannot,
     "what ends waits for the transport alone"},
    {"prefill role", "sending|await_ack", "no link to D", kCannot, "the Grant came by the link"},
    {"prefill role", "*", "owner lost|D lost", kMay,
     "a Beat tells it only where the link's end does not: seldom (role_table.*)"},
    {"prefill role", "prefilling|await_grant|sending", "deadline", kMay,
     "D's deadline comes first (role_table.*)"},
    {"prefill role", "prefilling|sending|await_ack", "engine finished", kMay,
     "the engine ends only what it was told to (role_table.*)"},
    {"prefill role", "none|ending", "progress|prefill done|prefill done, end", kMay, kSeldom},
    {"prefill role", "ending", "Ack of ranges|owner down|D down|Commit failed", kMay, kSeldom},
    {"prefill role", "prefilling", "frame failed|Abort, self|no link to D", kMay, kSeldom},
    {"prefill role", "sending", "Commit failed", kMay, kSeldom},

    // ---- decode role
    {"decode role", "reserving|receiving|closing", "Decode", kCannot, kHeldAlready},
    {"decode role", "none", "Commit, bad|Abort, P|owner down|P down|P up|deadline|no link to P",
     kCannot, kAboutAnEntry},
    {"decode role", "receiving|closing", "reserved|engine refused", kCannot,
     "the engine answers a Reserve once"},
    {"decode role", "reserving", "Blocks|Blocks, bad|all landed", kCannot,
     "nothing was granted yet: the table takes nothing"},
    {"decode role", "*", "Commit, bad", kMay, kBreach},
    {"decode role", "reserving", "Commit", kMay, kBreach},
    {"decode role", "none|receiving", "all landed", kCannot,
     "said of a closed reservation, whose entry waits for it"},
    {"decode role", "closing", "deadline|no link to P", kCannot,
     "it waits for the transport alone, which has its own deadline"},
    {"decode role", "reserving", "no link to P", kCannot,
     "looked at once there is a Grant to send"},
    {"decode role", "landing", "*", kMay,
     "both transports tell of a frame once it has landed, so nothing is left to wait for; another "
     "one need not (role_table.*)"},
    {"decode role", "*", "owner lost|P lost", kMay,
     "a Beat tells it only where the link's end does not: seldom (role_table.*)"},
    {"decode role", "reserving", "deadline", kMay, "the engine's own comes first (role_table.*)"},
    {"decode role", "reserving|receiving", "engine finished", kMay,
     "the engine ends only what it was told to (role_table.*)"},
    {"decode role", "none", "reserved", kMay, kSeldom},
    {"decode role", "receiving", "no link to P", kMay, kSeldom},
    {"decode role", "closing", "Commit|Commit, end|owner down|P down|P up", kMay, kSeldom},

    // ---- owner
    {"owner", "none",
     "token of P|last of P|refused of P|finished of P|Abort of P|P lost|P down|Abort|down|abort|"
     "abort of a leg|stop",
     kCannot, "without an attempt there is no leg: it counts as the other row's, or not at all"},
    {"owner", "alone", "token of P|last of P|refused of P|finished of P|Abort of P|P lost|P down",
     kCannot, "a node alone has no prefill leg"},
    {"owner", "*", "Abort|Abort of P", kMay,
     "sent for a message that cannot be read: here its CRC is wrong already (role_table.*)"},
    {"owner", "prefilled", "token of P|last of P|last token", kMay, kBreach},
    {"owner", "decoding", "last of P|refused", kMay, kBreach},
    {"owner", "prefilled|decoding", "P lost", kMay,
     "its Beats are not judged any more (role_table.*)"},
    {"owner", "prefilled|decoding|alone", "abort", kMay,
     "whole attempts are ended only where a leg could not be sent (role_table.*)"},
    {"owner", "*", "finished|finished of P|lost", kMay, kSeldom},
    {"owner", "decoding", "refused of P", kMay, kSeldom},
    {"owner", "alone", "stop", kMay, kSeldom},

    // ---- router
    {"router", "none", "node down|node up|wait over|retry due|silent", kCannot,
     "looked at for the sequences that are there"},
    {"router", "held|asked|answering|elsewhere|ended", "wait over|retry due", kCannot,
     "looked at for who waits"},
    {"router", "held|waiting|elsewhere|ended", "silent", kCannot, "looked at for who runs"},
    {"router", "elsewhere", "node up|client gone|stopped", kCannot, "not an event of one attempt"},
    {"router", "none|held|waiting|elsewhere|ended",
     "token ahead|token again|last token|other token", kCannot,
     "dropped unread, and so counted as a next token"},
    {"router", "held", "next token|refused, later|refused, never|given up|failed", kMay,
     "nobody was asked for it yet (RouterTable.*)"},
    {"router", "*", "refused, never|failed", kMay,
     "all requests here can be served (RouterTable.*)"},
    {"router", "asked|answering", "token ahead|other token", kMay,
     "links keep their order, and all nodes compute alike (RouterTable.*)"},
    {"router", "asked", "token again", kMay, "links keep their order (RouterTable.*)"},
    {"router", "asked|answering", "silent", kMay, "Leases see it long before (RouterTable.*)"},
    {"router", "waiting", "wait over", kMay, "nodes are back before the deadline (RouterTable.*)"},
    {"router", "none|held|waiting|asked", "stopped", kMay,
     "stop strings come with tokens, of the first choice here (RouterTable.*)"},
    {"router", "waiting|ended", "next token|client gone", kMay, kSeldom},
    {"router", "none", "given up|client gone", kMay, kSeldom},
    {"router", "ended", "refused, later|given up", kMay, kSeldom},
});

bool is_among(std::string_view names, std::string_view name) {
  if (names == "*") {
    return true;
  }
  while (!names.empty()) {
    const std::size_t bar = names.find('|');
    if (names.substr(0, bar) == name) {
      return true;
    }
    names = bar == std::string_view::npos ? std::string_view{} : names.substr(bar + 1);
  }
  return false;
}

// The first rule that names the cell, or none: it is to be met.
const Rule* rule_of(const CellTable& table, std::size_t state, std::size_t event) {
  for (const Rule& rule : kRules) {
    if (rule.table == table.name() && is_among(rule.states, table.states()[state]) &&
        is_among(rule.events, table.events()[event])) {
      return &rule;
    }
  }
  return nullptr;
}

std::vector<const CellTable*> tables() {
  return {&handoff::cells::prefill(), &handoff::cells::decode(), &handoff::cells::owner(),
          &router::cells::table()};
}

std::string describe_table(const CellTable& table) {
  std::string text = fmt::format("\n{:<18}", table.name());
  std::vector<const Rule*> used;
  for (const std::string_view state : table.states()) {
    text += fmt::format("{:>12}", state);
  }
  for (std::size_t event = 0; event < table.events().size(); ++event) {
    text += fmt::format("\n  {:<16}", table.events()[event]);
    for (std::size_t state = 0; state < table.states().size(); ++state) {
      const Rule* const rule = rule_of(table, state, event);
      const std::uint64_t count = table.count(state, event);
      if (count > 0) {
        text += fmt::format("{:>12}", count);
      } else if (rule == nullptr) {
        text += fmt::format("{:>12}", "NOT MET");
      } else {
        std::size_t letter = 0;
        while (letter < used.size() && used[letter]->reason != rule->reason) {
          ++letter;
        }
        if (letter == used.size()) {
          used.push_back(rule);
        }
        text += fmt::format("{:>12}", fmt::format("({})", static_cast<char>('a' + letter)));
      }
    }
  }
  for (std::size_t letter = 0; letter < used.size(); ++letter) {
    text +=
        fmt::format("\n  ({}) {}{}", static_cast<char>('a' + letter),
                    used[letter]->possible ? "elsewhere: " : "cannot be: ", used[letter]->reason);
  }
  return text + "\n";
}

}  // namespace

std::string describe_cells() {
  std::string text;
  for (const CellTable* table : tables()) {
    text += describe_table(*table);
  }
  return text;
}

std::string missing_cells() {
  std::string text;
  for (const CellTable* table : tables()) {
    for (std::size_t state = 0; state < table->states().size(); ++state) {
      for (std::size_t event = 0; event < table->events().size(); ++event) {
        const Rule* const rule = rule_of(*table, state, event);
        const bool met = table->count(state, event) > 0;
        if (!met && rule == nullptr) {
          text += fmt::format("{}: ({}, {}) was not met\n", table->name(), table->states()[state],
                              table->events()[event]);
        } else if (met && rule != nullptr && !rule->possible) {
          text += fmt::format("{}: ({}, {}) was met, but cannot be: {}\n", table->name(),
                              table->states()[state], table->events()[event], rule->reason);
        }
      }
    }
  }
  return text;
}

}  // namespace baton::simulation
