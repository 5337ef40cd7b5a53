"""The promise: what leaves the decode node is bit for bit what a cold single node answers.

Prefill and decode node differ in step budget, thread count and block size throughout (see pair()).
"""
from harness.case import (CONTEXT, EOS, GREEDY, SEEDED, E2eCase, ask, ask_all, chat, completion,
                          make_cluster, make_single, pair, reference, single, token_prompt)
from harness.metrics import BF16_BYTES, expected_kv_bytes, scrape


def has_avx512():
    """What the avx512 kernels need besides AVX-512F: VNNI and BF16."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpuinfo:
        flags = next((line for line in cpuinfo if line.startswith("flags")), "").split()
    return {"avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"} <= set(flags)


class ParityTest(E2eCase):
    def check(self, body, stream=True, nodes=None, what=""):
        """Same as the single node, and really by handoff: path, nodes and bytes say so."""
        nodes = nodes or pair()
        answer = ask(nodes, body, stream)
        self.assert_same(answer, body, what)
        self.assertEqual(answer.served["path"], "split")
        self.assertIn(answer.served["prefill_node"], [node_id(node) for node in nodes.prefill])
        self.assertIn(answer.served["decode_node"], [node_id(node) for node in nodes.decode])
        return answer

    def test_serving_role_loop_parity_matches_single_node_smollm2(self):
        """Named after the parity test of the system that baton follows: the prefill node emits the
        first token, the decode node the continuation, the joined stream equals one node's."""
        body = chat("Natalia sold clips to 48 friends in April, and half as many in May. "
                    "How many did she sell altogether?", max_tokens=40, **GREEDY)
        before = scrape(pair().decode[0]).sum("baton_tokens_generated_total")
        answer = self.check(body)
        self.assertGreater(len(answer.tokens), 10)
        self.assertTrue(answer.text.strip())
        after = scrape(pair().decode[0]).sum("baton_tokens_generated_total")
        self.assertEqual(after - before, len(answer.tokens) - 1)

    def test_prompts_around_a_tile_border(self):
        for tokens in (1, 31, 32, 33):
            for name, sampling in (("greedy", GREEDY), ("seeded", SEEDED)):
                with self.subTest(tokens=tokens, sampling=name):
                    body = completion(token_prompt(tokens), max_tokens=24, ignore_eos=True, **sampling)
                    answer = self.check(body)
                    self.assertEqual(answer.usage["prompt_tokens"], tokens)
                    self.assertEqual(len(answer.tokens), 24)

    def test_prompt_of_1500_tokens(self):
        for name, sampling in (("greedy", GREEDY), ("seeded", SEEDED)):
            with self.subTest(sampling=name):
                self.check(completion(token_prompt(1511), max_tokens=16, ignore_eos=True, **sampling))

    def test_prompt_of_4000_tokens(self):
        self.check(completion(token_prompt(4001), max_tokens=12, ignore_eos=True, **SEEDED))

    def test_eight_at_once(self):
        """Mixed lengths and samplings; each equals its own lonely run."""
        lengths = (3, 33, 64, 127, 200, 390, 513, 700)
        bodies = [
            completion(token_prompt(length, seed=length), max_tokens=20 + index, ignore_eos=True,
                       **(GREEDY if index % 2 else dict(SEEDED, seed=index)))
            for index, length in enumerate(lengths)
        ]
        for answer, body in zip(ask_all(pair(), bodies), bodies):
            self.assert_same(answer, body)
            self.assertEqual(answer.served["path"], "split")
        # The same on the single node: a batch changes nothing there either.
        for answer, body in zip(ask_all(single(), bodies), bodies):
            self.assert_same(answer, body)

    def test_penalties_bias_and_filters_travel(self):
        """State that must be recomputed on the decode node from (prompt, emitted)."""
        prompt = token_prompt(40, seed=5) * 2
        for fields in (
            {"repetition_penalty": 1.3, **GREEDY},
            {"presence_penalty": 1.5, "frequency_penalty": 0.7, **GREEDY},
            {"frequency_penalty": 1.9, **SEEDED},
            {"top_k": 12, "min_p": 0.02, **SEEDED},
            {"logit_bias": {"260": 12, "28": -100}, **SEEDED},
            {"min_tokens": 6, "logit_bias": {str(EOS): 30}, **GREEDY},
        ):
            with self.subTest(fields=fields):
                self.check(completion(prompt, max_tokens=20, **fields))

    def test_logprobs_of_alternatives(self):
        body = completion(token_prompt(50), max_tokens=6, ignore_eos=True, **SEEDED)
        body["logprobs"] = 5

        def alternatives(answer):
            return [part["logprobs"]["top_logprobs"] for b in answer.bodies for part in b["choices"]
                    if part.get("logprobs")]

        split, alone = ask(pair(), body), ask(single(), body)
        self.assertEqual(alternatives(split), alternatives(alone))
        self.assertEqual(len(alternatives(split)[0]), 6)

    def end_on_index_0(self, prompt):
        """How many bytes went over although the prefill node made the end token."""
        decode = pair().decode[0]
        before = scrape(decode)
        body = completion(prompt, max_tokens=16, logit_bias={str(EOS): 100}, **GREEDY)
        answer = ask(pair(), body, stream=True)
        self.assert_same(answer, body)
        self.assertEqual((answer.text, answer.finish, answer.tokens), ("", "stop", [EOS]))
        self.wait_idle(pair())
        after = scrape(decode)
        for name in ("baton_tokens_generated_total", "baton_steps_total"):
            self.assertEqual(after.sum(name), before.sum(name), name)
        return after.sum("baton_handoff_bytes_total") - before.sum("baton_handoff_bytes_total")

    def test_end_on_index_0(self):
        """The end token is made by the prefill node: no handoff, and no step on the decode node."""
        self.assertEqual(self.end_on_index_0(token_prompt(45, seed=4501)), 0)

    def test_end_on_index_0_of_a_long_prompt(self):
        """Its first blocks left before anybody knew that it ends; the rest did not."""
        self.assertLess(self.end_on_index_0(token_prompt(900, seed=4502)), expected_kv_bytes(900))

    def test_max_tokens_1(self):
        body = completion(token_prompt(45), max_tokens=1, ignore_eos=True, **GREEDY)
        answer = ask(pair(), body, stream=True)
        self.assert_same(answer, body)
        self.assertEqual((answer.finish, len(answer.tokens)), ("length", 1))
        self.wait_idle(pair())

    def test_stop_string_met_on_the_first_token(self):
        prompt = "The capital of France is"
        plain = reference(completion(prompt, max_tokens=4, **GREEDY))
        first = plain.text.strip()[0]
        body = completion(prompt, max_tokens=64, stop=first, **GREEDY)
        answer = ask(pair(), body, stream=True)
        self.assert_same(answer, body)
        self.assertEqual((answer.text.strip(), answer.finish, len(answer.tokens)), ("", "stop", 1))
        self.wait_idle(pair())

    def test_whole_and_streamed_answers_agree(self):
        body = completion(token_prompt(60, seed=9), max_tokens=12, **SEEDED)
        for nodes in (pair(), single()):
            self.assertEqual(ask(nodes, body, stream=True).lines, ask(nodes, body, stream=False).lines)

    def test_one_token_past_the_context(self):
        body = completion(token_prompt(100), max_tokens=CONTEXT - 100 + 1, **GREEDY)
        for nodes in (pair(), single()):
            response = nodes.front.client().post("/v1/completions", body)
            self.assert_error(response, 400)


