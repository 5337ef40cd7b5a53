"""Networks that misbehave between real nodes: each fault on control and on bulk connections, and every
stream must be that of the cold single node all the same. `tests/e2e/run --long` tries all places of the
table and random ones; without it a part of them, that each kind, link and direction occurs in."""
import random
import socket
import threading
import time
import unittest

from harness.case import (GREEDY, KV_MEMORY, SEEDED, E2eCase, Settings, completion, path_of, patient,
                          reference, shared, stop_shared, token_prompt)
from harness.canonical import canonical
from harness.client import ConnectionFailed
from harness.cluster import Cluster
from harness.metrics import expected_kv_bytes, scrape
from harness.node import wait_until
from harness.toxic import BULK, CONTROL, DOWN, UP, Proxy, Toxic

LEASE_S = 1.0  # a peer without Beats for so long is dead
HANDOFF_S = 4.0  # a handoff whose last frame was lost without a word ends by then
LONGER_THAN_THE_LEASE_S = 1.6
MOST_S = 25  # of a request: two attempts that run into HANDOFF_S, connecting again, and slow CPUs
ROUNDS = 6  # of requests, until the toxic has met something
PD, RP, RD = "prefill-decode", "router-prefill", "router-decode"  # who dials whom
KV_TOKENS = 160
USAGE = {"stream_options": {"include_usage": True}}
BODIES = [
    completion(token_prompt(KV_TOKENS, 4100), max_tokens=12, ignore_eos=True, **USAGE, **GREEDY),
    completion(token_prompt(33, 4101), max_tokens=20, ignore_eos=True, **USAGE, **SEEDED),
]
SMALL = completion(token_prompt(8, 4102), max_tokens=2, ignore_eos=True, **GREEDY)
MIDDLE = expected_kv_bytes(KV_TOKENS) // 2
# Where one byte matters: (link, lane, direction, at). On control connections Beats pass all the time, so
# small numbers strike before the request, larger ones in what belongs to it.
PLACES = [
    (PD, BULK, UP, MIDDLE), (PD, BULK, UP, 0), (PD, BULK, UP, 70),
    (PD, CONTROL, UP, 150), (PD, CONTROL, DOWN, 250), (PD, CONTROL, DOWN, 0),
    (RP, CONTROL, UP, 300), (RP, CONTROL, DOWN, 200), (RP, CONTROL, UP, 1500),
    (RD, CONTROL, UP, 300), (RD, CONTROL, DOWN, 200), (RD, CONTROL, DOWN, 900),
]
SHORT = {"cut": (0, 3, 6, 10), "half_close": (2, 4, 7, 9), "flip": (0, 4, 6, 10), "stall": (0, 4, 10)}


class ToxicCluster(Cluster):
    """A router, a prefill and a decode node, with a proxy on the way of each pair."""

    def __init__(self):
        flags = ["--kv-memory", KV_MEMORY, "-t", 1, "--beat-interval-ms", 100, "--lease-ms",
                 round(LEASE_S * 1000 * Settings.patience), "--handoff-deadline-ms",
                 round(HANDOFF_S * 1000 * Settings.patience)]
        super().__init__(Settings.binary, Settings.model, Settings.logs, name="toxic", flags=flags)
        self.proxies = {}

    def address_of(self, node, dialler):
        role = "prefill" if node in self.prefill else "decode"
        proxy = self.proxies[f"{dialler}-{role}"] = Proxy(node.serving)
        return proxy.address

    def poison(self, toxic, link=None):
        """On one link, or on all of them."""
        for name, proxy in self.proxies.items():
            if link in (None, name):
                proxy.toxic = toxic

    def stop(self):
        codes = super().stop()
        for proxy in self.proxies.values():
            proxy.close()
        return codes


