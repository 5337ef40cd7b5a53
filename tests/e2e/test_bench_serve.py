"""`baton bench serve`, the scripts that measure with it, and `baton bench handoff`, against real nodes: what
they count is what the nodes did. No times are judged."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from harness.case import CONTEXT, E2eCase, Settings, make_single, pair, patient, single
from harness.metrics import expected_kv_bytes, scrape
from harness.node import free_port, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRACE = ROOT / "tests/fixtures/traces/mooncake_conversation_excerpt.jsonl"
TILE = 32


class Ran:
    def __init__(self, done, saved):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.saved = json.loads(saved.read_text()) if saved.exists() else None


def bench(address, *flags, key=None, save_to=None):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("BATON_") and name != "OPENAI_API_KEY"}
    if key is not None:
        environment["OPENAI_API_KEY"] = key
    with tempfile.TemporaryDirectory() as folder:
        saved = pathlib.Path(folder) / "result.json"
        argv = [Settings.binary, "bench", "serve", "--base-url", f"http://{address}",
                "--save-result", save_to or saved, *flags]
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True,
                              env=environment, timeout=patient(120))
        return Ran(done, saved)


def generated(nodes):
    return sum(scrape(node).sum("baton_tokens_generated_total") for node in nodes.engines)


def shared_blocks(one, other):
    count = 0
    for mine, theirs in zip(one["hash_ids"], other["hash_ids"]):
        if mine != theirs:
            break
        count += 1
    return count


class BenchServeTest(E2eCase):
    def test_what_is_counted_is_what_was_done(self):
        tokens = []
        for nodes in self.single_and_pair():
            before = generated(nodes)
            ran = bench(nodes.front.http, "--num-prompts", 6, "--random-input-len", 70,
                        "--random-output-len", 9, "--ignore-eos", "--request-rate", 50,
                        "--save-detailed", "--goodput", "e2el:1e9", "--seed", 11)
            self.assertEqual(ran.code, 0, ran.err + ran.out)
            self.assertEqual(ran.saved["failures"], {})
            self.assertEqual(ran.saved["completed"], 6)
            self.assertEqual(ran.saved["total_input_tokens"], 6 * 70)
            self.assertEqual(ran.saved["total_output_tokens"], 6 * 9)
            self.assertEqual(ran.saved["miscounted_answers"], 0)
            self.assertEqual(ran.saved["short_answers"], 0)
            self.assertEqual(ran.saved["request_goodput"], ran.saved["request_throughput"])
            self.assertEqual(generated(nodes) - before, 6 * 9)
            self.assertEqual([len(gaps) for gaps in ran.saved["itls"]], 6 * [8])
            for first, second, last in zip(*(ran.saved[name] for name in ("ttfts", "ttsts", "e2els"))):
                self.assertTrue(0 < first <= second <= last, (first, second, last))
            self.assertEqual(ran.saved["split_requests"], 6 if nodes is pair() else 0)
            for line in ("Successful requests:", "Mean TTFT (ms):", "P99 ITL (ms):",
                         "Total token throughput (tok/s):", "Max send lag (ms):"):
                self.assertIn(line, ran.out)
            tokens.append(ran.saved["token_ids"])
        self.assertEqual(tokens[0], tokens[1])  # the promise, seen by another client

    def test_a_trace_shares_the_prefixes_that_it_names(self):
        count, scale = 5, 0.07
        lines = [json.loads(line) for line in TRACE.read_text().splitlines()[:count]]
        ran = bench(pair().front.http, "--dataset-name", "trace", "--dataset-path", TRACE,
                    "--num-prompts", count, "--scale-lengths", scale, "--scale-time", 0,
                    "--max-concurrency", 1, "--ignore-eos", "--seed", 12)
        self.assertEqual(ran.code, 0, ran.err + ran.out)
        self.assertEqual(ran.saved["completed"], count, ran.out)
        self.assertEqual(ran.saved["input_lens"], [round(one["input_length"] * scale) for one in lines])
        self.assertEqual(ran.saved["output_lens"], [round(one["output_length"] * scale) for one in lines])
        expected = []
        for number, one in enumerate(lines):
            shared = [round(512 * shared_blocks(one, other) * scale) for other in lines[:number]]
            expected.append(max(shared, default=0) // TILE * TILE)
        self.assertGreater(sum(expected), 0)
        self.assertEqual(ran.saved["cached_lens"], expected)

    def test_chats_are_text(self):
        ran = bench(single().front.http, "--endpoint", "/v1/chat/completions", "--num-prompts", 2,
                    "--random-input-len", 20, "--random-output-len", 4, "--ignore-eos")
        self.assertEqual(ran.code, 0, ran.err + ran.out)
        self.assertEqual(ran.saved["total_output_tokens"], 8)
        self.assertGreaterEqual(ran.saved["total_input_tokens"], 40)

    def test_refused_requests_are_counted(self):
        ran = bench(single().front.http, "--num-prompts", 2, "--random-input-len", CONTEXT + 1)
        self.assertEqual(ran.code, 1, ran.out)  # none succeeded
        self.assertEqual(ran.saved["failures"]["http_400"]["count"], 2)
        self.assertIn(str(CONTEXT), ran.saved["failures"]["http_400"]["first"])
        self.assertIn("http_400:", ran.out)

    def test_mistakes_name_their_flag(self):
        http = single().front.http
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as bad:
            bad.write(TRACE.read_text().splitlines()[0] + '\n{"timestamp": 1}\n')
            bad.flush()
            cases = (
                (("--dataset-name", "trace", "--dataset-path", bad.name), f"{bad.name}:2: "),
                (("--dataset-name", "trace"), "--dataset-path"),
                (("--request-rate", "often"), "--request-rate"),
                (("--goodput", "speed:3"), "--goodput"),
                (("--percentile-metrics", "ttft,x"), "--percentile-metrics"),
                (("--metric-percentiles", "101"), "--metric-percentiles"),
                (("--token-ids", "7"), "--token-ids"),
                (("--endpoint", "v1"), "--endpoint"),
                (("--endpoint", "/v1/chat/completions", "--prompt-format", "ids"),
                 "--prompt-format"),
            )
            for flags, words in cases:
                ran = bench(http, *flags)
                self.assertEqual(ran.code, 1, flags)
                self.assertIn(words, ran.err, flags)
                self.assertEqual(len(ran.err.splitlines()), 1, ran.err)
        self.assertEqual(bench(http, "--num-prompts", "-1").code, 2)  # by the flag parser
        before = generated(single())
        ran = bench(http, save_to="/nowhere/x.json")
        self.assertEqual(ran.code, 1)
        self.assertIn("--save-result: cannot write /nowhere/x.json", ran.err)
        self.assertEqual(generated(single()), before)  # found before anything was asked
        ran = bench(f"127.0.0.1:{free_port()}")
        self.assertEqual(ran.code, 1)
        self.assertIn("--base-url: cannot connect to", ran.err)

    def test_the_key_comes_from_the_environment(self):
        own = self.start_own(make_single("bench-key", "--api-key", "secret"))
        few = ("--num-prompts", 1, "--random-input-len", 8, "--random-output-len", 2)
        ran = bench(own.front.http, *few)
        self.assertEqual(ran.code, 1)
        self.assertIn("OPENAI_API_KEY", ran.err)
        ran = bench(own.front.http, *few, key="secret")
        self.assertEqual((ran.code, ran.saved["completed"]), (0, 1), ran.err + ran.out)
        self.assertNotIn("secret", ran.out + ran.err + json.dumps(ran.saved))


class MeasuringScriptsTest(E2eCase):
    """The scripts of bench/ that start nodes themselves, in their shortest form: do they still run?"""

    def run_script(self, name, *flags):
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "result.json"
            argv = [sys.executable, ROOT / "bench" / name, "--binary", Settings.binary, "--model",
                    Settings.model, "--rounds", 1, "--json", saved, *flags]
            done = subprocess.run([str(word) for word in argv], capture_output=True, text=True,
                                  timeout=patient(240))
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return json.loads(saved.read_text()), done.stdout

    def test_interference(self):
        saved, shown = self.run_script("serving/interference", "--stream-tokens", "150", "--prompts",
                                       "2", "--prompt-tokens", "200", "--kv-memory", "128M")
        for shape in ("split", "single"):
            alone, = saved["measured"][shape]["alone"]
            disturbed, = saved["measured"][shape]["disturbed"]
            self.assertEqual((alone["gaps"], disturbed["gaps"]), (149, 149))
            self.assertGreater(disturbed["prompts_begun_within"], 0)
            self.assertEqual(len(disturbed["prompt_ttft_ms"]), 2)
        self.assertIn("single node, 2 threads", shown)


    def test_failover(self):
        """It compares each answer with a single node's itself."""
        saved, shown = self.run_script("serving/failover", "--lengths", "64", "--kv-memory", "128M")
        for death in ("decode node killed", "decode node silent"):
            one, = saved["measured"][death]["64"]
            self.assertAlmostEqual(one["wait_ms"] - one["cold_ttft_ms"], one["beyond_ms"])
        self.assertGreater(one["wait_ms"], 1000, "silence is noticed by a lease that runs out")
        self.assertEqual(saved["measured"]["prefill node killed"], {})
        self.assertIn("| decode node silent | 64 |", shown)


