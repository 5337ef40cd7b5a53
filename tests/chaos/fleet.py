"""The processes of these tests: prefill and decode nodes, and the routers in front of them, that die or
leave and come back at the same address."""
import contextlib
import os
import pathlib
import signal
import time

from harness.case import busy
from harness.client import ConnectionFailed
from harness.cluster import LOOPBACK
from harness.metrics import scrape
from harness.node import Node, NodeFailed, free_port, wait_until

START_S = 60
PORT = 7000  # of each address, where a process has one of its own
ARMED_S = 12  # an armed failpoint that was not met by then is helped by a signal
SETTLED_S = 1.0  # a router is ready with its first pair; the others connect within a moment
BULK_CONNECTIONS = 2  # between a prefill and a decode node: --bulk-connections
LANE_DESCRIPTORS = 12  # of a UCX worker: its event, epoll sets, listeners and connections
IDLE_S = 12  # after the last answer every block must be free; a lease takes 3 s
# Where a process can be killed from inside: (failpoint, highest pass).
FAILPOINTS = {
    "prefill": [("prefill_role.before", 30), ("prefill_role.after", 30), ("handoff.frame", 10),
                ("handoff.commit", 6), ("engine.step", 40)],
    "decode": [("decode_role.before", 40), ("decode_role.after", 40), ("engine.step", 80)],
    "router": [("api.event", 120)],
}


def descriptors(node):
    return len(os.listdir(f"/proc/{node.process.pid}/fd"))


