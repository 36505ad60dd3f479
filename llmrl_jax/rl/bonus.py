"""Bonuses: changes of the rewards of steps before an algorithm learns from them (novelty, goals, shaping).

One protocol for all of them, independent of algorithms and policies. A learner keeps the bonus's state in its own,
calls `reward` on the steps that it has just played, and `update` with every gradient step. There are two kinds:

* the reward replaces the environment's (`llmrl_jax.rl.shaping.Shaping`, goals): `stream` is None;
* the reward is a second stream in addition to the environment's (`llmrl_jax.rl.novelty.RND`): a separate value
  function, with its own discount, optionally across the ends of episodes, and two advantages that are added with
  coefficients. A learner with one value function adds the rewards instead of the advantages: `one_reward`.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from llmrl_jax.data.transitions import Transitions
from llmrl_jax.parallel import Placement
from llmrl_jax.rl import gradient
from llmrl_jax.rl.gradient import clipped_adam
from llmrl_jax.rl.rollout import gae


INIT = 0xB0
"""Folded into a learner's keys for a bonus, so that the learner's own draws are the same with and without one."""


@struct.dataclass
class BonusState:
    """State of a bonus; part of a learner's state, and so of its checkpoints."""

    whole: Any
    """State that is not per environment: networks, statistics. On a mesh, every device has a copy."""
    rows: Any
    """State per environment, leaves `[N, ...]`. On a mesh it is split as the environments are."""


@struct.dataclass
class Stream:
    """Learning of the rewards of a bonus that are a separate stream."""

    gamma: Float[Array, ""]
    """Their discount per step."""
    coef: Float[Array, ""]
    """Weight of their advantages."""
    extrinsic_coef: Float[Array, ""]
    """Weight of the environment's advantages."""
    episodic: bool = struct.field(pytree_node=False, default=False)
    """Whether their returns stop at the end of an episode; otherwise they continue into the next episode."""
    floor: float = struct.field(pytree_node=False, default=0.1)
    """Times `coef`, the smallest standard deviation by which the summed advantages are divided, where they are
    normalised. Rewards of novelty are scaled to returns with a standard deviation of 1 over the whole run. Once novelty
    is gone, advantages are noise of far smaller standard deviation: normalised to 1, it would drive the policy to
    arbitrary actions."""


class Bonus(Protocol):
    """Change of the rewards of steps, as pure functions of a `BonusState`."""

    @property
    def name(self) -> str:
        """Prefix of its metrics."""
        ...

    def init(self, key: jax.Array, obs: Any) -> BonusState:
        """Initial state.

        **Arguments:** `key`; `obs`, of all environments, leaves `[N, ...]`, each at the start of an episode.
        """
        ...

    def stream(self, state: BonusState) -> Stream | None:
        """Stream of its rewards; None if they replace the environment's."""
        ...

    def reward(
        self, state: BonusState, steps: Transitions, gamma: float | jax.Array
    ) -> tuple[BonusState, Float[Array, "T N"], dict[str, jax.Array]]:
        """Rewards of consecutive steps of all environments, which follow the steps of the last call.

        **Arguments:** `steps`, leaves `[T, N, ...]`; `gamma`, the learner's discount.
        **Returns:** the state, the rewards, and metrics: float32 scalars.
        """
        ...

    def check_one_reward(self) -> None:
        """Called by learners with one value function (`one_reward`): they use no value function of the bonus.

        **Raises:** `ValueError` for options that were changed although nothing reads them there.
        """
        ...

    def value(self, state: BonusState, obs: Any, batch_dims: int) -> Float[Array, "*B"]:
        """Value of observations, in returns of the bonus's stream; called only if there is one."""
        ...

    def update(self, state: BonusState, steps: Transitions, key: jax.Array) -> tuple[BonusState, dict[str, jax.Array]]:
        """Gradient step of the bonus's own networks.

        **Arguments:** `steps`, any steps, leaves `[B, ...]`; `key`.
        **Returns:** the state, and metrics with the same names at every call.
        """
        ...


def shard(state: Any, placement: Placement) -> Any:
    """A bonus's state on a mesh; `()` (no bonus) is returned unchanged."""
    if not isinstance(state, BonusState):
        return state
    return BonusState(placement.replicate(state.whole), placement.shard_batch(state.rows))


