"""The page at `/`, its data at /cluster, and both of them in a browser."""
import base64
import hashlib
import json
import re

from harness.browser import Browser, find_browser
from harness.case import (COMPLETIONS, GREEDY, E2eCase, ask, ask_all, completion, make_cluster,
                          make_single, pair, patient, single, token_prompt)
from harness.node import wait_until

KEY = "page-key-17"
KEPT_REQUESTS = 64  # kKeptRequests of baton/router/history.h
KEPT_EVENTS = 48
LONG = completion(token_prompt(40), max_tokens=300, ignore_eos=True, **GREEDY)


def cluster(node, key=None):
    response = node.client(key=key, timeout_s=10).get("/cluster")
    assert response.status == 200, response.text
    return response.json()


def request_of(view, body_id):
    """The time line of the answer with that `id`."""
    return next(request for request in view["requests"] if body_id.endswith(request["id"]))


def steps(request):
    return [event["event"] for event in request["events"]]


class ClusterDataTest(E2eCase):
    def check_shape(self, view):
        self.assertEqual(set(view), {"now_us", "self", "ready", "missing", "counters", "nodes", "requests"})
        self.assertEqual(set(view["self"]), {"id", "role", "model"})
        self.assertEqual(set(view["counters"]), {
            "accepted", "active", "completed", "failed", "aborted", "rejected", "retries", "replays",
            "local_fallbacks", "tokens_delivered"})
        for node in view["nodes"]:
            self.assertEqual(set(node), {
                "id", "role", "address", "state", "reason", "seen_us", "assigned", "faults", "running", "waiting",
                "free_blocks", "total_blocks", "steps", "context_tokens", "pool_tokens"})
            self.assertLessEqual(node["free_blocks"], node["total_blocks"])
            self.assertLessEqual(node["seen_us"], view["now_us"])
        for request in view["requests"]:
            self.assertEqual(set(request), {
                "id", "state", "received_us", "ended_us", "choices", "prompt_tokens", "cached_tokens",
                "max_tokens", "tokens", "kv_bytes", "error", "events", "events_left_out"})
            self.assertLessEqual(len(request["events"]), KEPT_EVENTS)
            times = [request["received_us"], *(event["at_us"] for event in request["events"])]
            times += [request["ended_us"] if request["ended_us"] is not None else view["now_us"]]
            self.assertEqual(times, sorted(times), request)
        received = [request["received_us"] for request in view["requests"]]
        self.assertEqual(received, sorted(received, reverse=True), "newest first")

    def test_a_request_across_the_split(self):
        nodes = pair()
        answer = ask(nodes, completion(token_prompt(300, seed=31), max_tokens=5, ignore_eos=True))
        view = cluster(nodes.front)
        self.check_shape(view)
        self.assertTrue(view["ready"])
        self.assertEqual({(node["role"], node["state"]) for node in view["nodes"]},
                         {("prefill", "up"), ("decode", "up")})
        addresses = {node["id"]: node["address"] for node in view["nodes"]}
        for node in nodes.engines:
            self.assertEqual(addresses[node.name], node.serving)
        request = request_of(view, answer.bodies[0]["id"])
        self.assertEqual(request["state"], "completed")
        self.assertEqual((request["prompt_tokens"], request["tokens"], request["max_tokens"]), (300, 5, 5))
        self.assertEqual(request["kv_bytes"], answer.served["kv_bytes"])
        self.assertEqual(steps(request)[0], "sent")
        self.assertEqual(sorted(steps(request)[1:]), ["committed", "first_token"])
        sent = request["events"][0]
        self.assertEqual((sent["node"], sent["decode_node"]),
                         (answer.served["prefill_node"], answer.served["decode_node"]))

    def test_load_while_a_stream_runs(self):
        nodes = pair()
        stream = nodes.front.client(timeout_s=patient(60)).stream(COMPLETIONS, LONG)
        bodies = iter(stream)
        name = next(bodies)["id"]

        def seen():
            view = cluster(nodes.front)
            decode = next(node for node in view["nodes"] if node["role"] == "decode")
            return (request_of(view, name)["state"] == "active" and decode["running"] > 0
                    and decode["assigned"] > 0 and decode["free_blocks"] < decode["total_blocks"])

        try:
            wait_until(seen, patient(5), "/cluster shows the running request and its node's load")
        finally:
            stream.close()
        wait_until(lambda: request_of(cluster(nodes.front), name)["state"] == "aborted", patient(5),
                   "the client's leaving shows")

    def test_a_single_node_shows_itself(self):
        nodes = single()
        answer = ask(nodes, completion(token_prompt(20), max_tokens=3, ignore_eos=True))
        view = cluster(nodes.front)
        self.check_shape(view)
        self.assertEqual([(node["id"], node["role"], node["address"]) for node in view["nodes"]],
                         [(nodes.node.name, "single", nodes.node.http)])
        self.assertGreater(view["nodes"][0]["steps"], 0)
        request = request_of(view, answer.bodies[0]["id"])
        self.assertEqual(steps(request), ["sent", "first_token"])
        self.assertEqual(request["events"][0]["node"], request["events"][0]["decode_node"])

    def test_bounds_and_nothing_of_the_text(self):
        nodes = single()
        secret = "Xylophone-4711"
        for _ in range(0, KEPT_REQUESTS + 8, 8):
            ask_all(nodes, [completion(f"{secret} {secret}", max_tokens=1)] * 8)
        text = nodes.front.client().get("/cluster").text
        view = json.loads(text)
        self.check_shape(view)
        self.assertEqual(len(view["requests"]), KEPT_REQUESTS)
        self.assertLess(len(text), 100_000)
        self.assertNotIn("Xylophone", text)
        self.assertEqual(nodes.front.client().post("/cluster", {}).status, 405)

    def test_a_replay_on_another_node(self):
        """A decode node is killed in mid stream: the time line names it, why, and who went on."""
        nodes = self.start_own(make_cluster("page-kill", prefill=1, decode=2, flags=["-t", 1]))
        stream = nodes.front.client(timeout_s=patient(60)).stream(COMPLETIONS, LONG)
        bodies = iter(stream)
        first = [next(bodies) for _ in range(4)]
        victim = next(b["baton"]["decode_node"] for b in first if b.get("baton"))
        next(node for node in nodes.decode if node.name == victim).kill()
        for _ in bodies:
            pass
        self.assertTrue(stream.done, stream.text[-300:])
        view = cluster(nodes.front)
        self.check_shape(view)
        request = request_of(view, first[0]["id"])
        lost = next(event for event in request["events"] if event["event"] == "lost")
        self.assertEqual(lost["node"], victim)
        self.assertTrue(lost["reason"])
        again = [event for event in request["events"] if event["event"] == "sent"][-1]
        self.assertNotEqual(again["decode_node"], victim)
        self.assertGreaterEqual(again["tokens"], 4)
        self.assertEqual(view["counters"]["replays"], 1)
        dead = next(node for node in view["nodes"] if node["id"] == victim)
        self.assertEqual(dead["state"], "down")
        self.assertTrue(dead["reason"])


