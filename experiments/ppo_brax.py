"""PPO with continuous actions learns brax's inverted pendulum and reacher, three seeds each.

    python experiments/ppo_brax.py

The reacher's observations are divided by their standard deviations under random actions, measured before the first
update; the rewards of the pendulum are scaled by 0.1. Results include the returns of the untrained policy, of zero
actions and, for the reacher, of a hand-written controller. One file per environment is written to `<out>/<world>.json`;
the files behind the numbers in docs/algorithms.md are in `experiments/results/ppo_brax/`.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.env import Environment
from envs_jax.resets import VectorEnv
from envs_jax.testing import play
from envs_jax.wrappers import EpisodeStatistics, ScaleReward
from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.core.files import write_whole
from llmrl_jax.options.command import parse
from llmrl_jax.rl.networks import NetworkPolicy
from llmrl_jax.rl.ppo import PPOConfig, make_ppo
from llmrl_jax.run import info
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import RunResult, train


RANDOM = 0xB4A  # folded into the seed's key for random play before the first update
HELD_OUT = 0xE7A1  # likewise for the held-out episodes


@dataclass(frozen=True)
class Task:
    """An environment and its training settings."""

    gamma: float
    reward_scale: float
    scaled: bool
    """Whether observations are divided by their standard deviations."""
    updates: int


TASKS = {
    "inverted_pendulum": Task(gamma=0.99, reward_scale=0.1, scaled=False, updates=100),
    "reacher": Task(gamma=0.95, reward_scale=1.0, scaled=True, updates=160),
}


@dataclass(frozen=True)
class Experiment:
    """PPO in brax environments."""

    worlds: tuple[str, ...] = tuple(TASKS)
    """Environments to train in."""
    backend: str = "spring"
    """brax's physics backend."""
    seeds: int = 3
    """Number of seeds per environment, from 0."""
    episodes: int = 64
    """Held-out episodes at the end."""
    updates: int = 0
    """Number of updates of 8,192 steps; 0: the environment's default (100 for the pendulum, 160 for the reacher)."""
    out: str = "runs/ppo_brax"
    """Folder of the runs and of the results."""


def config(task: Task, updates: int) -> PPOConfig:
    """The same hyper-parameters for both environments, except for the discount."""
    return PPOConfig(
        num_envs=64,
        num_steps=128,
        epochs=10,
        minibatches=16,
        learning_rate=1e-3,
        schedule="linear",
        schedule_updates=updates,
        gamma=task.gamma,
        gae_lambda=0.95,
        entropy_coef=0.0,
        value_clip=math.inf,
    )


def deviations(env: Environment, params: Any, key: jax.Array) -> np.ndarray:
    """The standard deviation of each observation entry, over 64 x 256 steps of random play; at least 0.01."""
    batch = VectorEnv(env, 64, policy="pool", pool_size=64)
    _, state = jax.jit(batch.reset)(key, params)
    played = jax.jit(lambda state: play(batch, params, state, key, 256))(state)
    return np.maximum(np.std(np.asarray(played["obs"]), axis=(0, 1)), 0.01)


def by_hand(obs: jax.Array) -> jax.Array:
    """Torques that move the reacher's tip to the target with damping: the transposed Jacobian of the arm's two links
    (0.1 and 0.11 m) times `-10 x error - 3 x speed`, the best of a grid of 15 gains."""
    first = jnp.arctan2(obs[2], obs[0])
    both = first + jnp.arctan2(obs[3], obs[1])
    pull = -10.0 * obs[8:10] - 3.0 * obs[6:8]
    outer = 0.11 * jnp.array([-jnp.sin(both), jnp.cos(both)])
    inner = 0.1 * jnp.array([-jnp.sin(first), jnp.cos(first)])
    return jnp.clip(jnp.stack([(inner + outer) @ pull, outer @ pull]), -1.0, 1.0)


