#include "tests/support/fake_backend.h"

#include "baton/base/check.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

namespace baton::testing {

namespace {

constexpr int kPlaneK = 0;
constexpr int kPlaneV = 1;
constexpr std::int32_t kPieces = 4;  // a 64-bit hash as four floats that hold 16 bits each

// The finaliser of splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

// Value `d` of the row that carries `hash`: the first kPieces give the hash back.
float row_value(std::uint64_t hash, std::int32_t d, int plane) {
  const std::uint64_t source =
      plane == kPlaneK && d < kPieces
          ? hash
          : mix(hash ^ mix(static_cast<std::uint64_t>(d / kPieces + 1 + 1000 * plane)));
  return static_cast<float>((source >> (16 * (d % kPieces))) & 0xFFFF);
}

std::uint64_t place_salt(std::size_t group, std::int32_t layer, std::int32_t head) {
  return mix((group << 40) ^ (static_cast<std::uint64_t>(layer) << 20) ^
             static_cast<std::uint64_t>(head));
}

}  // namespace

FakeBackend::FakeBackend(const FakeBackendOptions& options) : options_(options) {
  std::int32_t next_layer = 0;
  info_.layout.block_tokens = options.block_tokens;
  for (const FakeGroup& fake : options.groups) {
    BATON_CHECK(fake.head_dim >= kPieces, "head_dim {}", fake.head_dim);
    kv::KvGroup group;
    group.layers.resize(static_cast<std::size_t>(fake.layers));
    std::iota(group.layers.begin(), group.layers.end(), next_layer);
    next_layer += fake.layers;
    group.kv_heads = fake.kv_heads;
    group.head_dim = fake.head_dim;
    group.dtype = kv::KvDtype::kF32;
    BATON_CHECK(fake.window_tokens != 1, "a row must see the row before it");
    group.kind = fake.window_tokens > 0 ? kv::GroupKind::kWindow : kv::GroupKind::kFull;
    group.window_tokens = fake.window_tokens;
    info_.layout.groups.push_back(std::move(group));
    info_.group_blocks.push_back(fake.blocks);
  }
  for (std::size_t group = 0; group < options.groups.size(); ++group) {
    pools_.emplace_back(info_.layout.block_bytes(group) * info_.group_blocks[group]);
  }
  info_.vocabulary = options.vocabulary;
  info_.max_context_tokens = options.max_context_tokens;
  info_.max_step_tokens = options.max_step_tokens;
  info_.end_tokens = options.end_tokens;
  info_.exactness_tag = options.exactness_tag;
  cost_ = [](const backend::StepPlan& plan) {
    std::size_t rows = 0;
    for (const backend::SequencePlan& sequence : plan.sequences) {
      rows += sequence.tokens.size();
    }
    return Duration(std::chrono::microseconds(10 * rows));
  };
}

std::span<std::byte> FakeBackend::block_bytes(std::size_t group, kv::BlockId block) {
  const std::size_t bytes = info_.layout.block_bytes(group);
  return std::span(pools_[group]).subspan(block.value * bytes, bytes);
}

float* FakeBackend::plane_tile(const backend::SequencePlan& sequence, std::size_t group,
                               std::int32_t layer, std::int32_t head, std::int32_t position,
                               int plane) {
  const kv::KvLayout& layout = info_.layout;
  const std::int32_t block_index = position / layout.block_tokens;
  BATON_CHECK(static_cast<std::size_t>(block_index) < sequence.tables[group].size(),
              "position {} is past the block table", position);
  const kv::BlockId block = sequence.tables[group][static_cast<std::size_t>(block_index)];
  BATON_CHECK(block != kv::kNoBlock, "position {} of group {} was given back", position, group);
  const std::int32_t tile = position % layout.block_tokens / kv::kTileTokens;
  std::byte* const bytes =
      block_bytes(group, block).data() + layout.tile_offset(group, layer, head, tile) +
      static_cast<std::size_t>(plane) * layout.groups[group].plane_tile_bytes();
  return reinterpret_cast<float*>(bytes);
}

// The hash that the row carries, and every value of it folded into *digest. A row that is not what
// write_row wrote is counted.
std::uint64_t FakeBackend::read_row(const backend::SequencePlan& sequence, std::size_t group,
                                    std::int32_t layer, std::int32_t head, std::int32_t position,
                                    int plane, std::uint64_t* digest) {
  const float* const tile = plane_tile(sequence, group, layer, head, position, plane);
  const std::int32_t row = position % kv::kTileTokens;
  const std::int32_t head_dim = info_.layout.groups[group].head_dim;
  std::uint64_t hash = 0;
  for (std::int32_t d = 0; d < head_dim; ++d) {
    const float value =
        plane == kPlaneK ? tile[d * kv::kTileTokens + row] : tile[row * head_dim + d];
    if (digest != nullptr) {
      *digest = mix(*digest ^ std::bit_cast<std::uint32_t>(value));
    }
    if (d < kPieces) {
      const bool is_piece = value >= 0.0F && value <= 65535.0F;  // false for NaN
      hash |= static_cast<std::uint64_t>(is_piece ? value : 57005.0F) << (16 * d);
    }
  }
  return hash;
}

void FakeBackend::write_row(const backend::SequencePlan& sequence, std::size_t group,
                            std::int32_t layer, std::int32_t position, TokenId token) {
  const kv::KvGroup& shape = info_.layout.groups[group];
  const std::int32_t row = position % kv::kTileTokens;
  for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
    const std::uint64_t before =
        position == 0 ? mix(options_.model_seed)
                      : read_row(sequence, group, layer, head, position - 1, kPlaneK, nullptr);
    const std::uint64_t hash =
        mix(before ^ place_salt(group, layer, head) ^ mix(static_cast<std::uint64_t>(token)));
    float* const k = plane_tile(sequence, group, layer, head, position, kPlaneK);
    float* const v = plane_tile(sequence, group, layer, head, position, kPlaneV);
    if (row == 0) {  // a tile never shows what it held before
      const auto values = static_cast<std::ptrdiff_t>(shape.head_dim) * kv::kTileTokens;
      std::fill(k, k + values, 0.0F);
      std::fill(v, v + values, 0.0F);
    }
    for (std::int32_t d = 0; d < shape.head_dim; ++d) {
      k[d * kv::kTileTokens + row] = row_value(hash, d, kPlaneK);
      v[row * shape.head_dim + d] = row_value(hash, d, kPlaneV);
    }
  }
}

