"""An agent: a policy with its environment and its learner; and its episodes, step by step.

Records of episodes come from the environment's state, not from the agent's observations.
`llmrl_jax.agents.babyai` records BabyAI's text, and writes files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from envs_jax.env import Environment, innermost
from llmrl_jax.agents.play import CHUNK, Episode, actor_of, make_player
from llmrl_jax.core.checks import at_least
from llmrl_jax.core.learner import Learner
from llmrl_jax.rl.policy import Policy


class Agent(Protocol):
    """Agent and its environment, for `make_evaluator(agent.env, agent.env_params, agent.policy, ...)`."""

    @property
    def config(self) -> Any:
        """Settings of the agent."""
        ...

    @property
    def env(self) -> Environment:
        """Environment with this agent's wrappers, not batched."""
        ...

    @property
    def env_params(self) -> Any: ...

    @property
    def policy(self) -> Policy: ...

    def learner(self) -> Learner:
        """Learner that trains it. **Raises** `ValueError` for an agent that does not learn."""
        ...


@dataclass(frozen=True)
class SimpleAgent:
    """Agent without a language model; see `Agent`."""

    config: Any
    env: Environment
    env_params: Any
    policy: Policy
    make_learner: Callable[[], Learner] | None
    """None for an agent that does not learn."""

    def learner(self) -> Learner:
        if self.make_learner is None:
            raise ValueError(f"the agent {self.config.agent} does not learn")
        return self.make_learner()


def untrained(agent: Agent, key: jax.Array) -> tuple[Any, Any]:
    """`(params, frozen)` before training, for playing: for a language model the zero-shot weights."""
    obs, _ = jax.jit(agent.env.reset)(key, agent.env_params)
    return agent.policy.init(key, jax.tree.map(lambda x: x[None], obs))


Record = Callable[[Any], dict[str, jax.Array]]
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
    record: Record = lambda state: {},
    greedy: bool = False,
    batch_size: int = 256,
    chunk: int = CHUNK,
) -> Iterator[Episode]:
    """Play episodes `0 .. episodes - 1`, and yield them in that order as they end.

    **Arguments:** `agent`; `params`, `frozen`, its weights; `seed`; `record`, of each state; `greedy`, the most
    likely action instead of a sample; `batch_size`, episodes played at once; `chunk`, steps between
    transfers to the host.

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
        lambda obs, state: record(innermost(state)),
        end=False,
        chunk=chunk,
    )

    def played() -> Iterator[Episode]:  # nothing is computed before the first episode is asked for
        number = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        keys = jax.vmap(lambda i: number(_keys(seed), i))(jnp.arange(episodes))
        yield from play((params, frozen), keys, lanes=batch_size)

    return played()
