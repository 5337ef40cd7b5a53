// What the numerics rules cost: for each rule that orders a sum, the work as baton does it beside
// the same work as an engine without the promise may cut it, on the same threads, in turns. Prints
// one JSON object per test. Usage: exactness_cost_KEYS [rounds, default 15] [threads, default 2].
// The program is built once for each length of attention's parts; bench/exactness/run compares
// them.
#include "baton/base/float_mode.h"
#include "baton/base/thread_pool.h"
#include "baton/kernels/kernels.h"
#include "baton/tensor/buffer.h"

#include <fmt/format.h>

#include "bench/allocate.h"
#include "bench/median.h"
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace baton;           // NOLINT(google-build-using-namespace): a program, not a header
using namespace baton::kernels;  // NOLINT(google-build-using-namespace)
using bench::allocate;
using bench::median;

// Weights and caches of one pass exceed every cache, as a model's do.
constexpr std::size_t kStreamBytes = std::size_t{160} << 20U;

void fill_random(std::span<std::byte> bytes, std::uint32_t seed) {
  std::mt19937 engine(seed);
  for (std::size_t at = 0; at + 4 <= bytes.size(); at += 4) {
    const std::uint32_t bits = static_cast<std::uint32_t>(engine()) & 0xBBFFBBFFU;  // small halves
    std::memcpy(bytes.data() + at, &bits, 4);
  }
}

double seconds_of(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Bench {
  const KernelTable& table;
  ThreadPool pool;
  int rounds;
};

// ---- rule 1: K in one order, outputs over threads; free: K cut by thread, partial sums added ----

struct Weights {
  std::int64_t n;
  std::int64_t k;
  std::size_t bytes;  // of one packed copy
  tensor::Buffer packed;
  std::size_t copies;
};

Weights make_weights(DType dtype, std::int64_t n, std::int64_t k, std::size_t copies) {
  tensor::Buffer stored = allocate(static_cast<std::size_t>(n) * tensor::row_bytes(dtype, k));
  fill_random(stored.span(), 1);
  Weights made{n, k, packed_bytes(dtype, n, k), allocate(copies * packed_bytes(dtype, n, k)),
               copies};
  for (std::size_t copy = 0; copy < copies; ++copy) {
    repack(dtype, stored.data(), n, k, 0, panel_count(n), made.packed.data() + copy * made.bytes);
  }
  return made;
}

void compare_split_k(Bench& bench, DType dtype, std::int64_t n, std::int64_t k, std::int64_t rows) {
  const auto threads = static_cast<std::int64_t>(bench.pool.threads());
  const std::int64_t piece = k / threads;
  const std::size_t copies = std::max<std::size_t>(1, kStreamBytes / packed_bytes(dtype, n, k));
  const Weights whole = make_weights(dtype, n, k, copies);
  const Weights cut = make_weights(dtype, n, piece, copies * static_cast<std::size_t>(threads));
  const ActivationFormat format = activation_format(dtype);
  tensor::Buffer x = allocate(static_cast<std::size_t>(rows * k) * sizeof(float));
  for (std::size_t i = 0; i < x.as<float>().size(); ++i) {
    x.as<float>()[i] = std::sin(static_cast<float>(i));
  }
  tensor::Buffer prepared =
      allocate(static_cast<std::size_t>(rows) * activation_row_bytes(format, k));
  bench.table.prepare_activations(format, x.as<float>().data(), k, rows, k, prepared.data());
  tensor::Buffer out = allocate(static_cast<std::size_t>(threads * rows * n) * sizeof(float));
  float* sums = out.as<float>().data();

  const auto exact = [&] {
    for (std::size_t copy = 0; copy < copies; ++copy) {
      MatmulArgs args{
          dtype, whole.packed.data() + copy * whole.bytes, n, k, prepared.data(), sums, n, false};
      bench.pool.parallel_for_even(panel_count(n), [&](std::int64_t first, std::int64_t last, int) {
        bench.table.matmul(args, first, last, 0, rows);
      });
    }
  };
  const auto free_cut = [&] {
    for (std::size_t copy = 0; copy < copies; ++copy) {
      bench.pool.parallel_for(threads, 1, [&](std::int64_t first, std::int64_t, int) {
        const std::size_t at =
            copy * static_cast<std::size_t>(threads) + static_cast<std::size_t>(first);
        MatmulArgs args{dtype,
                        cut.packed.data() + at * cut.bytes,
                        n,
                        piece,
                        prepared.data(),
                        sums + first * rows * n,
                        n,
                        false};
        bench.table.matmul(args, 0, panel_count(n), 0, rows);
      });
      bench.pool.parallel_for_even(rows * n, [&](std::int64_t first, std::int64_t last, int) {
        for (std::int64_t part = 1; part < threads; ++part) {
          bench.table.add(sums + first, sums + part * rows * n + first, last - first);
        }
      });
    }
  };
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int round = 0; round <= bench.rounds; ++round) {
    const double a = seconds_of(exact);
    const double b = seconds_of(free_cut);
    if (round > 0) {
      ours.push_back(a);
      theirs.push_back(b);
    }
  }
  fmt::print(
      R"({{"test":"split-K","dtype":"{}","n":{},"k":{},"rows":{},"exact_us":{:.2f},"free_us":{:.2f}}})"
      "\n",
      tensor::dtype_name(dtype), n, k, rows, median(ours) * 1e6 / static_cast<double>(copies),
      median(theirs) * 1e6 / static_cast<double>(copies));
}

