// What a property test does, drawn from one seed: nodes, requests, when they come and go. Data
// only; the same seed gives the same schedule on every machine with the same vector units.
#pragma once

#include "baton/kv/layout.h"
#include "baton/message/request.h"

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace baton::property {

struct NodeDraw {
  std::string isa;
  std::int32_t threads = 1;
  std::int32_t block_tokens = 128;
  std::int32_t max_step_tokens = 512;
  std::int32_t max_num_seqs = 8;
  std::int32_t max_step_ms = 40;
  std::int32_t us_per_row = 100;  // of virtual time: sizes the chunks
  std::uint32_t pool_blocks = 0;
  bool prefix_cache = true;
};

struct RequestDraw {
  message::Submit submit;
  std::int32_t arrives = 0;     // turn
  std::int32_t cancelled = -1;  // turn; -1 = never
  bool replay = false;          // comes with a part of its answer already emitted
  bool handoff = false;         // prefilled on node 0, decoded on node 1
  std::size_t node = 0;         // without handoff
  std::int32_t ship_delay = 0;  // turns between the end of the prefill and the adoption
};

struct Schedule {
  std::uint64_t seed = 0;
  std::size_t model = 0;  // 0: qwen3, 1: odd llama, 2: gemma3
  kv::KvDtype kv_dtype = kv::KvDtype::kBf16;
  std::string reference_isa;
  std::vector<NodeDraw> nodes;  // 1 or 2
  std::vector<RequestDraw> requests;
};

struct DrawLimits {
  std::vector<std::int32_t> vocabularies;           // [model]
  std::vector<std::vector<kv::KvDtype>> kv_dtypes;  // [model]: those that its heads can have
  std::vector<std::string> isas;                    // those that this CPU can run; "ref" among them
};

Schedule draw_schedule(std::uint64_t seed, const DrawLimits& limits);
std::string describe(const Schedule& schedule);  // several lines, for a failure's message

}  // namespace baton::property
