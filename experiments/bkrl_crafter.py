"""BK-RL in Crafter: PPO that is asked for a drink, with a program as its potential and without.

    python experiments/bkrl_crafter.py                     # scripted adviser, two seeds
    python experiments/bkrl_crafter.py --algs none random --seeds 3

Episodes are collected once in Crafter-Text-Reward; programs are asked about these, and PPO learns in
Crafter-Text-CollectDrink, with the hyper-parameters of the preset `crafter`. Runs are written to `<out>`; those that
exist are continued, or read if they are finished, so it can be stopped at any time. `<out>/results-<chat>.json` has the
curves and `<out>/curves-<chat>.png` their picture.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from bkrl_red_ball import draw, steps_to
from commands import command
from finished import complete, continued, finished

from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.bkrl.collect import collect
from llmrl_jax.systems.bkrl.config import COLLECT_ENVS, CodeRun, CollectRun, TrainRun, WindowConfig, preset
from llmrl_jax.systems.bkrl.programs import write_programs
from llmrl_jax.systems.bkrl.train import train


@dataclass(frozen=True)
class Experiment:
    """A program as a potential in Crafter, and controls."""

    algs: tuple[Literal["bk-code", "none", "random"], ...] = ("bk-code", "none")
    """Agents: with the program, without a potential, with a random network as potential."""
    chat: str = "scripted"
    """Who writes the programs: a name of `--chat.model`."""
    seeds: int = 2
    """Number of seeds per agent, from 0."""
    rounds: int = 1
    """Rounds of four programs each."""
    steps: int = 300_000
    """Environment steps of each run."""
    collected: int = 100_000
    """Environment steps of the agent whose episodes are shown."""
    episodes: int = 100
    """Held-out episodes per agent and seed."""
    out: str = "runs/bkrl_crafter"
    """Folder of the runs and of the results."""


def episodes(x: Experiment) -> Path:
    """The folder of the collected episodes, which are played if they are not there."""
    run = RunConfig(out=x.out, name="episodes", log_every=5, checkpoint_every=50, eval_every=12)
    return complete(CollectRun(agent=preset("crafter", collects=True), steps=x.collected, run=run), collect)


def who(x: Experiment) -> str:
    """The name of the adviser, as a part of file names."""
    return x.chat.replace(":", "-").replace("/", "-")


def program(x: Experiment) -> Path:
    """The folder of the program, which is written if it is not there."""
    run = BaseRunConfig(out=x.out, name=f"bk-code-{who(x)}")
    windows = WindowConfig(data=str(episodes(x)), env=COLLECT_ENVS["crafter"])
    config = CodeRun(windows=windows, rounds=x.rounds, run=run)
    config = replace(config, chat=replace(config.chat, model=x.chat))
    if not (finished(run.folder, config) and (run.folder / "potential.json").exists()):
        write_programs(continued(config))
    return run.folder


def learned(x: Experiment, alg: Literal["bk-code", "none", "random"], seed: int) -> dict[str, Any]:
    """One run: its curve, its held-out episodes, the steps until it was good, and its seconds of training."""
    name = f"learn-{alg}-{who(x)}-{seed}" if alg == "bk-code" else f"learn-{alg}-{seed}"
    run = RunConfig(out=x.out, name=name, seed=seed, log_every=2, checkpoint_every=20, keep=1)
    config = TrainRun(agent=preset("crafter"), steps=x.steps, eval_episodes=x.episodes, run=run)
    sources = {"bk-code": ("potential", program), "random": ("data", episodes)}
    options = {sources[alg][0]: str(sources[alg][1](x))} if alg in sources else {}
    folder = complete(replace(config, alg=alg, **options), train)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["kind"] == "train" and line["episodes"]]
    curve = [(line["steps"], line["success"], line["episodes"]) for line in lines]
    evals = sorted(folder.glob("eval-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return {
        "steps_to": steps_to(curve),
        "train_seconds": lines[-1]["seconds"],
        "eval": json.loads(evals[-1].read_text())["agent"],
        "curve": [(n, round(rate, 4)) for n, rate, _ in curve],
        "length": [(line["steps"], round(line["episode_length"], 1)) for line in lines],
    }


def main() -> None:
    x = parse(Experiment, description=__doc__)
    out = Path(x.out)
    found: dict[str, list[dict[str, Any]]] = {}
    asked = json.loads((program(x) / "summary.json").read_text()) if "bk-code" in x.algs else {}

    def write() -> None:
        results = {
            "command": command(Path(__file__).name, x),
            "date": datetime.date.today().isoformat(),
            "machine": info.stamp("experiments"),
            "advice": asked,
            "agents": found,
        }
        write_whole(out / f"results-{who(x)}.json", json.dumps(results, indent=1) + "\n")

    for seed in range(x.seeds):
        for alg in x.algs:
            found.setdefault(alg, []).append(learned(x, alg, seed))
            write()
            draw(found, out / f"curves-{who(x)}.png")
    for alg, runs in found.items():
        print(f"{alg:10} steps to 80%: {' '.join(str(run['steps_to']) for run in runs)}")


if __name__ == "__main__":
    main()
