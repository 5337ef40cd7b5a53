#include "baton/model/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>

namespace baton::model {

namespace {

// Bounds of what can be a real model; they keep every product of two of them inside int64 and every
// single one inside int32.
constexpr std::int64_t kMaxLayers = 1024;
constexpr std::int64_t kMaxDim = 1 << 20;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 1024;
constexpr std::int64_t kMaxVocabulary = 1 << 24;
constexpr std::int64_t kMaxContext = 1 << 26;

// Control tokens that end an answer although no key of the file names them; llama.cpp knows the
// same ones by their text.
constexpr std::array<std::string_view, 8> kEndTexts = {
    "<|im_end|>",    "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>",
    "<end_of_turn>", "<|eom_id|>",    "<|end|>",    "</s>"};
constexpr std::int64_t kControlTokenType = 3;  // llama.cpp's LLAMA_TOKEN_TYPE_CONTROL

tl::unexpected<Error> invalid(const Reader& reader, const std::string& what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", reader.file().path(), what),
              reader.file().path());
}
tl::unexpected<Error> unsupported(const Reader& reader, const std::string& what) {
  return fail(ErrorCode::kUnsupported, fmt::format("{}: {}", reader.file().path(), what),
              reader.file().path());
}

Result<std::vector<TokenId>> read_end_tokens(const Reader& reader, std::int32_t vocabulary) {
  const files::GgufFile& file = reader.file();
  std::set<TokenId> ends;
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id"}) {
    if (!file.has(key)) {
      continue;
    }
    BATON_TRY(const std::int64_t id, file.integer(key));
    if (id < 0 || id >= vocabulary) {
      return invalid(
          reader, fmt::format("key '{}' is {}, the vocabulary has {} tokens", key, id, vocabulary));
    }
    ends.insert(static_cast<TokenId>(id));
  }
  if (file.has("tokenizer.ggml.tokens") && file.has("tokenizer.ggml.token_type")) {
    BATON_TRY(const auto texts, file.strings("tokenizer.ggml.tokens"));
    BATON_TRY(const auto types, file.integers("tokenizer.ggml.token_type"));
    const std::size_t known =
        std::min({texts.size(), types.size(), static_cast<std::size_t>(vocabulary)});
    for (std::size_t id = 0; id < known; ++id) {
      if (types[id] == kControlTokenType &&
          std::ranges::find(kEndTexts, texts[id]) != kEndTexts.end()) {
        ends.insert(static_cast<TokenId>(id));
      }
    }
  }
  return std::vector<TokenId>(ends.begin(), ends.end());
}

Status read_rope(const Reader& reader, ModelConfig& config) {
  BATON_TRY(config.rope.base, reader.positive_number_or("rope.freq_base", 10000.0));
  BATON_TRY(const std::int32_t turned,
            reader.positive_or("rope.dimension_count", kMaxHeadDim, config.head_dim));
  if (turned != config.head_dim) {
    return unsupported(reader,
                       fmt::format("key '{}' is {} with heads of {} elements: rope over a "
                                   "part of a head is not supported",
                                   reader.key("rope.dimension_count"), turned, config.head_dim));
  }
  const std::string type_key = reader.key("rope.scaling.type");
  BATON_TRY(const std::string_view type, reader.file().string_or(type_key, "none"));
  if (type == "linear") {
    BATON_TRY(config.rope.linear_factor, reader.positive_number("rope.scaling.factor"));
  } else if (type != "none") {
    return unsupported(
        reader, fmt::format("key '{}' is '{}'; 'none' and 'linear' are supported", type_key, type));
  }
  return {};
}

Status read_heads(const Reader& reader, ModelConfig& config) {
  BATON_TRY(config.heads, reader.positive("attention.head_count", kMaxHeads));
  BATON_TRY(config.kv_heads,
            reader.positive_or("attention.head_count_kv", kMaxHeads, config.heads));
  if (config.heads % config.kv_heads != 0) {
    return invalid(
        reader, fmt::format("key '{}' is {}, which does not divide the {} heads",
                            reader.key("attention.head_count_kv"), config.kv_heads, config.heads));
  }
  const std::string key_length = reader.key("attention.key_length");
  if (reader.file().has(key_length)) {
    BATON_TRY(config.head_dim, reader.positive("attention.key_length", kMaxHeadDim));
  } else if (config.dim % config.heads != 0 || config.dim / config.heads > kMaxHeadDim) {
    return invalid(reader, fmt::format("key '{}' is {}, which does not divide the {} dimensions "
                                       "into heads of at most {}",
                                       reader.key("attention.head_count"), config.heads, config.dim,
                                       kMaxHeadDim));
  } else {
    config.head_dim = config.dim / config.heads;
  }
  BATON_TRY(const std::int32_t value_length,
            reader.positive_or("attention.value_length", kMaxHeadDim, config.head_dim));
  if (value_length != config.head_dim) {
    return unsupported(
        reader, fmt::format("key '{}' is {} beside keys of {} elements",
                            reader.key("attention.value_length"), value_length, config.head_dim));
  }
  if (config.head_dim % 2 != 0) {
    return unsupported(reader, fmt::format("heads have {} elements; an even number is needed (key "
                                           "'{}')",
                                           config.head_dim, reader.key("attention.head_count")));
  }
  return {};
}

