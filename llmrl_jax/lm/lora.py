"""Low-rank adapters (Hu et al. 2021): `W x + s B A x`, with `A` and `B` beside frozen weights that keep their names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from envs_jax.registry import nearest


TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class LoRAConfig:
    """Which matrices have adapters, and how wide. The default is GLAM's: rank 16, alpha 32, queries and values."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    """Any of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj."""
    rslora: bool = False
    """Scale by `alpha / sqrt(rank)` (Kalajdzievski 2023) in place of `alpha / rank`."""

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"LoRA rank is {self.rank}; at least 1 is needed (leave LoRA out to turn it off)")
        if not self.targets:
            raise ValueError(f"LoRA has no targets; name some of {', '.join(TARGETS)}")
        for name in self.targets:
            if name not in TARGETS:
                raise ValueError(
                    f"LoRA target {name!r} is not a matrix of a layer{nearest(name, list(TARGETS))} "
                    f"(there are {', '.join(TARGETS)})"
                )

    @property
    def scale(self) -> float:
        """`s`, which multiplies the adapter's output."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)


def merge(params: Any, lora: Any, config: LoRAConfig) -> Any:
    """Fold adapters into the weights: `W + s A B`, summed in float32 and cast back to the dtype of `W`.

    **Arguments:** `params` and `lora`, the model's two collections.
    **Returns:** a new `params`; the one given is untouched.
    """

    def fold(kernel: jax.Array, ab: dict[str, jax.Array]) -> jax.Array:
        a, b = ab["a"].astype(jnp.float32), ab["b"].astype(jnp.float32)
        layers, rank = a.shape[0], a.shape[-1]
        delta = jnp.einsum("lir,lro->lio", a.reshape(layers, -1, rank), b.reshape(layers, rank, -1))
        return (kernel.astype(jnp.float32) + config.scale * delta.reshape(kernel.shape)).astype(kernel.dtype)

    layers = dict(params["layers"])
    for block, matrices in lora["layers"].items():
        layers[block] = dict(layers[block])
        for name, ab in matrices.items():
            layers[block][name] = {**layers[block][name], "kernel": fold(layers[block][name]["kernel"], ab)}
    return {**params, "layers": layers}
