"""What the experiments with KALM share: runs of all commands, with imagined episodes and without, and their table.

Episodes are recorded once. A language model is grounded in them and imagines episodes for each level that no data show;
agents learn from the recorded episodes alone, and half and half with the imagined ones of one level. Every agent is
tested on all levels; so are the language model as a policy and a decision transformer. Runs are written to `<out>`,
and those that exist are read or continued, so that it can be stopped at any time. `<out>/results-<model>.json` has the
table.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from commands import command
from finished import complete

from envs_jax.clevr import rules
from llmrl_jax.core import statistics as stats
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.parquet import write_parquet
from llmrl_jax.lm.encoder_weights import AUTO, resolved
from llmrl_jax.lm.small import EMBEDDED
from llmrl_jax.run import info
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.kalm.collect import EPISODES, METADATA, collect, read_episodes
from llmrl_jax.systems.kalm.config import CollectRun, GroundRun, ImagineRun, settings_class
from llmrl_jax.systems.kalm.eval import key_of, play_random, rates, test_run
from llmrl_jax.systems.kalm.ground import ground
from llmrl_jax.systems.kalm.imagine import Imagined, as_episodes, chosen_goals, imagine_run, starts
from llmrl_jax.systems.kalm.prompts import PATTERNS
from llmrl_jax.systems.kalm.train import train
from llmrl_jax.systems.kalm.worlds import IMAGINED, LEVELS, level_of, world_of


REAL_ONLY = "none"


@dataclass(frozen=True)
class Experiment:
    """Agents with and without imagined episodes."""

    SCRIPT: ClassVar[str] = ""
    """The file that makes it."""
    WORLD: ClassVar[str] = ""
    """The world, as in `llmrl kalm collect`."""

    model: str = EMBEDDED
    """The language model, as in `llmrl kalm ground`."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Its weights: its own, or random ones of its shape."""
    tune: Literal["full", "lora"] = "full"
    """What is trained of it."""
    dtype: Literal["float32", "mixed"] = "float32"
    """Its compute dtype, as in `llmrl kalm ground`."""
    learning_rate: float = 1e-3
    """Of grounding."""
    epochs: float = 10.0
    """Passes of grounding."""
    rows: int = 8
    """Rows of a batch of grounding."""
    patterns: tuple[str, ...] = PATTERNS
    """Objectives of grounding."""
    decision_epochs: float = 10.0
    """Passes of the decision transformer over `episodes`; 0: none."""
    episodes: int = 6400
    """Recorded episodes, from which agents learn."""
    episodes_grounded: int = 0
    """Recorded episodes in which the language model is grounded; 0: the same."""
    imagined: tuple[int, ...] = (5600, 5600, 1680)
    """Imagined episodes of `rephrase`, `easy` and `hard`."""
    together: int = 64
    """Episodes that are imagined at the same time."""
    imagined_by: Literal["model", "random"] = "model"
    """Source of the actions of imagined episodes: the grounded model; or `random`, uniform actions without a language
    model, a control for successes at `easy`, whose rules judge the action alone."""
    agents: tuple[str, ...] = ("bc",)
    """Offline algorithms."""
    kept: tuple[Literal["all", "successes"], ...] = ("all",)
    """The imagined episodes of a level that agents learn from: all of them, or those that reach their goal; with both,
    agents of each."""
    levels: tuple[str, ...] = IMAGINED
    """Levels whose imagined episodes agents learn from."""
    steps: int = 50_000
    """Gradient steps of an agent."""
    batch_size: int = 100
    """Steps of a batch."""
    encoder: str = AUTO
    """Sentence encoder of the instructions."""
    seeds: int = 3
    """Seeds of each agent, from 0; 0: none, only the language model is made and tested."""
    tests: int = 300
    """Test episodes of each level."""
    out: str = "runs/kalm"
    """Folder of the runs and of the results."""

    def __post_init__(self):
        for level in self.levels:
            level_of(level, IMAGINED)
        if len(self.imagined) != len(IMAGINED):
            raise ValueError(
                f"imagined has {len(self.imagined)} numbers; one for each of {', '.join(IMAGINED)} is needed"
            )
        control = ("clevr", ("easy",), ("successes",))
        if self.imagined_by == "random" and (self.WORLD, self.levels, self.kept) != control:
            raise ValueError(
                "imagined_by random has no states after an action, so it is for CLEVR-Robot's level of one step: add "
                "--levels easy --kept successes"
            )


