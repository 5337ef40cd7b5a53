// Drives a Backend in tests: sequences with block tables of their own, prompts in chunks of any
// size, logits back. Test code only.
#pragma once

#include "baton/backend/cpu/cpu_backend.h"

#include <gtest/gtest.h>

#include "tests/support/model_files.h"
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace baton::backend {

// The shipped test model; tests that need it fail without it.
inline std::string test_model_path() {
  std::string path = testing::test_model_path();
  EXPECT_TRUE(std::filesystem::exists(path))
      << path << " is missing: run scripts/test, which fetches it, or set BATON_TEST_MODEL";
  return path;
}

inline std::vector<TokenId> random_tokens(std::size_t count, unsigned seed,
                                          TokenId vocabulary = 49152) {
  std::mt19937 random(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random() % static_cast<unsigned>(vocabulary));
  }
  return tokens;
}

class Runner {
 public:
  // A small pool, so that tests stay light; options may be changed before.
  static CpuBackendOptions options(const std::string& model_path) {
    CpuBackendOptions options;
    options.model_path = model_path;
    options.threads = 2;
    options.max_context_tokens = 0;
    options.kv_memory_bytes = 128ULL << 20;
    return options;
  }
  explicit Runner(const CpuBackendOptions& options) {
    auto made = make_cpu_backend(options);
    if (!made) {
      ADD_FAILURE() << made.error().message;
      std::abort();
    }
    backend_ = std::move(*made);
    greedy_.temperature = 0.0F;
    for (const std::uint32_t blocks : backend_->info().group_blocks) {
      std::vector<kv::BlockId>& free = free_.emplace_back();
      for (std::uint32_t block = 0; block < blocks; ++block) {
        free.push_back({blocks - 1 - block});
      }
    }
  }

  struct Sequence {
    std::vector<TokenId> tokens;
    std::vector<std::vector<kv::BlockId>> tables;  // [group], whole sequences
    std::vector<std::vector<kv::BlockId>> seen;    // what the part last planned may see
    std::size_t done = 0;
  };

  Sequence start(std::vector<TokenId> tokens) {
    Sequence sequence{std::move(tokens), {}, {}, 0};
    const auto blocks = static_cast<std::size_t>(
        backend_->info().layout.blocks_for(static_cast<std::int64_t>(sequence.tokens.size())));
    for (std::vector<kv::BlockId>& free : free_) {
      std::vector<kv::BlockId>& table = sequence.tables.emplace_back();
      for (std::size_t block = 0; block < blocks; ++block) {
        table.push_back(free.back());
        free.pop_back();
      }
    }
    return sequence;
  }
  // Freed blocks are filled with NaN (all ones), as debug builds do.
  void finish(Sequence& sequence) {
    for (std::size_t group = 0; group < free_.size(); ++group) {
      for (const kv::BlockId block : sequence.tables[group]) {
        std::ranges::fill(backend_->block_bytes(group, block), std::byte{0xFF});
        free_[group].push_back(block);
      }
    }
    sequence.tables.clear();
  }
  void poison_free_blocks() {
    for (std::size_t group = 0; group < free_.size(); ++group) {
      for (const kv::BlockId block : free_[group]) {
        std::ranges::fill(backend_->block_bytes(group, block), std::byte{0xFF});
      }
    }
  }

  // The next `count` tokens of a sequence, as its share of a plan; logits when they are the last.
  SequencePlan part(Sequence& sequence, std::size_t count) {
    SequencePlan part;
    count = std::min(count, sequence.tokens.size() - sequence.done);
    part.tokens = std::span(sequence.tokens).subspan(sequence.done, count);
    part.start = static_cast<std::int32_t>(sequence.done);
    // What no query of this part can see is not there.
    sequence.seen = sequence.tables;
    for (std::size_t group = 0; group < free_.size(); ++group) {
      const kv::KvLayout& layout = backend_->info().layout;
      const auto hidden = static_cast<std::ptrdiff_t>(
          layout.groups[group].first_visible(part.start) / layout.block_tokens);
      std::fill_n(sequence.seen[group].begin(), hidden, kv::kNoBlock);
    }
    part.tables.assign(sequence.seen.begin(), sequence.seen.end());
    sequence.done += count;
    part.logit_rows = sequence.done == sequence.tokens.size() ? 1 : 0;
    part.sampling = &greedy_;
    part.prompt = sequence.tokens;
    part.keep_logits = true;
    return part;
  }
  StepResult step(const StepPlan& plan) { return backend_->collect(backend_->launch(plan)); }

  // The logits of the last position of `tokens`, the prompt cut into these chunks (the last one
  // repeats).
  std::vector<float> logits(const std::vector<TokenId>& tokens, std::vector<std::size_t> chunks) {
    Sequence sequence = start(tokens);
    std::vector<float> result;
    for (std::size_t chunk = 0; sequence.done < tokens.size(); ++chunk) {
      StepPlan plan;
      plan.sequences.push_back(part(sequence, chunks[std::min(chunk, chunks.size() - 1)]));
      StepResult stepped = step(plan);
      if (!stepped.tokens.empty()) {
        result = std::move(stepped.tokens[0].logits);
      }
    }
    finish(sequence);
    return result;
  }

  Backend& backend() { return *backend_; }

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<std::vector<kv::BlockId>> free_;  // [group]
  sample::SamplingParams greedy_;
};

// FNV-1a over the logits' bytes.
inline std::uint64_t hash_bits(const std::vector<float>& logits) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const float logit : logits) {
    const auto bits = std::bit_cast<std::uint32_t>(logit);
    for (int byte = 0; byte < 4; ++byte) {
      hash = (hash ^ ((bits >> (8 * byte)) & 0xFF)) * 0x100000001B3ULL;
    }
  }
  return hash;
}

inline ::testing::AssertionResult same_bits(const std::vector<float>& a,
                                            const std::vector<float>& b) {
  if (a.empty() || a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " logits";
  }
  std::size_t different = 0;
  float largest = 0.0F;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) {
      ++different;
      largest = std::max(largest, std::abs(a[i] - b[i]));
    }
  }
  if (different == 0) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << different << " of " << a.size() << " logits differ, by up to " << largest;
}

}  // namespace baton::backend
