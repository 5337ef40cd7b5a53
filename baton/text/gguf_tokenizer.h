// The tokenizer's part of a GGUF file's metadata. Start-up, one thread.
#pragma once

#include "baton/base/result.h"
#include "baton/files/gguf.h"
#include "baton/text/tokenizer.h"

#include <string>

namespace baton::text {

// Errors: kInvalidArgument (a key is missing, of another kind or out of range; named).
Result<TokenizerDescription> describe_tokenizer(const files::GgufFile& file);

// describe_tokenizer, then Tokenizer::create; a message says which file.
Result<Tokenizer> load_gguf_tokenizer(const files::GgufFile& file);

// tokenizer.chat_template; empty when the file has none (a base model).
Result<std::string> chat_template_source(const files::GgufFile& file);

}  // namespace baton::text
