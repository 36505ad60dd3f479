"""The work of peers in Python, a piece at a time, for `benchmarks.processes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def minigrid_steps(seed: int, id: str) -> Iterator[float]:
    """Steps of one environment of minigrid with random actions; a new world at every reset."""
    import gymnasium
    import minigrid  # noqa: F401 - registers its ids

    env, actions = gymnasium.make(id).unwrapped, _drawn(seed, 7)
    env.reset(seed=seed)
    while True:
        *_, terminated, truncated, _ = env.step(next(actions))
        if terminated or truncated:
            env.reset()
        yield 1


def minigrid_bot(seed: int, id: str) -> Iterator[float]:
    """Actions of minigrid's bot over consecutive episodes; one ends if the bot gives up."""
    import gymnasium
    import minigrid  # noqa: F401
    from minigrid.utils.baby_ai_bot import BabyAIBot

    env = gymnasium.make(id).unwrapped
    env.reset(seed=seed)
    while True:
        env.reset()
        bot, action, done = BabyAIBot(env), None, False
        yield 0
        while not done:
            try:
                action = bot.replan(action)
            except Exception:  # the bot fails on a few worlds in a hundred
                break
            *_, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            yield 1


def crafter_steps(seed: int, pictures: bool) -> Iterator[float | None]:
    """Steps of the package crafter with random actions, its resets left out."""
    import crafter

    env, actions = crafter.Env(seed=seed), _drawn(seed, 17)
    if not pictures:
        env._obs = lambda: None
    env.reset()
    while True:
        *_, done, _ = env.step(next(actions))
        yield 1
        if done:
            env.reset()
            yield None


def crafter_resets(seed: int) -> Iterator[float]:
    """New worlds of the package crafter, without a picture."""
    import crafter

    env = crafter.Env(seed=seed)
    env._obs = lambda: None
    while True:
        env.reset()
        yield 1


def metaworld_steps(seed: int, name: str) -> Iterator[float]:
    """Control steps of a task of the package metaworld with random actions; episodes are reset at their limit."""
    import gymnasium
    import metaworld  # noqa: F401 - registers its ids

    env = gymnasium.make("Meta-World/MT1", env_name=f"{name}-v3", seed=seed, disable_env_checker=True)
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    while True:
        *_, terminated, truncated, _ = env.step(rng.uniform(-1, 1, 4).astype(np.float32))
        if terminated or truncated:
            env.reset()
        yield 1


def vector_policies(
    seed: int, id: str, how: dict[str, Any], episodes: int, weights: np.ndarray, bias: np.ndarray
) -> Iterator[float]:
    """Evaluations of linear policies, one after the other, in a vector environment of Gymnasium with one environment
    per episode, until the last episode ends; a piece is a round of all policies.

    **Arguments:** `how`, options of `gymnasium.make_vec`; `weights`, `[P, S, A]`; `bias`, `[P, 1, A]`. Discrete actions
    are the largest output.
    """
    import gymnasium

    envs = gymnasium.make_vec(id, num_envs=episodes, **how)
    discrete = isinstance(envs.single_action_space, gymnasium.spaces.Discrete)
    while True:
        for matrix, row in zip(weights, bias):
            seed += 1000
            obs, _ = envs.reset(seed=seed)
            over = np.zeros(episodes, bool)
            while not over.all():
                scores = obs @ matrix + row
                actions = np.argmax(scores, axis=-1) if discrete else scores.astype(np.float32)
                obs, _, terminated, truncated, _ = envs.step(actions)
                over |= terminated | truncated
        yield len(weights)


def vector_populations(
    seed: int, id: str, how: dict[str, Any], episodes: int, weights: np.ndarray, bias: np.ndarray
) -> Iterator[float]:
    """Evaluations of all linear policies at once, `P` times `episodes` environments in a vector environment; see
    `vector_policies`. Discrete actions."""
    import gymnasium

    envs = gymnasium.make_vec(id, num_envs=len(weights) * episodes, **how)
    shape = (len(weights), episodes)
    while True:
        seed += 1000
        obs, _ = envs.reset(seed=seed)
        over = np.zeros(shape, bool)
        while not over.all():
            actions = np.argmax(obs.reshape(*shape, -1) @ weights + bias, axis=-1)
            obs, _, terminated, truncated, _ = envs.step(actions.ravel())
            over |= (terminated | truncated).reshape(shape)
        yield len(weights)


def mujoco_pushes(seed: int, model: Any, state: np.ndarray, spec: int) -> Iterator[float]:
    """Macro-actions of one CLEVR-Robot world, stepped from Python as the published environment does; physics alone."""
    import mujoco

    from envs_jax.clevr.constants import ACTIONS, DIRECTIONS, OFFSET, TIME_STEPS

    data, pushes = mujoco.MjData(model), _drawn(seed, ACTIONS)
    while True:
        mujoco.mj_setState(model, data, state, spec)
        for _ in range(50):
            ball, way = divmod(next(pushes), len(DIRECTIONS))
            data.qpos[-2:] = data.qpos[7 * ball : 7 * ball + 2] - OFFSET * DIRECTIONS[way]
            data.qvel[-2:] = 0
            data.ctrl[:] = DIRECTIONS[way]
            mujoco.mj_step(model, data, TIME_STEPS)
            yield 1


def _drawn(seed: int, count: int) -> Iterator[int]:
    """Random numbers below `count`, drawn in advance in blocks, as the measured work does not include drawing them."""
    rng = np.random.default_rng(seed)
    while True:
        yield from rng.integers(0, count, 10_000).tolist()
