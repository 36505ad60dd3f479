"""Hugging Face's folders, in and out: `config.json` and safetensors, one file or many."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from llmrl_jax.lm import declare
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.lora import LoRAConfig
from llmrl_jax.lm.model import Llama
from llmrl_jax.parallel.partition import shardings


CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_STORED = ("F32", "BF16", "F16")


def _json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None


def read_config(path: str | Path) -> LlamaConfig:
    """A model folder's configuration. **Raises:** `FileNotFoundError`, or `ValueError` for an unsupported field."""
    file = locate(path) / CONFIG
    if not file.is_file():
        raise FileNotFoundError(f"{file.parent} holds no {CONFIG}: it is not a model folder of Hugging Face's layout")
    try:
        return LlamaConfig.from_hf(_json(file))
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def locate(path_or_id: str | Path, *, revision: str | None = None) -> Path:
    """The folder of a model: a local one, or a hub id's snapshot, from the local cache or else downloaded.

    **Raises:** `FileNotFoundError` where there is neither, saying what was tried.
    """
    path = Path(path_or_id).expanduser()
    if path.is_dir():
        return path
    name = str(path_or_id)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise FileNotFoundError(f"no model folder {name!r} (a hub id is spelled OWNER/NAME)")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "tokenizer.model"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted, local_files_only=True))
    except LocalEntryNotFoundError:
        pass
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=wanted))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"{name!r} is no local folder, is not in the hub's local cache, and could not be downloaded "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}); "
            f"download it where there is a network and give its folder"
        ) from None


def _layer_names(leaf: declare.Leaf) -> list[str]:
    """Hugging Face's names of a leaf's tensors, one for each layer of a stacked leaf."""
    assert leaf.hf is not None
    return [leaf.hf.format(i) for i in range(leaf.shape[0])] if "{}" in leaf.hf else [leaf.hf]


class _Files:
    """The open safetensors files of a folder, and which of them holds a tensor."""

    def __init__(self, folder: Path, stack: ExitStack):
        if (folder / INDEX).is_file():
            weight_map = _json(folder / INDEX).get("weight_map", {})
            names = sorted(set(weight_map.values()))
        elif (folder / SINGLE).is_file():
            names = [SINGLE]
        else:
            found = sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pth", ".pt", ".gguf"))
            also = f"; it holds {found[0]}, which must be converted to safetensors first" if found else ""
            raise FileNotFoundError(f"{folder} holds no weights, neither {SINGLE} nor {INDEX}{also}")
        self.where: dict[str, Any] = {}
        for name in names:
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder / INDEX} lists {name}, which is not in the folder")
            try:
                file = stack.enter_context(safe_open(folder / name, "np"))
            except SafetensorError as error:
                raise ValueError(f"{folder / name} is damaged or cut short: {error}") from None
            self.where.update(dict.fromkeys(file.keys(), file))

    def piece(self, name: str) -> Any:
        return self.where[name].get_slice(name)

    def check(self, leaves: list[declare.Leaf], config: LlamaConfig) -> None:
        """Compare names, shapes and dtypes with the declaration, from the headers alone."""
        wanted = {name: leaf.hf_shape for leaf in leaves for name in _layer_names(leaf)}
        missing = [name for name in wanted if name not in self.where]
        if missing:
            more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            hint = "; should tie_word_embeddings be true?" if missing == ["lm_head.weight"] else ""
            raise ValueError(f"the weights lack the tensor {missing[0]}{more}{hint}")
        for name, shape in wanted.items():
            piece = self.piece(name)
            if tuple(piece.get_shape()) != shape:
                raise ValueError(f"tensor {name} has shape {tuple(piece.get_shape())}; {CONFIG} asks for {shape}")
            if piece.get_dtype() not in _STORED:
                raise ValueError(f"tensor {name} is stored as {piece.get_dtype()}; supported: {', '.join(_STORED)}")
        ignored = {"lm_head.weight"} if config.tie_word_embeddings else set()
        extra = [
            n for n in self.where if n not in wanted and n not in ignored and not n.endswith("rotary_emb.inv_freq")
        ]
        if extra:
            more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
            raise ValueError(f"the weights hold the tensor {extra[0]}{more}, which this Llama would not read")

    def read(self, leaf: declare.Leaf, dtype: Any, index: tuple[slice, ...]) -> np.ndarray:
        """The part `index` of a leaf, in our layout; nothing else is read from the disk."""
        spans = [s.indices(n)[:2] for s, n in zip(index, leaf.shape, strict=True)]
        names = _layer_names(leaf)
        stacked = "{}" in (leaf.hf or "")
        if stacked:
            names, spans = names[slice(*spans[0])], spans[1:]
        dims = leaf.shape[1:] if stacked else leaf.shape
        part = tuple(b - a for a, b in spans)
        groups = [range(len(dims))] if not leaf.fan_in else [range(leaf.fan_in, len(dims)), range(leaf.fan_in)]
        rows = tuple(_flat(spans, dims, g) for g in groups) if leaf.fan_in else tuple(slice(*s) for s in spans)

        def one(name: str) -> np.ndarray:
            tensor = self.piece(name)[rows]
            return (tensor.T if leaf.fan_in else tensor).reshape(part).astype(dtype)

        return np.stack([one(name) for name in names]) if stacked else one(names[0])


