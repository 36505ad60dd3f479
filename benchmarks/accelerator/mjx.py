"""MuJoCo's physics on the device, our program of it and MJX: environment steps per second with random actions."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks import clevr, metaworld
from benchmarks.accelerator.record import Case, Measured, Settings, Skipped, clocked
from envs_jax.metaworld.scene import check
from envs_jax.physics.mjx import compiler_options


PACKAGES = {"mujoco": "mujoco", "mujoco.mjx": "mujoco-mjx", "gymnasium": "gymnasium", "numba": "numba"}
"""The modules that worlds are stepped with, or their models are read from, and their packages."""


def need(*modules: str) -> None:
    """**Raises** `Skipped` where modules are not installed."""
    here = {name: importlib.util.find_spec(name) is not None for name in PACKAGES if "." not in name}
    here["mujoco.mjx"] = here["mujoco"] and importlib.util.find_spec("mujoco.mjx") is not None
    if absent := [PACKAGES[name] for name in modules if not here[name]]:
        raise Skipped(f"not installed: {', '.join(absent)}")


def measure(id: str, num_envs: int, steps: int) -> Measured:
    """A rollout of random actions from resets; every observation is added up."""
    need("mujoco", "mujoco.mjx", "gymnasium")
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

    times, took, *_ = clocked(rollout, jax.random.key(0), compiler_options=compiler_options())
    return Measured(times, took, num_envs * steps, "environment steps", facts={"frame_skip": env.frame_skip})


def pushes(backend: str, num_envs: int, steps: int) -> Measured:
    """CLEVR-Robot by the program of its own benchmark: random actions, and new episodes from a pool where others
    end."""
    need(*{"jax": ("mujoco",), "mjx": ("mujoco", "mujoco.mjx"), "numba": ("mujoco", "numba")}[backend])
    rates, took = clevr.measure(backend, num_envs, steps)
    return Measured([num_envs * steps / rate for rate in rates], took, num_envs * steps, "macro-actions")


def reaching(num_envs: int, steps: int) -> Measured:
    """Meta-World's reach on MJX by the program of its own benchmark."""
    need("mujoco", "mujoco.mjx")
    try:
        check("reach", "proxy")
    except ImportError as error:  # the package is absent, or of another version
        raise Skipped(str(error)) from None
    rates, took = metaworld.measure(REACH, num_envs, steps, backend="mjx")
    return Measured([num_envs * steps / rate for rate in rates], took, num_envs * steps, "control steps")


REACH = "MetaWorld/reach-v3"
ROWS = clevr.ACCELERATOR_ROWS
PUSHES = [("jax", ROWS, 4), ("mjx", ROWS, 2), ("jax", 4 * ROWS, 4), ("numba", ROWS, 4)]
"""CLEVR-Robot's programs, in float64 and on MJX, and the host's: backend, environments, macro-actions."""


def cases(settings: Settings) -> Iterator[Case]:
    """CLEVR-Robot's own program first. HalfCheetah's episodes do not end before their time limit. A tiny run leaves the
    robots on MJX out, since a CPU compiles them for minutes. What lacks a package is skipped."""
    clevrs = [("jax", 4, 1)] if settings.tiny else PUSHES
    sizes = [("InvertedPendulum-v5", 2, 2)] if settings.tiny else [("HalfCheetah-v5", n, 50) for n in (8192, 1024)]

    def robot(backend: str, num_envs: int, steps: int) -> Case:
        id = f"{clevr.ID}?backend={backend}"
        shape = {"env": id, "envs": num_envs, "steps": steps}
        measurement = partial(pushes, backend, num_envs, steps)
        return Case(f"{id}, {num_envs} environments x {steps} macro-actions", shape, measurement)

    first, *others = clevrs
    yield robot(*first)
    for id, num_envs, steps in sizes:
        shape = {"env": id, "envs": num_envs, "steps": steps}
        yield Case(f"{id}, {num_envs} environments x {steps} steps", shape, partial(measure, id, num_envs, steps))
    for backend in others:
        yield robot(*backend)
    if not settings.tiny:
        num_envs, steps = metaworld.ACCELERATOR_ROWS, 20
        shape = {"env": REACH, "envs": num_envs, "steps": steps, "geometry": "proxy"}
        yield Case(
            f"{REACH}, {num_envs} environments x {steps} control steps", shape, partial(reaching, num_envs, steps)
        )
