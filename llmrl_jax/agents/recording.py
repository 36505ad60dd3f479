"""One episode, kept step by step on the host, for a picture or for reading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Environment


@dataclass(frozen=True)
class Frame:
    """What the agent saw and thought at one step."""

    picture: np.ndarray
    """uint8 `[H, W, 3]`."""
    text: dict[str, str]
    """The observation's strings, from `env.describe`."""
    probabilities: np.ndarray
    """float32 `[A]`, of the actions; empty on the last frame, where the episode is over."""
    action: int
    """The action taken; -1 on the last frame."""
    value: float
    """The critic's estimate of the (scaled, discounted) return to come."""
    reward: float
    """The reward that led here, as the learner gets it."""


def record_episode(
    env: Environment, params: Any, policy: Any, policy_params: Any, frozen: Any, key: jax.Array, *, greedy: bool = False
) -> tuple[list[Frame], bool]:
    """Play one episode and keep every step.

    **Arguments:** `env`, wrapped as for training, not batched; `policy`, `policy_params`, `frozen`, see
    `llmrl_jax.rl.policy`; `key`, a typed PRNG key; `greedy`, the mode instead of a sample.
    **Returns:** the frames, one more than there were steps, and whether the world called it a success.
    """

    @jax.jit
    def act(obs, carry, first, key):
        batch = jax.tree.map(lambda x: x[None], obs)
        distribution, value, carry = policy.step(policy_params, frozen, batch, carry, first)
        action = distribution.mode() if greedy else distribution.sample(key)
        return action[0], distribution.probs[0], value[0], carry

    step = jax.jit(env.step)
    reset_key, play_key = jax.random.split(key)
    obs, state = jax.jit(env.reset)(reset_key, params)
    carry, first = policy.initial_carry(1), jnp.ones(1, bool)
    frames: list[Any] = []
    reward, done, success = 0.0, False, False
    while not done:
        act_key, step_key = jax.random.split(jax.random.fold_in(play_key, len(frames)))
        action, probabilities, value, carry = act(obs, carry, first, act_key)
        frames.append(
            Frame(env.render(state), env.describe(obs), np.asarray(probabilities), int(action), float(value), reward)
        )
        obs, state, reward_, terminated, truncated, info = step(step_key, state, action, params)
        reward, first = float(reward_), jnp.zeros(1, bool)
        done, success = bool(terminated | truncated), bool(info.get("success", terminated))
    frames.append(Frame(env.render(state), env.describe(obs), np.zeros(0, np.float32), -1, 0.0, reward))
    return frames, success
