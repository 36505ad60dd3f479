"""Success of an agent on every level: `llmrl kalm test`, for agents of `train` and for grounded models that act."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents import evaluate as evaluating
from llmrl_jax.agents.evaluate import Episodes, make_evaluator
from llmrl_jax.agents.play import Actor, advance, begin
from llmrl_jax.core import config as configs
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import COUNT, at_least, check_seed, in_interval
from llmrl_jax.core.files import expanded
from llmrl_jax.core.statistics import estimate_of, mean_rate, wilson
from llmrl_jax.report.figures import text_table
from llmrl_jax.systems.kalm.collect import metadata_of, read_cases
from llmrl_jax.systems.kalm.config import GroundRun, TrainRun, settings_class
from llmrl_jax.systems.kalm.ground import GroundedModel, load_model
from llmrl_jax.systems.kalm.prompts import rollout_prompts
from llmrl_jax.systems.kalm.worlds import INSTRUCTION, LEVELS, STATE, World, level_of, world_of
from llmrl_jax.workflows.experiment import check_saved, kind_of_run, restore


RANDOM = "random"
"""Random actions, in results."""
HELD_OUT = 0xCA1
"""Folded into the seed for test episodes."""


def key_of(seed: int) -> jax.Array:
    """The key of test episodes: all agents meet the same first states."""
    return jax.random.fold_in(jax.random.key(seed), HELD_OUT)


# --- results ----------------------------------------------------------------------------------------------------------


def rates(*agents: Mapping[str, Episodes]) -> dict[str, Any]:
    """Success on levels, the bounds of 95% intervals, and mean returns: of one agent, with Wilson's interval over
    episodes; of several, with Student's over agents, whose own rates are beside it as `<level>_agents`."""
    results: dict[str, Any] = {}
    for level in agents[0]:
        intervals = [wilson(int(np.sum(agent[level].success)), len(agent[level].success)) for agent in agents]
        rate = intervals[0] if len(agents) == 1 else mean_rate([interval.mean for interval in intervals])
        results |= rate.results(level)
        if len(agents) > 1:
            results[f"{level}_agents"] = [interval.mean for interval in intervals]
        results[f"{level}_return"] = float(np.mean([agent[level].episode_return for agent in agents]))
    return results


def judged(world: World, agents: Sequence[Mapping[str, Episodes]], episodes: int, key: jax.Array) -> dict[str, Any]:
    """The rates of agents, see `rates`, and those of random actions in the same episodes, as `random`.

    **Arguments:** `agents`, the episodes of each; `episodes`, of each level; `key`, theirs.
    """
    return {**rates(*agents), RANDOM: rates(play_random(world, list(agents[0]), episodes, key))}


def table(results: Mapping[str, Any], levels: Sequence[str]) -> str:
    """Rates beside those of random actions."""
    rows = [["success", "agent", RANDOM]]
    for level in levels:
        agent_rates = ", ".join(f"{rate:.3f}" for rate in results.get(f"{level}_agents", ()))
        agents = str(estimate_of(results, level)) + (f" ({agent_rates})" if agent_rates else "")
        rows.append([level, agents, str(estimate_of(results[RANDOM], level))])
    return text_table(rows)


# --- play -------------------------------------------------------------------------------------------------------------


def play(
    world: World, policy: Any, states: Sequence[Any], levels: Sequence[str], episodes: int, key: jax.Array
) -> list[dict[str, Episodes]]:
    """Each agent's episodes of levels, with its greedy actions. **Arguments:** `states`, of the agents' learner."""
    played: list[dict[str, Episodes]] = [{} for _ in states]
    for level in levels:
        env = EpisodeStatistics(world.make(level))
        run = make_evaluator(env, env.default_params, policy, episodes=episodes)
        for agent_episodes, state in zip(played, states, strict=True):
            agent_episodes[level] = run(state.params, state.frozen.replace(given=()), key, greedy=True)
    return played


def play_random(world: World, levels: Sequence[str], episodes: int, key: jax.Array) -> dict[str, Episodes]:
    """Episodes of levels with random actions, which begin as those of agents do."""
    bits = tuple(jax.random.key_data(key).tolist())
    if world.cases is not None:
        return {level: _random_in(world, level, episodes, bits) for level in levels}
    return {level: _random(world.name, level, episodes, bits) for level in levels}


@functools.cache
def _random(world: str, level: str, episodes: int, bits: tuple[int, ...]) -> Episodes:
    # once for all agents of a process: it depends on no agent
    return _random_in(world_of(world), level, episodes, bits)


def _random_in(world: World, level: str, episodes: int, bits: tuple[int, ...]) -> Episodes:
    env = EpisodeStatistics(world.make(level))
    key = jax.random.wrap_key_data(jnp.asarray(bits, jnp.uint32))
    return evaluating.play_random(env, env.default_params, key, episodes=episodes)


