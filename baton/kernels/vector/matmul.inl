// The matmul over sixteen lanes, included by avx2/matmul.cpp and avx512/matmul.cpp after their
// simd.h, inside the namespace of the instruction set. A panel is walked once for up to kRows rows,
// so that a weight is unpacked once for all of them; what one row computes is the same for any
// kRows.
namespace {

constexpr std::size_t kLanes = kPanelOutputs;

// Rows whose activations stay in the second-level cache (half of a common 1 MiB) while all panels
// pass over them.
constexpr std::size_t kResidentBytes = std::size_t{384} << 10U;
// Distance of the software prefetch: few rows stream through the weights at memory speed.
constexpr std::size_t kPrefetchBytes = 8192;

struct PanelArgs {
  const std::byte* panel;
  const std::byte* activations;  // of the first row
  std::size_t row_bytes;
  std::int64_t k;
  float* out;  // of the first row and the panel's first output
  std::int64_t out_stride;
  std::int64_t outputs;  // 1 to 16
  bool accumulate;
};

template <int kRows>
BATON_INLINE void finish(const PanelArgs& args, const V* sums) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    float* out = args.out + r * args.out_stride;
    if (args.outputs == kPanelOutputs) {
      store(out, args.accumulate ? add(load(out), sums[r]) : sums[r]);
    } else {
      const V old = args.accumulate ? load_first(out, args.outputs) : zero();
      store_first(out, args.accumulate ? add(old, sums[r]) : sums[r], args.outputs);
    }
  }
}

// ---- quantised weights ----

// body(std::integral_constant<int, kFirst>), ..., kLast - 1: words whose shifts are immediates.
template <int kFirst, int kLast, class Body>
BATON_INLINE void for_words(Body body) {
  if constexpr (kFirst < kLast) {
    body(std::integral_constant<int, kFirst>{});
    for_words<kFirst + 1, kLast>(body);
  }
}

// The f16 scales of a super-block.
struct Heads {
  V d;
  V m;
};

// Scales of a block as the products want them. multiply and add: Q2_K and Q3_K put the small scale
// into the codes, as multiply * code + add on pairs of bytes at once: nothing carries, because both
// bytes of the result fit eight bits.
struct Scales {
  V d[2];
  V m[2];
  Ints multiply[2];
  Ints add[2];
  Ints table;
};

template <DType kType>
BATON_INLINE Heads load_heads(const std::byte* super) {
  constexpr Packing kPacking = packing(kType);
  Heads heads{};
  if constexpr (kPacking.halves > 0) {
    heads.d = load_f16(super);
  }
  if constexpr (kPacking.halves > 1) {
    heads.m = load_f16(super + 2 * kLanes);
  }
  return heads;
}

template <DType kType>
BATON_INLINE Scales load_scales(const Heads& heads, const std::byte* block) {
  Scales scales{};
  scales.d[0] = heads.d;
  scales.m[0] = heads.m;
  if constexpr (kType == DType::kMxfp4) {
    scales.d[0] = mxfp4_scales(load_u8(block));
    scales.table = biased_table(kMxfp4Values);
  } else if constexpr (kType == DType::kIq4Nl) {
    scales.table = biased_table(kIq4NlValues);
  } else if constexpr (kType == DType::kQ4K || kType == DType::kQ5K) {
    scales.d[0] = mul(heads.d, to_float(load_u8(block)));
    scales.m[0] = mul(negate(heads.m), to_float(load_u8(block + kLanes)));
  } else if constexpr (kType == DType::kQ6K) {
    scales.d[0] = mul(heads.d, to_float(load_s8(block)));
    scales.d[1] = mul(heads.d, to_float(load_s8(block + kLanes)));
  } else if constexpr (kType == DType::kQ2K) {
    for (std::size_t half = 0; half < 2; ++half) {
      const Ints bytes = load_u8(block + half * kLanes);
      scales.multiply[half] = mul32(and2(bytes, splat(15)), splat(0x00010001U));
      scales.m[half] = mul(negate(heads.m), to_float(shift_right<4>(bytes)));
    }
  } else if constexpr (kType == DType::kQ3K) {
    scales.d[0] = negate(heads.d);
    for (std::size_t half = 0; half < 2; ++half) {
      // 128 + (32 - s) (q - 4) = 4 s + (32 - s) q
      const Ints bytes = load_u8(block + half * kLanes);
      scales.multiply[half] = sub16(splat(0x00200020U), mul32(bytes, splat(0x00010001U)));
      scales.add[half] = mul32(bytes, splat(0x04040404U));
    }
  }
  return scales;
}

