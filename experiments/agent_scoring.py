"""PPO over turns that are written, beside PPO over actions that are scored: environment steps to a success of 0.8.

    python experiments/agent_demo.py --algo turn_ppo --seeds 0 1 2
    python experiments/agent_scoring.py

Both play the demo of agents that write: its environment, three actions, 24 turns, 40 updates of about 700 turns, and a
small Llama of the same size that imitated an expert as noisy. `turn_ppo` writes a thought, which imitation taught it
with the expert's plan, and an action; GLAM's PPO scores the three actions. Each has the settings of its own demo:
imitation (6,000 episodes, and 60 gradient steps on 3,840 turns), learning rate, KL, minibatches. `<out>/scoring.json`
has the figures; `experiments/results/agent_scoring` has those that `docs/systems/agent-results.md` shows.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent_demo import WINDOW, reached
from commands import command, rates_of

from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.agent.config import DEMO as WRITES, DEMO_CLONE, DEMO_UPDATES
from llmrl_jax.systems.glam.demo import DEMO_PRIOR, demo_config, prior_then_ppo
from llmrl_jax.workflows.curriculum import PriorConfig


TURNS = 11
"""Turns of each of 64 environments in an update."""
LEVELS = (0.8, 0.9)


@dataclass(frozen=True)
class Experiment:
    """Scoring PPO in the demo of agents that write, and the record of `turn_ppo` beside it."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds, one run each."""
    turn_ppo: str = "runs/agent_demo/turn_ppo.json"
    """The record that `agent_demo.py --algo turn_ppo` wrote."""
    out: str = "runs/agent_scoring"
    """Folder of the runs and of the results."""


def settings() -> tuple[Any, PriorConfig, int]:
    """GLAM's settings, those of imitation, and steps of RL."""
    sizes = replace(demo_config(1).ppo, num_steps=TURNS, schedule_updates=DEMO_UPDATES)
    env = f"{WRITES.env}?max_steps={WRITES.max_turns}"
    glam = replace(demo_config(1), env=env, num_actions=WRITES.num_actions, ppo=sizes)
    return glam, replace(DEMO_PRIOR, noise=DEMO_CLONE.noise), DEMO_UPDATES * sizes.num_envs * TURNS


def play(seed: int, out: Path) -> dict[str, Any]:
    """Imitate, and run scoring PPO, if that has not been done. **Returns:** the row of the record."""
    glam, prior, steps = settings()
    folder = out / f"seed-{seed}"
    if not (folder / "summary.json").exists():
        resume = (folder / "config.json").exists()
        run = RunConfig(name=folder.name, out=str(out), seed=seed, progress="off", resume=resume)
        prior_then_ppo(glam, prior, steps, run)
    result = json.loads((folder / "summary.json").read_text())
    return {
        "seed": seed,
        **rates_of(result, ("random", "before", "after", "after_greedy")),
        **{f"turns_to_{level}": reached(folder, level, glam.ppo.num_envs * TURNS) for level in LEVELS},
        "rl_seconds": result["rl_seconds"],
    }


def main() -> None:
    """Run all seeds and write the record."""
    x = parse(Experiment, description=__doc__)
    out = Path(x.out)
    written = json.loads(Path(x.turn_ppo).read_text())
    glam, prior, steps = settings()
    figures = ("seed", "before", "after", *(f"turns_to_{level}" for level in LEVELS))
    record = {
        "command": command(Path(__file__).name, x, left_out=("out", "turn_ppo")),
        "date": datetime.date.today().isoformat(),
        **info.stamp("experiments"),
        "machine": info.machine(),
        "turns_to": f"turns after which success in training, a mean over {WINDOW} updates, was at least so much",
        "settings": {"glam": configs.to_json(glam), "prior": configs.to_json(prior), "steps": steps},
        "scoring": [play(seed, out) for seed in x.seeds],
        "turn_ppo": [{name: row[name] for name in figures} for row in written["seeds"]],
        "turn_ppo_commit": written["commit"],
    }
    write_whole(out / "scoring.json", json.dumps(record, indent=1) + "\n")
    for name in ("scoring", "turn_ppo"):
        for row in record[name]:
            print(name, {figure: row[figure] for figure in figures})


if __name__ == "__main__":
    main()
