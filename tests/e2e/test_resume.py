"""Last-Event-ID: an answer that lost its owner goes on at another one, and what a client joins of the
two reads as one uninterrupted stream."""
import json
import re
import signal

from harness.canonical import canonical
from harness.case import (CHAT, COMPLETIONS, GREEDY, SEEDED, E2eCase, begin_stream, chat, completion, make_cluster,
                          make_single, pair, path_of, patient, read_rest, reference, single, token_prompt)
from harness.metrics import scrape

USAGE = {"stream_options": {"include_usage": True}}
SHORT = {
    "chat, greedy": chat("Say hello.", max_tokens=7, **GREEDY, **USAGE),
    "chat, text only": {"messages": [{"role": "user", "content": "Name three colours."}], "max_tokens": 9, **GREEDY},
    "completion, seeded, penalties": completion(token_prompt(40), max_tokens=8, repetition_penalty=1.3,
                                                frequency_penalty=0.7, **SEEDED, **USAGE),
    "alternatives, no seed": {"prompt": "The sea", "max_tokens": 6, "temperature": 1.2, "logprobs": 3, **USAGE},
    "no seed, text only": {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 1.0},
    "stop string": {"prompt": "Days of the week: Monday,", "max_tokens": 12,
                    "stop": ["Wednesday, Thursday", "Wednesday, Xylo"], **GREEDY, **USAGE},
    "held back, then not": {"prompt": "Days of the week: Monday,", "max_tokens": 10,
                            "stop": ["Wednesday, Xylo"], **GREEDY},
}


def cut(text):
    """The events of a stream as they were sent, without comments, which may come at any time."""
    text = re.sub("^:.*\n", "", text, flags=re.M)
    return [part + "\n\n" for part in text.split("\n\n") if part]


def id_of(event):
    found = re.match("id: (.*)\n", event)
    return found.group(1) if found else None


def data_of(event):
    return json.loads(event[event.index("data: ") + 6:])


def without_place(text):
    """Without what tells where and from which caches an answer was made."""
    return re.sub(r',"baton":\{[^}]*\}', "", re.sub(r'"cached_tokens":\d+', '"cached_tokens":0', text))


def read(node, body, last_id=None):
    stream = node.client(timeout_s=patient(60)).stream(path_of(body), body, last_id).read_all()
    if stream.status != 200:
        raise AssertionError(f"status {stream.status}: {stream.text}")
    return stream


def events_of(node, body, last_id=None):
    return "".join(cut(read(node, body, last_id).text))


