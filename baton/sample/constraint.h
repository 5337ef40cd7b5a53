// What a grammar or schema says about the next token. Implemented in text/ (structured output comes
// with its own issue); here only the shape, so that the sampler need not change then.
#pragma once

#include "baton/base/ids.h"

#include <cstdint>
#include <span>

namespace baton::sample {

class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;
  // Bit i of word i / 32 set = token i may come after the tokens accepted so far. [vocabulary / 32,
  // rounded up]; valid until the next accept.
  [[nodiscard]] virtual std::span<const std::uint32_t> allowed() const = 0;
  // The token was drawn. It is one that allowed() offered.
  virtual void accept(TokenId token) = 0;
};

}  // namespace baton::sample
