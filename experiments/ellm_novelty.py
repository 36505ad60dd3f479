"""ELLM's agents of novelty in Crafter: whether they find more novelty than random play, and what they do for it.

    python experiments/ellm_novelty.py                                   # three agents, one seed, 200,000 steps
    python experiments/ellm_novelty.py --agents rnd --steps 1000000

Held-out episodes of each trained agent, of its greedy actions and of random play, from the same starts. Novelty is
that of the trained agent's bonus as it is at the end of the run. Runs are written to `<out>/<agent>-<seed>`; those that
exist are continued, or read if they are finished. `<out>/results.json` has the numbers.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from commands import command
from ellm_runs import evaluated

from envs_jax import tracing
from llmrl_jax.agents.play import begin, policy_actor, rollout
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.transitions import Transitions
from llmrl_jax.options.command import parse
from llmrl_jax.rl.bonus import Bonus, BonusState
from llmrl_jax.rl.policy import RandomPolicy
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.systems.ellm.build import HELD_OUT, Ellm, load_run
from llmrl_jax.systems.ellm.config import PretrainRun, preset


LENGTH, CHUNK = 400, 4
"""Steps of the longest episode, and of each call of the bonus, as in training."""


@dataclass(frozen=True)
class Experiment:
    """ELLM's agents of novelty."""

    agents: tuple[str, ...] = ("rnd", "noveld", "apt")
    """Presets of `llmrl ellm pretrain` with a bonus."""
    seeds: int = 1
    """Number of seeds per agent, from 0."""
    steps: int = 200_000
    """Environment steps of each run."""
    episodes: int = 64
    """Held-out episodes of each kind of play."""
    out: str = "runs/ellm_novelty"
    """Folder of the runs and of the results."""


def played(made: Ellm, env_params: Any, policy: Any, params: Any, frozen: Any, episodes: int, greedy: bool) -> Any:
    """Whole episodes: leaves `[LENGTH, episodes, ...]`; `live` marks the steps before their ends."""

    def see(rows, step):
        world = rows.state
        while not hasattr(world, "position"):  # inside its wrappers
            world = world.env if hasattr(world, "env") else world.env_state
        return {
            "obs": rows.obs,
            "action": step.action,
            "effect": step.info["eval_success"],
            "unlocked": step.info["achievements"] > 0,
            "cell": world.position,
            "asleep": world.sleeping,
        }

    @jax.jit
    def play(params, frozen):
        key = jax.random.fold_in(jax.random.key(0), HELD_OUT)
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(jnp.arange(episodes))
        actor = policy_actor(policy, params, frozen, jnp.bool_(greedy))
        rows = begin(made.env, env_params, actor, keys[:, 0], keys[:, 1])
        after, seen = rollout(made.env, env_params, actor, rows, see, steps=LENGTH)
        next_obs = jax.tree.map(lambda x, last: jnp.concatenate([x[1:], last[None]]), seen["obs"], after.obs)
        return seen | {"next_obs": next_obs}

    return play(params, frozen)


def novelty(bonus: Bonus, state: BonusState, seen: Any) -> np.ndarray:
    """The bonus of every step, `[LENGTH, episodes]`, all with the same state of the bonus."""
    action = seen["action"]
    if not isinstance(state.rows, tuple):
        state = state.replace(rows=jnp.zeros(action.shape[1]))
    zeros, no = jnp.zeros(action.shape), jnp.zeros(action.shape, bool)
    steps = Transitions(seen["obs"], action, zeros, seen["next_obs"], no, no)
    chunks = jax.tree.map(lambda x: x.reshape(LENGTH // CHUNK, CHUNK, *x.shape[1:]), steps)
    rewards = jax.jit(lambda s: tracing.scan(lambda _, x: (None, bonus.reward(state, x, 0.99)[1]), None, s)[1])
    return np.asarray(rewards(chunks)).reshape(action.shape)


def summary(made: Ellm, seen: Any, bonus: np.ndarray) -> dict[str, Any]:
    """Means over episodes, and shares of steps."""
    seen = {name: np.asarray(seen[name]) for name in ("live", "action", "effect", "unlocked", "cell", "asleep")}
    live = seen["live"]
    steps, episodes = live.sum(axis=0), range(live.shape[1])
    unlocked = seen["unlocked"][steps - 1, episodes]
    share = np.bincount(seen["action"][live], minlength=made.spec.actions) / live.sum()
    top = np.argsort(-share)[:3]
    return {
        "novelty_per_step": float(bonus[live].mean()),
        "novelty_per_episode": float((bonus * live).sum(axis=0).mean()),
        "episode_length": float(steps.mean()),
        "cells": float(np.mean([len(np.unique(seen["cell"][: steps[i], i], axis=0)) for i in episodes])),
        "steps_with_effect": float(seen["effect"][live].mean()),
        "steps_asleep": float(seen["asleep"][live].mean()),
        "actions": {made.spec.captions[i]: float(share[i]) for i in top},
        "achievements": float(unlocked.sum(axis=1).mean()),
        "unlocked": {
            name: float(rate) for name, rate in zip(made.spec.achievements, unlocked.mean(axis=0)) if rate > 0
        },
    }


def examined(folder: Path, episodes: int) -> dict[str, Any]:
    """The numbers of a run's agent, of its greedy actions, and of random play."""
    _, made, state, _ = load_run(folder)
    bonus = made.novelty()
    assert bonus is not None, f"the agent of {folder} has no bonus"
    agent = (made.policy, state.params, state.frozen)
    kinds = {
        "agent": (*agent, False),
        "greedy": (*agent, True),
        "random": (RandomPolicy(made.spec.actions), (), (), False),
    }
    found = {}
    for name, (policy, params, frozen, greedy) in kinds.items():
        seen = played(made, state.runner.env_params, policy, params, frozen, episodes, greedy)
        found[name] = summary(made, seen, novelty(bonus, state.bonus, seen))
    return found


def main() -> None:
    x = parse(Experiment, description=__doc__)
    found: dict[str, Any] = {}
    for seed in range(x.seeds):
        for agent in x.agents:
            folder = Path(x.out) / f"{agent}-{seed}"
            run = RunConfig(out=x.out, name=folder.name, seed=seed, log_every=50, checkpoint_every=1000, keep=1)
            config = replace(preset(agent), encoder="hashed")
            evaluated(PretrainRun(ellm=config, steps=x.steps, eval_episodes=x.episodes, run=run))
            found.setdefault(agent, []).append(examined(folder, x.episodes))
            results = {
                "command": command(Path(__file__).name, x),
                "date": datetime.date.today().isoformat(),
                "machine": info.stamp("experiments"),
                "agents": found,
            }
            write_whole(Path(x.out) / "results.json", json.dumps(results, indent=1) + "\n")
            for name, values in found[agent][-1].items():
                print(folder.name, name, values)


if __name__ == "__main__":
    main()
