"""Gradient steps shared by the learners: microbatches, clipping by global norm, Adam."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float

from envs_jax import tracing
from llmrl_jax.core.checks import Checked, FractionBelowOne, NonNegativeFloat, PositiveOrInf


Sums = TypeVar("Sums")


@functools.cache
def _float_fields(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass that are floats, or that may be: `float | None`, `Annotated[float, ...]`."""
    hints = get_type_hints(kind)
    return tuple(f.name for f in dataclasses.fields(kind) if float in (hints[f.name], *get_args(hints[f.name])))


def traced_floats(config: Any) -> dict[str, jax.Array]:
    """The float fields of a configuration by name, as float32 `[]`: part of a learner's state, so that they can differ
    between the rows of a vmap and change without recompilation. An optional one is left out where it has no number.

    **Arguments:** `config`, a dataclass; annotations are resolved, whether they are strings or not.
    **Raises:** `NameError` for an annotation that its module cannot resolve."""
    kind: Any = type(config)
    values = {name: getattr(config, name) for name in _float_fields(kind)}
    return {name: jnp.float32(x) for name, x in values.items() if x is not None and not isinstance(x, str)}


def in_parts(tree: Any, count: int, axis: int = 0) -> Any:
    """The rows of a batch split into `count` parts, as a new leading axis.

    Part `j` takes the rows `j, j + count, ...`, so that over a mesh each part is spread over all devices.

    **Arguments:** `tree`, leaves with rows along `axis`; `count`, which divides them.
    **Returns:** leaves `[count, ...]` with `rows / count` rows along the following `axis`.
    """

    def part(x):
        before, rows, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        return jnp.moveaxis(x.reshape(*before, rows // count, count, *after), axis + 1, 0)

    return jax.tree.map(part, tree)


def accumulate(part: Callable[[Any], tuple[Sums, Any]], zero: Sums, parts: Any) -> tuple[Sums, Any]:
    """Gradients of the parts of a batch, computed sequentially so that only one part's activations are in memory.

    **Arguments:** `part`, from the rows of one part to a tree that is summed (gradients, and the loss if it is a sum
    over rows) and a tree that is stacked; `zero`, a tree of zeros like the first; `parts`, see `in_parts`.
    **Returns:** the sums, and the second tree with a leading axis of parts.
    """

    def add(total, rows):
        sums, stacked = part(rows)
        return jax.tree.map(jnp.add, total, sums), stacked

    return tracing.scan(add, zero, parts)


def clip(grads: Any, limit: Any) -> Any:
    """Gradients scaled to a global norm of at most `limit` (Pascanu et al., 1211.5063); inf leaves them unchanged."""
    scale = jnp.minimum(1.0, limit / jnp.maximum(optax.tree.norm(grads), 1e-12))
    return jax.tree.map(lambda g: g * scale, grads)


@dataclasses.dataclass(frozen=True)
class AdamConfig(Checked):
    """Options of `clipped_adam` and its learning rate."""

    learning_rate: NonNegativeFloat = 2.5e-4
    """Learning rate."""
    max_grad_norm: PositiveOrInf = 0.5
    """Global norm to which gradients are clipped; inf: never."""
    adam_b1: FractionBelowOne = 0.9
    """Adam's decay rate of the first moment."""
    adam_b2: FractionBelowOne = 0.999
    """Adam's decay rate of the second moment."""
    adam_eps: NonNegativeFloat = 1e-5
    """Adam's epsilon."""


def clipped_adam(hparams: dict[str, Any]) -> optax.GradientTransformation:
    """Adam (Kingma & Ba, 1412.6980) on gradients scaled by `clip`; the state is Adam's only. Moments and directions are
    float32, whatever the dtype of the parameters.

    **Arguments:** `hparams`, with `max_grad_norm`, `adam_b1`, `adam_b2` and `adam_eps`; they may be traced.
    """
    adam = optax.scale_by_adam(hparams["adam_b1"], hparams["adam_b2"], hparams["adam_eps"])

    def init(params):
        return adam.init(_in_float32(params))

    def update(grads, state, params=None):
        return adam.update(clip(_in_float32(grads), hparams["max_grad_norm"]), state, params)

    return optax.GradientTransformation(init, update)


def _in_float32(tree: Any) -> Any:
    """A tree of arrays in float32; leaves that are float32 already are returned as they are."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def apply_gradients(
    optimizer: optax.GradientTransformation, params: Any, grads: Any, opt_state: Any, learning_rate: Any
) -> tuple[Any, Any, Float[Array, ""]]:
    """One gradient step: `params - learning_rate * direction`.

    **Arguments:** `optimizer`, from gradients to a direction (`clipped_adam`, a chain of optax); `params`, `grads`,
    `opt_state`; `learning_rate`, a float or a float32 `[]`.
    **Returns:** the parameters, each in its own dtype, the optimiser's state, and the norm of the given gradients.
    """
    norm = optax.tree.norm(grads)
    direction, opt_state = optimizer.update(grads, opt_state, params)
    params = jax.tree.map(lambda p, d: p - (learning_rate * d).astype(p.dtype), params, direction)
    return params, opt_state, norm


ADAM = optax.scale_by_adam()
"""Adam with b1 0.9, b2 0.999, eps 1e-8, as all references of the learners with a `TrainState` have it."""


@struct.dataclass
class TrainState:
    """Networks by name, each with its own Adam, some with a target network: what a gradient step changes."""

    params: dict[str, Any]
    """Trained parameters by network; acting needs these alone."""
    target: dict[str, Any]
    """Parameters of target networks, by network."""
    opt_state: dict[str, Any]
    """Adam's moments, by network."""
    extra: Any = ()
    """Extra state of the algorithm."""

    @classmethod
    def create(cls, params: dict[str, Any], targets: Sequence[str] = (), extra: Any = ()) -> TrainState:
        """State before the first step. **Arguments:** `targets`, the networks that get a target network, a copy."""
        opt_state = {name: ADAM.init(tree) for name, tree in params.items()}
        return cls(params, {name: jax.tree.map(jnp.copy, params[name]) for name in targets}, opt_state, extra)

    def apply_gradients(self, name: str, grads: Any, learning_rate: Any) -> TrainState:
        """Apply one Adam step to network `name`."""
        params, opt_state, _ = apply_gradients(ADAM, self.params[name], grads, self.opt_state[name], learning_rate)
        return self.replace(params={**self.params, name: params}, opt_state={**self.opt_state, name: opt_state})

    def polyak_update(self, tau: Any, *names: str) -> TrainState:
        """Move target networks by the fraction `tau` towards their networks."""
        moved = {
            name: jax.tree.map(lambda t, p: t + tau * (p - t), self.target[name], self.params[name]) for name in names
        }
        return self.replace(target={**self.target, **moved})

    def hard_update(self, now: jax.Array, *names: str) -> TrainState:
        """Copy networks to their target networks where `now`, bool `[]`."""
        copies = {name: self.params[name] for name in names}
        old = {name: self.target[name] for name in names}
        return self.replace(target={**self.target, **tracing.cond(now, lambda: copies, lambda: old)})


def linear_decay(update: Any, updates: Any) -> Float[Array, ""]:
    """The factor of a learning rate at an update: falls linearly from 1 at the first to 0 at `updates`, and stays 0."""
    return jnp.maximum(0.0, 1 - update / updates)
