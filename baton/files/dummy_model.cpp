#include "baton/files/dummy_model.h"

#include "baton/base/check.h"
#include "baton/files/tensor_type.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>

namespace baton::files {

namespace {

struct Shape {
  std::string_view name;
  std::string_view architecture;
  std::uint32_t layers;
  std::uint32_t dim;
  std::uint32_t ffn_dim;
  std::uint32_t heads;
  std::uint32_t kv_heads;
  std::uint32_t head_dim;
  std::uint32_t vocabulary;
  std::uint32_t context_tokens;
  float rope_base;
  float rms_eps;
  bool tied_output;
};

// From the models' config.json.
constexpr std::array kShapes = {
    Shape{"smollm2-135m", "llama", 30, 576, 1536, 9, 3, 64, 49152, 8192, 1e5F, 1e-5F, true},
    Shape{"qwen3-0.6b", "qwen3", 28, 1024, 3072, 16, 8, 128, 151936, 40960, 1e6F, 1e-6F, true},
    Shape{"llama-3.2-1b", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 131072, 5e5F, 1e-5F, true},
    Shape{"llama-3-8b", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 8192, 5e5F, 1e-5F, false},
};

// A field of a block that must not be random: f16, 2^(exponent + shift), or as MXFP4's a byte.
struct Scale {
  std::size_t offset;
  int shift;
  bool negative = false;
};
// How random bits become weights. `rms` is that of the values when the exponent is 0: a power of
// two is chosen that gives each output about unit variance. Minima put the values around 0.
struct Recipe {
  TensorType type;
  double rms;
  std::size_t scales = 0;  // used of:
  std::array<Scale, 2> scale{};
};
constexpr std::array kRecipes = {
    Recipe{TensorType::kF32, 1.53},
    Recipe{TensorType::kF16, 1.53},
    Recipe{TensorType::kBf16, 1.53},
    Recipe{TensorType::kQ4_0, 4.6, 1, {Scale{0, 0}}},
    Recipe{TensorType::kQ4_1, 4.6, 2, {Scale{0, 0}, Scale{2, 3, true}}},
    Recipe{TensorType::kQ5_0, 9.2, 1, {Scale{0, 0}}},
    Recipe{TensorType::kQ5_1, 9.2, 2, {Scale{0, 0}, Scale{2, 4, true}}},
    Recipe{TensorType::kQ8_0, 74.0, 1, {Scale{0, 0}}},
    Recipe{TensorType::kQ2K, 16.0, 2, {Scale{80, 0}, Scale{82, 1}}},
    Recipe{TensorType::kQ3K, 42.0, 1, {Scale{108, 0}}},
    Recipe{TensorType::kQ4K, 210.0, 2, {Scale{0, 0}, Scale{2, 3}}},
    Recipe{TensorType::kQ5K, 420.0, 2, {Scale{0, 0}, Scale{2, 4}}},
    Recipe{TensorType::kQ6K, 1370.0, 1, {Scale{208, 0}}},
    Recipe{TensorType::kIq4Nl, 70.0, 1, {Scale{0, 0}}},
    Recipe{TensorType::kMxfp4, 5.9, 1, {Scale{0, 0}}},
};

constexpr std::uint64_t kAlignment = 64;

const Recipe& recipe_of(TensorType type) {
  const auto* found = std::ranges::find(kRecipes, type, &Recipe::type);
  BATON_CHECK(found != kRecipes.end(), "tensor type {}", static_cast<std::uint32_t>(type));
  return *found;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return result;
}

struct Placed {
  TensorType type = TensorType::kF32;
  std::uint64_t inputs = 0;
  bool norm = false;
  std::uint64_t offset = 0;  // in the data
  std::uint64_t bytes = 0;
};

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) {
    all += (all.empty() ? "" : ", ") + name;
  }
  return all;
}

