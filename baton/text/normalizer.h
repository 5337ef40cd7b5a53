// Unicode NFC, which some tokenizers (Qwen) apply before cutting into words. Any thread.
#pragma once

#include <string>
#include <string_view>

namespace baton::text {

// `text` must be valid UTF-8. Time O(n log n).
std::string to_nfc(std::string_view text);

}  // namespace baton::text
