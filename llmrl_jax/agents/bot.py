"""BabyAI's bot as an agent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from envs_jax.babyai.bot.bot import Memory, bot_action
from envs_jax.babyai.env import BabyAI
from envs_jax.env import Environment, Wrapper
from llmrl_jax.rl.distributions import Categorical


class StateView(Wrapper):
    """A BabyAI environment whose observation is its state, from which the bot reads the part of the grid seen so
    far."""

    def __init__(self, env: Environment):
        """**Raises:** `TypeError` for another environment."""
        super().__init__(env)
        if not isinstance(env, BabyAI):
            raise TypeError(f"the bot plays BabyAI's levels only, and {env.id or type(env).__name__!r} is none of them")

    def reset(self, key, params):
        _, state = self.env.reset(key, params)
        return state, state

    def step(self, key, state, action, params):
        _, state, *rest = self.env.step(key, state, action, params)
        return state, state, *rest

    def observation_space(self, params):
        raise TypeError("what the bot observes is the world's state, for which there is no space")

    def describe(self, obs):
        return self.env.describe(self.env.observe(obs))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class BotPolicy:
    """BabyAI's bot (`envs_jax.babyai.bot_action`) on the observations of `StateView`; it has no parameters and no value
    function, and is deterministic: sampled and greedy actions are the same."""

    num_actions: int
    width: int
    """Number of columns of the grid."""

    def init(self, key: jax.Array, obs: Any) -> tuple[tuple[()], tuple[()]]:
        return (), ()

    def initial_carry(self, batch_size: int) -> Memory:
        return Memory(seen=jnp.zeros((batch_size, self.width), jnp.uint32))

    def step(self, params: Any, frozen: Any, obs: Any, carry: Memory, first: Bool[Array, " B"]):
        memory = Memory(seen=jnp.where(first[:, None], jnp.uint32(0), carry.seen))
        action, memory = jax.vmap(bot_action)(obs, memory)
        # if only movement is allowed, the bot's idle drop before its goal becomes a step that the goal blocks
        chosen = jnp.minimum(action, self.num_actions - 1)[:, None] == jnp.arange(self.num_actions)
        return Categorical.masked(jnp.zeros(chosen.shape), chosen), jnp.zeros(first.shape), memory
