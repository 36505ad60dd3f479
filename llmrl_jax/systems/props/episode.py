"""Recording of single episodes of a policy, for prompts that show episodes and for videos."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from envs_jax.env import Environment
from llmrl_jax.agents.play import make_recorder
from llmrl_jax.agents.population import step_limit, vector_actor
from llmrl_jax.systems.props.history import Trajectory, Transition, Values
from llmrl_jax.systems.props.policies import Policy


CHUNK = 256
"""Number of steps on the device between transfers to the host."""


class EpisodeRecorder:
    """Plays single episodes, identical to those of an evaluator with the same key.

    **Arguments:** `env`, `env_params` and `policy`; `max_steps`, see `llmrl_jax.agents.population`.
    """

    def __init__(self, env: Environment, env_params: Any, policy: Policy, max_steps: int | None = None):
        self.env = env
        limit = step_limit(env, env_params, max_steps)
        self._record = make_recorder(
            env,
            env_params,
            lambda params: vector_actor(policy, params[None]),
            max_steps=limit,
            chunk=min(limit, CHUNK),
        )

    def play(self, params: jax.Array, key: jax.Array, frames: int = 0) -> tuple[Trajectory, list[np.ndarray]]:
        """An episode, and pictures of at most `frames` of its states, evenly spaced, including the last one.

        **Arguments:** `params`, float32 `[n]`; `key`, the episode's, typed; `frames`, 0 for no pictures.
        """
        episode = self._record(params, key)
        steps = tuple(
            Transition(_values(episode.seen["obs"][t]), _values(episode.action[t]), float(episode.reward[t]))
            for t in range(len(episode))
        )
        if not frames:
            return steps, []
        chosen = np.unique(np.linspace(0, len(episode), min(frames, len(episode) + 1)).round().astype(int))
        return steps, [self.env.render(episode.at(int(t))["state"]) for t in chosen]


def _values(x: Any) -> Values:
    """A number, or a tuple of numbers."""
    flat = np.asarray(x)
    if flat.ndim == 0:
        return int(flat) if np.issubdtype(flat.dtype, np.integer) else float(flat)
    return tuple(float(v) for v in flat.reshape(-1))