class PageTest(E2eCase):
    def test_the_page_is_public_and_its_data_is_not(self):
        node = self.start_own(make_single("page-key", "--api-key", KEY)).front
        page = node.client().get("/")
        self.assertEqual(page.status, 200)
        self.assertEqual(page.text, node.client(key=KEY).get("/").text)
        for word in (node.name, node.http, KEY):
            self.assertNotIn(word, page.text)
        for key in (None, KEY[:-1], KEY + "1", ""):
            self.assert_error(node.client(key=key).get("/cluster"), 401)
        self.assertEqual(node.client(key=KEY).get("/cluster").status, 200)

    def test_prefill_and_decode_nodes_have_none(self):
        for node in pair().engines:
            self.assertEqual(node.client().get("/").status, 404)
            self.assertEqual(node.client().get("/cluster").status, 404)

    def test_policy(self):
        """Only the page's own inline script and style run; nothing comes from or goes elsewhere."""
        for node in (single().front, pair().router):
            page = node.client().get("/")
            self.assertEqual(page.headers["Content-Type"], "text/html; charset=utf-8")
            self.assertEqual(page.headers["X-Content-Type-Options"], "nosniff")
            policy = dict((part.strip().split(" ", 1) + [""])[:2]
                          for part in page.headers["Content-Security-Policy"].split(";"))
            self.assertEqual(policy["default-src"], "'none'")
            self.assertEqual(policy["connect-src"], "'self'")
            for tag in ("script", "style"):
                parts = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", page.text, re.S)
                self.assertEqual(len(parts), 1)
                digest = base64.b64encode(hashlib.sha256(parts[0].encode()).digest()).decode()
                self.assertEqual(policy[f"{tag}-src"], f"'sha256-{digest}'")
            self.assertNotIn("unsafe", page.headers["Content-Security-Policy"])
            self.assertEqual(re.findall(r"https?://", page.text), [])
            self.assertEqual(re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(",
                                        page.text), [])
            self.assertEqual(re.findall(r"<[^>]*\s(?:on\w+|style)=", page.text), [])


