#include "baton/api/answer.h"

#include "baton/api/json_writer.h"
#include "baton/http/message.h"
#include "baton/text/utf8.h"

#include <algorithm>

namespace baton::api {

namespace {

const char* finish_name(message::FinishReason reason) {
  switch (reason) {
    case message::FinishReason::kNone:
      return nullptr;
    case message::FinishReason::kStop:
      return "stop";
    case message::FinishReason::kLength:
      return "length";
    case message::FinishReason::kAborted:
      return "abort";
    case message::FinishReason::kError:
      return "error";
  }
  return "error";
}

}  // namespace

AnswerOptions answer_options(const GenerationRequest& request, EventId event_id, std::string model,
                             std::vector<TokenId> prompt) {
  AnswerOptions options;
  options.endpoint = request.endpoint;
  options.event_id = std::move(event_id);
  options.model = std::move(model);
  options.n = request.n;
  options.stream = request.stream;
  options.include_usage = request.include_usage;
  options.logprobs = request.logprobs;
  options.top_logprobs = std::max(0, request.sampling.top_logprobs);
  options.return_token_ids = request.return_token_ids;
  options.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  if (request.return_token_ids) {
    options.prompt_token_ids = std::move(prompt);
  }
  return options;
}

Answer::Answer(AnswerOptions options, const text::Tokenizer& tokenizer,
               std::shared_ptr<const text::StopStrings> stop)
    : options_(std::move(options)), tokenizer_(&tokenizer) {
  choices_.reserve(options_.n);
  for (std::uint32_t choice = 0; choice < options_.n; ++choice) {
    choices_.push_back(
        ChoiceState{text::StreamDecoder(tokenizer, stop), {}, {}, 0, 0, 0, false, nullptr});
  }
  kv_bytes_.resize(options_.n);
  open_choices_ = options_.n;
  id_ = (options_.endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-") +
        to_string(options_.event_id.answer);
  events_out_ = options_.event_id.events;
  events_out_.resize(options_.n);
}

Answer::Step Answer::on_token(const message::Token& token, const Served& served) {
  Step step;
  const std::size_t index = token.key.choice.value;
  if (index >= choices_.size() || choices_[index].finish != nullptr) {
    return step;  // overrun: appears nowhere
  }
  ChoiceState& choice = choices_[index];
  if (!started_ && options_.stream) {
    options_.event_id.nodes_digest = nodes_digest(served.exactness_tag);
    event_id_stem_ = event_id_stem(options_.event_id);
  }
  started_ = true;
  served_ = served;
  kv_bytes_[index] = std::max(kv_bytes_[index], served.kv_bytes);
  if (index == 0 && token.index == 0) {
    cached_tokens_ = token.cached_tokens;
  }
  ++choice.count;
  choice.tokens.push_back({token.token, token.logprob, token.top, choice.text_points});
  if (options_.logprobs) {
    choice.text_points += text::count_code_points(tokenizer_->token_bytes(token.token));
  }

  text::StreamDecoder::Step decoded;
  if (token.finish != message::FinishReason::kStop) {  // an end token has no text
    decoded = choice.decoder.feed(token.token);
  }
  if (!decoded.stopped && token.finish != message::FinishReason::kNone) {
    text::StreamDecoder::Step rest = choice.decoder.finish();
    decoded.text += rest.text;
    decoded.stopped = rest.stopped;
  }
  choice.finish = decoded.stopped ? "stop" : finish_name(token.finish);
  step.stopped = decoded.stopped && token.finish == message::FinishReason::kNone;
  if (choice.finish != nullptr) {
    --open_choices_;
  }
  step.complete = open_choices_ == 0;
  if (options_.stream) {
    append_chunks(step.sse, index, decoded.text);
  } else {
    choice.text += decoded.text;
  }
  return step;
}

std::int64_t Answer::completion_tokens() const {
  std::int64_t sum = 0;
  for (const ChoiceState& choice : choices_) {
    sum += choice.count;
  }
  return sum;
}

std::uint64_t Answer::kv_bytes() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t bytes : kv_bytes_) {
    sum += bytes;
  }
  return sum;
}

bool Answer::past_end() const {
  if (!complete()) {
    return false;
  }
  for (std::size_t index = 0; index < choices_.size(); ++index) {
    if (options_.stream && choices_[index].events < events_out_[index]) {
      return true;
    }
  }
  return false;
}

// ---- a stream ----

// One more event of the choice. False: the client has it already.
bool Answer::count_event(std::size_t index) {
  const std::uint32_t made = ++choices_[index].events;
  if (made <= events_out_[index]) {
    return false;
  }
  events_out_[index] = made;
  return true;
}

void Answer::append_event(std::string& sse, std::string_view data) const {
  std::string id = event_id_stem_;
  append_events_out(id, events_out_);
  http::append_event(sse, data, {}, id);
}

void Answer::append_chunk(std::string& sse, std::size_t index, const Chunk& chunk) {
  if (!count_event(index)) {
    return;
  }
  const bool chat = options_.endpoint == Endpoint::kChat;
  std::string data;
  JsonWriter json(data);
  json.begin_object();
  write_head(json);
  json.key("choices").begin_array().begin_object();
  json.key("index").integer(static_cast<std::int64_t>(index));
  if (chat) {
    json.key("delta").begin_object();
    if (chunk.first) {
      json.key("role").string("assistant");
    }
    if (chunk.finish == nullptr) {
      json.key("content").string(chunk.text);
    }
    json.end_object();
  } else {
    json.key("text").string(chunk.text);
    if (chunk.first && options_.return_token_ids) {
      write_prompt_ids(json);
    }
  }
  write_choice_tail(json, chunk.tokens, chunk.finish);
  json.end_object().end_array();
  if (chat && chunk.first && options_.return_token_ids) {
    write_prompt_ids(json);
  }
  if (chunk.first || chunk.finish != nullptr) {
    write_origin(json);
  }
  json.end_object();
  append_event(sse, data);
}

// What one token adds to the stream: for chat role, text and end each in a chunk of its own.
void Answer::append_chunks(std::string& sse, std::size_t index, std::string_view text) {
  ChoiceState& choice = choices_[index];
  const bool chat = options_.endpoint == Endpoint::kChat;
  if (chat && !choice.opened) {
    choice.opened = true;
    append_chunk(sse, index, {true, {}, {}, nullptr});
  }
  if (!text.empty() || options_.logprobs || options_.return_token_ids) {
    append_chunk(sse, index, {!choice.opened, text, choice.tokens, nullptr});
    choice.opened = true;
  }
  choice.tokens.clear();
  if (choice.finish != nullptr) {
    append_chunk(sse, index, {!choice.opened, {}, {}, choice.finish});
    choice.opened = true;
  }
  if (open_choices_ == 0) {
    if (options_.include_usage) {
      append_usage_chunk(sse);
    }
    if (!past_end()) {
      http::append_event(sse, "[DONE]");
    }
  }
}

void Answer::append_usage_chunk(std::string& sse) {
  if (!count_event(0)) {
    return;
  }
  std::string data;
  JsonWriter json(data);
  json.begin_object();
  write_head(json);
  json.key("choices").begin_array().end_array();
  write_usage(json);
  write_origin(json);
  json.end_object();
  append_event(sse, data);
}

}  // namespace baton::api
