// Qwen3 dense: as Llama, with an RMS norm over each Q and K head before rope, rope over halves, and
// a head_dim of its own (attention.key_length).
#pragma once

#include "baton/model/model.h"
#include "baton/model/reader.h"

namespace baton::model {

inline constexpr std::string_view kQwen3Architecture = "qwen3";
Result<ModelDescription> describe_qwen3(const files::GgufFile& file);

}  // namespace baton::model
