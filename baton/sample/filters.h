// top-k, typical, top-p and min-p over candidates, without sorting the vocabulary: a cut is found
// in a histogram of keys, and only the bucket that it falls in is sorted.
#pragma once

#include "baton/sample/sampler.h"

#include <cstdint>
#include <vector>

namespace baton::sample {

// Each keeps at least one candidate. The order of what is left is fixed but means nothing.
// The k best by score, lowest id first on ties.
void keep_top_k(std::vector<Candidate>& candidates, std::int32_t k, Scratch& scratch);
// The fewest best whose weights reach top_p of all weights.
void keep_top_p(std::vector<Candidate>& candidates, float top_p, Scratch& scratch);
// Locally typical sampling (Meister et al., 2022): the fewest whose surprise is nearest to the
// entropy and whose weights reach typical_p. max_score and temperature are those of the weights.
void keep_typical(std::vector<Candidate>& candidates, float typical_p, float max_score,
                  float temperature, Scratch& scratch);
// Those with at least min_p of the largest weight.
void keep_min_p(std::vector<Candidate>& candidates, float min_p);

// Best first: score descending, id ascending.
void sort_best_first(std::vector<Candidate>& candidates);

}  // namespace baton::sample
