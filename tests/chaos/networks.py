"""A network for each process of a test, joined by one bridge, so that a cable can be pulled: what a node that
is cut off has said or would say is lost without a word, as when its machine loses power. Linux, root, iproute2."""
import ctypes
import os
import shutil
import subprocess

from harness.node import die_with_parent, wait_until

CLONE_NEWNET = 0x40000000  # of <sched.h>; os.unshare and os.setns are newer than the Python of Debian 12
SUBNET = "10.77.0"
_libc = ctypes.CDLL(None, use_errno=True)


def why_not():
    """Why this machine or user cannot have such networks; empty when it can."""
    if not shutil.which("ip") or not shutil.which("unshare") or not shutil.which("nsenter"):
        return "iproute2 or util-linux is missing"
    tried = subprocess.run(["unshare", "--net", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"],
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


def _run(*argv):
    subprocess.run([str(each) for each in argv], check=True)


def _enter(namespace):
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        os._exit(1)  # between fork and exec: nothing may be raised


class Networks:
    """Moves this process into a network of its own, which has a bridge; to be made before any thread. Nothing
    of it outlives this process. rate: what each network sends at most, as tc takes it ("300mbit").
    Errors: SystemExit where the machine does not allow it."""

    def __init__(self, rate=""):
        self.rate = rate
        reason = why_not()
        if reason:
            raise SystemExit(f"--namespaces: {reason}; it needs root")
        if _libc.unshare(CLONE_NEWNET) != 0:
            raise SystemExit(f"--namespaces: {os.strerror(ctypes.get_errno())}; be root")
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "bridge0", "type", "bridge")
        _run("ip", "address", "add", f"{SUBNET}.254/24", "dev", "bridge0")
        _run("ip", "link", "set", "bridge0", "up")
        self.namespaces = {}  # name -> descriptor, which keeps the network alive between two processes

    def add(self, name):
        """A network with an address of its own. Returns the address."""
        address = f"{SUBNET}.{len(self.namespaces) + 1}"
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=die_with_parent)
        try:
            ours, path = os.readlink("/proc/self/ns/net"), f"/proc/{holder.pid}/ns/net"
            wait_until(lambda: os.readlink(path) != ours, 10, f"{name} has a network")
            _run("ip", "link", "add", self._cable(name), "type", "veth", "peer", "name", "eth0", "netns", holder.pid)
            _run("ip", "link", "set", self._cable(name), "master", "bridge0", "up")
            inside = ["nsenter", f"--net={path}"]
            _run(*inside, "ip", "link", "set", "lo", "up")
            _run(*inside, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            _run(*inside, "ip", "link", "set", "eth0", "up")
            if self.rate:
                _run(*inside, "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", self.rate,
                     "burst", "256kb", "latency", "400ms")
            self.namespaces[name] = os.open(path, os.O_RDONLY)
        finally:
            holder.kill()
            holder.wait()
        return address

    def entering(self, name):
        """For Node.prepare: the process starts in that network."""
        return lambda: _enter(self.namespaces[name])

    def cut(self, name):
        _run("ip", "link", "set", self._cable(name), "down")

    def mend(self, name):
        _run("ip", "link", "set", self._cable(name), "up")

    @staticmethod
    def _cable(name):
        return f"cable-{name}"
