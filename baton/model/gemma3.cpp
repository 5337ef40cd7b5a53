#include "baton/model/gemma3.h"

#include <fmt/format.h>

#include <cmath>

namespace baton::model {

namespace {

// What files of today leave out because it is the same in all sizes.
constexpr std::int32_t kWindowPattern = 6;   // the last layer of each six sees everything
constexpr double kWindowRopeBase = 10000.0;  // rope_local_base_freq
constexpr std::int32_t kLayersOf27B = 62;    // the one size whose query scale is another
constexpr std::int64_t kMaxWindow = 1 << 26;

Status read_windows(const Reader& reader, ModelConfig& config) {
  BATON_TRY(config.window_tokens, reader.positive("attention.sliding_window", kMaxWindow));
  BATON_TRY(const std::int32_t pattern,
            reader.positive_or("attention.sliding_window_pattern", kMaxWindow, kWindowPattern));
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    config.window_layers.push_back((layer + 1) % pattern != 0);
  }
  // Scaling for long contexts is for the layers that see them.
  config.window_rope = {RopeKind::kHalves, kWindowRopeBase, 1.0, {}};
  BATON_TRY(config.window_rope.base,
            reader.positive_number_or("rope.freq_base_swa", kWindowRopeBase));
  return {};
}

Status read_scales(const Reader& reader, ModelConfig& config) {
  config.embedding_scale = std::sqrt(static_cast<float>(config.dim));
  if (config.layers == kLayersOf27B) {
    config.attention_scale =
        1.0F / std::sqrt(static_cast<float>(config.dim) / static_cast<float>(config.heads));
  }
  BATON_TRY(const double scale,
            reader.positive_number_or("attention.scale", config.attention_scale));
  config.attention_scale = static_cast<float>(scale);
  if (reader.file().has(reader.key("attn_logit_softcapping"))) {
    BATON_TRY(const double cap, reader.positive_number("attn_logit_softcapping"));
    config.attention_soft_cap = static_cast<float>(cap);
  }
  const std::string final_cap = reader.key("final_logit_softcapping");
  if (reader.file().has(final_cap)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: key '{}': a soft cap of the logits is not supported",
                            reader.file().path(), final_cap),
                reader.file().path());
  }
  return {};
}

}  // namespace

Result<ModelDescription> describe_gemma3(const files::GgufFile& file) {
  Reader reader(file, std::string(kGemma3Architecture));
  BATON_TRY(ModelConfig config, read_decoder_config(reader));
  config.rope.kind = RopeKind::kHalves;
  config.activation = Activation::kGelu;
  config.qk_norm = true;
  config.post_norms = true;
  BATON_TRY_VOID(read_windows(reader, config));
  BATON_TRY_VOID(read_scales(reader, config));
  BATON_TRY(ModelDescription description, read_decoder(reader, std::move(config)));
  BATON_TRY_VOID(reader.all_tensors_used());
  return description;
}

}  // namespace baton::model
