"""`llmrl glam test`, `compare` and `export`: what became of runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import tyro

from llmrl_jax.agents.contract import untrained
from llmrl_jax.agents.evaluate import Episodes
from llmrl_jax.core import config as configs
from llmrl_jax.run.report import compare as runs_compared, statistics as stats
from llmrl_jax.systems.glam.agents import make_agent
from llmrl_jax.systems.glam.config import EMBEDDED, GlamConfig
from llmrl_jax.systems.glam.posttest import (
    TESTS,
    VARIANT_TESTS,
    Outcome,
    PostTest,
    language_of,
    paper_row,
    parse_test,
    prepare,
    run_random,
    run_tests,
    world_of,
    write_returns,
)
from llmrl_jax.systems.glam.presets import preset as find_preset
from llmrl_jax.systems.glam.results import WAYS, Z99, Tested, draw_tests, estimate, tests_table, write_log
from llmrl_jax.systems.glam.runs import HELD_OUT, TrainConfig, load_run


Play = Callable[[Sequence[PostTest]], Iterator[Outcome]]
ZERO_SHOT = "Flan-T5 0-shot"
CLONED = "BC"


def _measured(episodes: Episodes, tasks: Sequence[str]) -> dict[str, float]:
    """Success with its 99% Wilson interval, in all and per task, return and length."""
    found = {
        "episode_return": float(episodes.episode_return.mean()),
        "episode_length": float(episodes.episode_length.mean()),
    }
    parts = {"": slice(None), **({f"{t}/": episodes.task == i for i, t in enumerate(tasks)} if len(tasks) > 1 else {})}
    for prefix, chosen in parts.items():
        won = episodes.success[chosen]
        rate = stats.wilson(int(won.sum()), int(won.size), Z99)
        found |= {f"{prefix}success": rate.mean, f"{prefix}success_low": rate.low, f"{prefix}success_high": rate.high}
        found[f"{prefix}episodes"] = float(rate.n)
    return found


def _record(outcome: Outcome, paper: Mapping[str, float]) -> dict[str, Any]:
    test = outcome.test
    parts = {"rewrite": test.rewrite, "language": language_of(test, outcome.env), "variant": test.variant}
    record: dict[str, Any] = {"env": outcome.env, **parts}
    if outcome.skipped:
        return {**record, "skipped": outcome.skipped}
    measured = {way: _measured(episodes, outcome.tasks) for way, episodes in outcome.episodes.items()}
    return {**record, "actions": outcome.actions, "tasks": outcome.tasks, "paper": dict(paper), **measured}


def _take(agent: Tested, play: Play, tests: Sequence[PostTest], reuse: bool) -> None:
    """Have an agent take the tests, and keep `tests.json` up to date after each."""
    path = agent.folder / "test" / "tests.json"
    saved = json.loads(path.read_text()) if path.exists() else {}

    def stands(test: PostTest) -> bool:
        found = saved.get(test.name, {})
        same = {**agent.facts, "env": world_of(test, agent.env)}
        return reuse and all(found.get(name) == value for name, value in same.items())

    for outcome in play([test for test in tests if not stands(test)]):
        record = _record(outcome, paper_row(outcome.test, agent.env, agent.trained_on))
        saved[outcome.test.name] = configs.to_json({**record, **agent.facts})
        path.parent.mkdir(parents=True, exist_ok=True)
        configs.save_config(saved, path)
        write_returns(agent.folder, outcome, zero_shot=agent.kind == ZERO_SHOT)
        told = outcome.skipped or ", ".join(f"{way} {record[way]['success']:.3f}" for way in outcome.episodes)
        print(f"{agent.name}: {outcome.test.name}: {told}", flush=True)
    agent.records = {test.name: saved[test.name] for test in tests}
    reasons = [record.get("skipped", "") for record in agent.records.values()]
    if all(reasons):
        raise ValueError(f"{agent.name} can take none of the tests: {reasons[0]}")


def _spread(group: Sequence[Tested]) -> str:
    """Success over the prompts that say the same, beside that of training."""
    own, *others = VARIANT_TESTS
    lines = []
    for way in WAYS:
        found = {name: estimate(group, name, way) for name in VARIANT_TESTS}
        rates = {name: rate.mean for name, rate in found.items() if rate is not None}
        played = [name for name in others if name in rates]
        if own in rates and played:
            worst = min(played, key=lambda name: rates[name])
            mean = sum(rates[name] for name in played) / len(played)
            lines.append(
                f"{way}: {rates[own]:.3f} with the prompt of training; with {len(played)} others {mean:.3f} in the "
                f"mean, {rates[worst]:.3f} at the least ({worst})"
            )
    return "\n".join(lines)


READ_ZERO_SHOT = ("history", "list_actions", "num_actions", "max_prompt", "candidate_space", "scoring", "dtype")
"""What decides the play of a model that was never trained, beside its weights."""


def _kind(config: GlamConfig) -> str:
    """The name of a trained agent in the paper's table, or its own."""
    if config.agent != "llm":
        return {"drrn": "DRRN", "symbolic": "Symbolic-PPO"}[config.agent]
    if config.model == EMBEDDED:  # drawn at random, whatever `init` says
        return {"scoring": "NP", "heads": "NPA"}[config.policy]
    if config.policy == "scoring":
        return {"pretrained": "GFlan-T5", "embeddings": "NPE", "random": "NP"}[config.init]
    return {"pretrained": "AFlan", "embeddings": "NPAE", "random": "NPA"}[config.init]


