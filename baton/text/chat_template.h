// A chat template: parsed once at start-up, rendered per request. The language is Jinja as chat
// templates use it, interpreted here (template/) with Hugging Face's settings (trim_blocks and
// lstrip_blocks on). A construct that is not known is an error that names line and construct,
// never silently wrong text. The result is a list of pieces: only those that the template itself
// wrote may become control ids, so no message can close its turn and speak as another role.
#pragma once

#include "baton/base/result.h"
#include "baton/text/text.h"
#include "baton/text/value.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace baton::text {

namespace jinja {
struct Program;
}

// Bounds of one rendering: a template comes with the model file and may be hostile or looping.
struct TemplateLimits {
  std::int64_t steps = 4'000'000;          // nodes evaluated; a real prompt needs thousands
  std::int64_t work_bytes = 256LL << 20;   // bytes that string operations may build in all
  std::int64_t output_bytes = 32LL << 20;  // far above any context in bytes
  std::int64_t range_items = 100'000;      // per range() call
  int depth = 64;  // macro calls within one another; levels of a list or dict
};
// Bound of the source; published templates are below 64 KiB.
inline constexpr std::size_t kMaxTemplateBytes = 1U << 20;

struct TemplateInput {
  // A list of dicts; usual keys: role, content, name, tool_calls, tool_call_id. Build strings of
  // requests with Value::string (untrusted).
  Value messages;
  bool add_generation_prompt = true;
  std::string bos_token;  // texts of these tokens (Tokenizer::token_text); may be empty
  std::string eos_token;
  // More variables: tools, documents, chat_template_kwargs. A name set here wins.
  Dict extra;
};

class ChatTemplate {
 public:
  // Errors: kUnsupported (a construct baton does not know), kInvalidArgument (bad syntax); the
  // message names the line and the construct.
  static Result<ChatTemplate> parse(std::string_view source);

  // Errors: kInvalidArgument (raise_exception(), a wrong type, a missing value used as text),
  // kUnsupported (a method that baton does not know),
  // kPayloadTooLarge (a limit was reached). The message names the template's line.
  // Thread: any, at the same time.
  [[nodiscard]] Result<std::vector<Piece>> render(const TemplateInput& input,
                                                  const TemplateLimits& limits = {}) const;

 private:
  explicit ChatTemplate(std::shared_ptr<const jinja::Program> program)
      : program_(std::move(program)) {}
  std::shared_ptr<const jinja::Program> program_;
};

// The pieces as one string: what the template wrote, for logs in tests and for /apply-template.
std::string joined(const std::vector<Piece>& pieces);

}  // namespace baton::text
