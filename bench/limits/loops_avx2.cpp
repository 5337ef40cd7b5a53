#include <immintrin.h>

#include "bench/limits/loops.h"

namespace baton::bench {

namespace {

// Of AVX2's 16 registers, after operands and ones.
constexpr int kInt8Chains = 8;
constexpr int kFp32Chains = 12;

// Chains that start equal and do the same would be computed once: the compiler must not know.
template <class T, std::size_t n>
void hide(T (&sums)[n]) {
  for (auto& sum : sums) {
    asm volatile("" : "+x"(sum));
  }
}

// The products of 32 bytes without VNNI: three instructions.
float int8(std::int64_t rounds) {
  __m256i sums[kInt8Chains] = {};
  const __m256i b = _mm256_set1_epi8(-2);
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i a = _mm256_set1_epi8(3);
  hide(sums);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 8
    for (auto& sum : sums) {
      asm volatile("" : "+x"(a));  // or the products would be taken out of the loop
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
    }
  }
  __m256i all = _mm256_setzero_si256();
  for (const auto& sum : sums) {
    all = _mm256_add_epi32(all, sum);
  }
  return static_cast<float>(_mm256_extract_epi32(all, 0) + _mm256_extract_epi32(all, 5));
}

float fp32(std::int64_t rounds) {
  __m256 sums[kFp32Chains] = {};
  const __m256 a = _mm256_set1_ps(0.5F);
  const __m256 b = _mm256_set1_ps(0.01F);
  hide(sums);
  for (std::int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 16
    for (auto& sum : sums) {
      sum = _mm256_fmadd_ps(a, sum, b);
    }
  }
  __m256 all = _mm256_setzero_ps();
  for (const auto& sum : sums) {
    all = _mm256_add_ps(all, sum);
  }
  return _mm256_cvtss_f32(all);
}

std::uint64_t read(const std::byte* from, std::size_t bytes) {
  __m256i sums[8] = {};
  for (std::size_t at = 0; at + 256 <= bytes; at += 256) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < 8; ++i) {
      sums[i] = _mm256_add_epi64(
          sums[i], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at + 32 * i)));
    }
  }
  __m256i all = _mm256_setzero_si256();
  for (const auto& sum : sums) {
    all = _mm256_add_epi64(all, sum);
  }
  return static_cast<std::uint64_t>(_mm256_extract_epi64(all, 0) + _mm256_extract_epi64(all, 1) +
                                    _mm256_extract_epi64(all, 2) + _mm256_extract_epi64(all, 3));
}

}  // namespace

const Loops kAvx2Loops = {
    {int8, kInt8Chains * 32}, {fp32, kFp32Chains * 8}, {fp32, kFp32Chains * 8}, read};

}  // namespace baton::bench
