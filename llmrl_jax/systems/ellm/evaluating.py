"""Evaluation of a run's checkpoint: the implementation of `llmrl ellm eval`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.core import config as configs, statistics as stats
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import COUNT, check_seed, in_interval
from llmrl_jax.core.files import check_writable, json_text
from llmrl_jax.report.figures import text_table
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.systems.ellm import evaluation, film
from llmrl_jax.systems.ellm.build import Ellm, make_env, make_world, texts_of
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

    Where every episode has the same start and goals, that of training, greedy actions play one episode.

    **Raises:** `ValueError` for numbers out of range and unknown goals; what `load_run` raises.
    """
    in_interval("episodes", episodes, COUNT)
    check_seed("seed", seed)
    check_writable(folder, "the run's folder", folder=True)
    config, made, state, update = load_run(folder, checkpoint)
    wanted = _goals(made, goals)
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    play = evaluation.make_player(made.env, made.facts, made.policy, episodes)
    alone = made.facts.fixed_start and made.config.suggester != "uniform"  # random goals make episodes differ
    greedy = evaluation.make_player(made.env, made.facts, made.policy, 1) if alone and episodes > 1 else play
    params = state.runner.env_params
    found = {
        "agent": play(state.params, state.frozen, params, key),
        "greedy": greedy(state.params, state.frozen, params, key, greedy=True),
        "random": evaluation.play_random(made.env, made.facts, params, key, episodes),
    }
    summaries = {name: evaluation.summarise(made.facts, played) for name, played in found.items()}
    results: dict[str, Any] = {"update": update, "env": made.config.env, "seed": seed, **summaries}
    if wanted:
        results["goals"] = sweep(made, state, wanted, key, episodes)
    written = folder / f"eval-{update}.json"
    configs.save_config(results, written)
    weights = (state.params, state.frozen, params)
    video = film_episode(made, weights, key, folder / "episode.gif") if gif else None
    if json:
        files = {"file": written} | ({"gif": video} if video else {})
        print(json_text({"run": folder, "episodes": episodes, **results, **files}))
        return results
    print(f"{folder}, checkpoint of update {update}, {made.config.env}, {episodes} episodes each")
    if made.facts.fixed_start:
        one = "; greedy actions always play the same episode, which is played once" if alone else ""
        print(f"note: every episode has the start of training, so none is held out{one}")
    print(evaluation.report(summaries, made.facts))
    if wanted:
        print("\n" + sweep_table(results["goals"]))
    print(f"The results are in {written}" + (f", and the episode in {video}" if video else ""))
    return results


def _goals(made: Ellm, names: Sequence[str]) -> list[str]:
    if list(names) == [ALL]:
        return list(made.facts.single_goals)
    for name in names:
        made.facts.only(made.env_params, name)
    return list(names)


def sweep(
    made: Ellm, state: Any, goals: Sequence[str], key: jax.Array, episodes: int
) -> dict[str, dict[str, dict[str, float]]]:
    """The fraction of episodes in which each goal was reached, given to the agent as its only goal, and that of random
    play, with 95% Wilson intervals. One compiled program plays all goals."""
    default = EllmConfig()
    given = replace(
        made.config, suggester="fixed", fixed=(goals[0],), **{name: getattr(default, name) for name in _UNREAD}
    )
    env, facts, _ = make_world(given, make_env(made.config))
    agent = evaluation.make_player(env, facts, made.policy, episodes)
    chance = evaluation.make_player(env, facts, RandomPolicy(facts.actions), episodes)
    out: dict[str, dict[str, dict[str, float]]] = {}
    for goal in goals:
        params = facts.only(env.default_params, goal)
        played = {"agent": agent(state.params, state.frozen, params, key), "random": chance((), (), params, key)}
        out[goal] = {}
        for name, found in played.items():
            rate = stats.wilson(int((found.earned > 0).sum()), episodes)
            out[goal][name] = {"success": rate.mean, "low": rate.low, "high": rate.high}
    return out


_UNREAD = (
    *("goals", "judge", "uniform_goals", "bonus", "rnd", "noveld", "apt", "intrinsic", "extrinsic"),
    *("threshold", "once", "gate", "compat"),
)
"""Options of training that a sweep over goals does not follow: a goal is reached by its own action, with its effect
(ellm reference, 2.7), however the run paid for it."""


def sweep_table(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Success per goal, of the agent and of random play."""
    rows = [["goal reached", "agent", "random"]]
    for goal, values in found.items():
        cells = (f"{x['success']:.2f} [{x['low']:.2f}, {x['high']:.2f}]" for x in values.values())
        rows.append([goal, *cells])
    return text_table(rows)


def film_episode(made: Ellm, weights: tuple[Any, Any, Any], key: jax.Array, path: Path) -> Path:
    """Write a GIF of the first episode, with captions and goals also where the agent sees none.

    **Arguments:** `weights`, of the policy, its frozen part, and the environment's parameters.
    """
    params, frozen, env_params = weights
    env = made.env
    if not env.captions and texts_of(env.unwrapped):
        env = make_world(replace(made.config, observe=f"{made.config.observe}+text"), make_env(made.config))[0]  # type: ignore[arg-type]
    with doing("recording an episode"):
        played = film.record(env, env_params, made.policy, params, frozen, jax.random.fold_in(key, 0))
    return film.write(env, env_params, played, path)
