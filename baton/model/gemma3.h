// Gemma 3, text only: norms before and after attention and feed-forward, a norm per Q and K head,
// GELU, embeddings scaled by sqrt(dim), and layers of two kinds: most see a window of the last
// tokens and turn with a low rope base, every sixth sees everything. The converter has added 1 to
// the norms' weights already.
#pragma once

#include "baton/model/model.h"
#include "baton/model/reader.h"

namespace baton::model {

inline constexpr std::string_view kGemma3Architecture = "gemma3";
Result<ModelDescription> describe_gemma3(const files::GgufFile& file);

}  // namespace baton::model
