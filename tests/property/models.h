// The models of the property tests: small, so that hundreds of schedules take a minute, and of
// shapes where a wrong border shows.
#pragma once

#include "baton/files/gguf_builder_for_test.h"
#include "baton/kv/layout.h"

#include <cstdint>
#include <memory>
#include <string>

namespace baton::property {

struct TestModel {
  std::string name;
  std::unique_ptr<files::TemporaryFile> file;
  std::int32_t layers = 0;  // of all groups
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t vocabulary = 0;
  std::int32_t context_tokens = 0;

  [[nodiscard]] std::uint64_t block_bytes(kv::KvDtype dtype, std::int32_t block_tokens) const;
};

// The shipped Qwen3 fixture (f16 weights, qk norms, two blocks of K in 64 and four in 128), its
// context raised from 1024 to 2048 so that a sequence can have three key parts.
TestModel qwen3_model();
// Llama, quantised, odd everywhere: K of 96 and 160 (3 and 5 blocks of 32), heads of 24 elements
// (no multiple of 16 lanes), 259 tokens (no multiple of a panel). Random weights.
TestModel odd_llama_model();
// The shipped Gemma 3 fixture: five layers with a window of 40 tokens (no multiple of a tile), one
// without.
TestModel gemma3_model();

}  // namespace baton::property
