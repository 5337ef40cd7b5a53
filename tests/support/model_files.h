// Where the model files lie that tests run on. Test code only.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace baton::testing {

// The user's cache folder of baton, which scripts/test and scripts/nightly fill.
inline std::filesystem::path model_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') {
    return std::filesystem::path(cache) / "baton";
  }
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home == nullptr ? "" : home) / ".cache" / "baton";
}

// The shipped model: tests that need it fail without it (scripts/test fetches it).
inline std::string test_model_path() {
  const char* given = std::getenv("BATON_TEST_MODEL");
  return given != nullptr ? given : model_cache() / "SmolLM2-135M-Instruct.Q4_1.gguf";
}

// Gemma 3 270M, 240 MB: tests that need it are skipped without it (scripts/nightly fetches it).
inline std::string gemma_path() {
  const char* given = std::getenv("BATON_TEST_GEMMA");
  return given != nullptr ? given : model_cache() / "gemma-3-270m-q4_k_m.gguf";
}

}  // namespace baton::testing
