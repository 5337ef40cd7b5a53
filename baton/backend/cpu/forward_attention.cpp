// KV rows into tiles, and attention as tasks over the pool.
#include "baton/backend/cpu/forward.h"

#include <algorithm>
#include <cmath>

namespace baton::backend {

namespace {
// Query tokens of one task: enough that a tile's K and V are read once for many queries.
constexpr std::int64_t kTaskTokens = 32;
// Fewer tasks than this leave threads idle at the end.
constexpr std::int64_t kTasksPerThread = 4;
}  // namespace

// From the tile of the group's layer 0, head 0 to that of (layer, head), the same in every block.
std::size_t Forward::head_offset(LayerPlace place, std::int64_t head) const {
  return layout_.tile_offset(place.group, place.index, static_cast<std::int32_t>(head), 0) -
         layout_.tile_offset(place.group, 0, 0, 0);
}

void Forward::write_kv(std::size_t layer) {
  constexpr std::int64_t kGrain = 4;  // tasks of one tile and head; few are done by the caller
  const std::int64_t heads = config_.kv_heads;
  const LayerPlace place = places_[layer];
  const auto count = static_cast<std::int64_t>(tile_spans_.size()) * heads;
  const float* qkv = qkv_.as<float>().data();
  pool_.parallel_for(count, kGrain, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t task = first; task < last; ++task) {
      const TileSpan& span = tile_spans_[static_cast<std::size_t>(task / heads)];
      const std::int64_t head = task % heads;
      kernels::KvWriteArgs args;
      args.dtype = to_tensor_dtype(layout_.groups[place.group].dtype);
      args.head_dim = config_.head_dim;
      args.first_slot = span.position % kv::kTileTokens;
      args.tokens = span.tokens;
      args.k = qkv + span.first_row * qkv_width_ + q_width_ + head * config_.head_dim;
      args.k_stride = qkv_width_;
      args.v = args.k + kv_width_;
      args.v_stride = qkv_width_;
      args.tile = tiles_[place.group][span.sequence]
                        [static_cast<std::size_t>(span.position / kv::kTileTokens)] +
                  head_offset(place, head);
      kernels_.write_kv(args);
    }
  });
}

// Few queries over long contexts: the keys are cut into parts too, whose results are merged in
// order. Spans of more queries, or beyond the space for partial results, stay whole.
void Forward::add_split_tasks(GroupTasks& tasks, std::size_t index, std::int64_t first_part,
                              std::int64_t parts, std::int64_t& partial_rows) {
  const std::int64_t rows = attention_spans_[index].tokens * group_;
  const std::int64_t stride = kernels::attention_partial_floats(config_.head_dim);
  float* partials = partials_.as<float>().data();
  for (std::int64_t head = 0; head < config_.kv_heads; ++head) {
    AttentionTask task{index, head,       0,     rows,
                       -1,    first_part, parts, partials + partial_rows * stride};
    tasks.merges.push_back(task);
    for (task.part = first_part; task.part < first_part + parts; ++task.part) {
      tasks.tasks.push_back(task);
    }
    partial_rows += parts * rows;
  }
}

void Forward::lay_out_attention(std::span<const Span> spans) {
  attention_spans_ = spans;
  for (std::size_t group = 0; group < tasks_.size(); ++group) {
    lay_out_attention(group);
  }
}