class BrowserTest(E2eCase):
    """In a real browser. The package is large: scripts/nightly installs it, other runs may skip."""

    MARKUP = "<img src=x onerror=document.title='hacked'><b>bold</b>"

    def setUp(self):
        program = find_browser()
        if program is None:
            self.skipTest("no Chromium here; scripts/nightly installs chromium-headless-shell")
        self.browser = Browser(program)
        self.addCleanup(self.browser.close)

    def text(self, selector):
        return self.browser.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''")

    def ask(self, question, answers):
        self.browser.evaluate("document.getElementById('prompt').focus()")
        self.browser.type(question)
        self.browser.press("Enter")
        self.browser.wait(f"document.querySelectorAll('.message.assistant').length === {answers} && "
                          "!document.querySelector('.message.running')", patient(60))

    def test_chat_nodes_and_time_lines(self):
        nodes = pair()
        page = self.browser
        page.open(f"http://{nodes.front.http}/")
        page.wait("document.getElementById('state').textContent === 'ready'", patient(10))
        page.wait("document.querySelectorAll('#nodes tr').length === 2", patient(10))
        self.assertIn(nodes.decode[0].name, self.text("#nodes"))
        self.ask("Count to five." + self.MARKUP, 1)
        self.assertTrue(self.text(".message.assistant").strip())
        self.assertIn(nodes.decode[0].name, self.text(".meta"))
        # What users and the model write is text, whatever it looks like.
        self.assertEqual(self.text(".message.user"), "Count to five." + self.MARKUP)
        self.assertEqual(page.evaluate("document.querySelectorAll('.message *').length"), 0)
        self.assertEqual(page.evaluate("document.title"), "baton")
        page.wait("document.querySelector('#requests .pill')?.textContent === 'completed'", patient(10))
        for kind in ("prefill", "wire", "decode"):
            self.assertTrue(page.evaluate(
                f"document.querySelector('#requests li .segment.{kind}') !== null"), kind)
        # By keyboard: the first time line opens with Enter and stays open over the next polls.
        page.evaluate("document.getElementById('scale').focus()")
        page.press("Tab")
        page.press("Enter")
        self.assertEqual(page.evaluate("document.activeElement.getAttribute('aria-expanded')"), "true")
        seen = page.evaluate("previous.now_us")
        page.wait(f"previous.now_us > {seen} + 1500000", patient(10))
        self.assertEqual(page.evaluate("document.activeElement.getAttribute('aria-expanded')"), "true")
        self.assertIn("has verified the KV", self.text("#requests .details"))
        self.assertEqual(page.problems, [])

    def test_light_and_dark(self):
        page = self.browser
        page.open(f"http://{single().front.http}/")
        back = "getComputedStyle(document.body).backgroundColor"
        seen = {}
        for scheme in ("light", "dark"):
            page.colours(scheme)
            seen[scheme] = page.evaluate(back)
        self.assertNotEqual(seen["light"], seen["dark"])
        choose = ("(() => { const theme = document.getElementById('theme'); theme.value = 'light'; "
                  "theme.dispatchEvent(new Event('change')); })()")
        page.evaluate(choose)
        self.assertEqual(page.evaluate(back), seen["light"], "what the user chose wins")

    def test_it_asks_for_the_key(self):
        node = self.start_own(make_single("page-browser", "--api-key", KEY, "--served-model-name",
                                          self.MARKUP)).front
        page = self.browser
        page.open(f"http://{node.http}/")
        page.wait("!document.getElementById('key-panel').hidden", patient(10))
        page.evaluate("document.getElementById('key').focus()")
        page.type(KEY)
        page.press("Enter")
        page.wait("document.getElementById('state').textContent === 'ready'", patient(10))
        self.assertEqual(self.text("#model"), self.MARKUP)
        self.assertEqual(page.evaluate("document.title"), "baton")
        self.ask("Hello!", 1)
        self.assertTrue(self.text(".message.assistant").strip())
