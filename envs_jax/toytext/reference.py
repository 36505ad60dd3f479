"""Import of toy text states from live reference environments."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from envs_jax.env import Environment
from envs_jax.reference import elapsed_steps
from envs_jax.toytext.tables import TabularEnvironment, ToyTextState


def import_state(gymnasium_env: Any, env: Environment, params: Any) -> tuple[Any, ToyTextState]:
    """Import the state of a live toy text environment: Gymnasium's, ProPS's `NimEnv` or gym-maze's `MazeEnv`, after a
    reset.

    **Arguments:** `gymnasium_env`; `env`, the same environment from `envs_jax.make`, possibly wrapped; `params`, its
    parameters.
    **Returns:** `(obs, state)` as the innermost `env.reset` would, for the same point in the episode, including hidden
    state (the dealer's second card, whether the passenger is fickle) and the step count of a `TimeLimit`.
    **Raises:** `TypeError` for another environment, `ValueError` before its first reset or for other options.
    """
    env, inner = env.unwrapped, gymnasium_env.unwrapped
    if not isinstance(env, TabularEnvironment):
        raise TypeError(f"{env.id or type(env).__name__} has no table to take over into; give a toy text world")
    lineage = [cls.__name__ for cls in type(inner).__mro__]
    if env.reference not in lineage:
        raise TypeError(f"{lineage[0]} is not the {env.reference} that {env.id} re-implements")
    index = jnp.int32(env.read(inner))
    return env._observe(index), ToyTextState(index, jnp.int32(elapsed_steps(gymnasium_env)))
