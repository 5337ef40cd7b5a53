"""One baton process: start it, wait until it listens or is ready, stop it, read its log."""
import ctypes
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import time

from .client import Client, ConnectionFailed

PR_SET_PDEATHSIG = 1
POLL_S = 0.02


class NodeFailed(Exception):
    """A process ended or stayed silent where it should have worked; carries the end of its log."""


def wait_until(condition, timeout_s, what):
    """Polls until condition() is true and returns its value. Errors: TimeoutError naming `what`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(POLL_S)


def free_port():
    """A port that is free now, for the cases where an address must be known before its process. Not one of those
    that the system gives to whoever asks for port 0 meanwhile."""
    given = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest = 10_000
    while True:
        port = random.randrange(lowest, given) if given > 2 * lowest else 0  # where nothing is kept back: any
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return probe.getsockname()[1]
            except OSError:
                continue


def die_with_parent():
    # Nothing is left running even if this process is killed hard. Must not raise: runs after fork.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Node:
    """`name` names the log files. `flags` are those of `baton serve`, without addresses for HTTP."""

    common_variables = {}  # BATON_* variables that every node is given beside its flags

    def __init__(self, binary, name, flags, log_folder, stay=False):
        self.name = name
        self.argv = [str(binary), "serve"] + [str(flag) for flag in flags]
        self.out_path = pathlib.Path(log_folder) / f"{name}.out"
        self.log_path = pathlib.Path(log_folder) / f"{name}.log"
        self.stay = stay  # outlive this process (scripts/demo --serve)
        self.process = None
        self.killed = False  # by kill(): its exit code means nothing
        self.http = None  # HOST:PORT once listening, if it serves HTTP
        self.serving = None  # HOST:PORT of the node protocol, likewise
        self.tls = None  # ssl.SSLContext of clients, for a node that serves HTTPS
        self.variables = {}  # and those that it alone is given, any of the environment
        self.prepare = None  # what its process does before it becomes baton; it runs after fork and must not raise

    def start(self):
        # Flags only: each flag also has a BATON_* variable, and one of the user's must not get in.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
        environment["BATON_KV_TOUCH"] = "off"  # hundreds of nodes start here, and use little of their pools
        environment.update({**self.common_variables, **self.variables})
        with open(self.out_path, "wb") as out, open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us alone; we stop the nodes in order
                preexec_fn=None if self.stay else self._prepare,
            )
        return self

    def _prepare(self):
        die_with_parent()
        if self.prepare is not None:
            self.prepare()

    def wait_listening(self, timeout_s=120):
        """Reads the line `listening http=HOST:PORT serving=HOST:PORT` that baton prints."""

        def line():
            if self.process.poll() is not None:
                raise NodeFailed(f"{self.name} exited with {self.process.returncode}\n{self.tail()}")
            return re.search(r"^listening\b.*$", self.out_path.read_text(errors="replace"), re.M)

        found = wait_until(line, timeout_s, f"{self.name} listens\n{self.tail()}").group()
        fields = dict(re.findall(r"(\w+)=(\S+)", found))
        self.http = fields.get("http") or fields.get("https")
        self.serving = fields.get("serving")
        return self

    def wait_ready(self, timeout_s=120):
        def ready():
            if self.process.poll() is not None:
                raise NodeFailed(f"{self.name} exited with {self.process.returncode}\n{self.tail()}")
            return self.ready_status() == 200

        try:
            wait_until(ready, timeout_s, f"{self.name} is ready")
        except TimeoutError as error:
            raise NodeFailed(f"{error}\n{self.tail()}") from error
        return self

    def ready_status(self):
        """Status of /ready; 0 while nobody answers."""
        try:
            return self.client(timeout_s=10).get("/ready").status
        except ConnectionFailed:
            return 0

    def client(self, key=None, timeout_s=120):
        return Client(self.http, key=key, timeout_s=timeout_s, tls=self.tls)

    def running(self):
        return self.process is not None and self.process.poll() is None

    def signal(self, number):
        if self.running():
            self.process.send_signal(number)

    def wait_exit(self, timeout_s):
        """Exit code. Errors: TimeoutError."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"{self.name} did not exit within {timeout_s:g} s") from error

    def stop(self, timeout_s=10):
        """SIGTERM, then SIGKILL after the timeout. Safe in any state; returns the exit code, which
        is 0 for a node that was not killed by kill()."""
        if self.process is None or self.killed:
            return 0
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            print(f"{self.name} ignored SIGTERM for {timeout_s} s: killed", file=sys.stderr)
            self.kill()
            return self.process.returncode

    def kill(self):
        self.killed = True
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def log(self):
        parts = [path.read_text(errors="replace") for path in (self.out_path, self.log_path)]
        return "\n".join(parts)

    def tail(self, lines=25):
        shown = self.log().splitlines()[-lines:]
        return f"--- {self.name}: {' '.join(self.argv)}\n" + "\n".join(shown)
