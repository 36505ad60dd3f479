"""What the experiments with ELLM's agents share: runs of several agents and seeds, their results and their picture."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from finished import complete

from llmrl_jax.core import statistics as stats
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.encoder_weights import resolved
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.ellm.config import EllmConfig, PretrainRun
from llmrl_jax.systems.ellm.eval import evaluate
from llmrl_jax.systems.ellm.train import pretrain


@dataclass(frozen=True)
class Agents:
    """The agents that an experiment compares, and by what."""

    configs: Mapping[str, EllmConfig]
    labels: Mapping[str, str]
    """What each agent is called in pictures."""
    measure: str
    """The number that is compared: a metric `episode_<measure>` of training, and a number of evaluations."""
    axis: str
    """What it is called in pictures."""
    command: str
    """The command of the experiment."""


@dataclass(frozen=True)
class Runs:
    """Seeds and lengths of training."""

    seeds: int
    steps: int
    episodes: int
    out: str


def evaluated(config: PretrainRun) -> dict[str, Any]:
    """The held-out episodes at the end of a run, which is begun, continued, or only read if it has ended.
    **Raises:** what `complete` raises."""
    ellm = replace(config.ellm, encoder=resolved(config.ellm.encoder))  # a run is saved with the one that it has
    folder = complete(replace(config, ellm=ellm), pretrain)
    last = max(folder.glob("eval-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return json.loads(last.read_text())


def learned(agents: Agents, runs: Runs, agent: str, seed: int, chance: bool) -> dict[str, Any]:
    """One run, and what it came to. **Arguments:** `chance`, whether random play is evaluated beside it."""
    folder = Path(runs.out) / f"{agent}-{seed}"
    run = RunConfig(out=runs.out, name=folder.name, seed=seed, log_every=50, checkpoint_every=1000, keep=1)
    config = PretrainRun(ellm=agents.configs[agent], steps=runs.steps, eval_episodes=runs.episodes, run=run)
    found = evaluated(config)
    if "random" not in found and chance:
        found = evaluate(folder, episodes=runs.episodes)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    name = f"episode_{agents.measure}"
    points = [(line["steps"], line[name]) for line in lines if line["kind"] == "train" and line["episodes"]]
    return {"eval": {name: found[name] for name in ("agent", "random") if name in found}, "curve": points}


def smoothed(runs: list[dict[str, Any]], bins: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and the curve `[seeds, bins]`: means over equal parts of a run."""
    last = max(run["curve"][-1][0] for run in runs)
    edges = np.linspace(0, last, bins + 1)
    rows = []
    for run in runs:
        steps, values = np.array(run["curve"], float).T
        place = np.clip(np.digitize(steps, edges) - 1, 0, bins - 1)
        rows.append([values[place == i].mean() if np.any(place == i) else np.nan for i in range(bins)])
    return (edges[:-1] + edges[1:]) / 2, np.array(rows)


def draw(agents: Agents, found: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """The curves of every agent, with the range of its seeds."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for agent, runs in found.items():
        steps, values = smoothed(runs)
        there = ~np.all(np.isnan(values), axis=0)  # long episodes end in few of the parts
        steps, values = steps[there], values[:, there]
        label = f"{agents.labels.get(agent, agent)}, {len(runs)} seed{'s' if len(runs) > 1 else ''}"
        (line,) = axes.plot(steps, np.nanmean(values, axis=0), label=label)
        axes.fill_between(
            steps, np.nanmin(values, axis=0), np.nanmax(values, axis=0), color=line.get_color(), alpha=0.2
        )
    axes.set(xlabel="environment steps", ylabel=agents.axis, ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def compare(agents: Agents, names: tuple[str, ...], runs: Runs) -> None:
    """Let every named agent learn with every seed, write `results.json` and `curves.png` after each, and print the
    numbers. **Raises:** `ValueError` for an unknown agent."""
    unknown = [name for name in names if name not in agents.configs]
    if unknown:
        raise ValueError(f"there is no agent {unknown[0]!r}; there are {', '.join(agents.configs)}")
    found: dict[str, list[dict[str, Any]]] = {}
    out = Path(runs.out)
    for seed in range(runs.seeds):
        for agent in names:
            chance = seed == 0 and agent == names[0]
            found.setdefault(agent, []).append(learned(agents, runs, agent, seed, chance))
            results = {
                "command": agents.command,
                "date": datetime.date.today().isoformat(),
                "steps": runs.steps,
                "machine": info.stamp("experiments"),
                "agents": found,
                "mean": {
                    name: stats.mean_interval([run["eval"]["agent"][agents.measure] for run in several])._asdict()
                    for name, several in found.items()
                    if len(several) > 1
                },
            }
            write_whole(out / "results.json", json.dumps(results, indent=1) + "\n")
            draw(agents, found, out / "curves.png")
    for agent, several in found.items():
        values = [run["eval"]["agent"][agents.measure] for run in several]
        print(f"{agents.labels.get(agent, agent):26} {' '.join(f'{value:.2f}' for value in values)}")
