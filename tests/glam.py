"""A GLAM program that compiles in seconds. Tests of one process share it, and what it is run on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import jax

import envs_jax
from llmrl_jax.systems.glam.build import Glam, build, make_world
from llmrl_jax.systems.glam.config import DEMO, EmbeddedConfig, GlamConfig


WORLD = "BabyAI-Text/GoToObjS4-v0"
TINY = replace(
    DEMO,
    env=WORLD,
    embedded=EmbeddedConfig(hidden_size=16, layers=1, heads=2, intermediate_size=16),
    value_width=8,
    score_rows=0,
    ppo=replace(DEMO.ppo, num_envs=4, num_steps=4, minibatches=2, microbatches=1, epochs=1, pool_size=8),
)
FULL = replace(TINY, tune="full")
"""Every weight trained, as for imitation and cloning."""
ROWS = 6
"""Of `observations`."""


@cache
def program(config: GlamConfig = TINY) -> Glam:
    """The program of a configuration, built once. Tests must not change it."""
    return build(config)


def observations(config: GlamConfig = TINY, rows: int = ROWS) -> Any:
    """The first observations of `rows` episodes, leaves `[rows, ...]`: the same for all configurations that see the
    same."""
    return _observations(config.env, config.num_actions, config.history, rows)


@cache
def _observations(env: str, num_actions: int, history: int, rows: int) -> Any:
    world, params = make_world(replace(TINY, env=env, num_actions=num_actions, history=history))
    return jax.jit(envs_jax.VectorEnv(world, rows, policy="none").reset)(jax.random.key(3), params)[0]


@cache
def weights(config: GlamConfig = TINY) -> tuple[Any, Any]:
    """`(params, frozen)` as `policy.init` draws them from key 0. Tests must not change them."""
    return program(config).policy.init(jax.random.key(0), observations(config))