backend::SampledToken FakeBackend::draw(const backend::SequencePlan& sequence, std::size_t index) {
  const std::int32_t rows = sequence.start + static_cast<std::int32_t>(sequence.tokens.size());
  std::uint64_t digest = mix(options_.model_seed);
  for (std::size_t group = 0; group < info_.layout.groups.size(); ++group) {
    const kv::KvGroup& shape = info_.layout.groups[group];
    for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(shape.layers.size()); ++layer) {
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
        for (auto position = static_cast<std::int32_t>(shape.first_visible(rows - 1));
             position < rows; ++position) {
          const std::uint64_t hash =
              read_row(sequence, group, layer, head, position, kPlaneK, &digest);
          read_row(sequence, group, layer, head, position, kPlaneV, &digest);
          const float first_v =
              plane_tile(sequence, group, layer, head, position,
                         kPlaneV)[std::ptrdiff_t{position % kv::kTileTokens} * shape.head_dim];
          bad_rows_ += first_v == row_value(hash, 0, kPlaneV) ? 0 : 1;
        }
      }
    }
  }
  std::vector<float> logits(static_cast<std::size_t>(info_.vocabulary));
  for (std::size_t v = 0; v < logits.size(); ++v) {
    logits[v] = static_cast<float>(mix(digest + v) >> 40) * 0x1.0p-21F - 4.0F;  // in [-4, 4)
  }
  sample::SampleInput input;
  input.params = sequence.sampling;
  input.prompt = sequence.prompt;
  input.emitted = sequence.emitted;
  input.barred = sequence.barred;
  input.choice = sequence.key.choice;
  sample::SampledToken drawn = sample::sample(input, logits, scratch_);
  return {index, drawn.token, drawn.logprob, std::move(drawn.top),
          sequence.keep_logits ? std::move(logits) : std::vector<float>{}};
}

