"""What the programs of this folder share: their flags, the folder of their logs, the cold references."""
import argparse
import os
import pathlib
import random
import shutil
import sys
import tempfile

from harness.case import KV_MEMORY
from harness.cluster import Single

from fleet import START_S
from load import STREAM_TIMEOUT_S, stream_lines

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Failed(Exception):
    """A process did what it must not; says what."""


def parser(description):
    model = pathlib.Path(os.environ.get("BATON_TEST_MODEL") or pathlib.Path(
        os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
        / "baton" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=None)
    made.add_argument("--clients", type=int, default=6)
    made.add_argument("--bodies", type=int, default=48, help="different requests")
    made.add_argument("--routers", type=int, default=2)
    made.add_argument("--kv-memory", default=KV_MEMORY, help="of each node; less makes them give way")
    made.add_argument("--binary", default=ROOT / "build" / "dev" / "bin" / "baton")
    made.add_argument("--model", default=model)
    made.add_argument("--keep-logs", action="store_true")
    return made


def run(arguments, name, work):
    """work(arguments, logs) is true when all went well. Returns the exit code; keeps the logs of a failure."""
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {arguments.seed}", flush=True)
    logs = tempfile.mkdtemp(prefix=f"baton-{name}-")
    good = False
    try:
        good = work(arguments, logs)
    finally:
        if good and not arguments.keep_logs:
            shutil.rmtree(logs, ignore_errors=True)
        else:
            print(f"logs are kept in {logs}", file=sys.stderr)
    return 0 if good else 1


def references(arguments, logs, bodies):
    """What a cold single node answers to each, asked one by one."""
    print(f"== {len(bodies)} requests answered by a cold single node", flush=True)
    single = Single(arguments.binary, arguments.model, logs, name="reference",
                    flags=["--kv-memory", KV_MEMORY, "--prefix-cache", "off"])
    single.start(START_S)
    try:
        return [stream_lines(single.front.client(timeout_s=STREAM_TIMEOUT_S), body) for body in bodies]
    finally:
        single.stop()


def check_books(fleet, load, leaked):
    """Stops the load until nothing runs, notes what is not free then, and lets it go on."""
    if not load.pause(STREAM_TIMEOUT_S):
        raise Failed("a stream neither ended nor failed")
    for line in fleet.leaks():
        print(f"LEAKED {line}", flush=True)
        leaked.append(line)
    load.resume()


def say_ends(load, codes):
    """Prints what went wrong; (lost, different)."""
    for name, code in codes.items():
        print(f"FAILED {name} ended with {code} when stopped", flush=True)
    for line in (load.lost + load.different if load else []):
        print(line)
    return (len(load.lost), len(load.different)) if load else (0, 0)
