"""The load of these tests: streams of many kinds, each compared with what a cold single node answered. A
client that loses its router goes on at another one."""
import json
import random
import re
import threading
import time

from harness.canonical import CanonicalError, canonical
from harness.case import GREEDY, chat, completion, path_of, token_prompt
from harness.client import Client, ConnectionFailed

STREAM_TIMEOUT_S = 120  # of silence; a stream that hangs is a lost one
MOST_ROUTERS = 50  # that one request may lose; more, and it never ends
WORDS = ("lighthouse", "river", "copper", "winter", "garden", "engine", "harbour", "paper")


def make_bodies(source, count):
    """Requests whose answers depend on all that a replay must rebuild: greedy and seeded, penalties,
    filters, biases, stop strings, prompts of 1 to 600 tokens, 16 to 64 new ones, one or two choices."""
    bodies = []
    for index in range(count):
        sampling = dict(GREEDY) if index % 3 == 0 else {
            "temperature": source.choice([0.7, 1.0, 1.3]), "top_p": 0.95, "seed": source.randrange(1 << 31)}
        if index % 2:
            sampling.update(source.choice([
                {"repetition_penalty": 1.2},
                {"presence_penalty": 1.1, "frequency_penalty": 0.6},
                {"frequency_penalty": 1.7},
                {"top_k": 40, "min_p": 0.02},
                {"logit_bias": {"260": 8, "28": -100}},
                {"min_tokens": 10},
            ]))
        tokens = source.randint(16, 64)
        if index % 5 == 4:
            words = " ".join(source.choices(WORDS, k=source.randint(1, 60)))
            body = chat(f"Write about: {words}.", max_tokens=tokens, **sampling)
        else:
            # Short ones are common, so that kills meet every phase; long ones cross many frames.
            length = source.choice([1, 31, 32, 33, source.randint(2, 100), source.randint(100, 600)])
            body = completion(token_prompt(length, seed=source.randrange(1 << 30)), max_tokens=tokens,
                              ignore_eos=index % 4 != 0, **sampling)
            if index % 7 == 6:
                body["stop"] = source.choice([" the", ".", "\n"])
        if index % 6 == 1:
            body["n"] = 2
        body["stream_options"] = {"include_usage": True}
        bodies.append(body)
    return bodies


def stream_lines(client, body):
    """Canonical lines of a streamed answer. Errors: ConnectionFailed, CanonicalError, OSError."""
    stream = client.stream(path_of(body), body)
    stream.read_all()
    if stream.status != 200:
        raise ConnectionFailed(f"status {stream.status}: {stream.text.strip()[:300]}")
    return stream.canonical()


def split_at_error(text):
    """The events before an error event (a comment may stand right before it), and the rest; no rest when
    there is none."""
    found = re.search("^event: error", text, re.M)
    return (text[:found.start()], text[found.start():]) if found else (text, "")


