// A model file's description of its tokenizer, checked, as tables. Start-up, one thread.
#include "baton/text/tokenizer_loader.h"

#include "baton/text/byte_alphabet.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace baton::text {
namespace {

constexpr std::string_view kSentencePieceModel = "llama";

using IdsByName = std::unordered_map<std::string_view, TokenId>;

TokenType type_of(const TokenizerDescription& description, std::size_t id) {
  return description.token_types.empty() ? TokenType::kNormal
                                         : static_cast<TokenType>(description.token_types[id]);
}

bool matched_whole(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUserDefined ||
         type == TokenType::kUnknown;
}

Status check_counts(const TokenizerDescription& description) {
  const std::size_t tokens = description.tokens.size();
  if (tokens == 0) {
    return fail(ErrorCode::kInvalidArgument, "tokenizer: the model file has no tokens",
                "tokenizer.ggml.tokens");
  }
  if (tokens > kMaxVocabularyTokens) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tokenizer: {} tokens, more than {}", tokens, kMaxVocabularyTokens),
                "tokenizer.ggml.tokens");
  }
  if (!description.token_types.empty() && description.token_types.size() != tokens) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tokenizer: {} token types for {} tokens",
                            description.token_types.size(), tokens),
                "tokenizer.ggml.token_type");
  }
  for (std::size_t id = 0; id < description.token_types.size(); ++id) {
    const std::int32_t type = description.token_types[id];
    if (type < static_cast<std::int32_t>(TokenType::kNormal) ||
        type > static_cast<std::int32_t>(TokenType::kByte)) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tokenizer: token {} has unknown type {}", id, type),
                  "tokenizer.ggml.token_type");
    }
  }
  return {};
}

Result<std::optional<TokenId>> checked_id(std::optional<std::int64_t> id, std::size_t tokens,
                                          const char* key) {
  if (!id) {
    return std::optional<TokenId>();
  }
  if (*id < 0 || *id >= static_cast<std::int64_t>(tokens)) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tokenizer: {} is {}, outside of the vocabulary of {} tokens", key, *id,
                            tokens),
                key);
  }
  return std::optional<TokenId>(static_cast<TokenId>(*id));
}

Status load_special_ids(const TokenizerDescription& description, TokenizerTables& tables) {
  const std::size_t tokens = description.tokens.size();
  BATON_TRY(tables.bos, checked_id(description.bos, tokens, "tokenizer.ggml.bos_token_id"));
  BATON_TRY(tables.eos, checked_id(description.eos, tokens, "tokenizer.ggml.eos_token_id"));
  BATON_TRY(const std::optional<TokenId> eot,
            checked_id(description.eot, tokens, "tokenizer.ggml.eot_token_id"));
  if (description.add_bos && !tables.bos) {
    return fail(ErrorCode::kInvalidArgument,
                "tokenizer: add_bos_token is set but there is no bos_token_id",
                "tokenizer.ggml.bos_token_id");
  }
  if (description.add_eos && !tables.eos) {
    return fail(ErrorCode::kInvalidArgument,
                "tokenizer: add_eos_token is set but there is no eos_token_id",
                "tokenizer.ggml.eos_token_id");
  }
  if (tables.eos) {
    tables.end_tokens.push_back(*tables.eos);
  }
  if (eot && eot != tables.eos) {
    tables.end_tokens.push_back(*eot);
  }
  return {};
}

// "<0x0A>": the byte.
std::optional<char> byte_of(std::string_view token) {
  unsigned int byte = 0;
  const bool framed = token.size() == 6 && token.starts_with("<0x") && token.ends_with(">");
  const char* const end = token.data() + 5;
  if (!framed || std::from_chars(token.data() + 3, end, byte, 16).ptr != end) {
    return std::nullopt;
  }
  return static_cast<char>(byte);
}

// What a token stands for.
std::string bytes_of(const TokenizerDescription& description, std::size_t id) {
  const std::string& token = description.tokens[id];
  const TokenType type = type_of(description, id);
  if (description.model == kSentencePieceModel) {
    if (type == TokenType::kByte) {
      return std::string(1, byte_of(token).value_or('\0'));  // checked
    }
    return type == TokenType::kControl || type == TokenType::kUnknown ? token : with_spaces(token);
  }
  // A token outside of the alphabet stands for its own letters.
  auto bytes = matched_whole(type) ? std::nullopt : bytes_of_alphabet(token);
  return bytes ? *std::move(bytes) : token;
}

// bytes, control, the maps by bytes, the tokens matched whole.
void load_tokens(const TokenizerDescription& description, TokenizerTables& tables) {
  const std::size_t tokens = description.tokens.size();
  tables.bytes.resize(tokens);  // never resized again: the maps hold views
  tables.control.resize(tokens);
  tables.normal_ids.reserve(tokens);
  for (std::size_t i = 0; i < tokens; ++i) {
    const auto id = static_cast<TokenId>(i);
    const TokenType type = type_of(description, i);
    const bool whole = matched_whole(type);
    tables.bytes[i] = bytes_of(description, i);
    tables.control[i] = type == TokenType::kControl || type == TokenType::kUnknown;
    tables.most_bytes = std::max(tables.most_bytes, tables.bytes[i].size());
    if (tables.bytes[i].empty() ||
        (type == TokenType::kByte && description.model == kSentencePieceModel)) {
      continue;  // bytes are a fallback, not a text
    }
    (whole ? tables.whole_ids : tables.normal_ids).emplace(tables.bytes[i], id);
    if (whole) {
      tables.special.add(tables.bytes[i], id, tables.control[i]);
    }
  }
}

