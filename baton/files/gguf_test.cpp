// Damaged files are errors that name what is wrong, never signals: B33 and B34 of the field
// reports, every truncation of a small file, and a few thousand random mutations.
#include "baton/files/gguf.h"

#include "baton/files/gguf_builder_for_test.h"
#include "baton/files/model_digest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace baton::files {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kQ4_1 = 3;
constexpr std::uint32_t kQ8_0 = 8;
constexpr std::uint32_t kQ4K = 12;
constexpr std::uint32_t kIq2Xxs = 16;

GgufBuilder small_model() {
  GgufBuilder builder;
  builder.string("general.architecture", "llama");
  builder.u32("llama.block_count", 2);
  builder.f32("llama.rope.freq_base", 5000.0F);
  builder.strings("tokenizer.ggml.tokens", {"a", "", "ccc"});
  builder.i32s("tokenizer.ggml.token_type", {1, 3, -1});
  builder.tensor("token_embd.weight", kF32, {32, 3}, 32 * 3 * 4, 1);
  builder.tensor("blk.0.attn_q.weight", kQ4_1, {64, 2}, 2 * 2 * 20, 2);
  builder.tensor("blk.0.attn_k.weight", kQ8_0, {32, 1}, 34, 3);
  return builder;
}

Result<GgufFile> open_bytes(std::string_view bytes) {
  const TemporaryFile file(bytes);
  return GgufFile::open(file.path());  // the mapping outlives the name
}

std::string error_of(std::string_view bytes) {
  const auto file = open_bytes(bytes);
  return file ? "no error" : file.error().message;
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

// B34's file, byte for byte: one key, general.alignment, u32, 0.
std::string alignment_file() {
  return from_hex(
      "4747554603000000000000000000000001000000000000001100000000000000"
      "67656e6572616c2e616c69676e6d656e740400000000000000");
}

TEST(Gguf, ReadsAllKindsOfValues) {
  const auto file = open_bytes(small_model().build());
  ASSERT_TRUE(file) << file.error().message;
  EXPECT_EQ(file->string("general.architecture").value(), "llama");
  EXPECT_EQ(file->integer("llama.block_count").value(), 2);
  EXPECT_EQ(file->number("llama.rope.freq_base").value(), 5000.0);
  EXPECT_THAT(file->strings("tokenizer.ggml.tokens").value(),
              ::testing::ElementsAre("a", "", "ccc"));
  EXPECT_THAT(file->integers("tokenizer.ggml.token_type").value(),
              ::testing::ElementsAre(1, 3, -1));
  EXPECT_EQ(file->integer_or("no.such", 7).value(), 7);
  ASSERT_EQ(file->tensors().size(), 3U);
  const GgufTensor* q = file->find_tensor("blk.0.attn_q.weight");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->type, TensorType::kQ4_1);
  EXPECT_THAT(q->dims, ::testing::ElementsAre(64, 2));
  EXPECT_EQ(q->bytes.size(), 80U);
  EXPECT_EQ(q->bytes[79], std::byte{2});
  EXPECT_EQ(file->find_tensor("blk.1.attn_q.weight"), nullptr);
}

TEST(Gguf, VersionTwoIsReadToo) {
  GgufBuilder builder = small_model();
  builder.version = 2;
  EXPECT_TRUE(open_bytes(builder.build()));
  builder.version = 1;
  EXPECT_THAT(error_of(builder.build()), HasSubstr("version 1"));
  builder.version = 0x03000000;
  EXPECT_THAT(error_of(builder.build()), HasSubstr("big-endian"));
}

TEST(Gguf, GettersNameTheKeyAndItsKind) {
  const auto file = open_bytes(small_model().build());
  ASSERT_TRUE(file);
  EXPECT_THAT(file->string("llama.block_count").error().message,
              ::testing::AllOf(HasSubstr("llama.block_count"), HasSubstr("u32")));
  EXPECT_THAT(file->integer("general.architecture").error().message, HasSubstr("string"));
  EXPECT_THAT(file->integer("no.such").error().message, HasSubstr("'no.such' is missing"));
  EXPECT_THAT(file->strings("tokenizer.ggml.token_type").error().message,
              HasSubstr("array of i32"));
  EXPECT_FALSE(file->floats("tokenizer.ggml.token_type"));
  EXPECT_FALSE(file->boolean("llama.block_count"));
}

