#include "baton/files/dummy_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace baton::files {
namespace {

float half_to_float(std::uint16_t bits) {  // normal numbers only
  const float magnitude = std::ldexp(1.0F + static_cast<float>(bits & 0x3FFU) / 1024.0F,
                                     static_cast<int>((bits >> 10U) & 31U) - 15);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

TEST(DummyModel, ReadsAsTheFileOfItsShapeWould) {
  const auto file = make_dummy_model({"Qwen3-0.6B", "Q8_0"}, DummyValues::kNone);
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->string("general.architecture").value(), "qwen3");
  EXPECT_EQ(file->integer("qwen3.block_count").value(), 28);
  EXPECT_EQ(file->find_tensor("output.weight"), nullptr);
  ASSERT_NE(file->find_tensor("blk.27.attn_q_norm.weight"), nullptr);
  const GgufTensor* down = file->find_tensor("blk.0.ffn_down.weight");
  ASSERT_NE(down, nullptr);
  EXPECT_EQ(down->type, TensorType::kQ8_0);
  EXPECT_EQ(down->dims, (std::vector<std::uint64_t>{3072, 1024}));
}

// Weights that give outputs of about unit variance: no overflow, no subnormal scales.
TEST(DummyModel, WeightsHaveTheVarianceOfALayer) {
  const auto file = make_dummy_model({"smollm2-135m", "q4_1"}, DummyValues::kRandom);
  ASSERT_TRUE(file) << file.error().message;
  const GgufTensor* gate = file->find_tensor("blk.3.ffn_gate.weight");
  ASSERT_NE(gate, nullptr);
  double squares = 0;
  double count = 0;
  for (std::size_t at = 0; at < gate->bytes.size(); at += 20) {
    std::uint16_t fields[2];
    std::memcpy(fields, gate->bytes.data() + at, sizeof fields);
    for (std::size_t i = 4; i < 20; ++i) {
      const auto packed = std::to_integer<unsigned>(gate->bytes[at + i]);
      for (const unsigned q : {packed & 15U, packed >> 4U}) {
        const double value =
            half_to_float(fields[0]) * static_cast<float>(q) + half_to_float(fields[1]);
        squares += value * value;
        count += 1;
      }
    }
  }
  // The scale is a power of two: the output's variance lies within a factor of two of 1.
  EXPECT_GT(squares / count * 576, 0.5);
  EXPECT_LT(squares / count * 576, 2.0);
}

TEST(DummyModel, EveryTypeCanBeMade) {
  for (const std::string& dtype : dummy_dtypes()) {
    const auto file = make_dummy_model({"qwen3-0.6b", dtype}, DummyValues::kNone);
    EXPECT_TRUE(file) << dtype;
  }
}

TEST(DummyModel, NamesWhatItKnowsWhenAskedForMore) {
  const auto shape = make_dummy_model({"gpt-5", "q4_0"}, DummyValues::kNone);
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(shape.error().message.find("llama-3-8b"), std::string::npos) << shape.error().message;
  const auto dtype = make_dummy_model({"llama-3-8b", "q9"}, DummyValues::kNone);
  ASSERT_FALSE(dtype);
  EXPECT_NE(dtype.error().message.find("q4_0"), std::string::npos) << dtype.error().message;
}

}  // namespace
}  // namespace baton::files
