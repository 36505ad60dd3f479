"""Low-rank adapters (Hu et al. 2021): `W x + s B A x`, with `A` and `B` separate from the frozen weights."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from llmrl_jax.core.checks import WIDTH, Checked, FiniteFloat, In, nearest


BLOCKS = {
    "q_proj": "self_attn",
    "k_proj": "self_attn",
    "v_proj": "self_attn",
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}
"""The matrices of a layer, and the block that contains each."""
TARGETS = tuple(BLOCKS)


@dataclass(frozen=True)
class LoRAConfig(Checked):
    """Matrices with adapters, and their rank. The default is GLAM's: rank 16, alpha 32, queries and values.

    LoRA (Hu et al., 2106.09685): the product with a matrix `W` becomes `x W + scale (x A) B`, with `A` `[in, rank]` and
    `B` `[rank, out]` in float32, `B` zero at first.
    **Raises:** `ValueError` for a rank below 1, or a target that is not a matrix of a layer.

    **Example:**

    ```pycon
    >>> import llmrl_jax as lr
    >>> lr.LoRAConfig(rank=8, alpha=16.0, targets=("q_proj", "v_proj")).scale
    2.0
    ```
    """

    rank: Annotated[int, In(WIDTH, "leave LoRA out to turn it off")] = 16
    alpha: FiniteFloat = 32.0
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    """Any of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj."""
    rslora: bool = False
    """Scale by `alpha / sqrt(rank)` (Kalajdzievski 2023) instead of `alpha / rank`."""

    def __post_init__(self):
        super().__post_init__()
        if not self.targets:
            raise ValueError(f"targets is empty; name some of {', '.join(TARGETS)}")
        for name in self.targets:
            if name not in TARGETS:
                raise ValueError(
                    f"targets has {name!r}, which is not a matrix of a layer{nearest(name, list(TARGETS))} "
                    f"(there are {', '.join(TARGETS)})"
                )

    @property
    def scale(self) -> float:
        """`s`, which multiplies the adapter's output."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def rank_at(self, target: str, layer: int) -> int:
        """Rank of a matrix of a layer; 0 if it has no adapter."""
        return self.rank if target in self.targets else 0

    def scale_at(self, target: str, layer: int) -> float:
        """Scale of a matrix of a layer."""
        return self.scale


@dataclass(frozen=True)
class PatternedLoRA(LoRAConfig):
    """Adapters whose rank or alpha differs between matrices or layers: PEFT's `rank_pattern` and `alpha_pattern`.

    Both name a matrix in all layers (`"k_proj"`) or in one (`"layers.3.self_attn.k_proj"`), which has precedence.
    Layers of a lower rank than others are padded with zeros, which have no gradient and so stay zero.
    """

    ranks: tuple[tuple[str, int], ...] = ()
    """Ranks that differ from `rank`; 0 leaves the matrix without an adapter."""
    alphas: tuple[tuple[str, float], ...] = ()
    """Alphas that differ from `alpha`."""

    def __post_init__(self):
        super().__post_init__()
        if not self.alpha > 0:
            raise ValueError(f"LoRA alpha is {self.alpha}; beside patterns it must be positive")
        for name, value in (*self.ranks, *self.alphas):
            matrix = name.rpartition(".")[2]
            parts = name.split(".")
            layered = len(parts) == 4 and parts[1].isdecimal() and name == module(matrix, int(parts[1]))
            if matrix not in self.targets or not (layered or name == matrix):
                raise ValueError(
                    f"LoRA pattern {name!r} names none of the targets {', '.join(self.targets)}; "
                    "write 'k_proj' or 'layers.3.self_attn.k_proj'"
                )
            if value < 0:
                raise ValueError(f"LoRA pattern {name!r} is {value}; it must not be negative")

    def rank_at(self, target: str, layer: int) -> int:
        """Rank of a matrix of a layer; 0 if it has no adapter."""
        return int(_lookup(self.ranks, target, layer, super().rank_at(target, layer)))

    def scale_at(self, target: str, layer: int) -> float:
        """Scale of a matrix of a layer."""
        rank = self.rank_at(target, layer) or 1
        return _lookup(self.alphas, target, layer, self.alpha) / (math.sqrt(rank) if self.rslora else rank)


def module(target: str, layer: int) -> str:
    """The name of a matrix in a layer, as `layers.3.self_attn.k_proj`."""
    return f"layers.{layer}.{BLOCKS.get(target)}.{target}"


def _lookup(pattern: tuple[tuple[str, float], ...], target: str, layer: int, default: float) -> float:
    values = dict(pattern)
    return values.get(module(target, layer), values.get(target, default))


def _scales(config: LoRAConfig, target: str, layers: int) -> np.ndarray:
    return np.array([config.scale_at(target, i) for i in range(layers)], np.float32)


def rescale(adapters: Any, config: LoRAConfig) -> Any:
    """Adapters (the collection's `layers`) with the single scale `config.scale`: other scales are folded into `b`."""
    if not isinstance(config, PatternedLoRA):
        return adapters

    def fold(target: str, ab: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        b = ab["b"]
        ratio = _scales(config, target, b.shape[0]) / config.scale
        return {**ab, "b": b * ratio.reshape(-1, *(1 for _ in b.shape[1:]))}

    return {block: {name: fold(name, ab) for name, ab in matrices.items()} for block, matrices in adapters.items()}


def merge(params: Any, lora: Any, config: LoRAConfig) -> Any:
    """Fold adapters into the weights: `W + s A B`, summed in float32 and cast back to the dtype of `W`.

    For a quantised base it gives float32 matrices: quantised again, changes smaller than a step would be lost.

    **Arguments:** `params` and `lora`, the model's two collections.
    **Returns:** a new `params`; the argument is unchanged.
    """

    def fold(target: str, kernel: Any, ab: Mapping[str, jax.Array]) -> jax.Array:
        a, b = ab["a"].astype(jnp.float32), ab["b"].astype(jnp.float32)
        layers, rank = a.shape[0], a.shape[-1]
        a, b = a.reshape(layers, -1, rank), b.reshape(layers, rank, -1)
        # Highest precision: accelerators would otherwise round the factors to 10 bits or fewer.
        delta = jnp.einsum("lir,lro->lio", a, b, precision=jax.lax.Precision.HIGHEST)
        delta = delta * _scales(config, target, layers)[:, None, None]
        return (kernel.astype(jnp.float32) + delta.reshape(kernel.shape)).astype(kernel.dtype)

    layers = dict(params["layers"])
    for block, matrices in lora["layers"].items():
        layers[block] = dict(layers[block])
        for name, ab in matrices.items():
            matrix = layers[block][name]
            layers[block][name] = {**matrix, "kernel": fold(name, matrix["kernel"], ab)}
    return {**params, "layers": layers}
