"""The weights of a GGUF file under Hugging Face's names, decoded as they are read."""

from __future__ import annotations

import math
import os
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from envs_jax.extras import require
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.gguf.file import BLOCKS, Entry, Header, read_header
from llmrl_jax.lm.tensors import Spec, TensorSource, all_finite, empty


_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EMBEDDING, HEAD = "token_embd.weight", "output.weight"
FREQUENCIES = "rope_freqs.weight"
"""Divisors of rotary frequencies, which become settings of the configuration (`llmrl_jax.lm.gguf.config`)."""
_WHOLE = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_LAYER = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
_TURNED = ("attn_q", "attn_k")
_CHUNK = 1 << 15
"""Bytes that are decoded at once: with their floats they stay in the processor's cache, and on the heap. Larger arrays
would get pages of their own, which the system clears each time: 2.0 s instead of 1.1 for 135 million weights."""


def hf_name(name: str) -> str:
    """Hugging Face's name of a tensor, or its own if a Llama has none like it."""
    match = _LAYER.fullmatch(name)
    if match and match[2] in _PARTS:
        return f"model.layers.{match[1]}.{_PARTS[match[2]]}.{match[3]}"
    return _WHOLE.get(name, name)


class GGUFTensors(TensorSource):
    """The open tensors of a GGUF file, or of all files of a split model, as `TensorFile` is of a safetensors file.

    Quantised tensors are float32 outside. llama.cpp rotates neighbouring entries of a head, Hugging Face entries half a
    head apart; the conversion of a Llama (and a Mistral) therefore sorts the rows of its queries and keys, which is
    undone here. A Qwen's are in Hugging Face's order in the file already.
    """

    def __init__(self, path: str | Path, config: LlamaConfig, *, derived: bool = False):
        """**Arguments:** `config`, the file's; `derived`, whether `rope_freqs.weight` is among the tensors.

        **Raises:** `ModuleNotFoundError`, with the remedy, if the file is quantised and `gguf` is not installed."""
        header: Header = read_header(path)
        super().__init__(header.path)
        turned = config.model_type in ("llama", "mistral")
        self._entries: dict[str, Entry] = {}
        self._heads: dict[str, int] = {}
        for name, entry in header.tensors.items():
            if name == FREQUENCIES and not derived:
                continue
            theirs = hf_name(name)
            self._entries[theirs] = entry
            match = _LAYER.fullmatch(name)
            if turned and match and match[2] in _TURNED:
                self._heads[theirs] = config.size
        self.specs = {
            name: Spec(entry.type if entry.type in _FLOATS else "F32", entry.shape)
            for name, entry in self._entries.items()
        }
        if any(entry.type not in _FLOATS for entry in self._entries.values()):
            _decoder()
        with ExitStack() as stack:
            files = {entry.file for entry in self._entries.values()}
            self._files = {file: stack.enter_context(open(file, "rb", buffering=0)) for file in sorted(files)}
            self._open = stack.pop_all()

    def close(self) -> None:
        """Close the files; nothing is read from them afterwards."""
        super().close()
        self._open.close()

    def file(self, name: str) -> Path:
        return self._entries[name].file

    def _rows(self, name: str, out: np.ndarray, start: int, stop: int) -> None:
        entry, head = self._entries[name], self._heads.get(name, 1)
        assert start % head == 0 == stop % head, f"{name} is divided within a head"
        shape = entry.shape[1:]
        weights, size = BLOCKS[entry.type]
        row_bytes = math.prod(shape) * size // weights
        step = max(1, _CHUNK // (row_bytes * head)) * head
        for row in range(start, stop, step):
            count = min(step, stop - row)
            raw = self._bytes(name, entry.start + row * row_bytes, count * row_bytes)
            values = _decode(raw, entry.type).reshape(count, *shape)
            if not all_finite(values, self.specs[name].dtype):
                raise self.not_finite(name)
            if head > 1:
                values = values.reshape(count // head, head // 2, 2, *shape).swapaxes(1, 2).reshape(count, *shape)
            out[row - start : row - start + count] = values

    def _bytes(self, name: str, at: int, count: int) -> np.ndarray:
        found = empty((count,), np.uint8)
        raw = found.data
        while raw:
            got = os.preadv(self._files[self.file(name)].fileno(), [raw], at)
            if not got:
                raise ValueError(f"{self.file(name)} was cut short while {name} was read from it; copy it again")
            raw, at = raw[got:], at + got
        return found


def _decoder() -> Any:
    return require("a quantised GGUF file", "gguf", "gguf")


def _decode(raw: np.ndarray, kind: str) -> np.ndarray:
    """The weights of whole blocks, one after the other."""
    if kind in _FLOATS:
        return raw.view(_FLOATS[kind])
    gguf = _decoder()
    # The package decodes 16 rows at a time, whatever a row is: one row of all blocks is one step.
    return gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType[kind]).reshape(-1)
