#include "baton/model/llama.h"

#include <fmt/format.h>

namespace baton::model {

namespace {

// Llama 3's long-context frequencies: one divisor for each pair of a head.
Status read_frequency_divisors(Reader& reader, ModelConfig& config) {
  constexpr std::string_view kName = "rope_freqs.weight";
  if (!reader.has_tensor(kName)) {
    return {};
  }
  BATON_TRY(const TensorRef divisors, reader.vector_f32(std::string(kName), config.head_dim / 2));
  config.rope.frequency_divisors = reader.floats(divisors);
  for (const float divisor : config.rope.frequency_divisors) {
    if (!(divisor > 0.0F)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: tensor '{}' holds {}, values above 0 are needed",
                              reader.file().path(), kName, divisor),
                  reader.file().path());
    }
  }
  return {};
}

}  // namespace

Result<ModelDescription> describe_llama(const files::GgufFile& file) {
  Reader reader(file, std::string(kLlamaArchitecture));
  BATON_TRY(const std::int64_t experts, file.integer_or(reader.key("expert_count"), 0));
  if (experts != 0) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: key '{}' is {}: mixture-of-experts models are not supported",
                            file.path(), reader.key("expert_count"), experts),
                file.path());
  }
  BATON_TRY(ModelConfig config, read_decoder_config(reader));
  config.rope.kind = RopeKind::kAdjacent;
  BATON_TRY_VOID(read_frequency_divisors(reader, config));
  BATON_TRY(ModelDescription description, read_decoder(reader, std::move(config)));
  BATON_TRY_VOID(reader.all_tensors_used());
  return description;
}

}  // namespace baton::model
