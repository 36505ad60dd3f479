"""Recorded episodes of a scripted expert, of a trained agent, or of a published file: `llmrl kalm collect`."""

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
from llmrl_jax.data.parquet import arrow
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.run.folder import opened, write_summary
from llmrl_jax.systems.kalm import episodes
from llmrl_jax.systems.kalm.config import CollectRun, TrainRun, settings_class
from llmrl_jax.systems.kalm.worlds import GOAL, INSTRUCTION, LEVELS, STATE, World, world_of
from llmrl_jax.workflows.experiment import kind_of_run, restore
from llmrl_jax.workflows.rl_training import RLRun, settings_class as rl_settings_class


CHUNK = 5
"""Steps between transfers to the host."""
PARTS = (STATE, GOAL, INSTRUCTION)

Expert = Callable[[Any, Any], jax.Array]
"""`(obs, state)`, leaves `[B, ...]`, to expert actions, `[B]`."""


class _WithState(Wrapper):
    """The world with its state beside the observation, for the expert."""

    def reset(self, key, params):
        obs, state = self.env.reset(key, params)
        return (obs, state), state

    def step(self, key, state, action, params):
        obs, state, *rest = self.env.step(key, state, action, params)
        return ((obs, state), state, *rest)


def expert_of(world: World, level: str) -> Expert:
    """The world's scripted expert."""
    env = world.make(level)
    return lambda obs, state: jax.vmap(lambda one: world.expert(env, innermost(one)))(state)


def greedy_of(folder: str | Path, world: World) -> Expert:
    """The greedy actions of a run's agent: of `llmrl kalm train`, or of `llmrl rl train` in the same world, whatever it
    sees of it. Of several agents, those of the first.

    **Raises:** `ValueError` for a run of another command or world; what `restore` raises.
    """
    folder = Path(folder)
    online = kind_of_run(folder, TrainRun.KIND, RLRun.KIND) == RLRun.KIND
    saved = json.loads((folder / "config.json").read_text())
    settings: Any = rl_settings_class(saved["algo"]) if online else settings_class(saved["agent"])
    config = configs.load_config(settings, folder / "config.json")
    x = config.experiment()
    env = world.make(LEVELS[0]).unwrapped
    if x.env is None or type(x.env.unwrapped) is not type(env) or online and not hasattr(env, "observe"):
        where = "no world" if x.env is None else config.env if online else x.env.id
        raise ValueError(f"{folder} learned in {where!r}, and {world.name!r} is played")
    if jax.tree.leaves(x.policy.initial_carry(1)):
        raise ValueError(f"{folder} has a policy with memory, and episodes are collected without: train another one")
    state, _ = restore(folder, config, x.learner)
    params, frozen, _ = x.variables(x, state)

    def act(obs: Any, env_state: Any) -> jax.Array:
        if online:
            obs = jax.vmap(lambda one: x.env.unwrapped.observe(innermost(one)))(env_state)
        rows = jax.tree.leaves(obs)[0].shape[0]
        return x.policy.step(params, frozen, obs, (), jnp.zeros(rows, bool))[0].mode()

    return act


def play(
    world: World, level: str, expert: Expert, episodes: int, noise: float, seed: int, together: int
) -> tuple[Transitions, Any]:
    """Whole episodes of an expert, a fraction `noise` of whose actions is random.

    **Arguments:** `together`, episodes that are played at once.
    **Returns:** the steps, and whether each episode succeeded, bool `[episodes]`. Episode `i` depends on the seed and
    on `i` alone.
    """
    env = world.make(level)
    params = env.default_params
    space = env.action_space(params)

    def act(obs_and_state: Any, carry: Any, first: Any, keys: Any) -> Any:
        random_keys, choose_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        other = jax.vmap(space.sample)(choose_keys)
        is_random = jax.vmap(jax.random.uniform)(random_keys) < noise
        is_random = is_random.reshape(-1, *(1,) * (other.ndim - 1))
        return jnp.where(is_random, other, expert(*obs_and_state)).astype(other.dtype), carry, ()

    def view(obs: Any, state: Any) -> dict[str, Any]:
        return {name: obs[0][name] for name in PARTS}

    player = make_player(_WithState(env), params, lambda _: Actor(act), view, chunk=CHUNK)
    steps, success = [], []
    for one in player((), key_pairs(jax.random.key(seed), episodes), lanes=together):
        steps.append(one.transitions(truncated=one.truncated & ~one.terminated))
        success.append(one.success)
    return jax.tree.map(lambda *x: np.concatenate(x), *steps), np.array(success)


def collect(config: CollectRun) -> dict[str, Any]:
    """Play, or convert the episodes of a file, and write `episodes.parquet` to the run's folder.

    **Returns:** the summary. **Raises:** `ModuleNotFoundError` without pyarrow; for a file, what
    `episodes.convert_published` raises; for an agent, what `greedy_of` raises.
    """
    arrow()
    world, level, seed = world_of(config.world), config.level, config.run.seed
    published = episodes.convert_published(config.file, world, level, seed) if config.file else None
    expert = greedy_of(config.agent, world) if config.agent else expert_of(world, level)
    with opened(config.run, "kalm-collect") as folder:
        configs.save_config(config, folder / "config.json")
        if published is None:
            data, success = play(world, level, expert, config.episodes, config.noise, seed, config.together)
            rates = {"success": float(success.mean()), "mean_length": len(data) / config.episodes}
            outcome = f"{rates['success']:.1%} with success"
        else:
            data = published
            rates = {"terminated": float(data.terminated.sum() / (data.terminated | data.truncated).sum())}
            outcome = f"of which {rates['terminated']:.1%} end in a terminal state"
        count = int((data.terminated | data.truncated).sum())
        episodes.write(folder, world, level, data)
        summary = {"episodes": count, "steps": len(data), **rates}
        write_summary(folder, summary)
        print(f"{count} episodes of {len(data)} steps, {outcome}; everything is in {folder}")
    return summary
