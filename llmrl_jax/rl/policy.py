"""The contract between a policy and an on-policy algorithm."""

from __future__ import annotations

from typing import Any, Protocol

import jax
from jaxtyping import Array, Bool, Float

from llmrl_jax.rl.distributions import Distribution


class Policy(Protocol):
    """An actor and a critic, as pure functions of parameters: an MLP, a CNN, a GRU or a language model alike.

    Rows are independent: what a row gets does not depend on the other rows of the batch. `step` and `unroll` agree:
    the first minibatch's probability ratio is 1 within 1e-5, and every run checks it.
    """

    @property
    def recurrent(self) -> bool:
        """Whether `step` carries memory from step to step; then minibatches are whole environments, not steps."""
        ...

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]:
        """Draw parameters.

        **Arguments:** `key`, a typed PRNG key; `obs`, a batched observation `[B, ...]`, for its shapes.
        **Returns:** `(params, frozen)`: what is trained, and a pytree that no update touches (a frozen base), or `()`.
        """

    def initial_carry(self, batch_size: int) -> Any:
        """The memory before an episode, leaves `[B, ...]`; `()` where there is none."""

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Distribution, Float[Array, " B"], Any]:
        """One step: `(distribution, value float32 [B], carry)`.

        **Arguments:** `obs`, leaves `[B, ...]`; `carry`; `first`, rows that start an episode: their memory is emptied
        before it is used.
        """

    def unroll(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, "T B"]
    ) -> tuple[Distribution, Float[Array, "T B"]]:
        """Consecutive steps at once, for the update: the distributions `[T, B]` and values `[T, B]`.

        **Arguments:** `obs`, leaves `[T, B, ...]`; `carry`, that of before the first step.
        """
