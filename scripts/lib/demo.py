#!/usr/bin/env python3
"""The demo's client side: starts the nodes, asks the questions, compares, prints the table.

Called by scripts/demo, which has built the program and fetched the model. Everything that is shown
is measured here, from outside the processes: times at the socket, bytes from the answers and from
/metrics. Exit code 0 only if every answer is identical to the single node's.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from harness.canonical import CanonicalError  # noqa: E402
from harness.client import ConnectionFailed  # noqa: E402
from harness.cluster import Cluster, Single  # noqa: E402
from harness.metrics import expected_kv_bytes, scrape  # noqa: E402
from harness.node import NodeFailed  # noqa: E402

CHAT = "/v1/chat/completions"
LONG_PROMPT_TOKENS = 1500  # the long questions must have at least this many
SEEDED = {"temperature": 0.8, "top_p": 0.95, "seed": 42}
GREEDY = {"temperature": 0}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Question:
    """One request and what came of it. Filled by the thread that asks it."""

    def __init__(self, label, text, sampling, max_tokens, long=False):
        self.label = label
        self.long = long
        self.body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "logprobs": True,
            "return_token_ids": True,
            "stream_options": {"include_usage": True},
            # No prefix is shared with another question: all of its KV must travel.
            "cache_salt": label,
            **sampling,
        }
        self.lines = None  # canonical form of the cluster's answer
        self.reference = None  # and of the single node's
        self.problem = None
        self.token_times = []  # arrival of each chunk that brought tokens
        self.served = {}  # the last `baton` object
        self.usage = {}

    def ask(self, node, show):
        """Streams the answer; show(text) gets each piece. Returns its canonical lines."""
        stream = node.client(timeout_s=120).stream(CHAT, self.body)
        if stream.status != 200:
            stream.read_all()
            raise ConnectionFailed(f"status {stream.status}: {stream.text.strip()}")
        times, served, usage = [], {}, {}
        for chunk in stream:
            served = chunk.get("baton") or served
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices") or []:
                if choice.get("token_ids"):
                    times.append(stream.times[-1])
                show((choice.get("delta") or {}).get("content") or "")
        self.token_times, self.served, self.usage = times, served, usage
        return stream.canonical()

    def kv_expected(self):
        return expected_kv_bytes(self.usage.get("prompt_tokens", 0))

    def identical(self):
        return self.problem is None and self.lines is not None and self.lines == self.reference

    def first_difference(self):
        if self.problem is not None:
            return self.problem
        for mine, other in zip(self.lines, self.reference):
            if mine != other:
                return f"cluster has `{mine}`, single node has `{other}`"
        return "one answer is longer"


def questions():
    """Four asked one after another, then four at once."""
    licence = (ROOT / "LICENSE").read_text()[:8400]
    summary = "Here is a text.\n\n" + licence + "\n\nSay in one sentence what it permits."
    conditions = "Read this:\n\n" + licence + "\n\nName one condition that it sets."
    alone = [
        Question("short, greedy", "What is the capital of France?", GREEDY, 32),
        Question("short, seeded", "Tell me a story about a lighthouse.", SEEDED, 48),
        Question("long, greedy", summary, GREEDY, 32, long=True),
        Question("long, seeded", conditions, SEEDED, 32, long=True),
    ]
    together = [
        Question("at once 1, greedy", "Why is the sky blue?", GREEDY, 48),
        Question("at once 2, seeded", "Invent a name for a boat.", SEEDED, 48),
        Question("at once 3, long", conditions, GREEDY, 24, long=True),
        Question("at once 4, seeded", "Give me advice for a walk.", dict(SEEDED, seed=7), 48),
    ]
    return alone, together


class Screen:
    """Pieces of several answers that arrive at once, a line at a time, each line with its label."""

    WIDTH = 76

    def __init__(self):
        self.lock = threading.Lock()

    def plain(self, piece):
        sys.stdout.write(piece)
        sys.stdout.flush()

    def labelled(self, label):
        kept = [""]

        def show(piece, end=False):
            kept[0] += piece
            while "\n" in kept[0] or len(kept[0]) > self.WIDTH or (end and kept[0]):
                line, _, rest = kept[0].partition("\n")
                if len(line) > self.WIDTH:
                    cut = line.rfind(" ", 1, self.WIDTH)
                    cut = cut if cut > 0 else self.WIDTH
                    line, rest = line[:cut], kept[0][cut:].lstrip(" ")
                kept[0] = rest
                if line.strip():
                    with self.lock:
                        print(f"  [{label}] {line}", flush=True)

        return show


def run_question(question, node, show):
    try:
        question.lines = question.ask(node, show)
    except (ConnectionFailed, CanonicalError, ValueError, OSError) as error:
        question.problem = f"cluster: {error}"


def ask_cluster(front, alone, together):
    screen = Screen()
    for question in alone:
        text = question.body["messages"][0]["content"]
        shown = text if len(text) < 70 else text[-60:].split("\n")[-1] + f"  (after {len(text)} characters)"
        print(f"\n> {question.label}: {shown}")
        run_question(question, front, screen.plain)
        print()
    print("\n> four at once:")
    threads = []
    for question in together:
        show = screen.labelled(question.label.split(",")[0])
        print(f"  [{question.label}]")

        def work(question=question, show=show):
            run_question(question, front, show)
            show("", end=True)

        threads.append(threading.Thread(target=work))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def ask_reference(node, asked):
    """One by one, alone on a node that knows nothing of the others."""
    print("== the single node answers the same questions:", end="", flush=True)
    for number, question in enumerate(asked, 1):
        print(f" {number}", end="", flush=True)
        kept = (question.token_times, question.served, question.usage)
        try:
            question.reference = question.ask(node, lambda piece: None)
        except (ConnectionFailed, CanonicalError, ValueError, OSError) as error:
            question.problem = question.problem or f"single node: {error}"
        if kept[0]:  # the table shows the cluster's times
            question.token_times, question.served, question.usage = kept
    print()


def check(question):
    """What must hold besides identity: the answer really took the split path, with all its KV."""
    if question.problem:
        return
    if question.served.get("path") != "split":
        question.problem = f"path is {question.served.get('path')!r}, expected 'split'"
    elif question.served.get("kv_bytes") != question.kv_expected():
        question.problem = (
            f"KV bytes: {question.served.get('kv_bytes')} received, {question.kv_expected()} expected"
        )
    elif question.long and question.usage["prompt_tokens"] < LONG_PROMPT_TOKENS:
        question.problem = f"the long prompt has only {question.usage['prompt_tokens']} tokens"


def milliseconds(seconds):
    return f"{seconds * 1000:.1f}"


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def row(question):
    times = question.token_times
    gaps = [later - earlier for earlier, later in zip(times[1:], times[2:])]
    exposed = "-"
    if gaps and len(times) > 1:
        exposed = milliseconds(max(0.0, times[1] - times[0] - statistics.median(gaps)))
    return [
        question.label,
        "yes" if question.identical() else "NO",
        str(question.usage.get("prompt_tokens", "-")),
        str(question.usage.get("completion_tokens", "-")),
        milliseconds(times[0]) if times else "-",
        milliseconds(times[1]) if len(times) > 1 else "-",
        milliseconds(statistics.median(gaps)) if gaps else "-",
        milliseconds(percentile(gaps, 0.99)) if gaps else "-",
        str(question.kv_expected()),
        str(question.served.get("kv_bytes", "-")),
        exposed,
    ]


def print_table(asked):
    head = ["question", "identical", "prompt", "tokens", "TTFT", "TTST", "p50", "p99",
            "KV expected", "KV received", "transfer"]
    rows = [head] + [row(question) for question in asked]
    widths = [max(len(line[column]) for line in rows) for column in range(len(head))]
    print()
    for number, line in enumerate(rows):
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join(cells))
        if number == 0:
            print("-" * (sum(widths) + 2 * (len(widths) - 1)))
    print(
        "\nTimes in ms at the client: first token (made by the prefill node), second token (made by\n"
        "the decode node), gaps between later ones. KV in bytes. transfer: what the handoff added\n"
        "before the second token, i.e. TTST - TTFT - p50."
    )


def print_counters(cluster, asked):
    """The nodes' own books: who computed prompts, who made tokens, what crossed the wire."""
    prefill = scrape(cluster.prefill[0])
    decode = scrape(cluster.decode[0])
    print(
        f"prefill node: {prefill.sum('baton_prompt_tokens_computed_total'):.0f} prompt tokens computed, "
        f"{prefill.sum('baton_tokens_generated_total'):.0f} tokens made for {len(asked)} answers\n"
        f"decode node:  {decode.sum('baton_prompt_tokens_computed_total'):.0f} prompt tokens computed, "
        f"{decode.sum('baton_tokens_generated_total'):.0f} tokens made, "
        f"{decode.sum('baton_handoff_bytes_total'):.0f} KV bytes over the wire "
        f"({sum(question.kv_expected() for question in asked)} expected)"
    )