class EventsTest(E2eCase):
    def check_each(self, first, second, body, same):
        """An answer of `first`, resumed at `second` after each of its events but [DONE]."""
        events = cut(read(first, body).text)
        self.assertEqual(events[-1], "data: [DONE]\n\n")
        self.assertGreater(len(events), 4, events)
        ids = [id_of(event) for event in events[:-1]]
        self.assertEqual(len(set(ids)), len(ids), ids)
        for number, event_id in enumerate(ids):
            again = events_of(second, body, event_id)
            self.assertEqual(same(again), same("".join(events[number + 1:])), f"after event {number}: {event_id}")
        return events

    def test_each_event_of_a_single_node(self):
        """All bytes, ids and usage too: nothing is cached there, and it is one place."""
        for name, body in SHORT.items():
            with self.subTest(body=name):
                self.check_each(single().front, single().front, body, same=str)

    def test_each_event_of_a_cluster(self):
        for name in ("chat, greedy", "alternatives, no seed", "stop string"):
            with self.subTest(body=name):
                self.check_each(pair().front, pair().front, SHORT[name], same=without_place)
        self.wait_idle(pair())

    def test_between_a_cluster_and_a_single_node(self):
        body = SHORT["completion, seeded, penalties"]
        for first, second in ((pair(), single()), (single(), pair())):
            with self.subTest(first=first.front.name):
                self.check_each(first.front, second.front, body, same=without_place)

    def test_a_resumed_answer_can_be_resumed(self):
        body = SHORT["no seed, text only"]
        events = cut(read(single().front, body).text)
        client = single().front.client(timeout_s=patient(60))
        got, last_id = [], None
        while "data: [DONE]\n\n" not in got:
            stream = client.stream(path_of(body), body, last_id)
            bodies = iter(stream)
            if len(got) + 2 < len(events):
                next(bodies), next(bodies)  # one whole event at least
                stream.close()
            else:
                read_rest(stream, bodies)
            if got:
                got += cut(stream.whole)
            else:
                got = cut(stream.whole)
                # Its seed and its name are its own: what follows is compared with that answer.
                events = got + cut(read(single().front, body, stream.last_id).text)
            last_id = stream.last_id
        self.assertEqual(got, events)

    def test_pings_while_nothing_new_comes(self):
        """A slow node makes again what the client has, for longer than proxies wait in silence."""
        slow = self.start_own(make_single("resume-slow", "--sse-ping-interval", 0.1,
                                          "--failpoints", "engine.step=sleep:30")).front
        body = {"prompt": token_prompt(8), "max_tokens": 22, "ignore_eos": True, "logprobs": 0, **GREEDY}
        events = cut(read(single().front, body).text)
        stream = read(slow, body, id_of(events[20]))
        self.assertTrue(stream.text.startswith(": ping\n"), stream.text)
        self.assertEqual(without_place("".join(cut(stream.text))), without_place("".join(events[21:])))

    def test_two_choices(self):
        """Ids tell how far each of them came; which comes first may differ."""
        body = {"prompt": "The sea", "max_tokens": 7, "n": 2, "temperature": 1.1, "logprobs": 1, **USAGE}

        def by_choice(events):
            out = {}
            for event in events[:-1]:
                data = data_of(event)
                key = data["choices"][0]["index"] if data["choices"] else "usage"
                out.setdefault(key, []).append(data)
            return out

        for nodes in self.single_and_pair():
            node = nodes.front
            events = cut(without_place(read(node, body).text))
            expected = by_choice(events)
            self.assertEqual(set(expected), {0, 1, "usage"})
            self.assertNotEqual([part["choices"][0]["text"] for part in expected[0]],
                                [part["choices"][0]["text"] for part in expected[1]])
            for number, event in enumerate(events[:-1]):
                joined = events[:number + 1] + cut(without_place(read(node, body, id_of(event)).text))
                self.assertEqual(by_choice(joined), expected, f"after event {number}")
                self.assertEqual(joined[-1], events[-1])

    def test_the_limit_of_the_first_owner_is_kept(self):
        """No max_tokens: what is left of a small context; resumed where there is more."""
        small = self.start_own(make_single("resume-small", "-c", 64)).front
        body = {"prompt": token_prompt(40), "ignore_eos": True, **SEEDED, **USAGE}
        events = cut(read(small, body).text)
        self.assertEqual(data_of(events[-2])["usage"]["completion_tokens"], 24)
        for number in (0, 10, len(events) - 3):
            rest = events_of(single().front, body, id_of(events[number]))
            self.assertEqual(without_place(rest), without_place("".join(events[number + 1:])))
        # And the other way there is not enough room, which is said.
        stream, _ = begin_stream(single().front, body, 3)
        stream.close()
        answer = small.client().stream(COMPLETIONS, body, stream.last_id).read_all()
        self.assertEqual(answer.status, 400, answer.text)
        self.assertIn("context", answer.text)


class LostOwnersTest(E2eCase):
    def test_routers_killed_and_stopped(self):
        """Three routers: one is killed under three streams, the next one, at which they go on, is
        stopped, and the last one ends them. Joined, each is what the cold single node says."""
        nodes = self.start_own(make_cluster("resume", routers=3, flags=["-t", 1],
                                            router_flags=["--drain-timeout", 0]))
        killed, stopped, last = nodes.routers
        bodies = [completion(token_prompt(70), max_tokens=160, ignore_eos=True, **SEEDED),
                  chat("Write a story about a lighthouse.", max_tokens=160, ignore_eos=True, **GREEDY),
                  completion(token_prompt(33, seed=2), max_tokens=160, ignore_eos=True, temperature=1.0)]
        bodies = [dict(body, **USAGE) for body in bodies]
        begun = [begin_stream(killed, body, events=5) for body in bodies]
        killed.kill()
        texts, ids = [], []
        for stream, rest in begun:
            self.assertFalse(read_rest(stream, rest).done, "it ended before the kill: make it longer")
            texts.append(stream.whole)
            ids.append(stream.last_id)
        for number, body in enumerate(bodies):
            client = stopped.client(timeout_s=patient(60))
            stream = client.stream(path_of(body), body, ids[number])
            self.assertEqual(stream.status, 200)
            rest = iter(stream)
            next(rest)
            if number == len(bodies) - 1:
                stopped.signal(signal.SIGTERM)
            begun[number] = stream, rest
        for number, (stream, rest) in enumerate(begun):
            self.assertFalse(read_rest(stream, rest).done, "it ended before the stop: make it longer")
            self.assertIsNotNone(stream.error(), stream.text[-300:])
            texts[number] += "".join(event for event in cut(stream.whole) if id_of(event))
            ids[number] = stream.last_id or ids[number]
        for number, body in enumerate(bodies):
            texts[number] += read(last, body, ids[number]).text
            self.check_joined(texts[number], body)
        self.assertEqual(scrape(last).sum("baton_requests_resumed_total"), len(bodies))
        self.wait_idle(nodes, seconds=8.0)  # the killed router's sequences: a lease

    def check_joined(self, text, body):
        chunks = [data_of(event) for event in cut(text)[:-1]]
        self.assertEqual(len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}), 1)
        ids = [id_of(event) for event in cut(text)[:-1]]
        self.assertEqual([int(event_id.rsplit(".", 1)[1]) for event_id in ids], list(range(1, len(ids) + 1)))
        whole = {key: value for key, value in body.items() if key != "stream_options"}
        if "seed" not in body and body["temperature"] > 0:
            whole["seed"] = chunks[0]["seed"]
        self.assertEqual(canonical(text), reference(whole).lines)


