#include "tests/property/property_run.h"

#include "baton/backend/cpu/cpu_backend.h"
#include "baton/base/check.h"
#include "baton/engine/batch_scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace baton::property {

namespace {

using message::FinishReason;

// A step takes as long as its rows say, whatever the machine does: chunks follow from the seed.
class TimedBackend final : public backend::Backend {
 public:
  TimedBackend(std::unique_ptr<backend::Backend> inner, std::int32_t us_per_row)
      : inner_(std::move(inner)), us_per_row_(us_per_row) {}
  [[nodiscard]] const backend::BackendInfo& info() const override { return inner_->info(); }
  backend::Ticket launch(const backend::StepPlan& plan) override {
    rows_ = 0;
    for (const backend::SequencePlan& sequence : plan.sequences) {
      rows_ += sequence.tokens.size();
    }
    return inner_->launch(plan);
  }
  backend::StepResult collect(backend::Ticket ticket) override {
    backend::StepResult result = inner_->collect(ticket);
    result.elapsed = std::chrono::microseconds(rows_ * static_cast<std::size_t>(us_per_row_));
    return result;
  }
  std::span<std::byte> block_bytes(std::size_t group, kv::BlockId block) override {
    return inner_->block_bytes(group, block);
  }

 private:
  std::unique_ptr<backend::Backend> inner_;
  const std::int32_t us_per_row_;
  std::size_t rows_ = 0;
};

struct Stream {
  std::vector<message::Token> tokens;
  bool aborted = false;
  std::string refused;
};

class Node {
 public:
  Node(const TestModel& model, kv::KvDtype dtype, const NodeDraw& draw, const Clock& clock)
      : events_(1'000'000) {
    backend::CpuBackendOptions options;
    options.model_path = model.file->path();
    options.isa = draw.isa;
    options.threads = draw.threads;
    options.kv_dtype = dtype;
    options.block_tokens = draw.block_tokens;
    options.kv_memory_bytes = draw.pool_blocks * model.block_bytes(dtype, draw.block_tokens);
    options.max_step_tokens = draw.max_step_tokens;
    options.max_num_seqs = draw.max_num_seqs;
    auto made = backend::make_cpu_backend(options);
    BATON_CHECK(made.has_value(), "{}", made ? "" : made.error().message);
    backend_ = std::make_unique<TimedBackend>(*std::move(made), draw.us_per_row);
    engine::EngineConfig config;
    config.max_num_seqs = draw.max_num_seqs;
    config.max_step_ms = draw.max_step_ms;
    config.queue_deadline_ms = 1'000'000'000;
    config.prefix_cache = draw.prefix_cache;
    engine_ = std::make_unique<engine::BatchScheduler>(*backend_, clock, config, events_);
  }

  engine::BatchScheduler& engine() { return *engine_; }
  void post(message::EngineCommand command) {
    BATON_CHECK(engine_->post(std::move(command)), "the mailbox is full");
  }
  // The decode node has room for it.
  void grant(const SequenceKey& key) {
    granted.insert(key);
    post(message::Granted{key});
    claim_every_other(key);
  }
  bool turn() {
    const bool stepped = engine_->run_once();
    for (message::EngineEvent& event : events_.drain()) {
      take(std::move(event));
    }
    return stepped;
  }

  std::map<SequenceKey, Stream> streams;
  std::map<SequenceKey, message::LeasedBlocks> lent;  // of prefills that are under way or done
  std::set<SequenceKey> granted;                      // of them
  std::map<SequenceKey, message::PrefillDone> prefilled;
  std::map<SequenceKey, message::Reserved> reserved;
  std::vector<SequenceKey> newly_reserved;
  std::vector<SequenceKey> sent_away;  // prefills that had to give their room to others

 private:
  // As streaming does: from the grant on its blocks are sent, and cannot be taken back any more.
  void claim_every_other(const SequenceKey& key) {
    const auto blocks = lent.find(key);
    if (key.request.low % 2 == 1 && blocks != lent.end() && !blocks->second.claim->claim()) {
      lent.erase(blocks);  // too late: it is sent away
    }
  }
  void take(message::EngineEvent&& event) {
    if (auto* step = std::get_if<message::StepTokens>(&event)) {
      for (message::Token& token : step->tokens) {
        streams[token.key].tokens.push_back(std::move(token));
      }
    } else if (auto* progress = std::get_if<message::PrefillProgress>(&event)) {
      if (!progress->blocks.tables.empty()) {
        const SequenceKey key = progress->key;
        lent[key] = std::move(progress->blocks);
        if (granted.contains(key)) {
          claim_every_other(key);
        }
      }
    } else if (auto* done = std::get_if<message::PrefillDone>(&event)) {
      prefilled.emplace(done->key, std::move(*done));
    } else if (auto* held = std::get_if<message::Reserved>(&event)) {
      newly_reserved.push_back(held->key);
      reserved.emplace(held->key, std::move(*held));
    } else if (auto* no = std::get_if<message::Refused>(&event)) {
      streams[no->key].refused = no->error.message;
    } else if (auto* end = std::get_if<message::Finished>(&event)) {
      streams[end->key].aborted = true;
      if (end->error.code == ErrorCode::kOverloaded) {
        sent_away.push_back(end->key);
      }
    }
  }