def returns_of(act: Callable, env: Environment, params: Any, episodes: int, key: jax.Array) -> dict[str, float]:
    """The returns of whole episodes of at most `max_steps` steps, for a function from an observation to an action."""

    def episode(key):
        def step(carry, _):
            obs, state, on, total = carry
            obs, state, reward, terminated, truncated, _ = env.step(key, state, act(obs), params)
            return (obs, state, on & ~(terminated | truncated), total + jnp.where(on, reward, 0.0)), None

        start = (*env.reset(key, params), jnp.bool(True), jnp.float32(0))
        return jax.lax.scan(step, start, length=int(params.max_steps))[0][3]

    return summary(jax.jit(jax.vmap(episode))(jax.random.split(key, episodes)))


def summary(returns: Sequence[float] | jax.Array) -> dict[str, float]:
    """Mean, standard deviation and range over episodes."""
    x = np.asarray(returns, np.float64)
    statistics = {"mean": x.mean(), "std": x.std(), "min": x.min(), "max": x.max()}
    return {name: round(float(value), 2) for name, value in statistics.items()} | {"episodes": x.size}


def learn(experiment: Experiment, world: str) -> Iterator[dict[str, Any]]:
    """Train in one environment, and yield the results after each seed."""
    task = TASKS[world]
    updates = experiment.updates or task.updates
    env, params = envs_jax.make(f"brax/{world}", backend=experiment.backend)
    key = jax.random.fold_in(jax.random.key(0), HELD_OUT)
    beside = {"no_action": returns_of(lambda obs: jnp.zeros(env.env.action_size), env, params, 64, key)}
    if world == "reacher":
        beside["by_hand"] = returns_of(by_hand, env, params, 64, key)
    ones = np.ones(env.observation_space(params).shape, np.float32)
    scale = deviations(env, params, jax.random.fold_in(jax.random.key(0), RANDOM)) if task.scaled else ones
    policy = NetworkPolicy(env.action_space(params), features=lambda obs, batch_dims: obs / scale)
    counted = EpisodeStatistics(env)
    ppo = config(task, updates)
    learner = make_ppo(ppo, ScaleReward(counted, task.reward_scale), params, policy)
    evaluate = make_evaluator(counted, params, policy, episodes=experiment.episodes, lanes=experiment.episodes)
    seeds = []
    for seed in range(experiment.seeds):
        name = f"{world}-{seed}"
        run = RunConfig(name=name, out=experiment.out, seed=seed, log_every=5, checkpoint_every=0)
        untrained = learner.init(jax.random.key(seed))
        before = evaluate(untrained.params, untrained.frozen, key, greedy=False)
        result = train(learner, run, num_updates=updates, full_config=experiment, title=name)
        state = result.state
        after = {
            how: summary(evaluate(state.params, state.frozen, key, greedy=how == "mode").episode_return)
            for how in ("sampled", "mode")
        }
        seeds.append({"seed": seed, "untrained": summary(before.episode_return), **after, **spent(result)})
        print(json.dumps({k: v for k, v in seeds[-1].items() if k != "curve"}), flush=True)
        yield {
            "world": f"brax/{world}?backend={experiment.backend}",
            "command": "python experiments/ppo_brax.py",
            "config": {name: x if x != math.inf else "inf" for name, x in dataclasses.asdict(ppo).items()},
            "reward_scale": task.reward_scale,
            "observations_divided_by": [round(float(x), 4) for x in scale],
            "beside": beside,
            "seeds": seeds,
            "date": datetime.date.today().isoformat(),
            "commit": info.commit("experiments"),
            "versions": info.versions(),
            "machine": info.machine(),
        }


def spent(result: RunResult) -> dict[str, Any]:
    """Steps, seconds, and the learning curve: steps, and the mean return of finished episodes with sampled actions."""
    lines = (result.folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    curve = [[x["steps"], round(x["episode_return"], 1)] for x in rows if x.get("episode_return") is not None]
    return {
        "steps": result.steps,
        "seconds": round(result.seconds, 1),
        "steps_per_second": round(result.steps_per_second),
        "compile_seconds": round(result.compile_seconds, 1),
        "curve": curve,
    }


def main() -> None:
    experiment = parse(Experiment, description=__doc__)
    for world in experiment.worlds:
        for results in learn(experiment, world):
            write_whole(Path(experiment.out) / f"{world}.json", json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