class RefusalsTest(E2eCase):
    def assert_refused(self, node, path, body, last_id, words=(), late=False):
        """`late`: it is known at the answer's end only, and a ping may have begun the stream."""
        answer = node.client(timeout_s=patient(60)).stream(path, body, last_id).read_all()
        if late and answer.text.startswith(": ping\n"):
            error = answer.error()
        else:
            self.assertEqual(answer.status, 400, f"{last_id}: {answer.text}")
            error = json.loads(answer.text)["error"]
        self.assertEqual(error["param"], "Last-Event-ID")
        for word in ("Last-Event-ID", *words):
            self.assertIn(word, error["message"])

    def test_another_body(self):
        body = {"prompt": "The sea", "max_tokens": 4, "seed": 1}
        for nodes in self.single_and_pair():
            node = nodes.front
            last_id = id_of(cut(read(node, body).text)[1])
            for other in (dict(body, prompt="The see"), dict(body, seed=2), dict(body, max_tokens=5),
                          dict(body, temperature=0.5), dict(body, user="x"),
                          dict(reversed(list(body.items())))):
                self.assert_refused(node, COMPLETIONS, other, last_id, ["same body"])
            self.assert_refused(node, CHAT, chat("The sea"), last_id, ["same body"])
            whole = node.client().post(COMPLETIONS, body, headers={"Last-Event-ID": last_id})
            self.assert_error(whole, 400, "Last-Event-ID", ["streamed"])
            self.assertEqual(read(node, body, "").status, 200)  # an empty header: from the start
        self.assert_refused(single().front, COMPLETIONS, dict(body, n=2), last_id, ["choices"])

    def test_bad_ids(self):
        body = {"prompt": "The sea", "max_tokens": 4, "seed": 1}
        for nodes in self.single_and_pair():
            node = nodes.front
            events = cut(read(node, body).text)
            good = id_of(events[1])
            fields = good.split(".")
            self.assertEqual((len(fields), fields[2], fields[3], fields[6]), (7, "1", "4", "2"))

            def changed(index, value, fields=fields):
                return ".".join(fields[:index] + [value] + fields[index + 1:])

            for bad in ("7", "chatcmpl-123", "-", good[:-1], good + "-", good + "-1", good + ".1", good.upper(),
                        "x" * 4000, "9" * 12000, changed(0, "0" * 32), changed(1, "1"), changed(2, "2"),
                        changed(3, "5"), changed(4, "0" * 16), changed(5, "0" * 16), changed(6, ""),
                        changed(6, "02"), changed(6, "-1"), changed(6, "99999999999"), changed(6, "2-2")):
                self.assert_refused(node, COMPLETIONS, body, bad)
            # Well made, but the answer has not so many events: known at its end.
            for count in (len(events), 1000, 4294967295):
                self.assert_refused(node, COMPLETIONS, body, changed(6, str(count)), ["events"], late=True)
            rest = events_of(node, body, good)  # which was right all the time
            self.assertEqual(without_place(rest), without_place("".join(events[2:])))
            self.wait_idle(nodes)

    def test_nodes_that_compute_otherwise(self):
        body = {"prompt": "The sea", "max_tokens": 4, "seed": 1}
        other = self.start_own(make_single("resume-f32", "--kv-dtype", "f32")).front
        last_id = id_of(cut(read(single().front, body).text)[1])
        self.assert_refused(other, COMPLETIONS, body, last_id, ["KV dtype"])
