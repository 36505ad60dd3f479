"""The policies of `experiments/offline_mujoco.py`: SAC learns, its actors are kept, and the few that make data are
chosen and exported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from envs_jax.env import Environment
from envs_jax.wrappers import EpisodeStatistics
from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.core.config import FREE
from llmrl_jax.core.files import new_draft
from llmrl_jax.rl.networks import NetworkConfig
from llmrl_jax.rl.sac import SACConfig, SACPolicy, make_sac, sac_policy
from llmrl_jax.run.config import RunConfig
from llmrl_jax.run.loop import train


HIDDEN = (128, 128)
"""Layers of SAC's networks, half as wide as the learners': a gradient step costs a third."""
SAC = SACConfig(num_envs=16, num_steps=2, gradient_steps=8, learning_starts=10_000)
"""One gradient step for four steps of the world: gradient steps are what a core is short of."""
EVERY = 250
"""Updates between snapshots: 2,000 gradient steps, 8,000 steps of the world."""
LOOKS = 10
"""Episodes of sampled actions that a snapshot is judged by."""


@dataclass(frozen=True)
class World:
    """A world and the policy of SAC in it."""

    env: Environment
    params: Any
    policy: SACPolicy

    @classmethod
    def made(cls, name: str) -> World:
        env, params = envs_jax.make(name)
        counted = EpisodeStatistics(env)
        return cls(counted, params, sac_policy(counted, params, NetworkConfig(hidden=HIDDEN), SAC))


@dataclass(frozen=True)
class Learning:
    """A run of SAC, as its config.json has it."""

    world: str
    gradient_steps: int = field(metadata=FREE)
    sac: SACConfig
    run: RunConfig


def write_actor(path: Path, layers: list[dict[str, Any]]) -> None:
    """Write the layers of an MLP as one `.npz`, float32 arrays `0.kernel`, `0.bias` and so on."""
    arrays = {f"{i}.{name}": np.asarray(x, np.float32) for i, layer in enumerate(layers) for name, x in layer.items()}
    with new_draft(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def layers_of(arrays: Mapping[str, np.ndarray]) -> list[dict[str, jax.Array]]:
    """The layers of an MLP, float32, from arrays named as `write_actor` names them; others are ignored."""
    count = sum(name.endswith(".kernel") for name in arrays)
    return [
        {name: jnp.asarray(arrays[f"{i}.{name}"], jnp.float32) for name in ("kernel", "bias")} for i in range(count)
    ]


def read_actor(path: Path) -> list[dict[str, jax.Array]]:
    """The layers that `write_actor` wrote, float32."""
    with np.load(path, allow_pickle=False) as file:
        return layers_of(dict(file))


def learn(world_id: str, gradient_steps: int, out: Path, seed: int = 0) -> Path:
    """SAC, with a snapshot of the actor and its return every `EVERY` updates. A run that exists is continued, or only
    read if it has its steps.

    **Returns:** the folder of the run, with `actors/UPDATE.npz` and `metrics.jsonl`.
    """
    world = World.made(world_id)
    folder = out / f"sac-{world_id}"
    actors = folder / "actors"
    play = make_evaluator(world.env, world.params, world.policy, episodes=LOOKS, lanes=LOOKS)
    learner = make_sac(SAC, world.env, world.params, world.policy)

    def look(state: Any, key: jax.Array) -> dict[str, float]:
        actors.mkdir(exist_ok=True)
        write_actor(actors / f"{int(state.update)}.npz", state.params["actor"])
        found = play(state.params, (), key, greedy=False)
        return {"sampled": float(np.mean(found.episode_return))}

    updates = gradient_steps // SAC.gradient_steps
    status = folder / "status.json"
    if status.exists() and json.loads(status.read_text())["update"] >= updates:
        return folder
    run = RunConfig(
        name=folder.name,
        out=str(out),
        seed=seed,
        log_every=50,
        eval_every=EVERY,
        checkpoint_every=2500,
        keep=1,
        resume=(folder / "config.json").exists(),
    )
    config = Learning(world_id, gradient_steps, SAC, run)
    if train(learner, run, num_updates=updates, evaluate=look, full_config=config, title=folder.name).stopped:
        raise SystemExit(f"{folder} was stopped: the same command goes on with it")
    return folder


def looks(folder: Path) -> Iterator[dict[str, Any]]:
    """The evaluations of a run of `learn`: update, steps, and the mean return of sampled actions."""
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        found = json.loads(line)
        if found["kind"] == "eval":
            yield found
