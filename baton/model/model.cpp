// The list of families: adding one is a file, a line here and a test.
#include "baton/model/model.h"

#include "baton/model/gemma3.h"
#include "baton/model/llama.h"
#include "baton/model/qwen3.h"

#include <fmt/format.h>

namespace baton::model {

Result<ModelDescription> describe_model(const files::GgufFile& file) {
  BATON_TRY(const std::string_view architecture, file.string("general.architecture"));
  if (architecture == kLlamaArchitecture) {
    return describe_llama(file);
  }
  if (architecture == kQwen3Architecture) {
    return describe_qwen3(file);
  }
  if (architecture == kGemma3Architecture) {
    return describe_gemma3(file);
  }
  return fail(
      ErrorCode::kUnsupported,
      fmt::format("{}: architecture '{}' is not supported; '{}', '{}' and '{}' are", file.path(),
                  architecture, kLlamaArchitecture, kQwen3Architecture, kGemma3Architecture),
      file.path());
}

}  // namespace baton::model
