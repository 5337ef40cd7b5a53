#include "baton/sample/filters.h"

#include "baton/sample/math.h"

#include <algorithm>
#include <bit>

namespace baton::sample {

namespace {

// 12 leading bits of a key: sign, exponent and 3 bits of mantissa; 32 kB of masses stay in the
// cache.
constexpr int kBucketShift = 20;
constexpr std::size_t kBuckets = std::size_t{1} << (32 - kBucketShift);

// Order-preserving: a < b as floats (no NaN, no -0) <=> key(a) < key(b).
std::uint32_t ordered_key(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

std::uint32_t score_key(const Candidate& candidate) { return ordered_key(candidate.score); }

double total_weight(const std::vector<Candidate>& candidates) {
  double total = 0.0;
  for (const Candidate& candidate : candidates) {
    total += static_cast<double>(candidate.weight);
  }
  return total;
}

// Keeps the shortest prefix, in order of (key descending, id ascending), whose mass reaches
// `target`. Every sum runs in an order that the candidates alone fix.
template <class Key, class Mass>
void keep_prefix(std::vector<Candidate>& candidates, std::vector<double>& bucket_mass, Key key,
                 Mass mass, double target) {
  bucket_mass.assign(kBuckets, 0.0);
  for (const Candidate& candidate : candidates) {
    bucket_mass[key(candidate) >> kBucketShift] += mass(candidate);
  }
  std::size_t cut = kBuckets;  // the bucket in which the target is reached
  double above = 0.0;          // mass of the buckets over it
  double reached = 0.0;
  while (cut > 0 && (reached < target || reached == 0.0)) {
    --cut;
    above = reached;
    reached += bucket_mass[cut];
  }
  std::vector<Candidate> in_cut;
  std::size_t kept = 0;
  for (const Candidate& candidate : candidates) {
    const std::size_t bucket = key(candidate) >> kBucketShift;
    if (bucket > cut) {
      candidates[kept++] = candidate;
    } else if (bucket == cut) {
      in_cut.push_back(candidate);
    }
  }
  candidates.resize(kept);
  std::sort(in_cut.begin(), in_cut.end(), [&](const Candidate& a, const Candidate& b) {
    return key(a) != key(b) ? key(a) > key(b) : a.id < b.id;
  });
  for (const Candidate& candidate : in_cut) {
    if (above >= target && !candidates.empty()) {
      break;
    }
    above += mass(candidate);
    candidates.push_back(candidate);
  }
}

}  // namespace

void keep_top_k(std::vector<Candidate>& candidates, std::int32_t k, Scratch& scratch) {
  if (static_cast<std::size_t>(k) < candidates.size()) {
    keep_prefix(
        candidates, scratch.bucket_mass, score_key, [](const Candidate&) { return 1.0; },
        static_cast<double>(k));
  }
}

void keep_top_p(std::vector<Candidate>& candidates, float top_p, Scratch& scratch) {
  keep_prefix(
      candidates, scratch.bucket_mass, score_key,
      [](const Candidate& candidate) { return static_cast<double>(candidate.weight); },
      static_cast<double>(top_p) * total_weight(candidates));
}

void keep_typical(std::vector<Candidate>& candidates, float typical_p, float max_score,
                  float temperature, Scratch& scratch) {
  const double total = total_weight(candidates);
  const double log_total = log_positive(total);
  const auto surprise = [&](const Candidate& candidate) {
    return log_total - static_cast<double>((candidate.score - max_score) / temperature);
  };
  double entropy = 0.0;
  for (const Candidate& candidate : candidates) {
    entropy += static_cast<double>(candidate.weight) * surprise(candidate);
  }
  entropy /= total;
  const auto nearness = [&](const Candidate& candidate) {
    const double distance = surprise(candidate) - entropy;
    return ~ordered_key(static_cast<float>(distance < 0.0 ? 0.0 - distance : distance + 0.0));
  };
  keep_prefix(
      candidates, scratch.bucket_mass, nearness,
      [](const Candidate& candidate) { return static_cast<double>(candidate.weight); },
      static_cast<double>(typical_p) * total);
}

void keep_min_p(std::vector<Candidate>& candidates, float min_p) {
  float largest = 0.0F;
  for (const Candidate& candidate : candidates) {
    largest = std::max(largest, candidate.weight);
  }
  const float least = min_p * largest;
  std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.weight < least; });
}

void sort_best_first(std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.id < b.id;
  });
}

}  // namespace baton::sample