// Layer by layer, as a model does: what has been told of may be read while the next one is written.
void FakeBackend::write_rows(const backend::SequencePlan& sequence,
                             backend::ProgressQueue* progress) {
  for (std::size_t group = 0; group < info_.layout.groups.size(); ++group) {
    const std::size_t layers = info_.layout.groups[group].layers.size();
    for (std::size_t layer = 0; layer < layers; ++layer) {
      for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
        write_row(sequence, group, static_cast<std::int32_t>(layer),
                  sequence.start + static_cast<std::int32_t>(i), sequence.tokens[i]);
      }
      if (progress == nullptr) {
        continue;
      }
      const backend::LayerDone done{sequence.key, static_cast<std::uint32_t>(group),
                                    static_cast<std::uint32_t>(layer)};
      progress->push(done);
      if (on_layer_) {
        on_layer_(sequence, done);
      }
    }
  }
  rows_computed_ += sequence.tokens.size();
}

backend::Ticket FakeBackend::launch(const backend::StepPlan& plan) {
  if (on_launch_) {
    on_launch_(plan);
  }
  pending_ = {};
  pending_.elapsed = cost_(plan);
  std::size_t rows = 0;
  for (std::size_t index = 0; index < plan.sequences.size(); ++index) {
    const backend::SequencePlan& sequence = plan.sequences[index];
    if (plan.all_aborted != nullptr && plan.all_aborted->load()) {
      pending_.stopped = true;
      pending_.tokens.clear();
      break;
    }
    rows += sequence.tokens.size();
    write_rows(sequence, plan.progress);
    if (sequence.logit_rows > 0) {
      pending_.tokens.push_back(draw(sequence, index));
    }
  }
  BATON_CHECK(rows <= static_cast<std::size_t>(info_.max_step_tokens), "{} rows in a step of {}",
              rows, info_.max_step_tokens);
  return {next_ticket_++};
}

backend::StepResult FakeBackend::collect(backend::Ticket ticket) {
  BATON_CHECK(ticket.value + 1 == next_ticket_, "ticket {}", ticket.value);
  return std::move(pending_);
}

std::vector<TokenId> FakeBackend::reference(const FakeBackendOptions& options,
                                            std::span<const TokenId> prompt,
                                            const sample::SamplingParams& sampling, Choice choice,
                                            std::int32_t max_tokens) {
  FakeBackendOptions own = options;
  const auto room = static_cast<std::int32_t>(prompt.size()) + max_tokens;
  own.max_step_tokens = room;
  for (FakeGroup& group : own.groups) {
    group.blocks = static_cast<std::uint32_t>(room / own.block_tokens + 1);
  }
  FakeBackend backend(own);
  std::vector<kv::BlockId> table;
  for (std::uint32_t block = 0; block < own.groups[0].blocks; ++block) {
    table.push_back(kv::BlockId{block});
  }
  std::vector<TokenId> tokens(prompt.begin(), prompt.end());
  std::vector<TokenId> emitted;
  std::int32_t start = 0;
  while (emitted.size() < static_cast<std::size_t>(max_tokens)) {
    backend::StepPlan plan;
    backend::SequencePlan& sequence = plan.sequences.emplace_back();
    sequence.key.choice = choice;
    sequence.start = start;
    sequence.tokens = std::span(tokens).subspan(static_cast<std::size_t>(start));
    sequence.tables.assign(own.groups.size(), table);
    sequence.logit_rows = 1;
    sequence.sampling = &sampling;
    sequence.prompt = prompt;
    sequence.emitted = emitted;
    const TokenId token = backend.collect(backend.launch(plan)).tokens.at(0).token;
    start = static_cast<std::int32_t>(tokens.size());
    emitted.push_back(token);
    tokens.push_back(token);
    if (std::find(own.end_tokens.begin(), own.end_tokens.end(), token) != own.end_tokens.end()) {
      break;
    }
  }
  return emitted;
}

}  // namespace baton::testing
