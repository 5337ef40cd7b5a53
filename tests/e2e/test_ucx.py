"""KV over UCX, by shared memory and by TCP: really by that way, with the same bits; who does not get
it, and that nothing is left of nodes that are killed with KV in flight."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time
import unittest

from harness.case import (COMPLETIONS, GREEDY, SEEDED, E2eCase, Settings, ask, ask_all, busy, chat,
                          completion, make_cluster, patient, reference, token_prompt)
from harness.certificates import Authority
from harness.metrics import expected_kv_bytes, scrape
from harness.node import wait_until
from test_chaos import run_chaos
from test_pool import cpu_ticks

WAYS = ("shm,self", "tcp")
UCX = ["--kv-transport", "ucx"]
SMALL = ["-t", 1]
BULK_CONNECTIONS = 2  # --bulk-connections
DESCRIPTORS_OF_A_LANE = 12  # on each side
SEGMENTS_OF_A_LANE = 3  # of shared memory, on each side


def moved(node, direction, transport):
    return scrape(node).sum("baton_kv_transport_bytes_total", dir=direction, transport=transport)


def descriptors(node):
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


def shared_memory(node):
    """Segments of UCX that the process has mapped."""
    maps = pathlib.Path(f"/proc/{node.process.pid}/maps").read_text(encoding="ascii", errors="replace")
    return sum("ucx_shm" in line or "SYSV" in line for line in maps.splitlines())


def built():
    """Whether the program can do it: the refusal names the missing part."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [Settings.binary, "serve", "-m", f"{folder}/none.gguf", "--node-role", "decode",
                "--serving-bind", "127.0.0.1:0", *UCX]
        said = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=60)
        return "built without UCX" not in said.stderr


class UcxCase(E2eCase):
    @classmethod
    def setUpClass(cls):
        if not built():
            raise unittest.SkipTest("this program was built without UCX (libucx-dev)")

    def cluster(self, name, way, **more):
        flags = [*SMALL, *more.pop("flags", ())]
        engines = {"prefill_flags": UCX, "decode_flags": UCX, **more}
        return self.start_own(make_cluster(name, flags=flags, variables={"UCX_TLS": way}, **engines))

    def check(self, nodes, body, stream=True):
        answer = ask(nodes, body, stream)
        self.assert_same(answer, body)
        self.assertEqual(answer.served["path"], "split")
        return answer


