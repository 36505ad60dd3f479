"""Success of an agent on every level: `llmrl kalm test`, for agents of `train` and for grounded models that act."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.env import innermost
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents import evaluate as evaluating
from llmrl_jax.agents.evaluate import Episodes, make_evaluator
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import COUNT, check_seed, in_interval
from llmrl_jax.core.statistics import mean_rate, wilson
from llmrl_jax.report.figures import text_table
from llmrl_jax.systems.kalm import grounded
from llmrl_jax.systems.kalm.acting import make_player
from llmrl_jax.systems.kalm.config import GroundRun, TrainRun, settings_class
from llmrl_jax.systems.kalm.training import Made, make
from llmrl_jax.systems.kalm.worlds import LEVELS, World, level_of, world_of
from llmrl_jax.workflows.experiment import check_saved, kind_of_run, restore
from llmrl_jax.workflows.rl_training import RLRun, make as make_rl, settings_class as rl_settings_class


RANDOM = "random"
"""Random actions, in results."""
HELD_OUT = 0xCA1
"""Folded into the seed for test episodes."""


def test_key(seed: int) -> jax.Array:
    """The key of test episodes: all agents meet the same first states."""
    return jax.random.fold_in(jax.random.key(seed), HELD_OUT)


def rates(*agents: Mapping[str, Episodes]) -> dict[str, Any]:
    """Success on levels, the bounds of 95% intervals, and mean returns: of one agent, with Wilson's interval over
    episodes; of several, with Student's over agents, whose own rates are beside it as `<level>_agents`."""
    found: dict[str, Any] = {}
    for level in agents[0]:
        own = [wilson(int(np.sum(one[level].success)), len(one[level].success)) for one in agents]
        rate = own[0] if len(agents) == 1 else mean_rate([one.mean for one in own])
        found |= {level: rate.mean, f"{level}_low": rate.low, f"{level}_high": rate.high}
        if len(agents) > 1:
            found[f"{level}_agents"] = [one.mean for one in own]
        found[f"{level}_return"] = float(np.mean([one[level].episode_return for one in agents]))
    return found


def judged(world: World, agents: Sequence[Mapping[str, Episodes]], episodes: int, key: jax.Array) -> dict[str, Any]:
    """The rates of agents, see `rates`, and those of random actions in the same episodes, as `random`.

    **Arguments:** `agents`, the episodes of each; `episodes`, of each level; `key`, theirs.
    """
    chance = {level: _random(world.name, level, episodes, _bits(key)) for level in agents[0]}
    return {**rates(*agents), RANDOM: rates(chance)}


def table(found: Mapping[str, Any], levels: Sequence[str]) -> str:
    """Rates beside those of random actions."""
    rows = [["success", "agent", RANDOM]]
    for level in levels:
        own = ", ".join(f"{rate:.3f}" for rate in found.get(f"{level}_agents", ()))
        rows.append([level, _interval(found, level) + (f" ({own})" if own else ""), _interval(found[RANDOM], level)])
    return text_table(rows)


def _interval(found: Mapping[str, Any], level: str) -> str:
    return f"{found[level]:.3f} [{found[level + '_low']:.3f}, {found[level + '_high']:.3f}]"


def play(made: Made, agents: Sequence[Any], levels: Sequence[str], episodes: int, key: jax.Array) -> list[dict]:
    """Each agent's episodes of levels, with its greedy actions. **Arguments:** `agents`, their states."""
    played: list[dict[str, Episodes]] = [{} for _ in agents]
    for level in levels:
        env = EpisodeStatistics(made.world.make(level))
        run = make_evaluator(env, env.default_params, made.policy, episodes=episodes)
        for one, state in zip(played, agents, strict=True):
            one[level] = run(state.params, state.frozen.replace(given=()), key, greedy=True)
    return played


def play_random(world: World, levels: Sequence[str], episodes: int, seed: int) -> dict[str, Episodes]:
    """Episodes of levels with random actions, which begin as those of agents do."""
    return {level: _random(world.name, level, episodes, _bits(test_key(seed))) for level in levels}


def _bits(key: jax.Array) -> tuple[int, ...]:
    return tuple(jax.random.key_data(key).tolist())


@functools.cache
def _random(world: str, level: str, episodes: int, bits: tuple[int, ...]) -> Episodes:
    # once for all agents of a process: it depends on no agent
    env = EpisodeStatistics(world_of(world).make(level))
    key = jax.random.wrap_key_data(jnp.asarray(bits, jnp.uint32))
    return evaluating.play_random(env, env.default_params, key, episodes=episodes)


