"""Reading of models, Hugging Face's folders and GGUF files, and writing of folders: tensor by tensor."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, Sharding, SingleDeviceSharding

from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import new_folder
from llmrl_jax.lm import declare, gguf
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.lora import TARGETS, LoRAConfig
from llmrl_jax.lm.model import Llama
from llmrl_jax.lm.quantize import (
    Quantized,
    check_options,
    encoder,
    is_quantized,
    quantize as quantize_params,
    quantized_shardings,
)
from llmrl_jax.lm.source import (
    CONFIG,
    GENERATION,
    TEMPLATE,
    chat_template,
    end_tokens as end_tokens_of,
    locate,
    read_config,
)
from llmrl_jax.lm.tensors import (
    DTYPES,
    KINDS,
    Spec,
    TensorFile,
    TensorSource,
    empty,
    pickles,
    read_json,
    spec,
    write_file,
)
from llmrl_jax.lm.tokens import load_tokenizer
from llmrl_jax.parallel.partition import shardings


SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_ROWS = 4096
"""Rows of two tensors that are compared at once."""
_STAGED = 128 << 20
"""Bytes up to which a stacked leaf is read at once. A larger one is sent to its devices layer by layer, with a program
for each shape (0.05 s to compile)."""


def layer_names(leaf: declare.ParamSpec) -> list[str]:
    """Hugging Face's names of a leaf's tensors, one per layer of a stacked leaf."""
    assert leaf.hf is not None
    return [leaf.hf.format(i) for i in range(leaf.shape[0])] if leaf.stacked else [leaf.hf]


class Files:
    """The open files of a model, and the file of each tensor, by Hugging Face's names."""

    def __init__(self, model: Path, config: LlamaConfig, stack: ExitStack):
        """**Arguments:** `model`, what `locate` returns; `config`, its configuration; `stack`, which closes the files.

        **Raises:** `FileNotFoundError`, `ValueError` for files that are missing or damaged."""
        self.sources: dict[str, TensorSource] = {}
        if model.is_file():
            tensors = stack.enter_context(closing(gguf.GGUFTensors(model, config)))
            self.sources.update(dict.fromkeys(tensors.specs, tensors))
        else:
            self._open_folder(model, stack)

    def _open_folder(self, folder: Path, stack: ExitStack) -> None:
        listed: dict[str, str] = {}
        if (folder / SINGLE).is_file():  # before an index, as in transformers: it may be left of an earlier model
            names = [SINGLE]
        elif (folder / INDEX).is_file():
            listed = read_json(folder / INDEX).get("weight_map") or {}
            names = sorted(set(listed.values()))
        else:
            raise FileNotFoundError(f"{folder} holds no weights, neither {SINGLE} nor {INDEX}{pickles(folder)}")
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ValueError(f"{folder / INDEX} lists {name!r}, which is not the name of a safetensors file there")
        if missing := [name for name in names if not (folder / name).is_file()]:
            suffix = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
            raise FileNotFoundError(
                f"{folder / INDEX} lists {missing[0]}{suffix}, which is not in the folder: copy or download it again"
            )
        for name in names:
            file = stack.enter_context(closing(TensorFile(folder / name)))
            self.sources.update(dict.fromkeys(file.specs, file))
        for tensor, name in listed.items():
            if tensor not in self.sources:
                raise ValueError(f"{folder / INDEX} says that {name} holds the tensor {tensor}, which it does not")

    def dtype(self, leaves: list[declare.ParamSpec]) -> str:
        """The dtype of the matrices; float32 if they have several, or are quantised. Vectors do not count: they are
        float32 in many GGUF files of another dtype."""
        names = [name for leaf in leaves if len(leaf.hf_shape) > 1 for name in layer_names(leaf)]
        kinds = {self.sources[name].specs[name].dtype for name in names}
        return jnp.dtype(DTYPES[kinds.pop()]).name if len(kinds) == 1 else "float32"

    def check(self, leaves: list[declare.ParamSpec], config: LlamaConfig) -> None:
        """Compare names, shapes and dtypes with the declaration, from the headers, and a head that is stored beside the
        embedding to which it is tied with that."""
        shapes = {name: leaf.hf_shape for leaf in leaves for name in layer_names(leaf)}
        missing = [name for name in shapes if name not in self.sources]
        if missing:
            suffix = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
            hint = "; should tie_word_embeddings be true?" if missing == [_HEAD] else ""
            raise ValueError(f"the weights lack the tensor {missing[0]}{suffix}{hint}")
        for name, shape in shapes.items():
            self.sources[name].check(name, shape, "the configuration")
        ignored = {_HEAD} if config.tie_word_embeddings else set()
        if ignored & self.sources.keys() and not self._equal(_HEAD, _EMBEDDING):
            raise ValueError(
                f"tie_word_embeddings is true, but the weights hold a {_HEAD} that differs from {_EMBEDDING}: set "
                "tie_word_embeddings to false in config.json"
            )
        extra = [
            n for n in self.sources if n not in shapes and n not in ignored and not n.endswith("rotary_emb.inv_freq")
        ]
        if extra:
            suffix = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
            raise ValueError(
                f"the weights hold the tensor {extra[0]}{suffix}, which a {config.model_type!r} model would not read"
            )

    def _equal(self, one: str, other: str) -> bool:
        """Return whether two tensors have the same shape and values; they are read in parts."""
        kind, shape = self.sources[one].specs[one]
        if self.sources[other].specs[other].shape != shape:
            return False
        for start in range(0, shape[0], _ROWS):
            part = (slice(start, min(start + _ROWS, shape[0])), *(slice(0, n) for n in shape[1:]))
            left, right = (np.empty([s.stop - s.start for s in part], DTYPES[kind]) for _ in range(2))
            self.sources[one].fill(one, left, part)
            self.sources[other].fill(other, right, part)
            if not np.array_equal(left, right):
                return False
        return True

    def read(self, leaf: declare.ParamSpec, dtype: Any, index: tuple[slice, ...], first: int = 0) -> np.ndarray:
        """The part `index` of a leaf, in this package's layout; `first` is the layer that the leaf begins at."""
        spans = [s.indices(n)[:2] for s, n in zip(index, leaf.shape, strict=True)]
        sizes = tuple(stop - start for start, stop in spans)
        lead = 1 if leaf.stacked else 0
        # In the file's layout, outputs before inputs; jax transposes the view faster than NumPy.
        ins, outs = sizes[lead : lead + leaf.fan_in], sizes[lead + leaf.fan_in :]
        output = empty((*sizes[:lead], *outs, *ins), dtype)
        for i in range(*spans[0]) if lead else (0,):
            layer_output = output[i - spans[0][0]] if lead else output
            self._read_tensor(leaf, (leaf.hf or "").format(first + i), spans[lead:], layer_output)
        turned = (*range(lead), *range(lead + len(outs), output.ndim), *range(lead, lead + len(outs)))
        return output.transpose(turned)

    def _read_tensor(
        self, leaf: declare.ParamSpec, name: str, spans: list[tuple[int, int]], output: np.ndarray
    ) -> None:
        """Read a tensor's part into `output`, which has the file's order of axes, with those of a group separate."""
        dims = leaf.shape[1:] if leaf.stacked else leaf.shape
        axes = range(len(dims))
        if leaf.fan_in:
            groups: Sequence[Sequence[int]] = [axes[leaf.fan_in :], axes[: leaf.fan_in]]
        else:
            groups = [axes] if len(leaf.hf_shape) == 1 else [[i] for i in axes]
        part = tuple(_flat(spans, dims, group) for group in groups)
        self.sources[name].fill(name, output.reshape([s.stop - s.start for s in part]), part)


