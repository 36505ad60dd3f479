"""Reading and writing of PEFT's adapter folders: `adapter_config.json` and `adapter_model.safetensors`.

Every field of the configuration is implemented or rejected by name, except those that do not affect the computation,
which are ignored.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, SingleDeviceSharding

from llmrl_jax.core.files import new_folder
from llmrl_jax.lm import declare
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.lora import BLOCKS, TARGETS, LoRAConfig, PatternedLoRA, module
from llmrl_jax.lm.model import Llama
from llmrl_jax.lm.quantize import is_quantized
from llmrl_jax.lm.source import locate_folder
from llmrl_jax.lm.tensors import TensorFile, pickles, read_json, spec, write_file
from llmrl_jax.lm.weights import hf_tensor
from llmrl_jax.parallel.partition import shardings


CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."

_HONOURED = {
    "peft_type", "task_type", "r", "lora_alpha", "use_rslora", "target_modules", "exclude_modules", "rank_pattern",
    "alpha_pattern", "layers_to_transform", "layers_pattern", "modules_to_save", "init_lora_weights", "bias",
}  # fmt: skip
# Ignored: the origin of the adapter; how PEFT initialises, runs or trains it; a layout that linear layers do not have.
_SILENT = {
    "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "ephemeral_gpu_offload",
    "eva_config", "fan_in_fan_out", "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config",
    "megatron_core", "peft_version", "qalora_group_size", "revision", "runtime_config",
}  # fmt: skip
_REMEDY = "load it with peft, merge_and_unload and save_pretrained the model, and load that folder"
Saved = dict[str, tuple[tuple[str, ...], declare.ParamSpec, int]]
"""A tensor's name in the file -> the path of its parameter, its declaration, its layer."""
_PLAIN_INITS = (True, False, None, "gaussian", "orthogonal", "eva", "mica")
"""Initialisations that do not change the base weights. PiSSA, OLoRA, CorDA and LoRA-GA subtract the first
adapter from them; LoftQ quantises them."""


def _refuse(field: str, value: Any, reason: str, remedy: str = _REMEDY) -> ValueError:
    return ValueError(f"adapter field {field} is {value!r}: {reason}; {remedy}")


def _check_fields(raw: Mapping[str, Any], config: LlamaConfig) -> None:
    """Reject fields that are not implemented."""
    if (kind := raw.get("peft_type")) != "LORA":
        raise _refuse("peft_type", kind, "only 'LORA' is implemented")
    if (task := raw.get("task_type")) not in (None, "CAUSAL_LM"):
        raise _refuse("task_type", task, "only 'CAUSAL_LM' is implemented")
    if (bias := raw.get("bias") or "none") != "none" and config.qkv_bias:
        raise _refuse("bias", bias, "only 'none' is implemented for a model with biases")
    init = raw.get("init_lora_weights", True)
    if (init.lower() if isinstance(init, str) else init) not in _PLAIN_INITS:
        reason = "it changes the base weights, so the adapter does not fit the original ones"
        raise _refuse("init_lora_weights", init, reason, "save it with path_initial_model_for_weight_conversion, which "
                      "makes it a plain LoRA")  # fmt: skip
    for name, value in raw.items():
        if name not in _HONOURED | _SILENT and value not in (None, False, "", [], {}, ()):
            raise _refuse(name, value, "this is not implemented")
    for name in ("r", "lora_alpha"):
        if not isinstance(raw.get(name), int | float) or isinstance(raw[name], bool):
            raise _refuse(name, raw.get(name), "a number is needed", "is the file complete?")
    if not raw.get("target_modules"):
        raise _refuse("target_modules", raw.get("target_modules"), "it must name matrices", "is the file complete?")


def _match(pattern: str, name: str, field: str, full: bool) -> bool:
    """Return whether a regular expression matches a module's name: the `full` name, or a suffix after a dot too."""
    try:
        return bool(re.fullmatch(pattern if full else rf"(.*\.)?({pattern})", name))
    except re.error as error:
        raise _refuse(field, pattern, f"it is no regular expression ({error})", "correct the file") from None


def _named(entries: Any, name: str, field: str) -> bool:
    """Return whether `target_modules` or `exclude_modules` selects a module: a regular expression, or suffixes of
    names."""
    if isinstance(entries, str):
        return _match(entries, name, field, full=True)
    return any(name == entry or name.endswith(f".{entry}") for entry in entries)


def _in_layers(raw: Mapping[str, Any], name: str, layer: int) -> bool:
    """Return whether `layers_to_transform` allows a matrix; it applies only to matrices that suffixes of names
    select."""
    layers, targets = raw.get("layers_to_transform"), raw["target_modules"]
    if layers is None or layers == [] or isinstance(targets, str) or name in targets:
        return True
    patterns = raw.get("layers_pattern") or "layers"
    if not any(_match(p, "model.layers", "layers_pattern", full=False) for p in np.atleast_1d(patterns).tolist()):
        return False
    return layer in ([layers] if isinstance(layers, int) else layers)


