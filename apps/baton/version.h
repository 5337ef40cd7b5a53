#pragma once

namespace baton::app {
inline constexpr const char* kVersion = "0.1.0";
}  // namespace baton::app
