"""Demonstrations: whole episodes of an agent, step by step, with caller-defined records of the environment's state.

Any `llmrl_jax.agents.contract.Agent` can demonstrate. Records come from the environment's state, not from the agent's
observations. `llmrl_jax.agents.babyai_demonstrations` records BabyAI's text, and writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from envs_jax.env import innermost
from llmrl_jax.agents.contract import Agent
from llmrl_jax.agents.play import Episode, actor_of, make_player
from llmrl_jax.core.checks import at_least


CHUNK = 16
"""Number of steps between transfers to the host."""


See = Callable[[Any], dict[str, jax.Array]]
"""From the state of the innermost environment, not batched, to its record; safe under `vmap`."""


def _keys(seed: int) -> jax.Array:
    """The keys of all resets and of all steps."""
    return jax.random.split(jax.random.key(seed))


def reset_key(seed: int, number: Any) -> jax.Array:
    """The reset key of episode `number` of `play_episodes`."""
    return jax.random.fold_in(_keys(seed)[0], number)


def play_episodes(
    agent: Agent,
    params: Any,
    frozen: Any,
    *,
    seed: int,
    episodes: int,
    see: See = lambda state: {},
    greedy: bool = False,
    batch_size: int = 256,
) -> Iterator[Episode]:
    """Play episodes `0 .. episodes - 1`, and yield them in that order as they end.

    **Arguments:** `agent`; `params`, `frozen`, its weights; `seed`; `see`, the record of each state; `greedy`, the most
    likely action instead of a sample; `batch_size`, episodes played at once.

    Episode `i` starts from `env.reset(reset_key(seed, i), params)`, and its actions use its own keys: it depends
    neither on the number of episodes nor on the batch size.

    **Raises:** `ValueError` for a number below 1.
    """
    at_least("episodes", episodes, 1)
    at_least("batch_size", batch_size, 1)
    play = make_player(
        agent.env,
        agent.env_params,
        actor_of(agent.policy, greedy),
        lambda obs, state: see(innermost(state)),
        end=False,
        chunk=CHUNK,
    )

    def played() -> Iterator[Episode]:  # nothing is computed before the first episode is asked for
        number = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        keys = jax.vmap(lambda i: number(_keys(seed), i))(jnp.arange(episodes))
        yield from play((params, frozen), keys, lanes=batch_size)

    return played()