def _pattern(pattern: Mapping[str, Any] | None, name: str, field: str, default: float) -> float:
    """PEFT's rule: the first key, in the file's order, that matches the name or a suffix of it after a dot.

    (PEFT sorts keys when it saves, so with overlapping keys it may itself load another scale than it trained with.)
    """
    for key, value in (pattern or {}).items():
        if _match(key, name, field, full=False):
            return value
    return default


def _saved(entries: Sequence[str] | None, name: str) -> bool:
    """Return whether a module, or one that contains it, is among `modules_to_save`.

    PEFT compares suffixes of names as text: `norm` selects `input_layernorm` too.
    """
    parts = name.split(".")
    inner = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
    return any(n.endswith(entry) for entry in entries or () for n in inner)


def read_lora(raw: Mapping[str, Any], config: LlamaConfig) -> LoRAConfig:
    """The `LoRAConfig` of an `adapter_config.json` for a model.

    **Returns:** a `LoRAConfig`, or a `PatternedLoRA` if matrices or layers differ.
    **Raises:** `ValueError`, naming the field, if it is not implemented or names no matrix of the model.
    """
    _check_fields(raw, config)
    targets = raw["target_modules"]
    everything = isinstance(targets, str) and targets.lower() == "all-linear"
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for layer in range(config.num_hidden_layers):
        for target in TARGETS:
            name = "model." + module(target, layer)
            chosen = everything or _named(targets, name, "target_modules")
            excluded = raw.get("exclude_modules") and _named(raw["exclude_modules"], name, "exclude_modules")
            fully_trained = any(f".{entry}." in f".{name}." for entry in raw.get("modules_to_save") or ())
            if not chosen or excluded or fully_trained or not _in_layers(raw, name, layer):
                continue
            if _saved(raw.get("modules_to_save"), name):
                raise _refuse("modules_to_save", raw["modules_to_save"], f"{name} has an adapter too")
            ranks[module(target, layer)] = int(_pattern(raw.get("rank_pattern"), name, "rank_pattern", raw["r"]))
            alphas[module(target, layer)] = _pattern(raw.get("alpha_pattern"), name, "alpha_pattern", raw["lora_alpha"])
    for name in ("lm_head", "model.embed_tokens"):
        if not everything and _named(targets, name, "target_modules") and not _saved(raw.get("modules_to_save"), name):
            raise _refuse("target_modules", targets, f"an adapter of {name} is not implemented")
    if not ranks:
        raise _refuse("target_modules", targets, "it fits no matrix of this model",
                      f"those are {', '.join(TARGETS)} of layers 0 to {config.num_hidden_layers - 1}")  # fmt: skip
    matrices = tuple(t for t in TARGETS if any(name.endswith(f".{t}") for name in ranks))
    plain = LoRAConfig(int(raw["r"]), float(raw["lora_alpha"]), matrices, bool(raw.get("use_rslora", False)))
    full = {module(t, i): 0 for t in matrices for i in range(config.num_hidden_layers)} | ranks
    other_ranks = _summary(full, matrices, plain.rank)
    other_alphas = _summary(alphas, matrices, plain.alpha)
    if not other_ranks and not other_alphas:
        return plain
    return PatternedLoRA(**dataclasses.asdict(plain), ranks=other_ranks, alphas=other_alphas)


def _summary(values: Mapping[str, float], targets: tuple[str, ...], default: float) -> Any:
    """The values that differ from the default: per matrix if all its layers agree, else per layer."""
    lines: list[tuple[str, float]] = []
    for target in targets:
        selected = {name: value for name, value in values.items() if name.endswith(f".{target}")}
        if len(set(selected.values())) == 1:
            value = next(iter(selected.values()))
            lines += [(target, value)] if value != default else []
        else:
            lines += [(name, value) for name, value in selected.items() if value != default]
    return tuple(lines)


def _keys(target: str, layer: int) -> tuple[str, str]:
    stem = f"{PREFIX}model.{module(target, layer)}"
    return f"{stem}.lora_A.weight", f"{stem}.lora_B.weight"