// The vocabulary is what the embedding has rows for.
Result<std::int32_t> read_vocabulary(const Reader& reader) {
  const files::GgufTensor* embedding = reader.file().find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return invalid(reader, "tensor 'token_embd.weight' is missing");
  }
  if (embedding->dims.size() != 2 ||
      embedding->dims[1] > static_cast<std::uint64_t>(kMaxVocabulary)) {
    return invalid(reader,
                   fmt::format("tensor 'token_embd.weight' has shape [{}], 2 dimensions and "
                               "at most {} rows are needed",
                               fmt::join(embedding->dims, ", "), kMaxVocabulary));
  }
  return static_cast<std::int32_t>(embedding->dims[1]);
}

}  // namespace

Reader::Reader(const files::GgufFile& file, std::string architecture)
    : file_(file), architecture_(std::move(architecture)), used_(file.tensors().size()) {}

std::string Reader::key(std::string_view key) const {
  return fmt::format("{}.{}", architecture_, key);
}

bool Reader::has_tensor(std::string_view name) const { return file_.find_tensor(name) != nullptr; }

Result<std::int32_t> Reader::positive(std::string_view name, std::int64_t at_most) const {
  BATON_TRY(const std::int64_t value, file_.integer(key(name)));
  if (value < 1 || value > at_most) {
    return invalid(*this, fmt::format("key '{}' is {}, a value in [1, {}] is needed", key(name),
                                      value, at_most));
  }
  return static_cast<std::int32_t>(value);
}

Result<std::int32_t> Reader::positive_or(std::string_view name, std::int64_t at_most,
                                         std::int32_t fallback) const {
  return file_.has(key(name)) ? positive(name, at_most) : Result<std::int32_t>(fallback);
}

Result<double> Reader::positive_number(std::string_view name) const {
  BATON_TRY(const double value, file_.number(key(name)));
  if (!std::isfinite(value) || value <= 0.0) {
    return invalid(*this,
                   fmt::format("key '{}' is {}, a number above 0 is needed", key(name), value));
  }
  return value;
}

Result<double> Reader::positive_number_or(std::string_view name, double fallback) const {
  return file_.has(key(name)) ? positive_number(name) : Result<double>(fallback);
}

Result<TensorRef> Reader::tensor(const std::string& name, std::vector<std::uint64_t> dims) {
  const files::GgufTensor* found = file_.find_tensor(name);
  if (found == nullptr) {
    return invalid(*this, fmt::format("tensor '{}' is missing", name));
  }
  if (found->dims != dims) {
    return invalid(*this, fmt::format("tensor '{}' has shape [{}], [{}] is needed", name,
                                      fmt::join(found->dims, ", "), fmt::join(dims, ", ")));
  }
  TensorRef ref;
  ref.index = static_cast<std::size_t>(found - file_.tensors().data());
  ref.name = name;
  ref.type = found->type;
  ref.columns = static_cast<std::int32_t>(dims[0]);
  ref.rows = dims.size() > 1 ? static_cast<std::int32_t>(dims[1]) : 1;
  used_[ref.index] = true;
  return ref;
}

Result<TensorRef> Reader::matrix(const std::string& name, std::int32_t rows, std::int32_t columns) {
  return tensor(name, {static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows)});
}

Result<TensorRef> Reader::vector_f32(const std::string& name, std::int32_t elements) {
  BATON_TRY(TensorRef ref, tensor(name, {static_cast<std::uint64_t>(elements)}));
  if (ref.type != files::TensorType::kF32) {
    return unsupported(*this, fmt::format("tensor '{}' is of type {}, F32 is needed", name,
                                          files::tensor_type_name(ref.type)));
  }
  return ref;
}

