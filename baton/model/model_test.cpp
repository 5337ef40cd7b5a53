#include "baton/model/model.h"

#include "baton/files/gguf_builder_for_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace baton::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kF16 = 1;

// A decoder of one layer: dim 8, 4 heads of `head_dim`, 2 kv heads, ffn 16, 5 tokens. Tests change
// what they are about before they build.
struct Recipe {
  std::string architecture = "llama";
  std::uint32_t heads = 4;
  std::uint32_t kv_heads = 2;
  std::uint32_t head_dim = 2;
  std::uint32_t ffn = 16;
  bool key_length = false;
  bool output = false;
  bool qk_norm = false;
  bool post_norms = false;
  std::uint32_t window = 0;   // attention.sliding_window; 0 = no such key
  std::uint32_t pattern = 0;  // attention.sliding_window_pattern, likewise
  std::string number_key;     // one more key, 30.0
  std::string without;        // a tensor that is left out
  std::string extra;          // one more tensor
  std::string rope_type;
  std::uint32_t eos = 4;
  std::uint32_t norm_type = kF32;

  [[nodiscard]] std::string build() const {
    files::GgufBuilder file;
    const auto key = [&](const char* name) { return architecture + "." + name; };
    file.string("general.architecture", architecture);
    file.u32(key("block_count"), 1);
    file.u32(key("context_length"), 64);
    file.u32(key("embedding_length"), 8);
    file.u32(key("feed_forward_length"), ffn);
    file.u32(key("attention.head_count"), heads);
    file.u32(key("attention.head_count_kv"), kv_heads);
    if (key_length) {
      file.u32(key("attention.key_length"), head_dim);
      file.u32(key("attention.value_length"), head_dim);
    }
    file.f32(key("rope.freq_base"), 5000.0F);
    file.f32(key("attention.layer_norm_rms_epsilon"), 1e-5F);
    if (!rope_type.empty()) {
      file.string(key("rope.scaling.type"), rope_type);
      file.f32(key("rope.scaling.factor"), 2.0F);
    }
    if (window > 0) {
      file.u32(key("attention.sliding_window"), window);
    }
    if (pattern > 0) {
      file.u32(key("attention.sliding_window_pattern"), pattern);
    }
    if (!number_key.empty()) {
      file.f32(key(number_key.c_str()), 30.0F);
    }
    file.u32("tokenizer.ggml.eos_token_id", eos);
    file.strings("tokenizer.ggml.tokens", {"a", "<|endoftext|>", "b", "<|im_end|>", "c"});
    file.i32s("tokenizer.ggml.token_type", {1, 3, 1, 1, 3});

    const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& dims,
                         std::uint32_t type = kF32) {
      std::uint64_t bytes = type == kF32 ? 4 : 2;
      for (const std::uint64_t extent : dims) {
        bytes *= extent;
      }
      if (name != without) {
        file.tensor(name, type, dims, bytes);
      }
    };
    const std::uint64_t q = std::uint64_t{heads} * head_dim;
    const std::uint64_t kv = std::uint64_t{kv_heads} * head_dim;
    add("token_embd.weight", {8, 5});
    add("output_norm.weight", {8}, norm_type);
    if (output) {
      add("output.weight", {8, 5});
    }
    add("blk.0.attn_norm.weight", {8});
    add("blk.0.attn_q.weight", {8, q}, kF16);
    add("blk.0.attn_k.weight", {8, kv}, kF16);
    add("blk.0.attn_v.weight", {8, kv}, kF16);
    add("blk.0.attn_output.weight", {q, 8});
    if (qk_norm) {
      add("blk.0.attn_q_norm.weight", {head_dim});
      add("blk.0.attn_k_norm.weight", {head_dim});
    }
    if (post_norms) {
      add("blk.0.post_attention_norm.weight", {8});
      add("blk.0.post_ffw_norm.weight", {8});
    }
    add("blk.0.ffn_norm.weight", {8});
    add("blk.0.ffn_gate.weight", {8, ffn});
    add("blk.0.ffn_up.weight", {8, ffn});
    add("blk.0.ffn_down.weight", {ffn, 8});
    if (!extra.empty()) {
      add(extra, {8});
    }
    return file.build();
  }
  [[nodiscard]] Result<ModelDescription> describe() const {
    const files::TemporaryFile file(build());
    const auto opened = files::GgufFile::open(file.path());
    EXPECT_TRUE(opened) << opened.error().message;
    return describe_model(*opened);
  }
  [[nodiscard]] std::string error() const {
    const auto model = describe();
    return model ? "no error" : model.error().message;
  }
};

