"""Recorded steps as offline learners read them: checked, flattened, normalised, with actions scaled to [-1, 1]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float

from envs_jax import spaces
from envs_jax.actions import MASK, mask_of
from llmrl_jax.data.transitions import DataError, Transitions
from llmrl_jax.rl.networks import flatten


Features = Callable[[Any, int], jax.Array]
"""From observations and the number of their batch axes to float32 vectors `[..., n]`, as in `NetworkPolicy`."""

INSTRUCTION = "instruction"
"""The part of a dict of observations that indexes the table of sentence vectors."""
_SLACK = 1e-4
"""Tolerance of the bounds of actions, in units of their distance: the rounding of the program that wrote it."""


@dataclass(frozen=True)
class ActionKind:
    """Actions of a data set and of the environment it comes from."""

    count: int = 0
    """Number of discrete actions; 0: actions are continuous."""
    low: tuple[float, ...] = ()
    """Lower bounds of continuous actions, finite."""
    high: tuple[float, ...] = ()

    @classmethod
    def box(cls, low: Any, high: Any, width: int) -> ActionKind:
        """Continuous actions with `width` numbers; bounds are numbers or arrays."""
        ends = (np.broadcast_to(np.asarray(x, np.float32), (width,)) for x in (low, high))
        return cls(0, *(tuple(float(x) for x in end) for end in ends))

    @property
    def discrete(self) -> bool:
        return self.count > 0

    @property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Bounds as float32 `[D]`."""
        return np.asarray(self.low, np.float32), np.asarray(self.high, np.float32)

    @property
    def width(self) -> int:
        """Numbers of a continuous action, or discrete actions."""
        return self.count or len(self.low)

    def inward(self, action: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Continuous actions scaled from their bounds to [-1, 1]; 0 where the bounds are equal: `outward` maps every
        number to such a bound, and at the middle a squashed Gaussian has a finite density."""
        low, high = self.bounds
        varies = high > low
        scaled = 2 * (action.astype(jnp.float32) - low) / np.where(varies, high - low, 1) - 1
        return jnp.where(varies, jnp.clip(scaled, -1, 1), 0)

    def outward(self, action: Float[Array, "*B D"]) -> Float[Array, "*B D"]:
        """Inverse of `inward`, for actions that may lie beyond [-1, 1]."""
        low, high = self.bounds
        return low + (jnp.clip(action, -1, 1) + 1) / 2 * (high - low)


@struct.dataclass
class Batch:
    """Batch as the algorithms read it."""

    obs: Float[Array, "B n"]
    """Normalised features, followed by the instruction's sentence vector if there is one."""
    action: jax.Array
    """float32 `[B, D]` in [-1, 1], or int32 `[B]`."""
    reward: Float[Array, " B"]
    next_obs: Float[Array, "B n"]
    terminated: Bool[Array, " B"]
    """Whether the step reached a terminal state, after which there is no value. A time-out does not."""
    num_features: int = struct.field(pytree_node=False, default=0)
    """The number of features in `obs`, before the sentence vector; 0: all."""
    mask: Bool[Array, "B A"] | None = None
    """Discrete actions that are offered (`envs_jax.actions`); None: all."""
    next_mask: Bool[Array, "B A"] | None = None
    """Those that are offered after the step."""

    @property
    def features(self) -> int:
        """Number of features."""
        return self.num_features or self.obs.shape[-1]


# --- what the actions are ---------------------------------------------------------------------------------------------


def actions_of(data: Transitions, space: spaces.Space | None, env: str = "", label: str = "the data") -> ActionKind:
    """Kind of the actions, from their environment's space or, without one, from the data.

    Without a space, integers are discrete, as many as the largest and one; floats have the bounds -1 and 1. `env` and
    `label` name the environment and the data in messages.
    **Raises:** `DataError` for actions that do not fit the space, are out of bounds, or have more axes than one.

    **Example:**

    ```pycon
    >>> import jax.numpy as jnp, llmrl_jax as lr
    >>> steps, obs = jnp.zeros(4), jnp.zeros((4, 3))
    >>> ends = jnp.array([False, False, False, True])
    >>> data = lr.Transitions(obs, jnp.array([0, 1, 2, 1]), steps, obs, ends, jnp.zeros(4, bool))
    >>> lr.rl.actions_of(data, None).count
    3
    ```
    """
    action = np.asarray(data.action)
    source = f"of {env}" if env else "without --env, which tells the bounds of others"
    if isinstance(space, spaces.Discrete) or space is None and action.dtype.kind in "iu":
        if action.dtype.kind not in "iu" or action.ndim != 1:
            raise DataError(
                f"actions of {label} are {action.dtype}{list(action.shape[1:])}; integers are needed {source}"
            )
        count = space.n if isinstance(space, spaces.Discrete) else int(action.max()) + 1
        wrong = np.flatnonzero((action < 0) | (action >= count))
        if len(wrong):
            raise DataError(
                f"action {action[wrong[0]]} of step {wrong[0]} of {label} is not among the {count} actions {source}: "
                "they are of another world"
            )
        return ActionKind(count)
    if action.dtype.kind != "f" or action.ndim != 2:
        raise DataError(
            f"actions of {label} are {action.dtype}{list(action.shape[1:])}; a float vector for each step "
            f"is needed {source}"
        )
    if space is None:
        kind = ActionKind.box(-1.0, 1.0, action.shape[1])
    else:
        if not isinstance(space, spaces.Box) or tuple(space.shape) != action.shape[1:]:
            theirs = list(getattr(space, "shape", ()))
            raise DataError(
                f"actions of {label} have the shape {list(action.shape[1:])}, those {source} {theirs}: they are of "
                "another world"
            )
        if not np.all(np.isfinite(space.low) & np.isfinite(space.high)):
            raise DataError(f"actions {source} have no finite bounds; offline learners need them")
        kind = ActionKind.box(space.low, space.high, action.shape[1])
    low, high = kind.bounds
    room = _SLACK * (high - low)
    outside = np.argwhere((action < low - room) | (action > high + room))
    if len(outside):
        row, column = outside[0]
        raise DataError(
            f"action {column} of step {row} of {label} is {action[row, column]:g}; from {low[column]:g} to "
            f"{high[column]:g} is needed {source}"
        )
    return kind


# --- preparation ------------------------------------------------------------------------------------------------------


def vectors(obs: Any, features: Features | None) -> Float[Array, "B n"]:
    """The features of observations `[B, ...]` without their instruction, float32; by default all parts, flattened."""
    if isinstance(obs, dict):
        obs = {name: x for name, x in obs.items() if name != INSTRUCTION}
    return (features or flatten)(obs, 1).astype(jnp.float32)


def moments(data: Transitions, features: Features | None) -> tuple[jax.Array, jax.Array]:
    """The mean and the standard deviation plus 0.001 of every feature over the data, as CORL computes them.

    A feature that is the same everywhere in the data has the standard deviation 1, not 0.001: learning sees no
    difference, and a value that differs at test time is not a thousand standard deviations away.
    """
    x = vectors(data.obs, features)
    varies = jnp.max(x, axis=0) > jnp.min(x, axis=0)
    return jnp.mean(x, axis=0), jnp.where(varies, jnp.std(x, axis=0) + 1e-3, 1.0)


def prepared(
    data: Transitions, actions: ActionKind, features: Features | None, mean: jax.Array, std: jax.Array
) -> Transitions:
    """The data with everything done that does not change during training.

    **Returns:** transitions whose `obs` and `next_obs` have `vector`, normalised features float32 `[N, n]`, and where
    there are instructions `instruction`, int32 `[N]`, and where there are masks `action_mask`, bool `[N, A]`; actions
    are int32, or float32 in [-1, 1]; no texts and goals.
    """

    def encoded(obs):
        parts = {"vector": (vectors(obs, features) - mean) / std}
        if has_instruction(obs):
            parts[INSTRUCTION] = obs[INSTRUCTION].astype(jnp.int32)
        if (mask := offered(obs, actions)) is not None:
            parts[MASK] = mask
        return parts

    action = data.action.astype(jnp.int32) if actions.discrete else actions.inward(data.action)
    obs, next_obs = encoded(data.obs), encoded(data.next_obs)
    return Transitions(obs, action, data.reward.astype(jnp.float32), next_obs, data.terminated, data.truncated)


def offered(obs: Any, actions: ActionKind) -> Bool[Array, "B A"] | None:
    """The discrete actions that observations say are offered; None: all are."""
    mask = mask_of(obs) if actions.discrete else None
    return None if mask is None else mask.astype(bool)


def has_instruction(obs: Any) -> bool:
    """Return whether observations index a table of sentence vectors."""
    return isinstance(obs, dict) and INSTRUCTION in obs


def joined(encoded: dict[str, jax.Array], table: Any) -> Float[Array, "B n"]:
    """The inputs of networks: features, followed by the sentence vectors of instructions.

    **Arguments:** `encoded`, see `prepared`, leaves `[B, ...]`; `table`, sentence vectors `[K, E]`, or `()`.
    """
    if INSTRUCTION not in encoded:
        return encoded["vector"]
    return jnp.concatenate([encoded["vector"], table.at[encoded[INSTRUCTION]].get(mode="clip")], axis=-1)


def batch_of(steps: Transitions, table: Any) -> Batch:
    """Prepared steps as a batch."""
    obs, next_obs = joined(steps.obs, table), joined(steps.next_obs, table)
    masks = (mask_of(steps.obs), mask_of(steps.next_obs))
    return Batch(obs, steps.action, steps.reward, next_obs, steps.terminated, steps.obs["vector"].shape[-1], *masks)


# --- checks -----------------------------------------------------------------------------------------------------------


def check_data(data: Transitions, actions: ActionKind, table: Any, label: str) -> None:
    """**Raises** `DataError` for numbers that are not finite, an instruction that the table lacks, a table that nothing
    reads, or actions that differ from `actions` or are not offered; `label` names the data in messages."""
    parts = {"obs": data.obs, "action": data.action, "reward": data.reward, "next_obs": data.next_obs}
    for path, leaf in jax.tree_util.tree_leaves_with_path(parts):
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.all(jnp.isfinite(leaf))):
            row = int(np.argwhere(~np.isfinite(np.asarray(leaf)))[0][0])
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise DataError(f"{name} of step {row} of {label} is not finite: remove that step, or correct it")
    actions_of(data, spaces.Discrete(actions.count) if actions.discrete else _box(actions), "the learner", label)
    if (mask := offered(data.obs, actions)) is not None:
        if mask.shape[1:] != (actions.count,):
            raise DataError(
                f"obs.{MASK} of {label} has the shape {list(mask.shape[1:])}; one bool for each of the {actions.count} "
                "actions is needed"
            )
        wrong = np.flatnonzero(~np.take_along_axis(np.asarray(mask), np.asarray(data.action)[:, None], axis=1)[:, 0])
        if len(wrong):
            raise DataError(
                f"action {data.action[wrong[0]]} of step {wrong[0]} of {label} is not among those that obs.{MASK} "
                "offers: leave such steps out, or learn in the world without masks"
            )
    if has_instruction(data.obs):
        rows = 0 if isinstance(table, tuple) else table.shape[0]
        for name, obs in (("obs", data.obs), ("next_obs", data.next_obs)):
            low, high = int(obs[INSTRUCTION].min()), int(obs[INSTRUCTION].max())
            if low < 0 or high >= rows:
                raise DataError(
                    f"{name}.{INSTRUCTION} of {label} has numbers from {low} to {high}, but the table has {rows} "
                    "sentence vectors: give the table of these data"
                )
    elif not isinstance(table, tuple):
        raise DataError(
            f"a table of sentence vectors is given, but {label} have no part {INSTRUCTION!r} in observations"
        )


def _box(actions: ActionKind) -> spaces.Box:
    return spaces.Box(*actions.bounds, (actions.width,), np.float32)


def check_same_form(data: Transitions, candidate: Transitions, label: str) -> None:
    """**Raises** `DataError` unless `candidate`, named `label` in the message, has the parts, widths and types
    of `data`."""
    for name in ("obs", "action"):
        expected, actual = (_form(getattr(x, name), name) for x in (data, candidate))
        if expected != actual:
            part = next(key for key in sorted(set(expected) | set(actual)) if expected.get(key) != actual.get(key))
            raise DataError(
                f"{part} of {label} is {actual.get(part, 'missing')}, but {expected.get(part, 'missing')} in the "
                "other data: both must be of one world"
            )


def _form(tree: Any, name: str) -> dict[str, str]:
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or name: f"{x.dtype}{list(x.shape[1:])}"
        for path, x in jax.tree_util.tree_leaves_with_path({name: tree})
    }
