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
from llmrl_jax.agents.play import Actor, key_pairs, make_player
from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.parquet import arrow, read_parquet, write_parquet
from llmrl_jax.data.transitions import DataError, Trajectories, Transitions, to_trajectories
from llmrl_jax.rl.offline_data import actions_of
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.systems.kalm.config import CollectRun
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, REAL, STATE, World, level_of, world_of
from llmrl_jax.workflows.offline_training import check_world


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

    def view(obs: Any, state: Any) -> dict[str, Any]:
        return {name: obs[0][name] for name in PARTS}

    player = make_player(_Watched(env), params, lambda _: Actor(act), view, chunk=CHUNK)
    steps, success = [], []
    for one in player((), key_pairs(jax.random.key(seed), episodes), lanes=together):
        steps.append(one.transitions(truncated=one.truncated & ~one.terminated))
        success.append(one.success)
    return jax.tree.map(lambda *x: np.concatenate(x), *steps), np.array(success)


def collect(config: CollectRun) -> dict[str, Any]:
    """Play, or take episodes over from a file, and write `episodes.parquet` to the run's folder.

    **Returns:** the summary. **Raises:** `ModuleNotFoundError` without pyarrow; for a file, what
    `converting.taken_over` raises.
    """
    arrow()
    world = world_of(config.world)
    if config.file:
        return _take_over(config, world)
    best = expert_of(world, config.level)
    if config.agent:
        from llmrl_jax.systems.kalm.testing import greedy_of  # which reads what this module writes

        best = greedy_of(config.agent, world)
    with opened(config.run, "kalm-collect") as folder:
        configs.save_config(config, folder / "config.json")
        data, success = play(world, config.level, best, config.episodes, config.noise, config.run.seed, config.together)
        _write(folder, world, config.level, data)
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


def _write(folder: Path, world: World, level: str, data: Transitions) -> None:
    write_parquet(folder / EPISODES, data)
    write_whole(folder / ABOUT, json.dumps({"world": world.name, "level": level}) + "\n")


def _take_over(config: CollectRun, world: World) -> dict[str, Any]:
    from llmrl_jax.systems.kalm.converting import taken_over

    data = taken_over(config.file, world, config.level, config.run.seed)
    check_steps(world, data)
    ends = data.terminated | data.truncated
    summary = {"episodes": int(ends.sum()), "steps": len(data), "terminated": float(data.terminated.sum() / ends.sum())}
    with opened(config.run, "kalm-collect") as folder:
        configs.save_config(config, folder / "config.json")
        _write(folder, world, config.level, data)
        write_summary(folder, summary)
        print(
            f"{summary['episodes']} episodes of {len(data)} steps, of which {summary['terminated']:.1%} end in a "
            f"terminal state; everything is in {folder}"
        )
    return summary


def about_of(folder: Path, maker: str) -> tuple[World, str, bool]:
    """The world and the level of a folder's episodes, and whether they are imagined.

    **Arguments:** `maker`, the command that should have made it, for messages.
    **Raises:** `FileNotFoundError`; `DataError` for a `data.json` of another form.
    """
    file = folder / ABOUT
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no {ABOUT}: give that of {maker}")
    try:
        found = json.loads(file.read_text())
        world, level, imagined = found["world"], found["level"], found.get("imagined", False)
        return world_of(world), level_of(level), bool(imagined)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{file} is damaged, or of something else than {maker}: {error}") from error


def check_steps(world: World, data: Transitions) -> None:
    """**Raises** `DataError` for observations or actions that are not the world's: other parts, shapes, numbers."""
    env = world.make(REAL)
    params = env.default_params
    check_world(data, env.observation_space(params), world.name)
    actions_of(data, env.action_space(params), world.name)


def read(folder: str | Path, world: str = "", *, imagined: bool = False) -> tuple[World, str, Trajectories]:
    """The world, the level and the episodes of a run.

    **Arguments:** `world`, the one that is needed; empty: any. `imagined`, whether imagined episodes are needed, and
    not recorded ones.
    **Raises:** `FileNotFoundError`, `DataError` for a folder of something else, of another world, or whose observations
    or actions are not the world's.
    """
    folder, maker = Path(folder), f"`llmrl kalm {'imagine' if imagined else 'collect'}`"
    found, level, made_up = about_of(folder, maker)
    if made_up != imagined:
        raise DataError(
            f"{folder} has {'recorded' if imagined else 'imagined'} episodes, and "
            f"{'imagined' if imagined else 'recorded'} ones are needed here: give the folder of {maker}"
        )
    if world and found.name != world:
        raise DataError(f"{folder} has episodes of {found.name!r}, and {world!r} is needed")
    data = read_parquet(folder / EPISODES).data
    check_steps(found, data)
    return found, level, to_trajectories(data)
