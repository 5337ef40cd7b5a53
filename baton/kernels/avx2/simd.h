// Sixteen f32 lanes as two AVX registers, behind the names that kernels/vector/*.inl are written
// in. Everything has internal linkage or is always inlined: no AVX2 code may leak into a symbol
// that other files share.
#pragma once

#include "baton/kernels/blocks.h"
#include "baton/kernels/half.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::kernels::avx2 {
namespace {

// Loops over rows are unrolled by pragma throughout: an array of registers that one rolled loop
// touches lives in memory at -O2, at half the speed.
//
// How many rows share an unpacked weight, and queries a loaded tile: bounded by 16 registers.
constexpr int kQuantRows = 4;
constexpr int kPlainRows = 4;
constexpr int kScoreRows = 4;
constexpr int kValueRows = 2;
constexpr int kValueVectors = 2;

struct V {
  __m256 low;
  __m256 high;
};

BATON_INLINE __m256i first_mask(std::int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

BATON_INLINE V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
BATON_INLINE V set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
BATON_INLINE V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
BATON_INLINE void store(float* p, V a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
// The first n lanes (1 to 16); the others are +0 and their memory is not touched.
BATON_INLINE V load_first(const float* p, std::int64_t n) {
  return {_mm256_maskload_ps(p, first_mask(n)), _mm256_maskload_ps(p + 8, first_mask(n - 8))};
}
BATON_INLINE void store_first(float* p, V a, std::int64_t n) {
  _mm256_maskstore_ps(p, first_mask(n), a.low);
  _mm256_maskstore_ps(p + 8, first_mask(n - 8), a.high);
}
// Lanes [first, last) of a, others of b.
BATON_INLINE V select_lanes(V a, V b, std::int64_t first, std::int64_t last) {
  const auto pick = [&](__m256 x, __m256 y, std::int64_t base) {
    const __m256i mask = _mm256_andnot_si256(first_mask(first - base), first_mask(last - base));
    return _mm256_blendv_ps(y, x, _mm256_castsi256_ps(mask));
  };
  return {pick(a.low, b.low, 0), pick(a.high, b.high, 8)};
}

BATON_INLINE V add(V a, V b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
BATON_INLINE V sub(V a, V b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
BATON_INLINE V mul(V a, V b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
BATON_INLINE V div(V a, V b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
BATON_INLINE V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
BATON_INLINE V fnma(V a, V b, V c) {  // -a * b + c
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
BATON_INLINE V max2(V a, V b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
BATON_INLINE V min2(V a, V b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
BATON_INLINE V abs(V a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
BATON_INLINE V negate(V a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_xor_ps(sign, a.low), _mm256_xor_ps(sign, a.high)};
}
BATON_INLINE V sqrt1(V a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
BATON_INLINE V select_less(V a, V b, V yes, V no) {
  return {_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

// p * 2^n in two factors, n = bits(shifted) - bits(1.5 * 2^23).
BATON_INLINE __m256 scale_half_by_power(__m256 p, __m256 shifted) {
  const __m256i steps =
      _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4B400000));
  const __m256i half = _mm256_srai_epi32(steps, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i a = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i b = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(steps, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b));
}
BATON_INLINE V scale_by_power(V p, V shifted) {
  return {scale_half_by_power(p.low, shifted.low), scale_half_by_power(p.high, shifted.high)};
}

BATON_INLINE bool any_equal(V a, V b) {
  const __m256 low = _mm256_cmp_ps(a.low, b.low, _CMP_EQ_OQ);
  const __m256 high = _mm256_cmp_ps(a.high, b.high, _CMP_EQ_OQ);
  return _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0;
}
BATON_INLINE float first_lane(V a) { return _mm256_cvtss_f32(a.low); }

// The fixed tree: l + (l + 8), (l + 4), (l + 2), (l + 1).
BATON_INLINE float reduce_sum(V a) {
  const __m256 eight = _mm256_add_ps(a.low, a.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
BATON_INLINE float reduce_max(V a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Rope over adjacent lanes: p[0], p[0], p[1], p[1], ... of 8 floats; lanes 2i and 2i + 1 swapped;
// even lanes negated.
BATON_INLINE V load_doubled(const float* p) {
  const __m256 all = _mm256_loadu_ps(p);
  return {_mm256_permutevar8x32_ps(all, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(all, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
BATON_INLINE V swap_pairs(V a) {
  return {_mm256_permute_ps(a.low, 0xB1), _mm256_permute_ps(a.high, 0xB1)};
}
BATON_INLINE V negate_even(V a) {
  const __m256 sign = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000LL));
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}

// bf16. A Pairs is 16 lanes of (even, odd).
struct Pairs {
  __m256i low;
  __m256i high;
};
// To nearest even in the upper 16 bits; subnormals to zero, NaNs quieted: as VCVTNEPS2BF16.
BATON_INLINE __m256i round_half_bf16(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
  const __m256i subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0x80000000U)));
  rounded = _mm256_blendv_epi8(rounded, sign, subnormal);
  const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7F800000));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  rounded = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm256_and_si256(rounded, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U)));
}
BATON_INLINE V round_bf16(V a) {  // to bf16 and back
  return {_mm256_castsi256_ps(round_half_bf16(a.low)),
          _mm256_castsi256_ps(round_half_bf16(a.high))};
}
BATON_INLINE void store_bf16(std::uint16_t* p, V a) {
  const __m256i low = _mm256_srli_epi32(round_half_bf16(a.low), 16);
  const __m256i high = _mm256_srli_epi32(round_half_bf16(a.high), 16);
  const __m256i mixed = _mm256_packus_epi32(low, high);  // per 128 bits: low, high, low, high
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xD8));
}
BATON_INLINE Pairs load_pairs(const void* p) {
  const auto* from = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
}
BATON_INLINE Pairs load_first_pairs(const void* p, std::int64_t n) {
  const int* from = static_cast<const int*>(p);
  return {_mm256_maskload_epi32(from, first_mask(n)),
          _mm256_maskload_epi32(from + 8, first_mask(n - 8))};
}
BATON_INLINE Pairs broadcast_pair(const void* p) {
  int bits;
  std::memcpy(&bits, p, sizeof bits);
  const __m256i all = _mm256_set1_epi32(bits);
  return {all, all};
}
BATON_INLINE Pairs keep_bits(Pairs a, std::uint32_t bits) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(bits));
  return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
BATON_INLINE __m256 odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(
      _mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))));
}
BATON_INLINE __m256 even_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
BATON_INLINE V dot_pairs(V acc, Pairs a, Pairs b) {
  acc.low = _mm256_fmadd_ps(odd_of(a.low), odd_of(b.low), acc.low);
  acc.high = _mm256_fmadd_ps(odd_of(a.high), odd_of(b.high), acc.high);
  acc.low = _mm256_fmadd_ps(even_of(a.low), even_of(b.low), acc.low);
  acc.high = _mm256_fmadd_ps(even_of(a.high), even_of(b.high), acc.high);
  return acc;
}
BATON_INLINE V load_f16(const void* p) {
  const auto* from = static_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(from)), _mm256_cvtph_ps(_mm_loadu_si128(from + 1))};
}

