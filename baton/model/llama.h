// The Llama family: Llama 2 and 3, SmolLM2 and whatever else llama.cpp's converter calls "llama"
// without experts or biases. Rope turns adjacent elements, since the converter permutes Q and K.
#pragma once

#include "baton/model/model.h"
#include "baton/model/reader.h"

namespace baton::model {

inline constexpr std::string_view kLlamaArchitecture = "llama";
Result<ModelDescription> describe_llama(const files::GgufFile& file);

}  // namespace baton::model
