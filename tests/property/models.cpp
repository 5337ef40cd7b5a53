#include "tests/property/models.h"

#include "baton/base/check.h"

#include <fstream>
#include <iterator>
#include <random>

namespace baton::property {

namespace {

using files::GgufBuilder;

constexpr std::int32_t kContextTokens = 2048;

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  BATON_CHECK(file.good(), "{} cannot be read: run from the repository's root", path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// ggml's type numbers.
enum Type : std::uint32_t { kF32 = 0, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8 };

void put(std::string& to, std::uint16_t value) {
  to.push_back(static_cast<char>(value & 0xFF));
  to.push_back(static_cast<char>(value >> 8));
}

// The bits of (1 + random / 1024) * 2^exponent in f16.
std::uint16_t random_half(std::mt19937& random, int exponent) {
  return static_cast<std::uint16_t>(((15 + exponent) << 10) | static_cast<int>(random() & 1023));
}

// Weights of about unit gain: quants are uniform, scales follow from their spread.
std::string random_blocks(std::mt19937& random, Type type, std::uint64_t values) {
  std::string bytes;
  for (std::uint64_t block = 0; block < values / 32; ++block) {
    if (type == kQ8_0) {
      put(bytes, random_half(random, -10));
    } else {
      put(bytes, random_half(random, -6));
    }
    if (type == kQ4_1) {
      put(bytes, static_cast<std::uint16_t>(0x8000 | random_half(random, -3)));  // about -8 d
    }
    for (int i = 0; i < (type == kQ8_0 ? 32 : 16); ++i) {
      bytes.push_back(static_cast<char>(random()));
    }
  }
  return bytes;
}

std::string random_gains(std::mt19937& random, std::uint64_t values) {
  std::string bytes;
  std::normal_distribution<float> gain(1.0F, 0.2F);
  for (std::uint64_t i = 0; i < values; ++i) {
    const float value = gain(random);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

}  // namespace

std::uint64_t TestModel::block_bytes(kv::KvDtype dtype, std::int32_t block_tokens) const {
  kv::KvGroup group;
  group.layers.resize(static_cast<std::size_t>(layers));
  group.kv_heads = kv_heads;
  group.head_dim = head_dim;
  group.dtype = dtype;
  return kv::KvLayout{{group}, block_tokens}.block_bytes(0);
}

TestModel qwen3_model() {
  std::string bytes = read_file("tests/fixtures/model/qwen3_tiny.gguf");
  const std::string key = "qwen3.context_length";
  const std::size_t at = bytes.find(key);
  BATON_CHECK(at != std::string::npos, "the fixture has no {}", key);
  const std::size_t value = at + key.size() + sizeof(std::uint32_t);  // after its type
  for (std::size_t i = 0; i < 4; ++i) {
    bytes[value + i] = static_cast<char>((kContextTokens >> (8 * i)) & 0xFF);
  }
  return {"qwen3", std::make_unique<files::TemporaryFile>(bytes), 2, 2, 32, 256, kContextTokens};
}

TestModel gemma3_model() {
  return {
      "gemma3",
      std::make_unique<files::TemporaryFile>(read_file("tests/fixtures/model/gemma3_tiny.gguf")),
      6,
      1,
      32,
      256,
      kContextTokens};
}

TestModel odd_llama_model() {
  constexpr std::uint32_t kLayers = 2;
  constexpr std::uint64_t kDim = 96;
  constexpr std::uint64_t kFfn = 160;
  constexpr std::uint64_t kKv = 48;  // 2 heads of 24
  constexpr std::uint64_t kVocabulary = 259;
  std::mt19937 random(11);
  GgufBuilder file;
  file.string("general.architecture", "llama");
  file.u32("llama.block_count", kLayers);
  file.u32("llama.context_length", kContextTokens);
  file.u32("llama.embedding_length", kDim);
  file.u32("llama.feed_forward_length", kFfn);
  file.u32("llama.attention.head_count", 4);
  file.u32("llama.attention.head_count_kv", 2);
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  file.f32("llama.rope.freq_base", 10000.0F);
  file.u32("tokenizer.ggml.eos_token_id", 258);
  const auto matrix = [&](const std::string& name, Type type, std::uint64_t rows,
                          std::uint64_t columns) {
    file.tensor(name + ".weight", type, {columns, rows},
                random_blocks(random, type, rows * columns));
  };
  const auto norm = [&](const std::string& name) {
    file.tensor(name + ".weight", kF32, {kDim}, random_gains(random, kDim));
  };
  matrix("token_embd", kQ8_0, kVocabulary, kDim);  // tied
  norm("output_norm");
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    const std::string in = "blk." + std::to_string(layer) + ".";
    norm(in + "attn_norm");
    norm(in + "ffn_norm");
    matrix(in + "attn_q", kQ4_1, kDim, kDim);
    matrix(in + "attn_k", kQ4_0, kKv, kDim);
    matrix(in + "attn_v", kQ8_0, kKv, kDim);
    matrix(in + "attn_output", kQ4_0, kDim, kDim);
    matrix(in + "ffn_gate", kQ4_1, kFfn, kDim);
    matrix(in + "ffn_up", kQ4_0, kFfn, kDim);
    matrix(in + "ffn_down", kQ4_1, kDim, kFfn);
  }
  return {"odd-llama",
          std::make_unique<files::TemporaryFile>(file.build()),
          2,
          2,
          24,
          static_cast<std::int32_t>(kVocabulary),
          kContextTokens};
}

}  // namespace baton::property
