"""A small HTTP client: whole answers, server-sent events as they come, and abrupt departure."""
import http.client
import json
import socket
import time

from .canonical import canonical, parse_sse


class ConnectionFailed(Exception):
    """Nobody listens, or the connection broke before an answer was whole."""


class Response:
    def __init__(self, status, headers, text):
        self.status = status
        self.headers = headers  # case-insensitive mapping
        self.text = text

    def json(self):
        return json.loads(self.text)

    def error(self):
        """The `error` object of OpenAI's error body."""
        return self.json()["error"]


class Stream:
    """One streamed answer. Iterating gives the JSON bodies as they arrive; what came stays in
    `text`, and `times` has the arrival of each body (seconds since the request was sent). `whole` is
    the part of the text that whole events have, and `last_id` the id of the last of them: from there
    the answer can be resumed."""

    def __init__(self, connection, response, begin):
        self.connection = connection
        self.response = response
        self.status = response.status
        self.headers = response.headers
        self.begin = begin
        self.text = ""
        self.times = []
        self.done = False  # [DONE] was seen
        self.whole = ""
        self.last_id = None

    def __iter__(self):
        event_id = None
        while True:
            try:
                line = self.response.readline()
            except (OSError, http.client.HTTPException) as error:
                raise ConnectionFailed(f"stream broke: {error}") from error
            if not line:
                self.close()
                return
            self.text += line.decode(errors="replace")
            if not line.endswith(b"\n"):
                continue  # an error's body, or the connection broke within it
            if line == b"\n":
                self.whole = self.text
                self.last_id = event_id or self.last_id
            elif line.startswith(b"id:"):
                event_id = line[3:].strip().decode()
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                self.done = True
            elif data:
                self.times.append(time.monotonic() - self.begin)
                yield json.loads(data)

    def read_all(self):
        for _ in self:
            pass
        return self

    def error(self):
        """The `error` object if the stream ended with one."""
        bodies = parse_sse(self.text) if self.done else [
            json.loads(line[5:]) for line in self.text.splitlines()
            if line.startswith("data:") and line[5:].strip() not in ("", "[DONE]")
        ]
        return next((body["error"] for body in bodies if "error" in body), None)

    def canonical(self):
        return canonical(self.text)

    def close(self):
        """Leaves at once, as a client that was killed does."""
        if self.connection.sock is not None:
            try:
                self.connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        self.response.close()
        self.connection.close()


class Client:
    """`tls`: an ssl.SSLContext for HTTPS."""

    def __init__(self, address, key=None, timeout_s=120, tls=None):
        self.host, port = address.rsplit(":", 1)
        self.port = int(port)
        self.key = key
        self.timeout_s = timeout_s
        self.tls = tls

    def _connection(self):
        if self.tls is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        return http.client.HTTPSConnection(self.host, self.port, timeout=self.timeout_s,
                                           context=self.tls)

    def _send(self, method, path, body, headers):
        connection = self._connection()
        sent = {"Content-Type": "application/json"} if body is not None else {}
        if self.key is not None:
            sent["Authorization"] = f"Bearer {self.key}"
        sent.update(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if isinstance(body, str):
            body = body.encode()
        try:
            connection.request(method, path, body, sent)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise ConnectionFailed(f"{method} {path}: {error}") from error

    def request(self, method, path, body=None, headers=None):
        connection, response = self._send(method, path, body, headers)
        try:
            text = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailed(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        return Response(response.status, response.headers, text)

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        return self.request("POST", path, body, headers)

    def stream(self, path, body, last_event_id=None):
        """Sends the request with `stream` on, to go on after the event of that id. An error status is
        in `.status`, its body in `.text` after read_all()."""
        begin = time.monotonic()
        body = dict(body, stream=True)
        headers = {"Last-Event-ID": last_event_id} if last_event_id is not None else None
        connection, response = self._send("POST", path, body, headers)
        return Stream(connection, response, begin)
