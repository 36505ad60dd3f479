"""Writing of models in Hugging Face's layout, tensor by tensor: parameters, or the files of another model."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import new_folder
from llmrl_jax.lm import declare
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.quantize import is_quantized
from llmrl_jax.lm.source import CONFIG, GENERATION, end_tokens as end_tokens_of, locate, read_config, tokenizer_config
from llmrl_jax.lm.tensors import DTYPES, Spec, empty, spec, write_file
from llmrl_jax.lm.tokens import load_tokenizer
from llmrl_jax.lm.weights import INDEX, SINGLE, Files, layer_names


SHARD = 5_000_000_000
"""Bytes above which weights are written in several files."""
TEMPLATE = "chat_template.jinja"


class _Tensor(NamedTuple):
    """A tensor to write, and how to get it when its turn comes."""

    name: str
    spec: Spec
    read: Callable[[], np.ndarray]


def _leaves(config: LlamaConfig, params: Any) -> Iterator[tuple[declare.Leaf, Any]]:
    """All parameters with their declarations. **Raises:** `ValueError` for one that is quantised, has another shape,
    or is not addressable."""
    structure: Any
    leaves, structure = jax.tree.flatten(declare.declare(config), is_leaf=declare.is_leaf)
    for leaf, array in zip(leaves, structure.flatten_up_to(params), strict=True):
        if is_quantized(array):
            raise ValueError(
                f"{leaf.hf} is quantised ({array.kind}), which this format does not hold: write the adapters alone "
                "(save_adapter), or write lm.dequantize(params), at a float's size and with the rounding left in"
            )
        if tuple(array.shape) != leaf.shape:
            raise ValueError(f"{leaf.hf} has shape {tuple(array.shape)}; the configuration asks for {leaf.shape}")
        if not getattr(array, "is_fully_addressable", True):
            raise ValueError(f"{leaf.hf} lies on several processes; gather it before it is written")
        yield leaf, array


def hf_tensor(leaf: declare.Leaf, array: Any, layer: int = 0) -> np.ndarray:
    """A parameter, or one layer of a stacked one, as NumPy in Hugging Face's layout."""
    value = np.asarray(jax.device_get(array[layer] if leaf.stacked else array))
    turned = value.reshape(leaf.hf_shape[::-1]).T if leaf.fan_in else value.reshape(leaf.hf_shape)
    return np.ascontiguousarray(turned)


def save_hf(
    path: str | Path,
    config: LlamaConfig,
    params: Any,
    *,
    end_tokens: Sequence[int] = (),
    max_shard_bytes: int = SHARD,
) -> Path:
    """Write a folder that `transformers` loads: `config.json` and safetensors, in several files above a size.

    The folder is written atomically. Tensors are fetched and written one by one. Adapters are not written: `merge` them
    first, or write them separately with `save_adapter`.

    **Arguments:** `path`, a folder that does not exist yet; `config`; `params`, the collection; `end_tokens`, all that
    end a text or a turn, if there are more than in config.json (`end_tokens` of the original folder);
    `max_shard_bytes`.
    **Returns:** `path`.
    **Raises:** `FileExistsError` if `path` exists; `ValueError` for parameters of another configuration.
    """
    path = Path(path)
    tensors = [
        _Tensor(name, Spec(spec(name, array).dtype, leaf.hf_shape), partial(hf_tensor, leaf, array, i))
        for leaf, array in _leaves(config, params)
        for i, name in enumerate(layer_names(leaf))
    ]
    config = dataclasses.replace(config, dtype=jnp.dtype(jax.tree.leaves(params)[0].dtype).name)
    with new_folder(path) as draft:
        _write(draft, config, tensors, end_tokens, max_shard_bytes)
    return path


def _write(
    draft: Path, config: LlamaConfig, tensors: Sequence[_Tensor], end_tokens: Sequence[int], max_shard_bytes: int
) -> None:
    """Write the configuration and the weights into a folder."""
    shards: list[list[_Tensor]] = [[]]
    for tensor in tensors:
        if shards[-1] and sum(t.spec.nbytes for t in shards[-1]) + tensor.spec.nbytes > max_shard_bytes:
            shards.append([])
        shards[-1].append(tensor)
    weight_map = {}
    for i, shard in enumerate(shards):
        file = SINGLE if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        write_file(draft / file, [t[:2] for t in shard], (t.read() for t in shard))
        weight_map.update({t.name: file for t in shard})
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(t.spec.nbytes for t in tensors)}, "weight_map": weight_map}
        (draft / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    (draft / CONFIG).write_text(json.dumps(config.to_hf(), indent=2) + "\n")
    if end_tokens:
        (draft / GENERATION).write_text(json.dumps({"eos_token_id": list(end_tokens)}, indent=2) + "\n")


def convert(model: str | Path, out: str | Path, *, dtype: str = "", max_shard_bytes: int = SHARD) -> Path:
    """Write a model that `locate` finds (a GGUF file, a packaged model, a folder) as a folder of Hugging Face's layout,
    with its tokenizer and chat template. Weights are decoded and written one tensor at a time.

    **Arguments:** `model`; `out`, a folder that does not exist yet; `dtype`, of the written weights: float32, bfloat16
    or float16; empty: that of the files, and float32 for quantised ones; `max_shard_bytes`, as in `save_hf`.
    **Returns:** `out`.
    **Raises:** `FileExistsError` if `out` exists; as `load` for files that are no model.
    """
    out = Path(out)
    if out.exists():
        raise FileExistsError(f"{out} exists: give a folder that does not")
    path = locate(model)
    config = read_config(path)
    config = dataclasses.replace(config, dtype=dtype or config.dtype)
    kind = {jnp.dtype(value).name: name for name, value in DTYPES.items()}[config.dtype]
    tokenizer = load_tokenizer(path)
    template = path / TEMPLATE
    with ExitStack() as stack:
        files = Files(path, config, stack)
        leaves = jax.tree.leaves(declare.declare(config), is_leaf=declare.is_leaf)
        files.check(leaves, config)

        def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
            activity.done += 1
            files.where[name].fill(name, whole := empty(shape, DTYPES[kind]))
            return whole

        tensors = [
            _Tensor(name, Spec(kind, leaf.hf_shape), partial(read, name, leaf.hf_shape))
            for leaf in leaves
            for name in layer_names(leaf)
        ]
        with new_folder(out) as draft, doing(f"writing {out}", len(tensors), "tensors") as activity:
            _write(draft, config, tensors, end_tokens_of(path, tokenizer), max_shard_bytes)
            tokenizer.save(draft)
            source = template.read_text("utf-8") if template.is_file() else tokenizer_config(path).get("chat_template")
            if isinstance(source, str):
                (draft / TEMPLATE).write_text(source, encoding="utf-8")
    return out
