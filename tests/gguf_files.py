"""Small GGUF files, written with llama.cpp's own writer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from llmrl_jax import lm


NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def their_name(name: str) -> str:
    """llama.cpp's name of a Hugging Face tensor."""
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def sort_rows(weights: np.ndarray, heads: int) -> np.ndarray:
    """The order of rows in which llama.cpp's converter writes a Llama's queries and keys: the two halves of a head
    alternate."""
    halves = weights.reshape(heads, 2, -1, weights.shape[-1])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(weights.shape)


def metadata(config: lm.LlamaConfig, arch: str, **changes: Any) -> dict[str, Any]:
    """The fields of an architecture; `changes` replace them, or remove them if None. Their dots are written `__`."""
    fields: dict[str, Any] = {
        f"{arch}.context_length": config.max_position_embeddings,
        f"{arch}.embedding_length": config.hidden_size,
        f"{arch}.block_count": config.num_hidden_layers,
        f"{arch}.feed_forward_length": config.intermediate_size,
        f"{arch}.attention.head_count": config.num_attention_heads,
        f"{arch}.attention.head_count_kv": config.kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{arch}.rope.freq_base": config.rope.theta,
        f"{arch}.rope.dimension_count": config.size,
        f"{arch}.attention.key_length": config.size,
    }
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in fields.items() if value is not None}


def tokens_of(tokenizer: lm.FastTokenizer, pre: str, **changes: Any) -> dict[str, Any]:
    """The fields of a byte-level tokenizer, or of SentencePiece's if `pre` is empty."""
    import json

    model = json.loads(tokenizer.backend.to_str())
    size = tokenizer.vocab_size
    tokens = [tokenizer.backend.id_to_token(i) for i in range(size)]
    special = {added["content"] for added in model["added_tokens"]} | {
        t for t in tokenizer.specials.values() if t is not None
    }
    types = [3 if t in special else 2 if t == "<unk>" else 6 if t.startswith("<0x") else 1 for t in tokens]
    fields: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2" if pre else "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": tokenizer.bos_id,
        "tokenizer.ggml.eos_token_id": tokenizer.eos_id,
    }
    if pre:
        fields["tokenizer.ggml.pre"] = pre
        fields["tokenizer.ggml.merges"] = [" ".join(pair) for pair in model["model"]["merges"]]
        fields["tokenizer.ggml.add_bos_token"] = bool(tokenizer.prefix_ids)
    else:
        ranks = {"".join(pair): -float(rank) for rank, pair in enumerate(model["model"]["merges"])}
        fields["tokenizer.ggml.scores"] = [ranks.get(t, 0.0) for t in tokens]
        fields["tokenizer.ggml.unknown_token_id"] = 0
    fields |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in fields.items() if value is not None}


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif isinstance(value, str):
        writer.add_string(name, value)
    else:
        writer.add_array(name, value)


def write(
    path: Path,
    tensors: dict[str, np.ndarray],
    fields: dict[str, Any],
    *,
    arch: str = "llama",
    kind: str = "F32",
    heads: tuple[int, int] = (0, 0),
    split: int = 0,
) -> Path:
    """Write a GGUF file.

    **Arguments:** `tensors`, by Hugging Face's names, float32; `fields`, the metadata; `kind`, of matrices (norms and
    biases are F32); `heads`, those of queries and keys, whose rows are sorted as for a Llama; zeros: not sorted;
    `split`, tensors of a file: there are several, and `path` is the beginning of their names; 0: one file."""
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    for name, value in fields.items():
        add(writer, name, value)
    stored = gguf.GGMLQuantizationType[kind]
    for name, value in tensors.items():
        for part, count in (("q_proj.weight", heads[0]), ("k_proj.weight", heads[1])):
            value = sort_rows(value, count) if count and name.endswith(part) else value
        theirs = their_name(name) if name.startswith(("model.", "lm_head")) else name
        if value.ndim == 1 or kind == "F32":
            writer.add_tensor(theirs, np.ascontiguousarray(value, np.float32))
        elif kind == "F16":
            writer.add_tensor(theirs, value.astype(np.float16))
        else:
            writer.add_tensor(theirs, gguf.quants.quantize(value.astype(np.float32), stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