def _flat(spans: list[tuple[int, int]], dims: tuple[int, ...], group: range) -> slice:
    """The range of a flattened group of axes of which only the first is cut."""
    inner = math.prod(dims[i] for i in group[1:])
    assert all(spans[i] == (0, dims[i]) for i in group[1:]), "only the first axis of a group is ever sharded"
    start, stop = spans[group[0]]
    return slice(start * inner, stop * inner)


def load_hf(
    path: str | Path, mesh: Mesh | None = None, *, dtype: Any = jnp.float32, lora: LoRAConfig | None = None
) -> tuple[Llama, dict[str, Any]]:
    """Read a model folder. Everything is checked from the headers before anything is allocated; then each device's
    part of each leaf is read and placed, so that no host holds more than one leaf.

    **Arguments:** `path`, a folder with `config.json` and safetensors; `mesh`, over which the weights are sharded
    (None: whole, on the first device); `dtype`, of weights and computation; `lora`, the adapters of the model that
    is returned (`model.init` makes them; they are not in `variables`).
    **Returns:** `(model, {"params": ...})`.
    **Raises:** `FileNotFoundError` for a missing file; `ValueError` for an unsupported architecture or field, a
    missing, extra or misshapen tensor, or a mesh that does not divide a leaf: each by name.
    """
    folder = Path(path)
    config = read_config(folder)
    model = Llama(config, lora=lora, dtype=dtype, param_dtype=dtype)
    tree = declare.declare(config)
    whole = SingleDeviceSharding(jax.devices()[0])
    abstract = declare.abstract(tree, dtype)
    places = jax.tree.map(lambda _: whole, abstract) if mesh is None else shardings(abstract, declare.axes(tree), mesh)
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=declare.is_leaf)
    with ExitStack() as stack:
        files = _Files(folder, stack)
        files.check(leaves, config)
        arrays = [
            jax.make_array_from_callback(leaf.shape, place, partial(files.read, leaf, dtype))
            for leaf, place in zip(leaves, structure.flatten_up_to(places), strict=True)
        ]
    return model, {"params": jax.tree.unflatten(structure, arrays)}


def load(
    path_or_id: str | Path,
    mesh: Mesh | None = None,
    *,
    dtype: Any = jnp.float32,
    lora: LoRAConfig | None = None,
    revision: str | None = None,
) -> tuple[Llama, dict[str, Any]]:
    """`load_hf` of a local folder, or of a hub id (`OWNER/NAME`, at `revision`) from the local cache or the network."""
    return load_hf(locate(path_or_id, revision=revision), mesh, dtype=dtype, lora=lora)


def _tensors(config: LlamaConfig, params: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor by Hugging Face's name and in its layout, one at a time."""
    tree = declare.declare(config)
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=declare.is_leaf)
    for leaf, array in zip(leaves, structure.flatten_up_to(params), strict=True):
        if tuple(array.shape) != leaf.shape:
            raise ValueError(f"{leaf.hf} has shape {tuple(array.shape)}; the configuration asks for {leaf.shape}")
        names = _layer_names(leaf)
        for i, name in enumerate(names):
            value = np.asarray(jax.device_get(array[i] if "{}" in (leaf.hf or "") else array))
            turned = value.reshape(leaf.hf_shape[::-1]).T if leaf.fan_in else value
            yield name, np.ascontiguousarray(turned)


def save_hf(path: str | Path, config: LlamaConfig, params: Any, *, max_shard_bytes: int = 5_000_000_000) -> Path:
    """Write a folder that `transformers` loads: `config.json` and safetensors, in several files above a size.

    The folder appears whole or not at all. Adapters are not written: `merge` them first.

    **Arguments:** `path`, a folder that does not exist yet; `config`; `params`, the collection; `max_shard_bytes`.
    **Returns:** `path`.
    **Raises:** `FileExistsError` where `path` exists; `ValueError` for parameters of another configuration.
    """
    path = Path(path)
    if path.exists():
        raise FileExistsError(f"{path} exists already; give a new folder")
    dtype = jnp.dtype(jax.tree.leaves(params)[0].dtype).name
    draft = path.parent / f".{path.name}.partial-{os.getpid()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.mkdir()
    try:
        shards: list[list[str]] = []
        held: dict[str, np.ndarray] = {}
        total = 0

        def flush() -> None:
            save_file(held, draft / f"shard-{len(shards)}", metadata={"format": "pt"})
            shards.append(list(held))
            held.clear()

        for name, tensor in _tensors(config, params):
            if held and sum(t.nbytes for t in held.values()) + tensor.nbytes > max_shard_bytes:
                flush()
            held[name] = tensor
            total += tensor.nbytes
        flush()
        weight_map = {}
        for i, names in enumerate(shards):
            file = SINGLE if len(shards) == 1 else f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
            (draft / f"shard-{i}").rename(draft / file)
            weight_map.update(dict.fromkeys(names, file))
        if len(shards) > 1:
            index = {"metadata": {"total_size": total}, "weight_map": weight_map}
            (draft / INDEX).write_text(json.dumps(index, indent=2) + "\n")
        written = dataclasses.replace(config, dtype=dtype).to_hf()
        (draft / CONFIG).write_text(json.dumps(written, indent=2) + "\n")
        draft.rename(path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return path