def make_player(grounded: GroundedModel, level: str, episodes: int, lanes: int = 64) -> Callable[[jax.Array], Episodes]:
    """Build `play(key) -> Episodes` of NumPy arrays: episodes of a level, in which a grounded model takes its most
    likely actions.

    The rows are those of an imagined episode (`llmrl_jax.systems.kalm.imagine`), but each state is the environment's.
    With states that carry returns the model is a decision transformer (Chen et al., 2021): each state comes with the
    return to go, which the rewards reduce.

    **Arguments:** `lanes`, episodes that are played at once. Episode `i` starts as that of
    `llmrl_jax.agents.evaluate.make_evaluator` with the same key.
    **Raises:** `ValueError` if a number is below 1.
    """
    at_least("episodes", episodes, 1)
    at_least("together", lanes, 1)
    world, model, normalizer, target = grounded.world, grounded.model, grounded.normalizer, grounded.returns
    env = EpisodeStatistics(world.make(level))
    params, horizon, lanes = env.default_params, world.horizon[level], min(lanes, episodes)
    sentences = world.instructions.sentence_ids(level)
    texts = [world.instructions.texts[i] for i in sentences]
    tokens, lengths = map(jnp.asarray, rollout_prompts(texts, grounded.tokenizer))

    def actor_of(variables: Any) -> Actor:
        layers = model.unstacked_weights(variables)

        def act(obs: Any, carry: Any, first: Any, keys: Any) -> tuple[Any, Any, Any]:
            cache, to_go = carry
            state = obs[STATE] if target is None else jnp.concatenate([obs[STATE], to_go[:, None]], axis=-1)
            hidden, cache = model.advance(variables, cache, model.enter_state(variables, normalizer, state), layers)
            action = model.act(variables, hidden)
            _, cache = model.advance(variables, cache, model.enter_action(variables, action), layers)
            return action, (cache, to_go), ()

        return Actor(act)

    @jax.jit
    def run(variables: Any, key: jax.Array, start: jax.Array) -> Episodes:
        actor = actor_of(variables)
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(start + jnp.arange(lanes))
        rows = begin(env, params, actor, keys[:, 0], keys[:, 1])
        number = rows.obs[INSTRUCTION] - sentences.start
        cache = model.start(variables, tokens[number], lengths[number], 2 * horizon)
        to_go = jnp.full(lanes, 0.0 if target is None else target, jnp.float32)
        blank = Episodes(*(jnp.zeros(lanes, kind) for kind in (bool, jnp.float32, jnp.int32, jnp.int32)))

        def step(carry: Any, _: None) -> tuple[Any, None]:
            rows, results = carry
            rows, transition = advance(env, params, actor, rows, freeze_finished=False)
            cache, to_go = rows.carry
            info = transition.info
            latest = Episodes(info["success"], info["episode_return"], info["episode_length"], results.task)
            results = jax.tree.map(lambda old, new: jnp.where(transition.ended, new, old), results, latest)
            return (rows.replace(carry=(cache, to_go - transition.reward)), results), None

        (_, results), _ = tracing.scan(step, (rows.replace(carry=(cache, to_go)), blank), length=horizon)
        return results

    def play(key: jax.Array) -> Episodes:
        parts = []
        with doing(f"{level}: playing", episodes, "episodes") as activity:
            while activity.done < episodes:
                part = jax.device_get(run(grounded.variables, key, jnp.int32(activity.done)))
                count = min(lanes, episodes - activity.done)
                parts.append(jax.tree.map(lambda x, n=count: x[:n], part))
                activity.done += count
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)

    return play


def test_run(
    folder: Path,
    *,
    levels: Sequence[str] = LEVELS,
    episodes: int = 500,
    lanes: int = 64,
    seed: int = 0,
    cases: Path | None = None,
) -> dict[str, Any]:
    """Play an agent on levels, print its success beside that of random actions, and write `test.json` to its folder.

    **Arguments:** `folder`, of a run; `episodes`, of each level; `lanes`, those that a grounded model plays at once;
    `cases`, a file of test cases of the one level, at which episodes begin, each at one of them, drawn by the seed.
    **Returns:** the contents of the file.
    **Raises:** `ValueError` for an unknown level, numbers out of range, cases of several levels, and a run of another
    command; `FileNotFoundError`; what `TrainRun.experiment`, `load_model` and `read_cases` raise.
    """
    in_interval("episodes", episodes, COUNT)
    in_interval("together", lanes, COUNT)
    check_seed("seed", seed)
    levels, key = tuple(level_of(level) for level in levels), key_of(seed)
    if cases is not None and len(levels) != 1:
        raise ValueError(
            f"--cases is {cases}, a file of one level, and {len(levels)} are tested: name it with --levels"
        )
    results: dict[str, Any] = {"seed": seed, "episodes": episodes}
    if cases is not None:
        results["cases"] = str(cases)
    rng = np.random.default_rng(seed)
    if kind_of_run(folder, TrainRun.KIND, GroundRun.KIND) == TrainRun.KIND:
        saved = json.loads((folder / "config.json").read_text())
        check_saved(folder)
        config = configs.load_config(settings_class(saved["agent"]), folder / "config.json")
        given = None
        if cases is not None:
            given = read_cases(
                expanded(cases), metadata_of(Path(config.data), "`llmrl kalm collect`")[0], levels[0], rng
            )
        x = replace(config, levels=levels).experiment(given)
        state, update = restore(folder, config, x.learner)
        assert x.evaluate is not None
        results |= {**x.evaluate(state, key, episodes), "update": update}
    else:
        grounded = load_model(folder)
        if cases is not None:
            given = read_cases(expanded(cases), grounded.world, levels[0], rng)
            grounded = replace(grounded, world=replace(grounded.world, cases=given))
        played = {level: make_player(grounded, level, episodes, lanes)(key) for level in levels}
        results |= judged(grounded.world, [played], episodes, key)
    print(table(results, levels))
    configs.save_config(results, folder / "test.json")
    return results
