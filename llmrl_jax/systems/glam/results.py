"""Post-training tests of runs, models and baselines, with tables and a figure: the implementation of `llmrl glam test`.

Carta et al. (2302.02662); files are those of `post-training_tests.py`.
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from llmrl_jax import lm
from llmrl_jax.agents.agent import untrained
from llmrl_jax.agents.evaluate import Episodes
from llmrl_jax.core import config as configs, statistics as stats
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import check_writable, json_text, write_whole
from llmrl_jax.lm.small import EMBEDDED
from llmrl_jax.report import compare as runs_compared, figures
from llmrl_jax.report.runs import distinct
from llmrl_jax.run.curves import INK
from llmrl_jax.systems.glam.build import make_agent
from llmrl_jax.systems.glam.config import GlamConfig, PostTestConfig, preset
from llmrl_jax.systems.glam.eval import load_run
from llmrl_jax.systems.glam.posttest import (
    TESTS,
    VARIANT_TESTS,
    Outcome,
    PostTest,
    language_of,
    paper_row,
    parse_test,
    prepare,
    published_env,
    run_random,
    run_tests,
    world_of,
)
from llmrl_jax.workflows.experiment import HELD_OUT


Play = Callable[[Sequence[PostTest]], Iterator[Outcome]]
"""A function that runs tests with an agent."""
Report = Callable[..., None]
"""`print`, or a function of its kind."""
ZERO_SHOT = "Flan-T5 0-shot"
CLONED = "BC"


Z99 = 2.5758293035489004
"""The 99.5% quantile of the standard normal distribution, for 99% Wilson intervals."""

MODES = ("sampled", "greedy")


@dataclass
class Tested:
    """A tested agent: a run, a model without RL training, or a baseline."""

    name: str
    kind: str
    """Its column in the paper's table, or a name of our own."""
    folder: Path
    """The folder of its results, under `test/`."""
    facts: dict[str, Any]
    """Values, besides the test, on which its results depend."""
    settings: dict[str, Any]
    """Settings of a run; agents with equal settings except for the seed share a bar."""
    env: str
    """The environment of tests that name none."""
    trained_on: str = ""
    records: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The entries of `tests.json`, by test."""


def post_test(config: PostTestConfig) -> list[Tested]:
    """Run the tests with all agents and with random actions, print the tables, and draw the figure.

    **Returns:** the agents with their results. **Raises:** what `load_run`, `make_agent` and `parse_test` raise.
    """
    distinct(config.runs)
    if config.model or config.random or config.bot or len(config.runs) > 1:
        output = config.out
        check_writable(output, "--out", folder=True)
    else:
        output = config.runs[0] / "test"
    variants = VARIANT_TESTS if config.variants else ()
    tests = [parse_test(name) for name in dict.fromkeys((*config.tests, *variants) or TESTS)]
    report: Report = functools.partial(print, file=sys.stderr) if config.json else print
    glam: GlamConfig | None = None if config.runs else preset(config.preset or "glam")
    agents: list[Tested] = []

    def take_with(agent: Tested, play: Play) -> None:
        take(agent, play, tests, config.reuse, report)
        agents.append(agent)

    for folder in config.runs:
        agent, play, trained = _of_run(folder, config)
        glam = glam or trained
        take_with(agent, play)
    assert glam is not None
    glam = replace(glam, env=config.env or glam.env)
    if config.model:
        take_with(*_zero_shot(replace(glam, model=config.model), output, config))
    take_with(*_random(glam, output, config))
    if config.bot:
        take_with(*_bot(glam, output, config))
    groups = runs_compared.by_settings(agents)
    path = draw_tests(groups, output / "tests.png")
    if config.json:
        values = {"episodes": config.episodes, "agents": [outcomes(group) for group in groups], "figure": path}
        print(json_text(values))
        return agents
    for group in groups:
        print(f"\n{runs_compared.label(group)}, {config.episodes} episodes each\n{tests_table(group)}")
        if config.variants and (spread := spread_of(group)):
            print(f"\n{spread}")
    print(f"\nThe picture is {path}")
    return agents


# --- agents -----------------------------------------------------------------------------------------------------------


READ_ZERO_SHOT = (
    *("history", "list_actions", "num_actions", "max_prompt", "candidate_space", "scoring", "dtype", "quantize"),
)
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


def _test_options(x: PostTestConfig) -> dict[str, Any]:
    """The options on which all results depend."""
    return {"seed": x.seed, "episodes": x.episodes}


def _key(x: PostTestConfig) -> jax.Array:
    return jax.random.fold_in(jax.random.key(x.seed), HELD_OUT)


def _of_run(folder: Path, x: PostTestConfig) -> tuple[Tested, Play, GlamConfig]:
    """The newest or chosen checkpoint of a run: the agent, its `Play` function and its settings."""
    config, player, state, update = load_run(folder, x.checkpoint)
    params, frozen, trained_on = state.params, state.frozen, config.glam.env
    player = replace(player, config=replace(player.config, env=x.env or trained_on))
    agent = Tested(
        name=folder.name,
        kind=_kind(config.glam),
        folder=folder,
        facts={"update": update, **_test_options(x)},
        # seeds are runs of one length: what was trained for less is another agent
        settings={**runs_compared.settings_of(config, folder), "update": update},
        env=player.config.env,
        trained_on=trained_on,
    )
    return agent, lambda tests: run_tests(player, params, frozen, tests, _key(x), x.episodes), config.glam


def _zero_shot(config: GlamConfig, output: Path, x: PostTestConfig) -> tuple[Tested, Play]:
    """The model `config.model`, as it is."""
    if config.agent != "llm":
        raise ValueError(
            f"a zero-shot model has no prompts of the agent {config.agent}: name a language model's run first"
        )
    player = make_agent(replace(config, init="pretrained", policy="scoring"))
    params, frozen = untrained(player, jax.random.key(x.seed))
    cloned = _clone_of(Path(config.model))
    name = cloned or f"{_folder_name(config.model)}_zero_shot"
    facts = {"model": config.model, "weights": _digest(config.model)}
    facts |= {**{name: getattr(config, name) for name in READ_ZERO_SHOT}, **_test_options(x)}
    settings = {"cloned" if cloned else "zero_shot": config.model}
    agent = Tested(name, CLONED if cloned else ZERO_SHOT, output / name, facts, settings, config.env)
    return agent, lambda tests: run_tests(player, params, frozen, tests, _key(x), x.episodes)


def _digest(model: str) -> str:
    """Eight hexadecimal digits of the weights of a model, whose folder may be written again; empty for `embedded`."""
    if model == EMBEDDED:
        return ""
    path, whole = lm.locate(model), hashlib.sha256()
    for file in [path] if path.is_file() else sorted(path.glob("*.safetensors")):
        with file.open("rb") as stream:
            whole.update(hashlib.file_digest(stream, "sha256").digest())
    return whole.hexdigest()[:8]


def _folder_name(model: str) -> str:
    """A model's name in the name of a folder: a folder's with that of the one around it, since many are called `prior`
    or `model`."""
    path = Path(model)
    return f"{path.resolve().parent.name}-{path.name}" if path.is_dir() else path.name


def _clone_of(model: Path) -> str:
    """The name of the run of `llmrl glam clone` that wrote a model; empty for any other model."""
    summary = model.resolve().parent / "summary.json"
    values = configs.read_json(summary) if summary.is_file() else {}
    return summary.parent.name if isinstance(values, dict) and "demonstrations" in values else ""


def _random(config: GlamConfig, output: Path, x: PostTestConfig) -> tuple[Tested, Play]:
    facts, settings = {"num_actions": config.num_actions, **_test_options(x)}, {"random": config.num_actions}
    agent = Tested("random", "Random", output / "random", facts, settings, config.env)
    return agent, lambda tests: run_random(config, tests, _key(x), x.episodes)


def _bot(config: GlamConfig, output: Path, x: PostTestConfig) -> tuple[Tested, Play]:
    """The bot reads no words and is deterministic: tests of the same environment share their episodes, as do both modes
    of acting."""
    cached: dict[str, Outcome] = {}

    def play(tests: Sequence[PostTest]) -> Iterator[Outcome]:
        for test in tests:
            env = world_of(test, config.env)
            if env not in cached:
                plain = PostTest(test.name)
                trial = prepare(make_agent(replace(config, agent="bot", env=env)), plain)
                with doing(test.name):
                    episodes = trial.play((), (), _key(x), x.episodes, {"greedy": True})["greedy"]
                cached[env] = Outcome(plain, env, trial.actions, trial.tasks, dict.fromkeys(MODES, episodes))
            yield replace(cached[env], test=test)

    facts, settings = {"num_actions": config.num_actions, **_test_options(x)}, {"bot": config.num_actions}
    return Tested("bot", "Bot", output / "bot", facts, settings, config.env), play


# --- records ----------------------------------------------------------------------------------------------------------


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
        record |= {**rate.results(f"{prefix}success"), f"{prefix}episodes": float(rate.n)}
    return record


def record_of(outcome: Outcome, paper: Mapping[str, float]) -> dict[str, Any]:
    """The entry of a test in `tests.json`."""
    test = outcome.test
    parts = {"rewrite": test.rewrite, "language": language_of(test, outcome.env), "variant": test.variant}
    record: dict[str, Any] = {"env": outcome.env, **parts}
    if outcome.skipped:
        return {**record, "skipped": outcome.skipped}
    measured = {mode: _measured(episodes, outcome.tasks) for mode, episodes in outcome.episodes.items()}
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

    def is_current(test: PostTest) -> bool:
        record = saved.get(test.name, {})
        expected = {**agent.facts, "env": world_of(test, agent.env)}
        return reuse and all(record.get(name) == value for name, value in expected.items())

    for outcome in play([test for test in tests if not is_current(test)]):
        record = record_of(outcome, paper_row(outcome.test, agent.env, agent.trained_on))
        saved[outcome.test.name] = configs.to_json({**record, **agent.facts})
        path.parent.mkdir(parents=True, exist_ok=True)
        configs.save_config(saved, path)
        write_returns(agent.folder, outcome, zero_shot=agent.kind == ZERO_SHOT)
        text = outcome.skipped or ", ".join(f"{mode} {record[mode]['success']:.3f}" for mode in outcome.episodes)
        report(f"{agent.name}: {outcome.test.name}: {text}", flush=True)
    agent.records = {test.name: saved[test.name] for test in tests}
    reasons = [record.get("skipped", "") for record in agent.records.values()]
    if all(reasons):
        raise ValueError(f"{agent.name} can take none of the tests: {reasons[0]}")


def write_returns(folder: str | Path, outcome: Outcome, *, zero_shot: bool = False) -> list[Path]:
    """Write `test/<env>/return_per_episode/<test>[_<variant>][_<new actions>][_zero_shot].npy`, as the published tests
    do, which have no variants.

    Each holds the returns of the sampled episodes, float64 `[N]`, unscaled; a success is a return above 0. Files of
    greedy episodes, which the published code does not have, end in `_greedy`.

    **Arguments:** `folder`, the run's; `zero_shot`, whether the model has no RL training.
    **Returns:** the files.
    """
    test = outcome.test
    directory = (
        Path(folder) / "test" / published_env(outcome.env, language_of(test, outcome.env)) / "return_per_episode"
    )
    stem = f"{test.rewrite}_{test.variant}" if test.variant else test.rewrite
    if test.actions:
        stem = "_".join([stem, *(name.replace(" ", "_") for name in outcome.actions)])
    written = []
    for mode, episodes in outcome.episodes.items():
        directory.mkdir(parents=True, exist_ok=True)
        ending = ("_zero_shot" if zero_shot else "") + ("_greedy" if mode == "greedy" else "")
        written.append(directory / f"{stem}{ending}.npy")
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(episodes.episode_return, np.float64))
        write_whole(written[-1], buffer.getvalue())
    return written


# --- tables and figure ------------------------------------------------------------------------------------------------


def estimate(group: Sequence[Tested], test: str, mode: str, task: str = "") -> stats.Estimate | None:
    """The success rate of a group: a single agent's with its 99% Wilson interval; for several seeds the mean, with
    Student's 99% interval, clipped to [0, 1]. None without results, or for a task that never occurred.

    The published `test_results.py` takes the normal quantile, 2.58, also for two seeds, for which Student's is 63.7."""
    prefix = f"{task}/" if task else ""
    records = [agent.records[test][mode] for agent in group if mode in agent.records[test]]
    records = [values for values in records if f"{prefix}success" in values]
    if not records:
        return None
    rates = [float(values[f"{prefix}success"]) for values in records]  # nan is a string in JSON
    if len(records) > 1:
        rate = stats.mean_rate(rates, 0.99)
    else:
        rate = stats.estimate_of(records[0], f"{prefix}success", int(records[0][f"{prefix}episodes"]))
    return None if math.isnan(rate.mean) else rate


