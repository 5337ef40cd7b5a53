"""Routing by cached prefixes on real nodes: who computes what, and the same answers."""
import types

from harness.case import GREEDY, E2eCase, ask, completion, make_cluster, patient, token_prompt
from harness.metrics import expected_kv_bytes, scrape
from harness.node import wait_until

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


class BlockEventsTest(E2eCase):
    TOKEN = {"BATON_CLUSTER_TOKEN": "correct horse battery staple"}

    def turn(self, router, prompt, max_tokens=40):
        body = completion(prompt, max_tokens=max_tokens, ignore_eos=True, **GREEDY)
        answer = ask(types.SimpleNamespace(front=router), body)
        self.assert_same(answer, body)
        return answer, answer.usage["prompt_tokens_details"]["cached_tokens"]

    def wait_heard(self, router, tiles):
        def heard():
            return scrape(router).sum("baton_prefixes_reported")
        try:
            wait_until(lambda: heard() == tiles, patient(5), "the nodes' caches are known")
        except TimeoutError as error:
            self.fail(f"{error}: {router.name} has heard of {heard()} tiles, not of {tiles}")

    def test_routers_learn_from_the_nodes(self):
        """Conversations that change their router, and a router that was started anew: their next turns
        find what the first ones left."""
        nodes = self.start_own(make_cluster("block-events", prefill=2, decode=2, routers=2, flags=["-t", 1],
                                            router_flags=["--policy", "kv-aware"], variables=self.TOKEN))
        first, second = nodes.routers
        talks, begun = [], []
        for number in range(3):
            prompt = token_prompt(300, seed=7100 + number)
            answer, cached = self.turn(first, prompt)
            self.assertEqual((answer.served["path"], cached), ("split", 0))
            talks.append(prompt + answer.tokens)
            begun.append(answer.served)
        # The last token of an answer was never an input: its row is not there.
        kept = (len(talks[0]) - 1) // TILE
        for router in nodes.routers:
            self.wait_heard(router, 3 * (300 // TILE + kept))

        for number, talk in enumerate(talks):
            short, cached = self.turn(second, talk + token_prompt(20, seed=7110 + number), max_tokens=1)
            self.assertEqual((short.served["path"], cached), ("local", kept * TILE))
            self.assertEqual(short.served["decode_node"], begun[number]["decode_node"])

        self.assertEqual(first.stop(), 0)
        first.start().wait_listening(patient(120)).wait_ready(patient(120))
        self.wait_heard(first, scrape(second).sum("baton_prefixes_reported"))
        for number, talk in enumerate(talks):
            long, cached = self.turn(first, talk + token_prompt(400, seed=7120 + number))
            for key in ("prefill_node", "decode_node"):
                self.assertEqual(long.served[key], begun[number][key])
            self.assertEqual((long.served["path"], cached), ("split", 300 // TILE * TILE))
            self.assertEqual(long.served["kv_bytes"], expected_kv_bytes(len(talk) + 400 - kept * TILE))
        self.wait_idle(nodes)