class ToxicTest(E2eCase):
    salt = 0

    @classmethod
    def tearDownClass(cls):
        codes = stop_shared("toxic")
        assert not codes, f"exit codes of the nodes: {codes}"

    def cluster(self):
        return shared("toxic", ToxicCluster)

    def fresh(self, body):
        """The same request with nothing of it in any prefix cache: the answer is the same."""
        ToxicTest.salt += 1
        return dict(body, cache_salt=f"toxic {ToxicTest.salt}")

    def read_streams(self, nodes, bodies):
        """Streams of all at once, read to their end; what a thread met instead."""
        results = [None] * len(bodies)

        def work(index):
            try:
                client = nodes.front.client(timeout_s=patient(MOST_S))
                results[index] = client.stream(path_of(bodies[index]), self.fresh(bodies[index])).read_all()
            except (ConnectionFailed, OSError) as error:
                results[index] = error

        threads = [threading.Thread(target=work, args=(index,)) for index in range(len(bodies))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def poisoned(self, toxic, link=None, heal_after=None):
        """One case: streams while the toxic is there, and what is left behind afterwards."""
        nodes = self.cluster()
        expected = [reference(body).lines for body in BODIES]
        where = f"{link or 'all links'}: {toxic}"
        with self.subTest(where):
            healing = threading.Timer(heal_after or 0, nodes.poison, (None,))
            nodes.poison(toxic, link)
            if heal_after:
                healing.start()
            try:
                for _ in range(ROUNDS):
                    began = time.monotonic()
                    streams = self.read_streams(nodes, BODIES)
                    self.assertLess(time.monotonic() - began, patient(MOST_S), where)
                    self.check_streams(streams, expected, where)
                    if toxic.hits:
                        break
            finally:
                healing.cancel()
                nodes.poison(None)
            self.assertGreater(toxic.hits, 0, f"{where} met nothing")
            self.recovers(nodes, where)

    def check_streams(self, streams, expected, where):
        for stream, lines in zip(streams, expected):
            self.assertNotIsInstance(stream, Exception, f"{where}: {stream}")
            self.assertEqual((stream.status, stream.done), (200, True), f"{where}: {stream.text[-400:]}")
            self.assertEqual(canonical(stream.text), lines, where)

    def recovers(self, nodes, where):
        """Every connection is there again, and nobody holds anything."""
        def is_split():
            response = nodes.front.client(timeout_s=patient(MOST_S)).post(path_of(SMALL), self.fresh(SMALL))
            return response.status == 200 and response.json().get("baton", {}).get("path") == "split"

        wait_until(is_split, patient(15), f"{where}: requests go the usual way again")
        self.wait_idle(nodes, seconds=HANDOFF_S + 2)
        for node in nodes.engines:
            wait_until(lambda node=node: scrape(node).sum("baton_handoffs_active") == 0, patient(HANDOFF_S + 2),
                       f"{where}: {node.name} has no handoff under way")
        page = scrape(nodes.front)
        self.assertEqual(page.sum("baton_requests_active"), 0, where)
        self.assertEqual(page.sum("baton_token_mismatches_total"), 0, where)
        for node in nodes.nodes:
            self.assertEqual(scrape(node).sum("baton_bugs_total"), 0, f"{where}: {node.name}")

    def places(self, kind):
        """(link, lane, direction, at) to be tried; the long run adds random ones."""
        if not Settings.long:
            return [PLACES[index] for index in SHORT[kind]]
        source = random.Random(f"{kind} {time.time()}")
        more = [place[:3] + (source.randrange(1, 2 * place[3] + 400),) for place in PLACES for _ in range(4)]
        return PLACES + more

    def test_everything_passes_the_proxies(self):
        """What nodes say of themselves leads nobody past them, or this file would prove nothing."""
        nodes = self.cluster()
        sent = scrape(nodes.prefill[0]).sum("baton_handoff_bytes_total", dir="sent")
        streams = self.read_streams(nodes, BODIES)
        self.assertTrue(all(stream.done for stream in streams))
        sent = scrape(nodes.prefill[0]).sum("baton_handoff_bytes_total", dir="sent") - sent
        self.assertGreaterEqual(sent, expected_kv_bytes(KV_TOKENS))
        proxies = nodes.proxies
        self.assertEqual(set(proxies), {PD, RP, RD})
        self.assertGreaterEqual(proxies[PD].passed[(BULK, UP)], sent)
        for proxy in proxies.values():
            self.assertGreater(proxy.passed[(CONTROL, UP)], 0)
            self.assertGreater(proxy.passed[(CONTROL, DOWN)], 0)
            self.assertEqual(proxy.accepted[None], 0)

    def test_delay(self):
        self.poisoned(Toxic("delay", seconds=0.04))

    def test_rate(self):
        self.poisoned(Toxic("rate", lane=BULK, at=8_000_000))
        self.poisoned(Toxic("rate", lane=CONTROL, at=20_000))

    def test_a_slow_way_gets_the_last_chunk_by_layers(self):
        """Once Acks have shown how slow the way is, layers leave while the last chunk is computed."""
        nodes = self.cluster()
        bodies = [completion(token_prompt(700 + i, 4200 + i), max_tokens=12, ignore_eos=True, **USAGE, **GREEDY)
                  for i in range(2)]
        expected = [reference(body).lines for body in bodies]

        def layer_frames():
            return scrape(nodes.prefill[0]).sum("baton_handoff_layer_frames_total")

        before = layer_frames()
        nodes.poison(Toxic("rate", lane=BULK, at=30_000_000), PD)
        try:
            for _ in range(ROUNDS):
                for body, lines in zip(bodies, expected):
                    self.check_streams(self.read_streams(nodes, [body]), [lines], "slow way")
                if layer_frames() > before:
                    break
        finally:
            nodes.poison(None)
        self.assertGreater(layer_frames(), before)
        self.recovers(nodes, "slow way")

    def test_one_byte_at_a_time(self):
        self.poisoned(Toxic("dribble", lane=CONTROL, at=200_000))
        self.poisoned(Toxic("dribble", lane=BULK, at=60_000))

    def test_cut(self):
        for link, lane, direction, at in self.places("cut"):
            self.poisoned(Toxic("cut", lane, direction, at), link)

    def test_half_close(self):
        for link, lane, direction, at in self.places("half_close"):
            self.poisoned(Toxic("half_close", lane, direction, at), link)

    def test_flip(self):
        for link, lane, direction, at in self.places("flip"):
            self.poisoned(Toxic("flip", lane, direction, at), link)

    def test_stall(self):
        """A stall that nobody takes for a death, and one beyond the lease."""
        for number, (link, lane, direction, at) in enumerate(self.places("stall")):
            seconds = LONGER_THAN_THE_LEASE_S if number % 2 else 0.4
            self.poisoned(Toxic("stall", lane, direction, at, patient(seconds)), link)

    def test_partition(self):
        for link in (PD, RD, RP) if Settings.long else (PD, RD):
            self.poisoned(Toxic("partition"), link, heal_after=patient(LONGER_THAN_THE_LEASE_S))

    def test_partition_from_all(self):
        """The router has nobody left until it ends: it waits, and no stream is lost."""
        nodes = self.cluster()
        toxic = Toxic("partition")
        nodes.proxies[RP].toxic = toxic
        self.poisoned(toxic, RD, heal_after=patient(LONGER_THAN_THE_LEASE_S))


class ProxyTest(unittest.TestCase):
    """The proxy itself, before a server that sends everything back."""

    DATA = bytes(range(256)) * 800

    @classmethod
    def setUpClass(cls):
        cls.server = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=cls.accept, daemon=True).start()
        cls.proxy = Proxy(f"127.0.0.1:{cls.server.getsockname()[1]}")

    @classmethod
    def tearDownClass(cls):
        cls.proxy.close()
        cls.server.close()

    @classmethod
    def accept(cls):
        while True:
            try:
                client, _ = cls.server.accept()
            except OSError:
                return
            threading.Thread(target=cls.echo, args=(client,), daemon=True).start()

    @staticmethod
    def echo(client):
        with client:
            try:
                while data := client.recv(65536):
                    client.sendall(data)
            except OSError:
                pass

    def through(self, toxic, heal_after=None):
        """What comes back, whether by a reset, and after how many seconds."""
        self.proxy.toxic = toxic
        if heal_after:
            threading.Timer(heal_after, setattr, (self.proxy, "toxic", None)).start()
        began, got, was_reset = time.monotonic(), b"", False
        host, port = self.proxy.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as client:
            def send():
                try:
                    client.sendall(self.DATA)
                    client.shutdown(socket.SHUT_WR)
                except OSError:
                    pass

            sender = threading.Thread(target=send)
            sender.start()
            try:
                while data := client.recv(65536):
                    got += data
            except ConnectionResetError:
                was_reset = True
            sender.join()
        self.assertTrue(toxic is None or toxic.hits)
        return got, was_reset, time.monotonic() - began

    def test_each_toxic_does_what_it_says(self):
        self.assertEqual(self.through(None)[:2], (self.DATA, False))
        for toxic, least_s in ((Toxic("delay", seconds=0.1), 0.2), (Toxic("rate", at=800_000), 0.2),
                               (Toxic("stall", at=100_000, seconds=0.3), 0.3), (Toxic("dribble", at=4000), 0)):
            got, was_reset, took = self.through(toxic)
            self.assertEqual((got, was_reset), (self.DATA, False), toxic)
            self.assertGreaterEqual(took, least_s, toxic)
        got, was_reset, took = self.through(Toxic("partition"), heal_after=0.3)
        self.assertEqual((got, was_reset), (self.DATA, False))
        self.assertGreaterEqual(took, 0.3)
        got, was_reset, _ = self.through(Toxic("cut", direction=UP, at=70_000))
        self.assertTrue(was_reset)
        self.assertLessEqual(len(got), 70_000)
        got, was_reset, _ = self.through(Toxic("half_close", direction=UP, at=70_000))
        self.assertEqual((got, was_reset), (self.DATA[:70_000], False))
        for direction in (UP, DOWN):
            got, _, _ = self.through(Toxic("flip", direction=direction, at=100_003))
            self.assertEqual(len(got), len(self.DATA))
            self.assertEqual([(at, got[at] ^ byte) for at, byte in enumerate(self.DATA) if got[at] != byte],
                             [(100_003, 1 << 100_003 % 8)])