def who(x: Experiment) -> str:
    """The language model, as a part of names."""
    if x.imagined_by == "random":
        return "random-actions"
    return x.model.replace("/", "-") + ("-random" if x.init == "random" else "")


def recorded(x: Experiment, episodes: int) -> str:
    """The folder of recorded episodes, which are made if they are not there."""
    run = BaseRunConfig(out=x.out, name=f"recorded-{episodes}")
    return str(complete(CollectRun(world=x.WORLD, episodes=episodes, run=run), collect))


def grounded(x: Experiment, *, returns: bool = False) -> Path:
    """The folder of the grounded model; with `returns` that of the decision transformer, a small model."""
    name = "decision-transformer" if returns else f"grounded-{who(x)}"
    run = RunConfig(out=x.out, name=name, log_every=20, checkpoint_every=100)
    config = GroundRun(data=recorded(x, x.episodes if returns else x.episodes_grounded or x.episodes), run=run)
    config = replace(config, epochs=x.decision_epochs if returns else x.epochs)
    if returns:
        config = replace(config, returns=True, patterns=("rollout",), weights=replace(config.weights, state=0.0))
    else:
        sft = replace(config.sft, learning_rate=x.learning_rate, batch_size=x.rows)
        how: Any = {"model": x.model, "init": x.init, "dtype": x.dtype, "tune": x.tune, "patterns": x.patterns}
        config = replace(config, sft=sft, **how)
    return complete(config, ground)


def imagined(x: Experiment, level: str) -> str:
    """The folder of imagined episodes of a level."""
    folder = Path(x.out) / f"imagined-{who(x)}-{level}"
    count = x.imagined[IMAGINED.index(level)]
    data, run = recorded(x, x.episodes), BaseRunConfig(out=x.out, name=folder.name)
    if x.imagined_by == "random":
        if not (folder / "summary.json").exists():
            random_actions(folder, data, level, count)
        return str(folder)
    config = ImagineRun(grounded=str(grounded(x)), data=data, level=level, episodes=count, together=x.together, run=run)
    return str(complete(config, imagine_run))


def random_actions(folder: Path, data: str, level: str, count: int) -> None:
    """Write episodes of one uniformly random action each, in the form of imagined ones. **Arguments:** `data`, the
    folder of recorded episodes, from whose first states they start. Next states equal first ones: neither the level's
    rules nor behaviour cloning reads them."""
    world, _, episodes = read_episodes(data)
    rng = np.random.default_rng(0)
    numbers = chosen_goals(world, level, count, rng)
    goals, first = world.instructions.goals[numbers], starts(world, level, numbers, episodes, rng)
    env = world.make(level)
    actions = rng.integers(env.action_space(env.default_params).n, size=(count, 1)).astype(np.int32)
    weights = rules.weights_of(level)
    reward, success = map(np.asarray, rules.label(goals, first, first, actions[:, 0], weights))
    states = np.repeat(first[:, None], 2, axis=1)
    made = Imagined(states, actions, reward[:, None].astype(np.float32), np.ones(count, np.int32), success)
    folder.mkdir(parents=True, exist_ok=True)
    write_parquet(folder / EPISODES, as_episodes(made, goals, numbers))
    write_whole(folder / METADATA, json.dumps({"world": world.name, "level": level, "imagined": True}) + "\n")
    counts = {"episodes": count, "successes": int(success.sum()), "success": float(success.mean())}
    write_whole(folder / "summary.json", json.dumps(counts) + "\n")


