#include "baton/sample/math.h"

#include "baton/sample/softmax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace baton::sample {
namespace {

TEST(Exp4, WithinTwoUlpOfLibm) {
  double worst = 0.0;
  for (float x = 0.0F; x > kExpLowest; x -= 0.00037F) {
    const double exact = std::exp(static_cast<double>(x));
    const double ulp = exact * 0x1p-23;  // at least half of the spacing there
    worst = std::max(worst, std::abs(static_cast<double>(exp1(x)) - exact) / ulp);
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(exp1(0.0F), 1.0F);
}

TEST(Exp4, IsZeroFarBelowAndNeverSubnormal) {
  EXPECT_EQ(exp1(-86.1F), 0.0F);
  EXPECT_EQ(exp1(-1e30F), 0.0F);
  EXPECT_EQ(exp1(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_TRUE(std::isnormal(exp1(kExpLowest)));
}

TEST(LogPositive, WithinFourUlpOfLibm) {
  for (double x = 1e-30; x < 1e30; x *= 1.0137) {
    const double exact = std::log(x);
    EXPECT_NEAR(log_positive(x), exact, 4 * 0x1p-52 * std::max(std::abs(exact), 1.0)) << x;
  }
  EXPECT_EQ(log_positive(1.0), 0.0);
}

// The written order, element by element: what the vector code must equal bit for bit.
double plain_exp_sum(const std::vector<float>& row, float max) {
  double total = 0.0;
  for (std::size_t begin = 0; begin < row.size(); begin += kSumSpan) {
    float lanes[16] = {};
    for (std::size_t i = begin; i < std::min(row.size(), begin + kSumSpan); ++i) {
      lanes[i % 16] += exp1(row[i] - max);
    }
    for (int width = 8; width >= 1; width /= 2) {
      for (int lane = 0; lane < width; ++lane) {
        lanes[lane] += lanes[lane + width];
      }
    }
    total += static_cast<double>(lanes[0]);
  }
  return total;
}

TEST(Softmax, SumsInTheDocumentedOrder) {
  std::mt19937 random(3);  // fixed seed
  std::normal_distribution<float> normal(0.0F, 4.0F);
  for (const std::size_t size : {1U, 15U, 16U, 17U, 257U, 1023U, 1024U, 1025U, 49152U}) {
    std::vector<float> row(size);
    for (float& x : row) {
      x = normal(random);
    }
    const float max = row_maximum(row).value;
    EXPECT_EQ(max, *std::max_element(row.begin(), row.end()));
    const double sum = exp_sum(row, max);
    EXPECT_EQ(sum, plain_exp_sum(row, max)) << size;
    double exact = 0.0;
    for (const float x : row) {
      exact += std::exp(static_cast<double>(x) - static_cast<double>(max));
    }
    EXPECT_NEAR(sum / exact, 1.0, 1e-6);
  }
}

TEST(Softmax, NanCountsAsMinusInfinityAndIsSeen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> row = {1.0F, nan, 3.0F};
  const RowMaximum max = row_maximum(row);
  EXPECT_EQ(max.value, 3.0F);
  EXPECT_TRUE(max.has_nan);
  EXPECT_EQ(exp_sum(row, 3.0F), exp_sum(std::vector<float>{1.0F, -1e30F, 3.0F}, 3.0F));
}

}  // namespace
}  // namespace baton::sample