// Word kWord of a block as dot4 takes it.
template <DType kType, int kWord>
BATON_INLINE Ints unpack_word(const std::byte* planes, const Scales& scales) {
  constexpr Packing kPacking = packing(kType);
  constexpr std::size_t kHalf = kWord / 4;
  if constexpr (kPacking.eight) {
    return load_ints(planes + kWordBytes * kWord);
  }
  Ints code{};
  if constexpr (kPacking.four) {
    const Ints both = load_ints(planes + kWordBytes * (kWord % 4));
    code = and2(shift_right < kWord < 4 ? 0 : 4 > (both), splat(0x0F0F0F0FU));
  }
  constexpr std::size_t kTwoAt = kPacking.four ? 4 * kWordBytes : 0;
  constexpr int kTwoBit = kPacking.four ? 4 : 0;
  if constexpr (kPacking.two) {
    const Ints four = load_ints(planes + kTwoAt + kWordBytes * kHalf);
    const Ints bits = and2(shift_right<2 * (kWord % 4) - kTwoBit>(four),
                           splat(0x03030303U << static_cast<unsigned>(kTwoBit)));
    code = kPacking.four ? or2(code, bits) : bits;
  }
  if constexpr (kPacking.one) {
    constexpr std::size_t kOneAt = kTwoAt + (kPacking.two ? 2 * kWordBytes : 0);
    constexpr int kOneBit = kTwoBit + (kPacking.two ? 2 : 0);
    const Ints eight = load_ints(planes + kOneAt);
    code = or2(code, and2(shift_right<kWord - kOneBit>(eight),
                          splat(0x01010101U << static_cast<unsigned>(kOneBit))));
  }
  if constexpr (kType == DType::kIq4Nl || kType == DType::kMxfp4) {
    code = look_up(scales.table, code);
  } else if constexpr (kType == DType::kQ2K) {
    code = mul16(code, scales.multiply[kHalf]);
  } else if constexpr (kType == DType::kQ3K) {
    code = add16(mul16(code, scales.multiply[kHalf]), scales.add[kHalf]);
  }
  return code;
}

// Exact dots of words [kFirst, kLast), as f32.
template <DType kType, int kRows, Bias kBias, int kFirst, int kLast>
BATON_INLINE void dot_words(const std::byte* planes, const Scales& scales,
                            const std::byte* const* x, V* dots) {
  Ints sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sums[r] = start_dot<kBias>(x[r]);
  }
  for_words<kFirst, kLast>([&](auto word) __attribute__((always_inline)) {
    const Ints codes = unpack_word<kType, word>(planes, scales);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r] = dot4<kBias>(sums[r], codes, x[r] + kValues + 4 * word);
    }
  });
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    dots[r] = to_float(sums[r]);
  }
}

// The dots of a block over its 32 values, and for Q6_K what its two scales make of them.
template <DType kType, int kRows>
BATON_INLINE void dot_block(const std::byte* planes, const Scales& scales,
                            const std::byte* const* x, V* scaled) {
  if constexpr (kType == DType::kQ6K) {
    V high[kRows];
    dot_words<kType, kRows, Bias::kLow32, 0, 4>(planes, scales, x, scaled);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      scaled[r] = mul(scaled[r], scales.d[0]);
    }
    dot_words<kType, kRows, Bias::kHigh32, 4, 8>(planes, scales, x, high);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      scaled[r] = fma(high[r], scales.d[1], scaled[r]);
    }
    return;
  }
  if constexpr (kType == DType::kQ8_0) {
    dot_bytes<kRows>(planes, x, scaled);
  } else if constexpr (kType == DType::kQ4_0 || kType == DType::kQ4_1 || kType == DType::kQ4K) {
    dot_nibbles<kRows, kType == DType::kQ4_0>(planes, x, scaled);
  } else {
    dot_words<kType, kRows, bias_of(kType), 0, 8>(planes, scales, x, scaled);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    scaled[r] = mul(scaled[r], scales.d[0]);
  }
}

