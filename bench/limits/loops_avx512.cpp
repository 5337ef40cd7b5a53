#include <immintrin.h>

#include "bench/limits/loops.h"

namespace baton::bench {

namespace {

// Chains that start equal and do the same would be computed once: the compiler must not know.
template <class T>
void hide(T (&sums)[kChains]) {
  for (auto& sum : sums) {
    asm volatile("" : "+v"(sum));
  }
}

float int8(std::int64_t rounds) {
  __m512i sums[kChains] = {};
  const __m512i a = _mm512_set1_epi8(3);
  const __m512i b = _mm512_set1_epi8(-2);
  hide(sums);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (auto& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, a, b);
    }
  }
  __m512i all = _mm512_setzero_si512();
  for (const auto& sum : sums) {
    all = _mm512_add_epi32(all, sum);
  }
  return static_cast<float>(_mm512_reduce_add_epi32(all));
}

float bf16(std::int64_t rounds) {
  __m512 sums[kChains] = {};
  const auto a = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3F80));  // 1.0
  const auto b = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3C00));  // 2^-7
  hide(sums);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (auto& sum : sums) {
      sum = _mm512_dpbf16_ps(sum, a, b);
    }
  }
  __m512 all = _mm512_setzero_ps();
  for (const auto& sum : sums) {
    all = _mm512_add_ps(all, sum);
  }
  return _mm512_reduce_add_ps(all);
}

float fp32(std::int64_t rounds) {
  __m512 sums[kChains] = {};
  const __m512 a = _mm512_set1_ps(0.5F);
  const __m512 b = _mm512_set1_ps(0.01F);
  hide(sums);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (auto& sum : sums) {
      sum = _mm512_fmadd_ps(a, sum, b);
    }
  }
  __m512 all = _mm512_setzero_ps();
  for (const auto& sum : sums) {
    all = _mm512_add_ps(all, sum);
  }
  return _mm512_reduce_add_ps(all);
}

std::uint64_t read(const std::byte* from, std::size_t bytes) {
  __m512i sums[8] = {};
  for (std::size_t at = 0; at + 512 <= bytes; at += 512) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      sums[i] = _mm512_add_epi64(sums[i], _mm512_loadu_si512(from + at + 64 * i));
    }
  }
  __m512i all = _mm512_setzero_si512();
  for (const auto& sum : sums) {
    all = _mm512_add_epi64(all, sum);
  }
  return static_cast<std::uint64_t>(_mm512_reduce_add_epi64(all));
}

}  // namespace

const Loops kAvx512Loops = {{int8, kChains * 64}, {bf16, kChains * 32}, {fp32, kChains * 16}, read};

}  // namespace baton::bench
