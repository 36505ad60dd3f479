"""A task in which a thought carries information: with RL alone, a Llama of one layer learns to write a note to itself.

    python experiments/agent_thoughts.py

`Notes-Recall` shows one of four words, then says that nothing happens, and then asks for the word. The prompt holds the
last turn and its reply, and the observation: at the question, the word is in it only if the reply before wrote it down.
Without thoughts success is at most 1/4. Learning begins one turn before the question (`first`), where the word can be
read from the prompt, and goes on with two turns, from the same weights and in the same program.

Runs that are in the folder are not made again. `<out>/thoughts.json` has the held-out success of each seed with and
without thoughts, its curve, the settings and the machine; `experiments/results/agent_thoughts` has what
`docs/systems/agent-results.md` shows.
"""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from commands import command

from llmrl_jax.core import config as configs
from llmrl_jax.core.files import write_whole
from llmrl_jax.lm.small import SmallConfig
from llmrl_jax.multiturn.ppo import TurnPPOConfig
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.systems.agent.build import build, make_learner
from llmrl_jax.systems.agent.config import AgentConfig, TrainConfig
from llmrl_jax.systems.agent.train import conversation, evaluators, summarise


TURNS = (1, 2)
"""Turns before the question, in the first part of learning and in the second."""
CONFIG = TrainConfig(
    agent=AgentConfig(
        env=f"Notes-Recall-v0?turns={TURNS[-1]}",
        tune="full",
        embedded=SmallConfig(hidden_size=32, layers=1, heads=4, intermediate_size=64),
        decoding="constrained",
        reply_tokens=3,
        value_width=32,
        memory="reprompt",
        window=1,
    ),
    algo="token_ppo",
    ppo=TurnPPOConfig(
        num_envs=64, num_steps=128, minibatches=4, learning_rate=2e-3, gamma=1.0, entropy_coef=0.02, pool_size=64
    ),
)
"""A reply has three tokens: a word of thought, and the action with its tag; without thoughts the action alone."""
WINDOW = 25
"""Updates in a point of the curve."""


@dataclass(frozen=True)
class Experiment:
    """Learning with and without thoughts."""

    seeds: tuple[int, ...] = (0, 1, 2)
    first: int = 100
    """Updates of 8,192 tokens with one turn before the question."""
    then: int = 400
    """Updates with two turns."""
    enough: float = 0.98
    """Success in training, over 25 updates, at which a part of learning ends before its last update."""
    episodes: int = 300
    """Held-out episodes."""
    out: str = "runs/agent_thoughts"
    """Folder of the results."""


def learn(x: Experiment, think: bool, seed: int) -> dict[str, Any]:
    """One run. **Returns:** its row of the record."""
    config = replace(CONFIG, agent=replace(CONFIG.agent, think=think))
    agent = build(config.agent)
    learner = make_learner(config, agent)
    state, update = learner.init(jax.random.key(seed)), jax.jit(learner.update, donate_argnums=0)
    started, curve, turns = time.monotonic(), [], 0.0
    for before, updates in zip(TURNS, (x.first, x.then), strict=True):
        state = state.replace(rows=state.rows.replace(env_params=agent.env_params.replace(turns=before)))
        points: list[float] = []
        for i in range(updates):
            state, metrics = update(state)
            points.append(float(metrics["success"]))
            turns += float(metrics["turns"])
            if (i + 1) % WINDOW == 0:
                success = round(float(np.mean(points[-WINDOW:])), 3)
                curve.append({"turns_before": before, "update": i + 1, "success": success})
                print(f"seed {seed}, thoughts {think}: {curve[-1]}", flush=True)
                if success >= x.enough:
                    break
    key = jax.random.key(10_000 + seed)
    play = evaluators(agent, CONFIG.ppo.episode_tokens)(x.episodes)(state.params, state.frozen, key)
    rates = summarise(play)
    return {
        "seed": seed,
        "thoughts": think,
        "success": [round(rates[name], 4) for name in ("success", "success_low", "success_high")],
        "turns": round(turns),
        "updates": int(state.update),
        "seconds": round(time.monotonic() - started, 1),
        "curve": curve,
        "episode": conversation(agent, play),
    }


def run(x: Experiment, out: Path, think: bool, seed: int) -> dict[str, Any]:
    """`learn`, if it has not been run."""
    path = out / f"seed-{seed}-{'with' if think else 'without'}.json"
    if not path.exists():
        write_whole(path, json.dumps(learn(x, think, seed)) + "\n")
    return json.loads(path.read_text())


def main() -> None:
    """Run all seeds, with and without thoughts, and write the record."""
    x = parse(Experiment, description=__doc__)
    out = Path(x.out)
    rows = [run(x, out, think, seed) for seed in x.seeds for think in (True, False)]
    record = {
        "command": command(Path(__file__).name, x),
        "date": datetime.date.today().isoformat(),
        **info.stamp("experiments"),
        "machine": info.machine(),
        "success": "[rate, low, high] of held-out episodes, sampled, Wilson's 95% interval",
        "settings": configs.to_json(CONFIG),
        "runs": rows,
    }
    write_whole(out / "thoughts.json", json.dumps(record, indent=1) + "\n")
    for row in rows:
        print(f"seed {row['seed']}, thoughts {row['thoughts']}: {row['success']}")


if __name__ == "__main__":
    main()