// The first n halves (1 to 16); the others are +0 and their memory is not touched.
BATON_INLINE V load_first_f16(const void* p, std::int64_t n) {
  std::uint16_t halves[16] = {};
  std::memcpy(halves, p, static_cast<std::size_t>(n) * sizeof halves[0]);
  return load_f16(halves);
}
BATON_INLINE V splat_f16(const void* p) {
  const __m256 all = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(load_u16(p))));
  return {all, all};
}
BATON_INLINE void store_f16(std::uint16_t* p, V a) {
  auto* to = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(to, _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(to + 1, _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}
BATON_INLINE V load_int8(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}

// Sixteen int8 values out of sixteen floats that are integers already.
BATON_INLINE void store_int8(std::int8_t* p, V a) {
  const __m256i words = _mm256_permute4x64_epi64(
      _mm256_packs_epi32(_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)), 0xD8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

BATON_INLINE void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

BATON_INLINE __m256i broadcast_word(const void* p) {
  int bits;
  std::memcpy(&bits, p, sizeof bits);
  return _mm256_set1_epi32(bits);
}
BATON_INLINE __m256i load_words(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

// Exact integer dots of one packed block with `rows` activation blocks, as f32. `x[r]` are
// ActivationBlock addresses: biases at byte 8 (-8 sums), values at byte 16.
constexpr std::size_t kBias8 = 8;
constexpr std::size_t kValues = 16;

// Sums of nibble products fit 16 bits over a whole block: 8 words * 2 products * 15 * 127 = 30,480.
template <int kRows, bool kBiased>
BATON_INLINE void dot_nibbles(const std::byte* packed, const std::byte* const* x, V* dots) {
  __m256i low_sums[kRows];
  __m256i high_sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    low_sums[r] = high_sums[r] = _mm256_setzero_si256();
  }
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 8
  for (std::size_t word = 0; word < 8; ++word) {
    __m256i low = load_words(packed + 64 * (word % 4));
    __m256i high = load_words(packed + 64 * (word % 4) + 32);
    if (word >= 4) {
      low = _mm256_srli_epi16(low, 4);
      high = _mm256_srli_epi16(high, 4);
    }
    low = _mm256_and_si256(low, mask);
    high = _mm256_and_si256(high, mask);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m256i q = broadcast_word(x[r] + kValues + 4 * word);
      low_sums[r] = _mm256_add_epi16(low_sums[r], _mm256_maddubs_epi16(low, q));
      high_sums[r] = _mm256_add_epi16(high_sums[r], _mm256_maddubs_epi16(high, q));
    }
  }
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    __m256i low = _mm256_madd_epi16(low_sums[r], ones);
    __m256i high = _mm256_madd_epi16(high_sums[r], ones);
    if (kBiased) {
      const __m256i bias = broadcast_word(x[r] + kBias8);
      low = _mm256_add_epi32(low, bias);
      high = _mm256_add_epi32(high, bias);
    }
    dots[r] = {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
  }
}

// |w| * (sign of w) x: products of two add up to 2 * 128 * 127 at most, which fits 16 bits.
template <int kRows>
BATON_INLINE void dot_bytes(const std::byte* packed, const std::byte* const* x, V* dots) {
  __m256i low_sums[kRows];
  __m256i high_sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    low_sums[r] = high_sums[r] = _mm256_setzero_si256();
  }
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (std::size_t word = 0; word < 8; ++word) {
    const __m256i low = _mm256_xor_si256(load_words(packed + 64 * word), flip);
    const __m256i high = _mm256_xor_si256(load_words(packed + 64 * word + 32), flip);
    const __m256i low_abs = _mm256_abs_epi8(low);
    const __m256i high_abs = _mm256_abs_epi8(high);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const __m256i q = broadcast_word(x[r] + kValues + 4 * word);
      const __m256i low_pairs = _mm256_maddubs_epi16(low_abs, _mm256_sign_epi8(q, low));
      const __m256i high_pairs = _mm256_maddubs_epi16(high_abs, _mm256_sign_epi8(q, high));
      low_sums[r] = _mm256_add_epi32(low_sums[r], _mm256_madd_epi16(low_pairs, ones));
      high_sums[r] = _mm256_add_epi32(high_sums[r], _mm256_madd_epi16(high_pairs, ones));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    dots[r] = {_mm256_cvtepi32_ps(low_sums[r]), _mm256_cvtepi32_ps(high_sums[r])};
  }
}

// Sixteen 32-bit lanes, each also four bytes or two 16-bit numbers.
struct Ints {
  __m256i low;
  __m256i high;
};
BATON_INLINE Ints load_ints(const std::byte* p) { return {load_words(p), load_words(p + 32)}; }
BATON_INLINE Ints load_u8(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))};
}
BATON_INLINE Ints load_s8(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
BATON_INLINE Ints splat(std::uint32_t bits) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
  return {all, all};
}
BATON_INLINE V to_float(Ints a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
BATON_INLINE Ints and2(Ints a, Ints b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
BATON_INLINE Ints or2(Ints a, Ints b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
BATON_INLINE Ints add16(Ints a, Ints b) {
  return {_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)};
}
BATON_INLINE Ints sub16(Ints a, Ints b) {
  return {_mm256_sub_epi16(a.low, b.low), _mm256_sub_epi16(a.high, b.high)};
}
BATON_INLINE Ints mul16(Ints a, Ints b) {
  return {_mm256_mullo_epi16(a.low, b.low), _mm256_mullo_epi16(a.high, b.high)};
}
BATON_INLINE Ints mul32(Ints a, Ints b) {
  return {_mm256_mullo_epi32(a.low, b.low), _mm256_mullo_epi32(a.high, b.high)};
}
// 16-bit numbers to the right, for a negative distance to the left.
template <int kBits>
BATON_INLINE Ints shift_right(Ints a) {
  if constexpr (kBits > 0) {
    return {_mm256_srli_epi16(a.low, kBits), _mm256_srli_epi16(a.high, kBits)};
  } else if constexpr (kBits < 0) {
    return {_mm256_slli_epi16(a.low, -kBits), _mm256_slli_epi16(a.high, -kBits)};
  }
  return a;
}
// A table of sixteen bytes, biased by 128, and its entries for bytes 0 to 15.
BATON_INLINE Ints biased_table(const std::int8_t* table) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  const __m256i both =
      _mm256_broadcastsi128_si256(_mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))));
  return {both, both};
}
BATON_INLINE Ints look_up(Ints table, Ints index) {
  return {_mm256_shuffle_epi8(table.low, index.low), _mm256_shuffle_epi8(table.high, index.high)};
}
// mxfp4_scale() of every lane.
BATON_INLINE V mxfp4_scales(Ints e) {
  const __m256i one = _mm256_set1_epi32(1);
  const auto scale = [&](__m256i x) __attribute__((always_inline)) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_sub_epi32(_mm256_max_epi32(x, one), one), 23));
  };
  return {scale(e.low), scale(e.high)};
}