class CountersTest(E2eCase):
    """The nodes' own books say who did the work: a silent local recompute cannot pass."""

    def test_decode_computes_no_prompt_and_prefill_makes_one_token_each(self):
        nodes = pair()
        prefill, decode = nodes.prefill[0], nodes.decode[0]
        # Nothing in common: no prompt is a hit of another.
        prompts = [token_prompt(tokens, seed=7700 + tokens) for tokens in (5, 32, 33, 300)]
        before = scrape(prefill), scrape(decode)
        answers = [ask(nodes, completion(prompt, max_tokens=5, ignore_eos=True)) for prompt in prompts]
        after = scrape(prefill), scrape(decode)

        def grown(node, name, **labels):
            return after[node].sum(name, **labels) - before[node].sum(name, **labels)

        expected = [expected_kv_bytes(len(prompt), BF16_BYTES) for prompt in prompts]
        self.assertEqual([answer.served["kv_bytes"] for answer in answers], expected)
        self.assertEqual(grown(1, "baton_handoff_bytes_total"), sum(expected))
        self.assertEqual(grown(0, "baton_handoff_bytes_total"), sum(expected))
        self.assertEqual(after[1].sum("baton_prompt_tokens_computed_total"), 0)
        self.assertEqual(grown(0, "baton_prompt_tokens_computed_total"), sum(map(len, prompts)))
        self.assertEqual(grown(0, "baton_tokens_generated_total"), len(prompts))
        self.assertEqual(grown(1, "baton_tokens_generated_total"), 4 * len(prompts))
        self.wait_idle(nodes)

    def test_the_page_has_the_fixed_names(self):
        ask(pair(), completion(token_prompt(8), max_tokens=2))
        owner = ("baton_requests_total", "baton_queue_depth")
        engine = ("baton_tokens_generated_total", "baton_prompt_tokens_computed_total",
                  "baton_prompt_tokens_cached_total", "baton_pool_blocks", "baton_queue_depth")
        handoff = ("baton_handoff_bytes_total", "baton_handoffs_total",
                   "baton_handoff_seconds_count", "baton_handoff_exposed_seconds_sum")
        for nodes, names in ((single().nodes, owner + engine), ([pair().router], owner),
                             (pair().engines, engine + handoff)):
            for node in nodes:
                page = scrape(node)
                for name in names:
                    self.assertTrue(page.has(name), f"{node.name} lacks {name}")


