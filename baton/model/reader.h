// How the families read a GGUF: positive integers from "<architecture>.<key>", tensors by name with
// the shape that the config asks for, and in the end no tensor left that nobody asked for. A
// missing bias that is silently ignored would be fluent nonsense. Internal to model/.
#pragma once

#include "baton/model/model.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace baton::model {

class Reader {
 public:
  explicit Reader(const files::GgufFile& file, std::string architecture);

  // "<architecture>.<key>"; the value must lie in [1, at_most].
  Result<std::int32_t> positive(std::string_view key, std::int64_t at_most) const;
  Result<std::int32_t> positive_or(std::string_view key, std::int64_t at_most,
                                   std::int32_t fallback) const;
  // Finite and > 0.
  Result<double> positive_number(std::string_view key) const;
  Result<double> positive_number_or(std::string_view key, double fallback) const;

  Result<TensorRef> matrix(const std::string& name, std::int32_t rows, std::int32_t columns);
  Result<TensorRef> vector_f32(const std::string& name, std::int32_t elements);
  // The values of a tensor that vector_f32 gave.
  [[nodiscard]] std::vector<float> floats(const TensorRef& ref) const;
  [[nodiscard]] bool has_tensor(std::string_view name) const;
  // Errors: kUnsupported naming the first tensor that was never read.
  Status all_tensors_used() const;

  [[nodiscard]] const files::GgufFile& file() const { return file_; }
  [[nodiscard]] std::string key(std::string_view key) const;

 private:
  Result<TensorRef> tensor(const std::string& name, std::vector<std::uint64_t> dims);

  const files::GgufFile& file_;
  std::string architecture_;
  std::vector<bool> used_;
};

// What all families have in common: sizes, rope settings, end tokens.
Result<ModelConfig> read_decoder_config(const Reader& reader);
// Embedding, norms, attention and gated feed-forward tensors of a decoder, named as llama.cpp's
// converter names them.
Result<ModelDescription> read_decoder(Reader& reader, ModelConfig config);

}  // namespace baton::model
