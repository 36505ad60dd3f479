"""A noisy expert in BabyAI's levels: the shortest-path expert, some of whose actions are random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from envs_jax import tracing
from envs_jax.babyai.bot.expert import expert_action
from envs_jax.env import Environment, innermost
from envs_jax.resets import VectorEnv


@dataclass(frozen=True)
class NoisyExpert:
    """`N` copies of a BabyAI environment with an expert that takes a given fraction of random actions.

    `envs` has a pool of prepared episodes, one per copy, which every `play` renews.
    """

    env: Environment
    """Wrapped as for training, not batched."""
    env_params: Any
    copies: int
    """`N`."""
    noise: float
    """Probability that an action is uniformly random instead of the expert's."""
    seen_only: bool = False
    """See `envs_jax.babyai.expert_action`."""

    @property
    def envs(self) -> VectorEnv:
        return VectorEnv(self.env, self.copies, policy="pool", pool_size=self.copies)

    @property
    def num_actions(self) -> int:
        return self.env.action_space(self.env_params).n  # type: ignore[attr-defined]

    def reset(self, key: jax.Array) -> tuple[Any, Any]:
        """The first observations and states of all copies."""
        return jax.jit(self.envs.reset)(key, self.env_params)

    def best(self, state: Any) -> Int[Array, " N"]:
        """The expert's own action in every copy; the agent's last action if it lacks the expert's."""
        act = jax.vmap(lambda inner: expert_action(inner, self.env, self.seen_only))
        return jnp.minimum(act(innermost(state.env)), self.num_actions - 1).astype(jnp.int32)

    def step(self, key: jax.Array, state: Any) -> Any:
        """Take one step in every copy. **Returns:** what `envs.step` returns."""
        noise_key, pick_key, step_key = jax.random.split(key, 3)
        best = self.best(state)
        other = jax.random.randint(pick_key, best.shape, 0, self.num_actions)
        action = jnp.where(jax.random.bernoulli(noise_key, self.noise, best.shape), other, best)
        return self.envs.step(step_key, state, action, self.env_params)

    @tracing.default_types
    def play(self, keys: Key[Array, " T"], pool_key: jax.Array, obs: Any, state: Any) -> tuple[Any, Any]:
        """Take `T` steps in every copy, one key per step, and renew the pool.

        **Returns:** the observations and states after them.
        """

        def step(carry, key):
            obs, state = carry
            obs, state, *_ = self.step(key, state)
            return (obs, state), None

        (obs, state), _ = tracing.scan(step, (obs, state), keys)
        return obs, self.envs.refresh(pool_key, state, self.env_params)
