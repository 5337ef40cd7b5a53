// Sixteen f32 lanes as one AVX-512 register, behind the names that kernels/vector/*.inl are written
// in. Everything has internal linkage or is always inlined: no AVX-512 code may leak into a symbol
// that other files share.
#pragma once

#include "baton/kernels/blocks.h"
#include "baton/kernels/half.h"

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton::kernels::avx512 {
namespace {

// Loops over rows are unrolled by pragma throughout: an array of registers that one rolled loop
// touches lives in memory at -O2, at half the speed.
//
// How many rows share an unpacked weight, and queries a loaded tile: bounded by 32 registers.
constexpr int kQuantRows = 8;
constexpr int kPlainRows = 8;
constexpr int kScoreRows = 8;
constexpr int kValueRows = 4;
constexpr int kValueVectors = 4;

struct V {
  __m512 v;
};

BATON_INLINE __mmask16 first_lanes(std::int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xFFFFU : (1U << static_cast<unsigned>(n)) - 1U);
}

BATON_INLINE V zero() { return {_mm512_setzero_ps()}; }
BATON_INLINE V set1(float x) { return {_mm512_set1_ps(x)}; }
BATON_INLINE V load(const float* p) { return {_mm512_loadu_ps(p)}; }
BATON_INLINE void store(float* p, V a) { _mm512_storeu_ps(p, a.v); }
// The first n lanes (1 to 16); the others are +0 and their memory is not touched.
BATON_INLINE V load_first(const float* p, std::int64_t n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
BATON_INLINE void store_first(float* p, V a, std::int64_t n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
// Lanes [first, last) of a, others of b.
BATON_INLINE V select_lanes(V a, V b, std::int64_t first, std::int64_t last) {
  const auto mask = static_cast<__mmask16>(first_lanes(last) & ~first_lanes(first));
  return {_mm512_mask_blend_ps(mask, b.v, a.v)};
}

BATON_INLINE V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
BATON_INLINE V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
BATON_INLINE V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
BATON_INLINE V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
BATON_INLINE V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
BATON_INLINE V fnma(V a, V b, V c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // -a * b + c
BATON_INLINE V max2(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
BATON_INLINE V min2(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
BATON_INLINE V abs(V a) { return {_mm512_abs_ps(a.v)}; }
BATON_INLINE V negate(V a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0F))}; }
BATON_INLINE V sqrt1(V a) { return {_mm512_sqrt_ps(a.v)}; }
BATON_INLINE V select_less(V a, V b, V yes, V no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}

// p * 2^n in two factors, n = bits(shifted) - bits(1.5 * 2^23).
BATON_INLINE V scale_by_power(V p, V shifted) {
  const __m512i steps =
      _mm512_sub_epi32(_mm512_castps_si512(shifted.v), _mm512_set1_epi32(0x4B400000));
  const __m512i half = _mm512_srai_epi32(steps, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i a = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i b = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(steps, half), bias), 23);
  return {_mm512_mul_ps(_mm512_mul_ps(p.v, _mm512_castsi512_ps(a)), _mm512_castsi512_ps(b))};
}

BATON_INLINE bool any_equal(V a, V b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ) != 0; }
BATON_INLINE float first_lane(V a) { return _mm512_cvtss_f32(a.v); }

// The fixed tree: l + (l + 8), (l + 4), (l + 2), (l + 1).
template <class Combine>
BATON_INLINE float reduce(V a, Combine combine) {
  const __m256 low = _mm512_castps512_ps256(a.v);
  const __m256 high = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 eight = _mm512_castps512_ps256(
      combine(V{_mm512_castps256_ps512(low)}, V{_mm512_castps256_ps512(high)}).v);
  const auto narrow = [&](__m128 x, __m128 y) {
    return _mm512_castps512_ps128(
        combine(V{_mm512_castps128_ps512(x)}, V{_mm512_castps128_ps512(y)}).v);
  };
  const __m128 four = narrow(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = narrow(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(narrow(two, _mm_shuffle_ps(two, two, 1)));
}
BATON_INLINE float reduce_sum(V a) {
  return reduce(
      a, [](V x, V y) __attribute__((always_inline)) { return add(x, y); });
}
BATON_INLINE float reduce_max(V a) {
  return reduce(
      a, [](V x, V y) __attribute__((always_inline)) { return max2(x, y); });
}

// Rope over adjacent lanes: p[0], p[0], p[1], p[1], ... of 8 floats; lanes 2i and 2i + 1 swapped;
// even lanes negated.
BATON_INLINE V load_doubled(const float* p) {
  const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {_mm512_permutexvar_ps(index, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
}
BATON_INLINE V swap_pairs(V a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
BATON_INLINE V negate_even(V a) {
  return {_mm512_castsi512_ps(
      _mm512_xor_si512(_mm512_castps_si512(a.v), _mm512_set1_epi64(0x80000000LL)))};
}

// bf16. A Pairs is 16 lanes of (even, odd).
struct Pairs {
  __m512i v;
};
BATON_INLINE V round_bf16(V a) {  // to bf16 and back
  const __m256bh narrow = _mm512_cvtneps_pbh(a.v);
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(narrow)), 16))};
}
BATON_INLINE void store_bf16(std::uint16_t* p, V a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)));
}
BATON_INLINE Pairs load_pairs(const void* p) { return {_mm512_loadu_si512(p)}; }
BATON_INLINE Pairs load_first_pairs(const void* p, std::int64_t n) {
  return {_mm512_maskz_loadu_epi32(first_lanes(n), p)};
}
BATON_INLINE Pairs broadcast_pair(const void* p) {
  int bits;
  std::memcpy(&bits, p, sizeof bits);
  return {_mm512_set1_epi32(bits)};
}
BATON_INLINE Pairs keep_bits(Pairs a, std::uint32_t bits) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(bits)))};
}
BATON_INLINE V dot_pairs(V acc, Pairs a, Pairs b) {
  return {
      _mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
BATON_INLINE V load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}

// The first n halves (1 to 16); the others are +0 and their memory is not touched.
BATON_INLINE V load_first_f16(const void* p, std::int64_t n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
}
BATON_INLINE V splat_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<short>(load_u16(p))))};
}
BATON_INLINE void store_f16(std::uint16_t* p, V a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
BATON_INLINE V load_int8(const std::byte* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// Sixteen int8 values out of sixteen floats that are integers already.
BATON_INLINE void store_int8(std::int8_t* p, V a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

BATON_INLINE void prefetch(const std::byte* p) {
  _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

BATON_INLINE __m512i broadcast_word(const void* p) {
  int bits;
  std::memcpy(&bits, p, sizeof bits);
  return _mm512_set1_epi32(bits);
}

// Exact integer dots of one packed block with `rows` activation blocks, as f32. `x[r]` are
// ActivationBlock addresses: biases at byte 8 (-8 sums) and 12 (-128 sums), values at byte 16.
constexpr std::size_t kBias8 = 8;
constexpr std::size_t kBias128 = 12;
constexpr std::size_t kValues = 16;

template <int kRows, bool kBiased>
BATON_INLINE void dot_nibbles(const std::byte* packed, const std::byte* const* x, V* dots) {
  __m512i sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sums[r] = kBiased ? broadcast_word(x[r] + kBias8) : _mm512_setzero_si512();
  }
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (std::size_t word = 0; word < 4; ++word) {
    const __m512i both = _mm512_loadu_si512(packed + 64 * word);
    const __m512i low = _mm512_and_si512(both, mask);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r] = _mm512_dpbusd_epi32(sums[r], low, broadcast_word(x[r] + kValues + 4 * word));
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r] = _mm512_dpbusd_epi32(sums[r], high, broadcast_word(x[r] + kValues + 16 + 4 * word));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    dots[r].v = _mm512_cvtepi32_ps(sums[r]);
  }
}

template <int kRows>
BATON_INLINE void dot_bytes(const std::byte* packed, const std::byte* const* x, V* dots) {
  __m512i sums[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sums[r] = broadcast_word(x[r] + kBias128);
  }
#pragma GCC unroll 8
  for (std::size_t word = 0; word < 8; ++word) {
    const __m512i w = _mm512_loadu_si512(packed + 64 * word);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      sums[r] = _mm512_dpbusd_epi32(sums[r], w, broadcast_word(x[r] + kValues + 4 * word));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    dots[r].v = _mm512_cvtepi32_ps(sums[r]);
  }
}

// Sixteen 32-bit lanes, each also four bytes or two 16-bit numbers.
struct Ints {
  __m512i v;
};
BATON_INLINE Ints load_ints(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
BATON_INLINE Ints load_u8(const std::byte* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BATON_INLINE Ints load_s8(const std::byte* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BATON_INLINE Ints splat(std::uint32_t bits) { return {_mm512_set1_epi32(static_cast<int>(bits))}; }
BATON_INLINE V to_float(Ints a) { return {_mm512_cvtepi32_ps(a.v)}; }
BATON_INLINE Ints and2(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
BATON_INLINE Ints or2(Ints a, Ints b) { return {_mm512_or_si512(a.v, b.v)}; }
BATON_INLINE Ints add16(Ints a, Ints b) { return {_mm512_add_epi16(a.v, b.v)}; }
BATON_INLINE Ints sub16(Ints a, Ints b) { return {_mm512_sub_epi16(a.v, b.v)}; }
BATON_INLINE Ints mul16(Ints a, Ints b) { return {_mm512_mullo_epi16(a.v, b.v)}; }
BATON_INLINE Ints mul32(Ints a, Ints b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
// 16-bit numbers to the right, for a negative distance to the left.
template <int kBits>
BATON_INLINE Ints shift_right(Ints a) {
  if constexpr (kBits > 0) {
    return {_mm512_srli_epi16(a.v, kBits)};
  } else if constexpr (kBits < 0) {
    return {_mm512_slli_epi16(a.v, -kBits)};
  }
  return a;
}
// A table of sixteen bytes, biased by 128, and its entries for bytes 0 to 15.
BATON_INLINE Ints biased_table(const std::int8_t* table) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_broadcast_i32x4(_mm_xor_si128(bytes, _mm_set1_epi8(static_cast<char>(0x80))))};
}
BATON_INLINE Ints look_up(Ints table, Ints index) {
  return {_mm512_shuffle_epi8(table.v, index.v)};
}
// mxfp4_scale() of every lane.
BATON_INLINE V mxfp4_scales(Ints e) {
  const __m512i one = _mm512_set1_epi32(1);
  return {_mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_sub_epi32(_mm512_max_epi32(e.v, one), one), 23))};
}

constexpr std::size_t kHalfSums = 48;  // of an ActivationHalves: -32 sums
// What a dot starts from, so that codes count as signed. k128: the codes are biased by 128.
template <Bias kBias>
BATON_INLINE Ints start_dot(const std::byte* x) {
  switch (kBias) {
    case Bias::k8:
      return {broadcast_word(x + kBias8)};
    case Bias::k16:
      return {_mm512_slli_epi32(broadcast_word(x + kBias8), 1)};
    case Bias::k128:
      return {broadcast_word(x + kBias128)};
    case Bias::kLow32:
      return {broadcast_word(x + kHalfSums)};
    case Bias::kHigh32:
      return {broadcast_word(x + kHalfSums + 4)};
    case Bias::kNone:
      break;
  }
  return {_mm512_setzero_si512()};
}
// acc + codes * activations of the word at x; codes up to 127, or biased by 128.
template <Bias kBias>
BATON_INLINE Ints dot4(Ints acc, Ints codes, const std::byte* x) {
  return {_mm512_dpbusd_epi32(acc.v, codes.v, broadcast_word(x))};
}

}  // namespace
}  // namespace baton::kernels::avx512
