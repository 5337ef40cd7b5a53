"""The processes of the kill test: prefill and decode nodes that die and come back at the same address,
and the routers in front of them."""
import os
import pathlib
import signal
import time

from harness.case import busy
from harness.client import ConnectionFailed
from harness.cluster import LOOPBACK
from harness.metrics import scrape
from harness.node import Node, free_port, wait_until

START_S = 60
ARMED_S = 12  # an armed failpoint that was not met by then is helped by a signal
SETTLED_S = 1.0  # a router is ready with its first pair; the others connect within a moment
BULK_CONNECTIONS = 2  # between a prefill and a decode node: --bulk-connections
IDLE_S = 12  # after the last answer every block must be free; a lease takes 3 s
# Where a process can be killed from inside: (failpoint, highest pass).
FAILPOINTS = {
    "prefill": [("prefill_role.before", 30), ("prefill_role.after", 30), ("handoff.frame", 10),
                ("handoff.commit", 6), ("engine.step", 40)],
    "decode": [("decode_role.before", 40), ("decode_role.after", 40), ("engine.step", 80)],
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
        self.address = f"{LOOPBACK}:{free_port()}"
        self.generation = 0
        self.armed = None  # failpoint=kill@pass
        self.node = None

    def launch(self, armed=None, keep_id=True):
        self.armed = armed
        node_id = self.name if keep_id else f"{self.name}-{self.generation}"
        flags = ["-m", self.fleet.model, "--node-role", self.role, "--node-id", node_id, "--host", LOOPBACK,
                 "--port", 0, "--serving-bind", self.address, "--kv-memory", self.fleet.kv_memory, "-t", 1]
        if self.role == "prefill":
            flags += ["--decode-peers", ",".join(slot.address for slot in self.fleet.of("decode"))]
        if armed:
            flags += ["--failpoints", armed]
        # Another block size per place: what crosses the wire is never laid out alike by luck.
        flags += ["--block-tokens", [64, 128][self.index % 2]]
        self.node = Node(self.fleet.binary, f"{self.name}.{self.generation}", flags, self.fleet.logs).start()
        self.generation += 1
        return self

    def dead(self):
        return self.node.process.poll() is not None

    def listening(self):
        if self.node.http is None and "\n" in self.node.out_path.read_text(errors="replace"):
            self.node.wait_listening(1)
        return self.node.http is not None


class Fleet:
    def __init__(self, arguments, logs, source):
        self.binary, self.model, self.logs, self.source = arguments.binary, arguments.model, logs, source
        self.kv_memory, self.arm = arguments.kv_memory, arguments.arm
        self.failpoints = not arguments.no_failpoints
        self.slots = []
        for role in ("decode", "prefill"):
            for index in range(2):
                self.slots.append(Slot(self, role, index))
        self.routers = []
        self.router_count = arguments.routers
        self.limits = {}  # process name or role -> descriptors when idle and warm

    def of(self, role):
        return [slot for slot in self.slots if slot.role == role]

    def start(self):
        for slot in self.slots:
            slot.launch(self.arm if slot.role == "prefill" else None)
            slot.armed = None  # it is not meant to die of it
        for slot in self.slots:
            slot.node.wait_listening(START_S)
        for index in range(self.router_count):
            flags = ["-m", self.model, "--node-role", "router", "--node-id", f"r{index}", "--host", LOOPBACK,
                     "--port", 0]
            for role in ("prefill", "decode"):
                flags += [f"--{role}-peers", ",".join(slot.address for slot in self.of(role))]
            self.routers.append(Node(self.binary, f"r{index}", flags, self.logs).start())
        for router in self.routers:
            router.wait_listening(START_S).wait_ready(START_S)
        wait_until(lambda: all(map(self.seen, self.slots)), START_S, "every router sees every node")

    def seen(self, slot):
        """No router misses the node of that address."""
        return not any(slot.address in router.client(timeout_s=10).get("/ready").text for router in self.routers)

    def relaunch(self, slot, arm):
        """Starts the place anew, armed or not, under its old name or another one."""
        armed = None
        if arm and self.failpoints and self.source.random() < 0.6:
            name, highest = self.source.choice(FAILPOINTS[slot.role])
            armed = f"{name}=kill@{self.source.randint(1, highest)}"
        slot.launch(armed, keep_id=self.source.random() < 0.5)

    def processes(self):
        return self.routers + [slot.node for slot in self.slots]

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
        for router in self.routers:
            self.limits[router.name] = descriptors(router)
        for role in ("prefill", "decode"):
            # KV connections come with the first handoff between two nodes, and stay.
            self.limits[role] = max(descriptors(slot.node) for slot in self.of(role)) + 2 * BULK_CONNECTIONS

    def leaks(self):
        """What is not free although nothing runs: one line each. Armed nodes may be down: no leak."""
        found = []
        for slot in self.slots:
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
        for router in self.routers:
            page = scrape(router)
            if page.sum("baton_requests_active"):
                found.append(f"{router.name}: {page.sum('baton_requests_active'):.0f} requests are under way")
            if page.sum("baton_token_mismatches_total"):
                found.append(f"{router.name}: repeated tokens differed")
            found += self._bugs(router.name, page)
            found += self._too_many(router, self.limits.get(router.name))
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
        """What the routers had to do, in words."""
        pages = [scrape(router) for router in self.routers]
        return ", ".join(f"{sum(page.sum(f'baton_{name}_total') for page in pages):.0f} {name.replace('_', ' ')}"
                         for name in ("retries", "replays", "local_fallbacks"))

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
