"""The model in a GGUF file: its architecture as the `config.json` of a Hugging Face folder, and its weights under the
names of one, decoded as they are read."""

from __future__ import annotations

import math
import os
import re
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from envs_jax.extras import require
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.gguf.file import BLOCKS, Entry, Header, read_header
from llmrl_jax.lm.gguf.tokenizer import IDS, special_id
from llmrl_jax.lm.rope import inverse_frequencies
from llmrl_jax.lm.tensors import Spec, TensorSource, all_finite, empty


_LAYER_TENSORS = {
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
"""Divisors of rotary frequencies, which become settings of the configuration (`hf_config`)."""
_MODEL_TENSORS = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    HEAD: "lm_head.weight",
}
_LAYER = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16}
_PERMUTED = ("attn_q", "attn_k")
_CHUNK = 1 << 15
"""Bytes that are decoded at once: with their floats they stay in the processor's cache, and on the heap. Larger arrays
would get pages of their own, which the system clears each time: 2.0 s instead of 1.1 for 135 million weights."""


def hf_name(name: str) -> str:
    """Hugging Face's name of a tensor, or `name` if a Llama has no such tensor."""
    match = _LAYER.fullmatch(name)
    if match and match[2] in _LAYER_TENSORS:
        return f"model.layers.{match[1]}.{_LAYER_TENSORS[match[2]]}.{match[3]}"
    return _MODEL_TENSORS.get(name, name)


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
        permuted = config.model_type in ("llama", "mistral")
        self._entries: dict[str, Entry] = {}
        self._heads: dict[str, int] = {}
        for name, entry in header.tensors.items():
            if name == FREQUENCIES and not derived:
                continue
            target = hf_name(name)
            self._entries[target] = entry
            match = _LAYER.fullmatch(name)
            if permuted and match and match[2] in _PERMUTED:
                self._heads[target] = config.size
        self.specs = {
            name: Spec(entry.type if entry.type in _FLOATS else "F32", entry.shape)
            for name, entry in self._entries.items()
        }
        check_decoder(header)
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

    def _rows(self, name: str, output: np.ndarray, start: int, stop: int) -> None:
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
            output[row - start : row - start + count] = values

    def _bytes(self, name: str, start: int, count: int) -> np.ndarray:
        data = empty((count,), np.uint8)
        raw = data.data
        while raw:
            length = os.preadv(self._files[self.file(name)].fileno(), [raw], start)
            if not length:
                raise ValueError(f"{self.file(name)} was cut short while {name} was read from it; copy it again")
            raw, start = raw[length:], start + length
        return data


def check_decoder(header: Header) -> None:
    """**Raises** `ModuleNotFoundError`, with the remedy, if a file is quantised and `gguf` is not installed."""
    if any(entry.type not in _FLOATS for entry in header.tensors.values()):
        _decoder()


def _decoder() -> Any:
    return require("a quantised GGUF file", "gguf", "gguf")


def _decode(raw: np.ndarray, kind: str) -> np.ndarray:
    """The weights of whole blocks, one after the other."""
    if kind in _FLOATS:
        return raw.view(_FLOATS[kind])
    gguf = _decoder()
    # The package decodes 16 rows at a time, whatever a row is: one row of all blocks is one step.
    return gguf.quants.dequantize(raw.reshape(1, -1), gguf.GGMLQuantizationType[kind]).reshape(-1)


# --- the configuration ------------------------------------------------------------------------------------------------

ARCHITECTURES = {"llama": "llama", "mistral": "mistral", "qwen2": "qwen2", "qwen3": "qwen3"}
"""llama.cpp's architectures and Hugging Face's families. It converts a Mistral to a `llama`."""
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

