"""Post-training tests of runs, models and baselines: the implementation of `llmrl glam test`."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from llmrl_jax.agents.contract import untrained
from llmrl_jax.agents.evaluate import Episodes
from llmrl_jax.core import config as configs, statistics as stats
from llmrl_jax.core.activity import doing
from llmrl_jax.core.checks import COUNT, at_least, check_seed, in_interval
from llmrl_jax.core.files import check_writable, json_text
from llmrl_jax.report import compare as runs_compared
from llmrl_jax.report.runs import distinct
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
from llmrl_jax.systems.glam.results import WAYS, Z99, Tested, draw_tests, estimate, tests_table
from llmrl_jax.systems.glam.runs import HELD_OUT, load_run


Play = Callable[[Sequence[PostTest]], Iterator[Outcome]]
"""A function that runs tests with an agent."""
Report = Callable[..., None]
"""`print`, or a function of its kind."""
ZERO_SHOT = "Flan-T5 0-shot"
CLONED = "BC"


def _measured(episodes: Episodes, tasks: Sequence[str]) -> dict[str, float]:
    """Success with its 99% Wilson interval, overall and per task; return and length."""
    record = {
        "episode_return": float(episodes.episode_return.mean()),
        "episode_length": float(episodes.episode_length.mean()),
    }
    parts = {"": slice(None), **({f"{t}/": episodes.task == i for i, t in enumerate(tasks)} if len(tasks) > 1 else {})}
    for prefix, chosen in parts.items():
        won = episodes.success[chosen]
        rate = stats.wilson(int(won.sum()), int(won.size), Z99)
        record |= {f"{prefix}success": rate.mean, f"{prefix}success_low": rate.low, f"{prefix}success_high": rate.high}
        record[f"{prefix}episodes"] = float(rate.n)
    return record


def record_of(outcome: Outcome, paper: Mapping[str, float]) -> dict[str, Any]:
    """The entry of a test in `tests.json`."""
    test = outcome.test
    parts = {"rewrite": test.rewrite, "language": language_of(test, outcome.env), "variant": test.variant}
    record: dict[str, Any] = {"env": outcome.env, **parts}
    if outcome.skipped:
        return {**record, "skipped": outcome.skipped}
    measured = {way: _measured(episodes, outcome.tasks) for way, episodes in outcome.episodes.items()}
    return {**record, "actions": outcome.actions, "tasks": outcome.tasks, "paper": dict(paper), **measured}


def _saved(path: Path) -> dict[str, dict[str, Any]]:
    """The records of a `tests.json` by test; none if there is no such file. **Raises:** `ValueError` for another
    file."""
    if not path.exists():
        return {}
    saved = configs.read_json(path)
    if not isinstance(saved, dict) or not all(isinstance(record, dict) for record in saved.values()):
        raise ValueError(
            f"{path} is {str(saved)[:60]}; an object with a record for each test is needed: delete the file to take "
            "the tests again"
        )
    return saved


def take(agent: Tested, play: Play, tests: Sequence[PostTest], reuse: bool, report: Report = print) -> None:
    """Run the tests with an agent, and update `tests.json` after each. `report` gets a line after each."""
    path = agent.folder / "test" / "tests.json"
    saved = _saved(path)

    def stands(test: PostTest) -> bool:
        record = saved.get(test.name, {})
        same = {**agent.facts, "env": world_of(test, agent.env)}
        return reuse and all(record.get(name) == value for name, value in same.items())

    for outcome in play([test for test in tests if not stands(test)]):
        record = record_of(outcome, paper_row(outcome.test, agent.env, agent.trained_on))
        saved[outcome.test.name] = configs.to_json({**record, **agent.facts})
        path.parent.mkdir(parents=True, exist_ok=True)
        configs.save_config(saved, path)
        write_returns(agent.folder, outcome, zero_shot=agent.kind == ZERO_SHOT)
        said = outcome.skipped or ", ".join(f"{way} {record[way]['success']:.3f}" for way in outcome.episodes)
        report(f"{agent.name}: {outcome.test.name}: {said}", flush=True)
    agent.records = {test.name: saved[test.name] for test in tests}
    reasons = [record.get("skipped", "") for record in agent.records.values()]
    if all(reasons):
        raise ValueError(f"{agent.name} can take none of the tests: {reasons[0]}")


def spread_of(group: Sequence[Tested]) -> str:
    """Success over equivalent prompts, compared with the training prompt."""
    own, *others = VARIANT_TESTS
    lines = []
    for way in WAYS:
        estimates = {name: estimate(group, name, way) for name in VARIANT_TESTS}
        rates = {name: rate.mean for name, rate in estimates.items() if rate is not None}
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
"""Settings, besides the weights, on which the results of an untrained model depend."""


def _kind(config: GlamConfig) -> str:
    """The name of a trained agent in the paper's table, or a name of our own."""
    if config.agent != "llm":
        return {"drrn": "DRRN", "symbolic": "Symbolic-PPO"}[config.agent]
    if config.model == EMBEDDED:  # random weights, whatever `init` is
        return {"scoring": "NP", "heads": "NPA"}[config.policy]
    if config.policy == "scoring":
        return {"pretrained": "GFlan-T5", "embeddings": "NPE", "random": "NP"}[config.init]
    return {"pretrained": "AFlan", "embeddings": "NPAE", "random": "NPA"}[config.init]


