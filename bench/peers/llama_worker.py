"""llama.cpp as a peer of bench/peers/run: MODEL THREADS, then tests on stdin, results on stdout.

Flash attention on; random tokens are fed and nothing is sampled, as llama-bench does. Prompts of
decode tests are computed once and cut back to their length after each run.
"""
import ctypes
import json
import random
import sys
import time

import llama_cpp as lc

FLASH_ATTENTION = 1  # LLAMA_FLASH_ATTN_TYPE_ENABLED
STEP_TOKENS = 512    # llama.cpp's own default for n_ubatch


class Context:
    """One llama.cpp context with `batch` sequences of up to `tokens_each` tokens."""

    def __init__(self, model, threads: int, batch: int, tokens_each: int):
        params = lc.llama_context_default_params()
        params.n_ctx = batch * ((tokens_each + 255) // 256 * 256)
        params.n_batch = max(tokens_each, batch)
        params.n_ubatch = STEP_TOKENS
        params.n_seq_max = batch
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = FLASH_ATTENTION
        self.context = lc.llama_init_from_model(model, params)
        if not self.context:
            raise SystemExit("llama_init_from_model failed")
        self.memory = lc.llama_get_memory(self.context)
        self.vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
        self.tokens = lc.llama_batch_init(params.n_batch, 0, 1)
        self.batch = batch

    def step(self, parts, logits: bool) -> None:
        """parts: (sequence, position) of each token; the last one, or with one token per sequence
        all of them, get logits."""
        batch = self.tokens
        batch.n_tokens = len(parts)
        for i, (sequence, position) in enumerate(parts):
            batch.token[i] = random.randrange(self.vocabulary)
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = logits and (len(parts) == self.batch or i + 1 == len(parts))
        if lc.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")

    def prefill(self, sequence: int, tokens: int) -> None:
        self.step([(sequence, position) for position in range(tokens)], True)


class Engine:
    def __init__(self, path: str, threads: int):
        lc.llama_backend_init()
        self.model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.threads = threads
        self.contexts = {}  # test -> Context

    def context(self, test) -> Context:
        key = json.dumps(test)
        if key not in self.contexts:
            context = Context(self.model, self.threads, test["batch"],
                              test["depth"] + test["tokens"])
            for sequence in range(test["batch"] if test["depth"] else 0):
                context.prefill(sequence, test["depth"])
            self.contexts[key] = context
        return self.contexts[key]

    def run(self, test) -> float:
        context = self.context(test)
        tokens, depth, batch = test["tokens"], test["depth"], test["batch"]
        begin = time.perf_counter()
        if test["kind"] == "pp":
            lc.llama_memory_clear(context.memory, False)
            context.prefill(0, tokens)
        else:
            for step in range(tokens):
                context.step([(sequence, depth + step) for sequence in range(batch)], True)
        lc.llama_synchronize(context.context)
        seconds = time.perf_counter() - begin
        if test["kind"] == "tg":
            for sequence in range(batch):
                lc.llama_memory_seq_rm(context.memory, sequence, depth, -1)
        return tokens * batch / seconds


def main() -> None:
    quiet = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    random.seed(1)
    engine = Engine(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"loaded": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"tokens_per_second": engine.run(json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
