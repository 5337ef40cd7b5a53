// Speed of the matmul kernels on one thread: GMAC/s, and for one row the weight bytes read per
// second, beside a plain read of a buffer of the same size in the same run. Usage: bench_kernels
// [seconds per point, default 0.2] [table name]. Numbers of a shared machine: compare within one
// run only.
#include "baton/base/float_mode.h"
#include "baton/kernels/kernels.h"
#include "baton/tensor/buffer.h"

#include <fmt/format.h>

#include "bench/allocate.h"
#include "bench/thread_clock.h"
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace baton;           // NOLINT(google-build-using-namespace): a program, not a header
using namespace baton::kernels;  // NOLINT(google-build-using-namespace)
using bench::allocate;
using bench::thread_cpu_s;

struct Shape {
  DType dtype;
  std::int64_t k;
  std::int64_t n;
};
constexpr Shape kShapes[] = {{DType::kQ4_1, 576, 1536}, {DType::kQ4_1, 1536, 576},
                             {DType::kQ4_0, 576, 1536}, {DType::kQ8_0, 576, 49152},
                             {DType::kBf16, 576, 1536}, {DType::kF16, 576, 1536}};
constexpr std::int64_t kRows[] = {1, 8, 16, 64, 512};
// Weights of one row's pass are taken from this many bytes, so that they come from memory.
constexpr std::size_t kStreamBytes = std::size_t{96} << 20U;

// Best seconds of one call, over about `budget_s`.
template <class Body>
double best_seconds(double budget_s, Body&& body) {
  double best = 1e30;
  const double begin = thread_cpu_s();
  do {
    const double start = thread_cpu_s();
    body();
    best = std::min(best, thread_cpu_s() - start);
  } while (thread_cpu_s() - begin < budget_s);
  return best;
}

// Random blocks with scales of 1.
void fill(DType dtype, std::span<std::byte> stored) {
  std::mt19937 engine(1);
  for (std::size_t at = 0; at + 4 <= stored.size(); at += 4) {
    const std::uint32_t bits = static_cast<std::uint32_t>(engine()) & 0xBFFFBFFFU;  // finite halves
    std::memcpy(stored.data() + at, &bits, 4);
  }
  const std::size_t block = tensor::traits(dtype).block_bytes;
  const std::uint16_t one = 0x3C00;
  for (std::size_t at = 0; block > 4 && at < stored.size(); at += block) {
    std::memcpy(stored.data() + at, &one, 2);
  }
}

double read_gb_per_s(double budget_s, std::span<const std::byte> bytes) {
  std::uint64_t sink = 0;
  const double seconds = best_seconds(budget_s, [&] {
    std::uint64_t sums[8] = {};
    for (std::size_t at = 0; at + 64 <= bytes.size(); at += 64) {
      for (std::size_t i = 0; i < 8; ++i) {
        std::uint64_t word;
        std::memcpy(&word, bytes.data() + at + 8 * i, 8);
        sums[i] += word;
      }
    }
    for (const std::uint64_t sum : sums) {
      sink += sum;
    }
  });
  volatile std::uint64_t keep = sink;
  static_cast<void>(keep);
  return static_cast<double>(bytes.size()) / seconds * 1e-9;
}

void measure(const KernelTable& table, const Shape& shape, double budget_s) {
  const std::int64_t k = shape.k;
  const std::size_t weight_bytes = packed_bytes(shape.dtype, shape.n, k);
  const std::size_t copies = std::max<std::size_t>(1, kStreamBytes / weight_bytes);
  tensor::Buffer stored =
      allocate(static_cast<std::size_t>(shape.n) * tensor::row_bytes(shape.dtype, k));
  fill(shape.dtype, stored.span());
  tensor::Buffer packed = allocate(copies * weight_bytes);
  for (std::size_t copy = 0; copy < copies; ++copy) {
    repack(shape.dtype, stored.data(), shape.n, k, 0, panel_count(shape.n),
           packed.data() + copy * weight_bytes);
  }
  fmt::print("{:7} {:5} {:>5}x{:<6}", table.name, tensor::dtype_name(shape.dtype), k, shape.n);
  for (const std::int64_t rows : kRows) {
    if (rows * shape.n > std::int64_t{64} * 49152) {
      continue;
    }
    const ActivationFormat format = activation_format(shape.dtype);
    tensor::Buffer x = allocate(static_cast<std::size_t>(rows * k) * sizeof(float));
    for (std::size_t i = 0; i < x.as<float>().size(); ++i) {
      x.as<float>()[i] = std::sin(static_cast<float>(i));
    }
    tensor::Buffer prepared =
        allocate(static_cast<std::size_t>(rows) * activation_row_bytes(format, k));
    table.prepare_activations(format, x.as<float>().data(), k, rows, k, prepared.data());
    tensor::Buffer out = allocate(static_cast<std::size_t>(rows * shape.n) * sizeof(float));
    MatmulArgs args{shape.dtype,     packed.data(),          shape.n, k,
                    prepared.data(), out.as<float>().data(), shape.n, false};
    const std::size_t passes = rows == 1 ? copies : 1;
    const double seconds = best_seconds(budget_s, [&] {
      for (std::size_t copy = 0; copy < passes; ++copy) {
        args.packed = packed.data() + copy * weight_bytes;
        table.matmul(args, 0, panel_count(shape.n), 0, rows);
      }
    });
    const double macs = static_cast<double>(rows * k * shape.n) * static_cast<double>(passes);
    fmt::print("  {:4} rows {:6.1f}", rows, macs / seconds * 1e-9);
    if (rows == 1) {
      const double bytes = static_cast<double>(weight_bytes * passes);
      fmt::print(" ({:.1f} of {:.1f} GB/s)", bytes / seconds * 1e-9,
                 read_gb_per_s(budget_s, packed.span()));
    }
  }
  fmt::print("  GMAC/s\n");
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const double budget_s = argc > 1 ? std::atof(argv[1]) : 0.2;
  const std::string_view only = argc > 2 ? argv[2] : "";
  set_float_mode();
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    const auto picked = pick_kernels(isa);
    if (!picked) {
      fmt::print("{}\n", picked.error().message);
      continue;
    }
    if (!only.empty() && only != (*picked)->name) {
      continue;
    }
    for (const Shape& shape : kShapes) {
      measure(**picked, shape, budget_s);
    }
  }
  return 0;
}
