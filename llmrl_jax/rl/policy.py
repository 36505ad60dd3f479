"""The interfaces between policies and algorithms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from envs_jax.actions import mask_of
from llmrl_jax.rl.distributions import Categorical, Distribution


def masked_categorical(logits: Float[Array, "*B A"], obs: Any) -> Categorical:
    """The distribution over the actions that an observation offers (`envs_jax.actions`); all if it has no mask.

    The mask is part of the observation, so that acting and learning use the same one."""
    mask = mask_of(obs)
    return Categorical(logits) if mask is None else Categorical.masked(logits, mask)


def epsilon_greedy(q: Float[Array, "*B A"], obs: Any, epsilon: float | jax.Array) -> Categorical:
    """The best of the offered actions, or with probability `epsilon` a uniformly random one of them."""
    mask = mask_of(obs)
    offered = jnp.ones(q.shape, bool) if mask is None else mask
    best = jnp.argmax(jnp.where(offered, q, -jnp.inf), axis=-1, keepdims=True) == jnp.arange(q.shape[-1])
    random = offered / jnp.sum(offered, axis=-1, keepdims=True)
    probs = (1 - epsilon) * best + epsilon * random
    return Categorical.masked(jnp.log(jnp.where(probs > 0, probs, 1.0)), probs > 0)


class Policy(Protocol):
    """An actor and a critic, as pure functions of parameters: an MLP, a CNN, a GRU or a language model.

    Rows are independent: the outputs of a row do not depend on the other rows of the batch. `step` and `unroll` agree:
    the first minibatch's probability ratio is 1 up to rounding, and every run checks it. A policy that does not compute
    in float32, or in several, has an attribute `dtype`, which sets the bound; learners then report `sampling_metrics`
    too (`llmrl_jax.rl.precision`).
    """

    @property
    def recurrent(self) -> bool:
        """Whether `step` carries memory between steps; then minibatches are whole environments, not steps."""
        ...

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]:
        """Initialise parameters.

        **Arguments:** `key`, a typed PRNG key; `obs`, a batched observation `[B, ...]`, for its shapes.
        **Returns:** `(params, frozen)`: the trained parameters, and a pytree that no update changes (a frozen base), or
        `()`.
        """

    def initial_carry(self, batch_size: int) -> Any:
        """The memory before an episode, leaves `[B, ...]`; `()` if there is none."""

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Distribution, Float[Array, " B"], Any]:
        """One step: `(distribution, value float32 [B], carry)`.

        **Arguments:** `obs`, leaves `[B, ...]`; `carry`; `first`, rows that start an episode: their memory is reset
        before it is used.
        """

    def unroll(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, "T B"]
    ) -> tuple[Distribution, Float[Array, "T B"]]:
        """Consecutive steps at once, for the update: the distributions `[T, B]` and values `[T, B]`.

        **Arguments:** `obs`, leaves `[T, B, ...]`; `carry`, before the first step.
        """


class SizedPolicy(Policy, Protocol):
    """A policy whose rows differ in cost, as prompts do in length. The learner may then compute the gradient of similar
    rows together, by a form of the policy that is no larger than they need."""

    def sizes(self, obs: Any) -> Int[Array, " B"]:
        """The size of each row."""
        ...

    def forms(self, rows: int) -> Mapping[int, Policy]:
        """Policies that equal this one on up to `rows` rows of at most a size, by that size, ascending; the last is
        enough for all rows. Empty: there is only this one."""
        ...


class QPolicy(Protocol):
    """A policy that returns a value for every action, as pure functions of parameters; it has no memory.

    It acts as a `Policy` does (`step`), so that it can be evaluated and recorded; learners draw actions from `q`.
    """

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]:
        """Initialise parameters; see `Policy.init`."""
        ...

    def initial_carry(self, batch_size: int) -> Any:
        """`()`."""

    def q(self, params: Any, frozen: Any, obs: Any) -> Float[Array, "B A"]:
        """The value of every action, float32; minus infinity for actions that are not offered.

        **Arguments:** `obs`, leaves `[B, ...]`. Rows are independent.
        """
        ...

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Categorical, Float[Array, " B"], Any]:
        """`(distribution, value, carry)`; the value is that of the best action."""
        ...


class Auxiliary(Protocol):
    """An additional prediction from the policy's forward passes at every step, with its own loss.

    `step` and `unroll` are those of `Policy` with the prediction as a last value, leaves `[B, ...]` and `[T, B, ...]`.
    """

    @property
    def name(self) -> str:
        """Prefix of its metrics: the loss is `<name>_loss`."""
        ...

    @property
    def coef(self) -> float:
        """Weight of its loss, which is added to the policy's."""
        ...

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Distribution, Float[Array, " B"], Any, Any]: ...

    def unroll(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, "T B"]
    ) -> tuple[Distribution, Float[Array, "T B"], Any]: ...

    def targets(self, params: Any, frozen: Any, rollout: Any, runner: Any) -> Any:
        """The targets of the predictions, leaves `[T, N, ...]`.

        **Arguments:** `rollout`, a `llmrl_jax.rl.rollout.Rollout` with the predictions made; `runner`, after it.
        """

    def loss(self, prediction: Any, target: Any) -> Float[Array, ""]:
        """The mean loss of predictions; both arguments have leaves `[T, B, ...]`."""
        ...

    def report(self, rollout: Any, target: Any, task_names: tuple[str, ...]) -> dict[str, jax.Array]:
        """float32 scalars that measure the predictions of a rollout; nan if there is nothing to report."""
        ...