BATON_INLINE V splat_float(const std::byte* p) {
  float value;
  std::memcpy(&value, p, sizeof value);
  return set1(value);
}

constexpr std::size_t kScaledSum = 4;        // of an ActivationBlock
constexpr std::size_t kScaledHalfSums = 56;  // of an ActivationHalves

template <DType kType, int kRows>
BATON_INLINE void add_block(const Heads& heads, const std::byte* block, const std::byte* const* x,
                            V* sums) {
  const Scales scales = load_scales<kType>(heads, block);
  V scaled[kRows];
  dot_block<kType, kRows>(block + packed_scale_bytes(packing(kType)), scales, x, scaled);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sums[r] = fma(scaled[r], splat_float(x[r]), sums[r]);
  }
  if constexpr (kType == DType::kQ2K) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r] = fma(scales.m[0], splat_float(x[r] + kScaledHalfSums), sums[r]);
      sums[r] = fma(scales.m[1], splat_float(x[r] + kScaledHalfSums + 4), sums[r]);
    }
  } else if constexpr (packing(kType).halves == 2) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r] = fma(scales.m[0], splat_float(x[r] + kScaledSum), sums[r]);
    }
  }
}

template <DType kType>
constexpr std::size_t kActivationBytes = kType == DType::kQ6K || kType == DType::kQ2K
                                             ? sizeof(ActivationHalves)
                                             : sizeof(ActivationBlock);

template <DType kType, int kRows>
void quantised_panel(const PanelArgs& args) {
  constexpr Packing kPacking = packing(kType);
  constexpr std::size_t kHead = packed_head_bytes(kPacking);
  constexpr std::size_t kBlockBytes = packed_block_bytes(kPacking);
  // A head counts as part of its first block; only super-blocks have more than one.
  constexpr std::size_t kAhead = kBlockBytes + (kPacking.blocks == 1 ? kHead : 0);
  const std::byte* packed = args.panel;
  const std::byte* x[kRows];
  V sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    x[r] = args.activations + static_cast<std::size_t>(r) * args.row_bytes;
    sums[r] = zero();
  }
  constexpr std::int64_t kSuper = static_cast<std::int64_t>(kPacking.blocks) * kQuantBlock;
  for (std::int64_t done = 0; done < args.k; done += kSuper) {
    const Heads heads = load_heads<kType>(packed);
    packed += kHead;
    for (std::size_t block = 0; block < kPacking.blocks; ++block) {
      for (std::size_t line = 0; line < kAhead; line += 64) {
        prefetch(packed + kPrefetchBytes + line);
      }
      add_block<kType, kRows>(heads, packed, x, sums);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        x[r] += kActivationBytes<kType>;
      }
      packed += kBlockBytes;
    }
  }
  finish<kRows>(args, sums);
}

template <DType kType, int kRows>
void plain_panel(const PanelArgs& args) {
  constexpr std::size_t kStep = kType == DType::kBf16 ? 2 : 1;  // values of k at once
  constexpr std::size_t kWidth = (kType == DType::kF16 ? 2 : 4) * kLanes;
  const std::byte* packed = args.panel;
  const std::byte* x = args.activations;
  V sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sums[r] = zero();
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(args.k); i += kStep) {
    prefetch(packed + kPrefetchBytes);
    if constexpr (kType == DType::kBf16) {
      const Pairs w = load_pairs(packed);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        sums[r] =
            dot_pairs(sums[r], w, broadcast_pair(x + static_cast<std::size_t>(r) * args.row_bytes));
      }
    } else {
      V w;
      if constexpr (kType == DType::kF16) {
        w = load_f16(packed);
      } else {
        w = load(reinterpret_cast<const float*>(packed));
      }
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        float value;
        std::memcpy(&value, x + static_cast<std::size_t>(r) * args.row_bytes, sizeof value);
        sums[r] = fma(w, set1(value), sums[r]);
      }
    }
    x += 4;  // one f32 or two bf16
    packed += kWidth;
  }
  finish<kRows>(args, sums);
}

using PanelFunction = void (*)(const PanelArgs&);

