"""The interface of optimizers of policy parameters, language models and numeric methods."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llmrl_jax.systems.props.policies import Policy


State = Any
"""State of an optimizer; opaque to callers."""

Bounds = Literal["clip", "none"]
"""Handling of a candidate outside the policy's box.

* `clip`: every parameter is moved to the nearest bound; the moved candidate is evaluated and passed to `tell`.
* `none`: it is not changed, as in the published code, whose prompts state a box that is not enforced.

The parameters of a table are always rounded to the nearest action and clipped.
"""


LEAST = float(np.finfo(np.float32).min) / 1e6
"""Replaces returns that are not finite for numeric methods; small enough that sums stay finite."""


class Optimizer(Protocol):
    """Ask for candidates, evaluate them, tell their values; higher is better.

    Numeric optimizers are pure: all three methods are jit- and vmap-safe, so that many seeds run in one program.
    Language-model optimizers have the same methods, on the host.
    """

    name: str
    """Name in tables and commands, in lower case."""

    def init(self, key: jax.Array) -> State:
        """The state before the first candidate, for a typed PRNG `key`."""

    def ask(self, state: State) -> tuple[Float[Array, "P n"], State]:
        """The next candidates, float32 `[P, n]`, and the state for the following `tell`."""

    def tell(self, state: State, params: Float[Array, "P n"], values: Float[Array, " P"]) -> State:
        """Learn from evaluated candidates.

        **Arguments:** `state`, of the last `ask`; `params`, float32 `[P, n]`, the evaluated candidates: those of `ask`,
        or others instead; `values`, float32 `[P]`, their mean returns.
        """


def bounded(policy: Policy, params: Float[Array, "*B n"], bounds: Bounds) -> Float[Array, "*B n"]:
    """Candidates as evaluated: within the box, and integer actions for a table; see `Bounds`."""
    return policy.clip(params) if bounds == "clip" or policy.kind == "table" else params


def finite(values: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Values for a numeric method, with `LEAST` for those that are not finite."""
    return jnp.where(jnp.isfinite(values), values, LEAST)


def centers(optimizer: Any, first: State, last: State) -> Float[Array, "2 n"] | None:
    """The first and the last center of a method that samples around a center, in the form of candidates; else None.

    Such a method never evaluates its center, which is its final answer; and if the search fails, the first center may
    be better than all candidates. Both are evaluated at the end of a search, within the same budget.
    """
    if not hasattr(optimizer, "center"):
        return None
    both = jnp.stack([optimizer.center(first), optimizer.center(last)])
    return bounded(optimizer.policy, both, optimizer.bounds)
