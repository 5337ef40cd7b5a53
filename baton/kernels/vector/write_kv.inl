// Writing K and V rows into tiles, included by avx2/attention.cpp and avx512/attention.cpp behind
// attention.inl: rounding runs over lanes, what is transposed is moved one by one.
namespace {

void write_bf16(const KvWriteArgs& args) {
  alignas(64) std::uint16_t k[kMaxHeadDim];
  alignas(64) std::uint16_t v[2][kMaxHeadDim];  // of an even token and the odd one after it
  auto* k_words = reinterpret_cast<std::uint32_t*>(args.tile);
  std::byte* v_plane = args.tile + kv_plane_bytes(args.dtype, args.head_dim);
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const std::int64_t slot = args.first_slot + token;
    Bf16Cache::round_query(args.k + token * args.k_stride, args.head_dim,
                           reinterpret_cast<std::byte*>(k));
    Bf16Cache::round_query(args.v + token * args.v_stride, args.head_dim,
                           reinterpret_cast<std::byte*>(v[slot % 2]));
    for (std::int64_t pair = 0; pair < args.head_dim / 2; ++pair) {
      std::uint32_t word;
      std::memcpy(&word, k + 2 * pair, sizeof word);
      k_words[pair * kTileKeys + slot] = word;
    }
    if (slot % 2 == 0 && token + 1 < args.tokens) {
      continue;  // its partner stores both
    }
    auto* v_row = reinterpret_cast<std::uint32_t*>(v_plane) + slot / 2 * args.head_dim;
    if (slot % 2 == 1 && token > 0) {
      for (std::int64_t dim = 0; dim < args.head_dim; ++dim) {
        v_row[dim] = v[0][dim] | static_cast<std::uint32_t>(v[1][dim]) << 16U;
      }
    } else {
      auto* halves = reinterpret_cast<std::byte*>(v_row) + slot % 2 * 2;
      for (std::int64_t dim = 0; dim < args.head_dim; ++dim) {
        std::memcpy(halves + 4 * dim, &v[slot % 2][dim], sizeof v[0][0]);
      }
    }
  }
}

void write_f32(const KvWriteArgs& args) {
  auto* k_plane = reinterpret_cast<float*>(args.tile);
  auto* v_plane = k_plane + kTileKeys * args.head_dim;
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const std::int64_t slot = args.first_slot + token;
    for (std::int64_t dim = 0; dim < args.head_dim; ++dim) {
      k_plane[dim * kTileKeys + slot] = args.k[token * args.k_stride + dim];
    }
    std::memcpy(v_plane + slot * args.head_dim, args.v + token * args.v_stride,
                static_cast<std::size_t>(args.head_dim) * sizeof(float));
  }
}

void write_f16(const KvWriteArgs& args) {
  alignas(64) std::uint16_t row[kMaxHeadDim + 16];
  auto* k_plane = reinterpret_cast<std::uint16_t*>(args.tile);
  auto* v_plane = k_plane + kTileKeys * args.head_dim;
  const auto round = [&](const float* from) {
    for (std::int64_t dim = 0; dim < args.head_dim; dim += 16) {
      const V value = load_first(from + dim, smaller(16, args.head_dim - dim));
      store_f16(row + dim, min2(max2(value, set1(-kLargestHalf)), set1(kLargestHalf)));
    }
  };
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const std::int64_t slot = args.first_slot + token;
    round(args.k + token * args.k_stride);
    for (std::int64_t dim = 0; dim < args.head_dim; ++dim) {
      k_plane[dim * kTileKeys + slot] = row[dim];
    }
    round(args.v + token * args.v_stride);
    std::memcpy(v_plane + slot * args.head_dim, row,
                static_cast<std::size_t>(args.head_dim) * sizeof row[0]);
  }
}

// 32 values to bytes; returns their f16 scale.
std::uint16_t quantise_q8(const float* x, std::int8_t* out) {
  const V low = load(x);
  const V high = load(x + 16);
  const float largest = reduce_max(max2(abs(high), max2(abs(low), zero())));
  const std::uint16_t scale = q8_scale(largest);
  const float inverse = q8_inverse(scale);
  const auto quantise = [&](V value) {
    const V bounded = min2(max2(mul(value, set1(inverse)), set1(-127.0F)), set1(127.0F));
    return sub(add(bounded, set1(0x1.8p23F)), set1(0x1.8p23F));
  };
  store_int8(out, quantise(low));
  store_int8(out + 16, quantise(high));
  return scale;
}

void write_q8(const KvWriteArgs& args) {
  alignas(64) std::int8_t row[kKvScaleDims];
  std::byte* planes[2] = {args.tile, args.tile + kv_plane_bytes(args.dtype, args.head_dim)};
  const std::int64_t scale_bytes = Q8Cache::scale_bytes(args.head_dim);
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    const std::int64_t slot = args.first_slot + token;
    for (std::int64_t dim = 0; dim < args.head_dim; dim += kKvScaleDims) {
      const std::int64_t scale_at = 2 * (dim / kKvScaleDims * kTileKeys + slot);
      std::uint16_t scale = quantise_q8(args.k + token * args.k_stride + dim, row);
      std::memcpy(planes[0] + scale_at, &scale, sizeof scale);
      for (std::int64_t i = 0; i < kKvScaleDims; ++i) {
        planes[0][scale_bytes + (dim + i) * kTileKeys + slot] = static_cast<std::byte>(row[i]);
      }
      scale = quantise_q8(args.v + token * args.v_stride + dim, row);
      std::memcpy(planes[1] + scale_at, &scale, sizeof scale);
      std::memcpy(planes[1] + scale_bytes + slot * args.head_dim + dim, row, sizeof row);
    }
  }
}

}  // namespace

void write_kv(const KvWriteArgs& args) {
  if (args.first_slot == 0) {
    std::memset(args.tile, 0, kv_tile_bytes(args.dtype, args.head_dim));
  }
  switch (args.dtype) {
    case DType::kF32:
      return write_f32(args);
    case DType::kF16:
      return write_f16(args);
    case DType::kQ8_0:
      return write_q8(args);
    default:
      return write_bf16(args);
  }
}
