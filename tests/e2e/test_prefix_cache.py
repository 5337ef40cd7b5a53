"""B27: what is cached is not computed again, and nobody can tell by the answer."""
from harness.case import (GREEDY, SEEDED, E2eCase, ask, ask_all, completion, make_cluster, make_single,
                          pair, reference, token_prompt)
from harness.metrics import expected_kv_bytes, scrape

BLOCK = 64  # of the pair's prefill node
TILE = 32
LENGTHS = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1)


def whole_tiles(tokens):
    return tokens // TILE * TILE


def cached_tokens(answer):
    return answer.usage["prompt_tokens_details"]["cached_tokens"]


class PrefixCacheTest(E2eCase):
    def same_prompts_again_and_again(self, nodes, seed):
        for number, length in enumerate(LENGTHS):
            sampling = GREEDY if number % 2 == 0 else SEEDED
            body = completion(token_prompt(length, seed + number), max_tokens=32, ignore_eos=True,
                              **sampling)
            answers = [ask(nodes, body, stream=round_ % 2 == 0) for round_ in range(3)]
            answers += ask_all(nodes, [body, body])
            for answer in answers:
                self.assertEqual(answer.lines, reference(body).lines)
            self.assertEqual([cached_tokens(answer) for answer in answers],
                             [0] + 4 * [whole_tiles(length - 1)])
        self.wait_idle(nodes)

    def test_b27_the_whole_prompt_is_cached(self):
        before = scrape(pair().prefill[0]).sum("baton_prompt_tokens_cached_total")
        self.same_prompts_again_and_again(pair(), 2700)
        after = scrape(pair().prefill[0]).sum("baton_prompt_tokens_cached_total")
        self.assertEqual(after - before, 4 * sum(whole_tiles(length - 1) for length in LENGTHS))
        own = self.start_own(make_single("caching", "--block-tokens", BLOCK))
        self.same_prompts_again_and_again(own, 2710)

    def test_the_decode_node_gets_only_what_it_lacks(self):
        """Whole tiles of a prompt that it has are not sent again, whoever computed them."""
        first, longer = token_prompt(200, 2730), token_prompt(330, 2730)
        self.assertEqual(longer[:200], first)
        for prompt, known in ((first, 0), (first, 192), (longer, 192), (longer, 320)):
            body = completion(prompt, max_tokens=8, ignore_eos=True, **SEEDED)
            answer = ask(pair(), body)
            self.assertEqual(answer.lines, reference(body).lines)
            self.assertEqual(answer.served["path"], "split")
            self.assertEqual(answer.served["kv_bytes"], expected_kv_bytes(len(prompt) - known))
        self.wait_idle(pair())

    def test_b04_the_decode_node_has_a_part_of_the_prefix(self):
        """It has the first k blocks of a string, and gets the string at a length around a block's end:
        only what it lacks comes over, and lands where it belongs."""
        block = 32
        nodes = self.start_own(make_cluster("prefix-part", flags=["-t", 1], decode_flags=["--block-tokens", block],
                                            prefill_flags=["--block-tokens", 64]))
        text = token_prompt(32 * block + 1, 2760)
        for k in (0, 1, 31, 32):
            for length in (32 * block - 1, 32 * block, 32 * block + 1):
                with self.subTest(k=k, length=length):
                    salt = f"b04 {k} {length}"  # nobody has anything else of it
                    if k:
                        earlier = completion(text[:k * block], max_tokens=2, ignore_eos=True, cache_salt=salt, **GREEDY)
                        self.assertEqual(ask(nodes, earlier).served["path"], "split")
                    body = completion(text[:length], max_tokens=32, ignore_eos=True, **GREEDY)
                    answer = ask(nodes, dict(body, cache_salt=salt))
                    self.assertEqual(answer.lines, reference(body).lines)
                    self.assertEqual(answer.served["path"], "split")
                    known = min(k * block, whole_tiles(length - 1))
                    self.assertEqual(answer.served["kv_bytes"], expected_kv_bytes(length - known))
        self.wait_idle(nodes)

    def test_choices_share_their_prompt(self):
        """n > 1: the prompt is computed and sent once, and each choice is that of a cold run."""
        computed = "baton_prompt_tokens_computed_total"
        for length, n in ((5, 2), (BLOCK, 3), (333, 4), (1000, 2)):
            body = completion(token_prompt(length, 2740 + length), n=n, max_tokens=12,
                              ignore_eos=True, **SEEDED)
            for nodes in (pair(), self.start_own(make_single(f"choices-{length}"))):
                before = sum(scrape(node).sum(computed) for node in nodes.engines)
                answer = ask(nodes, body, stream=length % 2 == 1)
                self.assert_same(answer, body)
                self.assertEqual(cached_tokens(answer), 0)
                after = sum(scrape(node).sum(computed) for node in nodes.engines)
                rest = length - whole_tiles(length - 1)
                self.assertEqual(after - before, length + (n - 1) * rest)
                if "kv_bytes" in answer.served and nodes is pair():
                    self.assertEqual(answer.served["kv_bytes"],
                                     expected_kv_bytes(length) + (n - 1) * expected_kv_bytes(rest))
                self.wait_idle(nodes)

    def test_a_salt_separates(self):
        prompt = token_prompt(200, 2720)
        salts = (None, "a", "b", "a")
        answers = []
        for salt in salts:
            body = completion(prompt, max_tokens=4, **GREEDY)
            if salt is not None:
                body["cache_salt"] = salt
            answers.append(ask(pair(), body))
        self.assertEqual([cached_tokens(answer) for answer in answers], [0, 0, 0, 192])
        self.assertEqual(len({tuple(answer.lines) for answer in answers}), 1)
