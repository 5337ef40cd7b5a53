// See score_bpe.h.
#include "baton/text/score_bpe.h"

#include "baton/text/utf8.h"

#include <algorithm>

namespace baton::text {
namespace {

bool later(const ScoreBpe::Scratch::Candidate& a, const ScoreBpe::Scratch::Candidate& b) {
  return a.score != b.score ? a.score < b.score : a.left > b.left;
}

}  // namespace

ScoreBpe::ScoreBpe(const std::vector<Token>& tokens, const std::array<TokenId, 256>& byte_ids)
    : byte_ids_(byte_ids) {
  tokens_.reserve(tokens.size());
  for (const Token& token : tokens) {
    tokens_.emplace(token.bytes, Entry{token.id, token.score});
    longest_ = std::max(longest_, token.bytes.size());
    for (std::size_t i = 1; i < token.bytes.size(); ++i) {
      if (token.bytes[i] == ' ') {
        before_space_[static_cast<unsigned char>(token.bytes[i - 1])] = true;
      }
    }
  }
}

const ScoreBpe::Entry* ScoreBpe::find(std::string_view bytes) const {
  if (bytes.size() > longest_) {
    return nullptr;
  }
  const auto found = tokens_.find(bytes);
  return found == tokens_.end() ? nullptr : &found->second;
}

void ScoreBpe::push(std::string_view text, Scratch& scratch, std::int32_t left,
                    std::int32_t right) const {
  if (left < 0 || right < 0) {
    return;
  }
  const Scratch::Symbol& a = scratch.symbols[static_cast<std::size_t>(left)];
  const Scratch::Symbol& b = scratch.symbols[static_cast<std::size_t>(right)];
  const std::size_t bytes = a.bytes + b.bytes;
  if (const Entry* entry = find(text.substr(a.begin, bytes)); entry != nullptr) {
    scratch.heap.push_back({entry->score, left, right, bytes});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
  }
}

void ScoreBpe::encode(std::string_view text, Scratch& scratch, std::vector<TokenId>& out) const {
  std::vector<Scratch::Symbol>& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t bytes = decode_utf8(text, i).bytes;
    const auto at = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({i, bytes, at - 1, at + 1});
    i += bytes;
  }
  if (symbols.empty()) {
    return;
  }
  symbols.back().next = -1;
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
    push(text, scratch, static_cast<std::int32_t>(i), static_cast<std::int32_t>(i + 1));
  }
  while (!scratch.heap.empty()) {
    const Scratch::Candidate top = scratch.heap.front();
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    scratch.heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<std::size_t>(top.left)];
    Scratch::Symbol& right = symbols[static_cast<std::size_t>(top.right)];
    if (left.bytes == 0 || right.bytes == 0 || left.bytes + right.bytes != top.bytes) {
      continue;  // one of the two was merged since
    }
    left.bytes = top.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next >= 0) {
      symbols[static_cast<std::size_t>(left.next)].previous = top.left;
    }
    push(text, scratch, left.previous, top.left);
    push(text, scratch, top.left, left.next);
  }
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    const Scratch::Symbol& symbol = symbols[static_cast<std::size_t>(i)];
    const std::string_view bytes = text.substr(symbol.begin, symbol.bytes);
    if (const Entry* entry = find(bytes); entry != nullptr) {
      out.push_back(entry->id);
      continue;
    }
    for (const char byte : bytes) {
      out.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    }
  }
}

}  // namespace baton::text
