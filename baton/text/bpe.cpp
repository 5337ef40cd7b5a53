// See bpe.h. Short words (nearly all) rescan their few pairs after each merge, which beats a heap;
// the limit keeps that constant per byte.
#include "baton/text/bpe.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace baton::text {
namespace {

// Up to here rescanning is faster than the heap; it bounds the cost per byte to a few look-ups.
constexpr std::size_t kShortWordSymbols = 24;

std::uint64_t pair_of(TokenId left, TokenId right) {
  return (static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32) |
         static_cast<std::uint32_t>(right);
}

std::uint64_t hash_of(std::uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15ULL;
  return pair ^ (pair >> 29);
}

bool later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

Bpe::Bpe(const std::array<TokenId, 256>& byte_ids, const std::vector<Merge>& merges)
    : byte_ids_(byte_ids), slots_(std::bit_ceil(2 * merges.size() + 2)), mask_(slots_.size() - 1) {
  std::int32_t rank = 0;
  for (const Merge& merge : merges) {
    const std::uint64_t pair = pair_of(merge.left, merge.right);
    std::uint64_t at = hash_of(pair) & mask_;
    while (slots_[at].pair != kEmpty && slots_[at].pair != pair) {
      at = (at + 1) & mask_;
    }
    slots_[at] = {pair, rank++, merge.merged};
  }
}

const Bpe::Slot* Bpe::find(TokenId left, TokenId right) const {
  const std::uint64_t pair = pair_of(left, right);
  for (std::uint64_t at = hash_of(pair) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].pair == pair) {
      return &slots_[at];
    }
    if (slots_[at].pair == kEmpty) {
      return nullptr;
    }
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  const std::size_t begin = out.size();
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    if (id >= 0) {
      out.push_back(id);
    }
  }
  if (out.size() - begin <= kShortWordSymbols) {
    merge_short(out, begin);
  } else {
    merge_long(scratch, out, begin);
  }
}

void Bpe::merge_short(std::vector<TokenId>& ids, std::size_t begin) const {
  // ranks[i]: of the pair that begins at begin + i.
  constexpr std::int32_t kNoMerge = std::numeric_limits<std::int32_t>::max();
  std::array<std::int32_t, kShortWordSymbols> ranks{};
  std::array<TokenId, kShortWordSymbols> merged{};
  std::size_t count = ids.size() - begin;
  const auto look_up = [&](std::size_t i) {
    const Slot* slot = i + 1 < count ? find(ids[begin + i], ids[begin + i + 1]) : nullptr;
    ranks[i] = slot == nullptr ? kNoMerge : slot->rank;
    merged[i] = slot == nullptr ? 0 : slot->merged;
  };
  for (std::size_t i = 0; i < count; ++i) {
    look_up(i);
  }
  while (count > 1) {
    const auto best = std::min_element(ranks.begin(), ranks.begin() + static_cast<long>(count));
    if (*best == kNoMerge) {
      break;
    }
    const auto i = static_cast<std::size_t>(best - ranks.begin());
    ids[begin + i] = merged[i];
    for (std::size_t j = i + 1; j + 1 < count; ++j) {
      ids[begin + j] = ids[begin + j + 1];
      ranks[j] = ranks[j + 1];
      merged[j] = merged[j + 1];
    }
    --count;
    look_up(i);
    if (i > 0) {
      look_up(i - 1);
    }
  }
  ids.resize(begin + count);
}

void Bpe::push(Scratch& scratch, std::int32_t position) const {
  const auto& symbol = scratch.symbols[static_cast<std::size_t>(position)];
  if (symbol.next < 0) {
    return;
  }
  const Slot* slot = find(symbol.id, scratch.symbols[static_cast<std::size_t>(symbol.next)].id);
  if (slot != nullptr) {
    scratch.heap.push_back({slot->rank, position, slot->merged});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), later);
  }
}

void Bpe::merge_long(Scratch& scratch, std::vector<TokenId>& ids, std::size_t begin) const {
  auto& symbols = scratch.symbols;
  const std::size_t count = ids.size() - begin;
  symbols.resize(count);
  scratch.heap.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::int32_t>(i);
    symbols[i] = {ids[begin + i], at - 1, i + 1 < count ? at + 1 : -1};
  }
  for (std::size_t i = 0; i + 1 < count; ++i) {
    push(scratch, static_cast<std::int32_t>(i));
  }
  while (!scratch.heap.empty()) {
    const Scratch::Candidate top = scratch.heap.front();
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), later);
    scratch.heap.pop_back();
    auto& left = symbols[static_cast<std::size_t>(top.position)];
    if (left.id < 0 || left.next < 0) {
      continue;  // merged into its neighbour since, or the last one now
    }
    auto& right = symbols[static_cast<std::size_t>(left.next)];
    const Slot* slot = find(left.id, right.id);
    if (slot == nullptr || slot->rank != top.rank) {
      continue;  // one of the two changed since
    }
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols[static_cast<std::size_t>(left.next)].previous = top.position;
    }
    if (left.previous >= 0) {
      push(scratch, left.previous);
    }
    push(scratch, top.position);
  }
  ids.resize(begin);
  for (std::int32_t i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].next) {
    ids.push_back(symbols[static_cast<std::size_t>(i)].id);
  }
}

}  // namespace baton::text
