"""llama.cpp's half of bench/peers/perplexity: MODEL TEXT THREADS WINDOWS (0: all).

Prints a line per scored token, as `baton bench perplexity --per-token` does: position, token, log
probability, likeliest token, margin of its logit to the next.
"""
import ctypes
import sys

import llama_cpp as lc
import numpy as np

CONTEXT_TOKENS = 512


def tokens_of(model, text: bytes) -> np.ndarray:
    vocab = lc.llama_model_get_vocab(model)
    buffer = (lc.llama_token * (len(text) + 1))()
    count = lc.llama_tokenize(vocab, text, len(text), buffer, len(buffer), False, False)
    return np.array(buffer[:count], dtype=np.int64)


def window_logits(context, batch, window: np.ndarray, first: int, vocabulary: int) -> np.ndarray:
    """Rows of logits after tokens [first, end - 1) of the window."""
    lc.llama_memory_clear(lc.llama_get_memory(context), True)
    batch.n_tokens = len(window) - 1
    for i in range(batch.n_tokens):
        batch.token[i] = int(window[i])
        batch.pos[i] = i
        batch.n_seq_id[i] = 1
        batch.seq_id[i][0] = 0
        batch.logits[i] = i >= first
    if lc.llama_decode(context, batch) != 0:
        raise SystemExit("llama_decode failed")
    rows = batch.n_tokens - first
    return np.ctypeslib.as_array(lc.llama_get_logits(context), (rows, vocabulary))


def main() -> None:
    path, text_path, threads, windows = sys.argv[1:]
    quiet = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(quiet, ctypes.c_void_p(0))
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(path.encode(), lc.llama_model_default_params())
    params = lc.llama_context_default_params()
    params.n_ctx = params.n_batch = params.n_ubatch = CONTEXT_TOKENS
    params.n_threads = params.n_threads_batch = int(threads)
    params.flash_attn_type = 1  # LLAMA_FLASH_ATTN_TYPE_ENABLED
    context = lc.llama_init_from_model(model, params)
    batch = lc.llama_batch_init(CONTEXT_TOKENS, 0, 1)
    vocabulary = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    with open(text_path, "rb") as file:
        tokens = tokens_of(model, file.read())
    count = len(tokens) // CONTEXT_TOKENS
    count = min(count, int(windows)) if int(windows) else count
    first = CONTEXT_TOKENS // 2
    for start in range(0, count * CONTEXT_TOKENS, CONTEXT_TOKENS):
        window = tokens[start:start + CONTEXT_TOKENS]
        logits = window_logits(context, batch, window, first, vocabulary).astype(np.float64)
        top_two = np.partition(logits, -2, axis=1)[:, -2:]
        largest = top_two[:, 1]
        log_sums = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        for row, likeliest in enumerate(logits.argmax(axis=1)):
            token = window[first + row + 1]
            print(start + first + row + 1, token, f"{logits[row, token] - log_sums[row]:.6f}",
                  likeliest, f"{largest[row] - top_two[row, 0]:.6f}")


if __name__ == "__main__":
    main()
