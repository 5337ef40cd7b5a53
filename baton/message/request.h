// What router and api see of generation: a request goes in, token events come out. Values only,
// moved from station to station; no back pointers.
#pragma once

#include "baton/base/error.h"
#include "baton/base/ids.h"
#include "baton/sample/params.h"

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace baton::message {

// Separates prefix caches: H(secret, API key, cache_salt), computed by the owner.
using Namespace = std::array<std::uint8_t, 16>;

// One sequence to run: the whole state is (request, emitted). `emitted` is empty at first; a replay
// carries what the client already has, and the answer goes on at index emitted.size().
struct Submit {
  SequenceKey key;
  std::vector<TokenId> prompt;   // >= 1 token
  std::vector<TokenId> emitted;  // tokens at indices 0 .. emitted.size() - 1
  sample::SamplingParams sampling;
  std::int32_t max_tokens = 0;          // resolved by the owner; counts emitted ones too; >= 1
  std::int32_t min_tokens = 0;          // EOS and stop ids are barred before that index
  std::vector<TokenId> stop_token_ids;  // besides the model's own end tokens
  bool ignore_eos = false;
  Namespace cache_namespace{};
  std::int32_t priority = 0;  // lower runs first
};

enum class FinishReason : std::uint8_t { kNone, kStop, kLength, kAborted, kError };

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0F;
  bool operator==(const TokenLogprob&) const = default;
};

// Token `index` of a sequence. finish != kNone marks the last one; an end token is reported as a
// token event too (finish = kStop) and counts in completion_tokens, its text is not shown.
struct Token {
  SequenceKey key;
  std::int32_t index = 0;  // from 0; the prefill node makes index 0
  TokenId token = 0;
  float logprob = 0.0F;           // log-softmax of the raw logits; always filled
  std::vector<TokenLogprob> top;  // top_logprobs entries, by logprob descending, id ascending
  FinishReason finish = FinishReason::kNone;
  std::int32_t cached_tokens = 0;  // prompt tokens not computed thanks to a prefix cache
  std::uint64_t kv_bytes = 0;      // KV payload bytes received for this sequence by handoff
};

// The end of a sequence without a token: abort, or a failure after it was accepted.
struct Finished {
  SequenceKey key;
  FinishReason reason = FinishReason::kAborted;
  Error error;  // set when reason is kError
};

// A sequence that was not accepted. `later`: another node, or the same one later, may take it.
struct Refused {
  SequenceKey key;
  bool later = false;
  Error error;
};

struct Abort {
  SequenceKey key;  // choice may be kAllChoices; epochs up to key.epoch are aborted
  Error reason;
};

}  // namespace baton::message
