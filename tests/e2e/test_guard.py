"""Who may talk to a node and who may listen: mutual TLS and the cluster token between nodes, TLS for
clients, and what the public port does not reach."""
import pathlib
import shutil
import socket
import ssl
import subprocess
import time

from harness.canonical import canonical
from harness.case import (CHAT, COMPLETIONS, GREEDY, SEEDED, E2eCase, Settings, ask, ask_all, chat, completion,
                          make_cluster, make_single, pair, patient, reference, token_prompt)
from harness.certificates import Authority
from harness.client import Client, ConnectionFailed
from harness.cluster import LOOPBACK
from harness.metrics import expected_kv_bytes
from harness.node import Node, wait_until

SECRET = "correct horse battery staple"
SMALL = ["-t", 1]

_made = {}


def folder():
    return pathlib.Path(Settings.logs) / "guard"


def authority(name="ca"):
    if name not in _made:
        _made[name] = Authority(folder() / name, f"{name} of the tests")
    return _made[name]


def token_file(name, secret):
    path = folder() / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(secret + "\n")
    path.chmod(0o600)
    return path


class GuardCase(E2eCase):
    def check(self, nodes, body, stream=True):
        answer = ask(nodes, body, stream)
        self.assert_same(answer, body)
        self.assertEqual(answer.served["path"], "split")
        return answer

    def check_some(self, nodes):
        """Greedy, seeded, streamed, whole, short and long, and at once."""
        answer = self.check(nodes, completion(token_prompt(777, seed=90), max_tokens=12, **SEEDED))
        self.assertEqual(answer.served["kv_bytes"], expected_kv_bytes(777))
        bodies = [chat("Say hello to somebody who reads along.", max_tokens=24, **GREEDY),
                  completion(token_prompt(33, seed=91), max_tokens=16, ignore_eos=True, **SEEDED),
                  completion(token_prompt(1200, seed=92), max_tokens=8, ignore_eos=True, **GREEDY)]
        expected = [reference(body) for body in bodies]
        for body, answer, cold in zip(bodies, ask_all(nodes, bodies), expected):
            self.assertEqual(answer.lines, cold.lines, body)
        self.check(nodes, bodies[0], stream=False)

    def stranger(self, nodes, name, *flags):
        """A router for these nodes with flags of its own."""
        argv = ["-m", Settings.model, "--node-role", "router", "--node-id", name,
                "--host", LOOPBACK, "--port", 0,
                "--prefill-peers", ",".join(node.serving for node in nodes.prefill),
                "--decode-peers", ",".join(node.serving for node in nodes.decode), *flags]
        node = Node(Settings.binary, name, argv, Settings.logs)
        self.addCleanup(lambda: self.assertEqual(node.stop(), 0))
        return node.start().wait_listening(patient(60))

    def assert_refused(self, stranger, here, there=(), nodes=None):
        """It says why, its /ready says why, the nodes' logs say why, and it stays out."""
        def log_has(node, words):
            return all(word in node.log() for word in words)

        def ready():
            return stranger.client(timeout_s=10).get("/ready")

        wait_until(lambda: log_has(stranger, here), patient(10), f"{here} in\n{stranger.tail()}")
        # The transport logs it; the router's table hears of it a turn later.
        wait_until(lambda: here[0] in ready().text, patient(10), f"{here[0]} in /ready")
        self.assertEqual(ready().status, 503)
        answer = stranger.client(timeout_s=patient(20)).post(CHAT, chat("Let me in.", max_tokens=4))
        self.assertEqual(answer.status, 503, answer.text)
        for node in nodes.engines if nodes else []:
            if there:
                wait_until(lambda node=node: log_has(node, there), patient(10),
                           f"{there} in\n{node.tail()}")

    def assert_served(self, nodes):
        body = chat("Say hello to somebody who reads along.", max_tokens=24, **GREEDY)
        self.check(nodes, body)

    def strangers_at_the_port(self, nodes):
        """Noise, HTTP, silence, many times: nobody is kept from working."""
        host, port = nodes.decode[0].serving.rsplit(":", 1)
        kept = [socket.create_connection((host, int(port)), 10) for _ in range(70)]
        try:
            kept[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100)
            kept[1].sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xff" * 600)
            kept[2].sendall(bytes(range(256)) * 40)
            self.assert_served(nodes)
            for one in kept[:3]:
                one.settimeout(patient(10))
                try:
                    while one.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
            self.assert_served(nodes)
        finally:
            for one in kept:
                one.close()
        self.assertEqual(nodes.front.ready_status(), 200)