// ---- rule 3: keys cut at multiples of kPartKeys, whatever the number of threads ----------------

void time_attention(Bench& bench, std::int64_t context, std::int64_t head_dim, std::int64_t heads,
                    std::int64_t group) {
  const std::size_t tile = kv_tile_bytes(DType::kBf16, head_dim);
  const std::int64_t tiles = context / kTileKeys;
  const std::size_t layer_bytes = static_cast<std::size_t>(tiles * heads) * tile;
  const std::size_t layers = std::max<std::size_t>(1, kStreamBytes / layer_bytes);
  tensor::Buffer cache = allocate(layers * layer_bytes);
  fill_random(cache.span(), 2);
  std::vector<const std::byte*> pointers(layers * static_cast<std::size_t>(tiles * heads));
  for (std::size_t i = 0; i < pointers.size(); ++i) {
    pointers[i] = cache.data() + i * tile;
  }
  const std::int64_t width = heads * group * head_dim;
  tensor::Buffer q = allocate(static_cast<std::size_t>(2 * width) * sizeof(float));
  for (std::int64_t i = 0; i < width; ++i) {
    q.as<float>()[static_cast<std::size_t>(i)] = std::cos(static_cast<float>(i));
  }
  const std::int64_t parts = attention_last_part(context - 1);
  const std::int64_t stride = attention_partial_floats(head_dim);
  tensor::Buffer partials =
      allocate(static_cast<std::size_t>(heads * parts * group * stride) * sizeof(float));
  const std::size_t scratch_bytes = (attention_scratch_bytes(head_dim) + 63) / 64 * 64;
  tensor::Buffer scratch = allocate(scratch_bytes * static_cast<std::size_t>(bench.pool.threads()));

  const auto args_of = [&](std::size_t layer, std::int64_t head) {
    AttentionArgs args;
    args.head_dim = head_dim;
    args.tiles = pointers.data() + (static_cast<std::int64_t>(layer) * heads + head) * tiles;
    args.first_position = context - 1;
    args.group = group;
    args.scale = 1.0F / std::sqrt(static_cast<float>(head_dim));
    args.q = q.as<float>().data() + head * group * head_dim;
    args.q_stride = width;
    args.out = q.as<float>().data() + width + head * group * head_dim;
    args.out_stride = width;
    return args;
  };
  const auto pass = [&] {
    for (std::size_t layer = 0; layer < layers; ++layer) {
      bench.pool.parallel_for(heads * parts, 1, [&](std::int64_t first, std::int64_t, int thread) {
        const std::int64_t head = first / parts;
        bench.table.attention_part(
            args_of(layer, head), 0, group, first % parts,
            partials.as<float>().data() + first * group * stride,
            scratch.data() + static_cast<std::size_t>(thread) * scratch_bytes);
      });
      for (std::int64_t head = 0; head < heads; ++head) {
        bench.table.attention_merge(args_of(layer, head), 0, group, parts,
                                    partials.as<float>().data() + head * parts * group * stride);
      }
    }
  };
  std::vector<double> times;
  for (int round = 0; round <= bench.rounds; ++round) {
    const double a = seconds_of(pass);
    if (round > 0) {
      times.push_back(a);
    }
  }
  fmt::print(R"({{"test":"key parts","context":{},"part_keys":{},"us":{:.2f}}})"
             "\n",
             context, kPartKeys, median(times) * 1e6 / static_cast<double>(layers));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 15;
  const int threads = argc > 2 ? std::max(1, std::atoi(argv[2])) : 2;
  set_float_mode();
  const auto picked = pick_kernels(Isa::kAuto);
  if (!picked) {
    fmt::print(stderr, "{}\n", picked.error().message);
    return 1;
  }
  Bench bench{**picked, ThreadPool(threads), rounds};
  for (const std::int64_t context : {2048, 8192}) {
    time_attention(bench, context, 64, 3, 3);   // SmolLM2-135M
    time_attention(bench, context, 128, 8, 4);  // Llama-3-8B
  }
  if (kPartKeys != 512) {
    return 0;  // the other builds differ in attention only
  }
  struct Shape {
    std::int64_t n;
    std::int64_t k;
  };
  for (const Shape shape : {Shape{1536, 576}, Shape{576, 1536}, Shape{4096, 4096},
                            Shape{14336, 4096}, Shape{4096, 14336}}) {
    for (const std::int64_t rows : {1, 16}) {
      compare_split_k(bench, DType::kQ4_0, shape.n, shape.k, rows);
    }
  }
  return 0;
}
