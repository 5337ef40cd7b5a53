"""Makes the files that bench/peers/run measures: NAME SHIPPED_MODEL TARGET.

smollm2-TYPE: the shipped Q4_1 file, its matrices read back to float and stored as TYPE (what a file
of TYPE costs to run; its quality is that of Q4_1 at best). Embedding and head stay Q8_0 in 4-bit
files, as shipped. qwen3-0.6b-TYPE: the shape of Qwen3-0.6B with random weights and no vocabulary,
laid out like `baton bench engine --load-format dummy`.
"""
import sys

import gguf
import numpy as np

TYPES = {"q4_0": gguf.GGMLQuantizationType.Q4_0, "q8_0": gguf.GGMLQuantizationType.Q8_0,
         "bf16": gguf.GGMLQuantizationType.BF16, "f16": gguf.GGMLQuantizationType.F16}
FILE_TYPES = {"q4_0": gguf.LlamaFileType.MOSTLY_Q4_0, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
              "bf16": gguf.LlamaFileType.MOSTLY_BF16, "f16": gguf.LlamaFileType.MOSTLY_F16}
HEADS = ("token_embd.weight", "output.weight")


def type_of(tensor: str, wanted: str) -> gguf.GGMLQuantizationType:
    return TYPES["q8_0" if wanted == "q4_0" and tensor in HEADS else wanted]


def add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, wanted: str) -> None:
    if values.ndim == 1:
        writer.add_tensor(name, values.astype(np.float32))
        return
    kind = type_of(name, wanted)
    writer.add_tensor(name, gguf.quants.quantize(values.astype(np.float32), kind), raw_dtype=kind)


def requantised(source: str, target: str, wanted: str) -> gguf.GGUFWriter:
    reader = gguf.GGUFReader(source)
    architecture = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(target, architecture)
    for field in reader.fields.values():
        skipped = ("general.architecture", "general.file_type", "general.quantization_version")
        if field.name.startswith("GGUF.") or field.name in skipped:
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(extent) for extent in reversed(tensor.shape)]
        add(writer, tensor.name, values.reshape(shape), wanted)
    return writer


def random_qwen3(target: str, wanted: str) -> gguf.GGUFWriter:
    layers, dim, ffn, heads, kv_heads, head_dim, vocabulary = 28, 1024, 3072, 16, 8, 128, 151936
    writer = gguf.GGUFWriter(target, "qwen3")
    writer.add_block_count(layers)
    writer.add_embedding_length(dim)
    writer.add_feed_forward_length(ffn)
    writer.add_context_length(40960)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(1)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns), dtype=np.float32) / np.sqrt(columns)
        add(writer, name, values, wanted)

    def norm(name: str, elements: int) -> None:
        add(writer, name, np.ones(elements, np.float32), wanted)

    matrix("token_embd.weight", vocabulary, dim)
    norm("output_norm.weight", dim)
    for layer in range(layers):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight", dim)
        matrix(prefix + "attn_q.weight", heads * head_dim, dim)
        matrix(prefix + "attn_k.weight", kv_heads * head_dim, dim)
        matrix(prefix + "attn_v.weight", kv_heads * head_dim, dim)
        matrix(prefix + "attn_output.weight", dim, heads * head_dim)
        norm(prefix + "attn_q_norm.weight", head_dim)
        norm(prefix + "attn_k_norm.weight", head_dim)
        norm(prefix + "ffn_norm.weight", dim)
        matrix(prefix + "ffn_gate.weight", ffn, dim)
        matrix(prefix + "ffn_up.weight", ffn, dim)
        matrix(prefix + "ffn_down.weight", dim, ffn)
    return writer


def main() -> None:
    name, shipped, target = sys.argv[1:]
    model, wanted = name.rsplit("-", 1)
    make = {"smollm2": lambda: requantised(shipped, target, wanted),
            "qwen3-0.6b": lambda: random_qwen3(target, wanted)}
    writer = make[model]()
    writer.add_file_type(FILE_TYPES[wanted])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