TEST(Gguf, B33EveryTruncationIsAnErrorThatSaysHowMuchIsMissing) {
  const std::string whole = small_model().build();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto file = open_bytes(std::string_view(whole).substr(0, length));
    ASSERT_FALSE(file) << length << " of " << whole.size() << " bytes were accepted";
  }
  EXPECT_THAT(error_of(whole.substr(0, whole.size() - 1)),
              ::testing::AllOf(HasSubstr("blk.0.attn_k.weight"), HasSubstr("needs 34 bytes"),
                               HasSubstr("33 are there"), HasSubstr(".gguf")));
  EXPECT_THAT(error_of(""), HasSubstr("is empty"));
  EXPECT_THAT(error_of("Once upon a time there was a text file."), HasSubstr("not a GGUF file"));
  EXPECT_EQ(GgufFile::open("/no/such/model.gguf").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(GgufFile::open("/tmp").error().code, ErrorCode::kIo);
}

TEST(Gguf, B33APartOfASplitModelIsNamed) {
  GgufBuilder builder = small_model();
  builder.u32("split.count", 3);
  builder.u32("split.no", 0);
  EXPECT_THAT(error_of(builder.build()), HasSubstr("part 1 of a model split into 3 files"));
}

TEST(Gguf, B34AlignmentMustBeAPowerOfTwo) {
  std::string file = alignment_file();
  ASSERT_EQ(file.size(), 57U);
  EXPECT_THAT(error_of(file), HasSubstr("'general.alignment' is 0"));
  file[53] = 3;
  EXPECT_THAT(error_of(file), HasSubstr("'general.alignment' is 3"));
  file[53] = 0;
  file[56] = static_cast<char>(0x80);
  EXPECT_THAT(error_of(file), HasSubstr("'general.alignment' is 2147483648"));
  GgufBuilder builder;
  builder.string("general.alignment", "32");
  EXPECT_THAT(error_of(builder.build()), HasSubstr("'general.alignment' is of type string"));
}

TEST(Gguf, B34ZeroDimsAndEmptyKeys) {
  GgufBuilder zero;
  zero.tensor("weird", kF32, {4, 0}, 16);
  EXPECT_THAT(error_of(zero.build()), HasSubstr("tensor 'weird': dimension 1 is 0"));
  GgufBuilder empty_key;
  empty_key.u32("", 1);
  EXPECT_THAT(error_of(empty_key.build()), HasSubstr("metadata key 0 is empty"));
}

TEST(Gguf, DirectoryIsChecked) {
  const auto with = [](std::uint32_t type, const std::vector<std::uint64_t>& dims) {
    GgufBuilder builder;
    builder.tensor("t", type, dims, 64);
    return error_of(builder.build());
  };
  EXPECT_THAT(with(kIq2Xxs, {256}),
              ::testing::AllOf(HasSubstr("IQ2_XXS (number 16)"),
                               HasSubstr("Q6_K, IQ4_NL, BF16 and MXFP4 are")));
  EXPECT_THAT(with(77, {256}), HasSubstr("unknown (number 77)"));
  EXPECT_THAT(with(kQ4_1, {33}), HasSubstr("multiple of 32"));
  EXPECT_THAT(with(kQ4K, {576}), HasSubstr("rows of 576 elements, Q4_K needs a multiple of 256"));
  EXPECT_THAT(with(kF32, {}), HasSubstr("0 dimensions"));
  EXPECT_THAT(with(kF32, {1, 1, 1, 1, 1}), HasSubstr("5 dimensions"));
  EXPECT_THAT(with(kF32, {1ULL << 40, 1ULL << 40}), HasSubstr("more than"));
  EXPECT_THAT(with(kF32, {1ULL << 62}), HasSubstr("more than 2^64"));
  EXPECT_THAT(with(kF32, {1ULL << 61}), HasSubstr("needs 9223372036854775808 bytes"));
  GgufBuilder twice;
  twice.tensor("t", kF32, {1}, 4);
  twice.tensor("t", kF32, {1}, 4);
  EXPECT_THAT(error_of(twice.build()), HasSubstr("'t' occurs twice"));
  GgufBuilder keys;
  keys.u32("k", 1);
  keys.u32("k", 2);
  EXPECT_THAT(error_of(keys.build()), HasSubstr("'k' occurs twice"));
  GgufBuilder overlap;
  overlap.tensor("a", kF32, {16}, 4);
  overlap.tensor("b", kF32, {8}, 32);
  EXPECT_THAT(error_of(overlap.build()), HasSubstr("overlap"));
}

