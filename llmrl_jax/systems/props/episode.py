"""One episode of a policy, step by step: for prompts that show episodes, and for pictures."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Environment
from llmrl_jax.systems.props.evaluate import begin, proceed
from llmrl_jax.systems.props.history import Trajectory, Transition, Values
from llmrl_jax.systems.props.policies import Policy


class EpisodeRecorder:
    """Plays single episodes, the same that an evaluator plays with the same key.

    **Arguments:** `env`, `env_params` and `policy`; `max_steps`, as `make_evaluator`'s.
    """

    def __init__(self, env: Environment, env_params: Any, policy: Policy, max_steps: int | None = None):
        self.env = env
        limit = int(env_params.max_steps if max_steps is None else max_steps)

        def play(params: jax.Array, key: jax.Array) -> Any:
            def step(carry, t):
                obs, state = carry
                action = policy.act(params, obs)
                after, then, reward, ended = proceed(env, env_params, policy, params, key, t, obs, state)
                return (after, then), (obs, action, reward, ended, then)

            obs, state = begin(env, env_params, key)
            _, rows = jax.lax.scan(step, (obs, state), jnp.arange(limit))
            return state, rows

        self._play = jax.jit(play)

    def play(self, params: jax.Array, key: jax.Array, frames: int = 0) -> tuple[Trajectory, list[np.ndarray]]:
        """An episode, and pictures of at most `frames` of its states, evenly spaced, the last one among them.

        **Arguments:** `params`, float32 `[n]`; `key`, the episode's, typed; `frames`, 0: no pictures.
        """
        first, rows = self._play(params, key)
        observations, actions, rewards, ended, states = jax.device_get(rows)
        length = int(np.argmax(ended)) + 1 if ended.any() else len(ended)
        steps = tuple(
            Transition(_values(observations[t]), _values(actions[t]), float(rewards[t])) for t in range(length)
        )
        if not frames:
            return steps, []
        chosen = np.unique(np.linspace(0, length, min(frames, length + 1)).round().astype(int))
        at = [first if t == 0 else jax.tree.map(lambda x, t=t: x[t - 1], states) for t in chosen]
        return steps, [self.env.render(state) for state in at]


def _values(x: Any) -> Values:
    """A number, or a tuple of numbers."""
    flat = np.asarray(x)
    if flat.ndim == 0:
        return int(flat) if np.issubdtype(flat.dtype, np.integer) else float(flat)
    return tuple(float(v) for v in flat.reshape(-1))