def _flat(spans: list[tuple[int, int]], dims: tuple[int, ...], group: Sequence[int]) -> slice:
    """The range of a flattened group of axes of which only the first is split."""
    inner = math.prod(dims[i] for i in group[1:])
    assert all(spans[i] == (0, dims[i]) for i in group[1:]), "only the first axis of a group is ever sharded"
    start, stop = spans[group[0]]
    return slice(start * inner, stop * inner)


@lru_cache
def _blank(shape: tuple[int, ...], dtype: Any, sharding: Sharding) -> Callable[[], jax.Array]:
    """A program that creates an array of zeros with its sharding; cached, like the next, to compile only once."""
    return jax.jit(partial(jnp.zeros, shape, dtype), out_shardings=sharding)


@lru_cache
def _writer(sharding: Sharding) -> Callable[[jax.Array, jax.Array, int], jax.Array]:
    """A program that writes one layer of a stacked leaf in place."""

    def write(array, layer, i):
        return jax.lax.dynamic_update_slice_in_dim(array, layer, i, 0)

    return jax.jit(write, donate_argnums=0, out_shardings=sharding)


def _load_leaf(files: Files, leaf: declare.ParamSpec, sharding: Sharding, dtype: Any) -> jax.Array:
    """A leaf on its devices. A large stacked one is written layer by layer into an allocated array."""
    if not leaf.stacked or math.prod(leaf.shape) * jnp.dtype(dtype).itemsize <= _STAGED:
        return jax.make_array_from_callback(leaf.shape, sharding, partial(files.read, leaf, dtype))
    layer_leaf = dataclasses.replace(leaf, shape=(1, *leaf.shape[1:]))
    array = _blank(leaf.shape, jnp.dtype(dtype), sharding)()
    for i in range(leaf.shape[0]):
        layer = jax.make_array_from_callback(
            layer_leaf.shape, sharding, partial(files.read, layer_leaf, dtype, first=i)
        )
        # Waiting keeps one layer in the host's memory, instead of all those in flight.
        array = _writer(sharding)(array, layer, i).block_until_ready()
    return array


