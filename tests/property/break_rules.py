#!/usr/bin/env python3
"""Breaks each rule of docs/exactness.md, one at a time, and shows which tests notice.

A test that cannot fail proves nothing. This takes the committed tree into a folder of its own, builds
the tests there, sees them pass, and then, for each rule, makes the one edit below that breaks it,
builds again and expects every test named beside it to fail. Takes about a minute of compile time per
rule; run by hand when a kernel, a rule or a test of one changes.

usage: tests/property/break_rules.py [--folder FOLDER [--build BUILD]] [--only TEXT] [-j N]

With --build the folder is taken as it is: a tree, edited and mended in place, and its build folder.
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from support import breaking  # noqa: E402

SCHEDULES = 100  # of the property test: enough to notice each of these

# (rule, what is broken, file, old text, new text, tests that must fail)
KERNELS, PROPERTY, ENGINE, KV, SAMPLE, SCHED, LOGITS = (
    "kernels_test", "property_test", "engine_test", "kv_test", "sample_test", "sched_test",
    "logits_test")
BREAKS = [
    ("1", "a row alone in its batch is computed with other operations",
     "baton/kernels/vector/matmul.inl",
     "sums[r] = fma(w, set1(value), sums[r]);",
     "sums[r] = kRows == 1 ? add(mul(w, set1(value)), sums[r]) : fma(w, set1(value), sums[r]);",
     [KERNELS, PROPERTY]),
    ("2", "activations are divided by the scale instead of multiplied by its inverse",
     "baton/kernels/vector/rows.inl",
     "mul(value, set1(inverse))",
     "div(value, set1(0.0F < inverse ? scale : 1.0F))",
     [KERNELS]),
    ("3", "parts of keys are merged in reverse order where heads are split over threads",
     "baton/kernels/vector/attention.inl",
     "for (std::int64_t part = 0; part < parts; ++part) {\n      merge_into(merged,",
     "for (std::int64_t part = parts - 1; part >= 0; --part) {\n      merge_into(merged,",
     [KERNELS, PROPERTY]),
    ("3", "stale memory behind the last key is read",
     "baton/kernels/vector/cache.inl",
     "return key >= first && key < last ? v : zero();",
     "return key < first - 4096 || key > last + 4096 ? zero() : v;",
     [KERNELS]),  # whole runs never meet it: the first row of a tile zeroes the tile
    ("3", "weights of V are not rounded to the cache's type before they are summed",
     "baton/kernels/vector/attention.inl",
     "const V weight = Cache::round(exp16(sub(load(scores + key - base), set1(maximum))));",
     "const V weight = exp16(sub(load(scores + key - base), set1(maximum)));",
     [KERNELS]),
    ("4", "AVX2 adds its sixteen lanes in another tree",
     "baton/kernels/avx2/simd.h",
     "return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));\n}\nBATON_INLINE float reduce_max",
     "const __m128 other = two + _mm_hadd_ps(four, four) - two;\n"
     "  return _mm_cvtss_f32(_mm_add_ss(other, _mm_shuffle_ps(other, other, 1)));\n}\n"
     "BATON_INLINE float reduce_max",
     [KERNELS]),
    ("5", "AVX2 takes the even element of a bf16 pair first",
     "baton/kernels/avx2/simd.h",
     "  acc.low = _mm256_fmadd_ps(odd_of(a.low), odd_of(b.low), acc.low);\n"
     "  acc.high = _mm256_fmadd_ps(odd_of(a.high), odd_of(b.high), acc.high);\n"
     "  acc.low = _mm256_fmadd_ps(even_of(a.low), even_of(b.low), acc.low);\n"
     "  acc.high = _mm256_fmadd_ps(even_of(a.high), even_of(b.high), acc.high);\n",
     "  acc.low = _mm256_fmadd_ps(even_of(a.low), even_of(b.low), acc.low);\n"
     "  acc.high = _mm256_fmadd_ps(even_of(a.high), even_of(b.high), acc.high);\n"
     "  acc.low = _mm256_fmadd_ps(odd_of(a.low), odd_of(b.low), acc.low);\n"
     "  acc.high = _mm256_fmadd_ps(odd_of(a.high), odd_of(b.high), acc.high);\n",
     [KERNELS, PROPERTY]),
    ("6", "subnormal numbers are kept",
     "baton/base/float_mode.cpp",
     "kMode = kFlushToZero | kDenormalsAreZero | kAllMasked;",
     "kMode = kAllMasked + 0 * (kFlushToZero | kDenormalsAreZero);",
     [KERNELS]),
    ("7", "a draw takes the next random number instead of its own",
     "baton/sample/sampler.cpp",
     "uniform(params.seed, static_cast<std::uint32_t>(input.emitted.size()),",
     "uniform(params.seed, [] { static std::uint32_t draws = 0; return draws++; }(),",
     [SAMPLE, PROPERTY, ENGINE]),
    ("prefix", "a tile's digest does not cover what came before it",
     "baton/kv/tile_digest.cpp",
     "  state_->add(parent.bytes.data(), parent.bytes.size());\n",
     "  static_cast<void>(parent);\n",
     [KV]),
    ("prefix", "a hit that ends inside a block copies nothing",
     "baton/engine/room.cpp",
     "copy_tiles(group, copied_from[group].id(), table.ids()[held],\n"
     "                 hit.groups[group].partial_tiles);",
     "static_cast<void>(copied_from);",
     [ENGINE, PROPERTY]),
    ("prefix", "the whole prompt may come from the cache, the last token too",
     "baton/engine/prefix.cpp",
     "(sequence.tokens.size() - 1) /",
     "sequence.tokens.size() /",
     [ENGINE, PROPERTY]),
    ("window", "a window layer sees one token more",
     "baton/kernels/vector/attention.inl",
     "larger(0, position - args.window_tokens + 1) : 0;",
     "larger(0, position - args.window_tokens) : 0;",
     [KERNELS, LOGITS]),
    ("window", "a block is given back while its last row can still be seen",
     "baton/sched/scheduler.cpp",
     "first_visible(first_query);",
     "first_visible(first_query + 1);",
     [ENGINE, PROPERTY]),
    ("window", "a prefix hit takes a window that begins a tile late",
     "baton/kv/prefix_search.cpp",
     "for (std::int32_t tile = needed.begin; tile < count;) {",
     "for (std::int32_t tile = std::min(needed.begin + 1, count); tile < count;) {",
     [KV, ENGINE, PROPERTY]),
    ("preemption", "the token drawn last is forgotten",
     "baton/sched/scheduler.cpp",
     "entry.demand.prefill_tokens = entry.computed_tokens + 1;",
     "entry.demand.prefill_tokens = entry.computed_tokens;",
     [SCHED, ENGINE, PROPERTY]),
]

if __name__ == "__main__":
    breaking.main(__doc__, BREAKS, {PROPERTY: ["--schedules", str(SCHEDULES)]})
