#include "baton/backend/cpu/forward.h"

#include "baton/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

namespace baton::backend {

namespace {

// Rows that one thread carries through a layer: gate and up of SmolLM2 are then 0.8 MB, the size of
// an L2, and the weights are read once per block, which 64 rows of work hide.
constexpr std::int64_t kBlockRows = 64;
// From here on each thread has work enough for row blocks.
constexpr std::int64_t kMinBlockRowsPerThread = 32;
// Query rows times parts that a split attention may keep: see add_split_tasks.
constexpr std::int64_t kSplitRowsPerThread = 64;

std::uint64_t bytes_of(std::int64_t rows, std::int64_t width, std::size_t element) {
  return static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(width) * element;
}

// Also what the panel way and the head may hold at once.
std::int64_t work_rows(int threads) { return kBlockRows * threads; }

std::int64_t widest(const model::ModelConfig& config) {
  return std::max({config.dim, config.ffn_dim, config.heads * config.head_dim});
}

std::int64_t most_parts(const ForwardLimits& limits) {
  return (limits.positions + kernels::kPartKeys - 1) / kernels::kPartKeys;
}

kernels::RopeTable rope_table(const model::RopeConfig& config, std::int32_t head_dim,
                              std::int32_t positions) {
  kernels::RopeParams rope;
  rope.positions = positions;
  rope.rotated_lanes = head_dim;
  rope.base = config.base;
  rope.linear_factor = config.linear_factor;
  rope.frequency_factors = config.frequency_divisors;
  return kernels::build_rope_table(rope);
}

}  // namespace

Forward::Forward(const model::ModelConfig& config, const CpuWeights& weights,
                 const kernels::KernelTable& kernels, const kv::KvLayout& layout, KvMemory& memory,
                 ThreadPool& pool, const ForwardLimits& limits)
    : config_(config),
      weights_(weights),
      kernels_(kernels),
      layout_(layout),
      memory_(memory),
      pool_(pool),
      limits_(limits),
      dim_(config.dim),
      q_width_(std::int64_t{config.heads} * config.head_dim),
      kv_width_(std::int64_t{config.kv_heads} * config.head_dim),
      qkv_width_(q_width_ + 2 * kv_width_),
      group_(config.heads / config.kv_heads),
      places_(static_cast<std::size_t>(config.layers)),
      tasks_(layout.groups.size()),
      tiles_(layout.groups.size()) {
  for (std::size_t group = 0; group < layout.groups.size(); ++group) {
    const std::vector<std::int32_t>& layers = layout.groups[group].layers;
    for (std::size_t index = 0; index < layers.size(); ++index) {
      places_[static_cast<std::size_t>(layers[index])] = {group, static_cast<std::int32_t>(index)};
    }
  }
}

Result<std::unique_ptr<Forward>> Forward::make(const model::ModelConfig& config,
                                               const CpuWeights& weights,
                                               const kernels::KernelTable& kernels,
                                               const kv::KvLayout& layout, KvMemory& memory,
                                               ThreadPool& pool, const ForwardLimits& limits) {
  std::unique_ptr<Forward> forward(
      new Forward(config, weights, kernels, layout, memory, pool, limits));
  BATON_TRY_VOID(forward->allocate());
  forward->rope_table_ = rope_table(config.rope, config.head_dim, limits.positions);
  if (config.window_tokens > 0) {
    forward->window_rope_table_ = rope_table(config.window_rope, config.head_dim, limits.positions);
  }
  forward->rope_style_ = config.rope.kind == model::RopeKind::kAdjacent
                             ? kernels::RopeStyle::kInterleaved
                             : kernels::RopeStyle::kHalfSplit;
  return forward;
}

std::uint64_t Forward::scratch_bytes(const model::ModelConfig& config, const ForwardLimits& limits,
                                     int threads) {
  const std::int64_t q_width = std::int64_t{config.heads} * config.head_dim;
  const std::int64_t kv_width = std::int64_t{config.kv_heads} * config.head_dim;
  const std::int64_t work = work_rows(threads);
  return bytes_of(limits.step_rows, config.dim + 2 * (q_width + kv_width), sizeof(float)) +
         bytes_of(limits.logit_rows, config.vocabulary, sizeof(float)) +
         bytes_of(work, config.dim + 2 * std::int64_t{config.ffn_dim} + widest(config),
                  sizeof(float)) +
         bytes_of(limits.positions,
                  std::int64_t{config.window_tokens > 0 ? 2 : 1} * config.head_dim, sizeof(float));
}

Status Forward::allocate() {
  const int threads = pool_.threads();
  const std::int64_t rows = limits_.step_rows;
  const std::int64_t work = work_rows(threads);
  const auto take = [](tensor::Buffer& buffer, std::uint64_t bytes) -> Status {
    BATON_TRY(buffer, tensor::Buffer::allocate(bytes, tensor::PageAdvice::kHuge));
    return {};
  };
  BATON_TRY_VOID(take(x_, bytes_of(rows, dim_, sizeof(float))));
  BATON_TRY_VOID(take(qkv_, bytes_of(rows, qkv_width_, sizeof(float))));
  BATON_TRY_VOID(take(attended_, bytes_of(rows, q_width_, sizeof(float))));
  BATON_TRY_VOID(take(logits_, bytes_of(limits_.logit_rows, config_.vocabulary, sizeof(float))));
  BATON_TRY_VOID(take(positions_, bytes_of(rows, 1, sizeof(std::int32_t))));
  BATON_TRY_VOID(take(normed_, bytes_of(work, dim_, sizeof(float))));
  BATON_TRY_VOID(take(gate_, bytes_of(work, config_.ffn_dim, sizeof(float))));
  BATON_TRY_VOID(take(up_, bytes_of(work, config_.ffn_dim, sizeof(float))));
  scratch_stride_ = (kernels::attention_scratch_bytes(config_.head_dim) + 63) / 64 * 64;
  BATON_TRY_VOID(take(attention_scratch_, scratch_stride_ * static_cast<std::size_t>(threads)));
  most_tiles_ = kv::KvLayout::tiles_for(limits_.positions);
  BATON_TRY_VOID(take(tile_pointers_, bytes_of(most_tiles_, threads, sizeof(std::byte*))));
  BATON_TRY_VOID(take(
      partials_, bytes_of(most_parts(limits_) * kSplitRowsPerThread * threads,
                          kernels::attention_partial_floats(config_.head_dim), sizeof(float))));
  std::array<bool, kernels::kActivationFormats> wanted{};
  const auto want = [&](const PackedMatrix& weight) {
    wanted[static_cast<std::size_t>(weight.format())] = true;
  };
  want(weights_.output);
  for (const CpuLayer& layer : weights_.layers) {
    std::ranges::for_each(layer.qkv, want);
    std::ranges::for_each(layer.gate_up, want);
    want(layer.attn_output);
    want(layer.ffn_down);
  }
  work_.resize(static_cast<std::size_t>(threads));
  for (std::size_t format = 0; format < wanted.size(); ++format) {
    if (!wanted[format]) {
      continue;
    }
    const std::size_t row_bytes = kernels::activation_row_bytes(
        static_cast<kernels::ActivationFormat>(format), widest(config_));
    BATON_TRY_VOID(take(prepared_[format], static_cast<std::uint64_t>(work) * row_bytes));
    for (std::size_t thread = 0; thread < work_.size(); ++thread) {
      work_[thread].prepared[format] =
          prepared_[format].data() + thread * static_cast<std::size_t>(kBlockRows) * row_bytes;
    }
  }
  for (std::size_t thread = 0; thread < work_.size(); ++thread) {
    const auto first = static_cast<std::int64_t>(thread) * kBlockRows;
    work_[thread].normed = normed_.as<float>().data() + first * dim_;
    work_[thread].gate = gate_.as<float>().data() + first * config_.ffn_dim;
    work_[thread].up = up_.as<float>().data() + first * config_.ffn_dim;
  }
  return {};
}

std::span<const float> Forward::logits(std::size_t index) const {
  const auto vocabulary = static_cast<std::size_t>(config_.vocabulary);
  const Span& span = logit_spans_[index];
  return logits_.as<float>().subspan(static_cast<std::size_t>(span.first_row) * vocabulary,
                                     static_cast<std::size_t>(span.tokens) * vocabulary);
}

bool Forward::by_row_blocks(std::int64_t rows) const {
  return rows >= kMinBlockRowsPerThread * pool_.threads();
}

std::int64_t Forward::block_rows(std::int64_t rows) const {
  // As many blocks as a multiple of the threads, so that all end at about the same time.
  const std::int64_t threads = pool_.threads();
  const std::int64_t blocks =
      ((rows + kBlockRows - 1) / kBlockRows + threads - 1) / threads * threads;
  constexpr std::int64_t kMultiple = 8;  // of the matmul's row tile
  return std::min(kBlockRows,
                  ((rows + blocks - 1) / blocks + kMultiple - 1) / kMultiple * kMultiple);
}

void Forward::lay_out(const StepPlan& plan) {
  spans_.clear();
  logit_spans_.clear();
  tile_spans_.clear();
  rows_ = 0;
  const std::span<std::int32_t> positions = positions_.as<std::int32_t>();
  for (std::size_t sequence = 0; sequence < plan.sequences.size(); ++sequence) {
    const SequencePlan& part = plan.sequences[sequence];
    const auto tokens = static_cast<std::int64_t>(part.tokens.size());
    spans_.push_back({rows_, tokens, part.start, sequence});
    for (std::int64_t t = 0; t < tokens; ++t) {
      positions[static_cast<std::size_t>(rows_ + t)] = part.start + static_cast<std::int32_t>(t);
    }
    for (std::int64_t t = 0; t < tokens;) {
      const auto position = static_cast<std::int32_t>(part.start + t);
      const std::int64_t in_tile =
          std::min<std::int64_t>(tokens - t, kv::kTileTokens - position % kv::kTileTokens);
      tile_spans_.push_back({rows_ + t, in_tile, position, sequence});
      t += in_tile;
    }
    lay_out_tiles(part, sequence);
    if (part.logit_rows > 0) {
      const std::int64_t before = tokens - part.logit_rows;
      logit_spans_.push_back({rows_ + before, part.logit_rows,
                              part.start + static_cast<std::int32_t>(before), sequence});
    }
    rows_ += tokens;
  }
}

// What a window group no longer holds, no query of this step can see.
void Forward::lay_out_tiles(const SequencePlan& part, std::size_t sequence) {
  const auto end = part.start + static_cast<std::int64_t>(part.tokens.size());
  for (std::size_t group = 0; group < tiles_.size(); ++group) {
    tiles_[group].resize(std::max(tiles_[group].size(), sequence + 1));
    std::vector<std::byte*>& tiles = tiles_[group][sequence];
    tiles.clear();
    for (std::int32_t tile = 0; tile < kv::KvLayout::tiles_for(end); ++tile) {
      const std::int32_t in_block = tile % layout_.tiles_per_block();
      const kv::BlockId block =
          part.tables[group][static_cast<std::size_t>(tile / layout_.tiles_per_block())];
      tiles.push_back(block == kv::kNoBlock ? nullptr
                                            : memory_.block(group, block).data() +
                                                  layout_.tile_offset(group, 0, 0, in_block));
    }
  }
}

void Forward::embed(const StepPlan& plan) {
  float* x = x_.as<float>().data();
  constexpr std::int64_t kGrainTokens = 16;
  for (const Span& span : spans_) {
    const std::span<const TokenId> tokens = plan.sequences[span.sequence].tokens;
    pool_.parallel_for(
        span.tokens, kGrainTokens, [&](std::int64_t first, std::int64_t last, int /*thread*/) {
          for (std::int64_t t = first; t < last; ++t) {
            float* row = x + (span.first_row + t) * dim_;
            kernels::dequantize_packed_row(weights_.embedding.dtype, weights_.embedding.packed,
                                           dim_, tokens[static_cast<std::size_t>(t)], row);
            if (config_.embedding_scale != 1.0F) {
              std::for_each_n(row, dim_, [&](float& value) { value *= config_.embedding_scale; });
            }
          }
        });
  }
}

// After the last layer's K and V are written only rows with logits are needed: they move to the
// front.
void Forward::keep_logit_rows() {
  float* x = x_.as<float>().data();
  float* qkv = qkv_.as<float>().data();
  std::int64_t to = 0;
  for (Span& span : logit_spans_) {
    const std::int64_t first = to;
    for (std::int64_t token = 0; token < span.tokens; ++token, ++to) {
      const std::int64_t from = span.first_row + token;  // ascending, so from >= to
      if (from != to) {
        std::memcpy(x + to * dim_, x + from * dim_, static_cast<std::size_t>(dim_) * sizeof(float));
        std::memcpy(qkv + to * qkv_width_, qkv + from * qkv_width_,
                    static_cast<std::size_t>(q_width_) * sizeof(float));
      }
    }
    span.first_row = first;
  }
  rows_ = to;
}

void Forward::head() {
  const std::int64_t at_most = work_rows(pool_.threads());
  const std::int64_t all_rows = rows_;
  for (std::int64_t first = 0; first < all_rows; first += at_most) {
    rows_ = std::min(at_most, all_rows - first);
    norm_and_prepare({&weights_.output, 1}, x_.as<float>().data() + first * dim_,
                     weights_.output_norm);
    const std::array matmuls = {matmul_args(weights_.output, work_[0],
                                            logits_.as<float>().data() + first * config_.vocabulary,
                                            config_.vocabulary, false)};
    matmul_panels(matmuls, rows_);
  }
  rows_ = all_rows;
}

bool Forward::run(const StepPlan& plan) {
  lay_out(plan);
  embed(plan);
  lay_out_attention(spans_);
  const std::size_t layers = weights_.layers.size();
  for (std::size_t layer = 0; layer < layers; ++layer) {
    if (by_row_blocks(rows_)) {
      project_row_blocks(layer);
    } else {
      if (layer > 0) {
        finish_panels(layer - 1);
      }
      project_panels(layer);
    }
    write_kv(layer);
    if (plan.progress != nullptr) {
      for (const Span& span : spans_) {
        const LayerPlace place = places_[layer];
        plan.progress->push({plan.sequences[span.sequence].key,
                             static_cast<std::uint32_t>(place.group),
                             static_cast<std::uint32_t>(place.index)});
      }
    }
    if (plan.all_aborted != nullptr && plan.all_aborted->load(std::memory_order_relaxed)) {
      return false;
    }
    if (layer + 1 == layers) {
      if (logit_spans_.empty()) {
        return true;
      }
      keep_logit_rows();
      lay_out_attention(logit_spans_);
    }
    attend(layer);
  }
  if (by_row_blocks(rows_)) {
    finish_row_blocks(layers - 1);
  } else {
    finish_panels(layers - 1);
  }
  head();
  return true;
}

}  // namespace baton::backend
