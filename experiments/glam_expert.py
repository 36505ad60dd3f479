"""How often the noisy expert that priors imitate succeeds in the mixed task: what an agent could reach by imitation.

    python experiments/glam_expert.py

Every row is an expert with another share of random actions, which searches for objects out of view by turning left
(`seen_only`) or knows where they are. The first `episodes` of every copy count, however long
they are: of all that end within some steps, long ones, which mostly fail, would be too few.
`experiments/results/mixed/expert.json` has the output.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from commands import command

from llmrl_jax.agents.babyai import NoisyExpert
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.run import info
from llmrl_jax.systems.glam.build import make_world
from llmrl_jax.systems.glam.config import DEMO


ROWS = ((0.0, True), (0.25, True), (0.25, False), (1.0, True))
"""The share of random actions, and whether the expert goes only to what is in view."""

STEPS = 200
"""Steps between which new worlds are drawn."""


@dataclass(frozen=True)
class Experiment:
    """Success of the noisy expert."""

    env: str = "BabyAI-Text/MixedTrainLocal-v0"
    """The level."""
    copies: int = 256
    """Worlds played at once."""
    episodes: int = 6
    """Episodes of each copy."""
    seed: int = 0
    """Seed of everything."""
    out: str = "runs/glam_expert"
    """Folder of the results."""


def played(x: Experiment, noise: float, seen: bool) -> dict[str, Any]:
    """Success of one expert, in all and for each kind of mission."""
    env, params = make_world(replace(DEMO, env=x.env))
    expert = NoisyExpert(env, params, x.copies, noise, seen_only=seen)

    @jax.jit
    def chunk(key: jax.Array, obs: Any, state: Any) -> Any:
        def step(carry: Any, key: jax.Array) -> Any:
            obs, state, _, terminated, truncated, info = expert.step(key, carry[1])
            return (obs, state), (terminated | truncated, info["success"], info["task"])

        play_key, pool_key = jax.random.split(key)
        (obs, state), ends = jax.lax.scan(step, (obs, state), jax.random.split(play_key, STEPS))
        return obs, expert.envs.refresh(pool_key, state, params), ends

    reset_key, key = jax.random.split(jax.random.key(x.seed))
    obs, state = expert.reset(reset_key)
    parts: list[Any] = []
    while not parts or (sum(part[0].sum(0) for part in parts) < x.episodes).any():
        obs, state, ends = chunk(jax.random.fold_in(key, len(parts)), obs, state)
        parts.append(jax.device_get(ends))
    done, success, task = (np.concatenate(part) for part in zip(*parts, strict=True))
    done = done & (np.cumsum(done, axis=0) <= x.episodes)
    found: dict[str, Any] = {"noise": noise, "seen_only": seen, "episodes": int(done.sum())}
    found["success"] = round(float(success[done].mean()), 3)
    for i, name in enumerate(env.unwrapped.task_names):
        found[name] = round(float(success[done & (task == i)].mean()), 3)
    return found


def main() -> None:
    x = parse(Experiment, description=__doc__)
    rows = []
    for noise, seen in ROWS:
        rows.append(played(x, noise, seen))
        print(rows[-1], flush=True)
    today = datetime.date.today().isoformat()
    results = {"command": command(Path(__file__).name, x), "date": today, "machine": info.stamp("experiments")}
    results["rows"] = rows
    Path(x.out).mkdir(parents=True, exist_ok=True)
    write_whole(Path(x.out) / "expert.json", json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
