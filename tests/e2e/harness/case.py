"""Base of the end-to-end tests: shared nodes, cold references, requests, idle checks.

Nodes are expensive (each repacks the model), so classes share them: `shared(key, make)` starts a set
once and keeps it until a class asks for its own folder to be cleared or the run ends.
"""
import json
import os
import pathlib
import random
import shutil
import subprocess
import tempfile
import threading
import unittest

from .client import ConnectionFailed
from .cluster import Cluster, Single
from .metrics import scrape
from .node import Node, wait_until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EOS = 2  # <|im_end|>
VOCABULARY = 49152
CONTEXT = 8192
KV_MEMORY = "384M"  # 17,476 tokens of SmolLM2 in bf16
GREEDY = {"temperature": 0}
SEEDED = {"temperature": 0.9, "top_p": 0.95, "seed": 1234}


class Settings:
    """Set by tests/e2e/run before any test."""

    binary = None
    model = None
    logs = None
    patience = 1.0  # factor on every timeout (sanitizer builds)
    long = False  # more cases of what has a long form


def patient(seconds):
    return seconds * Settings.patience


_shared = {}
_references = {}
_own = []  # sets of the running test


def make_single(name, *flags):
    flags = ["--kv-memory", KV_MEMORY, "-t", 2, *flags]
    return Single(Settings.binary, Settings.model, Settings.logs, name=name, flags=flags)


def make_cluster(name, flags=(), **more):
    flags = ["--kv-memory", KV_MEMORY, *flags]
    return Cluster(Settings.binary, Settings.model, Settings.logs, name=name, flags=flags, **more)


def shared(key, make):
    """The set of nodes under that key, started by make() at its first use. One that lost a node is
    replaced: the test that killed it has failed already (see tearDown)."""
    if key in _shared and not all(node.running() for node in _shared[key].nodes):
        stop_shared(key)
    if key not in _shared:
        nodes = make()
        nodes.start(patient(120))
        _shared[key] = nodes
    return _shared[key]


def single():
    """The reference: one process. Nothing is shared between requests, so each is a cold run."""
    return shared("single", lambda: make_single("single", "--prefix-cache", "off"))


def pair():
    """One prefill and one decode node that differ in step budget, threads and block size."""
    return shared("pair", lambda: make_cluster(
        "pair",
        prefill_flags=["-t", 2, "--max-step-ms", 15, "--block-tokens", 64],
        decode_flags=["-t", 1, "--max-step-ms", 60, "--block-tokens", 256],
    ))


def stop_shared(key=None):
    """Stops one shared set or all. Returns exit codes other than 0 by node name."""
    codes = {}
    for name in [key] if key else list(_shared):
        nodes = _shared.pop(name, None)
        if nodes is not None:
            codes.update(nodes.stop())
    return {name: code for name, code in codes.items() if code}


def all_nodes():
    """Of shared sets and of the running test's own: their logs explain a failure."""
    return [node for nodes in [*_shared.values(), *_own] for node in nodes.nodes]


def token_prompt(tokens, seed=1):
    """Token ids without control ids: the same for the same arguments, on every Python."""
    source = random.Random(seed)
    return [source.randrange(1000, 40000) for _ in range(tokens)]


def completion(prompt, max_tokens=16, **fields):
    """A /v1/completions body whose answer tools/canonical can read."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "logprobs": 0, "return_token_ids": True}
    return {**body, **fields}


def chat(content, max_tokens=16, **fields):
    body = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": max_tokens,
        "logprobs": True,
        "return_token_ids": True,
    }
    return {**body, **fields}


def path_of(body):
    return CHAT if "messages" in body else COMPLETIONS


class Answer:
    """What came back: canonical lines, and the bodies for looking at more."""

    def __init__(self, lines, bodies):
        self.lines = lines
        self.bodies = bodies

    @property
    def served(self):
        return next((b["baton"] for b in reversed(self.bodies) if b.get("baton")), {})

    @property
    def usage(self):
        return next((b["usage"] for b in reversed(self.bodies) if b.get("usage")), {})

    @property
    def text(self):
        return json.loads(next(line for line in self.lines if line.startswith("text "))[5:])

    @property
    def finish(self):
        return next(l for l in self.lines if l.startswith("finish_reason ")).split()[1]

    @property
    def tokens(self):
        return [int(line.split()[2]) for line in self.lines if line.startswith("token ")]


def ask(nodes, body, stream=False):
    """Asks the front node and fails on any other answer than a whole one."""
    from .canonical import canonical

    client = nodes.front.client(timeout_s=patient(120))
    if stream:
        body = dict(body, stream_options={"include_usage": True})
        answer = client.stream(path_of(body), body)
        bodies = list(answer)
        if answer.status != 200:
            raise AssertionError(f"status {answer.status}: {answer.text}")
        return Answer(answer.canonical(), bodies)
    response = client.post(path_of(body), body)
    if response.status != 200:
        raise AssertionError(f"status {response.status}: {response.text}")
    return Answer(canonical(response.text), [response.json()])


def begin_stream(node, body, events):
    """A stream and its iterator, once so many events have come."""
    stream = node.client(timeout_s=patient(60)).stream(path_of(body), body)
    assert stream.status == 200, stream.read_all().text
    bodies = iter(stream)
    for _ in range(events):
        next(bodies)
    return stream, bodies


def read_rest(stream, bodies):
    """Reads to the end, whichever it is."""
    try:
        for _ in bodies:
            pass
    except ConnectionFailed:
        pass
    return stream


def ask_all(nodes, bodies, stream=True):
    """All at the same moment. Returns answers in order; the first failure is raised."""
    answers = [None] * len(bodies)
    gate = threading.Barrier(len(bodies))

    def work(index):
        try:
            gate.wait(10)
            answers[index] = ask(nodes, bodies[index], stream)
        except Exception as error:  # noqa: BLE001 - raised again below, in the caller's thread
            answers[index] = error

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
    return answers


def reference(body):
    """What the single node answers when it is asked alone; each body is asked once per run."""
    key = json.dumps(body, sort_keys=True)
    if key not in _references:
        _references[key] = ask(single(), body)
    return _references[key]


def busy(metrics):
    """Of one engine's page: KV blocks that sequences own, sequences in the engine, and waiting."""
    blocks = metrics.by("baton_pool_blocks", "state")
    owned = sum(value for state, value in blocks.items() if state not in ("free", "cached"))
    states = ("running", "reserved", "handing_off")
    inside = sum(metrics.sum(f"baton_sequences_{state}") for state in states)
    return owned, inside, metrics.sum("baton_queue_depth")


