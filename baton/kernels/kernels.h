// The table of CPU kernels: pure functions on pointers and sizes, one table per instruction set,
// picked once at start. Every table gives the same bits (docs/exactness.md): a result depends only
// on its own row and the weight's shape and type, never on the other rows, the range it was called
// with, or the vector width. Nothing allocates or throws. Threads: any number, on ranges that do
// not overlap; each must run in the mode that base/float_mode.h sets (round to nearest, FTZ, DAZ).
//
// A weight W[n][k] (n outputs, k inputs) is packed into panels of 16 outputs, one output per SIMD
// lane; the last panel is padded with zeros. The packed layout is the same for all tables. Work is
// split by giving each thread a range of panels or rows, half-open [first, last).
#pragma once

#include "baton/base/result.h"
#include "baton/kernels/attention.h"
#include "baton/kernels/pack.h"
#include "baton/kernels/rope.h"
#include "baton/tensor/dtype.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace baton::kernels {

using tensor::DType;

enum class Isa : std::uint8_t { kAuto, kRef, kAvx2, kAvx512 };
Result<Isa> parse_isa(std::string_view name);  // auto, ref, avx2, avx512. Errors: kInvalidArgument

// out[row][output] (+)= sum over k of activations[row][k] * W[output][k].
struct MatmulArgs {
  DType dtype = DType::kF32;
  const std::byte* packed = nullptr;       // [panel_count(n)][packed_panel_bytes(dtype, k)]
  std::int64_t n = 0;                      // outputs
  std::int64_t k = 0;                      // inputs; check_weight_shape() passed
  const std::byte* activations = nullptr;  // [rows][activation_row_bytes(format of dtype, k)]
  float* out = nullptr;                    // [rows][out_stride]; row r starts at r * out_stride
  std::int64_t out_stride = 0;             // floats, >= n
  bool accumulate = false;  // add to what out holds (one fp32 add at the end: a fused residual)
};

struct KernelTable {
  const char* name;
  Isa isa;

  // x: f32 [rows][x_stride floats], k of them used -> out: [rows][activation_row_bytes(format, k)].
  // kQ8, kQ8Halves: per row and block of 32: scale = max |x| / 127, q = round to even (x / scale).
  void (*prepare_activations)(ActivationFormat format, const float* x, std::int64_t x_stride,
                              std::int64_t rows, std::int64_t k, std::byte* out);

  // Outputs of panels [first_panel, last_panel) for rows [first_row, last_row); each element is
  // written by exactly one (panel, row). Numerics per type:
  //   quantised: per block of 32 in order: acc = fma(f32(dot) * d, scale, acc), dot an exact
  //     integer, d the exact product of the weight's scales; where the type has a minimum then
  //     acc = fma(m, scaled_sum, acc). Q2_K: two minima, one per 16 values. Q6_K has a scale per
  //     16: acc = fma(fma(f32(high), d1, f32(low) * d0), scale, acc)
  //   F32, F16: acc = fma(w, x, acc) in k order;  BF16: per pair of k, the odd one first
  void (*matmul)(const MatmulArgs& args, std::int64_t first_panel, std::int64_t last_panel,
                 std::int64_t first_row, std::int64_t last_row);

  // out = x / sqrt(mean(x^2) + eps) * weight over each row of n values. x, out: f32 [rows][stride];
  // out may be x. weight: f32 [n]. With `residual` ([rows][stride] like x) first x += residual,
  // written back to x. A per-head norm (Qwen3) is this with rows = tokens * heads, stride = n =
  // head_dim, if heads are contiguous.
  void (*rmsnorm)(float* x, std::int64_t x_stride, const float* residual, const float* weight,
                  float eps, std::int64_t rows, std::int64_t n, float* out,
                  std::int64_t out_stride);

  // Rotates heads in place. x: f32, head h of token t at x + t * token_stride + h * head_dim;
  // positions: [tokens], each < table.positions. Only the first 2 * table.half lanes turn.
  void (*rope)(const RopeTable& table, RopeStyle style, const std::int32_t* positions,
               std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, float* x,
               std::int64_t token_stride);

  // out[i] = silu(gate[i]) * up[i], silu(g) = g / (1 + exp(-g)). f32 [n]; out may be gate or up.
  void (*silu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  // out[i] = gelu(gate[i]) * up[i], gelu(g) = g / 2 * (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))).
  void (*gelu_mul)(const float* gate, const float* up, std::int64_t n, float* out);
  // x[i] += y[i]. f32 [n].
  void (*add)(float* x, const float* y, std::int64_t n);
  // out[i] = exp(x[i]): own code, about 1 ulp; below -87.3 it is 0, above 88.72 inf. out may be x.
  void (*exp)(const float* x, std::int64_t n, float* out);

  // Pieces of sampling, over f32 [n], n >= 1, 16 virtual lanes and a fixed tree.
  float (*max)(const float* x, std::int64_t n);
  float (*sum_exp)(const float* x, std::int64_t n, float max);  // sum of exp(x[i] - max)
  std::int64_t (*argmax)(const float* x, std::int64_t n);       // lowest index among equals

  // K and V rows of consecutive tokens into one tile, see attention.h.
  void (*write_kv)(const KvWriteArgs& args);
  // Attention of query rows [first_row, last_row) of one kv head, see attention.h. scratch:
  // attention_scratch_bytes(head_dim) bytes, aligned to 64, one per thread.
  void (*attention)(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                    std::byte* scratch);
  // The same cut in two, to spread a long context over threads: part p of the rows into
  // partials + ((p - first_part) * (last_row - first_row) + row - first_row) * stride floats,
  // stride = attention_partial_floats(head_dim); rows that see nothing of the part are marked
  // empty.
  void (*attention_part)(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                         std::int64_t part, float* partials, std::byte* scratch);
  // partials: [parts][last_row - first_row][stride], the parts in order -> args.out.
  void (*attention_merge)(const AttentionArgs& args, std::int64_t first_row, std::int64_t last_row,
                          std::int64_t parts, const float* partials);
};

const KernelTable& ref_kernels();     // plain C++, runs everywhere, slow
const KernelTable& avx2_kernels();    // AVX2, FMA, F16C
const KernelTable& avx512_kernels();  // AVX-512 F, BW, VL, DQ, VNNI, BF16

// The table to use. kAuto takes the best that this CPU can run; Errors: kUnsupported when the one
// asked for needs instructions that the CPU (or its system) lacks; the message names them.
Result<const KernelTable*> pick_kernels(Isa requested);

}  // namespace baton::kernels