void Forward::lay_out_attention(std::size_t group) {
  const std::span<const Span> spans = attention_spans_;
  const std::int64_t window = layout_.groups[group].window_tokens;
  GroupTasks& tasks = tasks_[group];
  tasks.tasks.clear();
  tasks.merges.clear();
  const std::int64_t wanted = kTasksPerThread * pool_.threads();
  std::int64_t rows_per_task = kTaskTokens * group_;
  const auto count_tasks = [&] {
    std::int64_t count = 0;
    for (const Span& span : spans) {
      count += (span.tokens * group_ + rows_per_task - 1) / rows_per_task * config_.kv_heads;
    }
    return count;
  };
  while (count_tasks() < wanted && rows_per_task > group_) {
    rows_per_task = std::max(group_, rows_per_task / 2);
  }
  const bool split = pool_.threads() > 1 && count_tasks() < wanted;
  // Three heads on two threads: the last one goes row by row, so that both end together.
  const bool uneven =
      pool_.threads() > 1 && count_tasks() < wanted && count_tasks() % pool_.threads() != 0;
  const auto space = static_cast<std::int64_t>(partials_.as<float>().size()) /
                     kernels::attention_partial_floats(config_.head_dim);
  std::int64_t partial_rows = 0;
  // The last queries of a prompt see the most keys: they start first, so that none ends late.
  for (std::size_t index = spans.size(); index-- > 0;) {
    const Span& span = spans[index];
    const std::int64_t rows = span.tokens * group_;
    const std::int64_t first_part = kernels::attention_first_part(span.start, window);
    const std::int64_t parts =
        kernels::attention_last_part(span.start + span.tokens - 1) - first_part;
    if (split && parts > 1 && partial_rows + parts * rows * config_.kv_heads <= space) {
      add_split_tasks(tasks, index, first_part, parts, partial_rows);
      continue;
    }
    for (std::int64_t head = 0; head < config_.kv_heads; ++head) {
      const std::int64_t step = uneven && head + 1 == config_.kv_heads ? 1 : rows_per_task;
      for (std::int64_t last = rows; last > 0; last -= std::min(step, last)) {
        tasks.tasks.push_back(
            {index, head, std::max<std::int64_t>(0, last - step), last, -1, 0, 0, nullptr});
      }
    }
  }
}

void Forward::run_attention(const AttentionTask& task, std::size_t layer, int thread, bool merge) {
  const Span& span = attention_spans_[task.span];
  const LayerPlace place = places_[layer];
  const kv::KvGroup& shape = layout_.groups[place.group];
  const std::vector<std::byte*>& tiles = tiles_[place.group][span.sequence];
  const std::byte** pointers = tile_pointers_.as<const std::byte*>().data() +
                               static_cast<std::int64_t>(thread) * most_tiles_;
  const std::size_t offset = head_offset(place, task.head);
  for (auto tile = static_cast<std::size_t>(shape.first_visible(span.start) / kv::kTileTokens);
       tile < tiles.size(); ++tile) {
    pointers[tile] = tiles[tile] + offset;
  }
  kernels::AttentionArgs args;
  args.dtype = to_tensor_dtype(shape.dtype);
  args.head_dim = config_.head_dim;
  args.tiles = pointers;
  args.first_position = span.start;
  args.group = group_;
  args.window_tokens = shape.window_tokens;
  args.scale = config_.attention_scale;
  args.soft_cap = config_.attention_soft_cap;
  const std::int64_t head_lane = task.head * group_ * config_.head_dim;
  args.q = qkv_.as<float>().data() + span.first_row * qkv_width_ + head_lane;
  args.q_stride = qkv_width_;
  args.out = attended_.as<float>().data() + span.first_row * q_width_ + head_lane;
  args.out_stride = q_width_;
  std::byte* scratch =
      attention_scratch_.data() + static_cast<std::size_t>(thread) * scratch_stride_;
  if (merge) {
    kernels_.attention_merge(args, task.first, task.last, task.parts, task.partials);
  } else if (task.part >= 0) {
    const std::int64_t stride = kernels::attention_partial_floats(config_.head_dim);
    kernels_.attention_part(
        args, task.first, task.last, task.part,
        task.partials + (task.part - task.first_part) * (task.last - task.first) * stride, scratch);
  } else {
    kernels_.attention(args, task.first, task.last, scratch);
  }
}

void Forward::attend(std::size_t layer) {
  const GroupTasks& work = tasks_[places_[layer].group];
  pool_.parallel_for(static_cast<std::int64_t>(work.tasks.size()), 1,
                     [&](std::int64_t first, std::int64_t last, int thread) {
                       for (std::int64_t task = first; task < last; ++task) {
                         run_attention(work.tasks[static_cast<std::size_t>(task)], layer, thread,
                                       false);
                       }
                     });
  for (const AttentionTask& task : work.merges) {
    run_attention(task, layer, 0, true);
  }
}

}  // namespace baton::backend