class NodeTlsTest(GuardCase):
    def cluster(self):
        ca = authority()
        return self.start_own(make_cluster(
            "tls", flags=SMALL,
            prefill_flags=ca.node_flags("prefill"),
            decode_flags=ca.node_flags("decode"),
            router_flags=ca.node_flags("router")))

    def test_streams_are_identical_and_strangers_stay_out(self):
        nodes = self.cluster()
        self.check_some(nodes)
        self.sees_tls(nodes.decode[0].serving)

        plain = self.stranger(nodes, "plain")
        self.assert_refused(plain, ("speaks TLS and this node does not", "--node-tls-cert"),
                            ("it does not speak TLS", "--node-tls-cert"), nodes)
        other = self.stranger(nodes, "foreign", *authority("other").node_flags("foreign"))
        self.assert_refused(other, ("its certificate is not accepted",),
                            ("refused: TLS with 127.0.0.1 failed",), nodes)
        expired = self.stranger(nodes, "expired", *authority().node_flags("expired", days=-1))
        self.assert_refused(expired, ("refused us", "expired"), ("certificate has expired",), nodes)
        self.assertIn("--node-tls-cert: the certificate in", expired.log())

        self.strangers_at_the_port(nodes)
        self.assert_served(nodes)

    def sees_tls(self, serving):
        """The best protocol and the fastest cipher, as OpenSSL's own client reports it; and that the
        node shows itself to nobody who shows no certificate."""
        certificate, key = authority().issue("probe")
        argv = ["openssl", "s_client", "-connect", serving, "-CAfile", authority().ca, "-verify_return_error",
                "-cert", certificate, "-key", key]
        done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=30,
                              stdin=subprocess.DEVNULL, errors="replace")
        self.assertIn("TLSv1.3, Cipher is TLS_AES_128_GCM_SHA256", done.stdout)
        self.assertIn("Verify return code: 0 (ok)", done.stdout)
        bare = subprocess.run([*map(str, argv[:6]), "-tls1_2"], capture_output=True, text=True,
                              timeout=30, stdin=subprocess.DEVNULL, errors="replace")
        self.assertNotEqual(bare.returncode, 0)
        old = subprocess.run([*map(str, argv), "-tls1_1"], capture_output=True, text=True,
                             timeout=30, stdin=subprocess.DEVNULL, errors="replace")
        self.assertNotEqual(old.returncode, 0)


class ClusterTokenTest(GuardCase):
    def test_streams_are_identical_and_strangers_stay_out(self):
        file = token_file("token", SECRET)
        nodes = make_cluster("token", flags=[*SMALL, "--cluster-token-file", file])
        self.start_own(nodes)
        self.check_some(nodes)
        for node in nodes.nodes:
            self.assertIn("does not encrypt", node.log())
            self.assertNotIn(SECRET, node.log())

        none = self.stranger(nodes, "none")
        self.assert_refused(none, ("it asks for a cluster token and we have none",
                                   "--cluster-token-file"), ("it has no cluster token",), nodes)
        other = self.stranger(nodes, "other", "--cluster-token-file",
                              token_file("other-token", "another horse battery staple"))
        self.assert_refused(other, ("it has another cluster token", "--cluster-token-file"),
                            ("cannot pair with other: it has another cluster token",), nodes)
        self.strangers_at_the_port(nodes)
        self.assert_served(nodes)

        # The secret itself, from the environment.
        second = Node(Settings.binary, "by-variable", [
            "-m", Settings.model, "--node-role", "router", "--node-id", "by-variable", "--host",
            LOOPBACK, "--port", 0, "--prefill-peers", nodes.prefill[0].serving, "--decode-peers",
            nodes.decode[0].serving], Settings.logs)
        second.variables["BATON_CLUSTER_TOKEN"] = SECRET
        self.addCleanup(lambda: self.assertEqual(second.stop(), 0))
        second.start().wait_listening(patient(60)).wait_ready(patient(30))

    def test_replicas_share_what_is_cached(self):
        """Two routers name a prompt's cache namespace alike: what one had computed serves the other's requests.
        Not for somebody else's salt; and not without a token in common."""
        def cached(router, asked):
            answer = router.client(timeout_s=patient(60)).post(COMPLETIONS, asked)
            self.assertEqual(answer.status, 200, answer.text)
            self.assertEqual(canonical(answer.text), expected)
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        body = completion(token_prompt(400, seed=97), max_tokens=8, ignore_eos=True, **GREEDY)
        expected = reference(body).lines
        token = [*SMALL, "--cluster-token-file", token_file("token", SECRET)]
        for name, flags, shared in (("replicas", token, 384), ("strangers", SMALL, 0)):
            nodes = self.start_own(make_cluster(name, routers=2, flags=flags))
            first, second = nodes.routers
            self.assertEqual([cached(first, body), cached(second, body), cached(first, body)], [0, shared, 384])
            self.assertEqual(cached(second, dict(body, cache_salt="other")), 0)

    def test_token_and_tls_together(self):
        ca = authority()
        flags = [*SMALL, "--cluster-token-file", token_file("token", SECRET)]
        nodes = self.start_own(make_cluster(
            "both", flags=flags, prefill_flags=ca.node_flags("prefill-2"),
            decode_flags=ca.node_flags("decode-2"), router_flags=ca.node_flags("router-2")))
        self.assert_served(nodes)
        for node in nodes.nodes:
            self.assertNotIn("does not encrypt", node.log())
        half = self.stranger(nodes, "half", *ca.node_flags("half"))
        self.assert_refused(half, ("it asks for a cluster token and we have none",))


