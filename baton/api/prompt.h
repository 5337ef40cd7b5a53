// From a checked request to what the router starts: the prompt's token ids and one Submit per
// choice. Pure; any thread; may take long for a long prompt (text pool).
#pragma once

#include "baton/api/request.h"
#include "baton/base/result.h"
#include "baton/message/request.h"
#include "baton/text/chat_template.h"
#include "baton/text/tokenizer.h"

#include <vector>

namespace baton::api {

// Chat: through the template; text: encoded; ids: as they are. `chat_template` may be null (a base
// model): chat is then refused. Errors: kInvalidArgument (empty prompt, template refused the
// messages), kUnsupported (no template), kContextTooLong (text of so many bytes that no tokenizing
// could fit it into context_tokens; the exact check is make_submits').
Result<std::vector<TokenId>> prompt_tokens(const GenerationRequest& request,
                                           const text::Tokenizer& tokenizer,
                                           const text::ChatTemplate* chat_template,
                                           std::int32_t context_tokens);

// One Submit per choice, key.choice 0..n-1, epoch 0. A missing max_tokens becomes what is left of
// `context_tokens`. `seed` is the resolved one. Errors: kContextTooLong (param "messages",
// "prompt", or "max_tokens"; says need and limit).
Result<std::vector<message::Submit>> make_submits(const GenerationRequest& request, RequestId id,
                                                  std::vector<TokenId> prompt, std::int64_t seed,
                                                  std::int32_t context_tokens,
                                                  const message::Namespace& cache_namespace);

}  // namespace baton::api