def _load_quantized(
    files: Files, leaf: declare.ParamSpec, sharding: Sharding, parts: Quantized, shapes: Quantized
) -> Any:
    """A leaf quantised on its devices, layer by layer: at most one of its matrices exists in floats at a time.

    A matrix is quantised from the dtype of its file, without rounding to another dtype first.
    """
    layer_leaf = dataclasses.replace(leaf, shape=(1, *leaf.shape[1:])) if leaf.stacked else leaf
    encode = encoder(shapes.kind, shapes.fan_in, leaf.stacked, parts)
    kernel: Any = None
    for i, name in enumerate(layer_names(leaf)):
        dtype = DTYPES[files.sources[name].specs[name].dtype]
        layer = jax.make_array_from_callback(
            layer_leaf.shape, sharding, partial(files.read, layer_leaf, dtype, first=i)
        )
        coded = encode(layer)
        if not leaf.stacked:
            return jax.block_until_ready(coded)
        if kernel is None:
            kernel = jax.tree.map(lambda x, p: _blank(x.shape, x.dtype, p)(), shapes, parts)
        kernel = jax.block_until_ready(jax.tree.map(lambda p, x, new, i=i: _writer(p)(x, new, i), parts, kernel, coded))
    return kernel


def load_hf(
    path: str | Path,
    mesh: Mesh | None = None,
    *,
    dtype: Any = jnp.float32,
    lora: LoRAConfig | None = None,
    quantize: str | None = None,
    quantize_targets: Sequence[str] = TARGETS,
) -> tuple[Llama, dict[str, Any]]:
    """Load a model folder or a GGUF file. Everything is checked from the headers before anything is allocated; then the
    tensors are read and placed one by one, each device's part separately, so that a host needs, in addition to the
    devices' memory, no more than the largest tensor and a tenth of the model. Matrices are quantised as soon as they
    are read.

    **Arguments:** `path`, a folder with `config.json` and safetensors, or a GGUF file; `mesh`, over which the weights
    are sharded (None: all on the first device); `dtype`, of weights and computation; `lora`, the adapters of the
    returned model (`model.init` makes them; they are not in `variables`); `quantize`, `int8` or `nf4`: the kind of
    quantisation of the frozen matrices (None: floats); `quantize_targets`, the matrices, as in `lm.quantize`.
    **Returns:** `(model, {"params": ...})`.
    **Raises:** `FileNotFoundError` for a missing file; `ValueError`, with the name, for an unsupported architecture or
    field, a missing, extra or misshapen tensor, or a mesh that does not divide a leaf or a block.
    """
    if quantize is not None:
        check_options(quantize, quantize_targets)
    folder = locate(path)
    config = read_config(folder)
    model = Llama(config, lora=lora, dtype=dtype, param_dtype=dtype)
    tree = declare.declare(config)
    device = SingleDeviceSharding(jax.devices()[0])
    abstract = declare.abstract(tree, dtype)
    leaf_shardings = (
        jax.tree.map(lambda _: device, abstract) if mesh is None else shardings(abstract, declare.axes(tree), mesh)
    )
    shapes: Any = abstract
    parts: Any = leaf_shardings
    if quantize is not None:
        shapes = jax.eval_shape(partial(quantize_params, kind=quantize, targets=quantize_targets), abstract)
        parts = (
            jax.tree.map(lambda _: device, shapes)
            if mesh is None
            else quantized_shardings(shapes, declare.axes(tree), mesh)
        )
    structure: Any
    leaves, structure = jax.tree.flatten(tree, is_leaf=declare.is_leaf)
    entries = zip(leaves, *map(structure.flatten_up_to, (leaf_shardings, parts, shapes)), strict=True)
    with ExitStack() as stack:
        files = Files(folder, config, stack)
        files.check(leaves, config)
        arrays = [
            _load_quantized(files, leaf, sharding, part, shape)
            if is_quantized(shape)
            else _load_leaf(files, leaf, sharding, dtype)
            for leaf, sharding, part, shape in entries
        ]
    return model, {"params": jax.tree.unflatten(structure, arrays)}


