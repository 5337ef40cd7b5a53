// Inputs that kernels must get through with the same bits: random values over many exponents,
// subnormals, zeros of both signs, cancelling pairs. Fixed seeds.
#pragma once

#include "baton/base/cpu_features.h"
#include "baton/base/float_mode.h"
#include "baton/kernels/half.h"
#include "baton/kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace baton::kernels {

// The tables that this CPU can run, the reference first. Those it cannot are named on stderr.
inline const std::vector<const KernelTable*>& runnable_tables() {
  static const std::vector<const KernelTable*> tables = [] {
    std::vector<const KernelTable*> found;
    for (const Isa isa : {Isa::kRef, Isa::kAvx2, Isa::kAvx512}) {
      auto picked = pick_kernels(isa);
      if (picked) {
        found.push_back(*picked);
      } else {
        GTEST_LOG_(WARNING) << "not compared here: " << picked.error().message;
      }
    }
    return found;
  }();
  return tables;
}

inline constexpr DType kQuantisedTypes[] = {
    DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kQ5_0, DType::kQ5_1,  DType::kQ2K,
    DType::kQ3K,  DType::kQ4K,  DType::kQ5K,  DType::kQ6K,  DType::kIq4Nl, DType::kMxfp4};
inline constexpr DType kAllTypes[] = {DType::kF32,  DType::kF16,   DType::kBf16, DType::kQ4_0,
                                      DType::kQ4_1, DType::kQ8_0,  DType::kQ5_0, DType::kQ5_1,
                                      DType::kQ2K,  DType::kQ3K,   DType::kQ4K,  DType::kQ5K,
                                      DType::kQ6K,  DType::kIq4Nl, DType::kMxfp4};

// k rounded up to whole blocks of a type.
inline std::int64_t whole_blocks(DType dtype, std::int64_t k) {
  const std::int64_t values = tensor::traits(dtype).block_values;
  return (k + values - 1) / values * values;
}

// Where a stored block keeps f16 scales and minima.
inline std::vector<std::size_t> half_offsets(DType dtype) {
  switch (dtype) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4K:
    case DType::kQ5K:
      return {0, 2};
    case DType::kQ2K:
      return {80, 82};
    case DType::kQ3K:
      return {108};
    case DType::kQ6K:
      return {208};
    case DType::kMxfp4:
      return {};
    default:
      return {0};
  }
}

enum class Kind { kPlain, kWide, kTiny };

class Source {
 public:
  explicit Source(std::uint32_t seed) : engine_(seed) {}
  std::uint32_t bits() { return static_cast<std::uint32_t>(engine_()); }
  float uniform() { return static_cast<float>(bits() >> 8U) * 0x1p-23F - 1.0F; }  // [-1, 1)
  // kWide: exponents from -100 to 100 and both zeros; kTiny: subnormals and their neighbours.
  float value(Kind kind) {
    switch (kind) {
      case Kind::kPlain:
        return uniform();
      case Kind::kWide: {
        const std::uint32_t draw = bits() % 64;
        if (draw == 0) {
          return uniform() < 0.0F ? -0.0F : 0.0F;
        }
        const auto exponent = static_cast<int>(bits() % 201) - 100;
        return std::ldexp(uniform(), draw < 8 ? exponent : exponent / 20);
      }
      case Kind::kTiny:
        return std::ldexp(uniform(), -120 - static_cast<int>(bits() % 30));
    }
    return 0.0F;
  }
  std::vector<float> values(std::int64_t n, Kind kind) {
    std::vector<float> made(static_cast<std::size_t>(n));
    for (float& one : made) {
      one = value(kind);
    }
    return made;
  }
  // A stored weight of [n] rows. Scales of blocks are halves of any sign, subnormal ones too.
  std::vector<std::byte> weight(DType dtype, std::int64_t n, std::int64_t k, Kind kind) {
    const std::size_t row = tensor::row_bytes(dtype, k);
    std::vector<std::byte> made(static_cast<std::size_t>(n) * row);
    if (dtype == DType::kF32) {
      const auto all = values(n * k, kind);
      std::memcpy(made.data(), all.data(), made.size());
      return made;
    }
    for (std::byte& byte : made) {
      byte = static_cast<std::byte>(bits());
    }
    const std::size_t block = tensor::traits(dtype).block_bytes;
    for (std::size_t at = 0; at < made.size(); at += block) {
      for (const std::size_t half : half_offsets(dtype)) {
        const std::uint16_t scale =
            dtype == DType::kBf16 ? f32_to_bf16(value(kind)) : finite_half();
        std::memcpy(made.data() + at + half, &scale, sizeof scale);
      }
      if (dtype == DType::kMxfp4) {  // exponents near one, and those that count as zero
        const std::uint32_t draw = bits();
        made[at] = static_cast<std::byte>(draw % 16 == 0 ? draw / 16 % 3 : 100 + draw / 16 % 56);
      }
    }
    return made;
  }

 private:
  std::uint16_t finite_half() {
    const auto half = static_cast<std::uint16_t>(bits());
    return (half & 0x7C00U) == 0x7C00U ? static_cast<std::uint16_t>(half & 0x83FFU) : half;
  }
  std::mt19937 engine_;
};

// Bytes of two vectors are equal; prints the first difference.
template <class T>
::testing::AssertionResult same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) {
    return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  }
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << a.size() << ": " << ::testing::PrintToString(a[i])
             << " and " << ::testing::PrintToString(b[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace baton::kernels