class BenchHandoffTest(E2eCase):
    """`baton bench handoff` in its shortest form: it runs, its checks (equal tokens, a real handoff, free
    blocks) hold, and its nodes are gone when it is, whichever way it went."""

    HEAD = "| prompt | TTFT single | split ÷ single | TTST single |"

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="baton-bench-handoff-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # A name by which its nodes are known: each has it on its command line.
        self.model = self.folder / "model-of-this-test.gguf"
        self.model.symlink_to(Settings.model)
        self.saved = self.folder / "result.json"
        self.addCleanup(self.end_nodes)

    def nodes_left(self):
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"serve" in words and str(self.model).encode() in words:
                found.append(int(entry.name))
        return found

    def end_nodes(self):
        for pid in self.nodes_left():  # of a test that has failed
            os.kill(pid, signal.SIGKILL)

    def begin(self, *flags):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BATON_")}
        environment["TMPDIR"] = str(self.folder)
        argv = [Settings.binary, "bench", "handoff", *flags]
        for name, value in (("-m", self.model), ("--kv-memory", "256M"), ("--lengths", "16")):
            argv += [] if name in flags else [name, value]
        return subprocess.Popen([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True, env=environment)

    def finish(self, process):
        self.addCleanup(process.kill)
        out, err = process.communicate(timeout=patient(240))
        return process.returncode, out, err

    def assert_nothing_is_left(self):
        self.assertEqual(self.nodes_left(), [])
        self.assertEqual([path.name for path in self.folder.iterdir() if path.is_dir()], [])

    def test_a_round_of_a_short_and_a_longer_prompt(self):
        code, out, err = self.finish(self.begin("--lengths", "16,300", "--rounds", 1, "--json", self.saved))
        self.assertEqual(code, 0, out + err)
        saved = json.loads(self.saved.read_text())
        self.assertEqual([one["prompt_tokens"] for one in saved["results"]], [16, 300])
        for one in saved["results"]:
            self.assertEqual(one["kv_bytes"], expected_kv_bytes(one["prompt_tokens"]))
            self.assertEqual(len(one["rounds"]), 5)
            self.assertEqual(set(one["ratios"]), {"ttft", "ttst", "ttst_steps", "ttst_streamed_to_whole",
                                                  "rate_to_raw", "exposed_to_transfer"})
            for name, ratio in one["ratios"].items():
                self.assertTrue(name == "ttst_steps" or ratio > 0, (name, ratio))
            for each in one["rounds"]:
                self.assertAlmostEqual(each["not_wire_ms"], each["whole"]["exposed_ms"] - 1e3 * each["raw_s"])
                for shape in ("single", "split", "whole"):
                    self.assertTrue(0 < each[shape]["ttft_ms"] <= each[shape]["ttst_ms"], each)
        self.assertEqual({phase: len(times) for phase, times in saved["cancel_ms"].items()},
                         {"prefill": 5, "decode": 5})
        self.assertEqual([goal["name"] for goal in saved["goals"]],
                         ["rate_to_raw", "not_wire_ms", "ttft", "ttst", "ttst_streamed_to_whole",
                          "exposed_to_transfer", "cancel_ms"])
        self.assertLessEqual({"commit", "date", "cpu", "cores", "model", "binary", "load_before", "busy_before",
                              "link", "load_after"}, set(saved["machine"]))
        self.assertFalse(saved["interrupted"])
        for words in (self.HEAD, "| not wire |", "| 16 | ", "| 300 | ", "client leaves during decode: ",
                      "same tokens for each of 10 prompts"):
            self.assertIn(words, out)
        self.assertEqual(sum(line.startswith(("met ", "not met ", "- ")) for line in out.splitlines()), 7, out)
        self.assert_nothing_is_left()

    def test_interrupted_it_prints_what_it_has(self):
        process = self.begin("--rounds", 10_000, "--json", self.saved)
        self.addCleanup(process.kill)
        for line in process.stderr:
            if line.startswith("16 tokens, round 0:"):
                break
        else:
            self.fail("it ended before a prompt was measured")
        self.assertEqual(len(self.nodes_left()), 7)
        process.send_signal(signal.SIGINT)
        code, out, err = self.finish(process)
        self.assertEqual(code, 128 + signal.SIGINT, out + err)
        self.assertIn("interrupted", err)
        self.assertIn(self.HEAD, out)
        self.assertIn("| 16 | ", out)
        saved = json.loads(self.saved.read_text())
        self.assertTrue(saved["interrupted"])
        self.assertGreaterEqual(len(saved["results"][0]["rounds"]), 1)
        self.assert_nothing_is_left()

    def test_its_nodes_die_with_it(self):
        process = self.begin("--rounds", 10_000)
        self.addCleanup(process.kill)
        wait_until(lambda: self.nodes_left(), patient(60), "a node has been started")
        process.kill()
        self.finish(process)
        wait_until(lambda: not self.nodes_left(), patient(20), "no node is left")

    def test_a_node_that_does_not_start_is_shown(self):
        # A pool larger than any machine's memory: the flag is a size, and only the node can tell.
        code, out, err = self.finish(self.begin("--kv-memory", "900000G"))
        self.assertEqual((code, out), (1, ""), err)
        for words in ("baton bench handoff: single ended", "--- single: ", "--kv-memory"):
            self.assertIn(words, err)
        self.assert_nothing_is_left()

    def test_mistakes_name_their_flag(self):
        text = self.folder / "text.gguf"
        text.write_text("no model")
        cases = (
            (("--lengths", "16,some"), "--lengths: 'some'"),
            (("--lengths", ""), "--lengths"),
            (("--lengths", f"16,{CONTEXT - 15}"), f"--lengths: {CONTEXT - 15} "),
            (("--masks", "1"), "--masks"),
            (("--masks", "1,x"), "--masks"),
            (("--masks", "1,8000000000000000000000000"), "--masks"),
            (("--kv-memory", "much"), "--kv-memory"),
            (("--rounds", "0"), "--rounds"),
            (("--json", "/nowhere/x.json"), "--json: cannot write /nowhere/x.json"),
            (("-m", "/nowhere.gguf"), "--model: cannot open /nowhere.gguf"),
            (("-m", text), "--model: "),
            (("-m", ""), "--model is missing"),
        )
        for flags, words in cases:
            code, out, err = self.finish(self.begin(*flags))
            self.assertEqual((code, out), (2, ""), f"{flags}\n{err}")
            self.assertIn(words, err, flags)
            self.assertNotIn("starting", err)
        self.assert_nothing_is_left()
