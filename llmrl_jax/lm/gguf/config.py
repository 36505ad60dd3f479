"""The architecture in a GGUF file's metadata, as the `config.json` that Hugging Face's folder would have."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.gguf.file import Header, read_header
from llmrl_jax.lm.gguf.tensors import EMBEDDING, FREQUENCIES, HEAD, GGUFTensors
from llmrl_jax.lm.gguf.tokenizer import IDS, special_id
from llmrl_jax.lm.rope import inverse_frequencies


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
        if (other := header.get(f"{arch}.{name}", int, size)) != size:
            raise ValueError(f"{path}: the field {arch}.{name} is {other}, where heads have {size}: not implemented")
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
    if (other := header.get(f"{arch}.rope.freq_base_swa", NUMBER, theta)) != theta:
        raise ValueError(f"{header.path}: the field {arch}.rope.freq_base_swa is {other}; only {theta} is implemented")
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
    usual = {"yarn_ext_factor": 1 if kind == "yarn" else 0, "yarn_attn_factor": 1}
    for name, only in usual.items():
        if (value := header.get(f"{prefix}.{name}", NUMBER, -1)) not in (only, -1):
            raise ValueError(f"{header.path}: the field {prefix}.{name} is {value}; only {only} is implemented")
    # of cosines and sines: llama.cpp multiplies YaRN's factor, which Hugging Face's attention_factor replaces
    times = header.get(f"{prefix}.attn_factor", NUMBER, 1)
    if scaled != "yarn":
        if times != 1:
            raise ValueError(
                f"{header.path}: the field {prefix}.attn_factor is {times}; only 1 is implemented without YaRN"
            )
        kinds = {"rope_type": "default"} if scaled == "none" else {"rope_type": scaled, "factor": factor}
        return {"rope_theta": theta, **kinds}
    values: dict[str, Any] = {"rope_theta": theta, "rope_type": scaled, "factor": factor}
    values["original_max_position_embeddings"] = header.get(f"{prefix}.original_context_length", int) or None
    values |= {ours: header.get(f"{prefix}.{theirs}", NUMBER) for ours, theirs in _YARN.items()}
    if times != 1:
        values["attention_factor"] = times * (0.1 * math.log(max(factor, 1.0)) + 1.0)
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
