"""BK-RL: steps until PPO reaches the red ball in 80% of its episodes, with potentials and without.

    python experiments/bkrl_red_ball.py                                       # scripted advisers, three seeds
    python experiments/bkrl_red_ball.py --chat local:smollm2-135m --algs bk-code bk-pref bk-goal

Episodes are collected once in GoToLocal-Pretraining-S20; programs, preferences and goals are asked about these, and
PPO learns in GoToLocal-RedBall-S20. All agents have the hyper-parameters of the preset `babyai`. Runs are written to
`<out>`; those that exist are continued, or read if they are finished, so it can be stopped at any time.
`<out>/results-<chat>.json` has the curves and `<out>/curves-<chat>.png` their picture.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from commands import command
from finished import complete, continued, same_settings

from llmrl_jax.core import statistics as stats
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.encoder_weights import AUTO, resolved
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.bkrl.collect import collect
from llmrl_jax.systems.bkrl.config import CodeRun, CollectRun, GoalsRun, PreferRun, TrainRun, WindowConfig, preset
from llmrl_jax.systems.bkrl.goals import propose
from llmrl_jax.systems.bkrl.preferences import prefer
from llmrl_jax.systems.bkrl.programs import write_programs
from llmrl_jax.systems.bkrl.train import train


NAMES = {
    "bk-code": "BK-Code",
    "bk-pref": "BK-Pref",
    "bk-goal": "BK-Goal",
    "none": "PPO",
    "heavy": "PPO, reward x 10",
    "rnd": "PPO with RND",
    "random": "random potential",
}
REACHED, EPISODES = 0.8, 100
"""The share of episodes, and over how many of the last ones it is taken."""


@dataclass(frozen=True)
class Experiment:
    """BK-RL's potentials and controls in a room of 20 x 20."""

    algs: tuple[str, ...] = tuple(NAMES)
    """Any of `bk-code`, `bk-pref`, `bk-goal`, `none`, `heavy` (the world's reward ten times, the published weight),
    `rnd`, `random`."""
    chat: str = "scripted"
    """Who is asked: a name of `--chat.model`."""
    pairs: int = 1000
    """Pairs that are compared."""
    answers: Literal["written", "chosen"] = "written"
    """How they are compared, as in `llmrl bkrl prefer`; `chosen` for small models."""
    situations: int = 500
    """Windows for which goals are proposed."""
    max_calls: int = 0
    """Requests for each potential, after which it is made of what was said; 0: no limit."""
    window: int = 8
    """Actions of a window."""
    seeds: int = 3
    """Number of seeds per agent, from 0."""
    steps: int = 400_000
    """Environment steps of each run."""
    collected: int = 200_000
    """Environment steps of the agent whose episodes are shown."""
    episodes: int = 100
    """Held-out episodes per agent and seed."""
    out: str = "runs/bkrl_red_ball"
    """Folder of the runs and of the results."""


def who(x: Experiment) -> str:
    """Name of the adviser, as a part of file names."""
    return x.chat.replace(":", "-").replace("/", "-")


def episodes(x: Experiment) -> Path:
    """The folder of the collected episodes, which are played if they are not there."""
    run = RunConfig(out=x.out, name="episodes", log_every=10, checkpoint_every=100, eval_every=50)
    return complete(CollectRun(agent=preset("babyai", collects=True), steps=x.collected, run=run), collect)


def advice_of(x: Experiment, alg: str) -> dict[str, Any]:
    """The summary of a potential, which is made if it is not there; `nothing` says why it cannot be."""
    run = BaseRunConfig(out=x.out, name=f"{alg}-{who(x)}")
    windows = WindowConfig(data=str(episodes(x)), window=x.window)
    config: Any
    if alg == "bk-code":
        make, config = write_programs, CodeRun(windows=windows, run=run)
    elif alg == "bk-pref":
        make, config = prefer, PreferRun(windows=windows, pairs=x.pairs, run=run)
    else:
        windows = replace(windows, window=GoalsRun().windows.window)
        make, config = propose, GoalsRun(windows=windows, situations=x.situations, encoder=resolved(AUTO), run=run)
    config = replace(config, chat=replace(config.chat, model=x.chat, max_calls=x.max_calls))
    if alg == "bk-pref":
        config = replace(config, answers=x.answers)
    summary, potential = run.folder / "summary.json", run.folder / "potential.json"
    begun = same_settings(run.folder / "config.json", config)
    if not (begun and summary.exists() and potential.exists()):  # one of a budget that ended is whole
        try:
            make(continued(config))
        except ValueError as error:  # nothing to learn from, which is a result too
            if not summary.exists():
                raise
            return {"nothing": str(error)}
    return json.loads(summary.read_text())