  engine::EventQueue events_;
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<engine::BatchScheduler> engine_;
};

// Tile by tile, as over a network: the two nodes' block sizes may differ. What the target has
// cached is not sent.
void copy_tiles(const kv::KvLayout& from, const message::LeasedBlocks& source,
                const kv::KvLayout& to, const message::LeasedBlocks& target,
                std::int32_t cached_tokens, std::int32_t kv_tokens) {
  for (std::size_t group = 0; group < source.tables.size(); ++group) {
    const kv::KvGroup& shape = from.groups[group];
    const auto place = [&](const kv::KvLayout& layout, const message::LeasedBlocks& blocks,
                           std::int32_t layer, std::int32_t head, std::int32_t tile) {
      const auto block = static_cast<std::size_t>(tile / layout.tiles_per_block());
      return blocks.tables[group][block].bytes.data() +
             layout.tile_offset(group, layer, head, tile % layout.tiles_per_block());
    };
    const kv::TileRange tiles = shape.tiles_needed(kv_tokens);
    for (std::int32_t tile = std::max(tiles.begin, cached_tokens / kv::kTileTokens);
         tile < tiles.end; ++tile) {
      for (std::int32_t layer = 0; layer < static_cast<std::int32_t>(shape.layers.size());
           ++layer) {
        for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
          std::memcpy(place(to, target, layer, head, tile), place(from, source, layer, head, tile),
                      shape.tile_bytes());
        }
      }
    }
  }
}

// Alone, on fresh memory, without a prefix cache, in one thread.
Stream cold_run(const Schedule& schedule, const TestModel& model, message::Submit submit) {
  NodeDraw draw;
  draw.isa = schedule.reference_isa;
  draw.prefix_cache = false;
  draw.pool_blocks = static_cast<std::uint32_t>(
      (submit.prompt.size() + static_cast<std::size_t>(submit.max_tokens)) / 128 + 1);
  const ManualClock clock;
  Node node(model, schedule.kv_dtype, draw, clock);
  submit.emitted.clear();
  const SequenceKey key = submit.key;
  node.post(message::RunLocally{std::move(submit)});
  while (node.turn()) {
  }
  return std::move(node.streams[key]);
}

std::string difference(const message::Token& got, const message::Token& wanted) {
  const auto bits = [](float value) { return std::bit_cast<std::uint32_t>(value); };
  if (got.index != wanted.index || got.token != wanted.token || got.finish != wanted.finish ||
      bits(got.logprob) != bits(wanted.logprob)) {
    return fmt::format(
        "index {} token {} logprob {:08x} finish {}; cold: index {} token {} "
        "logprob {:08x} finish {}",
        got.index, got.token, bits(got.logprob), static_cast<int>(got.finish), wanted.index,
        wanted.token, bits(wanted.logprob), static_cast<int>(wanted.finish));
  }
  const bool same_top =
      std::equal(got.top.begin(), got.top.end(), wanted.top.begin(), wanted.top.end(),
                 [&](const message::TokenLogprob& a, const message::TokenLogprob& b) {
                   return a.token == b.token && bits(a.logprob) == bits(b.logprob);
                 });
  return same_top ? "" : fmt::format("index {}: other top logprobs", got.index);
}

class Run {
 public:
  Run(const Schedule& schedule, const TestModel& model, Tally& tally)
      : schedule_(schedule), model_(model), tally_(tally), requests_(schedule.requests) {
    for (const NodeDraw& draw : schedule.nodes) {
      nodes_.push_back(std::make_unique<Node>(model, schedule.kv_dtype, draw, clock_));
    }
    ship_at_.resize(requests_.size(), -1);
  }

  std::string go() {
    compute_references();
    std::int32_t turn = 0;
    const std::int32_t last_arrival = last_event_turn();
    constexpr std::int32_t kMostTurns = 60'000;
    for (; turn < kMostTurns; ++turn) {
      post_arrivals(turn);
      bool busy = turn <= last_arrival;
      for (const auto& node : nodes_) {
        busy = node->turn() || busy;
      }
      busy = tell_the_prefill_node(turn) || busy;
      busy = ship(turn) || busy;
      clock_.advance(std::chrono::milliseconds(7));
      if (!busy) {
        break;
      }
    }
    if (turn == kMostTurns) {
      return "still busy after 60,000 turns";
    }
    return compare();
  }

