"""Recorded episodes of a scripted expert or a trained agent: the implementation of `llmrl kalm collect`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import Wrapper, innermost
from llmrl_jax.agents.play import Actor, begin, watch
from llmrl_jax.agents.schedule import Played, Programs, played
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.parquet import read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_trajectories
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.systems.kalm.config import CollectRun
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, STATE, World, world_of


EPISODES = "episodes.parquet"
ABOUT = "data.json"
CHUNK = 5
"""Steps between transfers to the host."""
PARTS = (STATE, GOAL, INSTRUCTION)


class _Watched(Wrapper):
    """The world with its state beside the observation, for the expert."""

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return (obs, state), state

    def step(self, key, state, action, params):
        obs, state, *rest = self.env.step(key, state, action, params)
        return ((obs, state), state, *rest)


Best = Callable[[Any, Any], jax.Array]
"""`(obs, state)`, leaves `[B, ...]`, to the actions of one who acts well, `[B]`."""


def expert_of(world: World, level: str) -> Best:
    """The world's scripted expert."""
    env = world.make(level)
    return lambda obs, state: jax.vmap(lambda one: world.expert(env, innermost(one)))(state)


def play(
    world: World, level: str, best: Best, episodes: int, noise: float, seed: int, together: int
) -> tuple[Transitions, Any]:
    """Whole episodes, a share `noise` of whose actions is random.

    **Arguments:** `best`, gives the other actions; `together`, episodes that are played at once.
    **Returns:** the steps, and whether each episode succeeded, bool `[episodes]`. Episode `i` depends on the seed and
    on `i` alone.
    """
    env = world.make(level)
    params = env.default_params
    space = env.action_space(params)

    def act(seen: Any, carry: Any, first: Any, keys: Any) -> Any:
        random_keys, choose_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        other = jax.vmap(space.sample)(choose_keys)
        chance = jax.vmap(jax.random.uniform)(random_keys)
        drawn = (chance < noise).reshape(-1, *(1,) * (other.ndim - 1))
        return jnp.where(drawn, other, best(*seen)).astype(other.dtype), carry, ()

    actor, watched = Actor(act), _Watched(env)

    def start(key: jax.Array, numbers: jax.Array) -> Any:
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(numbers)
        return begin(watched, params, actor, keys[:, 0], keys[:, 1])

    def see(rows: Any, step: Any) -> dict[str, Any]:
        return {
            "obs": {name: rows.obs[0][name] for name in PARTS},
            "action": step.action,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated & ~step.terminated,
            "success": step.info["success"],
        }

    def go_on(key: jax.Array, rows: Any) -> Any:
        return watch(watched, params, actor, rows, see, steps=CHUNK)

    def last(rows: Any) -> Any:
        return {name: rows.obs[0][name] for name in PARTS}

    steps, success = [], []
    with doing("playing", episodes, "episodes") as activity:
        for one in played(Programs(start, go_on, jax.random.key(seed), last), episodes, together):
            steps.append(_transitions(one))
            success.append(one.steps["success"][-1])
            activity.done += 1
    return jax.tree.map(lambda *x: np.concatenate(x), *steps), np.array(success)


def _transitions(one: Played) -> Transitions:
    obs = one.steps["obs"]
    after = jax.tree.map(lambda x, end: np.concatenate([x[1:], end[None]]), obs, one.last)
    rest = {name: one.steps[name] for name in ("action", "reward", "terminated", "truncated")}
    return Transitions(obs=obs, next_obs=after, **rest)


def collect(config: CollectRun) -> dict[str, Any]:
    """Play, and write `episodes.parquet` to the run's folder. **Returns:** the summary."""
    world = world_of(config.world)
    best = expert_of(world, config.level)
    if config.agent:
        from llmrl_jax.systems.kalm.testing import greedy_of  # which reads what this module writes

        best = greedy_of(config.agent, world)
    with opened(config.run, "kalm-collect") as folder:
        configs.save_config(config, folder / "config.json")
        data, success = play(world, config.level, best, config.episodes, config.noise, config.run.seed, config.together)
        write_parquet(folder / EPISODES, data)
        about = {"world": world.name, "level": config.level}
        write_whole(folder / ABOUT, json.dumps(about) + "\n")
        summary = {
            "episodes": config.episodes,
            "steps": len(data),
            "success": float(success.mean()),
            "mean_length": len(data) / config.episodes,
        }
        write_summary(folder, summary)
        print(
            f"{config.episodes} episodes of {len(data)} steps, {100 * summary['success']:.1f}% with success; "
            f"everything is in {folder}"
        )
    return summary


def read(folder: str | Path, world: str = "", *, imagined: bool = False) -> tuple[World, str, Trajectories]:
    """The world, the level and the episodes of a run.

    **Arguments:** `world`, the one that is needed; empty: any. `imagined`, whether imagined episodes are needed, and
    not recorded ones.
    **Raises:** `FileNotFoundError`, `DataError` for a folder of something else, or of another world.
    """
    folder, maker = Path(folder), f"`llmrl kalm {'imagine' if imagined else 'collect'}`"
    if not (folder / ABOUT).is_file():
        raise FileNotFoundError(f"{folder} has no {ABOUT}: give that of {maker}")
    about = json.loads((folder / ABOUT).read_text())
    if about.get("imagined", False) != imagined:
        raise DataError(
            f"{folder} has {'recorded' if imagined else 'imagined'} episodes, and "
            f"{'imagined' if imagined else 'recorded'} ones are needed here: give the folder of {maker}"
        )
    if world and about["world"] != world:
        raise DataError(f"{folder} has episodes of {about['world']!r}, and {world!r} is needed")
    data = read_parquet(folder / EPISODES).data
    missing = [name for name in PARTS if name not in data.obs]
    if missing:
        raise DataError(f"{folder / EPISODES}: observations have no part {missing[0]!r}")
    return world_of(about["world"]), about["level"], to_trajectories(data)
