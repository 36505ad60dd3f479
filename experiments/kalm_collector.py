"""A collector of CLEVR-Robot made by reinforcement learning: PPO learns level `real` from balls and goals, and plays.

    python experiments/kalm_collector.py

`llmrl rl train` with PPO in `CLEVR-Robot-v0?level=real&obs=goal`, and `llmrl kalm collect --agent` with its policy,
without noise and with that of the expert. Runs are written to `<out>`, and those that exist are read or continued;
`<out>/collector.json` has the table.
"""

from __future__ import annotations

import datetime
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import command
from finished import complete

from llmrl_jax.core.files import write_whole
from llmrl_jax.core.statistics import wilson
from llmrl_jax.options.command import parse
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.ppo import PPOConfig
from llmrl_jax.run import info
from llmrl_jax.run.config import BaseRunConfig, RunConfig
from llmrl_jax.systems.kalm.collect import collect
from llmrl_jax.systems.kalm.config import CollectRun
from llmrl_jax.workflows.rl_training import settings_class, train


WORLD = "CLEVR-Robot-v0?level=real&obs=goal"


@dataclass(frozen=True)
class Experiment:
    """PPO as the collector of CLEVR-Robot."""

    steps: int = 4_000_000
    """Macro-actions of PPO."""
    learning_rate: float = 1e-3
    """Its step size, which falls to zero."""
    evaluated: int = 1024
    """Held-out episodes at the end."""
    episodes: int = 1024
    """Episodes that are collected, for each share of random actions."""
    noise: tuple[float, ...] = (0.0, 0.2)
    """Shares of random actions."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/kalm_collector"
    """Folder of the runs and of the results."""


def ppo(x: Experiment) -> PPOConfig:
    """Rewards are as large as 100, so the value loss counts little, and a value may change as far as it likes."""
    sizes = {"num_envs": 64, "num_steps": 64, "epochs": 4, "minibatches": 8}
    return PPOConfig(
        **sizes,  # type: ignore[arg-type]
        learning_rate=x.learning_rate,
        schedule="linear",
        schedule_updates=-(-x.steps // (sizes["num_envs"] * sizes["num_steps"])),
        value_clip=math.inf,
        value_loss_coef=1e-3,
    )


def trained(x: Experiment) -> Path:
    """The folder of the agent."""
    run = RunConfig(out=x.out, name=f"ppo-{x.seed}", seed=x.seed, log_every=20, checkpoint_every=100, keep=1)
    make: Any = settings_class("ppo")
    network = NetworkConfig(hidden=(256, 256))
    config = make(env=WORLD, steps=x.steps, eval_episodes=x.evaluated, network=network, ppo=ppo(x), run=run)
    return complete(config, train)


def collected(x: Experiment, agent: Path, noise: float) -> dict[str, Any]:
    """Summary by `llmrl kalm collect` of the agent's episodes."""
    run = BaseRunConfig(out=x.out, name=f"recorded-{noise:g}-{x.seed}", seed=x.seed)
    folder = complete(CollectRun(agent=str(agent), episodes=x.episodes, noise=noise, run=run), collect)
    found = json.loads((folder / "summary.json").read_text())
    rate = wilson(round(found["success"] * x.episodes), x.episodes)
    return {
        "noise": noise,
        "episodes": x.episodes,
        "steps": found["steps"],
        "mean": rate.mean,
        "low": rate.low,
        "high": rate.high,
    }


def main() -> None:
    x = parse(Experiment, description=__doc__)
    agent = trained(x)
    results = {
        "command": command("kalm_collector.py", x),
        "date": datetime.date.today().isoformat(),
        "machine": info.stamp("experiments"),
        "agent": json.loads((agent / "summary.json").read_text()),
        "collected": [collected(x, agent, noise) for noise in x.noise],
    }
    write_whole(Path(x.out) / "collector.json", json.dumps(results, indent=1) + "\n")
    for row in results["collected"]:
        print(f"noise {row['noise']:g}: success {row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]")


if __name__ == "__main__":
    main()
