"""Sets of nodes: a single node, or a router with x prefill and y decode nodes as real processes."""
from .node import Node

LOOPBACK = "127.0.0.1"


class Single:
    """One process that does everything: the reference of each comparison."""

    def __init__(self, binary, model, log_folder, name="single", flags=(), stay=False):
        common = ["-m", model, "--node-id", name, "--host", LOOPBACK, "--port", 0]
        self.node = Node(binary, name, common + list(flags), log_folder, stay)

    def start(self, timeout_s=120):
        try:
            self.node.start().wait_listening(timeout_s).wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def nodes(self):
        return [self.node]

    @property
    def front(self):
        """The node that clients talk to."""
        return self.node

    @property
    def engines(self):
        return [self.node]

    def stop(self):
        """Exit codes by node name."""
        return {self.node.name: self.node.stop()}


class Cluster:
    """Decode nodes start first, then prefill nodes, which dial them, then the routers, which dial
    both. `prefill_flags` and `decode_flags` go to all nodes of that role, `flags` to every node, and so
    do `variables` of the environment."""

    def __init__(self, binary, model, log_folder, name="cluster", prefill=1, decode=1, routers=1, flags=(),
                 prefill_flags=(), decode_flags=(), router_flags=(), variables=None, stay=False):
        self.binary, self.model, self.log_folder = binary, model, log_folder
        self.name, self.stay = name, stay
        self.counts = (prefill, decode, routers)
        self.variables = dict(variables or {})
        self.flags = list(flags)
        self.role_flags = {
            "prefill": list(prefill_flags),
            "decode": list(decode_flags),
            "router": list(router_flags),
        }
        self.prefill, self.decode, self.routers = [], [], []

    def _node(self, role, suffix, extra):
        node_id = f"{self.name}-{role}{suffix}"
        flags = ["-m", self.model, "--node-role", role, "--node-id", node_id]
        flags += ["--host", LOOPBACK, "--port", 0]
        flags += self.flags + self.role_flags[role] + extra
        node = Node(self.binary, node_id, flags, self.log_folder, self.stay)
        node.variables.update(self.variables)
        return node

    def address_of(self, node, dialler):
        """Where the nodes of the role `dialler` reach that node: a test may put something between."""
        return node.serving

    def _peers(self, role, nodes, dialler):
        return [f"--{role}-peers", ",".join(self.address_of(node, dialler) for node in nodes)]

    def start(self, timeout_s=120, wait_ready=True):
        try:
            bind = ["--serving-bind", f"{LOOPBACK}:0"]
            for index in range(self.counts[1]):
                self.decode.append(self._node("decode", index, bind).start())
            for node in self.decode:
                node.wait_listening(timeout_s)
            peers = self._peers("decode", self.decode, "prefill")
            for index in range(self.counts[0]):
                self.prefill.append(self._node("prefill", index, bind + peers).start())
            for node in self.prefill:
                node.wait_listening(timeout_s)
            peers = self._peers("prefill", self.prefill, "router")
            peers += self._peers("decode", self.decode, "router")
            for index in range(self.counts[2]):
                self.routers.append(self._node("router", index or "", peers).start())
            for router in self.routers:
                router.wait_listening(timeout_s)
                if wait_ready:
                    router.wait_ready(timeout_s)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def nodes(self):
        return self.routers + self.prefill + self.decode

    @property
    def router(self):
        return self.routers[0] if self.routers else None

    @property
    def front(self):
        return self.router

    @property
    def engines(self):
        return self.prefill + self.decode

    def stop(self):
        """The routers first, so that they do not see their peers vanish. Exit codes by node name."""
        return {node.name: node.stop() for node in self.nodes}