_CHANGES: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias", "attention.temperature_scale",
                     "attention.temperature_length", "attention.shared_kv_layers", "attn_logit_softcapping",
                     "final_logit_softcapping", "router_logit_softcapping", "expert_count",
                     "rope.scaling.yarn_log_multiplier", "rope.scaling.alpha", "use_parallel_residual"), (0,)),
    **dict.fromkeys(("attention.output_scale", "logit_scale", "residual_scale", "embedding_scale"), (0, 1)),
    "attention.causal": (1,),
}  # fmt: skip
"""Fields that would change what the model computes, which is not implemented, and the values with which they do not."""
NUMBER = (int, float)
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The constants of all published Llama 3.1 to 3.3."""
_SCALINGS = ("none", "linear", "yarn")
_YARN = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow"}


def hf_config(path: str | Path) -> dict[str, Any]:
    """The configuration of a GGUF file in the terms of Hugging Face's `config.json`.

    **Raises:** `ValueError`, naming the file and the field, for an architecture or a field that is not supported."""
    header = read_header(path)
    arch = header.need("general.architecture", str)
    if arch not in ARCHITECTURES:
        raise ValueError(f"{path}: the architecture {arch!r} is not supported (supported: {', '.join(ARCHITECTURES)})")
    for name, neutral in _CHANGES.items():
        if (value := header.get(f"{arch}.{name}", (*NUMBER, bool), neutral[0])) not in neutral:
            raise ValueError(f"{path}: the field {arch}.{name} is {value}; this is not implemented")
    if EMBEDDING not in header.tensors:
        raise ValueError(f"{path} lacks the tensor {EMBEDDING}: it is no whole model")
    heads = _count(header, f"{arch}.attention.head_count")
    hidden = header.need(f"{arch}.embedding_length", int)
    size = header.get(f"{arch}.attention.key_length", int, hidden // max(1, heads))
    scale = header.get(f"{arch}.attention.scale", NUMBER, 0)
    if scale and not math.isclose(scale, size**-0.5, rel_tol=1e-6):
        raise ValueError(f"{path}: the field {arch}.attention.scale is {scale}; only 1 / sqrt({size}) is implemented")
    for name in ("attention.value_length", "rope.dimension_count", "attention.key_length_swa",
                 "attention.value_length_swa", "rope.dimension_count_swa"):  # fmt: skip
        if (width := header.get(f"{arch}.{name}", int, size)) != size:
            raise ValueError(f"{path}: the field {arch}.{name} is {width}, where heads have {size}: not implemented")
    embedding = header.tensors[EMBEDDING]
    values = {
        "model_type": ARCHITECTURES[arch],
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _count(header, f"{arch}.feed_forward_length"),
        "num_hidden_layers": header.need(f"{arch}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": _count(header, f"{arch}.attention.head_count_kv", heads),
        "head_dim": size,
        "max_position_embeddings": header.need(f"{arch}.context_length", int),
        "rms_norm_eps": header.need(f"{arch}.attention.layer_norm_rms_epsilon", NUMBER),
        "tie_word_embeddings": HEAD not in header.tensors,
        "rope_parameters": _rope(header, arch),
        "dtype": _DTYPES.get(embedding.type, "float32"),
        **{f"{name}_id": special_id(header, name) for name in IDS},
    }
    values |= _window(header, arch, values)
    return _llama3(header, values) if FREQUENCIES in header.tensors else values


def _count(header: Header, name: str, default: int | None = None) -> int:
    """A number that a file may also give for each layer; all must be the same."""
    kinds = (int, np.ndarray)
    value = header.need(name, kinds) if default is None else header.get(name, kinds, default)
    if isinstance(value, np.ndarray):
        if len(set(value.tolist())) != 1 or value.dtype.kind not in "iu":
            raise ValueError(f"{header.path}: the field {name} differs between layers, which is not implemented")
        value = int(value[0])
    return value


def _window(header: Header, arch: str, values: dict[str, Any]) -> dict[str, Any]:
    """The sliding window: only a Mistral has one in a GGUF file, and llama.cpp calls it a llama."""
    window = header.get(f"{arch}.attention.sliding_window", int, 0)
    if not window or window >= values["max_position_embeddings"]:
        return {"sliding_window": None}
    if arch not in ("llama", "mistral"):
        raise ValueError(
            f"{header.path}: the field {arch}.attention.sliding_window is {window}, but the file does not say which "
            "layers it applies to: take the model's Hugging Face folder"
        )
    return {"model_type": "mistral", "sliding_window": window}


def _rope(header: Header, arch: str) -> dict[str, Any]:
    """The rotary positions, as llama.cpp reads their fields: a factor without a type is linear, none or 0 is 1, and
    `none` scales nothing, whatever the factor is."""
    prefix = f"{arch}.rope.scaling"
    theta = header.get(f"{arch}.rope.freq_base", NUMBER, 10_000.0)
    if (base := header.get(f"{arch}.rope.freq_base_swa", NUMBER, theta)) != theta:
        raise ValueError(f"{header.path}: the field {arch}.rope.freq_base_swa is {base}; only {theta} is implemented")
    kind = header.get(f"{prefix}.type", str, "linear")
    if kind not in _SCALINGS:
        raise ValueError(f"{header.path}: the field {prefix}.type is {kind!r}; supported: {', '.join(_SCALINGS)}")
    early = header.get(f"{arch}.rope.scale_linear", NUMBER)  # the name in early files
    factor = header.get(f"{prefix}.factor", NUMBER, early) or 1.0
    scaled = kind if factor != 1 else "none"
    if FREQUENCIES in header.tensors and scaled != "none":
        raise ValueError(
            f"{header.path} has {FREQUENCIES} and the scaling {scaled!r} by {factor}; only one of them is implemented"
        )
    # How much of YaRN is mixed in, and a factor that it replaces; -1: what is usual for the type.
    neutral = {"yarn_ext_factor": 1 if kind == "yarn" else 0, "yarn_attn_factor": 1}
    for name, expected in neutral.items():
        if (value := header.get(f"{prefix}.{name}", NUMBER, -1)) not in (expected, -1):
            raise ValueError(f"{header.path}: the field {prefix}.{name} is {value}; only {expected} is implemented")
    # of cosines and sines: llama.cpp multiplies YaRN's factor, which Hugging Face's attention_factor replaces
    multiplier = header.get(f"{prefix}.attn_factor", NUMBER, 1)
    if scaled != "yarn":
        if multiplier != 1:
            raise ValueError(
                f"{header.path}: the field {prefix}.attn_factor is {multiplier}; only 1 is implemented without YaRN"
            )
        kinds = {"rope_type": "default"} if scaled == "none" else {"rope_type": scaled, "factor": factor}
        return {"rope_theta": theta, **kinds}
    values: dict[str, Any] = {"rope_theta": theta, "rope_type": scaled, "factor": factor}
    values["original_max_position_embeddings"] = header.get(f"{prefix}.original_context_length", int) or None
    values |= {ours: header.get(f"{prefix}.{theirs}", NUMBER) for ours, theirs in _YARN.items()}
    if multiplier != 1:
        values["attention_factor"] = multiplier * (0.1 * math.log(max(factor, 1.0)) + 1.0)
    return {name: value for name, value in values.items() if value is not None}


def _llama3(header: Header, values: dict[str, Any]) -> dict[str, Any]:
    """The configuration with the settings of Llama 3's rotary positions. The file has only the divisor of each
    frequency, so those of the published settings are computed and compared.

    **Raises:** `ValueError` for other divisors."""
    plain = LlamaConfig.from_hf(values)
    divisors = np.empty(header.tensors[FREQUENCIES].shape, np.float32)
    with closing(GGUFTensors(header.path, plain, derived=True)) as tensors:
        tensors.fill(FREQUENCIES, divisors)
    if (divisors == 1).all():
        return values
    rope = {**values["rope_parameters"], "rope_type": "llama3", "factor": float(divisors.max()), **_LLAMA3}
    scaled = values | {"rope_parameters": rope}
    frequencies = [inverse_frequencies(config)[0] for config in (plain, LlamaConfig.from_hf(scaled))]
    if divisors.shape != frequencies[0].shape or not np.allclose(frequencies[0] / divisors, frequencies[1], rtol=1e-4):
        raise ValueError(
            f"{header.path}: {FREQUENCIES} are not those of Llama 3.1 to 3.3, whose settings are the only ones "
            "supported: take the model's Hugging Face folder"
        )
    return scaled