def _text(interval: stats.Estimate | None) -> str:
    return "-" if interval is None else str(interval)


def tests_table(group: Sequence[Tested]) -> str:
    """Success of a group in every test, compared with the paper; then by task; then the reasons for skipped tests."""
    first = group[0]
    rows = [["success, 99% intervals", *MODES, f"paper ({first.kind})"]]
    notes, tasks = [], []
    for name, record in first.records.items():
        if "skipped" in record:
            notes.append(f"{name} was not played: {record['skipped']}")
            rows.append([name, *("not played" for _ in MODES), "-"])
            continue
        paper = record["paper"].get(first.kind)
        cells = (_text(estimate(group, name, mode)) for mode in MODES)
        rows.append([name, *cells, "-" if paper is None else f"{paper:.2f}"])
        tasks += [task for task in record["tasks"] if len(record["tasks"]) > 1 and task not in tasks]
    lines = [figures.text_table(rows)]
    if tasks:
        played = [name for name, record in first.records.items() if len(record.get("tasks", ())) > 1]
        by_task = ([name, *(_text(estimate(group, name, "sampled", task)) for task in tasks)] for name in played)
        lines += ["", figures.text_table([["sampled, by task", *tasks], *by_task])]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def spread_of(group: Sequence[Tested]) -> str:
    """Success over equivalent prompts, compared with the training prompt."""
    trained, *variants = VARIANT_TESTS
    lines = []
    for mode in MODES:
        estimates = {name: estimate(group, name, mode) for name in VARIANT_TESTS}
        rates = {name: rate.mean for name, rate in estimates.items() if rate is not None}
        played = [name for name in variants if name in rates]
        if trained in rates and played:
            worst = min(played, key=lambda name: rates[name])
            mean = sum(rates[name] for name in played) / len(played)
            lines.append(
                f"{mode}: {rates[trained]:.3f} with the prompt of training; with {len(played)} others {mean:.3f} in "
                f"the mean, {rates[worst]:.3f} at the least ({worst})"
            )
    return "\n".join(lines)


