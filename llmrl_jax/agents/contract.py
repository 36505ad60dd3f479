"""Interfaces of agents: the policy, its environment and its learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jaxtyping import Array, Bool, Float

from envs_jax.env import Environment
from llmrl_jax.core.learner import Learner
from llmrl_jax.rl.distributions import Distribution


class Player(Protocol):
    """The part of `llmrl_jax.rl.policy.Policy` needed for playing; see there.

    A policy may also have `estimate(params, frozen, obs)`, the probability of success in each state, float32 `[B]`; a
    missing `estimate`, or None, means that it has none.
    """

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]: ...

    def initial_carry(self, batch_size: int) -> Any: ...

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Distribution, Float[Array, " B"], Any]: ...


class VectorPolicy(Protocol):
    """A policy whose parameters are one vector; it is deterministic and has no memory."""

    @property
    def kind(self) -> str:
        """Name in messages."""
        ...

    @property
    def num_params(self) -> int:
        """`n`, the length of the vector."""
        ...

    def act(self, params: Float[Array, " n"], obs: Any) -> Any:
        """The action for one observation."""


class Agent(Protocol):
    """An agent and its environment, for `make_evaluator(agent.env, agent.env_params, agent.policy, ...)`."""

    @property
    def config(self) -> Any:
        """The settings of the agent."""
        ...

    @property
    def env(self) -> Environment:
        """The environment with this agent's wrappers, not batched."""
        ...

    @property
    def env_params(self) -> Any: ...

    @property
    def policy(self) -> Player: ...

    def learner(self) -> Learner:
        """The learner that trains it. **Raises** `ValueError` for an agent that does not learn."""
        ...


@dataclass(frozen=True)
class Baseline:
    """An agent without a language model; see `Agent`."""

    config: Any
    env: Environment
    env_params: Any
    policy: Player
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