class StartUpTest(E2eCase):
    """See run_baton. All of it before the model is looked at."""

    ABSENT = ("-m", "/nowhere/at-all.gguf")

    def decode(self, *flags, bind=f"{LOOPBACK}:0", variables=None):
        return self.run_baton(*self.ABSENT, "--node-role", "decode", "--serving-bind", bind, *flags,
                              variables=variables)

    def test_files(self):
        good, key = authority().issue("files")
        other, other_key = authority().issue("files-2")
        ca = authority().ca
        for cert, its_key, its_ca, words in (
                ("/nowhere/c.pem", key, ca, ("--node-tls-cert", "/nowhere/c.pem")),
                (good, "/nowhere/k.pem", ca, ("--node-tls-key", "/nowhere/k.pem")),
                (good, key, "/nowhere/a.pem", ("--node-tls-ca", "/nowhere/a.pem")),
                (good, other_key, ca, ("--node-tls-key", "is not the key of")),
                (key, key, ca, ("--node-tls-cert", "not a certificate")),
                (good, key, key, ("--node-tls-ca", "no CA certificate"))):
            with self.subTest(words=words):
                said = self.decode("--node-tls-cert", cert, "--node-tls-key", its_key,
                                   "--node-tls-ca", its_ca)
                for word in words:
                    self.assertIn(word, said)
        said = self.run_baton(*self.ABSENT, "--port", 0, "--ssl-certfile", good, "--ssl-keyfile",
                              other_key)
        self.assertIn("--ssl-key-file", said)
        self.assertIn("is not the key of", said)

    def test_half_of_the_flags(self):
        good, key = authority().issue("half-flags")
        ca = authority().ca
        for flags, word in (
                (("--node-tls-cert", good), "--node-tls-key, --node-tls-ca"),
                (("--node-tls-cert", good, "--node-tls-key", key), "without --node-tls-ca"),
                (("--node-tls-ca", ca), "--node-tls-cert, --node-tls-key")):
            with self.subTest(flags=flags):
                self.assertIn(word, self.decode(*flags))
        for flags, word in ((("--ssl-cert-file", good), "without --ssl-key-file"),
                            (("--ssl-key-file", key), "without --ssl-cert-file"),
                            (("--ssl-ca-certs", ca), "--ssl-ca-certs needs"),
                            (("--cluster-token-file", token_file("token", SECRET)),
                             "a single node has no peers")):
            with self.subTest(flags=flags):
                self.assertIn(word, self.run_baton(*self.ABSENT, "--port", 0, *flags))

    def test_token(self):
        said = self.decode("--cluster-token-file", "/nowhere/token")
        self.assertIn("--cluster-token-file: cannot read /nowhere/token", said)
        said = self.decode("--cluster-token-file", token_file("short", "tooshort"))
        self.assertIn("--cluster-token-file: a cluster token has 16 to 4096 bytes", said)
        self.assertNotIn("tooshort", said)
        said = self.decode(variables={"BATON_CLUSTER_TOKEN": "tooshort"})
        self.assertIn("BATON_CLUSTER_TOKEN: a cluster token has 16", said)
        self.assertNotIn("tooshort", said)
        said = self.decode("--cluster-token-file", token_file("token", SECRET),
                           variables={"BATON_CLUSTER_TOKEN": SECRET})
        self.assertIn("--cluster-token-file and BATON_CLUSTER_TOKEN", said)
        # Never on a command line, where every user of the machine sees it.
        self.assertIn("--cluster-token", self.decode("--cluster-token", SECRET))

    def test_beyond_loopback_only_with_a_guard(self):
        said = self.decode(bind="0.0.0.0:0")
        for word in ("--serving-bind", "0.0.0.0", "--node-tls-cert", "--cluster-token-file"):
            self.assertIn(word, said)
        # With one it gets as far as the model.
        said = self.decode("--cluster-token-file", token_file("token", SECRET), bind="0.0.0.0:0")
        self.assertIn("/nowhere/at-all.gguf", said)
        self.assertIn("does not encrypt", said)
        said = self.decode(*authority().node_flags("beyond"), bind="0.0.0.0:0")
        self.assertIn("/nowhere/at-all.gguf", said)


