"""Small pools, used pools, idle nodes and nodes that share a machine."""
import os
import threading
import time

from harness.case import (COMPLETIONS, GREEDY, SEEDED, E2eCase, Settings, ask, ask_all, completion,
                          make_single, pair, patient, reference, single, token_prompt)
from harness.cluster import Cluster, Single
from harness.metrics import expected_kv_bytes, scrape
from harness.node import wait_until

BLOCK = 64
BLOCKS = 8
POOL = BLOCK * BLOCKS
FLAGS = ["--kv-memory", expected_kv_bytes(POOL), "--block-tokens", BLOCK, "-t", 1]


def small_sets(name):
    """A single node and a pair whose pools hold BLOCKS blocks."""
    common = (Settings.binary, Settings.model, Settings.logs)
    yield Single(*common, name=f"{name}-single", flags=FLAGS)
    yield Cluster(*common, name=f"{name}-pair", flags=FLAGS)


def pools(nodes):
    return [scrape(node).by("baton_pool_blocks", "state") for node in nodes.engines]


class SmallPoolTest(E2eCase):
    def test_b28_a_prompt_that_can_never_fit(self):
        """Refused at once with its need and the pool's size; those behind it are not held up."""
        small = [completion(token_prompt(10, seed=2800 + i), max_tokens=5, **SEEDED)
                 for i in range(5)]
        for nodes in small_sets("b28"):
            nodes = self.start_own(nodes)
            for length in (POOL - 1, POOL, POOL + 1):
                for limit in (1, 64):
                    body = completion(token_prompt(length, seed=2810), max_tokens=limit,
                                      ignore_eos=True, **GREEDY)
                    with self.subTest(nodes=nodes.front.name, length=length, limit=limit):
                        if length + limit > POOL:
                            response = nodes.front.client().post(COMPLETIONS, body)
                            param = "prompt" if length >= POOL else "max_tokens"
                            self.assert_error(response, 400, param,
                                              [str(length), str(POOL)])
                            behind = ask_all(nodes, small)
                        else:
                            first, *behind = ask_all(nodes, [body, *small])
                            self.assertEqual(first.lines, reference(body).lines)
                        for answer, asked in zip(behind, small):
                            self.assertEqual(answer.lines, reference(asked).lines)
            # Without a limit the pool's edge is the limit.
            body = completion(token_prompt(POOL - 20, seed=2811), ignore_eos=True, **GREEDY)
            del body["max_tokens"]
            answer = ask(nodes, body)
            self.assertEqual((answer.finish, len(answer.tokens)), ("length", 20))
            self.wait_idle(nodes)

    def test_who_takes_the_pool_at_start(self):
        """--kv-touch auto: nodes of a cluster do, a single node does when it is told to; answers are the same."""
        pool_mb = 512

        def resident_mb(node):
            with open(f"/proc/{node.process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

        flags = ["--kv-memory", f"{pool_mb}M", "-t", 1, "--kv-touch"]
        common = (Settings.binary, Settings.model, Settings.logs)
        body = completion(token_prompt(300, seed=4), max_tokens=4, **GREEDY)
        for nodes, touched in ((Single(*common, name="untouched", flags=[*flags, "auto"]), False),
                               (Single(*common, name="touched", flags=[*flags, "on"]), True),
                               (Cluster(*common, name="touched-pair", flags=[*flags, "auto"]), True)):
            nodes = self.start_own(nodes)
            for node in nodes.engines:
                if touched:
                    wait_until(lambda node=node: resident_mb(node) > pool_mb, patient(30), f"{node.name} has its pool")
                else:
                    self.assertLess(resident_mb(node), pool_mb)
            self.assert_same(ask(nodes, body), body)

    def test_ready_says_when_no_block_becomes_free(self):
        """One stream has the whole pool for longer than half of the queue deadline."""
        nodes = self.start_own(Single(Settings.binary, Settings.model, Settings.logs, name="full",
                                      flags=[*FLAGS, "--queue-deadline-ms", 2000,
                                             "--failpoints", "engine.step=sleep:20"]))
        client = nodes.front.client(timeout_s=patient(60))
        body = completion(token_prompt(300, seed=1), max_tokens=200, ignore_eos=True, **GREEDY)
        stream = client.stream(COMPLETIONS, dict(body, stream_options={"include_usage": True}))
        bodies = iter(stream)
        next(bodies)
        answers = []
        late = completion(token_prompt(400, seed=2), max_tokens=4, **GREEDY)
        thread = threading.Thread(target=lambda: answers.append(
            nodes.front.client(timeout_s=patient(60)).post(COMPLETIONS, late).status))
        thread.start()
        wait_until(lambda: nodes.front.ready_status() == 503, patient(3), "not ready: no room")
        self.assertIn("no KV block", nodes.front.client().get("/ready").text)
        for _ in bodies:
            pass
        thread.join()
        self.assertTrue(stream.done)
        self.assertEqual(answers, [429], "its queue deadline passed")
        wait_until(lambda: nodes.front.ready_status() == 200, patient(3), "there is room again")

    def test_b29_block_borders_on_a_used_pool(self):
        """Every block held another's rows (test builds fill freed blocks with NaN); the answers
        are those of a process in which no block was ever used."""
        lengths = (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 1)
        bodies = [completion(token_prompt(length, seed=2900 + length), max_tokens=2 * BLOCK + 3,
                             ignore_eos=True, **(GREEDY if length % 2 else SEEDED))
                  for length in lengths]
        fresh = self.start_own(make_single("b29-fresh", "--prefix-cache", "off"))
        wanted = [ask(fresh, body).lines for body in bodies]
        for nodes in small_sets("b29"):
            nodes = self.start_own(nodes)
            for seed in range(3):
                ask_all(nodes, [completion(token_prompt(POOL - 8, seed=2950 + seed), max_tokens=8,
                                           ignore_eos=True, **GREEDY)])
            for blocks in pools(nodes):
                self.assertLess(blocks["free"], 2, "the junk filled the pool")
            for body, lines in zip(bodies, wanted):
                self.assertEqual(ask(nodes, body).lines, lines)
            for answer, lines in zip(ask_all(nodes, bodies), wanted):
                self.assertEqual(answer.lines, lines)
            self.wait_idle(nodes)


def task_files(node, name):
    folder = f"/proc/{node.process.pid}/task"
    for task in os.listdir(folder):
        with open(f"{folder}/{task}/{name}", encoding="ascii") as file:
            yield file.read()


def cpu_ticks(node):
    with open(f"/proc/{node.process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


class MachineTest(E2eCase):
    def test_idle_nodes_use_no_cpu(self):
        """CPU time, not time: a busy machine changes nothing. Beats and wake-ups once a second
        are all that runs."""
        seconds = 4
        nodes = [*single().nodes, *pair().nodes]
        self.wait_idle(single())
        self.wait_idle(pair())
        time.sleep(0.2)  # workers that spun after the last step sleep by now
        before = [cpu_ticks(node) for node in nodes]
        time.sleep(seconds)
        used = {node.name: cpu_ticks(node) - was for node, was in zip(nodes, before)}
        allowed = seconds * os.sysconf("SC_CLK_TCK") * 0.01 * Settings.patience
        for name, ticks in used.items():
            self.assertLessEqual(ticks, allowed, f"{name} is not idle: {used}")

    def test_two_nodes_keep_to_their_cores(self):
        cores = sorted(os.sched_getaffinity(0))[:2]
        if len(cores) < 2:
            self.skipTest("one CPU: there are no two cores to keep to")
        nodes = [self.start_own(Single(Settings.binary, Settings.model, Settings.logs,
                                       name=f"core-{core}",
                                       flags=["-t", 1, "--kv-memory", "64M",
                                              "--cpu-mask", f"{1 << core:x}"]))
                 for core in cores]
        bodies = [completion(token_prompt(300, seed=core), max_tokens=16, **GREEDY)
                  for core in cores]
        for node, body, core in zip(nodes, bodies, cores):
            self.assertEqual(ask(node, body).lines, reference(body).lines)
            for status in task_files(node.front, "status"):
                mask = next(l for l in status.splitlines() if l.startswith("Cpus_allowed_list:"))
                self.assertEqual(mask.split()[1], str(core), status.splitlines()[0])
