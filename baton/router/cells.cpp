#include "baton/router/cells.h"

#include "baton/router/sequence.h"

namespace baton::router {

CellTable& cells::table() {
  static CellTable table("router",
                         {"none", "held", "waiting", "asked", "answering", "elsewhere", "ended"},
                         {"next token", "token ahead", "token again", "last token", "other token",
                          "refused, later", "refused, never", "given up", "failed", "node down",
                          "node up", "client gone", "stopped", "wait over", "retry due", "silent"});
  return table;
}

#ifdef BATON_FAILPOINTS

void Router::count_cell(const SequenceKey& key, const NodeId* from, cells::Event event) {
  using State = Sequence::State;
  cells::State state = cells::State::kNone;
  Request* const request = find(key.request);
  if (request != nullptr && key.choice.value < request->choices.size()) {
    const Sequence& sequence = *request->choices[key.choice.value];
    switch (sequence.state) {
      case State::kHeld:
        state = cells::State::kHeld;
        break;
      case State::kWaiting:
        state = cells::State::kWaiting;
        break;
      case State::kRunning:
        state = from != nullptr && find_live(key, *from) == nullptr ? cells::State::kElsewhere
                : sequence.progressed                               ? cells::State::kAnswering
                                                                    : cells::State::kAsked;
        break;
      case State::kEnded:
        state = cells::State::kEnded;
        break;
    }
  }
  cells::table().hit(state, event);
}

void Router::count_token(const NodeId& from, const message::Token& token) {
  using Event = cells::Event;
  Event event = Event::kNextToken;
  if (const Sequence* sequence = find_live(token.key, from)) {
    const std::int32_t next = sequence->next_index();
    const auto waiting = sequence->ahead.find(token.index);
    const bool delivered = token.index >= 0 && token.index < next;
    if (token.index < 0 || token.index >= sequence->submit.max_tokens) {
      event = Event::kOtherToken;
    } else if (delivered || waiting != sequence->ahead.end()) {
      const TokenId known = delivered
                                ? sequence->submit.emitted[static_cast<std::size_t>(token.index)]
                                : waiting->second.token;
      event = known == token.token ? Event::kTokenAgain : Event::kOtherToken;
    } else if (token.index > next) {
      event = Event::kTokenAhead;
    } else if (token.finish != message::FinishReason::kNone) {
      event = Event::kLastToken;
    }
  }
  count_cell(token.key, &from, event);
}

#endif

}  // namespace baton::router
