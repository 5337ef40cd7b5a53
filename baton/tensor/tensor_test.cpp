#include "baton/tensor/buffer.h"
#include "baton/tensor/dtype.h"
#include "baton/tensor/view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace baton::tensor {
namespace {

TEST(DType, BlockGeometryIsGgufs) {
  EXPECT_EQ(row_bytes(DType::kF32, 3), 12U);
  EXPECT_EQ(row_bytes(DType::kF16, 3), 6U);
  EXPECT_EQ(row_bytes(DType::kBf16, 3), 6U);
  EXPECT_EQ(row_bytes(DType::kQ4_0, 64), 36U);
  EXPECT_EQ(row_bytes(DType::kQ4_1, 64), 40U);
  EXPECT_EQ(row_bytes(DType::kQ8_0, 64), 68U);
  EXPECT_EQ(row_bytes(DType::kQ5_1, 64), 48U);
  EXPECT_EQ(row_bytes(DType::kQ6K, 512), 420U);
  EXPECT_EQ(row_bytes(DType::kMxfp4, 64), 34U);
  EXPECT_EQ(dtype_name(DType::kQ4_1), "q4_1");
  EXPECT_EQ(dtype_name(DType::kQ4K), "q4_k");
  EXPECT_EQ(dtype_name(DType::kMxfp4), "mxfp4");
}

TEST(DTypeDeathTest, PartOfABlockIsABug) {
  EXPECT_DEATH(row_bytes(DType::kQ8_0, 33), "33 values of q8_0");
  EXPECT_DEATH(row_bytes(DType::kQ4K, 128), "128 values of q4_k");
}

TEST(Buffer, IsAlignedZeroedAndMovable) {
  for (const PageAdvice advice : {PageAdvice::kNormal, PageAdvice::kHuge}) {
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{4097}, std::size_t{5} << 20U}) {
      auto made = Buffer::allocate(bytes, advice);
      ASSERT_TRUE(made.has_value());
      Buffer buffer = std::move(*made);
      EXPECT_EQ(buffer.bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % kBufferAlignment, 0U);
      const auto bytes_of = buffer.span();
      EXPECT_TRUE(std::all_of(bytes_of.begin(), bytes_of.end(),
                              [](std::byte b) { return b == std::byte{0}; }));
      bytes_of.back() = std::byte{7};
      Buffer other = std::move(buffer);
      // NOLINTNEXTLINE(bugprone-use-after-move)
      EXPECT_EQ(buffer.data(), nullptr);
      EXPECT_EQ(other.span().back(), std::byte{7});
    }
  }
}

TEST(Buffer, EmptyAndImpossible) {
  auto empty = Buffer::allocate(0);
  ASSERT_TRUE(empty.has_value());
  EXPECT_EQ(empty->data(), nullptr);
  auto impossible = Buffer::allocate(SIZE_MAX / 2);
  ASSERT_FALSE(impossible.has_value());
  EXPECT_EQ(impossible.error().code, ErrorCode::kOverloaded);
}

TEST(View, RowsAreContiguous) {
  auto buffer = Buffer::allocate(108);
  ASSERT_TRUE(buffer.has_value());
  const View view{DType::kQ4_0, {3, 64}, buffer->data()};
  EXPECT_EQ(view.bytes(), 108U);
  EXPECT_EQ(view.row(2).data(), buffer->data() + 72);
  EXPECT_EQ(view.row(2).size(), 36U);
}

}  // namespace
}  // namespace baton::tensor