TEST(Gguf, HugeCountsAreRefusedBeforeAnythingIsReserved) {
  std::string file = small_model().build();
  for (const std::size_t at : {8U, 16U}) {  // tensor count, metadata count
    std::string damaged = file;
    damaged.replace(at, 8, std::string(8, static_cast<char>(0xFF)));
    EXPECT_THAT(error_of(damaged), HasSubstr("18446744073709551615"));
  }
}

TEST(Gguf, RandomMutationsNeverEndInASignal) {
  const std::string whole = small_model().build();
  std::mt19937_64 random(34);
  const TemporaryFile file("");
  int opened = 0;
  for (int round = 0; round < 2500; ++round) {
    std::string bytes = whole;
    const auto changes = 1 + random() % 4;
    for (std::uint64_t change = 0; change < changes; ++change) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = static_cast<char>(bytes[at] ^ (1 << (random() % 8)));
          break;
        case 2:
          bytes.erase(at, random() % 9);
          break;
        default:
          for (std::size_t i = at; i < std::min(bytes.size(), at + 8); ++i) {
            bytes[i] = static_cast<char>(0xFF);
          }
      }
      if (bytes.empty()) {
        break;
      }
    }
    file.write(bytes);
    const auto result = GgufFile::open(file.path());
    if (!result) {
      ASSERT_FALSE(result.error().message.empty());
      continue;
    }
    ++opened;
    // What was accepted can be read to the last byte.
    static_cast<void>(to_hex(ModelDigest(*result).finish()));
    static_cast<void>(result->tokenizer_digest());
    for (const char* key : {"tokenizer.ggml.tokens", "general.architecture"}) {
      static_cast<void>(result->strings(key));
      static_cast<void>(result->string(key));
    }
    static_cast<void>(result->integers("tokenizer.ggml.token_type"));
  }
  EXPECT_GT(opened, 100);  // flips in tensor data are not this layer's to see
}

TEST(Gguf, DigestsSeeWhatTheyShould) {
  const std::string whole = small_model().build();
  const auto digests = [](const std::string& bytes) {
    const auto file = open_bytes(bytes);
    EXPECT_TRUE(file);
    return std::pair(to_hex(ModelDigest(*file).finish()), to_hex(file->tokenizer_digest()));
  };
  const auto original = digests(whole);
  EXPECT_EQ(digests(whole), original);

  std::string weight = whole;
  weight.back() = 4;
  EXPECT_NE(digests(weight).first, original.first);
  EXPECT_EQ(digests(weight).second, original.second);

  std::string token = whole;
  token.replace(token.find("ccc"), 3, "ccd");
  EXPECT_NE(digests(token).first, original.first);
  EXPECT_NE(digests(token).second, original.second);

  // The same from hashes taken in pieces and in any order.
  const auto file = open_bytes(whole);
  ModelDigest pieces(*file);
  for (const std::size_t index : {2U, 0U}) {
    const auto bytes = file->tensors()[index].bytes;
    TensorHasher hasher;
    hasher.update(bytes.first(7));
    hasher.update(bytes.subspan(7));
    pieces.set(index, hasher.finish());
  }
  EXPECT_EQ(to_hex(pieces.finish()), original.first);
}

TEST(Sha256, KnownAnswer) {
  Sha256 sha;
  sha.update(std::as_bytes(std::span("abc", 3)));
  EXPECT_EQ(to_hex(sha.finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

}  // namespace
}  // namespace baton::files
