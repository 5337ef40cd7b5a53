// Byte-level BPE, exact against Hugging Face `tokenizers`: text is cut into words by a
// pre-tokenizer (pretokenizer.h), each word's bytes are merged by rank. Or SentencePiece's BPE
// (score_bpe.h), exact against its library: characters are merged by score. Control tokens are
// recognised only in text that the chat template wrote; a user who types one gets plain tokens.
// Broken UTF-8 is read as U+FFFD per maximal invalid part, as Python's bytes.decode("utf-8",
// errors="replace") does, so that raw bytes and that str give the same ids.
// Immutable once made: every method may run on any thread, at the same time.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/text/text.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace baton::text {

// GGUF's numbers (tokenizer.ggml.token_type).
enum class TokenType : std::int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,      // <|im_start|>: only from the template; its text is not shown in answers
  kUserDefined = 4,  // matched whole in any text, shown in answers
  kUnused = 5,
  kByte = 6,
};

// What a model file says about its tokenizer; gguf_tokenizer.h fills it. All counts unchecked.
struct TokenizerDescription {
  std::string model;  // "gpt2": byte-level BPE; "llama": SentencePiece's BPE
  std::string pre;    // gpt2: name of the pre-tokenizer: "smollm", "gpt-2", "qwen2"
  // By id; normal ones in GPT-2's byte alphabet, or with U+2581 for a space and "<0x0A>" for a
  // byte.
  std::vector<std::string> tokens;
  std::vector<std::int32_t> token_types;  // by id, or empty = all normal
  std::vector<std::string> merges;        // gpt2: "left right", best first
  std::vector<float> scores;              // llama: by id; the highest is merged first
  std::optional<std::int64_t> bos;
  std::optional<std::int64_t> eos;
  std::optional<std::int64_t> eot;  // end of turn, when the file names another one
  bool add_bos = false;
  bool add_eos = false;
  bool ignore_merges = false;     // a word that is a token is taken whole (Llama 3)
  bool add_space_prefix = false;  // llama: a space before every text; not supported
};

class Tokenizer {
 public:
  // Errors: kUnsupported (model or pre-tokenizer not known, or what a model asks for; named),
  // kInvalidArgument (no tokens, malformed merge, id outside of the vocabulary, merge of tokens
  // that do not exist, scores or byte tokens missing).
  static Result<Tokenizer> create(const TokenizerDescription& description);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of the pieces' concatenation: words may span pieces, control tokens only within template
  // text. Adds no BOS (see prompt_ids). Time O(n log n) in bytes, whatever the text.
  [[nodiscard]] std::vector<TokenId> encode(std::span<const Piece> pieces) const;
  // One piece from outside.
  [[nodiscard]] std::vector<TokenId> encode_plain(std::string_view text) const;

  // The bytes that a token stands for; may be a part of a character. Control tokens: their name.
  // Empty for an id outside of the vocabulary.
  [[nodiscard]] std::string_view token_bytes(TokenId id) const;
  // Concatenated bytes, control tokens left out unless asked for; not checked for UTF-8.
  [[nodiscard]] std::string decode(std::span<const TokenId> ids, bool with_control = false) const;

  // No text of n bytes has fewer than n / most_bytes_per_token() tokens. At least 1.
  [[nodiscard]] std::size_t most_bytes_per_token() const;
  [[nodiscard]] bool valid(TokenId id) const;
  [[nodiscard]] bool is_control(TokenId id) const;
  // The id whose text (token_bytes) this is, control tokens included.
  [[nodiscard]] std::optional<TokenId> find(std::string_view bytes) const;
  [[nodiscard]] std::int32_t vocabulary_tokens() const;
  [[nodiscard]] std::optional<TokenId> bos() const;
  [[nodiscard]] std::optional<TokenId> eos() const;
  // Every id that ends an answer: EOS and end of turn.
  [[nodiscard]] std::span<const TokenId> end_tokens() const;
  [[nodiscard]] bool add_bos() const;
  [[nodiscard]] bool add_eos() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

// Token ids of a prompt. The tokenizer's BOS is put in front when the file asks for it and the
// pieces do not begin with it already: never two by our doing, and whatever control tokens the
// template itself wrote are kept (a template may open with two special tokens). EOS is appended,
// when the file asks for it, to raw text only: after a chat template it would end the turn.
enum class PromptKind { kChat, kRaw };
std::vector<TokenId> prompt_ids(const Tokenizer& tokenizer, std::span<const Piece> pieces,
                                PromptKind kind);

}  // namespace baton::text
