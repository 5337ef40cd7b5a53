#include "bench/serving/stream_reader.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <utility>

namespace baton::serving {

namespace {

using Element = simdjson::dom::element;

// A chunk with a prompt's ids in it is some 100 kB; what is longer is no stream of ours.
constexpr std::size_t kMaxLineBytes = std::size_t{64} << 20U;
constexpr std::size_t kShownBytes = 200;

std::string shortened(std::string_view text) {
  return std::string(text.substr(0, kShownBytes)) + (text.size() > kShownBytes ? "..." : "");
}

std::string string_at(Element object, const char* key) {
  std::string_view text;
  return object[key].get_string().get(text) == simdjson::SUCCESS ? std::string(text) : "";
}

void number_at(Element object, const char* key, std::int64_t& out) {
  std::int64_t value = 0;
  if (object[key].get_int64().get(value) == simdjson::SUCCESS) {
    out = value;
  }
}

bool has_text(Element object, const char* key) {
  std::string_view text;
  return object[key].get_string().get(text) == simdjson::SUCCESS && !text.empty();
}

// The `error` object of OpenAI's shape, or llama-server's; its kind is what says most.
std::pair<std::string, std::string> describe_error(Element error) {
  if (!error.is_object()) {
    std::string_view text;
    return {"", error.get_string().get(text) == simdjson::SUCCESS ? std::string(text) : ""};
  }
  std::string kind = string_at(error, "code");
  if (kind.empty()) {
    kind = string_at(error, "type");
  }
  return {kind, string_at(error, "message")};
}

void read_usage(RequestRecord& record, Element usage) {
  number_at(usage, "prompt_tokens", record.prompt_tokens);
  number_at(usage, "completion_tokens", record.usage_output_tokens);
  Element details;
  if (usage["prompt_tokens_details"].get(details) == simdjson::SUCCESS && details.is_object()) {
    number_at(details, "cached_tokens", record.cached_tokens);
  }
}

// Tokens that a choice's chunk brings. Once a server has given ids they alone count: a chunk
// without any is the role or the end.
std::int32_t tokens_of(RequestRecord& record, Element choice, bool keep_ids) {
  simdjson::dom::array ids;
  if (choice["token_ids"].get_array().get(ids) == simdjson::SUCCESS) {
    const auto count = static_cast<std::int32_t>(ids.size());
    record.counted_ids = std::max<std::int64_t>(record.counted_ids, 0) + count;
    for (const Element entry : ids) {
      std::int64_t id = 0;
      if (keep_ids && entry.get_int64().get(id) == simdjson::SUCCESS) {
        record.token_ids.push_back(static_cast<TokenId>(id));
      }
    }
    return count;
  }
  if (record.counted_ids >= 0) {
    return 0;
  }
  Element delta;
  const bool chat = choice["delta"].get(delta) == simdjson::SUCCESS && delta.is_object();
  const bool text = chat ? has_text(delta, "content") || has_text(delta, "reasoning_content") ||
                               has_text(delta, "reasoning")
                         : has_text(choice, "text");
  return text ? 1 : 0;
}

}  // namespace

struct StreamReader::Json {
  simdjson::dom::parser parser;
};

StreamReader::StreamReader(RequestRecord* record, bool keep_ids)
    : record_(record), keep_ids_(keep_ids), json_(std::make_unique<Json>()) {}
StreamReader::~StreamReader() = default;

bool StreamReader::fail_with(std::string kind, std::string message) {
  record_->failure = std::move(kind);
  record_->failure_message = std::move(message);
  over_ = true;
  return false;
}

bool StreamReader::feed(std::string_view bytes, TimePoint at) {
  while (!over_ && !bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    line_.append(bytes.substr(0, end));
    if (line_.size() > kMaxLineBytes) {
      return fail_with("bad_chunk", "a line of the stream has no end");
    }
    if (end == std::string_view::npos) {
      break;
    }
    bytes.remove_prefix(end + 1);
    if (!line_.empty() && line_.back() == '\r') {
      line_.pop_back();
    }
    const std::string line = std::exchange(line_, {});
    if (!on_line(line, at)) {
      return false;
    }
  }
  return !over_;
}

bool StreamReader::on_line(std::string_view line, TimePoint at) {
  constexpr std::string_view kData = "data:";
  if (!line.starts_with(kData)) {
    return true;  // an event's name, an id, a comment, the blank line
  }
  line.remove_prefix(kData.size());
  if (line.starts_with(' ')) {
    line.remove_prefix(1);
  }
  if (line == "[DONE]") {
    record_->whole = true;
    over_ = true;
    return false;
  }
  return line.empty() || on_data(line, at);
}

bool StreamReader::on_data(std::string_view data, TimePoint at) {
  Element chunk;
  if (json_->parser.parse(data.data(), data.size()).get(chunk) != simdjson::SUCCESS ||
      !chunk.is_object()) {
    return fail_with("bad_chunk", fmt::format("not a JSON object: {}", shortened(data)));
  }
  Element part;
  if (chunk["error"].get(part) == simdjson::SUCCESS && !part.is_null()) {
    auto [kind, message] = describe_error(part);
    return fail_with(kind.empty() ? "stream_error" : "stream_error:" + kind, std::move(message));
  }
  simdjson::dom::array choices;
  if (chunk["choices"].get_array().get(choices) == simdjson::SUCCESS) {
    for (const Element choice : choices) {
      const std::int32_t tokens = tokens_of(*record_, choice, keep_ids_);
      if (tokens > 0) {
        record_->arrivals.push_back({at, tokens});
      }
      if (std::string reason = string_at(choice, "finish_reason"); !reason.empty()) {
        record_->finish_reason = std::move(reason);
      }
    }
  }
  if (chunk["usage"].get(part) == simdjson::SUCCESS && part.is_object()) {
    read_usage(*record_, part);
  }
  if (chunk["baton"].get(part) == simdjson::SUCCESS && part.is_object()) {
    record_->path = string_at(part, "path");
    number_at(part, "kv_bytes", record_->kv_bytes);
  }
  return true;
}

void StreamReader::finish(const Error* why) {
  over_ = true;
  if (record_->whole || !record_->ok()) {
    return;
  }
  if (why != nullptr) {
    const bool late = why->code == ErrorCode::kDeadlineExceeded;
    fail_with(late ? "timeout" : "connection_lost", why->message);
  } else {
    fail_with("short_stream", "the answer ended without [DONE]");
  }
}

void fail_by_status(RequestRecord& record, int status, std::string_view body) {
  record.failure = fmt::format("http_{}", status);
  simdjson::dom::parser parser;
  Element page;
  Element error;
  if (parser.parse(body.data(), body.size()).get(page) == simdjson::SUCCESS && page.is_object() &&
      page["error"].get(error) == simdjson::SUCCESS) {
    record.failure_message = describe_error(error).second;
  }
  if (record.failure_message.empty()) {
    record.failure_message = shortened(body);
  }
}

}  // namespace baton::serving