def _of_run(folder: Path, checkpoint: int, env: str, key: jax.Array, asked: dict[str, Any]):
    """A run's newest or chosen checkpoint: the agent, how it plays, its settings."""
    config, player, state, update = load_run(folder, checkpoint)
    params, frozen, trained_on = state.params, state.frozen, config.glam.env
    player = replace(player, config=replace(player.config, env=env or trained_on))
    agent = Tested(
        name=folder.name,
        kind=_kind(config.glam),
        folder=folder,
        facts={"update": update, **asked},
        settings=runs_compared.settings_of(config, folder),
        env=player.config.env,
        trained_on=trained_on,
    )
    return agent, lambda tests: run_tests(player, params, frozen, tests, key, asked["episodes"]), config.glam


def _zero_shot(config: GlamConfig, out: Path, key: jax.Array, asked: dict[str, Any]) -> tuple[Tested, Play]:
    if config.agent != "llm":
        raise ValueError(
            f"a zero-shot model has no prompts of the agent {config.agent}: name a language model's run first"
        )
    player = make_agent(replace(config, init="pretrained", policy="scoring"))
    params, frozen = untrained(player, jax.random.key(asked["seed"]))
    cloned = _clone_of(Path(config.model))
    kind = CLONED if cloned else ZERO_SHOT
    name = cloned or f"{Path(config.model).name}_zero_shot"
    said = {name: getattr(config, name) for name in READ_ZERO_SHOT}
    facts, settings = {"model": config.model, **said, **asked}, {"cloned" if cloned else "zero_shot": config.model}
    agent = Tested(name=name, kind=kind, folder=out / name, facts=facts, settings=settings, env=config.env)
    return agent, lambda tests: run_tests(player, params, frozen, tests, key, asked["episodes"])


def _clone_of(model: Path) -> str:
    """The name of the run of `llmrl glam clone` that wrote a model; empty for any other model."""
    told = model.resolve().parent / "summary.json"
    return told.parent.name if told.is_file() and "demonstrations" in json.loads(told.read_text()) else ""


def _chance(config: GlamConfig, out: Path, key: jax.Array, asked: dict[str, Any]) -> tuple[Tested, Play]:
    facts, settings = {"num_actions": config.num_actions, **asked}, {"random": config.num_actions}
    agent = Tested("random", "Random", out / "random", facts, settings, config.env)
    return agent, lambda tests: run_random(config, tests, key, asked["episodes"])


def _bot(config: GlamConfig, out: Path, key: jax.Array, asked: dict[str, Any]) -> tuple[Tested, Play]:
    """Words mean nothing to the bot, and it never hesitates: tests of the same world share their episodes, and so do
    both ways of acting."""
    known: dict[str, Outcome] = {}

    def play(tests: Sequence[PostTest]) -> Iterator[Outcome]:
        for test in tests:
            env = world_of(test, config.env)
            if env not in known:
                plain = PostTest(test.name)
                trial = prepare(make_agent(replace(config, agent="bot", env=env)), plain)
                episodes = trial.play((), (), key, asked["episodes"], {"greedy": True})["greedy"]
                known[env] = Outcome(plain, env, trial.actions, trial.tasks, dict.fromkeys(WAYS, episodes))
            yield replace(known[env], test=test)

    facts, settings = {"num_actions": config.num_actions, **asked}, {"bot": config.num_actions}
    return Tested("bot", "Bot", out / "bot", facts, settings, config.env), play