def _of_run(folder: Path, checkpoint: int, env: str, key: jax.Array, asked: dict[str, Any]):
    """The newest or chosen checkpoint of a run: the agent, its `Play` function and its settings."""
    config, player, state, update = load_run(folder, checkpoint)
    params, frozen, trained_on = state.params, state.frozen, config.glam.env
    player = replace(player, config=replace(player.config, env=env or trained_on))
    agent = Tested(
        name=folder.name,
        kind=_kind(config.glam),
        folder=folder,
        facts={"update": update, **asked},
        # seeds are runs of one length: what was trained for less is another agent
        settings={**runs_compared.settings_of(config, folder), "update": update},
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
    name = cloned or f"{_place(config.model)}_zero_shot"
    said = {name: getattr(config, name) for name in READ_ZERO_SHOT}
    facts, settings = {"model": config.model, **said, **asked}, {"cloned" if cloned else "zero_shot": config.model}
    agent = Tested(name=name, kind=kind, folder=out / name, facts=facts, settings=settings, env=config.env)
    return agent, lambda tests: run_tests(player, params, frozen, tests, key, asked["episodes"])


def _place(model: str) -> str:
    """A model's name in the name of a folder: a folder's with that of the one around it, since many are called `prior`
    or `model`."""
    path = Path(model)
    return f"{path.resolve().parent.name}-{path.name}" if path.is_dir() else path.name


def _clone_of(model: Path) -> str:
    """The name of the run of `llmrl glam clone` that wrote a model; empty for any other model."""
    summary = model.resolve().parent / "summary.json"
    values = configs.read_json(summary) if summary.is_file() else {}
    return summary.parent.name if isinstance(values, dict) and "demonstrations" in values else ""


def _chance(config: GlamConfig, out: Path, key: jax.Array, asked: dict[str, Any]) -> tuple[Tested, Play]:
    facts, settings = {"num_actions": config.num_actions, **asked}, {"random": config.num_actions}
    agent = Tested("random", "Random", out / "random", facts, settings, config.env)
    return agent, lambda tests: run_random(config, tests, key, asked["episodes"])


def _bot(config: GlamConfig, out: Path, key: jax.Array, asked: dict[str, Any]) -> tuple[Tested, Play]:
    """The bot reads no words and is deterministic: tests of the same environment share their episodes, as do both modes
    of acting."""
    known: dict[str, Outcome] = {}

    def play(tests: Sequence[PostTest]) -> Iterator[Outcome]:
        for test in tests:
            env = world_of(test, config.env)
            if env not in known:
                plain = PostTest(test.name)
                trial = prepare(make_agent(replace(config, agent="bot", env=env)), plain)
                with doing(test.name):
                    episodes = trial.play((), (), key, asked["episodes"], {"greedy": True})["greedy"]
                known[env] = Outcome(plain, env, trial.actions, trial.tasks, dict.fromkeys(WAYS, episodes))
            yield replace(known[env], test=test)

    facts, settings = {"num_actions": config.num_actions, **asked}, {"bot": config.num_actions}
    return Tested("bot", "Bot", out / "bot", facts, settings, config.env), play


def chosen_tests(names: Sequence[str], variants: bool) -> list[PostTest]:
    """The tests in `names`, and the prompt variants if `variants`; the published tests if neither is given. **Raises**
    `KeyError`, with the nearest name, for an unknown one."""
    more = VARIANT_TESTS if variants else ()
    return [parse_test(name) for name in dict.fromkeys((*names, *more) or TESTS)]


def give_tests(
    runs: Sequence[Path],
    names: Sequence[str] = (),
    *,
    model: str = "",
    random: bool = False,
    bot: bool = False,
    preset: str = "",
    env: str = "",
    variants: bool = False,
    episodes: int = 1000,
    checkpoint: int = -1,
    seed: int = 0,
    reuse: bool = False,
    out: Path = Path("runs/tests"),
    json: bool = False,
) -> list[Tested]:
    """Run the tests with all agents and with random actions, print the tables, and draw the figure.

    **Arguments:** `runs`, folders; `names`, of tests (`chosen_tests`); `random`, whether random actions need no other
    agent beside them; the others as in `llmrl glam test`.
    **Returns:** the agents with their results. **Raises:** `ValueError` if there is nothing to test, or for
    incompatible options.
    """
    if not (runs or model or random or bot):
        raise ValueError("there is no agent to test: name a run's folder, --model, --random or --bot")
    if runs and preset:
        raise ValueError(f"preset is {preset}, but the settings are those of {runs[0]}: leave one out")
    distinct(runs)
    in_interval("episodes", episodes, COUNT)
    at_least("checkpoint", checkpoint, -1)
    check_seed("seed", seed)
    if model or random or bot or len(runs) > 1:
        check_writable(out, "--out", folder=True)
    else:
        out = runs[0] / "test"
    chosen = chosen_tests(names, variants)
    key = jax.random.fold_in(jax.random.key(seed), HELD_OUT)
    asked = {"seed": seed, "episodes": episodes}
    base = None if runs else find_preset(preset or "glam")
    report: Report = functools.partial(print, file=sys.stderr) if json else print
    agents: list[Tested] = []
    for folder in runs:
        agent, play, config = _of_run(folder, checkpoint, env, key, asked)
        base = base or config
        take(agent, play, chosen, reuse, report)
        agents.append(agent)
    assert base is not None
    base = replace(base, env=env or base.env)
    makers = (
        (bool(model), lambda: _zero_shot(replace(base, model=model), out, key, asked)),
        (True, lambda: _chance(base, out, key, asked)),
        (bot, lambda: _bot(base, out, key, asked)),
    )
    for wanted, make in makers:
        if wanted:
            agent, play = make()
            take(agent, play, chosen, reuse, report)
            agents.append(agent)
    groups = runs_compared.by_settings(agents)
    path = draw_tests(groups, out / "tests.png")
    if json:
        print(json_text({"episodes": episodes, "agents": [outcomes(group) for group in groups], "figure": path}))
    else:
        _show(groups, episodes, variants)
        print(f"\nThe picture is {path}")
    return agents


def outcomes(group: Sequence[Tested]) -> dict[str, Any]:
    """The results of a group as `tests_table` prints them: success with its 99% interval by test and way of acting,
    also by task, and the paper's."""

    def known(name: str, way: str, task: str = "") -> stats.Estimate | None:
        interval = estimate(group, name, way, task)
        return None if interval is None or math.isnan(interval.mean) else interval

    first = group[0]
    tests: dict[str, Any] = {}
    for name, record in first.records.items():
        if "skipped" in record:
            tests[name] = {"skipped": record["skipped"]}
            continue
        tasks = record["tasks"] if len(record["tasks"]) > 1 else ()
        tests[name] = {way: known(name, way) for way in WAYS}
        tests[name] |= {"tasks": {task: known(name, "sampled", task) for task in tasks}}
        tests[name] |= {"paper": record["paper"].get(first.kind), "env": record["env"]}
    folders = [agent.folder for agent in group]
    return {"name": runs_compared.label(group), "kind": first.kind, "folders": folders, "tests": tests}


def _show(groups: Sequence[Sequence[Tested]], episodes: int, variants: bool) -> None:
    """Print the tables, one per setting over all its seeds."""
    for group in groups:
        print(f"\n{runs_compared.label(group)}, {episodes} episodes each\n{tests_table(group)}")
        if variants and (spread := spread_of(group)):
            print(f"\n{spread}")