std::vector<float> Reader::floats(const TensorRef& ref) const {
  std::vector<float> values(static_cast<std::size_t>(ref.columns));
  std::memcpy(values.data(), file_.tensors()[ref.index].bytes.data(),
              values.size() * sizeof(float));
  return values;
}

Status Reader::all_tensors_used() const {
  for (std::size_t index = 0; index < used_.size(); ++index) {
    if (!used_[index]) {
      return unsupported(*this,
                         fmt::format("tensor '{}' is not known for architecture '{}'; running "
                                     "without it would give wrong answers",
                                     file_.tensors()[index].name, architecture_));
    }
  }
  return {};
}

Result<ModelConfig> read_decoder_config(const Reader& reader) {
  ModelConfig config;
  BATON_TRY(const std::string_view architecture, reader.file().string("general.architecture"));
  config.architecture = std::string(architecture);
  BATON_TRY(config.layers, reader.positive("block_count", kMaxLayers));
  BATON_TRY(config.dim, reader.positive("embedding_length", kMaxDim));
  BATON_TRY(config.ffn_dim, reader.positive("feed_forward_length", kMaxDim));
  BATON_TRY(config.context_tokens, reader.positive("context_length", kMaxContext));
  BATON_TRY(const double eps, reader.positive_number("attention.layer_norm_rms_epsilon"));
  config.rms_eps = static_cast<float>(eps);
  BATON_TRY_VOID(read_heads(reader, config));
  BATON_TRY_VOID(read_rope(reader, config));
  config.attention_scale = 1.0F / std::sqrt(static_cast<float>(config.head_dim));
  BATON_TRY(config.vocabulary, read_vocabulary(reader));
  BATON_TRY(config.end_tokens, read_end_tokens(reader, config.vocabulary));
  config.tied_output = !reader.has_tensor("output.weight");
  return config;
}

Result<ModelDescription> read_decoder(Reader& reader, ModelConfig config) {
  ModelDescription model;
  const std::int32_t q_rows = config.heads * config.head_dim;
  const std::int32_t kv_rows = config.kv_heads * config.head_dim;
  BATON_TRY(model.token_embedding,
            reader.matrix("token_embd.weight", config.vocabulary, config.dim));
  BATON_TRY(model.output_norm, reader.vector_f32("output_norm.weight", config.dim));
  model.output = model.token_embedding;
  if (!config.tied_output) {
    BATON_TRY(model.output, reader.matrix("output.weight", config.vocabulary, config.dim));
  }
  for (std::int32_t layer = 0; layer < config.layers; ++layer) {
    const auto name = [layer](std::string_view weight) {
      return fmt::format("blk.{}.{}.weight", layer, weight);
    };
    LayerWeights weights;
    BATON_TRY(weights.attn_norm, reader.vector_f32(name("attn_norm"), config.dim));
    BATON_TRY(weights.attn_q, reader.matrix(name("attn_q"), q_rows, config.dim));
    BATON_TRY(weights.attn_k, reader.matrix(name("attn_k"), kv_rows, config.dim));
    BATON_TRY(weights.attn_v, reader.matrix(name("attn_v"), kv_rows, config.dim));
    BATON_TRY(weights.attn_output, reader.matrix(name("attn_output"), config.dim, q_rows));
    if (config.qk_norm) {
      BATON_TRY(weights.attn_q_norm, reader.vector_f32(name("attn_q_norm"), config.head_dim));
      BATON_TRY(weights.attn_k_norm, reader.vector_f32(name("attn_k_norm"), config.head_dim));
    }
    if (config.post_norms) {
      BATON_TRY(weights.post_attention_norm,
                reader.vector_f32(name("post_attention_norm"), config.dim));
      BATON_TRY(weights.post_ffn_norm, reader.vector_f32(name("post_ffw_norm"), config.dim));
    }
    BATON_TRY(weights.ffn_norm, reader.vector_f32(name("ffn_norm"), config.dim));
    BATON_TRY(weights.ffn_gate, reader.matrix(name("ffn_gate"), config.ffn_dim, config.dim));
    BATON_TRY(weights.ffn_up, reader.matrix(name("ffn_up"), config.ffn_dim, config.dim));
    BATON_TRY(weights.ffn_down, reader.matrix(name("ffn_down"), config.dim, config.ffn_dim));
    model.layers.push_back(std::move(weights));
  }
  model.config = std::move(config);
  return model;
}

}  // namespace baton::model
