"""Evaluation of a run's checkpoint: the implementation of `llmrl ellm eval`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from llmrl_jax.agents.random import RandomPolicy
from llmrl_jax.agents.recording import record_episode
from llmrl_jax.core import config as configs
from llmrl_jax.core.checks import COUNT, check_seed, in_interval
from llmrl_jax.core.files import check_writable
from llmrl_jax.run.report import as_json, statistics as stats
from llmrl_jax.run.report.episode import write_episode
from llmrl_jax.run.report.figures import text_table
from llmrl_jax.systems.ellm import evaluation
from llmrl_jax.systems.ellm.build import Ellm, goal_id, make_env, make_world
from llmrl_jax.systems.ellm.config import EllmConfig
from llmrl_jax.systems.ellm.runs import HELD_OUT, load_run


ALL = "all"


def evaluate(
    folder: Path,
    *,
    episodes: int = 100,
    goals: Sequence[str] = (),
    checkpoint: int = -1,
    seed: int = 0,
    gif: bool = False,
    json: bool = False,
) -> dict[str, Any]:
    """Evaluate a checkpoint on held-out episodes beside random play, print the results, and write `eval-UPDATE.json`.

    **Arguments:** `folder`, the run's; `episodes`, of each agent and goal; `goals`, single goals to give the agent, one
    after another (`all`: those that can have an effect); `checkpoint`, by update number (-1: newest); `seed`, of the
    episodes; `gif`, whether to also write an episode; `json`, whether to print the results as JSON.
    **Raises:** `ValueError` for numbers out of range and unknown goals; what `load_run` raises.
    """
    in_interval("episodes", episodes, COUNT)
    check_seed("seed", seed)
    check_writable(folder, "the run's folder", folder=True)
    config, made, state, update = load_run(folder, checkpoint)
    wanted = _goals(made, goals)
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    play = evaluation.make_player(made.env, made.facts, made.policy, episodes)
    chance = evaluation.make_player(made.env, made.facts, RandomPolicy(made.facts.actions), episodes)
    params = state.runner.env_params
    found = {
        "agent": play(state.params, state.frozen, params, key),
        "greedy": play(state.params, state.frozen, params, key, greedy=True),
        "random": chance((), (), params, key),
    }
    summaries = {name: evaluation.summarise(made.facts, played) for name, played in found.items()}
    results: dict[str, Any] = {"update": update, "env": made.config.env, "seed": seed, **summaries}
    if wanted:
        results["goals"] = sweep(made, state, wanted, key, episodes)
    written = folder / f"eval-{update}.json"
    configs.save_config(results, written)
    film = _film(made, state, key, folder) if gif else None
    if json:
        files = {"file": written} | ({"gif": film} if film else {})
        print(as_json.text({"run": folder, "episodes": episodes, **results, **files}))
        return results
    print(f"{folder}, checkpoint of update {update}, {made.config.env}, {episodes} episodes each")
    print(evaluation.report(summaries, made.facts))
    if wanted:
        print("\n" + sweep_table(results["goals"]))
    print(f"The results are in {written}" + (f", and the episode in {film}" if film else ""))
    return results


def _goals(made: Ellm, names: Sequence[str]) -> list[str]:
    if list(names) == [ALL]:
        return [name for name, valid in zip(made.facts.captions, made.facts.valid, strict=True) if valid]
    for name in names:
        goal_id(made.facts, name)
    return list(names)


def sweep(
    made: Ellm, state: Any, goals: Sequence[str], key: jax.Array, episodes: int
) -> dict[str, dict[str, dict[str, float]]]:
    """The fraction of episodes in which each goal was reached, given to the agent as its only goal, and that of random
    play, with 95% Wilson intervals. One compiled program plays all goals."""
    given = dataclasses.replace(
        made.config, suggester="fixed", fixed=(goals[0],), **{name: getattr(EllmConfig(), name) for name in _UNREAD}
    )
    env, facts, _ = make_world(given, make_env(made.config))
    agent = evaluation.make_player(env, facts, made.policy, episodes)
    chance = evaluation.make_player(env, facts, RandomPolicy(facts.actions), episodes)
    out: dict[str, dict[str, dict[str, float]]] = {}
    for goal in goals:
        params = env.default_params.replace(fixed=jnp.array([goal_id(facts, goal)], jnp.int32))
        played = {"agent": agent(state.params, state.frozen, params, key), "random": chance((), (), params, key)}
        out[goal] = {}
        for name, found in played.items():
            rate = stats.wilson(int((found.earned > 0).sum()), episodes)
            out[goal][name] = {"success": rate.mean, "low": rate.low, "high": rate.high}
    return out


_UNREAD = ("goals", "judge", "uniform_goals", "bonus", "rnd", "noveld", "apt", "intrinsic", "extrinsic")
"""Options that a sweep over goals does not read."""


def sweep_table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Success per goal, of the agent and of random play."""
    rows = [["goal reached", "agent", "random"]]
    for goal, values in found.items():
        cells = (f"{x['success']:.2f} [{x['low']:.2f}, {x['high']:.2f}]" for x in values.values())
        rows.append([goal, *cells])
    return text_table(rows)


def _film(made: Ellm, state: Any, key: jax.Array, folder: Path) -> Path:
    """A GIF of an episode with captions, goals and values. **Returns:** the file, `episode.gif`."""
    frames, success = record_episode(
        made.env, state.runner.env_params, made.policy, state.params, state.frozen, jax.random.fold_in(key, 0)
    )
    return write_episode(folder / "episode.gif", made.env, frames, success)