def _leaves_saved(entries: Sequence[str] | None, config: LlamaConfig) -> Saved:
    """The tensors of `modules_to_save` by their names in the file: the parameter's path, declaration, layer."""
    tensors: Saved = {}
    paths, _ = jax.tree_util.tree_flatten_with_path(declare.declare(config), is_leaf=declare.is_leaf)
    for path, leaf in paths:
        for layer in range(leaf.shape[0] if leaf.stacked else 1):
            name = leaf.hf.format(layer)
            if _saved(entries, name.rpartition(".")[0]):
                tensors[PREFIX + name] = (tuple(k.key for k in path), leaf, layer)
    for entry in entries or ():
        if config.tie_word_embeddings and (_saved([entry], "lm_head") or _saved([entry], "model.embed_tokens")):
            raise _refuse("modules_to_save", entry, "the model ties its head to its embedding, which this would untie")
        if not any(_saved([entry], key.removeprefix(PREFIX).rpartition(".")[0]) for key in tensors):
            raise _refuse("modules_to_save", entry, "this model has no such module")
    return tensors


def _check_file(file: TensorFile, shapes: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if name not in file.specs:
            raise ValueError(f"{file.path} lacks the tensor {name}, which {CONFIG} asks for")
        file.check(name, shape, f"{CONFIG} with the model")
    if extra := [name for name in file.specs if name not in shapes]:
        suffix = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise ValueError(f"{file.path} holds the tensor {extra[0]}{suffix}, which {CONFIG} does not ask for")


def load_adapter(
    path_or_id: str | Path, model: Llama, variables: Mapping[str, Any], mesh: Mesh | None = None
) -> tuple[Llama, dict[str, Any]]:
    """Load a PEFT LoRA adapter for a model. Everything is checked before anything is allocated.

    `lora_dropout` is not kept: it applies to PEFT's training only. Fully trained modules (`modules_to_save`) replace
    the base's, in the base's dtype and placement; `variables` is unchanged and still holds the reference policy.

    **Arguments:** `path_or_id`, a folder or hub id; `model`, the base; `variables`, with its `params`; `mesh`, over
    which the adapter is sharded like the weights (None: on the first device).
    **Returns:** `(model, {"params": ..., "lora": ...})`: the model with the adapter's `LoRAConfig`, float32 adapters.
    **Raises:** `FileNotFoundError` for a missing file; `ValueError`, with the name, for an unsupported field, or a
    missing, extra or misshapen tensor.
    """
    folder = locate_folder(path_or_id)
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} holds no {CONFIG}: it is not an adapter folder of PEFT's layout")
    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(f"{folder} holds no {WEIGHTS}{pickles(folder)}")
    raw = read_json(folder / CONFIG)
    config = model.config
    try:
        lora = read_lora(raw, config)
        saved = _leaves_saved(raw.get("modules_to_save"), config)
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from None
    tree = declare.declare_lora(config, lora)
    abstract = declare.abstract(tree, jnp.float32)
    device = SingleDeviceSharding(jax.devices()[0])
    leaf_shardings = (
        jax.tree.map(lambda _: device, abstract) if mesh is None else shardings(abstract, declare.axes(tree), mesh)
    )
    sides = {t: _sides(config, t) for t in lora.targets}
    shapes = {key: leaf.hf_shape for key, (_, leaf, _) in saved.items()}
    present = [(t, i, r) for t in lora.targets for i in range(config.num_hidden_layers) if (r := lora.rank_at(t, i))]
    for target, layer, rank in present:
        a, b = _keys(target, layer)
        shapes |= {a: (rank, sides[target][0]), b: (sides[target][1], rank)}
    with closing(TensorFile(folder / WEIGHTS)) as file:
        _check_file(file, shapes)
        values = {
            t: (np.zeros((config.num_hidden_layers, sides[t][0], leaf["a"].shape[-1]), np.float32),
                np.zeros((config.num_hidden_layers, leaf["b"].shape[1], sides[t][1]), np.float32))
            for t in lora.targets for leaf in [tree["layers"][BLOCKS[t]][t]]
        }  # fmt: skip
        for target, layer, rank in present:
            for key, value in zip(_keys(target, layer), values[target], strict=True):
                part = value[layer][:, :rank] if key.endswith("lora_A.weight") else value[layer][:rank]
                file.fill(key, part.T)
        adapters: dict[str, Any] = {}
        for target, (a_value, b_value) in values.items():
            leaf, sharding = tree["layers"][BLOCKS[target]][target], leaf_shardings["layers"][BLOCKS[target]][target]
            adapters.setdefault(BLOCKS[target], {})[target] = {
                "a": jax.device_put(a_value.reshape(leaf["a"].shape), sharding["a"]),
                "b": jax.device_put(b_value.reshape(leaf["b"].shape), sharding["b"]),
            }
        params = _replaced(file, saved, variables["params"])
    return model.clone(lora=lora), {"params": params, "lora": {"layers": adapters}}


