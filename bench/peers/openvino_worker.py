"""OpenVINO GenAI as a peer of bench/peers/run: MODEL THREADS, then tests on stdin, results on stdout.

Prefill: the time of one generated token behind a prompt of random ids, never the same twice (its
prefix cache would answer a repeated one). Decode: from the first new token to the last, by its own
stamps, so that neither the prompt nor the tokenizer count.
"""
import json
import os
import sys
import time

import numpy as np
import openvino as ov
import openvino_genai as genai


class Engine:
    def __init__(self, path: str, threads: int):
        self.pipeline = genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
        self.random = np.random.default_rng(1)
        self.vocabulary = 49152  # of the only files that it is given: SmolLM2

    def prompts(self, batch: int, tokens: int):
        ids = self.random.integers(3, self.vocabulary, (batch, tokens)).astype(np.int64)
        return genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))

    def run(self, test) -> float:
        config = genai.GenerationConfig()
        config.do_sample = False
        config.ignore_eos = True
        batch = test["batch"]
        if test["kind"] == "pp":
            config.max_new_tokens = 1
            prompts = self.prompts(batch, test["tokens"])
            begin = time.perf_counter()
            self.pipeline.generate(prompts, config)
            return test["tokens"] * batch / (time.perf_counter() - begin)
        config.max_new_tokens = test["tokens"] + 1
        result = self.pipeline.generate(self.prompts(batch, test["depth"]), config)
        stamps_ms = result.perf_metrics.raw_metrics.m_new_token_times
        if [len(tokens) for tokens in result.tokens] != [test["tokens"] + 1] * batch:
            raise SystemExit(f"{[len(tokens) for tokens in result.tokens]} tokens came back")
        return (len(stamps_ms) - 1) * batch / ((stamps_ms[-1] - stamps_ms[0]) * 1e-3)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints to stdout
    engine = Engine(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"loaded": True}), file=answers, flush=True)
    for line in sys.stdin:
        speed = engine.run(json.loads(line))
        print(json.dumps({"tokens_per_second": speed}), file=answers, flush=True)


if __name__ == "__main__":
    main()
