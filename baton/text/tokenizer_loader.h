// The checked tables behind a Tokenizer. Internal to text/.
#pragma once

#include "baton/base/ids.h"
#include "baton/base/result.h"
#include "baton/text/bpe.h"
#include "baton/text/pretokenizer.h"
#include "baton/text/score_bpe.h"
#include "baton/text/special_tokens.h"
#include "baton/text/tokenizer.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace baton::text {

// Far above any vocabulary published (256 Ki), far below what 32-bit ids hold.
inline constexpr std::size_t kMaxVocabularyTokens = 1U << 22;

struct TokenizerTables {
  PreTokenizer pre = PreTokenizer::kGpt2;
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
  bool add_eos = false;
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::vector<TokenId> end_tokens;
  std::vector<std::string> bytes;  // by id: what the token stands for
  std::size_t most_bytes = 1;      // of the longest of them
  std::vector<bool> control;       // by id
  // By bytes, views into `bytes`: tokens matched whole (control, user-defined), and the others.
  std::unordered_map<std::string_view, TokenId> whole_ids;
  std::unordered_map<std::string_view, TokenId> normal_ids;
  SpecialTokens special;
  std::unique_ptr<const Bpe> bpe;  // one of the two
  std::unique_ptr<const ScoreBpe> score_bpe;
};

// SentencePiece's sign for a space, U+2581, as a space. No other byte changes.
std::string with_spaces(std::string_view text);

// Errors: see Tokenizer::create.
Status load_tokenizer(const TokenizerDescription& description, TokenizerTables& tables);

}  // namespace baton::text