def open_files(node):
    """What its descriptors are: paths, and for TCP sockets "local-remote state", ports only."""
    sockets = {}
    for line in pathlib.Path(f"/proc/{node.process.pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = [str(int(fields[i].split(":")[1], 16)) for i in (1, 2)]
        sockets[f"socket:[{fields[9]}]"] = f"{'-'.join(ports)} {fields[3]}"
    folder = pathlib.Path(f"/proc/{node.process.pid}/fd")
    names = [os.readlink(entry) for entry in folder.iterdir()]
    return sorted(sockets.get(name, name) for name in names)


class Slot:
    """One place in the cluster: a role and an address, and the process that has it now."""

    def __init__(self, fleet, role, index):
        self.fleet, self.role, self.index = fleet, role, index
        self.name = f"{role[0]}{index}"
        networks = fleet.networks
        self.address = f"{networks.add(self.name)}:{PORT}" if networks else f"{LOOPBACK}:{free_port()}"
        self.generation = 0
        self.armed = None  # failpoint=kill@pass
        self.leaving = False  # it was told to stop, and has not been started again
        self.up = False  # it listens and knows the others; until its death is noticed
        self.node = None

    def launch(self, armed=None, keep_id=True):
        self.armed = armed
        node_id = self.name if keep_id else f"{self.name}-{self.generation}"
        flags = ["-m", self.fleet.model, "--node-role", self.role, "--node-id", node_id]
        flags += ["--host", self.address.rsplit(":", 1)[0]]
        if self.role == "router":
            # Every other router follows what nodes tell of their caches.
            flags += ["--port", self.address.rsplit(":", 1)[1],
                      "--policy", ["kv-aware", "least-loaded"][self.index % 2]]
        else:
            flags += ["--kv-transport", self.fleet.kv_transport]
            # Another block size per place: what crosses the wire is never laid out alike by luck.
            flags += ["--port", 0, "--serving-bind", self.address, "--kv-memory", self.fleet.kv_memory, "-t", 1,
                      "--block-tokens", [64, 128][self.index % 2]]
        for peers in {"prefill": ["decode"], "router": ["prefill", "decode"]}.get(self.role, []):
            flags += [f"--{peers}-peers", ",".join(slot.address for slot in self.fleet.of(peers))]
        flags += self.fleet.flags.get(self.role, [])
        if armed:
            flags += ["--failpoints", armed]
        node = Node(self.fleet.binary, f"{self.name}.{self.generation}", flags, self.fleet.logs)
        if self.fleet.networks:
            self.fleet.networks.mend(self.name)
            node.prepare = self.fleet.networks.entering(self.name)
        self.node = node.start()  # clients look at it: never one that has no process yet
        self.generation += 1
        self.leaving = False  # not before: a client may just be asking why its stream ended

    def dead(self):
        return self.node.process.poll() is not None

    def is_leaving(self, generation):
        """That generation of it was told to stop."""
        return self.leaving or self.generation != generation

    def died_since(self, generation, within_s=5):
        """True once the process of that generation is gone. A connection breaks a moment earlier."""
        def gone():
            return self.generation != generation or self.node.killed or self.dead()

        deadline = time.monotonic() + within_s
        while not gone() and time.monotonic() < deadline:
            time.sleep(0.02)
        return gone()

    def listening(self):
        if self.node.http is None and "\n" in self.node.out_path.read_text(errors="replace"):
            try:
                self.node.wait_listening(1)
            except NodeFailed:  # its failpoint was met at once: its death will be noticed
                return False
        return self.node.http is not None


class Fleet:
    """arm: role -> failpoint of its processes at their first start, which they are not meant to die of.
    failpoints: what is started again may die by one. flags: role -> more flags of its processes. networks: each
    process gets one of its own."""

    def __init__(self, arguments, logs, source, arm=None, failpoints=False, flags=None, networks=None):
        self.binary, self.model, self.logs, self.source = arguments.binary, arguments.model, logs, source
        self.kv_memory, self.arm, self.failpoints = arguments.kv_memory, arm or {}, failpoints
        self.flags, self.networks = flags or {}, networks
        self.kv_transport = getattr(arguments, "kv_transport", "tcp")
        if networks:  # ports beyond loopback want to know who calls
            token = pathlib.Path(logs) / "cluster-token"
            token.write_text("%032x" % source.getrandbits(128))
            token.chmod(0o600)
            for role in ("prefill", "decode", "router"):
                self.flags[role] = [*self.flags.get(role, []), "--cluster-token-file", token]
        self.slots = [Slot(self, role, index) for role in ("decode", "prefill") for index in range(2)]
        self.slots += [Slot(self, "router", index) for index in range(arguments.routers)]
        self.layers = {}  # process -> frames with layers of a last chunk
        self.limits = {}  # role -> descriptors when idle and warm

    def of(self, role):
        return [slot for slot in self.slots if slot.role == role]

    def engines(self):
        return [slot for slot in self.slots if slot.role != "router"]

    def start(self):
        for slot in self.slots:
            slot.launch(self.arm.get(slot.role))
            slot.armed = None
        for slot in self.slots:
            slot.node.wait_listening(START_S)
        for slot in self.engines() + self.of("router"):
            wait_until(lambda slot=slot: self.seen(slot), START_S, f"{slot.name} is connected to the others")
            slot.up = True

    def seen(self, slot):
        """A node: no router that is up misses it. A router: it can serve and misses none that is up.
        Whoever comes last has seen the others, so all that are up know each other."""
        if slot.role == "router":
            pairs = [(slot, other) for other in self.engines() if other.up]
        else:
            pairs = [(router, slot) for router in self.of("router") if router.up]
        try:
            pages = {router: router.node.client(timeout_s=10).get("/ready") for router, _ in pairs}
        except ConnectionFailed:
            return False  # it died; that will be noticed
        return all(pages[router].status == 200 and other.address not in pages[router].text for router, other in pairs)

    def relaunch(self, slot, arm):
        """Starts the place anew, armed or not, under its old name or another one."""
        armed = None
        if arm and self.failpoints and self.source.random() < 0.6:
            name, highest = self.source.choice(FAILPOINTS[slot.role])
            armed = f"{name}=kill@{self.source.randint(1, highest)}"
        slot.launch(armed, keep_id=self.source.random() < 0.5)

    def processes(self):
        """Routers first: so they do not see their peers vanish when all are stopped."""
        return [slot.node for slot in self.of("router") + self.engines()]

    def remember_descriptors(self):
        """To be called before any load: once all are connected to all, nothing changes any more."""
        def counts():
            return [descriptors(node) for node in self.processes()]

        seen, since = counts(), time.monotonic()
        while time.monotonic() - since < SETTLED_S:
            time.sleep(0.05)
            now = counts()
            if now != seen:
                seen, since = now, time.monotonic()
        self.limits["router"] = max(descriptors(slot.node) for slot in self.of("router"))
        for role in ("prefill", "decode"):
            # KV connections come with the first handoff between two nodes, and stay.
            each = 1 if self.kv_transport == "tcp" else 1 + LANE_DESCRIPTORS
            self.limits[role] = max(descriptors(slot.node) for slot in self.of(role)) + 2 * BULK_CONNECTIONS * each

    def leaks(self):
        """What is not free although nothing runs: one line each. Armed nodes may be down: no leak."""
        found = []
        for slot in self.engines():
            if slot.dead():
                continue
            page = {}

            def idle(slot=slot, page=page):
                page["now"] = scrape(slot.node)
                return busy(page["now"]) == (0, 0, 0) and page["now"].sum("baton_handoffs_active") == 0

            try:
                wait_until(idle, IDLE_S, f"{slot.node.name} is idle")
            except TimeoutError as error:
                found.append(f"{error}: blocks owned, sequences, waiting = {busy(page['now'])}, "
                             f"handoffs {page['now'].sum('baton_handoffs_active'):.0f}")
            except ConnectionFailed:
                continue
            found += self._bugs(slot.node.name, page["now"])
            found += self._too_many(slot.node, self.limits.get(slot.role))
        for slot in self.of("router"):
            if slot.dead():
                continue
            try:
                page = scrape(slot.node)
            except ConnectionFailed:
                continue
            if page.sum("baton_requests_active"):
                found.append(f"{slot.node.name}: {page.sum('baton_requests_active'):.0f} requests are under way")
            if page.sum("baton_token_mismatches_total"):
                found.append(f"{slot.node.name}: repeated tokens differed")
            found += self._bugs(slot.node.name, page)
            found += self._too_many(slot.node, self.limits.get("router"))
        return found

    @staticmethod
    def _bugs(name, page):
        bugs = page.sum("baton_bugs_total")
        return [f"{name}: {bugs:.0f} doubtful states, see its log"] if bugs else []

    @staticmethod
    def _too_many(node, limit):
        """Connections of clients that just left close within a moment."""
        if limit is None:
            return []
        deadline = time.monotonic() + 5
        while descriptors(node) > limit and time.monotonic() < deadline:
            time.sleep(0.05)
        now = descriptors(node)
        return [f"{node.name}: {now} descriptors, {limit} before: {open_files(node)}"] if now > limit else []

    def recoveries(self):
        """What the routers that are there now had to do, in words."""
        pages = [scrape(slot.node) for slot in self.of("router")]
        return ", ".join(f"{sum(page.sum(f'baton_{name}_total') for page in pages):.0f} {name.replace('_', ' ')}"
                         for name in ("retries", "replays", "local_fallbacks", "requests_resumed"))

    def layer_frames(self):
        """Of all prefill nodes, each as it was when this was last called while it lived."""
        for slot in self.of("prefill"):
            with contextlib.suppress(ConnectionFailed):  # it may have died this moment
                self.layers[slot.node.name] = int(scrape(slot.node).sum("baton_handoff_layer_frames_total"))
        return sum(self.layers.values())

    def stop(self):
        """Exit codes other than 0 by name, of processes that were not killed."""
        codes = {}
        for node in self.processes():
            if node is None or node.process is None:
                continue
            code = node.stop()
            if code not in (0, -signal.SIGKILL):
                codes[node.name] = code
        return codes
