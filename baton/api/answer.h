// Token events in, OpenAI JSON out: one Answer per request, holding a small state machine per
// choice (detokenizer, stop strings, usage). Streamed and whole answers come from the same state,
// so they carry the same tokens, text, logprobs, finish reasons and usage. Pure; one thread at a
// time.
//
// What counts, in every mode: every token id up to the end, the end token (EOS, stop id; its text
// is not shown) and the token that completed a stop string included; overrun tokens appear nowhere.
#pragma once

#include "baton/api/request.h"
#include "baton/api/resume.h"
#include "baton/message/request.h"
#include "baton/text/stream_decoder.h"
#include "baton/text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace baton::api {

class JsonWriter;

// The `baton` object of a response: where it ran.
struct Served {
  std::string prefill_node;
  std::string decode_node;
  bool split = false;              // path: "split" or "local"
  std::uint64_t kv_bytes = 0;      // received by handoff, all choices so far
  std::string exactness_tag = {};  // of these nodes; not shown
};

struct AnswerOptions {
  Endpoint endpoint = Endpoint::kChat;
  EventId event_id;  // names the answer; its `events` are those that the client has already
  std::string model;
  std::uint32_t n = 1;
  bool stream = false;
  bool include_usage = false;
  bool logprobs = false;
  std::int32_t top_logprobs = 0;
  bool return_token_ids = false;
  std::int64_t prompt_tokens = 0;
  std::vector<TokenId> prompt_token_ids;  // only when return_token_ids
};
AnswerOptions answer_options(const GenerationRequest& request, EventId event_id, std::string model,
                             std::vector<TokenId> prompt);

class Answer {
 public:
  // The tokenizer must outlive it.
  Answer(AnswerOptions options, const text::Tokenizer& tokenizer,
         std::shared_ptr<const text::StopStrings> stop);

  struct Step {
    std::string sse;  // stream: bytes to write now, framed, may be empty; [DONE] when complete,
                      // unless past_end()
    bool stopped = false;   // a stop string matched in this token's choice: tell the router
    bool complete = false;  // every choice has ended
  };
  // Token events come in index order per choice. Those after the choice's end are ignored.
  Step on_token(const message::Token& token, const Served& served);

  // The whole body; stream = false and complete.
  [[nodiscard]] std::string body() const;
  [[nodiscard]] bool started() const { return started_; }
  [[nodiscard]] bool complete() const { return open_choices_ == 0; }
  // Complete, and the client claims to have events that there never were: see past_the_end().
  [[nodiscard]] bool past_end() const;
  [[nodiscard]] std::int64_t completion_tokens() const;
  [[nodiscard]] std::int64_t cached_tokens() const { return cached_tokens_; }

 private:
  struct Emitted {  // one token that the client is told of
    TokenId token = 0;
    float logprob = 0.0F;
    std::vector<message::TokenLogprob> top;
    std::size_t text_offset = 0;  // code points of the choice's text before it (legacy logprobs)
  };
  struct ChoiceState {
    text::StreamDecoder decoder;
    std::string text;             // whole answer; stays empty in a stream
    std::vector<Emitted> tokens;  // whole answer; in a stream the not yet sent ones
    std::int64_t count = 0;
    std::uint32_t events = 0;      // of a stream, made so far; sent or not
    std::size_t text_points = 0;   // code points of the detokenized text so far
    bool opened = false;           // its first chunk is out
    const char* finish = nullptr;  // "stop", "length", ...; null = goes on
  };
  struct Chunk {
    bool first;  // of its choice
    std::string_view text;
    std::vector<Emitted> tokens;
    const char* finish;
  };

  [[nodiscard]] std::uint64_t kv_bytes() const;
  void write_head(JsonWriter& json) const;
  void write_usage(JsonWriter& json) const;
  void write_origin(JsonWriter& json) const;
  void write_prompt_ids(JsonWriter& json) const;
  void write_choice_tail(JsonWriter& json, const std::vector<Emitted>& tokens,
                         const char* finish) const;
  void write_chat_logprobs(JsonWriter& json, const std::vector<Emitted>& tokens) const;
  void write_legacy_logprobs(JsonWriter& json, const std::vector<Emitted>& tokens) const;
  void write_legacy_top(JsonWriter& json, const Emitted& emitted) const;
  bool count_event(std::size_t index);
  void append_event(std::string& sse, std::string_view data) const;
  void append_chunks(std::string& sse, std::size_t index, std::string_view text);
  void append_chunk(std::string& sse, std::size_t index, const Chunk& chunk);
  void append_usage_chunk(std::string& sse);

  AnswerOptions options_;
  const text::Tokenizer* tokenizer_;
  std::vector<ChoiceState> choices_;
  Served served_;
  std::vector<std::uint64_t> kv_bytes_;  // by choice
  std::size_t open_choices_ = 0;
  std::int64_t cached_tokens_ = 0;
  std::string id_;                         // "chatcmpl-..." / "cmpl-..."
  std::string event_id_stem_;              // from the first token on
  std::vector<std::uint32_t> events_out_;  // by choice: events that the client has
  bool started_ = false;
};

}  // namespace baton::api
