"""Coming up, going down, and being killed: never a hang, never a leak, never a short stream that
looks complete."""
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

from harness.case import (COMPLETIONS, GREEDY, SEEDED, E2eCase, Settings, ask, begin_stream, busy,
                          completion, make_cluster, make_single, pair, patient, read_rest,
                          reference, single, token_prompt)
from harness.client import Client, ConnectionFailed
from harness.cluster import LOOPBACK
from harness.metrics import scrape
from harness.node import Node, free_port, wait_until

LONG = completion(token_prompt(40), max_tokens=400, ignore_eos=True,
                  stream_options={"include_usage": True}, **GREEDY)


def begin(nodes, body=LONG, tokens=3):
    return begin_stream(nodes.front, body, tokens)


class EndedCase(E2eCase):
    def assert_ended_honestly(self, stream, body, seconds, began):
        """Either the whole answer, identical, or an error event without [DONE]."""
        self.assertLess(time.monotonic() - began, patient(seconds), "the stream hung")
        if stream.done:
            self.assertEqual(stream.canonical(), reference(body).lines)
        else:
            self.assertIsNotNone(stream.error(), f"neither [DONE] nor an error: {stream.text[-300:]}")


class ReadyTest(EndedCase):
    def test_b43_ready_means_ready(self):
        """From process start: whatever answers 200 on /ready can complete at once."""
        node = make_single("early").node
        self.addCleanup(node.stop)
        node.start().wait_listening(patient(60))
        client = node.client(timeout_s=patient(30))
        body = completion(token_prompt(4), max_tokens=1)

        def came_up():
            status = node.ready_status()
            if status == 200:
                return True
            self.assertIn(status, (0, 503))
            early = client.post(COMPLETIONS, body)
            self.assertIn(early.status, (200, 503), early.text)
            return False

        wait_until(came_up, patient(60), "ready")
        self.assertEqual(client.post(COMPLETIONS, body).status, 200)

    def test_b43_router_is_ready_only_while_it_can_serve(self):
        """The router first, alone; then its peers; then one freezes, and thaws. With the decode node
        gone the prefill node may serve alone: ready or not, /ready must tell the truth."""
        addresses = [f"{LOOPBACK}:{free_port()}" for _ in range(2)]
        common = ["-m", Settings.model, "-t", 1, "--port", 0, "--kv-memory", "128M", "--node-role"]
        peers = ["--decode-peers", addresses[1]]
        roles = {
            "router": ["router", "--prefill-peers", addresses[0], *peers],
            "prefill": ["prefill", "--serving-bind", addresses[0], *peers],
            "decode": ["decode", "--serving-bind", addresses[1]],
        }
        for role, flags in roles.items():
            flags += ["--node-id", f"late-{role}"]
        nodes = {name: Node(Settings.binary, f"late-{name}", common + flags, Settings.logs)
                 for name, flags in roles.items()}
        for node in nodes.values():
            self.addCleanup(node.stop)
        router = nodes["router"].start().wait_listening(patient(60))
        body = completion(token_prompt(4), max_tokens=2)
        self.assertEqual(router.ready_status(), 503)
        self.assertEqual(router.client().post(COMPLETIONS, body).status, 503)
        nodes["decode"].start()
        nodes["prefill"].start()
        wait_until(lambda: router.ready_status() == 200, patient(60), "router is ready with its peers")
        self.assertEqual(router.client().post(COMPLETIONS, body).status, 200)

        nodes["decode"].signal(signal.SIGSTOP)
        wait_until(lambda: addresses[1] in router.client().get("/ready").text, patient(6),
                   "/ready names the frozen decode node")
        ready = router.ready_status()
        began = time.monotonic()
        status = router.client(timeout_s=patient(30)).post(COMPLETIONS, body).status
        self.assertEqual(status, ready)
        self.assertLess(time.monotonic() - began, patient(20))
        nodes["decode"].signal(signal.SIGCONT)
        wait_until(lambda: addresses[1] not in router.client().get("/ready").text, patient(20),
                   "the decode node is back")
        self.assertEqual(router.client().post(COMPLETIONS, body).status, 200)


