"""A load whose clients behave as clients do: most read what they asked for, others cancel in the middle,
vanish before the answer, read slowly, or send what is no request."""
import json
import socket
import time

from harness.canonical import CanonicalError, canonical
from harness.case import CHAT, COMPLETIONS, path_of
from harness.client import Client, ConnectionFailed

from load import STREAM_TIMEOUT_S, Load, first_difference

SLOW_EVENTS, SLOW_S = 20, 0.05  # a slow reader waits so long before each of its first events
# (share, what) in order; the rest reads as everybody should.
ROUGH = ((0.15, "cancel"), (0.25, "vanish"), (0.35, "slow"), (0.50, "bad"))
BAD = [
    (COMPLETIONS, '{"prompt": "x", "max_tokens": -1}'),
    (COMPLETIONS, '{"prompt": [99999999], "max_tokens": 4}'),
    (COMPLETIONS, '{"prompt": "x", "logit_bias": {"x": 1}}'),
    (COMPLETIONS, '{"prompt": '),
    (COMPLETIONS, "[" * 5000),
    (CHAT, '{"messages": []}'),
    (CHAT, '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}'),
    (CHAT, '{"messages": 7}'),
    (COMPLETIONS, json.dumps({"prompt": [100] * 20_000, "max_tokens": 4})),
]


class RoughLoad(Load):
    """The numbers of what was done beside `requests`: `cancelled` by their client, `refused` as they must."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.cancelled = self.refused = 0

    def counts(self):
        return f"requests={self.requests} cancelled={self.cancelled} refused={self.refused}"

    def _one(self, source):
        drawn = source.random()
        what = next((what for share, what in ROUGH if drawn < share), None)
        if what is None:
            super()._one(source)
            return
        router = source.choice(self.routers)
        try:
            problem = getattr(self, f"_{what}")(source, router)
        except (ConnectionFailed, CanonicalError, OSError, ValueError) as error:
            problem = f"{what} at {router.name}: {error}"
        with self.lock:
            self.requests += 1
            self.cancelled += what in ("cancel", "vanish")
            self.refused += what == "bad"
            if problem:
                self.lost.append(problem)

    def _body(self, source):
        index = source.randrange(len(self.bodies))
        return index, dict(self.bodies[index], cache_salt=f"{source.randrange(1 << 60)}")

    def _cancel(self, source, router):
        """After some events; the whole answer may have come by then."""
        _, body = self._body(source)
        stream = Client(router.address, timeout_s=STREAM_TIMEOUT_S).stream(path_of(body), body)
        if stream.status != 200:
            return f"cancel: status {stream.status}: {stream.read_all().text[:200]}"
        left = source.randint(1, 12)
        for _ in stream:
            left -= 1
            if left == 0:
                break
        stream.close()
        return None

    def _vanish(self, source, router):
        """The request is sent, or a part of it, and the connection is gone before anything comes back."""
        _, body = self._body(source)
        data = json.dumps(dict(body, stream=True)).encode()
        head = (f"POST {path_of(body)} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n\r\n").encode()
        sent = (head + data)[:source.choice([len(head) + len(data), len(head) + len(data) // 2, len(head) // 2])]
        host, port = router.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=STREAM_TIMEOUT_S) as connection:
            connection.sendall(sent)
            time.sleep(source.uniform(0, 0.3))

    def _slow(self, source, router):
        index, body = self._body(source)
        stream = Client(router.address, timeout_s=STREAM_TIMEOUT_S).stream(path_of(body), body)
        for number, _ in enumerate(stream):
            if number < SLOW_EVENTS:
                time.sleep(SLOW_S)
        if stream.status != 200 or not stream.done:
            return f"slow: status {stream.status}: {stream.text[-300:]}"
        lines = canonical(stream.text)
        if lines != self.references[index]:
            with self.lock:
                self.different.append(f"slow request {index}: {first_difference(lines, self.references[index])}")
        return None

    def _bad(self, source, router):
        path, text = source.choice(BAD)
        response = Client(router.address, timeout_s=STREAM_TIMEOUT_S).post(path, text)
        if not 400 <= response.status < 500 or response.status == 429:
            return f"bad: {text[:60]} got {response.status}: {response.text[:200]}"
        return None
