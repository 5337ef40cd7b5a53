"""One etcd process with a data folder of its own, and its keys by the JSON gateway that baton speaks."""
import base64
import json
import pathlib
import shutil
import subprocess
import urllib.error
import urllib.request

from .cluster import LOOPBACK
from .node import die_with_parent, free_port, wait_until


class Etcd:
    def __init__(self, folder):
        """Data and log lie in `folder`. Errors: FileNotFoundError when etcd is not installed."""
        self.program = shutil.which("etcd")
        if self.program is None:
            raise FileNotFoundError("etcd is not installed: scripts/test installs it (scripts/packages.txt)")
        self.folder = pathlib.Path(folder)
        self.client_url = f"http://{LOOPBACK}:{free_port()}"
        self.peer_url = f"http://{LOOPBACK}:{free_port()}"
        self.process = None

    def start(self, timeout_s=60):
        argv = [self.program, "--name", "one", "--data-dir", self.folder / "data",
                "--listen-client-urls", self.client_url, "--advertise-client-urls", self.client_url,
                "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
                "--initial-cluster", f"one={self.peer_url}"]
        with open(self.folder / "etcd.log", "ab") as log:
            self.process = subprocess.Popen(list(map(str, argv)), stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, preexec_fn=die_with_parent)
        wait_until(self._answers, timeout_s, f"etcd answers; its log is in {self.folder}")
        return self

    def _answers(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"etcd exited with {self.process.returncode}; its log is in {self.folder}")
        try:
            self.keys("/")
            return True
        except (OSError, urllib.error.URLError):
            return False

    def kill(self):
        self.process.kill()
        self.process.wait(10)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def call(self, path, **body):
        request = urllib.request.Request(f"{self.client_url}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def keys(self, prefix):
        """Key -> parsed value, of all that begin with the prefix."""
        begin, end = prefix.encode(), prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])
        page = self.call("kv/range", key=_text(begin), range_end=_text(end))
        return {base64.b64decode(kv["key"]).decode(): json.loads(base64.b64decode(kv["value"]))
                for kv in page.get("kvs", [])}

    def delete(self, key):
        self.call("kv/deleterange", key=_text(key.encode()))


def _text(raw):
    return base64.b64encode(raw).decode()
