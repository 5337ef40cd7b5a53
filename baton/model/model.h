// What a model is, as data: sizes, which tensor is which weight, how positions are encoded. One
// file per family (llama.cpp, qwen3.cpp, gemma3.cpp) fills a ModelDescription from GGUF metadata;
// backends read it and never look at names or keys. No math here. Thread: any.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/files/gguf.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace baton::model {

// Which two elements of a head are turned together.
enum class RopeKind : std::uint8_t {
  kAdjacent,  // (2i, 2i + 1): Llama files, whose Q and K rows are permuted for it
  kHalves,    // (i, i + head_dim / 2): Qwen3, Gemma 3
};

struct RopeConfig {
  RopeKind kind = RopeKind::kAdjacent;
  double base = 10000.0;
  double linear_factor = 1.0;  // positions are divided by it
  // Divisor of each pair's frequency, [head_dim / 2]; empty = all 1 (Llama 3's rope_freqs.weight).
  std::vector<float> frequency_divisors;
};

// Of the feed-forward gate.
enum class Activation : std::uint8_t { kSilu, kGelu };

struct ModelConfig {
  std::string architecture;  // "llama", "qwen3", "gemma3"
  std::int32_t layers = 0;
  std::int32_t dim = 0;
  std::int32_t ffn_dim = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;  // divides heads
  std::int32_t head_dim = 0;  // even
  std::int32_t vocabulary = 0;
  std::int32_t context_tokens = 0;
  float rms_eps = 0.0F;
  RopeConfig rope;         // of layers that see everything
  RopeConfig window_rope;  // of window layers
  // In a window layer a query at p sees (p - window_tokens, p]. 0 = there are none.
  std::int32_t window_tokens = 0;
  std::vector<bool> window_layers;  // [layers], or empty: none
  float embedding_scale = 1.0F;     // embeddings are multiplied by it
  float attention_scale = 1.0F;     // of scores, usually 1 / sqrt(head_dim)
  float attention_soft_cap = 0.0F;  // scaled scores become cap * tanh(score / cap); 0 = no cap
  Activation activation = Activation::kSilu;
  bool qk_norm = false;             // RMS norm of each Q and K head before rope
  bool post_norms = false;          // RMS norm of what attention and feed-forward add
  bool tied_output = false;         // no output.weight: the embedding is the output matrix
  std::vector<TokenId> end_tokens;  // ascending

  [[nodiscard]] bool is_window_layer(std::size_t layer) const {
    return !window_layers.empty() && window_layers[layer];
  }
};

// A tensor of the file by its index in GgufFile::tensors(). Matrices are [rows][columns] with
// rows = outputs; vectors have rows = 1.
struct TensorRef {
  std::size_t index = 0;
  std::string name;
  files::TensorType type = files::TensorType::kF32;
  std::int32_t rows = 0;
  std::int32_t columns = 0;
};

struct LayerWeights {
  TensorRef attn_norm;                           // [dim], F32
  TensorRef attn_q;                              // [heads * head_dim][dim]
  TensorRef attn_k;                              // [kv_heads * head_dim][dim]
  TensorRef attn_v;                              // [kv_heads * head_dim][dim]
  TensorRef attn_output;                         // [dim][heads * head_dim]
  std::optional<TensorRef> attn_q_norm;          // [head_dim], F32; with qk_norm
  std::optional<TensorRef> attn_k_norm;          // [head_dim], F32; with qk_norm
  std::optional<TensorRef> post_attention_norm;  // [dim], F32; with post_norms
  TensorRef ffn_norm;                            // [dim], F32
  TensorRef ffn_gate;                            // [ffn_dim][dim]
  TensorRef ffn_up;                              // [ffn_dim][dim]
  TensorRef ffn_down;                            // [dim][ffn_dim]
  std::optional<TensorRef> post_ffn_norm;        // [dim], F32; with post_norms
};

struct ModelDescription {
  ModelConfig config;
  TensorRef token_embedding;  // [vocabulary][dim]
  TensorRef output_norm;      // [dim], F32
  TensorRef output;           // [vocabulary][dim]; the embedding itself when tied_output
  std::vector<LayerWeights> layers;
};

// Errors: kUnsupported (architecture, rope scaling or a tensor that the family does not know:
// named), kInvalidArgument (a key or shape that cannot be: file, key or tensor, wanted and found).
Result<ModelDescription> describe_model(const files::GgufFile& file);

}  // namespace baton::model