class LeaveTest(EndedCase):
    def assert_no_counter_fell(self, before, after):
        for name, labels, value in before.series:
            if name.endswith("_total"):
                now = [v for n, l, v in after.series if (n, l) == (name, labels)]
                self.assertGreaterEqual(now[0], value, f"{name}{labels} fell")

    def test_b44_gauges_after_everyone_leaves(self):
        for nodes in (single(), pair()):
            with self.subTest(nodes=nodes.front.name):
                before = scrape(nodes.front)
                started = [begin(nodes, dict(LONG, prompt=token_prompt(20, seed=i)), tokens=2)
                           for i in range(20)]
                for stream, _ in started:
                    stream.close()
                self.wait_idle(nodes, seconds=2.0)
                wait_until(lambda nodes=nodes: scrape(nodes.front).sum("baton_requests_active") == 0,
                           patient(2), "the front counts no request under way")
                after = scrape(nodes.front)
                earlier = before.by("baton_requests_total", "status")
                ends = {status: count - earlier.get(status, 0)
                        for status, count in after.by("baton_requests_total", "status").items()}
                self.assertEqual(ends.get("aborted"), 20, ends)
                accepted = "baton_requests_accepted_total"
                self.assertEqual(sum(ends.values()), after.sum(accepted) - before.sum(accepted), ends)
                self.assert_no_counter_fell(before, after)

    def test_cancel_during_prefill_and_during_decode(self):
        """Blocks of both nodes are free again at once, and the next request is right."""
        for tokens_seen in (0, 5):
            with self.subTest(tokens_seen=tokens_seen):
                body = dict(LONG, prompt=token_prompt(1800, seed=tokens_seen))
                client = pair().front.client()
                stream = None
                if tokens_seen:
                    stream, _ = begin(pair(), body, tokens_seen)
                else:
                    # Nothing has come yet, not even the status: leave while the prompt is computed.
                    thread = threading.Thread(target=abandon, args=(pair().front, body))
                    thread.start()
                    wait_until(lambda: busy(scrape(pair().prefill[0]))[0] > 0, patient(5),
                               "the prefill node works on it")
                    thread.join()
                if stream:
                    stream.close()
                self.wait_idle(pair(), seconds=2.0)
                small = completion(token_prompt(16), max_tokens=4, **GREEDY)
                self.assert_same(ask(pair(), small), small)
                self.assertEqual(client.get("/ready").status, 200)

    def test_b03_client_leaves_between_the_legs(self):
        """D is frozen while P works; the client leaves once P has finished; D goes on: nothing is
        kept, and D never runs one of them. 50 times, each within D's lease, so that it is slow and not
        dead. Every other time D goes on at the very moment at which the client leaves: the news may
        reach P later, and D may make tokens of what it got until it hears of it."""
        nodes = pair()
        decode, prefill = nodes.decode[0], nodes.prefill[0]
        made = "baton_tokens_generated_total"
        common = token_prompt(480, seed=3)  # P has it from the first time on
        for round_number in range(50):
            at_once = round_number % 2 == 1
            before = scrape(decode).sum(made)
            decode.signal(signal.SIGSTOP)
            body = dict(LONG, prompt=common + token_prompt(20, seed=300 + round_number))
            try:
                stream, _ = begin(nodes, body, tokens=1)
                stream.close()
                if not at_once:
                    wait_until(lambda: busy(scrape(prefill)) == (0, 0, 0), patient(2),
                               "the prefill node holds nothing, whatever the decode node does")
            finally:
                decode.signal(signal.SIGCONT)
            self.wait_idle(nodes, seconds=2.0)
            tokens = scrape(decode).sum(made) - before
            if at_once:
                self.assertLess(tokens, LONG["max_tokens"], "it ran to its end")
            else:
                self.assertEqual(tokens, 0, f"round {round_number}")
        wait_until(lambda: nodes.front.ready_status() == 200, patient(10), "the router is ready")
        body = completion(token_prompt(16), max_tokens=4, **GREEDY)
        self.assert_same(ask(nodes, body), body)


