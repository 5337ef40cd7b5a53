"""What the scripts that measure servers share: `baton bench serve` as a function, the nodes, and what
the machine did besides."""
from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from harness.cluster import Cluster, Single  # noqa: E402,F401  (for those who import this)

DEFAULT_MODEL = (pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
                 / "baton" / "SmolLM2-135M-Instruct.Q4_1.gguf")


def add_arguments(parser, kv_memory: str) -> None:
    parser.add_argument("--binary", type=pathlib.Path, default=ROOT / "build/release/bin/baton")
    parser.add_argument("--model", type=pathlib.Path, default=DEFAULT_MODEL)
    parser.add_argument("--kv-memory", default=kv_memory, help="of each node")
    cpus = sorted(os.sched_getaffinity(0))
    first_two = f"{1 << cpus[0]:x},{1 << cpus[1 % len(cpus)]:x}"
    parser.add_argument("--masks", default=first_two,
                        help=f"CPU masks (hex) of prefill and decode node, default {first_two}")
    parser.add_argument("--json", type=pathlib.Path, help="file for everything measured")


class Bench:
    """One run of `baton bench serve`, begun; result() waits for it."""

    def __init__(self, binary, address, *flags):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("BATON_")}
        self.folder = tempfile.TemporaryDirectory(prefix="baton-bench-")
        self.saved = pathlib.Path(self.folder.name) / "result.json"
        argv = [binary, "bench", "serve", "--base-url", f"http://{address}", "--ignore-eos",
                "--save-result", self.saved, *flags]
        self.argv = [str(word) for word in argv]
        self.process = subprocess.Popen(self.argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, env=environment)

    def result(self) -> dict:
        """Errors: SystemExit with what the program said, also when a request failed."""
        out, _ = self.process.communicate()
        result = json.loads(self.saved.read_text()) if self.saved.exists() else {}
        self.folder.cleanup()
        if self.process.returncode != 0 or result.get("failed") != 0:
            raise SystemExit(f"{' '.join(self.argv)}\n{out}")
        return result


def bench_serve(binary, address, *flags) -> dict:
    return Bench(binary, address, *flags).result()


def split_flags(options) -> dict:
    """For Cluster: one thread and one core for each node, the router wherever there is room."""
    prefill, decode = options.masks.split(",")
    return {"prefill_flags": ["-t", 1, "--cpu-mask", prefill],
            "decode_flags": ["-t", 1, "--cpu-mask", decode],
            "flags": ["--kv-memory", options.kv_memory, "--kv-touch", "auto"]}


def busy_share(seconds: float) -> float:
    """Share of all cores' time that somebody used within the next seconds."""
    def read():
        fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]
    total, idle = read()
    time.sleep(seconds)
    total_after, idle_after = read()
    return 1 - (idle_after - idle) / max(total_after - total, 1)


def machine(options) -> dict:
    """What a table needs to be read: which tree, which machine, and how busy others kept it."""
    commit = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7"],
                            capture_output=True, text=True).stdout.strip()
    cpu = next((line.split(":", 1)[1].strip() for line in
                pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    return {"commit": commit, "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "cpu": cpu, "cores": len(os.sched_getaffinity(0)), "model": options.model.name,
            "binary": str(options.binary), "load_before": os.getloadavg()[0],
            "busy_before": busy_share(2.0)}


def machine_line(about: dict) -> str:
    return (f"{about['model']} on {about['cpu']}, {about['cores']} cores, commit {about['commit']}, "
            f"{about['date']}; before the first request others used {about['busy_before']:.0%} of the "
            f"cores (load {about['load_before']:.1f})")


def percentile(values: list[float], percent: float) -> float:
    ascending = sorted(values)
    rank = percent / 100 * (len(ascending) - 1)
    below = int(rank)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (ascending[above] - ascending[below]) * (rank - below)