def outcomes(group: Sequence[Tested]) -> dict[str, Any]:
    """The results of a group as `tests_table` prints them: success with its 99% interval by test and way of acting,
    also by task, and the paper's."""
    first = group[0]
    tests: dict[str, Any] = {}
    for name, record in first.records.items():
        if "skipped" in record:
            tests[name] = {"skipped": record["skipped"]}
            continue
        tasks = record["tasks"] if len(record["tasks"]) > 1 else ()
        tests[name] = {mode: estimate(group, name, mode) for mode in MODES}
        tests[name] |= {"tasks": {task: estimate(group, name, "sampled", task) for task in tasks}}
        tests[name] |= {"paper": record["paper"].get(first.kind), "env": record["env"]}
    folders = [agent.folder for agent in group]
    return {"name": runs_compared.label(group), "kind": first.kind, "folders": folders, "tests": tests}


def draw_tests(groups: Sequence[Sequence[Tested]], path: str | Path, labels: Sequence[str] = ()) -> Path:
    """Draw the success of sampled actions in every test, one bar per group with its 99% interval; black lines mark the
    paper's values.

    **Arguments:** `labels`, of the groups; empty: their names. **Returns:** the path of the figure."""
    names = list(groups[0][0].records)
    figure, axis = figures.new_axis(max(6.0, 0.5 * len(names) * (1 + len(groups) / 2)), 4.6)
    width = 0.8 / len(groups)
    marks: list[tuple[float, float]] = []
    for i, group in enumerate(groups):
        positions = np.arange(len(names)) + (i - (len(groups) - 1) / 2) * width
        estimates = [estimate(group, name, "sampled") for name in names]
        points = [(x, e) for x, e in zip(positions, estimates, strict=True) if e is not None]
        means = np.array([e.mean for _, e in points])
        bars = [means - [e.low for _, e in points], [e.high for _, e in points] - means]
        label = labels[i] if labels else runs_compared.label(group)
        axis.bar([x for x, _ in points], means, width * 0.92, color=figures.color(i), label=label)
        axis.errorbar([x for x, _ in points], means, bars, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
        heights = [(x, group[0].records[n].get("paper", {}).get(group[0].kind)) for x, n in zip(positions, names)]
        marks += [(x, height) for x, height in heights if height is not None]
    if marks:
        ends = ([x + side * width / 2 for x, _ in marks] for side in (-1, 1))
        axis.hlines([height for _, height in marks], *ends, "k", label="the same agent in the paper")
    axis.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=8)
    axis.set_ylim(0, 1.02)
    axis.margins(x=0.01)
    axis.set_ylabel("success", color=INK)
    figure.legend(frameon=False, fontsize=8.5, loc="outside upper center", ncols=len(groups) + 1)
    return figures.save(figure, path)
