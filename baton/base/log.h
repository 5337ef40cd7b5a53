// Logging: spdlog to stderr. Prompts and answers are never logged. Any thread.
#pragma once

#include <spdlog/spdlog.h>

namespace baton::log {
using spdlog::critical;
using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;
}  // namespace baton::log
