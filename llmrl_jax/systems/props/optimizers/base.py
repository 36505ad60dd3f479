"""The contract of everything that proposes policy parameters, be it a language model or a numeric method."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from llmrl_jax.systems.props.policies import Policy


State = Any
"""Of one optimizer; opaque to all others."""

Bounds = Literal["clip", "none"]
"""What becomes of a candidate beyond the policy's box.

* `clip`: every parameter is moved to the nearest bound; the moved candidate is evaluated and passed to `tell`.
* `none`: it stays where it is, as in the published code, whose prompts name a box that nothing enforces.

A table has no choice: its parameters are rounded to the nearest action and clipped in any case.
"""


LEAST = float(np.finfo(np.float32).min) / 1e6
"""What a numeric method gets in place of a return that is not finite; sums of it are."""


class Optimizer(Protocol):
    """Ask for candidates, evaluate them, tell their values; higher is better.

    Numeric optimizers are pure: all three methods are jit- and vmap-safe, so that many seeds run in one program. A
    language model's lives on the host, with the same methods.
    """

    name: str
    """In lower case, as tables and commands call it."""

    def init(self, key: jax.Array) -> State:
        """The state before the first candidate, for a typed PRNG `key`."""

    def ask(self, state: State) -> tuple[Float[Array, "P n"], State]:
        """The next candidates, float32 `[P, n]`, and the state to tell their values to."""

    def tell(self, state: State, params: Float[Array, "P n"], values: Float[Array, " P"]) -> State:
        """Learn from evaluated candidates.

        **Arguments:** `state`, of the last `ask`; `params`, float32 `[P, n]`, what was evaluated: the candidates asked
        for, or others in their place; `values`, float32 `[P]`, their mean returns.
        """


def bounded(policy: Policy, params: Float[Array, "*B n"], bounds: Bounds) -> Float[Array, "*B n"]:
    """Candidates as they are evaluated: within the box, and whole actions for a table; see `Bounds`."""
    return policy.clip(params) if bounds == "clip" or policy.kind == "table" else params


def finite(values: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Values as a numeric method may get them: `LEAST` for what is not finite."""
    return jnp.where(jnp.isfinite(values), values, LEAST)


def centers(optimizer: Any, first: State, last: State) -> Float[Array, "2 n"] | None:
    """The first and the last center of a method that draws around one, as it would ask for them; else None.

    Such a method never asks for its center, which is its own answer; and where it leads nowhere, the first one may be
    worth more than all that it asked for. They are evaluated at the end of a search, out of the same budget.
    """
    if not hasattr(optimizer, "center"):
        return None
    both = jnp.stack([optimizer.center(first), optimizer.center(last)])
    return bounded(optimizer.policy, both, optimizer.bounds)
