"""Policies, and what algorithms ask of them; random policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from envs_jax import tracing
from envs_jax.actions import mask_of
from envs_jax.spaces import Box, Discrete, Space
from llmrl_jax.rl.distributions import Categorical, Distribution, Uniform, UniformIntegers


def masked_categorical(logits: Float[Array, "*B A"], obs: Any) -> Categorical:
    """Distribution over the actions that an observation offers (`envs_jax.actions`); all if it has no mask.

    The mask is part of the observation, so that acting and learning use the same one."""
    mask = mask_of(obs)
    return Categorical(logits) if mask is None else Categorical.masked(logits, mask)


def epsilon_greedy(q: Float[Array, "*B A"], obs: Any, epsilon: float | jax.Array) -> Categorical:
    """Best of the offered actions, or with probability `epsilon` a uniformly random one of them."""
    mask = mask_of(obs)
    offered = jnp.ones(q.shape, bool) if mask is None else mask
    best = jnp.argmax(jnp.where(offered, q, -jnp.inf), axis=-1, keepdims=True) == jnp.arange(q.shape[-1])
    random = offered / jnp.sum(offered, axis=-1, keepdims=True)
    probs = (1 - epsilon) * best + epsilon * random
    return Categorical.masked(jnp.log(jnp.where(probs > 0, probs, 1.0)), probs > 0)


class Policy:
    """Acts in a batch of environments, as pure functions of parameters: an MLP, a GRU, a language model, chance.

    Policies inherit from this class and define `step`, which acts, or `q`, from which `step` follows; PPO also calls
    `unroll`, DQN `q`. Rows are independent: the outputs of a row do not depend on the other rows of the batch. `step`
    and `unroll` agree: the first minibatch's probability ratio is 1 up to rounding, and every run of PPO checks it. A
    policy that does not compute in float32, or in several dtypes, has an attribute `dtype`, which sets the bound;
    learners then report `sampling_metrics` too (`llmrl_jax.rl.precision`).
    """

    recurrent: bool = False
    """Whether `step` carries memory between steps; then minibatches are whole environments, not steps."""
    epsilon: float | None = None
    """With `q`: the probability of a random action in `step`; None: actions from a softmax at `temperature`."""
    temperature: float = 1.0
    heads: tuple[str, ...] = ()
    """With `q`: the parts of its parameters that are not its encoder (`DQNConfig.share_encoder`)."""
    estimate: Callable[[Any, Any, Any], Float[Array, " B"]] | None = None
    """`(params, frozen, obs) -> float32 [B]`, the probability of success in each state; None: it has no estimate."""

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]:
        """Initialise parameters.

        **Arguments:** `key`, a typed PRNG key; `obs`, a batched observation `[B, ...]`, for its shapes.
        **Returns:** `(params, frozen)`: the trained parameters, and a pytree that no update changes (a frozen base), or
        `()`.
        """
        return (), ()

    def initial_carry(self, batch_size: int) -> Any:
        """Memory before an episode, leaves `[B, ...]`; `()` if there is none."""
        return ()

    @tracing.default_types
    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Any, Float[Array, " B"], Any]:
        """Step: `(distribution, value float32 [B], carry)`. By default a choice among `q`, with the highest value.

        **Arguments:** `obs`, leaves `[B, ...]`; `carry`; `first`, rows that start an episode: their memory is reset
        before it is used.
        """
        q = self.q(params, frozen, obs)
        if self.epsilon is None:
            return masked_categorical(q / self.temperature, obs), jnp.max(q, axis=-1), carry
        return epsilon_greedy(q, obs, self.epsilon), jnp.max(q, axis=-1), carry

    def unroll(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, "T B"]
    ) -> tuple[Any, Float[Array, "T B"]]:
        """Consecutive steps at once, for the update: the distributions `[T, B]` and values `[T, B]`.

        **Arguments:** `obs`, leaves `[T, B, ...]`; `carry`, before the first step.
        """
        raise NotImplementedError(f"{type(self).__name__} has no critic")

    def q(self, params: Any, frozen: Any, obs: Any) -> Float[Array, "B A"]:
        """Value of every action, float32; minus infinity for unavailable actions. The policy has no memory.

        **Arguments:** `obs`, leaves `[B, ...]`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no values of actions")

    def q_values_of(self, param_sets: Sequence[Any], frozen: Any, obs: Any) -> list[Float[Array, "B A"]]:
        """`q` of several parameters for the same observations; to override where a part depends on no parameters."""
        return [self.q(params, frozen, obs) for params in param_sets]

    def lengths(self, obs: Any) -> Int[Array, " B"]:
        """Length of each row, for a policy with `buckets`."""
        raise NotImplementedError(f"{type(self).__name__} has no buckets")

    def buckets(self, rows: int) -> Mapping[int, Policy]:
        """Policies that equal this one on up to `rows` rows of at most a length, by that length, ascending; the last is
        enough for all rows. A learner may compute the gradient of rows of similar length by one of them. Empty: rows do
        not differ in cost."""
        return {}


class Auxiliary(Protocol):
    """Additional prediction from the policy's forward passes at every step, with its own loss.

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
        """Targets of the predictions, leaves `[T, N, ...]`.

        **Arguments:** `rollout`, a `llmrl_jax.rl.rollout.Rollout` with the predictions made; `runner`, after it.
        """

    def loss(self, prediction: Any, target: Any) -> Float[Array, ""]:
        """Mean loss of predictions; both arguments have leaves `[T, B, ...]`."""
        ...

    def report(self, rollout: Any, target: Any, task_names: tuple[str, ...]) -> dict[str, jax.Array]:
        """float32 scalars that measure the predictions of a rollout; nan if there is nothing to report."""
        ...


# --- random policies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomPolicy(Policy):
    """Uniformly random available actions; without parameters or a value function."""

    num_actions: int

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        rows = first.shape[0]
        return masked_categorical(jnp.zeros((rows, self.num_actions)), obs), jnp.zeros(rows), carry


@dataclass(frozen=True)
class RandomBox(Policy):
    """Uniformly random actions of a box; without parameters or a value function."""

    space: Box
    """Of actions; its bounds are finite."""

    def step(self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]):
        rows = first.shape[0]
        continuous = np.issubdtype(np.dtype(self.space.dtype), np.floating)
        dtype = jnp.float32 if continuous else jax.dtypes.canonicalize_dtype(self.space.dtype)
        low, high = (
            jnp.broadcast_to(jnp.asarray(x, dtype), (rows, *self.space.shape))
            for x in (self.space.low, self.space.high)
        )
        return (Uniform if continuous else UniformIntegers)(low, high), jnp.zeros(rows), carry


def drawable(space: Space) -> bool:
    """Return whether actions of a space have a uniform distribution: a discrete space, or a box with finite bounds."""
    finite = isinstance(space, Box) and bool(np.all(np.isfinite(space.low)) and np.all(np.isfinite(space.high)))
    return isinstance(space, Discrete) or finite


def random_policy(space: Space) -> RandomPolicy | RandomBox:
    """Random agent of a space of actions. **Raises:** `ValueError` for a space that is neither discrete nor a box
    with finite bounds."""
    if isinstance(space, Discrete):
        return RandomPolicy(space.n)
    if isinstance(space, Box) and drawable(space):
        return RandomBox(space)
    raise ValueError(f"actions are {space}; numbers from 0 on, or a box with finite bounds, can be drawn at random")
