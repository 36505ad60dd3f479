"""Potentials over windows of history, as `llmrl_jax.rl.shaping.Shaping` takes them: from programs, and controls."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs_jax.env import Environment
from llmrl_jax.advice.sandbox import Program
from llmrl_jax.rl.shaping import Window
from llmrl_jax.systems.bkrl.agent import seen_parts
from llmrl_jax.systems.bkrl.collected import Windows
from llmrl_jax.systems.bkrl.worlds import world_of


LEAST_SPREAD = 1e-6
"""A potential says nothing if its standard deviation on collected windows does not exceed this."""


class Scaled:
    """A potential in units of its standard deviation on the collected data."""

    def __init__(self, inner: Any, scale: float):
        """**Arguments:** `inner`, a `llmrl_jax.rl.shaping.Potential`; `scale`, which multiplies it."""
        self.inner, self.window = inner, inner.window
        self.reads: tuple[str, ...] = tuple(inner.reads)
        self.params = {"inner": inner.params, "scale": np.float32(scale)}

    def encode(self, params: Any, obs: Any) -> Any:
        return self.inner.encode(params["inner"], obs)

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        return params["scale"] * self.inner.value(params["inner"], window)


class ProgramPotential:
    """The potential that an admitted program computes from the numbers of an observation."""

    params: Any = ()

    def __init__(self, program: Program):
        """**Arguments:** `program`, of `llmrl_jax.advice.sandbox.admit`."""
        self.program, self.window = program, program.window
        self.reads = tuple(part.name for part in program.spec.parts)

    def encode(self, params: Any, obs: Any) -> Any:
        return {name: obs[name] for name in self.reads}

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        now = jax.tree.map(lambda x: x[:, -1], window.features)
        past = jax.tree.map(lambda x: x[:, :-1], window.features)
        return jax.vmap(lambda *x: self.program(*x)[0])(now, past, window.action)


class RandomPotential:
    """A control: the output of a random network at the newest observation, which knows nothing."""

    window = 0
    HIDDEN = 64

    def __init__(self, env: Environment, seed: int):
        """**Arguments:** `env`, of whose observations it reads what the agent sees; `seed`, of its weights."""
        space: Any = env.observation_space(env.default_params)
        self.reads = seen_parts(env, world_of(env).family)
        size = sum(int(np.prod(space.spaces[name].shape, dtype=int)) for name in self.reads)
        rng = np.random.default_rng(seed)
        first = rng.normal(size=(size, self.HIDDEN)) / np.sqrt(size)
        high = np.concatenate(
            [
                np.broadcast_to(np.asarray(space.spaces[name].high, float), space.spaces[name].shape).reshape(-1)
                for name in self.reads
            ]
        )
        self.params = {
            "hidden": (4 * first / np.maximum(high, 1)[:, None]).astype(np.float32),
            "shift": rng.normal(size=self.HIDDEN).astype(np.float32),
            "out": (rng.normal(size=self.HIDDEN) / np.sqrt(self.HIDDEN)).astype(np.float32),
        }

    def encode(self, params: Any, obs: Any) -> Float[Array, " B"]:
        flat = [obs[name].reshape(obs[name].shape[0], -1).astype(jnp.float32) for name in self.reads]
        # the reward is a difference of two values: highest precision, so that both are the same on every device
        hidden = jnp.matmul(jnp.concatenate(flat, axis=1), params["hidden"], precision=jax.lax.Precision.HIGHEST)
        return jnp.matmul(jnp.tanh(hidden + params["shift"]), params["out"], precision=jax.lax.Precision.HIGHEST)

    def value(self, params: Any, window: Window) -> Float[Array, " B"]:
        return window.features[:, -1]


def on_windows(potential: Any, windows: Windows, batch: int = 1024) -> Float[np.ndarray, " B"]:
    """The values of a potential on collected windows, whose number of actions is the potential's `window`."""

    @jax.jit
    def value(params: Any, obs: Any, action: Any, time: Any) -> Float[Array, " b"]:
        rows, length = jax.tree.leaves(obs)[0].shape[:2]
        flat = jax.tree.map(lambda x: x.reshape(rows * length, *x.shape[2:]), obs)
        features = potential.encode(params, flat)
        features = jax.tree.map(lambda x: x.reshape(rows, length, *x.shape[1:]), features)
        return potential.value(params, Window(features, action, time))

    found = []
    time = windows.time + windows.action.shape[1]
    for i in range(0, len(windows), batch):
        part = np.arange(i, i + batch) % len(windows)  # the last batch is filled up, so that one program serves all
        obs = jax.tree.map(lambda x, part=part: jnp.asarray(x[part]), windows.obs)
        values = value(potential.params, obs, jnp.asarray(windows.action[part]), jnp.asarray(time[part], jnp.int32))
        found.append(np.asarray(values)[: len(windows) - i])
    return np.concatenate(found)


def fixed_scale(potential: Any, windows: Windows) -> tuple[float, dict[str, float]]:
    """The factor that gives a potential a standard deviation of 1 on windows, and what it was there.

    **Raises:** `ValueError` for a potential that is the same on all of them."""
    values = on_windows(potential, windows)
    spread = float(np.std(values))
    if not spread > LEAST_SPREAD:
        raise ValueError(f"the potential is {values[0]:g} on all of {len(values)} collected windows: it says nothing")
    about = {"mean": float(values.mean()), "std": spread, "low": float(values.min()), "high": float(values.max())}
    return 1 / spread, about