def demo(arguments, logs, started):
    print("== starting a decode node, a prefill node, a router, and a single node as the reference")
    cluster = Cluster(arguments.binary, arguments.model, logs, name="demo")
    started.append(cluster)
    cluster.start()
    single = Single(arguments.binary, arguments.model, logs, name="demo-single")
    started.append(single)
    single.start()
    for node in cluster.nodes + single.nodes:
        print(f"   {node.name:15} pid {node.process.pid:<7} http {node.http}  nodes {node.serving or '-'}")
    alone, together = questions()
    asked = alone + together
    ask_cluster(cluster.front, alone, together)
    ask_reference(single.node, asked)
    for question in asked:
        check(question)
    print_table(asked)
    print_counters(cluster, asked)
    for question in asked:
        if not question.identical():
            print(f"DIFFERENT {question.label}: {question.first_difference()}")
    same = sum(question.identical() for question in asked)
    return same, len(asked)


def serve(arguments):
    """Starts the cluster, leaves it up and says how to talk to it and how to end it."""
    state = pathlib.Path(arguments.state)
    if any(alive(pid) for pid in read_pids(state)):
        print(f"a cluster of an earlier --serve is still up at {read_front(state)}: scripts/demo --stop ends it",
              file=sys.stderr)
        return 1
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    cluster = Cluster(arguments.binary, arguments.model, state, name="demo", stay=True).start()
    (state / "pids").write_text("".join(f"{node.process.pid}\n" for node in cluster.nodes))
    (state / "front").write_text(f"http://{cluster.front.http}/")
    for node in cluster.nodes:
        print(f"   {node.name:15} pid {node.process.pid:<7} http {node.http}  nodes {node.serving or '-'}")
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 64, "temperature": 0, "stream": True}
    print(f"\nlogs in {state}; scripts/demo --stop ends the cluster and removes them.\n\n"
          f"Watch it and chat with it in a browser: http://{cluster.front.http}/\n\nOr ask it:\n")
    print(f"curl -N http://{cluster.front.http}{CHAT} -H 'Content-Type: application/json' "
          f"-d '{json.dumps(body)}'")
    return 0


