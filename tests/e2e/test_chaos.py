"""The short forms of what tests/chaos has; scripts/nightly runs the long ones."""
import pathlib
import re
import subprocess
import sys

from harness.case import E2eCase, Settings, patient

CHAOS = pathlib.Path(__file__).resolve().parents[1] / "chaos"


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