def load(
    path_or_id: str | Path,
    mesh: Mesh | None = None,
    *,
    dtype: Any = jnp.float32,
    lora: LoRAConfig | None = None,
    quantize: str | None = None,
    quantize_targets: Sequence[str] = TARGETS,
    revision: str | None = None,
) -> tuple[Llama, dict[str, Any]]:
    """`load_hf` of a local folder, a GGUF file, a packaged model by its name (`smollm2-135m`), or a hub id
    (`OWNER/NAME`, at `revision`) from the local cache or the network.

    **Arguments, Returns, Raises:** as those of `load_hf`: the model, and `{"params": ...}`, weights in `dtype`,
    those of its `L` layers as leaves `[L, ...]`; `revision`, of a hub id.

    **Example:**

    ```pycon
    >>> import jax, jax.numpy as jnp, llmrl_jax as lr
    >>> tokenizer = lr.WordTokenizer.from_texts(["what colour is the sky grass blood blue green red ?"])
    >>> config = lr.LlamaConfig(16, 32, 48, 2, 4, max_position_embeddings=64, eos_token_id=tokenizer.eos_id)
    >>> params = jax.jit(lr.Llama(config).init)(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    >>> lr.lm.save_hf("tiny", config, params)  # a model folder, as transformers writes it
    >>> tokenizer.save("tiny")
    >>> model, variables = lr.load_model("tiny", lora=lr.LoRAConfig(rank=4))
    >>> model.config.hidden_size, list(variables)
    (32, ['params'])
    ```
    """
    folder = locate(path_or_id, revision=revision)
    with doing(f"reading the weights of {folder.name}"):
        return load_hf(folder, mesh, dtype=dtype, lora=lora, quantize=quantize, quantize_targets=quantize_targets)


# --- writing ----------------------------------------------------------------------------------------------------------

_SHARD = 5_000_000_000
"""Bytes above which weights are written in several files."""


class _Tensor(NamedTuple):
    """A tensor to write, and how to get it when its turn comes."""

    name: str
    spec: Spec
    read: Callable[[], np.ndarray]


def _leaves(config: LlamaConfig, params: Any) -> Iterator[tuple[declare.ParamSpec, Any]]:
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


def hf_tensor(leaf: declare.ParamSpec, array: Any, layer: int = 0) -> np.ndarray:
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
    max_shard_bytes: int = _SHARD,
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


@contextmanager
def _checked(path: Path, config: LlamaConfig) -> Iterator[tuple[Files, list[declare.ParamSpec]]]:
    """The open files of a model, and the parameters that were found in them."""
    with ExitStack() as stack:
        files = Files(path, config, stack)
        leaves = jax.tree.leaves(declare.declare(config), is_leaf=declare.is_leaf)
        files.check(leaves, config)
        yield files, leaves


def stored_dtype(model: str | Path) -> str:
    """The dtype of a model's matrices in its files: float32, bfloat16 or float16; float32 if they have several, or are
    quantised.

    **Arguments:** `model`, as `locate` finds it. **Raises:** as `load` for files that are no model."""
    path = locate(model)
    with _checked(path, read_config(path)) as (files, leaves):
        return files.dtype(leaves)


def convert(model: str | Path, output: str | Path, *, dtype: str = "", max_shard_bytes: int = _SHARD) -> Path:
    """Write a model that `locate` finds (a GGUF file, a packaged model, a folder) as a folder of Hugging Face's layout,
    with its tokenizer and chat template. Weights are decoded and written one tensor at a time.

    **Arguments:** `model`; `output`, a folder that does not exist yet; `dtype`, of the written weights: float32,
    bfloat16 or float16; empty: that of the files, and float32 for quantised ones; `max_shard_bytes`, as in `save_hf`.
    **Returns:** `output`.
    **Raises:** `FileExistsError` if `output` exists; as `load` for files that are no model.
    """
    output = Path(output)
    if output.exists():
        raise FileExistsError(f"{output} exists: give a folder that does not")
    path = locate(model)
    config = read_config(path)
    config = dataclasses.replace(config, dtype=dtype or config.dtype)
    tokenizer = load_tokenizer(path)
    template = chat_template(path)
    with _checked(path, config) as (files, leaves):
        config = config if dtype else dataclasses.replace(config, dtype=files.dtype(leaves))
        kind = KINDS[config.dtype]

        def read(name: str, shape: tuple[int, ...]) -> np.ndarray:
            activity.done += 1
            files.sources[name].fill(name, array := empty(shape, DTYPES[kind]))
            return array

        tensors = [
            _Tensor(name, Spec(kind, leaf.hf_shape), partial(read, name, leaf.hf_shape))
            for leaf in leaves
            for name in layer_names(leaf)
        ]
        with new_folder(output) as draft, doing(f"writing {output}", len(tensors), "tensors") as activity:
            _write(draft, config, tensors, end_tokens_of(path, tokenizer), max_shard_bytes)
            tokenizer.save(draft)
            if template:
                (draft / TEMPLATE).write_text(template, encoding="utf-8")
    return output