class E2eCase(unittest.TestCase):
    maxDiff = 4000
    where = ""  # which nodes the test was asking; shown with a failure

    def tearDown(self):
        dead = [node for nodes in _shared.values() for node in nodes.nodes if not node.running()]
        for node in dead:
            print(node.tail(12))
        names = [f"{node.name} (exit {node.process.returncode})" for node in dead]
        for key in [key for key, nodes in _shared.items() if set(nodes.nodes) & set(dead)]:
            stop_shared(key)
        self.assertEqual(names, [], "processes that this test ended")

    def single_and_pair(self):
        """The shared single node, then the shared pair."""
        for nodes in (single(), pair()):
            self.where = nodes.front.name
            yield nodes
        self.where = ""

    def assert_same(self, answer, body, what=""):
        """Byte-identical to the cold single node."""
        expected = reference(body).lines
        if answer.lines != expected:
            pairs = list(zip(answer.lines, expected))
            where = next((i for i, (mine, other) in enumerate(pairs) if mine != other), len(pairs))
            got, want = answer.lines[where : where + 1], expected[where : where + 1]
            self.fail(f"{what or body}: line {where}: got {got}, single node has {want}")

    def assert_error(self, response, status, param=None, words=()):
        """An error in OpenAI's shape: status, the field, and words of the message."""
        self.assertEqual(response.status, status, response.text)
        error = response.error()
        self.assertEqual(set(error) & {"message", "type", "param", "code"},
                         {"message", "type", "param", "code"}, response.text)
        if param is not None:
            self.assertIn(param, f"{error['param']} {error['message']}", response.text)
        for word in words:
            self.assertIn(word, error["message"], response.text)
        return error

    def wait_idle(self, nodes, seconds=3.0):
        """Pools and queues back to nothing; each engine must say so itself."""
        for node in nodes.engines:
            try:
                wait_until(lambda node=node: busy(scrape(node)) == (0, 0, 0), patient(seconds),
                           f"{node.name} is idle")
            except TimeoutError as error:
                self.fail(f"{error}: owned blocks, sequences, waiting = {busy(scrape(node))}")

    def _stop_own(self, nodes):
        codes = nodes.stop()
        _own.remove(nodes)
        bad = {name: code for name, code in codes.items() if code}
        tails = "\n".join(node.tail(5) for node in nodes.nodes if node.name in bad)
        self.assertEqual(bad, {}, f"exit codes of stopped nodes\n{tails}")

    def run_baton(self, *flags, variables=None):
        """`baton serve` with something wrong: it must end by itself, non-zero, not by a signal, and
        say what. Returns what it said."""
        argv = [str(Settings.binary), "serve", *map(str, flags)]
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, timeout=patient(60),
                              env={**os.environ, **(variables or {})})
        self.assertIn(done.returncode, (1, 2), f"{argv}\n{done.stderr}")
        self.assertNotIn("listening", done.stdout)
        return done.stderr

    def start_own(self, nodes, **how):
        """Starts nodes for this test alone and stops them at its end."""
        _own.append(nodes)
        self.addCleanup(self._stop_own, nodes)
        nodes.start(patient(120), **how)
        return nodes


def prepare(binary, model, patience):
    Settings.binary, Settings.model, Settings.patience = binary, model, patience
    if patience > 1:
        Node.common_variables["BATON_STALL_MS"] = str(round(5000 * patience))  # slow is not stuck
    Settings.logs = tempfile.mkdtemp(prefix="baton-e2e-")
    if not os.access(binary, os.X_OK):
        raise SystemExit(f"{binary} is not there: build it (scripts/test does)")
    if not pathlib.Path(model).is_file():
        raise SystemExit(f"{model} is not there: run scripts/test, which fetches it")


def finish(keep_logs):
    """Stops what is shared. Returns exit codes other than 0: a node must end well, too."""
    bad = stop_shared()
    if keep_logs or bad:
        print(f"node logs are kept in {Settings.logs}")
    else:
        shutil.rmtree(Settings.logs, ignore_errors=True)
    return bad