Result<Bpe::Merge> parse_merge(std::string_view merge, std::size_t rank, const IdsByName& ids) {
  const auto bad = [&](const char* why) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tokenizer: merge {} (\"{}\") {}", rank, merge, why),
                "tokenizer.ggml.merges");
  };
  const std::size_t space = merge.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
      merge.find(' ', space + 1) != std::string_view::npos) {
    return bad("is not two tokens with one space between");
  }
  const std::string_view left = merge.substr(0, space);
  const std::string_view right = merge.substr(space + 1);
  const auto left_id = ids.find(left);
  const auto right_id = ids.find(right);
  if (left_id == ids.end() || right_id == ids.end()) {
    return bad("names a token that is not in the vocabulary");
  }
  const auto merged_id = ids.find(std::string(left).append(right));
  if (merged_id == ids.end()) {
    return bad("makes a token that is not in the vocabulary");
  }
  return Bpe::Merge{left_id->second, right_id->second, merged_id->second};
}

Status load_merges(const TokenizerDescription& description, TokenizerTables& tables) {
  IdsByName ids;
  ids.reserve(description.tokens.size());
  for (std::size_t i = 0; i < description.tokens.size(); ++i) {
    ids.emplace(description.tokens[i], static_cast<TokenId>(i));
  }
  std::vector<Bpe::Merge> merges;
  merges.reserve(description.merges.size());
  for (std::size_t rank = 0; rank < description.merges.size(); ++rank) {
    BATON_TRY(merges.emplace_back(), parse_merge(description.merges[rank], rank, ids));
  }
  std::array<TokenId, 256> byte_ids{};
  for (std::size_t byte = 0; byte < byte_ids.size(); ++byte) {
    const auto found = ids.find(byte_characters()[byte]);
    byte_ids[byte] = found == ids.end() ? -1 : found->second;
  }
  tables.bpe = std::make_unique<const Bpe>(byte_ids, merges);
  return {};
}

Status load_scores(const TokenizerDescription& description, TokenizerTables& tables) {
  const std::size_t count = description.tokens.size();
  if (description.scores.size() != count) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tokenizer: {} scores for {} tokens", description.scores.size(), count),
                "tokenizer.ggml.scores");
  }
  std::array<TokenId, 256> byte_ids{};
  byte_ids.fill(-1);
  std::vector<ScoreBpe::Token> tokens;
  for (std::size_t i = 0; i < count; ++i) {
    const TokenType type = type_of(description, i);
    const auto id = static_cast<TokenId>(i);
    if (std::isnan(description.scores[i])) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("tokenizer: the score of token {} is no number", i),
                  "tokenizer.ggml.scores");
    }
    if (type == TokenType::kUnused) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("tokenizer: token {} is of type \"unused\"", i),
                  "tokenizer.ggml.token_type");
    }
    if (type == TokenType::kByte) {
      byte_ids[static_cast<unsigned char>(tables.bytes[i][0])] = id;
    } else if (type == TokenType::kNormal && !tables.bytes[i].empty()) {
      tokens.push_back({tables.bytes[i], id, description.scores[i]});
    }
  }
  const auto missing = std::find(byte_ids.begin(), byte_ids.end(), -1);
  if (missing != byte_ids.end()) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("tokenizer: there is no token for byte 0x{:02X}", missing - byte_ids.begin()),
        "tokenizer.ggml.tokens");
  }
  tables.score_bpe = std::make_unique<const ScoreBpe>(tokens, byte_ids);
  return {};
}

Status check_sentence_piece(const TokenizerDescription& description) {
  if (description.add_space_prefix) {
    return fail(ErrorCode::kUnsupported,
                "tokenizer: a space before every text (add_space_prefix) is not supported",
                "tokenizer.ggml.add_space_prefix");
  }
  for (std::size_t id = 0; id < description.tokens.size(); ++id) {
    if (type_of(description, id) == TokenType::kByte && !byte_of(description.tokens[id])) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("tokenizer: token {} (\"{}\") is no byte", id, description.tokens[id]),
          "tokenizer.ggml.tokens");
    }
  }
  return {};
}

}  // namespace

std::string with_spaces(std::string_view text) {
  constexpr std::string_view kSpaceSign = "\u2581";
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const bool sign = text.substr(i, kSpaceSign.size()) == kSpaceSign;
    out += sign ? ' ' : text[i];
    i += sign ? kSpaceSign.size() : 1;
  }
  return out;
}

Status load_tokenizer(const TokenizerDescription& description, TokenizerTables& tables) {
  const bool sentence_piece = description.model == kSentencePieceModel;
  if (!sentence_piece && description.model != "gpt2") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("tokenizer: model \"{}\" is not supported (\"gpt2\", byte-level BPE, "
                            "and \"llama\", SentencePiece's, are)",
                            description.model),
                "tokenizer.ggml.model");
  }
  const auto pre = sentence_piece ? PreTokenizer::kGpt2 : find_pre_tokenizer(description.pre);
  if (!pre) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("tokenizer: pre-tokenizer \"{}\" is not supported", description.pre),
                "tokenizer.ggml.pre");
  }
  BATON_TRY_VOID(check_counts(description));
  if (sentence_piece) {
    BATON_TRY_VOID(check_sentence_piece(description));
  }
  tables.pre = *pre;
  tables.nfc = !sentence_piece && *pre == PreTokenizer::kQwen2;
  tables.ignore_merges = description.ignore_merges;
  tables.add_bos = description.add_bos;
  tables.add_eos = description.add_eos;
  BATON_TRY_VOID(load_special_ids(description, tables));
  load_tokens(description, tables);
  return sentence_piece ? load_scores(description, tables) : load_merges(description, tables);
}

}  // namespace baton::text