def load_agents(folder: Path) -> tuple[TrainRun, Made, list[Any], int]:
    """A run of `llmrl kalm train`: its settings, its parts, the newest checkpoint's state of each agent, its update.

    **Raises:** `FileNotFoundError` without a checkpoint; what `make` raises, as the run's data are read again.
    """
    saved = json.loads((folder / "config.json").read_text())
    config = configs.load_config(settings_class(saved["agent"]), folder / "config.json")
    check_saved(folder)
    made = make(config)
    state, update = restore(folder, config, made.program)
    return config, made, made.agents(state), update


def greedy_of(folder: str | Path, world: World) -> Callable[[Any, Any], jax.Array]:
    """The greedy actions of a run's agent, from observations and states, leaves `[B, ...]`: of `llmrl kalm train`, or
    of `llmrl rl train` in the same world, whatever it sees of it. Of several agents, those of the first.

    **Raises:** `ValueError` for a run of another command or world; what `load_agents` raises.
    """
    folder = Path(folder)
    if kind_of_run(folder, TrainRun.KIND, RLRun.KIND) == RLRun.KIND:
        return _of_rl_run(folder, world)
    _, made, (state, *_), _ = load_agents(folder)
    if made.world.name != world.name:
        raise ValueError(f"{folder} learned in {made.world.name!r}, and {world.name!r} is played")

    def act(obs: Any, env_state: Any) -> jax.Array:
        first = jnp.zeros(jax.tree.leaves(obs)[0].shape[0], bool)
        return made.policy.step(state.params, state.frozen.replace(given=()), obs, (), first)[0].mode()

    return act


def _of_rl_run(folder: Path, world: World) -> Callable[[Any, Any], jax.Array]:
    saved = json.loads((folder / "config.json").read_text())
    config = configs.load_config(rl_settings_class(saved["algo"]), folder / "config.json")
    made, own = make_rl(config), world.make(LEVELS[0]).unwrapped
    if made.env is None or type(made.env.unwrapped) is not type(own) or not hasattr(own, "observe"):
        raise ValueError(f"{folder} learned in {config.env or 'no world'!r}, and {world.name!r} is played")
    check_saved(folder)
    seen, policy = made.env.unwrapped.observe, made.policy  # type: ignore[attr-defined]
    if jax.tree.leaves(policy.initial_carry(1)):
        raise ValueError(f"{folder} has a policy with memory, and episodes are collected without: train another one")
    params, frozen, _ = made.variables(made, restore(folder, config, made.learner)[0])

    def act(obs: Any, env_state: Any) -> jax.Array:
        mine = jax.vmap(lambda one: seen(innermost(one)))(env_state)
        count = jax.tree.leaves(mine)[0].shape[0]
        return policy.step(params, frozen, mine, (), jnp.zeros(count, bool))[0].mode()

    return act


def test_run(
    folder: Path, *, levels: Sequence[str] = LEVELS, episodes: int = 500, together: int = 64, seed: int = 0
) -> dict[str, Any]:
    """Play an agent on levels, print its success beside that of random actions, and write `test.json` to its folder.

    **Arguments:** `folder`, of a run; `episodes`, of each level; `together`, those that a grounded model plays at once.
    **Returns:** the contents of the file.
    **Raises:** `ValueError` for an unknown level, numbers out of range, and a run of another command;
    `FileNotFoundError`; what `load_agents` and `grounded.load` raise.
    """
    in_interval("episodes", episodes, COUNT)
    in_interval("together", together, COUNT)
    check_seed("seed", seed)
    levels = [level_of(level) for level in levels]
    kind = kind_of_run(folder, TrainRun.KIND, GroundRun.KIND)
    if kind == TrainRun.KIND:
        _, made, agents, update = load_agents(folder)
        played, world = play(made, agents, levels, episodes, test_key(seed)), made.world
    else:
        found, update = grounded.load(folder), -1
        world = found.world
        played = [{level: make_player(found, level, episodes, together)(test_key(seed)) for level in levels}]
    results = {"seed": seed, "episodes": episodes, **judged(world, played, episodes, test_key(seed))}
    results |= {"update": update} if update >= 0 else {}
    print(table(results, levels))
    configs.save_config(results, folder / "test.json")
    return results