class OtherShapesTest(E2eCase):
    def test_avx512_prefill_with_avx2_decode(self):
        if not has_avx512():
            self.skipTest("this CPU has no AVX-512 with VNNI and BF16")
        nodes = self.start_own(make_cluster(
            "mixed",
            prefill_flags=["-t", 1, "--isa", "avx512", "--block-tokens", 32, "--max-step-ms", 10],
            decode_flags=["-t", 2, "--isa", "avx2", "--block-tokens", 128],
        ))
        for length, sampling in ((33, GREEDY), (33, SEEDED), (513, SEEDED)):
            body = completion(token_prompt(length), max_tokens=24, ignore_eos=True, **sampling)
            answer = ask(nodes, body, stream=True)
            self.assert_same(answer, body)
            self.assertEqual(answer.served["path"], "split")
        self.wait_idle(nodes)

    def test_two_prefill_and_two_decode_nodes(self):
        nodes = self.start_own(make_cluster("xpyd", prefill=2, decode=2, flags=["-t", 1]))
        bodies = [completion(token_prompt(150 + 31 * i, seed=i), max_tokens=12, ignore_eos=True,
                             **(GREEDY if i % 2 else SEEDED)) for i in range(8)]
        answers = ask_all(nodes, bodies)
        for answer, body in zip(answers, bodies):
            self.assert_same(answer, body)
            self.assertEqual(answer.served["path"], "split")
        self.assertEqual(len({answer.served["prefill_node"] for answer in answers}), 2)
        self.assertEqual(len({answer.served["decode_node"] for answer in answers}), 2)
        self.wait_idle(nodes)

    def test_f32_cache(self):
        """The other KV dtype, on a reference of its own; it moves twice the bytes."""
        alone = self.start_own(make_single("single-f32", "--kv-dtype", "f32"))
        nodes = self.start_own(make_cluster("f32", flags=["-t", 1, "--kv-dtype", "f32"]))
        body = completion(token_prompt(65), max_tokens=12, ignore_eos=True, **SEEDED)
        answer = ask(nodes, body, stream=True)
        self.assertEqual(answer.lines, ask(alone, body).lines)
        self.assertEqual(answer.served["kv_bytes"], expected_kv_bytes(65, 4))

    def test_poisoned_kv_changes_the_bits(self):
        """One block's V rows are zeroed before the CRC: every check passes, and the answer must
        differ. If it did not, the decode node would not be using what it was sent."""
        nodes = self.start_own(make_cluster(
            "poison", flags=["-t", 1], prefill_flags=["--failpoints", "handoff.poison"]))
        body = completion(token_prompt(64), max_tokens=12, ignore_eos=True, **GREEDY)
        answer, expected = ask(nodes, body, stream=True), reference(body)
        self.assertEqual(answer.served["path"], "split")
        first = answer.lines.index(next(l for l in answer.lines if l.startswith("token 0 ")))
        self.assertEqual(answer.lines[first], expected.lines[first], "index 0 is the prefill node's")
        self.assertNotEqual(answer.lines[first + 1], expected.lines[first + 1])


def node_id(node):
    return node.argv[node.argv.index("--node-id") + 1]