def start(bonus: Bonus | None, key: jax.Array, obs: Any, placement: Placement) -> Any:
    """The state of a learner's bonus before the first update; `()` without one.

    **Arguments:** `key`, that of the learner's state; `obs`, see `Bonus.init`; `placement`."""
    return () if bonus is None else shard(bonus.init(jax.random.fold_in(key, INIT), obs), placement)


def learn(bonus: Bonus | None, state: Any, steps: Transitions, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
    """`Bonus.update`; without a bonus the state as it is, and no metrics."""
    if bonus is None:
        return state, {}
    if isinstance(steps.truncated, tuple):  # of a replay buffer that does not need it
        steps = steps.replace(truncated=jnp.zeros_like(steps.terminated))
    return bonus.update(state, steps, key)


def one_reward(
    bonus: Bonus | None, state: Any, steps: Transitions, gamma: float | jax.Array
) -> tuple[Any, Float[Array, "T N"], dict[str, jax.Array]]:
    """The rewards for a learner with one value function, such as one with a replay buffer: those of the bonus, or the
    sum of both streams with their coefficients; without a bonus the environment's. Arguments and returns as for
    `Bonus.reward`."""
    if bonus is None:
        return state, steps.reward, {}
    state, reward, metrics = bonus.reward(state, steps, gamma)
    stream = bonus.stream(state)
    if stream is not None:
        reward = stream.extrinsic_coef * steps.reward + stream.coef * reward
    return state, reward, metrics


def stream_advantages(
    bonus: Bonus,
    state: BonusState,
    stream: Stream,
    steps: Transitions,
    reward: Float[Array, "T N"],
    obs_after: Any,
    gae_lambda: float | jax.Array,
) -> tuple[Float[Array, "T N"], Float[Array, "T N"]]:
    """Generalised advantage estimation of a bonus's stream.

    **Arguments:** `steps`, leaves `[T, N, ...]`; `reward`, the bonus's; `obs_after`, the observations after the last
    step, and after a reset if there was one, leaves `[N, ...]`; `gae_lambda`.
    **Returns:** advantages and returns.
    """
    value = bonus.value(state, steps.obs, 2)
    after = jnp.concatenate([value[1:], bonus.value(state, obs_after, 1)[None]])
    terminated, truncated = steps.terminated, steps.truncated
    if stream.episodic:
        next_value = jnp.where(terminated | truncated, bonus.value(state, steps.next_obs, 2), after)
    else:  # returns continue into the next episode
        terminated, truncated, next_value = jnp.zeros_like(terminated), jnp.zeros_like(truncated), after
    return gae(reward, value, next_value, terminated, truncated, stream.gamma, gae_lambda)


def apply_gradients(state: BonusState, grads: Any) -> BonusState:
    """The state after a step of `clipped_adam`, for a bonus whose `whole` has `params`, `opt_state` and `hparams`."""
    replicated, h = state.whole, state.whole["hparams"]
    step = gradient.apply_gradients(
        clipped_adam(h), replicated["params"], grads, replicated["opt_state"], h["learning_rate"]
    )
    return state.replace(whole=replicated | {"params": step[0], "opt_state": step[1]})


# --- running statistics -----------------------------------------------------------------------------------------------


@struct.dataclass
class Moments:
    """The mean and variance of all samples so far, per entry."""

    mean: jax.Array
    var: jax.Array
    """Of the population: squared deviations over the count."""
    count: Float[Array, ""]

    @classmethod
    def start(cls, shape: tuple[int, ...] = ()) -> Moments:
        """Mean 0 and variance 1, with the weight of 1e-4 samples, so that the first real sample replaces them."""
        return cls(jnp.zeros(shape), jnp.ones(shape), jnp.float32(1e-4))

    def update(self, x: Float[Array, "..."]) -> Moments:
        """The moments with more samples (Chan, Golub and LeVeque, 1979): all axes of `x` before the last `mean.ndim`
        are sample axes."""
        samples = x.reshape(-1, *self.mean.shape)
        n = jnp.float32(samples.shape[0])
        mean, total = jnp.mean(samples, axis=0), self.count + n
        delta = mean - self.mean
        squares = self.var * self.count + jnp.var(samples, axis=0) * n + delta**2 * (self.count * n / total)
        return Moments(self.mean + delta * (n / total), squares / total, total)

    def normalize(self, x: jax.Array, clip: float | jax.Array) -> jax.Array:
        """Deviations from the mean in standard deviations, clipped to `[-clip, clip]`."""
        return jnp.clip((x - self.mean) / jnp.sqrt(self.var + 1e-8), -clip, clip)
