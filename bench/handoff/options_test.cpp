#include "bench/handoff/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::bench_handoff {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(HandoffOptions, LengthsAreInTheOrderGiven) {
  const auto lengths = parse_lengths("256,16,8128");
  ASSERT_TRUE(lengths) << lengths.error().message;
  EXPECT_THAT(*lengths, ElementsAre(256, 16, 8128));
}

TEST(HandoffOptions, WrongLengthsNameTheFlag) {
  for (const char* text : {"", "x", "16,", ",16", "16,,32", "0", "-1", "16 ", "16;32", "1.5",
                           "99999999999", "16,32,16"}) {
    const auto lengths = parse_lengths(text);
    ASSERT_FALSE(lengths) << text;
    EXPECT_EQ(lengths.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(lengths.error().message, HasSubstr("--lengths: ")) << text;
  }
  EXPECT_THAT(parse_lengths("16,y").error().message, HasSubstr("'y'"));
  EXPECT_THAT(parse_lengths("16,32,16").error().message, HasSubstr("16 is there twice"));
}

TEST(HandoffOptions, APromptAndItsAnswerFitIntoTheContext) {
  EXPECT_TRUE(check_lengths({16, 8192 - kOutputTokens}, 8192, "the context"));
  const Status refused = check_lengths({16, 8192 - kOutputTokens + 1}, 8192, "the context");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message,
            "--lengths: 8177 and 16 tokens of answer do not fit into the context (8192 tokens)");
}

TEST(HandoffOptions, MasksAreOneForEachNode) {
  const std::vector<int> available = {0, 1, 2, 3, 4, 5};
  const auto masks = parse_masks("0x3,20", available);
  ASSERT_TRUE(masks) << masks.error().message;
  EXPECT_EQ(masks->prefill, "0x3");
  EXPECT_EQ(masks->decode, "20");
  EXPECT_THAT(masks->prefill_cpus, ElementsAre(0, 1));
  EXPECT_THAT(masks->decode_cpus, ElementsAre(5));
}

TEST(HandoffOptions, WrongMasksNameTheFlag) {
  const std::vector<int> available = {0, 1};
  for (const char* text : {"", "1", "1,2,3", "1,", ",1", "1,g", "0,1", "1,4", "-1,1"}) {
    const auto masks = parse_masks(text, available);
    ASSERT_FALSE(masks) << text;
    EXPECT_EQ(masks.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(masks.error().message, HasSubstr("--masks: ")) << text;
    EXPECT_EQ(masks.error().message.find("--cpu-mask"), std::string::npos);
  }
  EXPECT_EQ(parse_masks("1,4", available).error().message,
            "--masks: 4 names CPU 2, this process may use CPU 0, 1");
}

TEST(HandoffOptions, ByDefaultTheFirstTwoCpus) {
  EXPECT_EQ(default_masks({0, 1, 2}), "1,2");
  EXPECT_EQ(default_masks({3}), "8,8");
  EXPECT_EQ(default_masks({5, 9}), "20,200");
  for (const std::vector<int>& cpus :
       {std::vector<int>{0, 1}, {7, 64}, {6}, available_cpu_list()}) {
    const auto masks = parse_masks(default_masks(cpus), cpus);
    ASSERT_TRUE(masks) << masks.error().message;
    EXPECT_THAT(masks->prefill_cpus, ElementsAre(cpus.front()));
    EXPECT_THAT(masks->decode_cpus, ElementsAre(cpus[1 % cpus.size()]));
  }
}

TEST(HandoffOptions, ShortPromptsAreRepeated) {
  EXPECT_EQ(repeats(1), 5);
  EXPECT_EQ(repeats(256), 5);
  EXPECT_EQ(repeats(1024), 2);
  EXPECT_EQ(repeats(2048), 1);
  EXPECT_EQ(repeats(8128), 1);
}

}  // namespace
}  // namespace baton::bench_handoff