class HttpsTest(E2eCase):
    def test_clients_over_tls(self):
        certificate, key = authority().issue("https")
        nodes = make_single("https", "--ssl-cert-file", certificate, "--ssl-key-file", key)
        node = nodes.front
        node.tls = ssl.create_default_context(cafile=str(authority().ca))
        self.start_own(nodes)
        self.assertIn("listening https=", node.log())
        for body in (chat("Say hello to somebody who reads along.", max_tokens=24, **GREEDY),
                     completion(token_prompt(300, seed=93), max_tokens=30, ignore_eos=True, **SEEDED)):
            for stream in (False, True):
                self.assert_same(ask(nodes, body, stream), body)
        self.assertEqual(node.client().get("/metrics").status, 200)

        plain = Client(node.http, timeout_s=patient(10)).get("/ready")
        self.assertEqual(plain.status, 400)
        self.assertIn("HTTPS only", plain.text)
        other = Client(node.http, timeout_s=patient(10),
                       tls=ssl.create_default_context(cafile=str(authority("other").ca)))
        with self.assertRaisesRegex(ConnectionFailed, "certificate verify failed"):
            other.get("/ready")
        self.assertEqual(node.ready_status(), 200)
        if shutil.which("curl"):
            argv = ["curl", "-sS", "--max-time", "30", "--cacert", authority().ca,
                    f"https://{node.http}/health"]
            done = subprocess.run(list(map(str, argv)), capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_clients_with_certificates(self):
        ca = authority()
        certificate, key = ca.issue("https-2")
        nodes = make_single("https-clients", "--ssl-certfile", certificate, "--ssl-keyfile", key,
                            "--ssl-ca-certs", ca.ca)
        node = nodes.front
        node.tls = ssl.create_default_context(cafile=str(ca.ca))
        node.tls.load_cert_chain(*ca.issue("client"))
        self.start_own(nodes)
        for other in (None, authority("other")):
            context = ssl.create_default_context(cafile=str(ca.ca))
            if other:
                context.load_cert_chain(*other.issue("client"))
            with self.assertRaises(ConnectionFailed):
                Client(node.http, timeout_s=patient(10), tls=context).get("/health")


class PublicPortTest(GuardCase):
    """What nodes tell each other cannot be said by a client."""

    def test_fields_of_a_handoff_have_no_effect(self):
        inside = {
            "decode_node": "elsewhere", "prefill_node": "elsewhere", "reply_to": "elsewhere",
            "emitted": [1, 2, 3], "epoch": 7, "choice": 9, "request_high": 1, "request_low": 2,
            "cache_namespace": "A" * 16, "node_id": "pair-decode0",
            "kv_transfer_params": {"do_remote_decode": True, "remote_host": "127.0.0.1",
                                   "remote_port": 1, "remote_block_ids": [0, 1]},
            "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1,
            "data_parallel_rank": 5, "request": {"prompt": [1]},
        }
        headers = {"X-Request-Id": "___prefill_addr_127.0.0.1:1___decode_addr_127.0.0.1:1_1",
                   "X-Prefiller-Host-Port": "127.0.0.1:1", "X-Data-Parallel-Host-Port": "127.0.0.1:1"}
        body = chat("What can a client change?", max_tokens=16, **SEEDED)
        plain = self.check(pair(), body)
        response = pair().front.client().post(CHAT, {**body, **inside}, headers=headers)
        self.assertEqual(response.status, 200, response.text)
        choice = response.json()["choices"][0]
        self.assertEqual(choice["token_ids"], plain.tokens)
        served = response.json()["baton"]
        for field in ("path", "prefill_node", "decode_node"):
            self.assertEqual(served[field], plain.served[field])
        self.wait_idle(pair())

    def test_no_route_and_no_frame(self):
        client = pair().front.client(timeout_s=10)
        for path in ("/v1/prefill", "/v1/decode", "/handoff", "/grant", "/v1/kv", "/inference"):
            self.assertEqual(client.post(path, {}).status, 404, path)
        frame = bytes.fromhex("4241544e0100010000000000") + bytes(52)
        host, port = pair().front.http.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as raw:
            raw.sendall(frame + b"\r\n\r\n")
            raw.settimeout(10)
            self.assertIn(b"400", raw.recv(4096))
        begin = time.monotonic()
        with self.assertRaises(ConnectionFailed):  # and no HTTP where nodes talk
            Client(pair().decode[0].serving, timeout_s=20).get("/metrics")
        self.assertLess(time.monotonic() - begin, patient(10))
