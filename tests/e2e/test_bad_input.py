"""What a user or operator gets wrong: one clear error each, and nothing lost."""
import http.client
import json
import pathlib
import socket
import subprocess
import threading
import time

from harness.case import (CHAT, COMPLETIONS, CONTEXT, GREEDY, E2eCase, Settings, ask, completion,
                          make_cluster, make_single, pair, patient, reference, single, token_prompt)
from harness.cluster import LOOPBACK
from harness.metrics import scrape
from harness.node import Node, free_port, wait_until

KEY = "right-key-7"


class StartUpTest(E2eCase):
    """See run_baton."""

    def bad_model(self, name, content):
        path = pathlib.Path(Settings.logs) / name
        path.write_bytes(content)
        self.addCleanup(path.unlink)
        said = self.run_baton("-m", path, "--port", 0)
        self.assertIn(name, said)
        return said

    def test_model_missing(self):
        said = self.run_baton("-m", "/nowhere/at-all.gguf", "--port", 0)
        self.assertIn("/nowhere/at-all.gguf", said)

    def test_model_cut(self):
        """B33: less one byte, half, inside the header, empty."""
        whole = pathlib.Path(Settings.model).read_bytes()
        for name, content in (("less-one.gguf", whole[:-1]), ("half.gguf", whole[: len(whole) // 2]),
                              ("header.gguf", whole[:1000]), ("empty.gguf", b"")):
            with self.subTest(name=name):
                self.bad_model(name, content)

    def test_model_is_something_else(self):
        self.bad_model("text.gguf", b"This is no model.\n" * 200)
        whole = pathlib.Path(Settings.model).read_bytes()[:2_000_000]
        self.assertIn(b"llama", whole)
        other = whole.replace(b"\x05\0\0\0\0\0\0\0llama", b"\x05\0\0\0\0\0\0\0mamba", 1)
        self.assertIn("mamba", self.bad_model("mamba.gguf", other))

    def test_model_with_alignment_zero(self):
        """B34: the 57-byte file whose only key sets the alignment to 0."""
        content = bytes.fromhex(
            "4747554603000000000000000000000001000000000000001100000000000000"
            "67656e6572616c2e616c69676e6d656e740400000000000000")
        said = self.bad_model("alignment.gguf", content)
        self.assertIn("alignment", said)

    def test_port_in_use(self):
        with socket.socket() as taken:
            taken.bind((LOOPBACK, 0))
            taken.listen()
            port = taken.getsockname()[1]
            # Told before the model is even looked at.
            absent = ("-m", "/nowhere/at-all.gguf")
            said = self.run_baton(*absent, "--host", LOOPBACK, "--port", port)
            self.assertIn(f"--port: cannot listen on {LOOPBACK}:{port}", said)
            said = self.run_baton(*absent, "--node-role", "decode", "--serving-bind",
                                  f"{LOOPBACK}:{port}")
            self.assertIn(f"--serving-bind: cannot listen on {LOOPBACK}:{port}", said)

    def test_port_taken_while_loading(self):
        # The node protocol runs already when this port is found taken: it must end in order.
        with socket.socket() as taken:
            taken.bind((LOOPBACK, 0))
            taken.listen()
            port = taken.getsockname()[1]
            nobody = f"{LOOPBACK}:{free_port()}"
            bind = ("--serving-bind", f"{LOOPBACK}:0")
            for role in (("decode", *bind), ("prefill", *bind, "--decode-peers", nobody),
                         ("router", "--prefill-peers", nobody, "--decode-peers", nobody)):
                with self.subTest(role=role[0]):
                    said = self.run_baton("-m", Settings.model, "--port", port,
                                          "--kv-memory", "64M", "--node-role", *role,
                                          "--failpoints", "serve.no_early_port_check")
                    self.assertIn(f"cannot listen on {LOOPBACK}:{port}", said)

    def test_flags(self):
        model = ("-m", Settings.model, "--port", 0)
        for flags, word in (((*model, "--no-such-flag"), "--no-such-flag"),
                            ((*model, "--kv-dtype", "int3"), "int3"),
                            ((*model, "--block-tokens", 48), "block"),
                            ((*model, "--isa", "sse9"), "sse9"),
                            ((*model, "--kv-memory", "1K"), "kv-memory"),
                            ((*model, "--kv-memory", "900000G"), "bytes are available"),
                            ((*model, "--cpu-mask", "8" + "0" * 200), "names CPU 803"),
                            ((*model, "--cpu-mask", "xyz"), "hex"),
                            ((*model, "--sse-ping-interval", "nan"), "--sse-ping-interval"),
                            ((*model, "--beat-interval-ms", 1500000000), "--lease-ms must be at least twice"),
                            ((*model, "--prefix-cache", "maybe"), "--prefix-cache"),
                            ((*model, "--node-role", "router"), "peers"),
                            ((*model, "--policy", "kv-aware"), "--policy needs --node-role router"),
                            ((*model, "--local-prefill-tokens", 3), "--local-prefill-tokens needs --policy kv-aware"),
                            ((*model, "--config", "/no/such/file"), "--config: cannot read /no/such/file"),
                            ((*model, "--node-role", "decode", "--serving-bind", 21004),
                             "--serving-bind: "),
                            ((*model, "--node-role", "decode"), "--serving-bind")):
            with self.subTest(flags=flags[3:]):
                self.assertIn(word, self.run_baton(*flags))

    def test_no_such_command(self):
        for words in (("bogus",), ("bench", "bogus")):
            done = subprocess.run([Settings.binary, *words], capture_output=True, text=True, timeout=patient(20),
                                  check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("there is no command 'bogus'", done.stderr)

    def config(self, text):
        path = pathlib.Path(Settings.logs) / "baton.conf"
        path.write_text(text)
        return path

    def test_config_file_mistakes(self):
        for text, word in (("port = abc\n", ":1: "), ("port = abc\n", "abc"), ("\n# x\nbogus = 1\n", ":3: "),
                           ("bogus = 1", "no flag --bogus"), ("config = x", "no flag --config"),
                           ("help = x", "no flag --help"), ("port 80", "'port 80' is not `flag = value`"),
                           ("[serve]", "is not `flag = value`"), ("serve.port = 1", "no flag --serve.port"),
                           ("port = 1\nport = 2", ":2: --port is set in line 1 already"),
                           ("alias = a\nserved-model-name = b", ":2: "), ("model =", "--model is missing")):
            with self.subTest(text=text):
                self.assertIn(word, self.run_baton("--config", self.config(text)))

    def test_config_file(self):
        """Flags win over variables, variables over the file."""
        path = self.config(f"""# what is said nowhere else
            model = {Settings.model}
            port=0
            host = "{LOOPBACK}"
            api-key = first,second
            kv-memory = 64M
            alias = of-the-file
            max-num-seqs = 3
            """)
        for flags, variables, name in (((), {}, "of-the-file"),
                                       ((), {"BATON_SERVED_MODEL_NAME": "of-a-variable"}, "of-a-variable"),
                                       (("--served-model-name", "of-a-flag"),
                                        {"BATON_SERVED_MODEL_NAME": "of-a-variable"}, "of-a-flag")):
            with self.subTest(name=name):
                node = Node(Settings.binary, name, ["--config", path, *flags], Settings.logs)
                node.variables = variables
                self.addCleanup(node.stop)
                node.start().wait_listening(patient(60))
                self.assertEqual(node.client().get("/v1/models").status, 401)
                for key in ("first", "second"):
                    models = node.client(key=key).get("/v1/models").json()
                    self.assertEqual([model["id"] for model in models["data"]], [name])

    def test_variables(self):
        said = self.run_baton("-m", Settings.model, variables={"BATON_PORT": "abc"})
        self.assertIn("BATON_PORT=abc is set in the environment and stands for --port", said)
        said = self.run_baton("-m", Settings.model, "--port", 0, variables={"BATON_API_KEY": ""})
        self.assertIn("BATON_API_KEY is set and empty", said)


class RequestTest(E2eCase):
    """The same words from a single node and from a router."""

    def each(self):
        for nodes in self.single_and_pair():
            yield nodes, nodes.front.client()

    def test_malformed_bodies(self):
        for nodes, client in self.each():
            for body in ("", "{", "[]", "null", '{"prompt": "x"', '{"prompt": "\\ud800"', "\xff",
                         '{"prompt": ' + "[" * 3000):
                for path in (CHAT, COMPLETIONS):
                    self.assert_error(client.post(path, body), 400)
            self.wait_idle(nodes)

    def test_wrong_types_and_ranges(self):
        cases = (("max_tokens", "ten"), ("max_tokens", 0), ("max_tokens", -5), ("max_tokens", 1.5),
                 ("temperature", "hot"), ("temperature", -1), ("top_p", 2), ("top_p", "all"),
                 ("seed", "x"), ("stop", 5), ("stop", [1]), ("stop", ["a"] * 1000),
                 ("stream", "yes"), ("logit_bias", [1]), ("n", 0), ("n", "two"),
                 ("stop_token_ids", "2"), ("presence_penalty", "x"), ("prompt", 5), ("prompt", {}),
                 ("prompt", []), ("prompt", [[1, 2], [3]]), ("prompt", ["a", 1]), ("prompt", ""))
        for nodes, client in self.each():
            for field, value in cases:
                body = completion([100, 101], max_tokens=2)
                body[field] = value
                response = client.post(COMPLETIONS, body)
                self.assert_error(response, 400, field)
            for messages in ([], "hi", [{}], [{"role": "user"}], [{"content": "x"}], [5],
                             [{"role": 5, "content": "x"}]):
                self.assert_error(client.post(CHAT, {"messages": messages}), 400, "messages")
            self.wait_idle(nodes)

    def test_over_long_prompts(self):
        for nodes, client in self.each():
            long = completion(token_prompt(CONTEXT + 1), max_tokens=1)
            error = self.assert_error(client.post(COMPLETIONS, long), 400)
            self.assertIn(str(CONTEXT), error["message"])
            both = completion(token_prompt(100), max_tokens=CONTEXT)
            self.assert_error(client.post(COMPLETIONS, both), 400)
            self.wait_idle(nodes)

    def test_more_choices_than_allowed(self):
        for _, client in self.each():
            response = client.post(COMPLETIONS, completion([100], n=17))
            self.assert_error(response, 400, "n", ["16"])

    def test_unknown_model_and_paths(self):
        for _, client in self.each():
            response = client.post(COMPLETIONS, dict(completion([100]), model="gpt-9"))
            error = self.assert_error(response, 404)
            self.assertEqual(error["code"], "model_not_found")
            self.assertEqual(client.get("/v1/nothing").status, 404)
            self.assertEqual(client.get("/v1/completions").status, 405)
            models = client.get("/v1/models").json()
            self.assertEqual(models["data"][0]["id"], pathlib.Path(Settings.model).stem)
            named = dict(completion([100], max_tokens=1), model=models["data"][0]["id"])
            self.assertEqual(client.post(COMPLETIONS, named).status, 200)

    def test_b40_deep_nesting_beside_a_stream(self):
        """A few kilobytes of brackets must not end the process or the stream, nor take long."""
        beside = completion(token_prompt(20), max_tokens=400, ignore_eos=True,
                            stream_options={"include_usage": True}, **GREEDY)
        message = '{"messages":[{"role":"user","content":'
        for nodes, client in self.each():
            stream = client.stream(COMPLETIONS, beside)
            bodies = iter(stream)
            next(bodies)
            for depth in (3000, 10_000, 100_000):
                arrays = "[" * depth + "]" * depth
                for body in ('{"messages":[],"tools":' + arrays + "}",
                             '{"prompt":"x","unknown":' + '{"a":' * depth + "1" + "}" * depth + "}",
                             message + arrays + "}]}",
                             message + "[" * depth,
                             '{"a":' * depth,
                             "[" * depth):
                    for path in (CHAT, COMPLETIONS):
                        began = time.monotonic()
                        self.assert_error(client.post(path, body), 400)
                        self.assertLess(time.monotonic() - began, patient(1))
            for _ in bodies:
                pass
            self.assertTrue(stream.done)
            self.assertEqual(stream.canonical(), reference(beside).lines)
            self.assertTrue(all(node.running() for node in nodes.nodes))


class LimitsTest(E2eCase):
    """One small node: a key, a short queue, small bodies, another name."""

    def limited(self, *flags):
        node = make_single("limited", "--api-key", KEY, "--max-body", "64K",
                           "--served-model-name", "other-name", *flags)
        return self.start_own(node)

    def test_body_too_large_and_served_name(self):
        client = self.limited().front.client(key=KEY)
        self.assert_error(client.post(COMPLETIONS, {"prompt": "x" * 70_000}), 413)
        self.assertEqual(client.get("/v1/models").json()["data"][0]["id"], "other-name")

    def test_bodies_are_bounded_in_sum(self):
        """A body counts for what has come of it, until it has been read for its tokens; who finds no room may
        come again at once when it is given back. Also bodies of unknown length give it back."""
        node = self.limited("--max-bodies", "100K").front
        head = (f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
                f"Content-Length: {64 * 1024}\r\n\r\n")
        client = node.client(key=KEY)
        large = {"prompt": "x" * 40_000, "max_tokens": 1}
        with socket.create_connection(node.http.rsplit(":", 1), timeout=10) as slow:
            slow.sendall(head.encode() + b"x" * 65_000)
            wait_until(lambda: scrape(node, KEY).sum("baton_http_body_bytes") == 65_000, patient(10), "it came")
            refused = client.post(COMPLETIONS, large)
            self.assert_error(refused, 429)
            self.assertEqual(refused.headers.get("retry-after"), "1")
            self.assertEqual(client.post(COMPLETIONS, completion([1, 2, 3], max_tokens=1)).status, 200)
        wait_until(lambda: scrape(node, KEY).sum("baton_http_body_bytes") == 0, patient(10), "given back")
        self.assertNotEqual(client.post(COMPLETIONS, large).status, 429)
        body = json.dumps(completion([1, 2, 3], max_tokens=1))
        for _ in range(4):
            connection = http.client.HTTPConnection(*node.http.rsplit(":", 1), timeout=patient(10))
            connection.request("POST", COMPLETIONS, iter([body[:9].encode(), body[9:].encode()]),
                               {"Authorization": f"Bearer {KEY}"}, encode_chunked=True)
            self.assertEqual(connection.getresponse().status, 200)
            connection.close()
        self.assertEqual(scrape(node, KEY).sum("baton_http_body_bytes"), 0)

    def test_overload(self):
        """One runs, one waits, the rest get 429 with Retry-After, and those two end well."""
        nodes = self.limited("--max-queue", 2, "--max-num-seqs", 1)
        body = completion(token_prompt(20), max_tokens=200, ignore_eos=True, **GREEDY)
        gate = threading.Barrier(6)
        responses = []

        def work():
            gate.wait(10)
            responses.append(nodes.front.client(key=KEY).post(COMPLETIONS, body))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        refused = [response for response in responses if response.status != 200]
        self.assertEqual(len(refused), 4, [response.status for response in responses])
        for response in refused:
            self.assert_error(response, 429)
            self.assertGreaterEqual(int(response.headers["Retry-After"]), 1)

    def test_b39_the_key_guards_everything(self):
        nodes = self.start_own(make_cluster("guarded", flags=["-t", 1, "--api-key", KEY]))
        alone = self.limited()
        body = completion([100], max_tokens=1)
        paths = ("/v1/models", "/v1/chat/completions", "/v1/completions", "/metrics", "/", "/version",
                 "/cluster", "/index.html",
                 "//v1/models", "/v1//models", "/v1/./models", "/v1/../v1/models", "/v1/models/",
                 "/V1/MODELS", "/health/", "//health", "/health/../v1/models")
        for node in (alone.front, nodes.router, nodes.prefill[0], nodes.decode[0]):
            for key in (None, KEY[:-1] + "8", KEY[:-1], ""):
                client = node.client(key=key)
                for path in paths:
                    for method in ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
                        if (method, path) == ("GET", "/"):
                            continue  # the page: one file for everybody, see test_page.py
                        sent = body if method == "POST" else None
                        status = client.request(method, path, sent).status
                        self.assertEqual(status, 401, f"{node.name} {method} {path} key={key}")
            self.assertEqual(node.client().get("/health").status, 200)
            self.assertEqual(node.client().get("/ready").status, 200)
            metrics = node.client(key=KEY).get("/metrics")
            self.assertEqual(metrics.status, 200)
        computed = "baton_prompt_tokens_computed_total"
        self.assertTrue(all(line.endswith(" 0") for line in metrics.text.splitlines()
                            if line.startswith(computed)), "a refused request did model work")
        lower = alone.front.client().get("/v1/models", headers={"Authorization": f"bearer {KEY}"})
        self.assertEqual(lower.status, 200)
        self.assertEqual(nodes.front.client(key=KEY).post(COMPLETIONS, body).status, 200)


class PeersTest(E2eCase):
    def test_peers_that_cannot_be_reached(self):
        """The router starts, says which peer is missing, and is not ready; requests get 503."""
        prefill, decode = f"{LOOPBACK}:{free_port()}", f"{LOOPBACK}:{free_port()}"
        router = Node(Settings.binary, "lonely-router",
                      ["-m", Settings.model, "--node-role", "router", "--port", 0,
                       "--prefill-peers", prefill, "--decode-peers", decode], Settings.logs)
        self.addCleanup(router.stop)
        router.start().wait_listening(patient(60))
        client = router.client()

        def named():
            response = client.get("/ready")
            self.assertEqual(response.status, 503, response.text)
            return prefill in response.text and decode in response.text

        wait_until(named, patient(10), "/ready names both peers")
        self.assertEqual(client.get("/health").status, 200)
        self.assert_error(client.post(COMPLETIONS, completion([100], max_tokens=1)), 503)
        wait_until(lambda: prefill in router.log() and decode in router.log(), patient(10),
                   "the log names both peers")

    def test_unlike_nodes_refuse_each_other(self):
        """Another KV dtype: the field and both values stand in the log and in /ready."""
        nodes = make_cluster("unlike", flags=["-t", 1], decode_flags=["--kv-dtype", "f32"])
        self.start_own(nodes, wait_ready=False)

        def said(text):
            return all(word in text for word in ("bf16", "f32", "differs"))

        logs = (nodes.prefill[0], nodes.decode[0])
        wait_until(lambda: any(said(node.log()) for node in logs), patient(20),
                   "a log names what differs and both values")
        asked = (nodes.router, nodes.prefill[0])
        wait_until(lambda: any(said(node.client().get("/ready").text) for node in asked), patient(10),
                   "/ready names what differs and both values")
        # Each may serve alone, never as a pair.
        response = nodes.router.client().post(COMPLETIONS, completion([100, 101], max_tokens=2))
        self.assertEqual(response.status, nodes.router.ready_status())
        if response.status == 200:
            self.assertEqual(response.json()["baton"]["path"], "local")


class AliveTest(E2eCase):
    def test_after_all_that_the_shared_nodes_answer(self):
        body = completion(token_prompt(16), max_tokens=4, **GREEDY)
        for nodes in (single(), pair()):
            self.assert_same(ask(nodes, body), body)
            self.wait_idle(nodes)