def read_front(state):
    try:
        return (state / "front").read_text()
    except OSError:
        return "an address that is not known"


def read_pids(state):
    try:
        return [int(line) for line in (state / "pids").read_text().split()]
    except OSError:
        return []


def alive(pid):
    """Ours and not a zombie: the pid may have been given to somebody else meanwhile."""
    try:
        command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return len(command) > 1 and command[0].endswith(b"baton") and command[1] == b"serve"


def stop(arguments):
    state = pathlib.Path(arguments.state)
    pids = [pid for pid in read_pids(state) if alive(pid)]
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in filter(alive, pids):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(state, ignore_errors=True)
    print(f"stopped {len(pids)} processes")
    return 0


def run_demo(arguments):
    begin = time.monotonic()
    logs = tempfile.mkdtemp(prefix="baton-demo-")
    started = []
    keep_logs = True
    try:
        same, asked = demo(arguments, logs, started)
        keep_logs = same != asked
    except NodeFailed as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted: stopping the nodes", file=sys.stderr)
        keep_logs = False
        return 130
    finally:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C must not leave nodes behind
        for nodes in started:
            nodes.stop()
        if keep_logs:
            print(f"logs are kept in {logs}", file=sys.stderr)
        else:
            shutil.rmtree(logs, ignore_errors=True)
    print(f"demo took {time.monotonic() - begin:.0f} s; nothing is left running")
    print(f"RESULT {'identical' if same == asked else 'DIFFERENT'} {same}/{asked}")
    return 0 if same == asked else 1


def interrupt(number, frame):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--state", required=True, help="folder of --serve: logs and pids")
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--stop", action="store_true")
    arguments = parser.parse_args()
    for number in SIGNALS:
        signal.signal(number, interrupt)
    if arguments.stop:
        return stop(arguments)
    return serve(arguments) if arguments.serve else run_demo(arguments)


if __name__ == "__main__":
    sys.exit(main())