constexpr std::size_t kHalfSums = 48;  // of an ActivationHalves: -32 sums
// What a dot starts from, so that codes count as signed. k128: dot4 takes the bias off itself.
template <Bias kBias>
BATON_INLINE Ints start_dot(const std::byte* x) {
  __m256i all = _mm256_setzero_si256();
  switch (kBias) {
    case Bias::k8:
      all = broadcast_word(x + kBias8);
      break;
    case Bias::k16:
      all = _mm256_slli_epi32(broadcast_word(x + kBias8), 1);
      break;
    case Bias::kLow32:
      all = broadcast_word(x + kHalfSums);
      break;
    case Bias::kHigh32:
      all = broadcast_word(x + kHalfSums + 4);
      break;
    case Bias::kNone:
    case Bias::k128:
      break;
  }
  return {all, all};
}
// acc + codes * activations of the word at x; codes up to 127, or biased by 128. Products of two
// add up to 2 * 128 * 127 at most, which fits 16 bits.
template <Bias kBias>
BATON_INLINE Ints dot4(Ints acc, Ints codes, const std::byte* x) {
  const __m256i q = broadcast_word(x);
  const __m256i ones = _mm256_set1_epi16(1);
  const auto add_half = [&](__m256i sum, __m256i w) __attribute__((always_inline)) {
    __m256i pairs;
    if constexpr (kBias == Bias::k128) {
      const __m256i code = _mm256_xor_si256(w, _mm256_set1_epi8(static_cast<char>(0x80)));
      pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(q, code));
    } else {
      pairs = _mm256_maddubs_epi16(w, q);
    }
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
  };
  return {add_half(acc.low, codes.low), add_half(acc.high, codes.high)};
}

}  // namespace
}  // namespace baton::kernels::avx2
