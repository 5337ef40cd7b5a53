#include "baton/sample/philox.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baton::sample {
namespace {

using Words = std::array<std::uint32_t, 4>;

// Known answers that Random123 publishes (tests/kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(
      philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
      (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsAFunctionOfItsPosition) {
  const double u = uniform(42, 7, 1, 0);
  EXPECT_EQ(u, uniform(42, 7, 1, 0));
  EXPECT_NE(u, uniform(43, 7, 1, 0));
  EXPECT_NE(u, uniform(42 + (1ULL << 32), 7, 1, 0));
  EXPECT_NE(u, uniform(42, 8, 1, 0));
  EXPECT_NE(u, uniform(42, 7, 2, 0));
  EXPECT_NE(u, uniform(42, 7, 1, 1));
}

TEST(Uniform, FillsTheUnitIntervalEvenly) {
  constexpr int kDraws = 100'000;
  std::array<int, 20> bins{};
  for (std::uint32_t i = 0; i < kDraws; ++i) {
    const double u = uniform(1, i, 0, 0);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<std::size_t>(u * 20)];
  }
  double chi_squared = 0.0;
  for (const int count : bins) {
    chi_squared += std::pow(count - kDraws / 20.0, 2) / (kDraws / 20.0);
  }
  EXPECT_LT(chi_squared, 43.8);  // 19 degrees of freedom, p = 0.001
}

}  // namespace
}  // namespace baton::sample
