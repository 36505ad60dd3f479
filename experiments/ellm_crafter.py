"""ELLM in Crafter with 139 actions: the oracle's goals beside novelty bonuses, other goals, and no goals at all.

    python experiments/ellm_crafter.py                                   # every agent, three seeds
    python experiments/ellm_crafter.py --agents embedded rnd --seeds 1   # some of them

Every agent is a preset of `llmrl ellm pretrain`; none sees the world's own reward but `extrinsic`. Runs are written to
`<out>/<agent>-<seed>`; those that exist are continued, or read if they are finished, so it can be stopped at
any time. `<out>/results.json` has the curves, the held-out episodes of the trained agents and those of random play,
and `<out>/curves.png` their picture.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from llmrl_jax.core.files import write_whole
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.flags import parse
from llmrl_jax.run.report import statistics as stats
from llmrl_jax.systems.ellm.evaluating import evaluate
from llmrl_jax.systems.ellm.presets import PRESETS
from llmrl_jax.systems.ellm.settings import PretrainRun
from llmrl_jax.systems.ellm.training import pretrain


NAMES = {
    "embedded": "oracle's goals",
    "novelty": "all actions as goals",
    "uniform": "random goals",
    "extrinsic": "Crafter's reward",
    "rnd": "RND",
    "noveld": "NovelD",
    "apt": "APT",
}


@dataclass(frozen=True)
class Experiment:
    """ELLM's agents and baselines."""

    agents: tuple[str, ...] = tuple(NAMES)
    """Presets of `llmrl ellm pretrain`."""
    seeds: int = 3
    """Number of seeds per agent, from 0."""
    steps: int = 1_000_000
    """Environment steps of each run."""
    episodes: int = 100
    """Held-out episodes per agent and seed."""
    out: str = "runs/ellm_crafter"
    """Folder of the runs and of the results."""


def learned(x: Experiment, agent: str, seed: int) -> dict[str, Any]:
    """One run, and what it came to."""
    folder = Path(x.out) / f"{agent}-{seed}"
    done = sorted(folder.glob("eval-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    if not done:
        run = RunConfig(out=x.out, name=folder.name, seed=seed, log_every=50, checkpoint_every=1000, keep=1)
        run = replace(run, resume=(folder / "config.json").exists())
        pretrain(PretrainRun(ellm=PRESETS[agent], steps=x.steps, eval_episodes=x.episodes, run=run))
        done = sorted(folder.glob("eval-*.json"))
    found = json.loads(done[-1].read_text())
    if "random" not in found and seed == 0 and agent == x.agents[0]:
        found = evaluate(folder, episodes=x.episodes)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    points = [
        (line["steps"], line["episode_achievements"]) for line in lines if line["kind"] == "train" and line["episodes"]
    ]
    return {"eval": {name: found[name] for name in ("agent", "random") if name in found}, "curve": points}


def smoothed(runs: list[dict[str, Any]], bins: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Steps, and achievements per episode `[seeds, bins]`: means over equal parts of a run."""
    last = max(run["curve"][-1][0] for run in runs)
    edges = np.linspace(0, last, bins + 1)
    rows = []
    for run in runs:
        steps, values = np.array(run["curve"], float).T
        place = np.clip(np.digitize(steps, edges) - 1, 0, bins - 1)
        rows.append([values[place == i].mean() if np.any(place == i) else np.nan for i in range(bins)])
    return (edges[:-1] + edges[1:]) / 2, np.array(rows)


def draw(found: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """The curves of every agent, with the range of its seeds."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for agent, runs in found.items():
        steps, values = smoothed(runs)
        label = f"{NAMES.get(agent, agent)}, {len(runs)} seed{'s' if len(runs) > 1 else ''}"
        (line,) = axes.plot(steps, np.nanmean(values, axis=0), label=label)
        axes.fill_between(
            steps, np.nanmin(values, axis=0), np.nanmax(values, axis=0), color=line.get_color(), alpha=0.2
        )
    axes.set(xlabel="environment steps", ylabel="achievements per episode", ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def main() -> None:
    x = parse(Experiment, description=__doc__)
    found: dict[str, list[dict[str, Any]]] = {}
    out = Path(x.out)
    for seed in range(x.seeds):
        for agent in x.agents:
            found.setdefault(agent, []).append(learned(x, agent, seed))
            results = {
                "command": "python experiments/ellm_crafter.py",
                "date": datetime.date.today().isoformat(),
                "steps": x.steps,
                "machine": {**info.versions(), "device": info.device()},
                "agents": found,
                "mean": {
                    name: stats.mean_interval([run["eval"]["agent"]["achievements"] for run in runs])._asdict()
                    for name, runs in found.items()
                    if len(runs) > 1
                },
            }
            write_whole(out / "results.json", json.dumps(results, indent=1) + "\n")
            draw(found, out / "curves.png")
    for agent, runs in found.items():
        values = [run["eval"]["agent"]["achievements"] for run in runs]
        print(f"{NAMES.get(agent, agent):22} {' '.join(f'{value:.2f}' for value in values)}")


if __name__ == "__main__":
    main()
