// How attention reads tiles of each type of cache, sixteen words at a time. Included by
// attention.inl after simd.h, inside the namespace of the instruction set.
namespace {

BATON_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

// keys(): word `word` of head_dim for keys first to first + 15 of a K plane. values(): lanes dim to
// dim + 15 of word `word` of a V plane's keys; first_values() the first n of them.
struct Bf16Cache {
  static constexpr std::int64_t kTogether = 2;
  using Words = Pairs;
  BATON_INLINE static Words keys(const std::byte* plane, std::int64_t /*head_dim*/,
                                 std::int64_t word, std::int64_t first) {
    return load_pairs(plane + (word * kTileKeys + first) * 4);
  }
  BATON_INLINE static Words values(const std::byte* plane, std::int64_t head_dim, std::int64_t word,
                                   std::int64_t dim) {
    return load_pairs(plane + (word * head_dim + dim) * 4);
  }
  BATON_INLINE static Words first_values(const std::byte* plane, std::int64_t head_dim,
                                         std::int64_t word, std::int64_t dim, std::int64_t n) {
    return load_first_pairs(plane + (word * head_dim + dim) * 4, n);
  }
  BATON_INLINE static Words broadcast(const std::byte* p) { return broadcast_pair(p); }
  BATON_INLINE static V dot(V acc, Words a, Words b) { return dot_pairs(acc, a, b); }
  // Word `pair` of keys that are seen only in [first, last): others read as +0.
  BATON_INLINE static Words keep_seen(Words v, std::int64_t pair, std::int64_t first,
                                      std::int64_t last) {
    const bool even = 2 * pair >= first && 2 * pair < last;
    const bool odd = 2 * pair + 1 >= first && 2 * pair + 1 < last;
    return keep_bits(v, (even ? 0x0000FFFFU : 0U) | (odd ? 0xFFFF0000U : 0U));
  }
  BATON_INLINE static V round(V a) { return round_bf16(a); }
  BATON_INLINE static void store_rounded(std::byte* base, std::int64_t index, V a) {
    store_bf16(reinterpret_cast<std::uint16_t*>(base) + index, a);
  }
  static void round_query(const float* q, std::int64_t dims, std::byte* out) {
    auto* to = reinterpret_cast<std::uint16_t*>(out);
    std::int64_t i = 0;
    for (; i + 16 <= dims; i += 16) {
      store_bf16(to + i, load(q + i));
    }
    for (; i < dims; ++i) {
      to[i] = f32_to_bf16(q[i]);
    }
  }
};

// What f32 and the types that are widened to it share.
struct WideCache {
  static constexpr std::int64_t kTogether = 1;
  using Words = V;
  BATON_INLINE static Words broadcast(const std::byte* p) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return set1(value);
  }
  BATON_INLINE static V dot(V acc, Words a, Words b) { return fma(a, b, acc); }
  BATON_INLINE static Words keep_seen(Words v, std::int64_t key, std::int64_t first,
                                      std::int64_t last) {
    return key >= first && key < last ? v : zero();
  }
  BATON_INLINE static V round(V a) { return a; }
  BATON_INLINE static void store_rounded(std::byte* base, std::int64_t index, V a) {
    store(reinterpret_cast<float*>(base) + index, a);
  }
  static void round_query(const float* q, std::int64_t dims, std::byte* out) {
    std::memcpy(out, q, static_cast<std::size_t>(dims) * sizeof(float));
  }
};

struct F32Cache : WideCache {
  BATON_INLINE static V keys(const std::byte* plane, std::int64_t /*head_dim*/, std::int64_t word,
                             std::int64_t first) {
    return load(reinterpret_cast<const float*>(plane) + word * kTileKeys + first);
  }
  BATON_INLINE static V values(const std::byte* plane, std::int64_t head_dim, std::int64_t word,
                               std::int64_t dim) {
    return load(reinterpret_cast<const float*>(plane) + word * head_dim + dim);
  }
  BATON_INLINE static V first_values(const std::byte* plane, std::int64_t head_dim,
                                     std::int64_t word, std::int64_t dim, std::int64_t n) {
    return load_first(reinterpret_cast<const float*>(plane) + word * head_dim + dim, n);
  }
};

struct F16Cache : WideCache {
  BATON_INLINE static V keys(const std::byte* plane, std::int64_t /*head_dim*/, std::int64_t word,
                             std::int64_t first) {
    return load_f16(plane + 2 * (word * kTileKeys + first));
  }
  BATON_INLINE static V values(const std::byte* plane, std::int64_t head_dim, std::int64_t word,
                               std::int64_t dim) {
    return load_f16(plane + 2 * (word * head_dim + dim));
  }
  BATON_INLINE static V first_values(const std::byte* plane, std::int64_t head_dim,
                                     std::int64_t word, std::int64_t dim, std::int64_t n) {
    return load_first_f16(plane + 2 * (word * head_dim + dim), n);
  }
};

// Scales first, f16 [head_dim / 32][32 keys]; scale * byte is exact in f32.
struct Q8Cache : WideCache {
  BATON_INLINE static std::int64_t scale_bytes(std::int64_t head_dim) {
    return head_dim / kKvScaleDims * kTileKeys * 2;
  }
  BATON_INLINE static V keys(const std::byte* plane, std::int64_t head_dim, std::int64_t word,
                             std::int64_t first) {
    const V scales = load_f16(plane + 2 * (word / kKvScaleDims * kTileKeys + first));
    return mul(load_int8(plane + scale_bytes(head_dim) + word * kTileKeys + first), scales);
  }
  BATON_INLINE static V values(const std::byte* plane, std::int64_t head_dim, std::int64_t word,
                               std::int64_t dim) {
    const V scale = splat_f16(plane + 2 * (dim / kKvScaleDims * kTileKeys + word));
    return mul(load_int8(plane + scale_bytes(head_dim) + word * head_dim + dim), scale);
  }
  // head_dim is a multiple of 32: never fewer than 16.
  BATON_INLINE static V first_values(const std::byte* plane, std::int64_t head_dim,
                                     std::int64_t word, std::int64_t dim, std::int64_t /*n*/) {
    return values(plane, head_dim, word, dim);
  }
};

// body(Cache{}) for the type of a cache.
template <class Body>
BATON_INLINE void with_cache(DType dtype, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(F32Cache{});
    case DType::kF16:
      return body(F16Cache{});
    case DType::kQ8_0:
      return body(Q8Cache{});
    default:
      return body(Bf16Cache{});
  }
}

}  // namespace
