"""MuJoCo's physics on the device: environment steps per second with random actions."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks import clevr, metaworld
from benchmarks.accelerator.record import Case, Measured, Settings, Skipped, clocked
from envs_jax.metaworld.scene import check
from envs_jax.physics.mjx import compiler_options


NEEDED = {"mujoco": "mujoco", "mujoco.mjx": "mujoco-mjx", "gymnasium": "gymnasium"}
"""The modules that MJX and the models of its tasks are read from, and their packages."""


def missing() -> list[str]:
    """The packages that are not installed."""
    here = {name: importlib.util.find_spec(name) is not None for name in ("mujoco", "gymnasium")}
    here["mujoco.mjx"] = here["mujoco"] and importlib.util.find_spec("mujoco.mjx") is not None
    return [package for name, package in NEEDED.items() if not here[name]]


def measure(id: str, num_envs: int, steps: int) -> Measured:
    """A rollout of random actions from resets; every observation is added up."""
    env: Any
    env, params = envs_jax.make(id, physics="mjx")
    space = env.action_space(params)

    def rollout(key: jax.Array) -> jax.Array:
        reset_key, play_key = jax.random.split(key)
        _, state = jax.vmap(env.reset, (0, None))(jax.random.split(reset_key, num_envs), params)

        def body(carry, key):
            state, total = carry
            action_keys, step_keys = jax.random.split(key, (2, num_envs))
            actions = jax.vmap(space.sample)(action_keys)
            obs, state, reward, *_ = jax.vmap(env.step, (0, 0, 0, None))(step_keys, state, actions, params)
            return (state, total + jnp.sum(obs) + jnp.sum(reward)), None

        return jax.lax.scan(body, (state, jnp.float32(0)), jax.random.split(play_key, steps))[0][1]

    times, took, _ = clocked(rollout, jax.random.key(0), compiler_options=compiler_options())
    return Measured(times, took, num_envs * steps, "environment steps", facts={"frame_skip": env.frame_skip})


def with_resets(sample: Callable[[], tuple[list[float], float]], num_envs: int, steps: int, unit: str) -> Measured:
    """What a world's own benchmark measures: random actions, and new episodes from a pool where others end."""
    rates, took = sample()
    return Measured([num_envs * steps / rate for rate in rates], took, num_envs * steps, unit)


def robots() -> Iterator[Case]:
    """CLEVR-Robot on its programs, the host's too, and Meta-World's reach where its scene can be loaded, with the sizes
    of their own benchmarks, and more worlds."""
    rows = clevr.ACCELERATOR_ROWS
    backends = [("jax", rows), ("jax", 32768), ("mjx", rows)]
    if importlib.util.find_spec("numba"):
        backends.append(("numba", rows))
    else:
        print(f"  {clevr.ID}?backend=numba is left out: Numba is not installed", flush=True)
    for backend, num_envs in backends:
        steps, id = 10, f"{clevr.ID}?backend={backend}"
        sample = partial(clevr.measure, backend, num_envs, steps)
        what = partial(with_resets, sample, num_envs, steps, "macro-actions")
        shape = {"env": id, "envs": num_envs, "steps": steps}
        yield Case(f"{id}, {num_envs} environments x {steps} macro-actions", shape, what)
    num_envs, steps, id = metaworld.ACCELERATOR_ROWS, 20, "MetaWorld/reach-v3"
    try:
        check("reach", "proxy")
    except ImportError as error:  # the package is absent, or of another version
        print(f"  {id} is left out: {error}", flush=True)
        return
    sample = partial(metaworld.measure, id, num_envs, steps, backend="mjx")
    shape = {"env": id, "envs": num_envs, "steps": steps, "geometry": "proxy"}
    what = partial(with_resets, sample, num_envs, steps, "control steps")
    yield Case(f"{id}, {num_envs} environments x {steps} control steps", shape, what)


def cases(settings: Settings) -> Iterator[Case]:
    """HalfCheetah, whose episodes do not end before their time limit, and the robots' worlds, which a tiny run leaves
    out, since a CPU compiles them for minutes. **Raises** `Skipped` without MJX."""
    if absent := missing():
        raise Skipped(f"not installed: {', '.join(absent)}; the extra `control` has them")
    sizes = [("InvertedPendulum-v5", 2, 2)] if settings.tiny else [("HalfCheetah-v5", n, 50) for n in (1024, 8192)]
    for id, num_envs, steps in sizes:
        shape = {"env": id, "envs": num_envs, "steps": steps}
        yield Case(f"{id}, {num_envs} environments x {steps} steps", shape, partial(measure, id, num_envs, steps))
    if not settings.tiny:
        yield from robots()