class Reader:
    """One client that reads one answer from routers that may die: from each but the first it asks for
    what follows the last whole event. Only a router that died, or that was told to stop, is left; nothing
    else is forgiven."""

    def __init__(self, routers, source, body):
        self.routers, self.source, self.body = routers, source, body
        self.text, self.last_id = "", None
        self.lost_routers, self.resumed = 0, 0

    def read(self):
        """Canonical lines of the joined text. Errors: ConnectionFailed, CanonicalError, OSError."""
        last = None
        while not self._read_from(last := self._choose(last)):
            self.lost_routers += 1
            if self.lost_routers > MOST_ROUTERS:
                raise ConnectionFailed(f"{self.lost_routers} routers died under it")
        names = {(chunk["id"], chunk["created"]) for chunk in map(json.loads, self._data())}
        if len(names) != 1:
            raise CanonicalError(f"the parts have different names: {names}")
        return canonical(self.text)

    def _data(self):
        lines = [line[6:] for line in self.text.splitlines() if line.startswith("data: ")]
        return [line for line in lines if line != "[DONE]"]

    def _choose(self, last):
        up = [router for router in self.routers if router.up]
        return self.source.choice([router for router in up if router is not last] or up or self.routers)

    def _read_from(self, router):
        """True when the answer is whole, False when the router died or is leaving."""
        generation, stream, problem = router.generation, None, "cut"
        if self.last_id:
            self.resumed += 1
        try:
            stream = Client(router.address, timeout_s=STREAM_TIMEOUT_S).stream(
                path_of(self.body), self.body, self.last_id)
            stream.read_all()
        except (ConnectionFailed, OSError) as error:
            problem = str(error)
        if stream is not None:
            if stream.status == 503 and router.is_leaving(generation):
                return False
            if stream.status != 200:
                raise ConnectionFailed(f"{router.name}: status {stream.status}: {stream.text.strip()[:300]}")
            events, error = split_at_error(stream.whole)
            self.text += events
            self.last_id = stream.last_id or self.last_id
            if stream.done:
                return True
            if error and router.is_leaving(generation):
                return False  # its drain ended before the answer
            if error:
                raise ConnectionFailed(f"{router.name}: an error event: {error[-300:]}")
        if not router.died_since(generation):
            raise ConnectionFailed(f"{router.name} lives: {problem}")
        return False


def first_difference(mine, other):
    for ours, theirs in zip(mine, other):
        if ours != theirs:
            return f"got {ours!r}, the single node has {theirs!r}"
    return f"{len(mine)} lines instead of {len(other)}"


class Load:
    """Threads that ask without a break until stop(); pause() ends with nothing under way."""

    def __init__(self, routers, bodies, references, clients, seed):
        self.routers, self.bodies, self.references = routers, bodies, references
        self.go = threading.Event()
        self.ended = False
        self.lock = threading.Lock()
        self.kills = 0  # of nodes, so far; counted by who kills
        self.under_way = {}  # thread -> kills when its request began
        self.requests, self.lost, self.different = 0, [], []
        self.lost_routers, self.resumed = 0, 0  # by all requests
        self.threads = [threading.Thread(target=self._work, args=(random.Random(f"{seed}/{index}"),), daemon=True)
                        for index in range(clients)]

    def start(self):
        self.go.set()
        for thread in self.threads:
            thread.start()

    def _work(self, source):
        while True:
            self.go.wait()
            with self.lock:
                if self.ended:
                    return
                if not self.go.is_set():
                    continue
                self.under_way[threading.get_ident()] = self.kills
            try:
                self._one(source)
            finally:
                with self.lock:
                    del self.under_way[threading.get_ident()]

    def _one(self, source):
        index = source.randrange(len(self.bodies))
        body = self.bodies[index]
        if source.random() < 0.6:  # cold; else the prefix caches may help
            body = dict(body, cache_salt=f"{source.randrange(1 << 60)}")
        began = time.monotonic()
        problem = lines = None
        reader = Reader(self.routers, source, body)
        try:
            lines = reader.read()
        except (ConnectionFailed, CanonicalError, OSError, ValueError) as error:
            problem = f"request {index} after {time.monotonic() - began:.1f} s: {error}"
        with self.lock:
            self.requests += 1
            self.lost_routers += reader.lost_routers
            self.resumed += reader.resumed
            if problem:
                self.lost.append(problem)
            elif lines != self.references[index]:
                self.different.append(f"request {index}: {first_difference(lines, self.references[index])}")

    def most_kills_seen(self):
        """By one of the requests under way."""
        with self.lock:
            return self.kills - min(self.under_way.values(), default=self.kills)

    def pause(self, timeout_s):
        """True once nothing is under way; the answers that were have been compared."""
        self.go.clear()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self.lock:
                if not self.under_way:
                    return True
            time.sleep(0.02)
        return False

    def resume(self):
        self.go.set()

    def stop(self):
        with self.lock:
            self.ended = True
        self.go.set()
        for thread in self.threads:
            thread.join(STREAM_TIMEOUT_S)