def _sides(config: LlamaConfig, target: str) -> tuple[int, int]:
    """The numbers of inputs and of outputs of a matrix."""
    p = declare.projections(config)[target]
    count = [int(np.prod([n for _, n in side])) for side in (p.inputs, p.outputs)]
    return count[0], count[1]


def _replaced(file: TensorFile, saved: Saved, params: Any) -> Any:
    """`params` with the base's leaves replaced by those that the adapter contains in full."""
    fresh: dict[tuple[str, ...], np.ndarray] = {}
    for key, (path, leaf, layer) in saved.items():
        old: Any = params
        for part in path:
            old = old[part]
        if is_quantized(old):
            raise ValueError(f"{key} replaces a matrix that is quantised in the base: leave it out of quantize_targets")
        if path not in fresh:
            fresh[path] = np.array(old)
        buffer = fresh[path][layer] if leaf.stacked else fresh[path]
        inputs = int(np.prod(buffer.shape[: leaf.fan_in]))
        file.fill(key, buffer.reshape(inputs, -1).T if leaf.fan_in else buffer.reshape(leaf.hf_shape))

    def swap(path, old):
        new = fresh.get(tuple(k.key for k in path))
        return old if new is None else jax.device_put(new, getattr(old, "sharding", None))

    return jax.tree_util.tree_map_with_path(swap, params, is_leaf=is_quantized) if fresh else params


def save_adapter(
    path: str | Path,
    model: Llama,
    variables: Mapping[str, Any],
    *,
    base: str = "",
    modules_to_save: tuple[str, ...] = (),
) -> Path:
    """Write a model's adapters atomically as a folder that peft loads.

    **Arguments:** `path`, a folder that does not exist yet; `model`, with its `LoRAConfig`; `variables`, with `lora`;
    `base`, the base model's folder or hub id for peft; `modules_to_save`, fully trained modules of `params` that are
    written too, such as `("lm_head", "norm")`.
    **Returns:** `path`.
    **Raises:** `FileExistsError` if `path` exists; `ValueError` for a model without adapters, or for a module that it
    does not have.
    """
    path, config, lora = Path(path), model.config, model.lora
    if lora is None or "lora" not in variables:
        raise ValueError("the model has no adapters to write: build it with a LoRAConfig, or use save_hf")
    layers = range(config.num_hidden_layers)
    present = [(t, i) for t in lora.targets for i in layers if lora.rank_at(t, i)]
    names = [f"model.{module(t, i)}" for t, i in present]
    ranks, alphas = (lora.ranks, lora.alphas) if isinstance(lora, PatternedLoRA) else ((), ())
    raw: dict[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha,
        "use_rslora": lora.rslora,
        "target_modules": list(lora.targets) if len(present) == len(lora.targets) * len(layers) else names,
        "rank_pattern": _written(ranks, present, lora.rank),
        "alpha_pattern": _written(alphas, present, lora.alpha),
        "modules_to_save": list(modules_to_save) or None,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
    }
    saved = _leaves_saved(modules_to_save, config)
    if any(_saved(modules_to_save, name) for name in names):
        raise ValueError(f"modules_to_save {modules_to_save} holds a matrix that has an adapter; merge it first")
    tensors: list[tuple[str, np.ndarray]] = []
    for target in lora.targets:
        ab = variables["lora"]["layers"][BLOCKS[target]][target]
        ins, outs = _sides(config, target)
        for layer in layers:
            if rank := lora.rank_at(target, layer):
                a = np.asarray(ab["a"][layer], np.float32).reshape(ins, -1)[:, :rank].T
                b = np.asarray(ab["b"][layer], np.float32).reshape(-1, outs)[:rank].T
                tensors += zip(_keys(target, layer), (a, b), strict=True)
    for key, (parts, leaf, layer) in saved.items():
        value: Any = variables["params"]
        for part in parts:
            value = value[part]
        tensors.append((key, hf_tensor(leaf, value, layer)))
    with new_folder(path) as draft:
        write_file(draft / WEIGHTS, [(k, spec(k, v)) for k, v in tensors], (v for _, v in tensors))
        (draft / CONFIG).write_text(json.dumps(raw, indent=2) + "\n")
    return path


def _written(pattern: tuple[tuple[str, float], ...], present: Sequence[tuple[str, int]], default: float) -> Any:
    """A pattern for PEFT: no two keys match one matrix, since PEFT uses the first match and sorts keys on saving."""
    by_name = dict(pattern)
    written: dict[str, float] = {}
    for target in TARGETS:
        modules = [module(target, i) for t, i in present if t == target]
        if not any(name in by_name for name in modules):
            written |= {target: by_name[target]} if modules and target in by_name else {}
            continue
        values = {f"model.{name}": by_name.get(name, by_name.get(target, default)) for name in modules}
        written |= {name: value for name, value in values.items() if value != default}
    return written
