"""Gemma 3 270M, whose layers mostly see a window of 512 tokens: split, alone, and what is sent.

Needs the model's file (240 MB), which scripts/nightly fetches; without it these are skipped.
"""
import os
import pathlib
import unittest

from harness.case import (COMPLETIONS, GREEDY, SEEDED, E2eCase, Settings, ask, chat, completion,
                          token_prompt)
from harness.cluster import Cluster, Single

WINDOW, FULL_LAYERS, WINDOW_LAYERS, TILE = 512, 3, 15, 32
TILE_BYTES = 2 * TILE * 256 * 2  # K and V of one layer, one head of 256, bf16
FLAGS = ["--kv-memory", "256M", "--max-num-seqs", 4, "-c", 4096]


def gemma_file():
    return pathlib.Path(os.environ.get("BATON_TEST_GEMMA")
                        or pathlib.Path(Settings.model).parent / "gemma-3-270m-q4_k_m.gguf")


def expected_bytes(tokens):
    """Whole tiles: all of the prompt in three layers, those of the last window in fifteen."""
    tiles = -(-tokens // TILE)
    first = max(0, tokens - WINDOW + 1) // TILE
    return TILE_BYTES * (FULL_LAYERS * tiles + WINDOW_LAYERS * (tiles - first))


class GemmaTest(E2eCase):
    def setUp(self):
        if not gemma_file().is_file():
            self.skipTest(f"{gemma_file()} is not there: scripts/nightly fetches it")

    def single(self, *flags):
        return self.start_own(Single(Settings.binary, gemma_file(), Settings.logs,
                                     name="gemma-single", flags=[*FLAGS, *flags]))

    def test_split_is_identical_and_sends_what_can_be_seen(self):
        single = self.single("--prefix-cache", "off")
        pair = self.start_own(Cluster(
            Settings.binary, gemma_file(), Settings.logs, name="gemma", flags=FLAGS,
            prefill_flags=["--block-tokens", 64, "--max-step-ms", 15],
            decode_flags=["--block-tokens", 128, "-t", 1]))
        for number, length in enumerate((5, 511, 513, 1200)):
            sampling = GREEDY if number % 2 == 0 else SEEDED
            body = completion(token_prompt(length, 5100 + length), max_tokens=24, ignore_eos=True,
                              **sampling)
            alone = ask(single, body)
            first = ask(pair, body, stream=True)
            again = ask(pair, body)  # from the prefix caches, as far as their last windows go
            for answer in (first, again):
                self.assertEqual(answer.lines, alone.lines, length)
                self.assertEqual(answer.served["path"], "split")
            self.assertEqual(first.served["kv_bytes"], expected_bytes(length), length)
            cached = again.usage["prompt_tokens_details"]["cached_tokens"]
            self.assertEqual(cached, (length - 1) // TILE * TILE)
        self.wait_idle(pair)
        self.wait_idle(single)

    def test_text_and_what_a_base_model_lacks(self):
        single = self.single()
        # llama.cpp's five likeliest here: the, a, Paris, one, known, from -1.7 to -3.0.
        body = completion("The capital of France is", max_tokens=1, logprobs=5, **GREEDY)
        response = single.front.client().post(COMPLETIONS, body)
        likeliest = response.json()["choices"][0]["logprobs"]["top_logprobs"][0]
        self.assertEqual(next(iter(likeliest)), " the")
        self.assertIn(" Paris", likeliest)
        # Characters without a token of their own come as bytes; none leaves in halves.
        body = completion("Write this again: 𓀀𓁐𓃰 𓀀𓁐𓃰 𓀀𓁐", max_tokens=12, **GREEDY)
        self.assertEqual(ask(single, body, stream=True).lines, ask(single, body).lines)
        response = single.front.client().post("/v1/chat/completions", chat("Hello"))
        self.assert_error(response, 400, words=["chat template"])
        self.wait_idle(single)


if __name__ == "__main__":
    unittest.main()
