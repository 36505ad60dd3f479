"""Worlds in JAX: pure `reset` and `step`, text as integers on the device, exact against their Python references."""

from envs_jax import babyai, control, mujoco, toytext  # they register their ids
from envs_jax.env import Environment, Wrapper
from envs_jax.registry import ids, make, register, spec
from envs_jax.resets import VectorEnv


__all__ = [
    "Environment",
    "VectorEnv",
    "Wrapper",
    "babyai",
    "control",
    "ids",
    "make",
    "mujoco",
    "register",
    "spec",
    "toytext",
]