TEST(Model, LlamaIsDescribed) {
  const auto model = Recipe{}.describe();
  ASSERT_TRUE(model) << model.error().message;
  const ModelConfig& config = model->config;
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.layers, 1);
  EXPECT_EQ(config.dim, 8);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 2);
  EXPECT_EQ(config.vocabulary, 5);
  EXPECT_EQ(config.context_tokens, 64);
  EXPECT_EQ(config.rope.base, 5000.0);
  EXPECT_EQ(config.rope.kind, RopeKind::kAdjacent);
  EXPECT_FALSE(config.qk_norm);
  // The key's id, and a control token known by its text; <|im_end|> here is no control token.
  EXPECT_THAT(config.end_tokens, ElementsAre(1, 4));
  EXPECT_EQ(model->layers[0].attn_k.rows, 4);
  EXPECT_EQ(model->layers[0].attn_k.columns, 8);
  EXPECT_EQ(model->layers[0].attn_k.type, files::TensorType::kF16);
}

TEST(Model, B35WithoutAnOutputTensorTheEmbeddingIsTheOutput) {
  const auto tied = Recipe{}.describe();
  ASSERT_TRUE(tied);
  EXPECT_TRUE(tied->config.tied_output);
  EXPECT_EQ(tied->output.index, tied->token_embedding.index);
  Recipe with;
  with.output = true;
  const auto separate = with.describe();
  ASSERT_TRUE(separate);
  EXPECT_FALSE(separate->config.tied_output);
  EXPECT_EQ(separate->output.name, "output.weight");
}

TEST(Model, Qwen3HasHeadNormsAndItsOwnHeadSize) {
  Recipe recipe;
  recipe.architecture = "qwen3";
  recipe.key_length = true;
  recipe.head_dim = 6;
  recipe.qk_norm = true;
  const auto model = recipe.describe();
  ASSERT_TRUE(model) << model.error().message;
  EXPECT_EQ(model->config.head_dim, 6);
  EXPECT_EQ(model->config.rope.kind, RopeKind::kHalves);
  ASSERT_TRUE(model->layers[0].attn_q_norm);
  EXPECT_EQ(model->layers[0].attn_q_norm->columns, 6);
  recipe.qk_norm = false;
  EXPECT_THAT(recipe.error(), HasSubstr("'blk.0.attn_q_norm.weight' is missing"));
}

TEST(Model, Gemma3HasTwoKindsOfLayers) {
  const auto file = files::GgufFile::open("tests/fixtures/model/gemma3_tiny.gguf");
  ASSERT_TRUE(file) << file.error().message;
  const auto model = describe_model(*file);
  ASSERT_TRUE(model) << model.error().message;
  const ModelConfig& config = model->config;
  EXPECT_EQ(config.window_tokens, 40);
  EXPECT_THAT(config.window_layers, ElementsAre(true, true, true, true, true, false));
  EXPECT_EQ(config.rope.base, 1e6);
  EXPECT_EQ(config.rope.linear_factor, 8.0);
  EXPECT_EQ(config.window_rope.base, 1e4);
  EXPECT_EQ(config.window_rope.linear_factor, 1.0);
  EXPECT_EQ(config.embedding_scale, std::sqrt(72.0F));
  EXPECT_EQ(config.attention_scale, 1.0F / std::sqrt(32.0F));
  EXPECT_EQ(config.activation, Activation::kGelu);
  EXPECT_TRUE(config.tied_output);
  ASSERT_TRUE(model->layers[0].post_attention_norm);
  EXPECT_EQ(model->layers[0].post_ffn_norm->columns, 72);
}