 private:
  void compute_references() {
    for (RequestDraw& request : requests_) {
      message::Submit& submit = request.submit;
      references_.push_back(cold_run(schedule_, model_, submit));
      const std::vector<message::Token>& tokens = references_.back().tokens;
      if (request.replay && tokens.size() >= 2) {
        const std::size_t given = 1 + submit.sampling.seed % (tokens.size() - 1);
        for (std::size_t i = 0; i < given; ++i) {
          submit.emitted.push_back(tokens[i].token);
        }
        submit.key.epoch = Epoch{1};
        ++tally_.replays;
      }
    }
  }
  [[nodiscard]] std::int32_t last_event_turn() const {
    std::int32_t last = 0;
    for (const RequestDraw& request : requests_) {
      last = std::max({last, request.arrives, request.cancelled});
    }
    return last;
  }

  void post_arrivals(std::int32_t turn) {
    for (const RequestDraw& request : requests_) {
      const SequenceKey& key = request.submit.key;
      if (request.arrives == turn) {
        if (request.handoff) {
          nodes_[0]->post(message::PrefillForHandoff{request.submit});
          nodes_[1]->post(message::Reserve{request.submit});
        } else {
          nodes_[request.node]->post(message::RunLocally{request.submit});
        }
      }
      if (request.cancelled == turn) {
        for (const auto& node : nodes_) {
          node->post(message::Abort{key, Error{ErrorCode::kCancelled, "client left"}});
        }
      }
    }
  }

  // What a prefill role and an owner do: say which prefills the decode node has room for, and ask
  // again for one that was sent away. True when there was something to say.
  bool tell_the_prefill_node(std::int32_t turn) {
    if (nodes_.size() < 2) {
      return false;
    }
    const std::vector<SequenceKey> granted = std::exchange(nodes_[1]->newly_reserved, {});
    for (const SequenceKey& key : granted) {
      nodes_[0]->grant(key);
    }
    const std::vector<SequenceKey> again = std::exchange(nodes_[0]->sent_away, {});
    for (const SequenceKey& key : again) {
      const auto request =
          std::find_if(requests_.begin(), requests_.end(),
                       [&](const RequestDraw& each) { return each.submit.key == key; });
      nodes_[0]->prefilled.erase(key);
      if (const auto lent = nodes_[0]->lent.extract(key)) {  // claimed, perhaps
        nodes_[0]->post(message::Release{lent.mapped().lease});
      }
      if (request->cancelled >= 0 && request->cancelled <= turn) {
        continue;  // nobody waits for it any more
      }
      nodes_[0]->streams.erase(key);
      nodes_[0]->post(message::PrefillForHandoff{request->submit});
      if (nodes_[1]->reserved.contains(key)) {
        nodes_[0]->grant(key);
      }
      ++tally_.sent_away;
    }
    return !granted.empty() || !again.empty();
  }

