// Shapes and views of stored tensors: rows of a dtype, as files/ describes them and kernels/ repack
// them. A view borrows; whoever made it says how long the bytes live. Thread: any.
#pragma once

#include "baton/tensor/dtype.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace baton::tensor {

// A matrix of `rows` rows of `columns` values, row-major; a vector has rows = 1.
struct Shape {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  [[nodiscard]] std::int64_t values() const { return rows * columns; }
  bool operator==(const Shape&) const = default;
};

struct View {
  DType dtype = DType::kF32;
  Shape shape;
  const std::byte* data = nullptr;  // [rows][row_bytes(dtype, columns)], no padding

  [[nodiscard]] std::size_t row_bytes() const { return tensor::row_bytes(dtype, shape.columns); }
  [[nodiscard]] std::size_t bytes() const {
    return static_cast<std::size_t>(shape.rows) * row_bytes();
  }
  [[nodiscard]] std::span<const std::byte> row(std::int64_t index) const {
    return {data + static_cast<std::size_t>(index) * row_bytes(), row_bytes()};
  }
};

}  // namespace baton::tensor
