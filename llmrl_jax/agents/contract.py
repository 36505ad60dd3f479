"""Who plays: an agent, the world as it sees it, and what trains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
from jaxtyping import Array, Bool, Float

from envs_jax.env import Environment
from llmrl_jax.rl.distributions import Distribution
from llmrl_jax.rl.learner import Learner


class Player(Protocol):
    """The part of `llmrl_jax.rl.policy.Policy` that playing needs; see there.

    A policy may also offer `estimate(params, frozen, obs)`, the probability of success in each state, float32 `[B]`;
    an attribute `estimate` that is None, or missing, says that it has none.
    """

    def init(self, key: jax.Array, obs: Any) -> tuple[Any, Any]: ...

    def initial_carry(self, batch_size: int) -> Any: ...

    def step(
        self, params: Any, frozen: Any, obs: Any, carry: Any, first: Bool[Array, " B"]
    ) -> tuple[Distribution, Float[Array, " B"], Any]: ...


class VectorPolicy(Protocol):
    """A policy whose parameters are one vector of numbers; it is deterministic and has no memory."""

    @property
    def kind(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def num_params(self) -> int:
        """`n`, the length of the vector."""
        ...

    def act(self, params: Float[Array, " n"], obs: Any) -> Any:
        """The action for one observation."""


class Agent(Protocol):
    """An agent and its world; `make_evaluator(agent.env, agent.env_params, agent.policy, ...)` plays it."""

    @property
    def config(self) -> Any:
        """The settings that it was made from."""
        ...

    @property
    def env(self) -> Environment:
        """The world in the wrappers that this agent sees it through, not batched."""
        ...

    @property
    def env_params(self) -> Any: ...

    @property
    def policy(self) -> Player: ...

    def learner(self) -> Learner:
        """What trains it. **Raises** `ValueError` for an agent that does not learn."""
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
    """`(params, frozen)` before any learning, to play with: a language model's are its zero-shot ones."""
    obs, _ = jax.jit(agent.env.reset)(key, agent.env_params)
    return agent.policy.init(key, jax.tree.map(lambda x: x[None], obs))
