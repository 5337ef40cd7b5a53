"""tools/canonical on answers written by hand: what it keeps, what it leaves out, what it refuses."""
import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[1] / "canonical"
loader = importlib.machinery.SourceFileLoader("canonical", str(TOOL))
canonical = importlib.util.module_from_spec(importlib.util.spec_from_loader("canonical", loader))
loader.exec_module(canonical)

USAGE = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def chat_body(**changes):
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "héllo"},
        "token_ids": [28, 2],
        "logprobs": {"content": [{"token": "h", "logprob": -0.5}, {"token": "", "logprob": -1.25}]},
        "finish_reason": "stop",
    }
    choice.update(changes)
    return {"id": "chatcmpl-1", "created": 1, "choices": [choice], "usage": USAGE}


def stream(bodies, done=True):
    lines = [f"data: {json.dumps(body)}\n\n" for body in bodies]
    return "".join(lines) + ("data: [DONE]\n\n" if done else "")


def chat_chunks(cut):
    """The answer of chat_body() as a stream; `cut` says how the two tokens share chunks."""
    entries = chat_body()["choices"][0]["logprobs"]["content"]
    first = {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    }
    both = {
        "choices": [
            {
                "index": 0,
                "delta": {"content": "héllo"},
                "token_ids": [28, 2],
                "logprobs": {"content": entries},
                "finish_reason": "stop",
            }
        ]
    }
    one = {
        "choices": [
            {
                "index": 0,
                "delta": {"content": "hé"},
                "token_ids": [28],
                "logprobs": {"content": entries[:1]},
                "finish_reason": None,
            }
        ]
    }
    two = {
        "choices": [
            {
                "index": 0,
                "delta": {"content": "llo"},
                "token_ids": [2],
                "logprobs": {"content": entries[1:]},
                "finish_reason": "stop",
            }
        ]
    }
    usage = {"choices": [], "usage": USAGE}
    return [first, one, two, usage] if cut else [first, both, usage]


class CanonicalTest(unittest.TestCase):
    EXPECTED = [
        "choice 0",
        "token 0 28 0xbf000000",
        "token 1 2 0xbfa00000",
        'text "h\\u00e9llo"',
        "finish_reason stop",
        "prompt_tokens 5",
        "completion_tokens 2",
    ]

    def test_whole_chat_answer(self):
        self.assertEqual(canonical.canonical(json.dumps(chat_body())), self.EXPECTED)

    def test_stream_equals_whole_answer_wherever_it_is_cut(self):
        for cut in (False, True):
            self.assertEqual(canonical.canonical(stream(chat_chunks(cut))), self.EXPECTED)

    def test_completions_form(self):
        body = {
            "choices": [
                {
                    "index": 0,
                    "text": "héllo",
                    "token_ids": [28, 2],
                    "logprobs": {"tokens": ["h", ""], "token_logprobs": [-0.5, -1.25]},
                    "finish_reason": "stop",
                }
            ],
            "usage": USAGE,
        }
        self.assertEqual(canonical.canonical(json.dumps(body)), self.EXPECTED)

    def test_ids_times_and_cached_counts_are_left_out(self):
        other = chat_body()
        other["id"], other["created"], other["baton"] = "chatcmpl-2", 99, {"path": "split"}
        other["usage"] = dict(USAGE, prompt_tokens_details={"cached_tokens": 4})
        self.assertEqual(canonical.canonical(json.dumps(other)), self.EXPECTED)

    def test_one_bit_of_a_logprob_shows(self):
        other = chat_body()
        other["choices"][0]["logprobs"]["content"][1]["logprob"] = -1.2500001
        lines = canonical.canonical(json.dumps(other))
        self.assertEqual(lines[2], "token 1 2 0xbfa00001")

    def test_shortest_digits_of_a_single_give_its_bits(self):
        self.assertEqual(canonical.logprob_bits(-1.0805486), 0xBF8A4F6B)
        self.assertEqual(canonical.logprob_bits(-0.0), 0x80000000)

    def test_comments_and_event_ids_are_skipped(self):
        text = ": ping\n\nid: a.1.0\n" + stream(chat_chunks(True))
        self.assertEqual(canonical.canonical(text), self.EXPECTED)

    def test_what_is_missing_is_named(self):
        without_ids = chat_body(token_ids=None)
        without_logprobs = chat_body(logprobs=None)
        for body, word in ((without_ids, "return_token_ids"), (without_logprobs, "logprobs")):
            with self.assertRaisesRegex(canonical.CanonicalError, word):
                canonical.canonical(json.dumps(body))

    def test_cut_streams_are_refused(self):
        chunks = chat_chunks(True)
        with self.assertRaisesRegex(canonical.CanonicalError, "DONE"):
            canonical.canonical(stream(chunks, done=False))
        with self.assertRaisesRegex(canonical.CanonicalError, "finish_reason"):
            canonical.canonical(stream(chunks[:2] + chunks[3:]))
        with self.assertRaisesRegex(canonical.CanonicalError, "usage"):
            canonical.canonical(stream(chunks[:3]))

    def test_error_answers_are_refused(self):
        error = {"error": {"message": "peer lost", "type": "server_error", "code": None}}
        with self.assertRaisesRegex(canonical.CanonicalError, "peer lost"):
            canonical.canonical(stream(chat_chunks(True)[:2] + [error], done=False))

    def test_command_line(self):
        good = subprocess.run(
            [sys.executable, TOOL], input=json.dumps(chat_body()), capture_output=True, text=True
        )
        self.assertEqual((good.returncode, good.stdout.splitlines()), (0, self.EXPECTED))
        bad = subprocess.run([sys.executable, TOOL], input="{}", capture_output=True, text=True)
        self.assertEqual(bad.returncode, 2)
        self.assertIn("no choices", bad.stderr)


if __name__ == "__main__":
    unittest.main()
