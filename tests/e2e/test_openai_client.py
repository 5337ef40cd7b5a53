"""The official openai Python client against a single node and a router."""
import pathlib

from harness.case import GREEDY, E2eCase, Settings, completion, make_single, patient, reference

try:
    import openai
except ImportError:  # the runner's environment has it; a bare python3 does not
    openai = None


class OpenAIClientTest(E2eCase):
    def setUp(self):
        if openai is None:
            self.fail("the package openai is missing: run scripts/test, which installs it")
        self.model = pathlib.Path(Settings.model).stem

    def each(self):
        for nodes in self.single_and_pair():
            yield self.client_of(nodes.front)

    def client_of(self, node):
        return openai.OpenAI(base_url=f"http://{node.http}/v1", api_key="none", max_retries=0, timeout=patient(60))

    def test_models(self):
        for client in self.each():
            self.assertEqual([model.id for model in client.models.list()], [self.model])

    def test_chat(self):
        messages = [{"role": "system", "content": "Answer briefly."},
                    {"role": "user", "content": "What is the capital of France?"}]
        texts = []
        for client in self.each():
            whole = client.chat.completions.create(model=self.model, messages=messages,
                                                   max_tokens=24, temperature=0, logprobs=True,
                                                   top_logprobs=2)
            choice = whole.choices[0]
            self.assertIn(choice.finish_reason, ("stop", "length"))
            self.assertEqual(choice.message.role, "assistant")
            self.assertEqual(len(choice.logprobs.content), whole.usage.completion_tokens)
            self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)
            stream = client.chat.completions.create(
                model=self.model, messages=messages, max_tokens=24, temperature=0, stream=True,
                stream_options={"include_usage": True})
            text, usage = "", None
            for chunk in stream:
                usage = chunk.usage or usage
                for part in chunk.choices:
                    text += part.delta.content or ""
            self.assertEqual(text, choice.message.content)
            self.assertEqual(usage.total_tokens, whole.usage.total_tokens)
            texts.append(text)
        self.assertEqual(texts[0], texts[1])

    def test_pings_between_events(self):
        """Comments between events that have ids are nothing to a client."""
        slow = self.start_own(make_single("pings", "--sse-ping-interval", 0.06,
                                          "--failpoints", "engine.step=sleep:80")).front
        body = {"prompt": "One, two,", "max_tokens": 8, "temperature": 0, "stream": True}
        raw = slow.client().stream("/v1/completions", body).read_all()
        self.assertIn("\n\n: ping\n", raw.text)
        parts = self.client_of(slow).completions.create(model=self.model, **body)
        answer = completion("One, two,", max_tokens=8, **GREEDY)
        self.assertEqual("".join(part.choices[0].text for part in parts), reference(answer).text)

    def test_completions(self):
        for client in self.each():
            whole = client.completions.create(model=self.model, prompt="One, two,", max_tokens=8,
                                              temperature=0, logprobs=1, stop=["nine"])
            self.assertEqual(whole.object, "text_completion")
            parts = client.completions.create(model=self.model, prompt="One, two,", max_tokens=8,
                                              temperature=0, stream=True, stop=["nine"])
            self.assertEqual("".join(part.choices[0].text for part in parts), whole.choices[0].text)

    def test_errors(self):
        for client in self.each():
            with self.assertRaises(openai.NotFoundError):
                client.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
            with self.assertRaises(openai.BadRequestError) as raised:
                client.chat.completions.create(
                    model=self.model, messages=[{"role": "user", "content": "x"}], temperature=-1)
            self.assertEqual(raised.exception.param, "temperature")