// Metadata and tensor directory.
class Header {
 public:
  void string(std::string_view key, std::string_view value) {
    entry(key, GgufValueType::kString);
    text(metadata_, value);
  }
  void u32(std::string_view key, std::uint32_t value) {
    entry(key, GgufValueType::kU32);
    put(metadata_, value);
  }
  void f32(std::string_view key, float value) {
    entry(key, GgufValueType::kF32);
    put(metadata_, value);
  }
  void tensor(std::string_view name, TensorType type, const std::vector<std::uint64_t>& dims) {
    text(directory_, name);
    put(directory_, static_cast<std::uint32_t>(dims.size()));
    std::uint64_t elements = 1;
    for (const std::uint64_t extent : dims) {
      put(directory_, extent);
      elements *= extent;
    }
    put(directory_, static_cast<std::uint32_t>(type));
    put(directory_, data_bytes_);
    const std::uint64_t bytes =
        elements / tensor_type_block_elements(type) * tensor_type_block_bytes(type);
    tensors_.push_back({type, dims[0], dims.size() == 1, data_bytes_, bytes});
    data_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  [[nodiscard]] std::string bytes() const {
    std::string all = "GGUF";
    put(all, std::uint32_t{3});  // version
    put(all, static_cast<std::uint64_t>(tensors_.size()));
    put(all, entries_);
    all += metadata_ + directory_;
    all.resize((all.size() + kAlignment - 1) / kAlignment * kAlignment);
    return all;
  }
  [[nodiscard]] std::uint64_t data_bytes() const { return data_bytes_; }
  [[nodiscard]] std::span<const Placed> tensors() const { return tensors_; }

 private:
  template <class T>
  static void put(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void text(std::string& to, std::string_view value) {
    put(to, static_cast<std::uint64_t>(value.size()));
    to.append(value);
  }
  void entry(std::string_view key, GgufValueType type) {
    ++entries_;
    text(metadata_, key);
    put(metadata_, static_cast<std::uint32_t>(type));
  }

  std::string metadata_;
  std::string directory_;
  std::vector<Placed> tensors_;
  std::uint64_t entries_ = 0;
  std::uint64_t data_bytes_ = 0;
};

void add_metadata(const Shape& shape, Header& header) {
  const auto key = [&](std::string_view name) {
    return fmt::format("{}.{}", shape.architecture, name);
  };
  header.string("general.architecture", shape.architecture);
  header.string("general.name", fmt::format("{} (random weights)", shape.name));
  header.u32("general.alignment", static_cast<std::uint32_t>(kAlignment));
  header.u32(key("block_count"), shape.layers);
  header.u32(key("embedding_length"), shape.dim);
  header.u32(key("feed_forward_length"), shape.ffn_dim);
  header.u32(key("context_length"), shape.context_tokens);
  header.u32(key("attention.head_count"), shape.heads);
  header.u32(key("attention.head_count_kv"), shape.kv_heads);
  header.u32(key("attention.key_length"), shape.head_dim);
  header.u32(key("attention.value_length"), shape.head_dim);
  header.f32(key("attention.layer_norm_rms_epsilon"), shape.rms_eps);
  header.f32(key("rope.freq_base"), shape.rope_base);
}

void add_tensors(const Shape& shape, TensorType type, Header& header) {
  const bool small = tensor_type_block_bytes(type) < tensor_type_block_elements(type);
  const TensorType head_type = small ? TensorType::kQ8_0 : type;
  const std::uint64_t q_rows = std::uint64_t{shape.heads} * shape.head_dim;
  const std::uint64_t kv_rows = std::uint64_t{shape.kv_heads} * shape.head_dim;
  header.tensor("token_embd.weight", head_type, {shape.dim, shape.vocabulary});
  header.tensor("output_norm.weight", TensorType::kF32, {shape.dim});
  if (!shape.tied_output) {
    header.tensor("output.weight", head_type, {shape.dim, shape.vocabulary});
  }
  for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
    const auto name = [layer](std::string_view weight) {
      return fmt::format("blk.{}.{}.weight", layer, weight);
    };
    header.tensor(name("attn_norm"), TensorType::kF32, {shape.dim});
    header.tensor(name("attn_q"), type, {shape.dim, q_rows});
    header.tensor(name("attn_k"), type, {shape.dim, kv_rows});
    header.tensor(name("attn_v"), type, {shape.dim, kv_rows});
    header.tensor(name("attn_output"), type, {q_rows, shape.dim});
    if (shape.architecture == "qwen3") {
      header.tensor(name("attn_q_norm"), TensorType::kF32, {shape.head_dim});
      header.tensor(name("attn_k_norm"), TensorType::kF32, {shape.head_dim});
    }
    header.tensor(name("ffn_norm"), TensorType::kF32, {shape.dim});
    header.tensor(name("ffn_gate"), type, {shape.dim, shape.ffn_dim});
    header.tensor(name("ffn_up"), type, {shape.dim, shape.ffn_dim});
    header.tensor(name("ffn_down"), type, {shape.ffn_dim, shape.dim});
  }
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ULL + 1) {}
  std::uint64_t next() {  // xorshift64*
    state_ ^= state_ >> 12U;
    state_ ^= state_ << 25U;
    state_ ^= state_ >> 27U;
    return state_ * 0x2545F4914F6CDD1DULL;
  }

 private:
  std::uint64_t state_;
};