def abandon(front, body):
    """Sends a request and leaves a moment later without reading."""
    import http.client
    import json

    connection = http.client.HTTPConnection(*front.http.rsplit(":", 1), timeout=patient(30))
    connection.request("POST", COMPLETIONS, json.dumps(dict(body, stream=True)),
                       {"Content-Type": "application/json"})
    threading.Event().wait(0.4)
    connection.sock.close()
    connection.close()


class DrainTest(EndedCase):
    def test_sigterm_lets_streams_end(self):
        """On the router: streams end whole, new requests are refused, the exit code is 0."""
        for make in (lambda: make_single("drain-single"), lambda: make_cluster("drain", flags=["-t", 1])):
            nodes = self.start_own(make())
            with self.subTest(nodes=nodes.front.name):
                body = dict(LONG, max_tokens=100)
                stream, bodies = begin(nodes, body)
                nodes.front.signal(signal.SIGTERM)

                def refuses():
                    try:
                        return nodes.front.client().post(COMPLETIONS, completion([100])).status == 503
                    except ConnectionFailed:
                        return True

                wait_until(refuses, patient(5), "a draining node takes no new request")
                read_rest(stream, bodies)
                self.assertTrue(stream.done)
                self.assertEqual(stream.canonical(), reference(body).lines)
                self.assertEqual(nodes.front.wait_exit(patient(10)), 0)

    def test_engine_nodes_drain_too(self):
        """SIGTERM to prefill and decode node while a stream runs: the stream still ends whole."""
        nodes = self.start_own(make_cluster("drain-engines", flags=["-t", 1]))
        body = dict(LONG, max_tokens=100)
        stream, bodies = begin(nodes, body)
        for node in nodes.engines:
            node.signal(signal.SIGTERM)
        read_rest(stream, bodies)
        self.assertTrue(stream.done, stream.text[-300:])
        self.assertEqual(stream.canonical(), reference(body).lines)
        for node in nodes.engines:
            self.assertEqual(node.wait_exit(patient(10)), 0, node.tail())
        wait_until(lambda: nodes.front.ready_status() == 503, patient(6), "the router sees them go")

    def test_the_drain_ends_at_its_timeout(self):
        nodes = self.start_own(make_single("drain-short", "--drain-timeout", 1))
        stream, bodies = begin(nodes, dict(LONG, max_tokens=6000))
        began = time.monotonic()
        nodes.front.signal(signal.SIGTERM)
        read_rest(stream, bodies)
        nodes.front.wait_exit(patient(5))
        self.assertLess(time.monotonic() - began, patient(5))
        self.assertFalse(stream.done)
        self.assertIsNotNone(stream.error(), stream.text[-300:])

    def test_a_stuck_engine_does_not_keep_the_process(self):
        """Its thread cannot be ended: the process ends without it, so that peers hear of it at once."""
        nodes = self.start_own(make_single("stuck", "--stall-ms", 2000, "--drain-timeout", 0,
                                           "--failpoints", "engine.step=sleep:600000@5"))
        stream, bodies = begin(nodes, LONG)
        read_rest(stream, bodies)
        self.assertIn("does not answer", stream.error()["message"])
        nodes.front.signal(signal.SIGTERM)
        self.assertEqual(nodes.front.wait_exit(patient(10)), 1)
        self.assertIn("does not end", nodes.front.log())
        nodes.front.killed = True

    def test_errors_and_short_writes(self):
        """Where KV and messages are sent: an error is told and the sequence begins anew, pieces are only slower. The
        same answer, and nothing is left held."""
        body = completion(token_prompt(400, seed=9), max_tokens=24, stream_options={"include_usage": True}, **GREEDY)
        for role, point in (("prefill", "handoff.frame=error@2"), ("prefill", "handoff.commit=error@1"),
                            ("prefill", "net.write=error@8"), ("decode", "net.write=error@8"),
                            ("prefill", "net.short_write"), ("decode", "net.short_write"), ("router", "net.short_write")):
            with self.subTest(role=role, point=point):
                nodes = self.start_own(make_cluster("fails-" + re.sub(r"\W", "-", role + point),
                                                    **{f"{role}_flags": ["--failpoints", point]}))
                for _ in range(2):
                    stream = nodes.front.client().stream(COMPLETIONS, body).read_all()
                    self.assertEqual(stream.canonical(), reference(body).lines)
                self.wait_idle(nodes)
                if point.startswith("handoff"):
                    page = scrape(nodes.front)
                    self.assertGreater(page.sum("baton_retries_total") + page.sum("baton_replays_total"), 0)

    def test_stop_while_a_prompt_is_tokenized(self):
        """A handler that still waits then is destroyed last: sanitizer builds see what it touches."""
        node = self.start_own(make_single("stop-text", "--drain-timeout", 0)).front

        def cpu_s():
            with open(f"/proc/{node.process.pid}/stat", encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        before = cpu_s()
        # About the most that is not refused by its length alone; together two seconds of one thread.
        body = json.dumps({"prompt": "a" * 600_000, "max_tokens": 1}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with contextlib.ExitStack() as open_ones:
            for _ in range(20):
                client = socket.create_connection(node.http.rsplit(":", 1), timeout=patient(10))
                open_ones.enter_context(client).sendall(head.encode() + body)
            wait_until(lambda: cpu_s() > before + 0.2, patient(10), "prompts are being tokenized")
            node.signal(signal.SIGTERM)
            self.assertEqual(node.wait_exit(patient(30)), 0, node.tail())

    def test_who_left_before_its_turn_is_not_tokenized(self):
        """One thread reads prompts. While the first keeps it, four others come and leave: the next to be read
        is the sixth. The third that is read would end the process."""
        kept_s = patient(3)
        node = self.start_own(make_single(
            "left-text", "--failpoints", f"api.text=sleep:{int(kept_s * 1000)}@1,api.prepare=kill@3")).front
        answers = []

        def ask():
            answers.append(node.client().post(COMPLETIONS, completion([5, 6, 7], max_tokens=1)).status)

        def waiting(bodies):
            return scrape(node).sum("baton_http_body_bytes") > bodies * len(body)

        first = threading.Thread(target=ask)
        first.start()
        body = json.dumps({"prompt": "a" * 600_000, "max_tokens": 1}).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        wait_until(lambda: waiting(0), patient(10), "the first request is being read")
        with contextlib.ExitStack() as open_ones:
            for _ in range(4):
                client = socket.create_connection(node.http.rsplit(":", 1), timeout=patient(10))
                open_ones.enter_context(client).sendall(head.encode() + body)
            wait_until(lambda: waiting(4), patient(10), "four others wait")
        ask()
        first.join()
        self.assertEqual(answers, [200, 200], node.tail())

    def test_a_log_that_nobody_reads_any_more(self):
        """What took the log through a pipe is gone: the next line must not end the process."""
        reader, writer = os.pipe()
        address = f"{LOOPBACK}:{free_port()}"
        argv = [Settings.binary, "serve", "-m", Settings.model, "--kv-memory", "64M",
                "--port", address.rsplit(":", 1)[1]]
        process = subprocess.Popen([str(part) for part in argv], stdin=subprocess.DEVNULL,
                                   stdout=writer, stderr=writer)
        os.close(writer)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)

        def ready():
            try:
                return Client(address, timeout_s=10).get("/ready").status == 200
            except ConnectionFailed:
                return False

        wait_until(ready, patient(60), "the node is ready")
        os.close(reader)
        process.send_signal(signal.SIGTERM)  # it says that it drains
        self.assertEqual(process.wait(patient(10)), 0)


class DeathTest(EndedCase):
    def test_kill_9_of_the_decode_node_in_mid_stream(self):
        nodes = self.start_own(make_cluster("kill-d", flags=["-t", 1]))
        stream, bodies = begin(nodes)
        began = time.monotonic()
        nodes.decode[0].kill()
        read_rest(stream, bodies)
        self.assert_ended_honestly(stream, LONG, 30, began)
        wait_until(lambda: busy(scrape(nodes.prefill[0])) == (0, 0, 0), patient(10),
                   "the prefill node holds nothing")

    def test_kill_9_with_another_node_left(self):
        """2P 2D: the stream on the dead node ends honestly; the cluster goes on serving."""
        nodes = self.start_own(make_cluster("kill-one", prefill=2, decode=2, flags=["-t", 1]))
        stream, bodies = begin(nodes)
        name = next(body["baton"]["decode_node"] for body in parsed(stream) if body.get("baton"))
        victim = next(node for node in nodes.decode if name in node.argv)
        began = time.monotonic()
        victim.kill()
        read_rest(stream, bodies)
        self.assert_ended_honestly(stream, LONG, 30, began)
        for seed in range(4):
            body = completion(token_prompt(64, seed=seed), max_tokens=6, **SEEDED)
            self.assert_same(ask(nodes, body, stream=True), body)
        # A prefill node dies while it computes a long prompt.
        body = completion(token_prompt(3000), max_tokens=4, ignore_eos=True, **GREEDY)
        began = time.monotonic()
        result = []
        thread = threading.Thread(target=lambda: result.append(
            nodes.front.client(timeout_s=patient(60)).stream(COMPLETIONS, dict(
                body, stream_options={"include_usage": True})).read_all()))
        thread.start()
        wait_until(lambda: any(busy(scrape(node))[0] for node in nodes.prefill), patient(10),
                   "a prefill node works on it")
        next(node for node in nodes.prefill if busy(scrape(node))[0]).kill()
        thread.join()
        stream = result[0]
        if stream.status == 200:
            self.assert_ended_honestly(stream, body, 60, began)
        else:
            self.assertGreaterEqual(stream.status, 500)
        small = completion(token_prompt(16), max_tokens=4, **GREEDY)
        self.assert_same(ask(nodes, small), small)

    def test_kill_9_while_several_choices_run(self):
        """Each choice is replayed on the other decode node from where its client is."""
        nodes = self.start_own(make_cluster("kill-n", decode=2, flags=["-t", 1]))
        body = completion(token_prompt(100), n=3, max_tokens=150, ignore_eos=True,
                          stream_options={"include_usage": True}, **SEEDED)
        stream, bodies = begin(nodes, body, tokens=30)
        name = next(body["baton"]["decode_node"] for body in parsed(stream) if body.get("baton"))
        next(node for node in nodes.decode if name in node.argv).kill()
        read_rest(stream, bodies)
        self.assertTrue(stream.done, stream.text[-300:])
        self.assertEqual(stream.canonical(), reference(body).lines)

    def test_kill_9_of_the_router_frees_the_nodes(self):
        """The owner is gone: its requests are nobody's, and their blocks come back by the lease."""
        nodes = self.start_own(make_cluster("kill-r", flags=["-t", 1]))
        stream, bodies = begin(nodes, dict(LONG, max_tokens=4000))
        nodes.router.kill()
        read_rest(stream, bodies)
        self.assertFalse(stream.done)
        self.wait_idle(nodes, seconds=8.0)


def parsed(stream):
    from harness.canonical import parse_sse

    return parse_sse(stream.text + "data: [DONE]\n")