  // Handoffs whose two halves are there: after their delay, the bytes go over. True while one is
  // under way.
  bool ship(std::int32_t turn) {
    bool under_way = false;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const RequestDraw& request = requests_[i];
      if (!request.handoff) {
        continue;
      }
      const bool cancelled = request.cancelled >= 0 && request.cancelled <= turn;
      const auto done = nodes_[0]->prefilled.find(request.submit.key);
      const auto held = nodes_[1]->reserved.find(request.submit.key);
      const bool has_done = done != nodes_[0]->prefilled.end();
      const bool has_held = held != nodes_[1]->reserved.end();
      if (cancelled || (has_done && done->second.first[0].finish != FinishReason::kNone)) {
        under_way = release(i, has_done, has_held) || under_way;
        continue;
      }
      if (!has_done || !has_held) {
        continue;
      }
      under_way = true;
      if (ship_at_[i] < 0) {
        ship_at_[i] = turn + request.ship_delay;
      }
      if (turn >= ship_at_[i]) {
        adopt(request.submit.key);
      }
    }
    return under_way;
  }
  bool release(std::size_t i, bool has_done, bool has_held) {
    const SequenceKey& key = requests_[i].submit.key;
    if (const auto lent = nodes_[0]->lent.extract(key)) {
      nodes_[0]->post(message::Release{lent.mapped().lease});
    }
    if (has_done && has_held) {
      nodes_[0]->prefilled.erase(key);
    }
    if (has_held) {
      nodes_[1]->post(message::Release{nodes_[1]->reserved[key].blocks.lease});
      nodes_[1]->reserved.erase(key);
    }
    return has_held;
  }
  void adopt(const SequenceKey& key) {
    const message::PrefillDone done = nodes_[0]->prefilled.extract(key).mapped();
    const message::LeasedBlocks lent = nodes_[0]->lent.extract(key).mapped();
    BATON_CHECK(lent.claim->claim(), "the blocks of a finished prefill were taken back");
    const message::Reserved held = nodes_[1]->reserved.extract(key).mapped();
    BATON_CHECK(done.kv_tokens == held.kv_tokens, "{} and {} tokens", done.kv_tokens,
                held.kv_tokens);
    copy_tiles(nodes_[0]->engine().probe_block_geometry().layout, lent,
               nodes_[1]->engine().probe_block_geometry().layout, held.blocks, held.cached_tokens,
               done.kv_tokens);
    nodes_[1]->post(message::Adopt{key, done.first, 1});
    nodes_[0]->post(message::Release{lent.lease});
    ++tally_.handoffs;
  }

  // What the client was given: of a handoff the decode node's stream, unless P's token was the
  // last or D never got it.
  [[nodiscard]] const std::vector<message::Token>& given(const RequestDraw& request) {
    const SequenceKey& key = request.submit.key;
    if (!request.handoff) {
      return nodes_[request.node]->streams[key].tokens;
    }
    const std::vector<message::Token>& decoded = nodes_[1]->streams[key].tokens;
    return decoded.empty() ? nodes_[0]->streams[key].tokens : decoded;
  }

  std::string compare() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (std::string what = compare(i); !what.empty()) {
        return to_string(requests_[i].submit.key) + ": " + what;
      }
    }
    for (const auto& node : nodes_) {
      node->engine().check_integrity();
      const engine::EngineStats& stats = node->engine().stats();
      tally_.preemptions += stats.preemptions;
      tally_.cached_tokens += stats.prompt_tokens_cached;
      tally_.computed_tokens += stats.prompt_tokens_computed;
      std::uint32_t used_blocks = 0;
      for (std::size_t group = 0; group < stats.group_count; ++group) {
        used_blocks += stats.groups[group].used_blocks;
      }
      if (!node->engine().idle() || used_blocks != 0) {
        return fmt::format("a node still has {} running, {} waiting, {} leases, {} used blocks",
                           stats.running.load(), stats.waiting.load(), stats.leases.load(),
                           used_blocks);
      }
    }
    ++tally_.schedules;
    return {};
  }
  std::string compare(std::size_t i) {
    const RequestDraw& request = requests_[i];
    const std::vector<message::Token>& got = given(request);
    const std::vector<message::Token>& all = references_[i].tokens;
    const std::size_t skipped = request.submit.emitted.size();
    for (const auto& node : nodes_) {
      if (const std::string& refused = node->streams[request.submit.key].refused;
          !refused.empty()) {
        return "refused: " + refused;
      }
    }
    if (all.empty() || got.size() > all.size() - skipped ||
        (request.cancelled < 0 && got.size() != all.size() - skipped)) {
      return fmt::format("{} tokens; cold: {} after {}", got.size(), all.size(), skipped);
    }
    for (std::size_t t = 0; t < got.size(); ++t) {
      if (std::string what = difference(got[t], all[t + skipped]); !what.empty()) {
        return what;
      }
    }
    ++tally_.streams;
    tally_.tokens += got.size();
    tally_.cancelled += got.size() < all.size() - skipped ? 1 : 0;
    tally_.three_parts += request.submit.prompt.size() + all.size() > 1024 ? 1 : 0;
    return {};
  }

  const Schedule& schedule_;
  const TestModel& model_;
  Tally& tally_;
  ManualClock clock_;
  std::vector<RequestDraw> requests_;  // with the replays' emitted tokens
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<Stream> references_;
  std::vector<std::int32_t> ship_at_;  // turn; -1 = not both halves are there
};

}  // namespace

std::vector<kv::KvDtype> supported_kv_dtypes(const TestModel& model) {
  std::vector<kv::KvDtype> dtypes;
  for (const kv::KvDtype dtype :
       {kv::KvDtype::kBf16, kv::KvDtype::kF32, kv::KvDtype::kF16, kv::KvDtype::kQ8_0}) {
    backend::CpuBackendOptions options;
    options.model_path = model.file->path();
    options.threads = 1;
    options.kv_dtype = dtype;
    options.kv_memory_bytes = 1 << 20;
    const auto made = backend::make_cpu_backend(options);
    const bool needed = dtype == kv::KvDtype::kBf16 || dtype == kv::KvDtype::kF32;
    BATON_CHECK(made.has_value() || !needed, "{}", made ? "" : made.error().message);
    if (made) {
      dtypes.push_back(dtype);
    }
  }
  return dtypes;
}

std::string run_schedule(const Schedule& schedule, const std::vector<TestModel>& models,
                         Tally& tally) {
  return Run(schedule, models[schedule.model], tally).go();
}

}  // namespace baton::property
