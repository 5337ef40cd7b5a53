// From pieces to ids: broken UTF-8 replaced, tokens that are matched whole found, the text between
// them normalised, cut into words and merged. Words repeat, so a small table remembers where in the
// output the ids of a word already stand; it lives for one call, so that no lock is needed.
#include "baton/text/tokenizer.h"

#include "baton/text/bpe.h"
#include "baton/text/normalizer.h"
#include "baton/text/pretokenizer.h"
#include "baton/text/special_tokens.h"
#include "baton/text/tokenizer_loader.h"
#include "baton/text/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace baton::text {

struct Tokenizer::Impl : TokenizerTables {};

namespace {

// Where a word's ids stand in the output. Direct-mapped: a collision only costs time, so no text
// can make it slow.
constexpr std::size_t kWordSlots = 4096;
constexpr std::size_t kCachedWordBytes = 64;

class Encoder {
 public:
  Encoder(const TokenizerTables& tables, std::vector<TokenId>& out)
      : tables_(tables), out_(out), words_(kWordSlots) {}

  // Text without tokens to match whole.
  void encode_plain(std::string_view text) {
    if (text.empty()) {
      return;
    }
    if (tables_.nfc) {
      normalized_.push_back(std::make_unique<std::string>(to_nfc(text)));
      text = *normalized_.back();
    }
    if (tables_.score_bpe != nullptr) {
      encode_by_score(text);
      return;
    }
    split_words(tables_.pre, text,
                [&](std::size_t begin, std::size_t end) { word(text.substr(begin, end - begin)); });
  }

 private:
  struct Seen {
    std::string_view word;
    std::size_t begin = 0;
    std::size_t count = 0;
  };

  void word(std::string_view bytes) {
    if (bytes.size() > kCachedWordBytes) {
      encode_word(bytes);
      return;
    }
    Seen& seen = words_[std::hash<std::string_view>{}(bytes) % kWordSlots];
    if (seen.word == bytes) {
      for (std::size_t i = 0; i < seen.count; ++i) {
        out_.push_back(out_[seen.begin + i]);
      }
      return;
    }
    const std::size_t begin = out_.size();
    encode_word(bytes);
    seen = {bytes, begin, out_.size() - begin};
  }

  void encode_by_score(std::string_view text) {
    std::size_t begin = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
      if (text[i] == ' ' && tables_.score_bpe->cuts_before_space(text[i - 1])) {
        word(text.substr(begin, i - begin));
        begin = i;
      }
    }
    word(text.substr(begin));
  }

  void encode_word(std::string_view bytes) {
    if (tables_.score_bpe != nullptr) {
      tables_.score_bpe->encode(bytes, score_scratch_, out_);
      return;
    }
    if (tables_.ignore_merges) {
      const auto whole = tables_.normal_ids.find(bytes);
      if (whole != tables_.normal_ids.end()) {
        out_.push_back(whole->second);
        return;
      }
    }
    tables_.bpe->encode(bytes, scratch_, out_);
  }

  const TokenizerTables& tables_;
  std::vector<TokenId>& out_;
  std::vector<Seen> words_;  // views into the text of the call, or into normalized_
  std::vector<std::unique_ptr<std::string>> normalized_;
  Bpe::Scratch scratch_;
  ScoreBpe::Scratch score_scratch_;
};

// Valid UTF-8 with marks; a character never spans two pieces.
Text joined_text(std::span<const Piece> pieces, bool sentence_piece) {
  Text text;
  for (const Piece& piece : pieces) {
    if (sentence_piece) {
      text.append(with_spaces(sanitized_utf8(piece.text)), piece.from_template);
    } else if (is_valid_utf8(piece.text)) {
      text.append(piece.text, piece.from_template);
    } else {
      text.append(sanitized_utf8(piece.text), piece.from_template);
    }
  }
  return text;
}

}  // namespace

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::create(const TokenizerDescription& description) {
  auto impl = std::make_unique<Impl>();
  BATON_TRY_VOID(load_tokenizer(description, *impl));
  return Tokenizer(std::move(impl));
}

std::vector<TokenId> Tokenizer::encode(std::span<const Piece> pieces) const {
  const Text text = joined_text(pieces, impl_->score_bpe != nullptr);
  const std::string_view bytes = text.bytes();
  std::vector<TokenId> out;
  out.reserve(bytes.size() / 3 + 1);
  Encoder encoder(*impl_, out);
  std::size_t plain_begin = 0;
  std::size_t run_begin = 0;
  for (const Text::Run& run : text.runs()) {
    const std::size_t control_end = run.from_template ? run.end : 0;
    for (std::size_t i = std::max(run_begin, plain_begin); i < run.end;) {
      if (!impl_->special.may_begin(bytes[i])) {
        ++i;
        continue;
      }
      const auto match = impl_->special.match_at(bytes, i, control_end);
      if (match.bytes == 0) {
        ++i;
        continue;
      }
      encoder.encode_plain(bytes.substr(plain_begin, i - plain_begin));
      out.push_back(match.id);
      i += match.bytes;
      plain_begin = i;
    }
    run_begin = run.end;
  }
  encoder.encode_plain(bytes.substr(plain_begin));
  return out;
}

std::vector<TokenId> Tokenizer::encode_plain(std::string_view text) const {
  const Piece piece{std::string(text), false};
  return encode({&piece, 1});
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  return valid(id) ? std::string_view(impl_->bytes[static_cast<std::size_t>(id)])
                   : std::string_view();
}

std::size_t Tokenizer::most_bytes_per_token() const {
  // Composition shrinks text: three characters of three bytes become one of three (Hangul).
  constexpr std::size_t kMostComposed = 4;
  constexpr std::size_t kSpaceSignBytes = 3;  // U+2581, which counts as a space
  return impl_->most_bytes * (impl_->nfc                    ? kMostComposed
                              : impl_->score_bpe != nullptr ? kSpaceSignBytes
                                                            : 1);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool with_control) const {
  std::string out;
  for (const TokenId id : ids) {
    if (with_control || !is_control(id)) {
      out += token_bytes(id);
    }
  }
  return out;
}

bool Tokenizer::valid(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < impl_->bytes.size();
}

bool Tokenizer::is_control(TokenId id) const {
  return valid(id) && impl_->control[static_cast<std::size_t>(id)];
}

std::optional<TokenId> Tokenizer::find(std::string_view bytes) const {
  for (const auto* ids : {&impl_->whole_ids, &impl_->normal_ids}) {
    const auto found = ids->find(bytes);
    if (found != ids->end()) {
      return found->second;
    }
  }
  return std::nullopt;
}

std::int32_t Tokenizer::vocabulary_tokens() const {
  return static_cast<std::int32_t>(impl_->bytes.size());
}
std::optional<TokenId> Tokenizer::bos() const { return impl_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->eos; }
std::span<const TokenId> Tokenizer::end_tokens() const { return impl_->end_tokens; }
bool Tokenizer::add_bos() const { return impl_->add_bos; }
bool Tokenizer::add_eos() const { return impl_->add_eos; }

std::vector<TokenId> prompt_ids(const Tokenizer& tokenizer, std::span<const Piece> pieces,
                                PromptKind kind) {
  std::vector<TokenId> ids = tokenizer.encode(pieces);
  if (tokenizer.add_bos() && tokenizer.bos() && (ids.empty() || ids.front() != *tokenizer.bos())) {
    ids.insert(ids.begin(), *tokenizer.bos());
  }
  if (kind == PromptKind::kRaw && tokenizer.add_eos() && tokenizer.eos()) {
    ids.push_back(*tokenizer.eos());
  }
  return ids;
}

}  // namespace baton::text