def test(
    runs: tyro.conf.Positional[tuple[Path, ...]] = (),
    model: str = "",
    random: bool = False,
    bot: bool = False,
    preset: str = "",
    env: str = "",
    tests: tuple[str, ...] = TESTS,
    variants: bool = False,
    episodes: int = 1000,
    checkpoint: int = -1,
    seed: int = 0,
    reuse: bool = False,
    out: Path = Path("runs/tests"),
) -> None:
    """Give runs GLAM's post-training tests: other words, actions, levels and French, sampled and greedy, beside the
    paper.

    Writes the published `test/<env>/return_per_episode/*.npy` and `tests.json` into the folder of each run, and a
    picture, `tests.png`: into the run's `test/`, or into `out` where there are several agents. Runs that differ in
    their seed alone are one row and one bar.

    Args:
        runs: Folders of runs, `runs/NAME`.
        model: Also a model that RL never trained (zero-shot, or what `llmrl glam clone` wrote): a folder or hub id. Its
            prompts are those of the first run, or of the preset.
        random: Also an agent that acts uniformly at random.
        bot: Also BabyAI's bot, which plans from what it has seen of the grid.
        preset: Without a run: whose prompts and actions (default: glam).
        env: The world of those tests that name none; empty: the one that the run was trained in, or the preset's.
        tests: What to change, see `llmrl_jax/systems/glam/posttest.py`; parts join with +, as in go_to+french.
        variants: The prompt of training beside others that say the same, see `llmrl_jax/systems/glam/variants.py`: in
            place of the published tests, or beside the tests that are named.
        episodes: Episodes of each test and way of acting.
        checkpoint: Which checkpoint of the runs, by its update; -1: the newest.
        seed: Seed of the episodes.
        reuse: Take from tests.json what was played before with the same checkpoint, seed and episodes.
        out: Where results go that belong to no run.
    """
    if not (runs or model or random or bot):
        raise ValueError("there is nobody to test: name a run's folder, --model, --random or --bot")
    if runs and preset:
        raise ValueError(f"preset is {preset}, but the settings are those of {runs[0]}: leave one out")
    if episodes < 1:
        raise ValueError(f"episodes is {episodes}; at least 1 is needed")
    if variants:
        tests = tuple(dict.fromkeys((*(() if tests == TESTS else tests), *VARIANT_TESTS)))
    chosen = [parse_test(name) for name in tests]
    if not chosen:
        raise ValueError("no test is named; leave --tests out for all of them")
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    asked = {"seed": seed, "episodes": episodes}
    base = None if runs else find_preset(preset or "glam")
    agents: list[Tested] = []
    for folder in runs:
        agent, play, config = _of_run(folder, checkpoint, env, key, asked)
        base = base or config
        _take(agent, play, chosen, reuse)
        agents.append(agent)
    assert base is not None
    base = replace(base, env=env or base.env)
    if model:
        agent, play = _zero_shot(replace(base, model=model), out, key, asked)
        _take(agent, play, chosen, reuse)
        agents.append(agent)
    for wanted, make in ((random, _chance), (bot, _bot)):
        if wanted:
            agent, play = make(base, out, key, asked)
            _take(agent, play, chosen, reuse)
            agents.append(agent)
    groups = runs_compared.by_settings(agents)
    for group in groups:
        print(f"\n{runs_compared.label(group)}, {episodes} episodes each\n{tests_table(group)}")
        if variants and (spread := _spread(group)):
            print(f"\n{spread}")
    path = draw_tests(groups, (out if len(agents) > 1 else agents[0].folder / "test") / "tests.png")
    print(f"\nThe picture is {path}")


def compare(runs: tyro.conf.Positional[tuple[Path, ...]], bar: float = 0.8, out: Path = Path("compare.png")) -> None:
    """Lay runs side by side: success, steps to a bar, sample efficiency, speed, settings that differ; and a picture.

    Runs that differ in their seed alone are one line.

    Args:
        runs: Folders of runs, `runs/NAME`.
        bar: The success whose first reaching is looked for, averaged over ten lines of metrics.
        out: Where to draw the learning curves.
    """
    if not runs:
        raise ValueError("there is nothing to compare: name the folders of runs")
    if not 0 < bar <= 1:
        raise ValueError(f"bar is {bar}; a success rate above 0 and up to 1 is needed")
    groups = runs_compared.by_settings([runs_compared.read_run(folder, TrainConfig) for folder in runs])
    print(runs_compared.table(groups, bar))
    differing = runs_compared.differences(groups)
    print(f"\n{differing}" if differing else "\nThe settings are the same.")
    print(f"\nIntervals are 95%. The curves are in {runs_compared.draw(groups, out)}")


def export(run: tyro.conf.Positional[Path]) -> None:
    """Write a run's metrics as the published code's log.csv, for scripts that plot it.

    Args:
        run: The run's folder, `runs/NAME`.
    """
    config = configs.load_config(TrainConfig, run / "config.json")
    print(f"{write_log(run, config.glam.reward_scale)} has the columns of the published log.csv")