template <DType kType>
constexpr bool kIsQuantised = kType != DType::kF32&& kType != DType::kF16&& kType != DType::kBf16;
template <DType kType>
constexpr int kMaxRows = kIsQuantised<kType> ? kQuantRows : kPlainRows;

template <DType kType, int kRows>
constexpr PanelFunction panel_function() {
  if constexpr (kIsQuantised<kType>) {
    return quantised_panel<kType, kRows>;
  } else {
    return plain_panel<kType, kRows>;
  }
}

// function[rows - 1] takes that many rows at once.
template <DType kType, int... kRows>
void choose(std::integer_sequence<int, kRows...> /*unused*/, int rows, const PanelArgs& args) {
  static constexpr PanelFunction kFunctions[] = {panel_function<kType, kRows + 1>()...};
  kFunctions[rows - 1](args);
}

template <DType kType>
void matmul_type(const MatmulArgs& args, std::int64_t first_panel, std::int64_t last_panel,
                 std::int64_t first_row, std::int64_t last_row) {
  constexpr std::int64_t kTogether = kMaxRows<kType>;
  const std::size_t panel_bytes = packed_panel_bytes(kType, args.k);
  const std::size_t row_bytes = activation_row_bytes(activation_format(kType), args.k);
  std::int64_t resident = static_cast<std::int64_t>(kResidentBytes / row_bytes);
  resident = resident < kTogether ? kTogether : resident / kTogether * kTogether;
  for (std::int64_t base = first_row; base < last_row; base += resident) {
    const std::int64_t end = base + resident < last_row ? base + resident : last_row;
    for (std::int64_t panel = first_panel; panel < last_panel; ++panel) {
      const std::int64_t output = panel * kPanelOutputs;
      PanelArgs at{args.packed + static_cast<std::size_t>(panel) * panel_bytes,
                   nullptr,
                   row_bytes,
                   args.k,
                   nullptr,
                   args.out_stride,
                   args.n - output,
                   args.accumulate};
      at.outputs = at.outputs < kPanelOutputs ? at.outputs : kPanelOutputs;
      for (std::int64_t row = base; row < end;) {
        // What is left is shared out evenly: 9 rows as 5 + 4, not 8 + 1.
        const std::int64_t left = end - row;
        const std::int64_t passes = (left + kTogether - 1) / kTogether;
        const std::int64_t rows = (left + passes - 1) / passes;
        at.activations = args.activations + static_cast<std::size_t>(row) * row_bytes;
        at.out = args.out + row * args.out_stride + output;
        choose<kType>(std::make_integer_sequence<int, kMaxRows<kType>>{}, static_cast<int>(rows),
                      at);
        row += rows;
      }
    }
  }
}

}  // namespace

void matmul(const MatmulArgs& args, std::int64_t first_panel, std::int64_t last_panel,
            std::int64_t first_row, std::int64_t last_row) {
  switch (args.dtype) {
    case DType::kF32:
      return matmul_type<DType::kF32>(args, first_panel, last_panel, first_row, last_row);
    case DType::kF16:
      return matmul_type<DType::kF16>(args, first_panel, last_panel, first_row, last_row);
    case DType::kBf16:
      return matmul_type<DType::kBf16>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ4_0:
      return matmul_type<DType::kQ4_0>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ4_1:
      return matmul_type<DType::kQ4_1>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ8_0:
      return matmul_type<DType::kQ8_0>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ5_0:
      return matmul_type<DType::kQ5_0>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ5_1:
      return matmul_type<DType::kQ5_1>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ2K:
      return matmul_type<DType::kQ2K>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ3K:
      return matmul_type<DType::kQ3K>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ4K:
      return matmul_type<DType::kQ4K>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ5K:
      return matmul_type<DType::kQ5K>(args, first_panel, last_panel, first_row, last_row);
    case DType::kQ6K:
      return matmul_type<DType::kQ6K>(args, first_panel, last_panel, first_row, last_row);
    case DType::kIq4Nl:
      return matmul_type<DType::kIq4Nl>(args, first_panel, last_panel, first_row, last_row);
    case DType::kMxfp4:
      return matmul_type<DType::kMxfp4>(args, first_panel, last_panel, first_row, last_row);
  }
}
