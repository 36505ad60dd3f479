"""Declarations of all parameters of the model: shape, logical axes, initial value and Hugging Face name.

The model's `init`, its abstract shapes, its shardings and the reader and writer of safetensors all use these
declarations, so a parameter cannot be sharded by one name and loaded by another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp

from envs_jax.tracing import default_types
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.lm.lora import LoRAConfig


Tree = dict[str, Any]
"""A nested dict: the structure of a flax collection."""


@dataclass(frozen=True)
class ParamSpec:
    """One parameter."""

    shape: tuple[int, ...]
    axes: tuple[str | None, ...]
    """The logical name of each axis, for `llmrl_jax.parallel.partition`; None: not sharded."""
    init: Literal["normal", "uniform", "ones", "zeros"]
    scale: float = 0.0
    """Standard deviation of `normal`, half-width of `uniform`."""
    hf: str | None = None
    """Hugging Face's name, with `{}` for the layer; None for a LoRA matrix."""
    hf_shape: tuple[int, ...] = ()
    """Hugging Face's shape of one layer: `[out..., in]` for a projection, which is transposed to `[in, out...]`."""
    fan_in: int = 0
    """Number of input axes (after the layer's): they are last in Hugging Face's layout. 0: not transposed."""
    columns: tuple[int, ...] = ()
    """For a LoRA matrix `a [L, in..., r]` whose layers have different ranks: the number of columns of each layer; the
    others are zero. Empty: all."""

    @property
    def stacked(self) -> bool:
        """Return whether the first axis is that of the layers, each of which is a separate tensor in Hugging Face's
        files."""
        return "{}" in (self.hf or "")

    @default_types
    def make(self, key: jax.Array, dtype: Any) -> jax.Array:
        """An initial value."""
        if self.init == "normal":
            return (self.scale * jax.random.normal(key, self.shape)).astype(dtype)
        if self.init == "uniform":
            value = jax.random.uniform(key, self.shape, minval=-self.scale, maxval=self.scale)
            if self.columns:
                wide = (-1, *(1 for _ in self.shape[1:]))
                value = jnp.where(jnp.arange(self.shape[-1]) < jnp.array(self.columns).reshape(wide), value, 0.0)
            return value.astype(dtype)
        return (jnp.ones if self.init == "ones" else jnp.zeros)(self.shape, dtype)


def is_leaf(x: Any) -> bool:
    """For `jax.tree.map` over a tree of declarations."""
    return isinstance(x, ParamSpec)


@dataclass(frozen=True)
class Projection:
    """A matrix of a layer, as an einsum from the axes `inputs` of an activation to the axes `outputs`."""

    block: Literal["self_attn", "mlp"]
    inputs: tuple[tuple[str | None, int], ...]
    outputs: tuple[tuple[str | None, int], ...]


def projections(config: LlamaConfig) -> dict[str, Projection]:
    """The seven matrices of a layer by name, with the logical name and size of every axis."""
    embed, mlp = ("embed", config.hidden_size), ("mlp", config.intermediate_size)
    heads, kv_heads = ("heads", config.num_attention_heads), ("kv_heads", config.kv_heads)
    size: tuple[str | None, int] = (None, config.size)
    return {
        "q_proj": Projection("self_attn", (embed,), (heads, size)),
        "k_proj": Projection("self_attn", (embed,), (kv_heads, size)),
        "v_proj": Projection("self_attn", (embed,), (kv_heads, size)),
        "o_proj": Projection("self_attn", (heads, size), (embed,)),  # type: ignore[arg-type]
        "gate_proj": Projection("mlp", (embed,), (mlp,)),
        "up_proj": Projection("mlp", (embed,), (mlp,)),
        "down_proj": Projection("mlp", (mlp,), (embed,)),
    }


