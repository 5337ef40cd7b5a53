"""Nodes that come and go at run time, by a real etcd and by names: under load, nothing lost, every stream
that of the cold single node, and nothing kept of who has gone."""
import contextlib
import ctypes.util
import os
import pathlib
import signal
import tempfile
import threading
import time

from harness.canonical import CanonicalError
from harness.case import (GREEDY, SEEDED, E2eCase, Settings, ask, completion, patient, reference,
                          token_prompt)
from harness.client import ConnectionFailed
from harness.cluster import LOOPBACK
from harness.etcd import Etcd
from harness.metrics import scrape
from harness.node import Node, free_port, wait_until

TTL_S = 2
GRACE_S = 5  # membership::MembershipOptions::grace
ESTABLISHED = 1


class Fleet:
    """Nodes that find each other by `flags`, started one by one and at any time."""

    def __init__(self, name, flags, variables=()):
        self.name, self.flags, self.variables = name, [str(flag) for flag in flags], dict(variables)
        self.nodes = []

    def launch(self, role, suffix, *extra, bind=f"{LOOPBACK}:0"):
        node_id = f"{self.name}-{role}{suffix}"
        flags = ["-m", Settings.model, "--node-role", role, "--node-id", node_id, "--port", 0, "--host", LOOPBACK]
        if role != "router":
            flags += ["--serving-bind", bind, "--kv-memory", "128M", "-t", 1]
        node = Node(Settings.binary, node_id, flags + self.flags + list(extra), Settings.logs)
        node.variables = self.variables
        node.id = node_id
        self.nodes.append(node)
        return node.start().wait_listening(patient(60))

    @property
    def front(self):
        return self.nodes[0]

    @property
    def engines(self):
        return [node for node in self.nodes[1:] if node.running()]

    def stop(self):
        return {node.name: node.stop() for node in self.nodes}

    def rows(self):
        """Of the router's table: id -> state."""
        return {row["id"]: row["state"] for row in self.front.client().get("/cluster").json()["nodes"]}

    def wait_up(self, *nodes):
        wait_until(lambda: all(self.rows().get(node.id) == "up" for node in nodes), patient(20),
                   f"{[node.id for node in nodes]} are up")

    def wait_forgotten(self, node, seconds):
        wait_until(lambda: node.id not in self.rows(), patient(seconds), f"{node.id} is forgotten")


def made(node):
    """What a node has done: prompt tokens and tokens."""
    page = scrape(node)
    return page.sum("baton_prompt_tokens_computed_total") + page.sum("baton_tokens_generated_total")


