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
constexpr std::size_t kPrefetchBytes = 4096;

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

template <DType kType, int kRows>
void quantised_panel(const PanelArgs& args) {
  constexpr std::size_t kHead = (kType == DType::kQ4_1 ? 4 : 2) * kLanes;
  constexpr std::size_t kBlockBytes = kHead + (kType == DType::kQ8_0 ? 32 : 16) * kLanes;
  const std::byte* packed = args.panel;
  const std::byte* x[kRows];
  V sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    x[r] = args.activations + static_cast<std::size_t>(r) * args.row_bytes;
    sums[r] = zero();
  }
  for (std::int64_t block = 0; block < args.k / kQuantBlock; ++block) {
    for (std::size_t line = 0; line < kBlockBytes; line += 64) {
      prefetch(packed + kPrefetchBytes + line);
    }
    V dots[kRows];
    if constexpr (kType == DType::kQ8_0) {
      dot_bytes<kRows>(packed + kHead, x, dots);
    } else {
      dot_nibbles<kRows, kType == DType::kQ4_0>(packed + kHead, x, dots);
    }
    const V d = load_f16(packed);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float scale;
      std::memcpy(&scale, x[r], sizeof scale);
      sums[r] = fma(mul(dots[r], d), set1(scale), sums[r]);
    }
    if constexpr (kType == DType::kQ4_1) {
      const V m = load_f16(packed + 2 * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        float scaled_sum;
        std::memcpy(&scaled_sum, x[r] + 4, sizeof scaled_sum);
        sums[r] = fma(m, set1(scaled_sum), sums[r]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      x[r] += sizeof(ActivationBlock);
    }
    packed += kBlockBytes;
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
constexpr bool kIsQuantised =
    kType == DType::kQ4_0 || kType == DType::kQ4_1 || kType == DType::kQ8_0;
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
  }
}