def declare(config: LlamaConfig) -> Tree:
    """The `params` collection. Layers are stacked: each of their leaves has a leading axis `[L, ...]`."""
    layers, std = config.num_hidden_layers, config.initializer_range
    tree: Tree = {}
    for name, p in projections(config).items():
        ins, outs = [n for _, n in p.inputs], [n for _, n in p.outputs]
        tree.setdefault(p.block, {})[name] = {
            "kernel": ParamSpec(
                (layers, *ins, *outs),
                ("layers", *(a for a, _ in p.inputs), *(a for a, _ in p.outputs)),
                "normal",
                std,
                hf=f"model.layers.{{}}.{p.block}.{name}.weight",
                hf_shape=(math.prod(outs), math.prod(ins)),
                fan_in=len(ins),
            )
        }
        if config.qkv_bias and name in ("q_proj", "k_proj", "v_proj"):
            tree[p.block][name]["bias"] = ParamSpec(
                (layers, *outs),
                ("layers", *(a for a, _ in p.outputs)),
                "zeros",
                hf=f"model.layers.{{}}.{p.block}.{name}.bias",
                hf_shape=(math.prod(outs),),
            )
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            tree["self_attn"][name] = {
                "scale": ParamSpec(
                    (layers, config.size),
                    ("layers", None),
                    "ones",
                    hf=f"model.layers.{{}}.self_attn.{name}.weight",
                    hf_shape=(config.size,),
                )
            }
    d, vocab = config.hidden_size, config.vocab_size
    for name in ("input_layernorm", "post_attention_layernorm"):
        tree[name] = {
            "scale": ParamSpec(
                (layers, d), ("layers", None), "ones", hf=f"model.layers.{{}}.{name}.weight", hf_shape=(d,)
            )
        }
    params: Tree = {
        "embed_tokens": {
            "embedding": ParamSpec(
                (vocab, d), ("vocab", "embed"), "normal", std, hf="model.embed_tokens.weight", hf_shape=(vocab, d)
            )
        },
        "layers": tree,
        "norm": {"scale": ParamSpec((d,), (None,), "ones", hf="model.norm.weight", hf_shape=(d,))},
    }
    if not config.tie_word_embeddings:
        params["lm_head"] = {
            "kernel": ParamSpec(
                (d, vocab), ("embed", "vocab"), "normal", std, hf="lm_head.weight", hf_shape=(vocab, d), fan_in=1
            )
        }
    return params


def declare_lora(config: LlamaConfig, lora: LoRAConfig) -> Tree:
    """The `lora` collection: `a [L, in..., r]`, uniform as in PEFT, and `b [L, r, out...]`, zero."""
    tree: Tree = {}
    layers = config.num_hidden_layers
    for name, p in projections(config).items():
        if name not in lora.targets:
            continue
        ins, outs = [n for _, n in p.inputs], [n for _, n in p.outputs]
        ranks = tuple(lora.rank_at(name, i) for i in range(layers))
        rank = max(ranks)
        columns = () if min(ranks) == rank else ranks
        bound = 1.0 / math.sqrt(math.prod(ins))
        tree.setdefault(p.block, {})[name] = {
            "a": ParamSpec((layers, *ins, rank), ("layers", *(a for a, _ in p.inputs), None), "uniform", bound,
                      columns=columns),
            "b": ParamSpec((layers, rank, *outs), ("layers", None, *(a for a, _ in p.outputs)), "zeros"),
        }  # fmt: skip
    return {"layers": tree}


def make(tree: Tree, key: jax.Array, dtype: Any) -> Tree:
    """Initial values for a tree of declarations, with one key per leaf in the tree's order."""
    leaves, structure = jax.tree.flatten(tree, is_leaf=is_leaf)
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(structure, [leaf.make(k, dtype) for leaf, k in zip(leaves, keys, strict=True)])


def axes(tree: Tree) -> Tree:
    """The logical axes of every leaf, as a tree of tuples."""
    return jax.tree.map(lambda leaf: leaf.axes, tree, is_leaf=is_leaf)


def abstract(tree: Tree, dtype: Any) -> Tree:
    """Shapes and dtypes of every leaf, without values."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), tree, is_leaf=is_leaf)
