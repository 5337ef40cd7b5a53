"""The load of the kill test: streams of many kinds, each compared with what a cold single node answered."""
import random
import threading
import time

from harness.canonical import CanonicalError
from harness.case import CHAT, COMPLETIONS, GREEDY, chat, completion, token_prompt
from harness.client import ConnectionFailed

STREAM_TIMEOUT_S = 120  # of silence; a stream that hangs is a lost one
WORDS = ("lighthouse", "river", "copper", "winter", "garden", "engine", "harbour", "paper")


def make_bodies(source, count):
    """Requests whose answers depend on all that a replay must rebuild: greedy and seeded, penalties,
    filters, biases, stop strings, prompts of 1 to 600 tokens, 16 to 64 new ones."""
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
        body["stream_options"] = {"include_usage": True}
        bodies.append(body)
    return bodies


def stream_lines(client, body):
    """Canonical lines of a streamed answer. Errors: ConnectionFailed, CanonicalError, OSError."""
    stream = client.stream(CHAT if "messages" in body else COMPLETIONS, body)
    stream.read_all()
    if stream.status != 200:
        raise ConnectionFailed(f"status {stream.status}: {stream.text.strip()[:300]}")
    return stream.canonical()


def first_difference(mine, other):
    for ours, theirs in zip(mine, other):
        if ours != theirs:
            return f"got {ours!r}, the single node has {theirs!r}"
    return f"{len(mine)} lines instead of {len(other)}"


class Load:
    """Threads that ask without a break until stop(); pause() ends with nothing under way."""

    def __init__(self, fronts, bodies, references, clients, seed):
        self.fronts, self.bodies, self.references = fronts, bodies, references
        self.go = threading.Event()
        self.ended = False
        self.lock = threading.Lock()
        self.kills = 0  # so far; counted by who kills
        self.under_way = {}  # thread -> kills when its request began
        self.requests, self.lost, self.different = 0, [], []
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
        front = source.choice(self.fronts)
        body = self.bodies[index]
        if source.random() < 0.6:  # cold; else the prefix caches may help
            body = dict(body, cache_salt=f"{source.randrange(1 << 60)}")
        began = time.monotonic()
        problem = lines = None
        try:
            lines = stream_lines(front.client(timeout_s=STREAM_TIMEOUT_S), body)
        except (ConnectionFailed, CanonicalError, OSError, ValueError) as error:
            problem = f"request {index} after {time.monotonic() - began:.1f} s: {error}"
        with self.lock:
            self.requests += 1
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