def tested(folder: Path, x: Experiment, seed: int = 0) -> dict[str, Any]:
    """The test of a grounded model as a policy."""
    file = folder / "test.json"
    previous = json.loads(file.read_text()) if file.exists() else {}
    if (previous.get("episodes"), previous.get("seed")) != (x.tests, seed):
        test_run(folder, episodes=x.tests, seed=seed)
    return json.loads(file.read_text())


def learned(x: Experiment, agent: str, level: str, kept: str, seed: int) -> dict[str, Any]:
    """The test of an agent. **Arguments:** `level`, of the imagined episodes, or `none`; `kept`, which of them."""
    made = REAL_ONLY if level == REAL_ONLY else f"{who(x)}-{level}" + ("-successes" if kept == "successes" else "")
    name = f"{agent}-{made}-{seed}"
    run = RunConfig(out=x.out, name=name, seed=seed, log_every=20, checkpoint_every=200, keep=1)
    more = {} if level == REAL_ONLY else {"imagined": imagined(x, level), "successes": kept == "successes"}
    config: Any = settings_class(agent)(
        data=recorded(x, x.episodes), encoder=x.encoder, steps=x.steps, eval_episodes=x.tests, run=run, **more
    )
    config = replace(config, **{agent: replace(getattr(config, agent), batch_size=x.batch_size)})
    return json.loads(next(complete(config, train).glob("eval-*.json")).read_text())


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Success by level: every seed's, and over several the mean with Student's 95% interval; with one, Wilson's."""
    found: dict[str, Any] = {}
    for level in LEVELS:
        rates = [run[level] for run in runs]
        if len(runs) > 1:
            interval = stats.mean_rate(rates)
            found[level] = {"mean": interval.mean, "low": interval.low, "high": interval.high, "seeds": rates}
        else:
            found[level] = {"mean": rates[0], "low": runs[0][f"{level}_low"], "high": runs[0][f"{level}_high"]}
    return found


def run(x: Experiment) -> None:
    """Make what is not there yet, write the table, and print it."""
    x = replace(x, encoder=resolved(x.encoder))
    out = Path(x.out)
    by_model = x.imagined_by == "model"
    found: dict[str, list[dict[str, Any]]] = {}
    imaginations: dict[str, Any] = {}

    def write() -> None:
        results = {
            "command": command(x.SCRIPT, x),
            "date": datetime.date.today().isoformat(),
            "machine": info.stamp("experiments"),
            "encoder": x.encoder,
            **({"grounded": json.loads((grounded(x) / "summary.json").read_text())} if by_model else {}),
            "imagined": imaginations,
            "success": {name: summary(runs) for name, runs in found.items()},
        }
        write_whole(out / f"results-{who(x)}.json", json.dumps(results, indent=1) + "\n")

    for level in x.levels:
        imaginations[level] = json.loads((Path(imagined(x, level)) / "summary.json").read_text())
    found["random actions"] = [rates(play_random(world_of(x.WORLD), LEVELS, x.tests, key_of(0)))]
    if by_model:
        found["language model as policy"] = [tested(grounded(x), x)]
    write()
    sources = [(REAL_ONLY, "all")] if by_model else []
    sources += itertools.product(x.levels, x.kept)
    for seed in range(x.seeds):
        for agent in x.agents:
            for level, kept in sources:
                name = agent if level == REAL_ONLY else f"{agent}, imagined {level}"
                name += "" if by_model else " by random actions"
                name += ", successes" if kept == "successes" else ""
                found.setdefault(name, []).append(learned(x, agent, level, kept, seed))
                write()
    if x.decision_epochs:
        found["decision transformer"] = [tested(grounded(x, returns=True), x)]
        write()
    for name, runs in found.items():
        means = ", ".join(f"{level} {np.mean([run[level] for run in runs]):.3f}" for level in LEVELS)
        print(f"{name:32} {means}")
