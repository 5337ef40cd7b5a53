// See chat_template.h.
#include "baton/text/chat_template.h"

#include "baton/text/template/interpreter.h"
#include "baton/text/template/parser.h"
#include "baton/text/utf8.h"

#include <fmt/format.h>

#include <utility>

namespace baton::text {

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("chat template: {} bytes, at most {} are allowed", source.size(),
                            kMaxTemplateBytes),
                "chat_template");
  }
  if (!is_valid_utf8(source)) {
    return fail(ErrorCode::kInvalidArgument, "chat template: not valid UTF-8", "chat_template");
  }
  BATON_TRY(jinja::Program program, jinja::parse_program(source));
  return ChatTemplate(std::make_shared<const jinja::Program>(std::move(program)));
}

Result<std::vector<Piece>> ChatTemplate::render(const TemplateInput& input,
                                                const TemplateLimits& limits) const {
  Dict variables;
  variables.set("messages", input.messages);
  variables.set("add_generation_prompt", Value::boolean(input.add_generation_prompt));
  variables.set("bos_token", Value::trusted_string(input.bos_token));
  variables.set("eos_token", Value::trusted_string(input.eos_token));
  for (const auto& [name, value] : input.extra.entries()) {
    variables.set(name, value);
  }
  jinja::Interpreter interpreter(limits);
  BATON_TRY(const Text text, interpreter.run(*program_, variables));
  return text.pieces();
}

std::string joined(const std::vector<Piece>& pieces) {
  std::string out;
  for (const Piece& piece : pieces) {
    out += piece.text;
  }
  return out;
}

}  // namespace baton::text
