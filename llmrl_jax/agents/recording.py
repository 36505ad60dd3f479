"""Recording of one episode, step by step on the host, for pictures or inspection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Environment
from llmrl_jax.agents.play import Actor, Rows, Step, begin, policy_actor, watch


CHUNK = 16
"""Default number of steps between transfers to the host."""


@dataclass(frozen=True)
class Recording:
    """One episode of `T` steps, as NumPy arrays."""

    obs: Any
    """Leaves `[T + 1, ...]`: before each step, and at the end."""
    state: Any
    """The environment's states, leaves `[T + 1, ...]`."""
    action: np.ndarray
    """`[T, ...]`."""
    thought: Any
    """The actor's additional output, leaves `[T, ...]`."""
    reward: np.ndarray
    """float32 `[T]`."""
    success: bool
    """The environment's success flag; without one, whether the environment ended the episode."""

    @property
    def length(self) -> int:
        """`T`."""
        return len(self.reward)

    def state_at(self, t: int) -> Any:
        """The environment's state before step `t`, or at the end for `t = T`."""
        return jax.tree.map(lambda x: x[t], self.state)

    def obs_at(self, t: int) -> Any:
        """The observation before step `t`, or at the end for `t = T`."""
        return jax.tree.map(lambda x: x[t], self.obs)


def make_recorder(
    env: Environment,
    env_params: Any,
    make_actor: Callable[[Any], Actor],
    *,
    max_steps: int | None = None,
    chunk: int = CHUNK,
) -> Callable[[Any, jax.Array], Recording]:
    """Build `record(variables, key) -> Recording`, compiled once for any number of episodes.

    It plays the same episode as an evaluator with the same key: `key` is split into the keys of the reset and of the
    steps.

    **Arguments:** `env`, not batched, and its `env_params`; `make_actor`, from `variables`, a pytree, to the actor of
    one row; `max_steps`, steps after which the episode always ends; `chunk`, steps on the device between transfers to
    the host.
    """

    def see(rows: Rows, step: Step) -> dict[str, Any]:
        kept = {"obs": rows.obs, "state": rows.state, "action": step.action, "thought": step.thought}
        success = step.info.get("success", step.terminated)
        return {**kept, "reward": step.reward, "success": success}

    @jax.jit
    def start(variables: Any, key: jax.Array) -> Rows:
        reset_key, step_key = jax.random.split(key)
        return begin(env, env_params, make_actor(variables), reset_key[None], step_key[None])

    @jax.jit
    def go_on(variables: Any, rows: Rows) -> tuple[Rows, dict[str, Any]]:
        return watch(env, env_params, make_actor(variables), rows, see, steps=chunk, max_steps=max_steps)

    def record(variables: Any, key: jax.Array) -> Recording:
        rows = start(variables, key)
        parts: list[dict[str, Any]] = []
        while not bool(rows.over[0]):
            rows, seen = go_on(variables, rows)
            parts.append(jax.tree.map(lambda x: _host(x[:, 0]), seen))
        length = int(rows.t[0])
        last = jax.tree.map(lambda x: _host(x), {"obs": rows.obs, "state": rows.state})
        whole = {name: _joined([part[name] for part in parts], length) for name in parts[0]}
        ends = {name: jax.tree.map(lambda a, b: _concatenated([a, b]), whole[name], last[name]) for name in last}
        return Recording(
            **ends,
            action=whole["action"],
            thought=whole["thought"],
            reward=whole["reward"],
            success=bool(whole["success"][-1]),
        )

    return record


def _joined(parts: list[Any], length: int) -> Any:
    return jax.tree.map(lambda *xs: _concatenated(list(xs))[:length], *parts)


def _concatenated(parts: list[Any]) -> Any:
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else jnp.concatenate(parts)


def _host(x: jax.Array) -> Any:
    """The array on the host; PRNG keys, which NumPy does not have, stay on the device."""
    return x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x)


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

    recording = make_recorder(env, params, actor)((policy_params, frozen), key)
    frames = [
        Frame(
            picture=env.render(recording.state_at(t)),
            text=env.describe(recording.obs_at(t)),
            probabilities=np.zeros(0, np.float32) if t == recording.length else recording.thought["probabilities"][t],
            action=-1 if t == recording.length else int(recording.action[t]),
            value=0.0 if t == recording.length else float(recording.thought["value"][t]),
            reward=float(recording.reward[t - 1]) if t else 0.0,
        )
        for t in range(recording.length + 1)
    ]
    return frames, recording.success