class UcxTest(UcxCase):
    def test_kv_goes_by_ucx_and_streams_are_identical(self):
        for way in WAYS:
            with self.subTest(way=way):
                self.by_ucx(way)

    def by_ucx(self, way):
        nodes = self.cluster(f"ucx-{way[:3]}", way, decode_flags=[*UCX, "--block-tokens", 256],
                             prefill_flags=[*UCX, "--block-tokens", 64])
        prefill, decode = nodes.prefill[0], nodes.decode[0]
        body = completion(token_prompt(777, seed=1700), max_tokens=12, **SEEDED)
        self.assertEqual(self.check(nodes, body).served["kv_bytes"], expected_kv_bytes(777))
        bodies = [chat("Say hello by another road.", max_tokens=24, **GREEDY),
                  completion(token_prompt(33, seed=1701), max_tokens=16, ignore_eos=True, **SEEDED),
                  completion(token_prompt(1500, seed=1702), max_tokens=8, ignore_eos=True, **GREEDY)]
        expected = [reference(body) for body in bodies]
        for body, answer, cold in zip(bodies, ask_all(nodes, bodies), expected):
            self.assertEqual(answer.lines, cold.lines, body)
        self.check(nodes, bodies[1], stream=False)
        self.wait_idle(nodes)

        for node, direction in ((prefill, "sent"), (decode, "received")):
            page = scrape(node)
            whole = page.sum("baton_handoff_bytes_total", dir=direction)
            self.assertGreater(whole, expected_kv_bytes(2000))
            self.assertEqual(moved(node, direction, "ucx"), whole)
            self.assertEqual(moved(node, direction, "tcp"), 0)
            self.assertEqual(page.sum("baton_kv_transport_peers", transport="ucx"), 1)
            self.assertEqual(page.sum("baton_kv_lanes_failed_total"), 0)
            self.assertIn("and this node goes over ucx", node.log())

        # Idle nodes with open lanes sleep.
        seconds = 3
        time.sleep(0.3)
        before = [cpu_ticks(node) for node in nodes.engines]
        time.sleep(seconds)
        for node, was in zip(nodes.engines, before):
            used = cpu_ticks(node) - was
            self.assertLessEqual(used, seconds * os.sysconf("SC_CLK_TCK") * 0.01 * Settings.patience, node.name)

    def test_a_peer_without_it_gets_tcp(self):
        body = completion(token_prompt(200, seed=1710), max_tokens=8, **GREEDY)
        for name, prefill_flags, decode_flags in (("p", UCX, ()), ("d", (), ["--kv-transport", "auto"])):
            with self.subTest(offers=name):
                nodes = self.cluster(f"ucx-only-{name}", "tcp", prefill_flags=prefill_flags,
                                     decode_flags=decode_flags)
                self.check(nodes, body)
                self.wait_idle(nodes)
                for node, direction in ((nodes.prefill[0], "sent"), (nodes.decode[0], "received")):
                    self.assertEqual(moved(node, direction, "ucx"), 0)
                    self.assertEqual(moved(node, direction, "tcp"), expected_kv_bytes(200))
                    self.assertIn("and this node goes over TCP", node.log())

    def test_with_a_token(self):
        token = pathlib.Path(Settings.logs) / "ucx.token"
        token.write_text("correct horse battery staple\n", encoding="ascii")
        token.chmod(0o600)
        nodes = self.cluster("ucx-token", "tcp", flags=["--cluster-token-file", token])
        self.check(nodes, completion(token_prompt(200, seed=1711), max_tokens=8, **GREEDY))
        self.wait_idle(nodes)
        self.assertEqual(moved(nodes.decode[0], "received", "ucx"), expected_kv_bytes(200))

    def test_not_under_tls(self):
        """UCX sends in the clear: refused when demanded, left out when it may be."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=Settings.logs))
        self.addCleanup(shutil.rmtree, folder)
        ca = Authority(folder, "ca of the UCX tests")
        said = self.run_baton("-m", "/nowhere/at-all.gguf", "--node-role", "decode", "--serving-bind",
                              "127.0.0.1:0", *UCX, *ca.node_flags("refused"))
        self.assertIn("--kv-transport ucx: UCX does not encrypt", said)
        nodes = self.cluster("ucx-tls", "tcp", prefill_flags=[*ca.node_flags("p"), "--kv-transport", "auto"],
                             decode_flags=[*ca.node_flags("d"), "--kv-transport", "auto"],
                             router_flags=ca.node_flags("r"))
        self.check(nodes, completion(token_prompt(200, seed=1712), max_tokens=8, **GREEDY))
        self.wait_idle(nodes)
        self.assertEqual(moved(nodes.decode[0], "received", "tcp"), expected_kv_bytes(200))
        self.assertIn("KV goes over TCP: node connections use TLS", nodes.decode[0].log())

    def test_transports_that_ucx_does_not_know(self):
        said = self.run_baton("-m", "/nowhere/at-all.gguf", "--node-role", "decode", "--serving-bind",
                              "127.0.0.1:0", *UCX, variables={"UCX_TLS": "carrier_pigeon"})
        self.assertIn("--kv-transport ucx: UCX", said)


class UcxDeathTest(UcxCase):
    def test_kill_9_with_kv_in_flight(self):
        for way in WAYS:
            for role in ("prefill", "decode"):
                with self.subTest(way=way, role=role):
                    self.killed(way, role)

    def killed(self, way, role):
        """Two nodes of each role; one dies while KV of a long prompt is on its way. The stream is whole
        all the same, and the others hold nothing of it: no block, no segment, no descriptor more than
        lanes to the nodes that are left."""
        segments_before = set(os.listdir("/dev/shm"))
        nodes = self.cluster(f"ucx-kill-{way[:3]}-{role}", way, prefill=2, decode=2)
        for seed in range(6):  # every pair has met
            self.check(nodes, completion(token_prompt(100, seed=1720 + seed), max_tokens=2, **GREEDY))
        self.wait_idle(nodes)
        before = {node.name: (descriptors(node), shared_memory(node)) for node in nodes.engines}

        body = completion(token_prompt(3500, seed=1730), max_tokens=8, ignore_eos=True, **GREEDY)
        expected = reference(body)
        direction, members = ("sent", nodes.prefill) if role == "prefill" else ("received", nodes.decode)
        was = {node.name: moved(node, direction, "ucx") for node in members}
        result = []
        client = nodes.front.client(timeout_s=patient(120))
        thread = threading.Thread(target=lambda: result.append(client.stream(
            COMPLETIONS, dict(body, stream_options={"include_usage": True})).read_all()))
        thread.start()
        victim = wait_until(lambda: next((node for node in members
                                          if moved(node, direction, "ucx") > was[node.name]), None),
                            patient(60), "KV is on its way")
        held = busy(scrape(victim))
        victim.kill()
        self.assertGreater(held[0], 0, "it died with blocks in use")
        thread.join()
        self.assertEqual(result[0].canonical(), expected.lines)

        left = [node for node in nodes.engines if node is not victim]
        for node in left:
            wait_until(lambda node=node: busy(scrape(node)) == (0, 0, 0), patient(15), f"{node.name} is idle")
            self.assertEqual(scrape(node).sum("baton_bugs_total"), 0, node.log()[-2000:])
            # Lanes may have been opened since, of each pair that is left as many as it may have; none to the dead.
            fds, segments = before[node.name]
            others = nodes.prefill if node in nodes.decode else nodes.decode
            lanes = BULK_CONNECTIONS * sum(peer in left for peer in others)
            most_fds = fds + DESCRIPTORS_OF_A_LANE * max(1, lanes - len(others))
            most = max(segments, SEGMENTS_OF_A_LANE * lanes)
            wait_until(lambda node=node, most=most_fds: descriptors(node) <= most, patient(5),
                       f"{node.name}: {descriptors(node)} descriptors, {fds} before, {most_fds} at most")
            wait_until(lambda node=node, most=most: shared_memory(node) <= most, patient(5),
                       f"{node.name}: {shared_memory(node)} segments, {segments} before, {most} at most")
        small = completion(token_prompt(100, seed=1731), max_tokens=4, **GREEDY)
        self.check(nodes, small)
        self.assertEqual(set(os.listdir("/dev/shm")) - segments_before, set())

    def test_kills_under_load(self):
        """tests/chaos/kill_nodes over UCX: at failpoints in mid-frame, before a Commit, by signal."""
        for way in WAYS:
            with self.subTest(way=way):
                os.environ["UCX_TLS"] = way
                self.addCleanup(os.environ.pop, "UCX_TLS", None)
                code, numbers, output = run_chaos("kill_nodes", "--kills", 3, "--seed", 17, "--bodies", 10,
                                                  "--warm-s", 2, "--kv-transport", "ucx")
                self.assertEqual(code, 0, output)
                self.assertEqual({numbers[name] for name in ("lost", "different", "leaked")}, {"0"}, output)
