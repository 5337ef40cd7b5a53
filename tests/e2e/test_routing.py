"""Routing by cached prefixes on real nodes: who computes what, and the same answers."""
from harness.case import GREEDY, E2eCase, ask, completion, make_cluster, token_prompt
from harness.metrics import expected_kv_bytes, scrape

TILE = 32


class KvAwareTest(E2eCase):
    def test_a_conversation_stays_where_its_prefix_is(self):
        nodes = self.start_own(make_cluster("kv-aware", prefill=2, decode=2, flags=["-t", 1],
                                            router_flags=["--policy", "kv-aware"]))

        def turn(prompt, max_tokens=40):
            body = completion(prompt, max_tokens=max_tokens, ignore_eos=True, **GREEDY)
            answer = ask(nodes, body)
            self.assert_same(answer, body)
            return answer, answer.usage["prompt_tokens_details"]["cached_tokens"]

        for round_ in range(3):  # three conversations: each stays with its own nodes
            talk = token_prompt(300, seed=7000 + round_)
            first, cached = turn(talk)
            self.assertEqual((first.served["path"], cached), ("split", 0))
            talk = talk + first.tokens

            short, cached = turn(talk + token_prompt(20, seed=7010 + round_))
            self.assertEqual(short.served["path"], "local")
            self.assertEqual(short.served["decode_node"], first.served["decode_node"])
            # The last token of the answer was never an input: its row is not there.
            self.assertEqual(cached, (len(talk) - 1) // TILE * TILE)

            long, cached = turn(talk + token_prompt(500, seed=7020 + round_))
            for key in ("prefill_node", "decode_node"):
                self.assertEqual(long.served[key], first.served[key])
            self.assertEqual((long.served["path"], cached), ("split", 300 // TILE * TILE))
            known = (len(talk) - 1) // TILE * TILE
            self.assertEqual(long.served["kv_bytes"], expected_kv_bytes(len(talk) + 500 - known))
        fallbacks = scrape(nodes.front).sum("baton_local_fallbacks_total")
        self.assertEqual(fallbacks, 0)
        self.wait_idle(nodes)