def learned(x: Experiment, alg: str, seed: int) -> dict[str, Any]:
    """One run: its curve, its held-out episodes, and the steps until it was good."""
    made = alg.startswith("bk-")
    name = f"learn-{alg}-{who(x)}-{seed}" if made else f"learn-{alg}-{seed}"
    run = RunConfig(out=x.out, name=name, seed=seed, log_every=4, checkpoint_every=100, keep=1)
    config = TrainRun(agent=preset("babyai"), steps=x.steps, eval_episodes=x.episodes, run=run)
    if alg == "heavy":
        config = replace(config, shaping=replace(config.shaping, extrinsic_coef=10.0))
    else:
        source = {"potential": str(Path(x.out) / f"{alg}-{who(x)}")} if made else {}
        source |= {"data": str(episodes(x))} if alg == "random" else {}
        config = replace(config, alg=alg, **source)  # type: ignore[arg-type]
    folder = complete(config, train)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["kind"] == "train" and line["episodes"]]
    curve = [(line["steps"], line["success"], line["episodes"]) for line in lines]
    evals = sorted(folder.glob("eval-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    found = json.loads(evals[-1].read_text())["agent"]
    return {"steps_to": steps_to(curve), "eval": found, "curve": [(n, round(rate, 4)) for n, rate, _ in curve]}


def steps_to(curve: list[tuple[int, float, float]]) -> int | None:
    """The first steps at which `REACHED` of the last `EPISODES` episodes or a few more succeeded; None: never."""
    for i in range(len(curve)):
        count = total = 0.0
        for _, rate, episodes in reversed(curve[: i + 1]):
            count, total = count + episodes, total + rate * episodes
            if count >= EPISODES:
                break
        if count >= EPISODES and total >= REACHED * count:
            return curve[i][0]
    return None


def draw(found: dict[str, list[dict[str, Any]]], file: Path, bins: int = 32) -> None:
    """Success while learning, with the range of the seeds."""
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for alg, runs in found.items():
        last = max(run["curve"][-1][0] for run in runs)
        edges, rows = np.linspace(0, last, bins + 1), []
        for run in runs:
            steps, rate = np.array(run["curve"], float).T
            place = np.clip(np.digitize(steps, edges, right=True) - 1, 0, bins - 1)
            rows.append([rate[place == i].mean() if np.any(place == i) else np.nan for i in range(bins)])
        label = f"{NAMES.get(alg, alg)}, {len(runs)} seed{'s' if len(runs) > 1 else ''}"
        (line,) = axes.plot(edges[1:], np.nanmean(rows, axis=0), label=label)
        axes.fill_between(
            edges[1:], np.nanmin(rows, axis=0), np.nanmax(rows, axis=0), color=line.get_color(), alpha=0.15
        )
    axes.axhline(REACHED, color="grey", lw=0.8, ls=":")
    axes.set(xlabel="environment steps", ylabel="success while learning", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def main() -> None:
    x = parse(Experiment, description=__doc__)
    unknown = [alg for alg in x.algs if alg not in NAMES]
    if unknown:
        raise ValueError(f"there is no agent {unknown[0]!r}; there are {', '.join(NAMES)}")
    out = Path(x.out)
    found: dict[str, list[dict[str, Any]]] = {}
    advice: dict[str, Any] = {}
    for alg in x.algs:
        if alg.startswith("bk-"):
            advice[alg] = advice_of(x, alg)

    def write() -> None:
        results = {
            "command": command(Path(__file__).name, x),
            "date": datetime.date.today().isoformat(),
            "steps": x.steps,
            "machine": info.stamp("experiments"),
            "mean_steps_to": {
                name: stats.mean_interval([run["steps_to"] for run in runs])._asdict()
                for name, runs in found.items()
                if len(runs) > 1 and all(run["steps_to"] for run in runs)
            },
            "advice": advice,
            "agents": found,
        }
        write_whole(out / f"results-{who(x)}.json", json.dumps(results, indent=1) + "\n")

    write()
    for seed in range(x.seeds):
        for alg in x.algs:
            if "nothing" in advice.get(alg, ()):
                continue
            found.setdefault(alg, []).append(learned(x, alg, seed))
            write()
            draw(found, out / f"curves-{who(x)}.png")
    for alg, said in advice.items():
        if "nothing" in said:
            print(f"{NAMES[alg]:20} nothing to learn from: {said['nothing']}")
    for alg, runs in found.items():
        print(f"{NAMES[alg]:20} {' '.join(str(run['steps_to']) for run in runs)}")


if __name__ == "__main__":
    main()
