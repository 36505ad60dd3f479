"""Recording of one episode, step by step on the host, for pictures or inspection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from envs_jax.env import Environment
from llmrl_jax.agents.play import CHUNK, Actor, Episode, make_player, policy_actor


def make_recorder(
    env: Environment,
    env_params: Any,
    actor: Callable[[Any], Actor],
    *,
    max_steps: int | None = None,
    chunk: int = CHUNK,
) -> Callable[[Any, jax.Array], Episode]:
    """Build `record(variables, key)`, compiled once for any number of episodes. Their views have `obs` and `state`, and
    `extra` is the actor's `thought`.

    It plays the same episode as an evaluator with the same key: `key` is split into the keys of the reset and of the
    steps. **Arguments:** see `make_player`.
    """

    def view(obs: Any, state: Any) -> dict[str, Any]:
        return {"obs": obs, "state": state}

    play = make_player(env, env_params, actor, view, lambda step: step.thought, chunk=chunk, max_steps=max_steps)
    return lambda variables, key: next(play(variables, jax.random.split(key)[None]))


@dataclass(frozen=True)
class Frame:
    """The observation and the policy's outputs at one step."""

    picture: np.ndarray
    """uint8 `[H, W, 3]`."""
    text: dict[str, str]
    """The observation's strings, from `env.describe`."""
    probabilities: np.ndarray
    """float32 `[A]`, of the actions; empty on the last frame."""
    action: int
    """The action taken; -1 on the last frame."""
    value: float
    """The critic's estimate of the (scaled, discounted) return."""
    reward: float
    """The reward of the preceding step, as seen by the learner."""


def record_episode(
    env: Environment, params: Any, policy: Any, policy_params: Any, frozen: Any, key: jax.Array, *, greedy: bool = False
) -> tuple[list[Frame], bool]:
    """Play one episode of a policy over numbered actions and draw every step.

    **Arguments:** `env`, wrapped as for training, not batched; `policy`, `policy_params`, `frozen`, see
    `llmrl_jax.rl.policy`; `key`, a typed PRNG key; `greedy`, the mode instead of a sample.
    **Returns:** the frames, one more than steps, and the environment's success flag.
    """

    def actor(variables: Any) -> Actor:
        policy_params, frozen = variables
        inner = policy_actor(policy, policy_params, frozen, greedy)

        def act(obs, carry, first, keys):
            action, carry, (distribution, value) = inner.act(obs, carry, first, keys)
            return action, carry, {"probabilities": distribution.probs, "value": value}

        return Actor(act, inner.initial_carry)

    episode = make_recorder(env, params, actor)((policy_params, frozen), key)
    length = len(episode)
    frames = [
        Frame(
            picture=env.render(episode.at(t)["state"]),
            text=env.describe(episode.at(t)["obs"]),
            probabilities=np.zeros(0, np.float32) if t == length else episode.extra["probabilities"][t],
            action=-1 if t == length else int(episode.action[t]),
            value=0.0 if t == length else float(episode.extra["value"][t]),
            reward=float(episode.reward[t - 1]) if t else 0.0,
        )
        for t in range(length + 1)
    ]
    return frames, episode.success
