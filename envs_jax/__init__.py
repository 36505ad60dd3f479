"""Environments in JAX: pure `reset` and `step`, text as integers on the device, exact against Python references."""

from typing import TYPE_CHECKING

from envs_jax.lazy import attach
from envs_jax.registry import WORLDS, ids, make, register, spec
from envs_jax.threads import spare_thread


if TYPE_CHECKING:
    from envs_jax import babyai, clevr, control, crafter, housekeep, metaworld, mujoco, spaces, textgames, toytext
    from envs_jax.env import Environment, Wrapper
    from envs_jax.resets import VectorEnv


spare_thread()

__all__ = [
    "Environment",
    "VectorEnv",
    "Wrapper",
    "babyai",
    "clevr",
    "control",
    "crafter",
    "housekeep",
    "ids",
    "make",
    "metaworld",
    "mujoco",
    "register",
    "spaces",
    "spec",
    "textgames",
    "toytext",
]

__getattr__ = attach(__name__, {"env": ["Environment", "Wrapper"], "resets": ["VectorEnv"]}, ("spaces", *WORLDS))
