"""The short forms of what tests/chaos has; scripts/nightly runs the long ones."""
import importlib.machinery
import importlib.util
import pathlib
import random
import re
import subprocess
import sys
import unittest

from harness.case import E2eCase, Settings, patient

CHAOS = pathlib.Path(__file__).resolve().parents[1] / "chaos"
sys.path.append(str(CHAOS))

import networks  # noqa: E402  (of that folder)


def run_chaos(program, *flags, within_s=180):
    """Exit code, the numbers of the last line, all that was printed."""
    argv = [sys.executable, CHAOS / program, "--clients", 4, "--binary", Settings.binary,
            "--model", Settings.model, *flags]
    done = subprocess.run(list(map(str, argv)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, timeout=patient(within_s))
    last = done.stdout.splitlines()[-1] if done.stdout else ""
    return done.returncode, dict(re.findall(r"(\w+)=(\d+)", last)), done.stdout[-6000:]


class KillNodesTest(E2eCase):
    def test_kills_under_load(self):
        """Nodes of both roles and routers die by signal and by failpoint: nothing lost, different or
        held, and some answers went on at the other router."""
        code, numbers, output = run_chaos("kill_nodes", "--kills", 3, "--seed", 7, "--bodies", 10, "--warm-s", 2)
        self.assertEqual(code, 0, output)
        self.assertEqual([numbers[role] for role in "pdr"], ["3", "3", "3"], output)
        self.assertGreater(int(re.search(r"(\d+) times in mid-stream", output).group(1)), 0, output)
        self.assertGreater(int(numbers["requests"]), 10)
        self.assertEqual({numbers[name] for name in ("lost", "different", "leaked")}, {"0"}, output)

    def test_kills_of_nodes_that_fall_silent_first(self):
        """In networks of their own, half of the nodes are cut off before they die: no connection breaks, leases
        run out. Nothing is lost, different or held."""
        reason = networks.why_not()
        if reason:
            self.skipTest(f"no networks of their own: {reason}")
        code, numbers, output = run_chaos("kill_nodes", "--kills", 3, "--seed", 3, "--bodies", 10, "--warm-s", 1,
                                          "--namespaces", "--no-failpoints")
        self.assertEqual(code, 0, output)
        self.assertIn("killed by signal after silence", output)
        self.assertEqual([numbers[role] for role in "pdr"], ["3", "3", "3"], output)
        self.assertGreater(int(numbers["requests"]), 10)
        self.assertEqual({numbers[name] for name in ("lost", "different", "leaked")}, {"0"}, output)

    def test_it_sees_a_wrong_bit(self):
        """The comparison can fail: V rows are zeroed before they are sent, no node is killed."""
        code, numbers, output = run_chaos("kill_nodes", "--kills", 0, "--bodies", 4, "--warm-s", 3,
                                          "--seed", 7, "--arm", "handoff.poison")
        self.assertEqual(code, 1, output)
        self.assertGreater(int(numbers["different"]), 0, output)
        self.assertEqual((numbers["lost"], numbers["leaked"]), ("0", "0"), output)


class RollingRestartTest(E2eCase):
    def test_every_node_is_restarted_under_load(self):
        """Nothing lost, different or held, and some answers began at one router and ended at the other."""
        code, numbers, output = run_chaos("rolling_restart", "--rounds", 1, "--seed", 7, "--bodies", 10,
                                          "--router-drain-timeout", 0)
        self.assertEqual(code, 0, output)
        self.assertEqual([numbers[role] for role in "pdr"], ["2", "2", "2"], output)
        self.assertGreater(int(numbers["resumed"]), 0, output)
        self.assertGreater(int(numbers["requests"]), 10)
        self.assertEqual({numbers[name] for name in ("lost", "different", "leaked")}, {"0"}, output)


class SoakTest(E2eCase):
    def test_it_sees_what_leaks(self):
        """Half a minute with a leak of each kind: each is noticed at the nodes that have it, and no other.
        (Within half a minute an engine's own memory still grows: its pool is touched block by block.)"""
        code, numbers, output = run_chaos("soak", "--minutes", patient(0.5), "--sample-s", patient(1), "--seed", 7, "--bodies", 10,
                                          "--kv-memory", "384M", "--leak", "memory,descriptor,block")
        grown = set(re.findall(r"^GROWN (\w+): (\w+):", output, re.M))
        wanted = {(router, value) for router in ("r0", "r1") for value in ("rss_bytes", "descriptors")}
        wanted |= {(node, "used_blocks") for node in ("p0", "p1")}
        self.assertEqual(code, 1, output)
        self.assertEqual({(name, value) for name, value in grown if (name[0], value) not in
                          {("p", "rss_bytes"), ("d", "rss_bytes")}}, wanted, output)
        self.assertEqual(numbers["different"], "0", output)


class GrowthTest(unittest.TestCase):
    """The soak's rule on numbers of which the answer is known."""

    def grown(self, values, name="rss_bytes"):
        loader = importlib.machinery.SourceFileLoader("baton_soak", str(CHAOS / "soak"))
        soak = importlib.util.module_from_spec(importlib.util.spec_from_loader("baton_soak", loader))
        loader.exec_module(soak)
        return soak.growth([{name: value} for value in values], 36)

    def test_what_grows_and_what_does_not(self):
        source, mib = random.Random(5), 1 << 20
        noise = [source.randrange(0, 64) for _ in range(120)]
        self.assertEqual(self.grown([(300 + each) * mib for each in noise]), {})
        leak = [(300 + each) * mib + number * mib // 4 for number, each in enumerate(noise)]
        self.assertEqual(list(self.grown(leak)), ["rss_bytes"])
        # It settles within the warm-up, or jumps once: no growth. Blocks of busy moments: neither.
        self.assertEqual(self.grown([min(number, 35) * 10 * mib for number in range(120)]), {})
        self.assertEqual(self.grown([(300 if number < 60 else 500) * mib for number in range(120)]), {})
        self.assertEqual(self.grown(noise, "used_blocks"), {})
        self.assertEqual(list(self.grown([each + number // 2 for number, each in enumerate(noise)], "used_blocks")),
                         ["used_blocks"])
        self.assertEqual(list(self.grown([40 + number // 20 for number in range(120)], "descriptors")), [])
        self.assertEqual(list(self.grown([40 + number // 12 for number in range(120)], "descriptors")),
                         ["descriptors"])
        self.assertEqual(list(self.grown([9 + number // 30 for number in range(120)], "threads")), ["threads"])