def connected_ports(node):
    """Remote ports of its established TCP connections, and how many there are to each."""
    inodes = set()
    for entry in pathlib.Path(f"/proc/{node.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            inodes.add(os.readlink(entry))
    ports = {}
    for line in pathlib.Path(f"/proc/{node.process.pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if f"socket:[{fields[9]}]" in inodes and int(fields[3], 16) == ESTABLISHED:
            port = int(fields[2].rsplit(":", 1)[1], 16)
            ports[port] = ports.get(port, 0) + 1
    return ports


def port_of(node):
    return int(node.serving.rsplit(":", 1)[1])


class Load:
    """Clients that ask without a break; every answer is compared."""

    def __init__(self, fleet, clients=3):
        self.fleet = fleet
        self.bodies = [completion(token_prompt(length, seed=length), max_tokens=tokens, ignore_eos=True,
                                  stream_options={"include_usage": True}, **sampling)
                       for length, tokens, sampling in ((40, 60, GREEDY), (300, 24, SEEDED), (33, 90, SEEDED),
                                                        (120, 40, GREEDY), (1, 32, SEEDED))]
        self.expected = [reference(body).lines for body in self.bodies]
        self.answers, self.problems = 0, []
        self.lock, self.ended = threading.Lock(), threading.Event()
        self.threads = [threading.Thread(target=self._work, args=(index,)) for index in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def _work(self, number):
        count = number
        while not self.ended.is_set():
            index = count % len(self.bodies)
            body = dict(self.bodies[index], cache_salt=f"{number}/{count}")  # cold
            problem = None
            try:
                answer = ask(self.fleet, body, stream=True)
                if answer.lines != self.expected[index]:
                    problem = f"body {index}: another answer"
            except (AssertionError, ConnectionFailed, CanonicalError, OSError) as error:
                problem = f"body {index}: {error}"
            with self.lock:
                self.answers += 1
                if problem:
                    self.problems.append(problem)
            count += 1

    def more(self, count, seconds=60):
        """Waits for so many more answers."""
        target = self.answers + count
        wait_until(lambda: self.answers >= target or self.problems, patient(seconds), f"{count} more answers")


class MembershipCase(E2eCase):
    def fleet(self, *arguments, **more):
        fleet = Fleet(*arguments, **more)
        self.addCleanup(self._stop_fleet, fleet)
        return fleet

    def _stop_fleet(self, fleet):
        bad = {name: code for name, code in fleet.stop().items() if code}
        tails = "\n".join(node.tail(12) for node in fleet.nodes)
        self.assertEqual(bad, {}, f"exit codes of stopped nodes\n{tails}")

    def assert_clean(self, fleet, load, gone):
        """All answers were right, and whoever is left has nothing of whoever is gone."""
        tails = "\n".join(node.tail(15) for node in fleet.nodes)
        self.assertEqual(load.problems, [], tails)
        self.wait_idle(fleet, seconds=5)
        self.assertEqual(set(fleet.rows()), {node.id for node in fleet.engines} - {node.id for node in gone})
        for node in fleet.engines:
            if node not in gone:
                self.assertIn(port_of(node), connected_ports(fleet.front), "who is there is connected")
        for node in [fleet.front] + fleet.engines:
            ports = connected_ports(node)
            for other in gone:
                self.assertNotIn(port_of(other), ports, f"{node.id} is connected to {other.id}\n{tails}")
            self.assertEqual(scrape(node).sum("baton_bugs_total"), 0)


class EtcdTest(MembershipCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="baton-etcd-")
        self.addCleanup(folder.cleanup)
        self.etcd = Etcd(folder.name)
        self.addCleanup(self.etcd.stop)
        self.etcd.start(patient(60))

    def etcd_fleet(self, name):
        fleet = self.fleet(name, ["--etcd-endpoints", self.etcd.client_url, "--etcd-prefix", f"/{name}",
                                  "--etcd-ttl", TTL_S])
        fleet.launch("router", "")
        return fleet

    def registered(self, fleet):
        return {key.rsplit("/", 1)[1]: value for key, value in self.etcd.keys(f"/{fleet.name}/nodes/").items()}

    def wait_registered(self, fleet, *nodes):
        wait_until(lambda: set(self.registered(fleet)) == {node.id for node in nodes}, patient(TTL_S + 10),
                   f"etcd has {[node.id for node in nodes]}")

    def test_nodes_join_drain_and_leave_under_load(self):
        """Joined, drained by SIGTERM, drained by whoever deletes its key, killed: the load sees nothing."""
        fleet = self.etcd_fleet("etcd")
        ready = fleet.front.client().get("/ready")
        self.assertEqual(ready.status, 503)
        self.assertIn("none known yet", ready.text)
        d0, p0 = fleet.launch("decode", 0), fleet.launch("prefill", 0)
        fleet.front.wait_ready(patient(30))
        self.assertEqual(self.registered(fleet), {d0.id: {"role": "decode", "address": d0.serving},
                                                  p0.id: {"role": "prefill", "address": p0.serving}})
        with Load(fleet) as load:
            load.more(4)
            d1 = fleet.launch("decode", 1)
            fleet.wait_up(d1)
            wait_until(lambda: made(d1) > 0 or load.problems, patient(30), "the new decode node is used")

            d0.signal(signal.SIGTERM)
            self.assertEqual(d0.wait_exit(patient(30)), 0, d0.tail())
            self.wait_registered(fleet, d1, p0)
            fleet.wait_forgotten(d0, GRACE_S + 5)

            p1, d2 = fleet.launch("prefill", 1), fleet.launch("decode", 2)
            fleet.wait_up(p1, d2)
            wait_until(lambda: (made(p1) > 0 and made(d2) > 0) or load.problems, patient(30), "both are used")

            self.etcd.delete(f"/{fleet.name}/nodes/{d1.id}")  # it is not told: what it has goes on there
            fleet.wait_forgotten(d1, GRACE_S + 15)
            wait_until(lambda: port_of(d1) not in connected_ports(p0), patient(2 * GRACE_S + 15),
                       "the prefill node has let it go")
            self.assertTrue(d1.running())
            done = made(d1)
            load.more(6)
            self.assertEqual(made(d1), done, "nothing new for who has left")

            p0.kill()
            self.wait_registered(fleet, p1, d2)
            fleet.wait_forgotten(p0, GRACE_S + 5)
            load.more(4)
        self.assert_clean(fleet, load, gone=[d0, d1, p0])

    def test_etcd_restarted_under_load(self):
        """While it is away nothing changes; what happened meanwhile is seen once it is back."""
        fleet = self.etcd_fleet("restart")
        d0, d1, p0 = fleet.launch("decode", 0), fleet.launch("decode", 1), fleet.launch("prefill", 0)
        fleet.front.wait_ready(patient(30))
        fleet.wait_up(d0, d1, p0)
        with Load(fleet) as load:
            load.more(4)
            self.etcd.kill()
            began = time.monotonic()
            load.more(6)
            time.sleep(max(0.0, TTL_S + GRACE_S + 1 - (time.monotonic() - began)))
            self.assertEqual(fleet.rows(), {d0.id: "up", d1.id: "up", p0.id: "up"})
            self.assertGreater(scrape(fleet.front).sum("baton_membership_failures_total", source="etcd"), 0)

            d1.kill()  # its lease is still there when etcd comes back, and ends then
            d2 = fleet.launch("decode", 2)  # not in etcd yet
            load.more(4)
            self.assertNotIn(d2.id, fleet.rows())
            self.etcd.start(patient(60))
            fleet.wait_up(d2)
            self.wait_registered(fleet, d0, d2, p0)
            fleet.wait_forgotten(d1, GRACE_S + 5)
            wait_until(lambda: made(d2) > 0 or load.problems, patient(30), "the new decode node is used")
        self.assert_clean(fleet, load, gone=[d1])

    def test_a_node_that_cannot_reach_etcd_still_stops(self):
        fleet = self.etcd_fleet("unreached")
        decode = fleet.launch("decode", 0)
        self.wait_registered(fleet, decode)
        self.etcd.kill()
        decode.signal(signal.SIGTERM)
        self.assertEqual(decode.wait_exit(patient(10)), 0, decode.tail())


class NamesTest(MembershipCase):
    def test_a_name_whose_addresses_change_under_load(self):
        """`dns:` peers, with the C library's look-ups answered from a file (libnss-wrapper)."""
        if any(build in str(Settings.binary) for build in ("build/asan", "build/tsan")):
            self.skipTest("sanitizers want to be the first library that is loaded")
        self.assertIsNotNone(ctypes.util.find_library("nss_wrapper"),
                             "libnss-wrapper is not installed: scripts/test installs it")
        folder = tempfile.TemporaryDirectory(prefix="baton-hosts-")
        self.addCleanup(folder.cleanup)
        hosts = pathlib.Path(folder.name) / "hosts"
        version = 0

        def write(**names):
            nonlocal version
            version += 10  # the library reads it again when its time, in seconds, has moved
            lines = [f"{address} {name}.test" for name, addresses in names.items() for address in addresses]
            new = hosts.with_suffix(".new")
            new.write_text("\n".join(lines) + "\n")
            os.utime(new, (1_000_000_000 + version,) * 2)
            new.rename(hosts)

        write(decode=["127.0.0.2"], prefill=["127.0.0.2"])
        port = {role: free_port() for role in ("decode", "prefill")}
        peers = {role: [f"--{role}-peers", f"dns:{role}.test:{port[role]}"] for role in port}
        fleet = self.fleet("dns", ["--dns-interval-ms", 200],
                           variables={"LD_PRELOAD": "libnss_wrapper.so", "NSS_WRAPPER_HOSTS": hosts})

        def launch(role, suffix, host, *extra):
            return fleet.launch(role, suffix, *extra, bind=f"{host}:{port[role]}")

        fleet.launch("router", "", *peers["prefill"], *peers["decode"])
        d0 = launch("decode", 0, "127.0.0.2")
        launch("prefill", 0, "127.0.0.2", *peers["decode"])
        fleet.front.wait_ready(patient(30))
        with Load(fleet) as load:
            load.more(3)
            d1 = launch("decode", 1, "127.0.0.3")
            self.assertNotIn(d1.id, fleet.rows(), "nobody has named it yet")
            write(decode=["127.0.0.2", "127.0.0.3"], prefill=["127.0.0.2"])
            fleet.wait_up(d1)
            wait_until(lambda: made(d1) > 0 or load.problems, patient(30), "the new decode node is used")
            write(decode=["127.0.0.3"], prefill=["127.0.0.2"])
            fleet.wait_forgotten(d0, GRACE_S + 20)
            self.assertTrue(d0.running())
            write(prefill=["127.0.0.2"])  # the look-up of decode.test fails
            wait_until(lambda: scrape(fleet.front).sum("baton_membership_failures_total", source="dns") > 2,
                       patient(10), "look-ups have failed")
            time.sleep(GRACE_S + 1)
            self.assertEqual(fleet.rows()[d1.id], "up")
            write(decode=["127.0.0.2", "127.0.0.3"], prefill=["127.0.0.2"])
            fleet.wait_up(d0)  # it comes back
            load.more(3)
        self.assert_clean(fleet, load, gone=[])


class FlagsTest(E2eCase):
    def test_mistakes_are_told_at_start(self):
        model = ["-m", Settings.model, "--port", 0]
        router = [*model, "--node-role", "router"]
        decode = [*model, "--node-role", "decode"]
        for flags, words in (
            ([*router, "--etcd-endpoints", "https://a:1"], ("--etcd-endpoints", "https://a:1")),
            ([*router, "--etcd-endpoints", "a:1"], ("--etcd-endpoints", "a:1")),
            ([*router, "--prefill-peers", "dns:///p", "--decode-peers", "a:1"], ("--prefill-peers", "dns:///p")),
            ([*router], ("--prefill-peers", "--etcd-endpoints")),
            ([*model, "--etcd-endpoints", "http://a:1"], ("--etcd-endpoints", "--node-role")),
            ([*decode, "--serving-bind", "0.0.0.0:0", "--etcd-endpoints", "http://a:1"], ("--serving-advertise",)),
            ([*decode, "--serving-bind", f"{LOOPBACK}:0", "--etcd-endpoints", "http://a:1",
              "--serving-advertise", "a"], ("--serving-advertise", "port")),
        ):
            said = self.run_baton(*flags)
            for word in words:
                self.assertIn(word, said)