TEST(Model, Gemma3KeysAreReadOrRefusedByName) {
  Recipe recipe;
  recipe.architecture = "gemma3";
  recipe.qk_norm = true;
  recipe.post_norms = true;
  EXPECT_THAT(recipe.error(), HasSubstr("gemma3.attention.sliding_window"));
  recipe.window = 16;
  EXPECT_THAT(recipe.describe().value().config.window_layers, ElementsAre(true));
  recipe.pattern = 1;
  EXPECT_THAT(recipe.describe().value().config.window_layers, ElementsAre(false));
  recipe.number_key = "attn_logit_softcapping";
  EXPECT_EQ(recipe.describe().value().config.attention_soft_cap, 30.0F);
  recipe.number_key = "attention.scale";
  EXPECT_EQ(recipe.describe().value().config.attention_scale, 30.0F);
  recipe.number_key = "rope.freq_base_swa";
  EXPECT_EQ(recipe.describe().value().config.window_rope.base, 30.0);
  recipe.number_key = "final_logit_softcapping";
  EXPECT_THAT(recipe.error(), HasSubstr("'gemma3.final_logit_softcapping'"));
  recipe.number_key.clear();
  recipe.post_norms = false;
  EXPECT_THAT(recipe.error(), HasSubstr("'blk.0.post_attention_norm.weight' is missing"));
}

TEST(Model, B34HeadCounts) {
  Recipe recipe;
  recipe.heads = 3;
  EXPECT_THAT(recipe.error(), HasSubstr("'llama.attention.head_count_kv' is 2"));
  files::GgufBuilder file;  // no tensors: those of 0 heads cannot be written

  file.string("general.architecture", "llama");
  file.u32("llama.block_count", 1);
  file.u32("llama.embedding_length", 8);
  file.u32("llama.feed_forward_length", 16);
  file.u32("llama.context_length", 64);
  file.f32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  file.u32("llama.attention.head_count", 0);
  const files::TemporaryFile path(file.build());
  const auto opened = files::GgufFile::open(path.path());
  ASSERT_TRUE(opened);
  EXPECT_THAT(describe_model(*opened).error().message,
              HasSubstr("'llama.attention.head_count' is 0"));
}

TEST(Model, OddHeadsAndUnevenSplitsAreNamed) {
  Recipe odd;
  odd.key_length = true;
  odd.head_dim = 3;
  EXPECT_THAT(odd.error(), HasSubstr("heads have 3 elements"));
  Recipe uneven;
  uneven.heads = 6;
  uneven.kv_heads = 2;
  EXPECT_THAT(uneven.error(), HasSubstr("'llama.attention.head_count' is 6"));
}

TEST(Model, WhatIsNotKnownIsNamed) {
  Recipe architecture;
  architecture.architecture = "mamba";
  EXPECT_THAT(architecture.error(), HasSubstr("architecture 'mamba' is not supported"));
  Recipe bias;
  bias.extra = "blk.0.attn_q.bias";
  EXPECT_THAT(bias.error(), HasSubstr("'blk.0.attn_q.bias' is not known"));
  Recipe yarn;
  yarn.rope_type = "yarn";
  EXPECT_THAT(yarn.error(), HasSubstr("'yarn'"));
  Recipe linear;
  linear.rope_type = "linear";
  EXPECT_EQ(linear.describe().value().config.rope.linear_factor, 2.0);
  Recipe end;
  end.eos = 5;
  EXPECT_THAT(end.error(), HasSubstr("'tokenizer.ggml.eos_token_id' is 5"));
  Recipe norm;
  norm.norm_type = kF16;
  EXPECT_THAT(norm.error(), HasSubstr("'output_norm.weight' is of type F16"));
}

TEST(Model, EveryMissingTensorIsNamed) {
  for (const char* name :
       {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.attn_q.weight",
        "blk.0.attn_k.weight", "blk.0.attn_v.weight", "blk.0.attn_output.weight",
        "blk.0.ffn_norm.weight", "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight",
        "blk.0.ffn_down.weight"}) {
    Recipe recipe;
    recipe.without = name;
    EXPECT_THAT(recipe.error(), HasSubstr(std::string("'") + name + "' is missing"));
  }
}

}  // namespace
}  // namespace baton::model