// Sign and mantissa are random, the exponent is fixed: values in +-[2^e, 2^(e+1)).
void fill_words(TensorType type, int exponent, Random& random, std::span<std::byte> bytes) {
  const auto biased = [&](int bias, unsigned shift) {
    return static_cast<std::uint64_t>(exponent + bias) << shift;
  };
  std::uint64_t keep = ~std::uint64_t{0};
  std::uint64_t set = 0;
  if (type == TensorType::kF32) {
    keep = 0x807FFFFF807FFFFFULL;
    set = biased(127, 23) * 0x0000000100000001ULL;
  } else if (type == TensorType::kF16) {
    keep = 0x83FF83FF83FF83FFULL;
    set = biased(15, 10) * 0x0001000100010001ULL;
  } else if (type == TensorType::kBf16) {
    keep = 0x807F807F807F807FULL;
    set = biased(127, 7) * 0x0001000100010001ULL;
  }
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = (random.next() & keep) | set;
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

// +-2^power as f16, also below its normal range.
std::uint16_t half_bits(int power, bool negative) {
  const int magnitude = power >= -14 ? (power + 15) << 10 : 1 << std::max(0, power + 24);
  return static_cast<std::uint16_t>(magnitude | (negative ? 0x8000 : 0));
}

void fill_tensor(const Placed& tensor, std::span<std::byte> bytes) {
  if (tensor.norm) {
    const float one = 1.0F;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof one) {
      std::memcpy(bytes.data() + at, &one, sizeof one);
    }
    return;
  }
  const Recipe& recipe = recipe_of(tensor.type);
  const auto inputs = static_cast<double>(tensor.inputs);
  const int exponent = static_cast<int>(std::lround(-std::log2(recipe.rms * std::sqrt(inputs))));
  Random random(tensor.offset);
  fill_words(tensor.type, exponent, random, bytes);
  if (recipe.scales == 0) {
    return;
  }
  const std::uint64_t block_bytes = tensor_type_block_bytes(tensor.type);
  for (std::size_t at = 0; at < bytes.size(); at += block_bytes) {
    for (std::size_t field = 0; field < recipe.scales; ++field) {
      const Scale& scale = recipe.scale[field];
      const int power = exponent + scale.shift;
      if (tensor.type == TensorType::kMxfp4) {
        bytes[at + scale.offset] = static_cast<std::byte>(power + 128);
      } else {
        const std::uint16_t bits = half_bits(power, scale.negative);
        std::memcpy(bytes.data() + at + scale.offset, &bits, sizeof bits);
      }
    }
  }
}

}  // namespace

std::vector<std::string> dummy_shapes() {
  std::vector<std::string> names;
  std::ranges::transform(kShapes, std::back_inserter(names),
                         [](const Shape& shape) { return std::string(shape.name); });
  return names;
}

std::vector<std::string> dummy_dtypes() {
  std::vector<std::string> names;
  std::ranges::transform(kRecipes, std::back_inserter(names),
                         [](const Recipe& recipe) { return lower(tensor_type_name(recipe.type)); });
  return names;
}

Result<GgufFile> make_dummy_model(const DummyModel& model, DummyValues values) {
  const auto* shape = std::ranges::find(kShapes, lower(model.shape), &Shape::name);
  if (shape == kShapes.end()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("shape '{}' is not known; these are: {}", model.shape, listed(dummy_shapes())),
        "shape");
  }
  const auto* recipe = std::ranges::find_if(kRecipes, [&](const Recipe& known) {
    return lower(tensor_type_name(known.type)) == lower(model.dtype);
  });
  if (recipe == kRecipes.end()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("random weights of type '{}' cannot be made; of these they can: {}",
                            model.dtype, listed(dummy_dtypes())),
                "dtype");
  }
  Header header;
  add_metadata(*shape, header);
  add_tensors(*shape, recipe->type, header);
  const std::string start = header.bytes();
  const std::string name = fmt::format("{}.{}", shape->name, tensor_type_name(recipe->type));
  const std::uint64_t all_bytes = start.size() + header.data_bytes();
  BATON_TRY(MappedFile memory, MappedFile::in_memory(all_bytes, [&](std::span<std::byte> bytes) {
              std::memcpy(bytes.data(), start.data(), start.size());
              if (values == DummyValues::kRandom) {
                for (const Placed& tensor : header.tensors()) {
                  fill_tensor(tensor, bytes.subspan(start.size() + tensor.offset, tensor.bytes));
                }
              }
            }));
  return GgufFile::from_memory(name, std::move(memory));
}

}  // namespace baton::files
