"""The data of `experiments/offline_mujoco.py`: the snapshots that make them are chosen and exported, and played."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from finished import refuse_others
from offline_policies import HIDDEN, SAC, World, learn, looks, read_actor, write_actor

from llmrl_jax.agents.evaluate import make_evaluator
from llmrl_jax.agents.play import Actor, Episode, key_pairs, make_player, policy_actor
from llmrl_jax.core.files import write_whole
from llmrl_jax.data.reading import write_arrays
from llmrl_jax.data.transitions import Transitions


Set = Literal["medium-replay", "medium", "expert"]
SETS: tuple[Set, ...] = ("medium-replay", "medium", "expert")

MEDIUM = {"Hopper-v5": 1000.0, "HalfCheetah-v5": 1500.0}
"""Return of sampled actions at which SAC has a medium policy: about a third of what it reaches, set by hand, so that a
longer run of SAC changes the expert alone, and no other data."""
STAGES = 5
"""Equal parts of the training up to the medium policy, whose ends are the policies of medium-replay."""
RANDOM, MIXED, BEST = "random", "medium", "expert"
JUDGED = 20
"""Episodes by which an exported policy is judged, for each way of acting."""
LANES, CHUNK = 64, 250
"""Episodes played at once for data, and steps between looks from the host."""


# --- the policies -----------------------------------------------------------------------------------------------------


def chosen(seen: list[dict[str, Any]], medium: float) -> dict[str, int]:
    """The updates of the snapshots to keep, by name: `stage-1` to `stage-4`, `medium`, the first snapshot whose sampled
    return reaches `medium`, and `expert`, the one with the best.

    **Raises:** `ValueError` if none reaches it, or too soon for four snapshots before it.
    """
    reached = [i for i, found in enumerate(seen) if found["sampled"] >= medium]
    if not reached or reached[0] < STAGES:
        raise ValueError(f"no snapshot after the first {STAGES} is the first that returns {medium}: train longer")
    places = {f"stage-{i}": round(reached[0] * i / STAGES) for i in range(1, STAGES)}
    best = max(range(len(seen)), key=lambda i: seen[i]["sampled"])
    return {name: seen[i]["update"] for name, i in (places | {MIXED: reached[0], BEST: best}).items()}


def export(world_id: str, run: Path, folder: Path) -> dict[str, Any]:
    """Copy the chosen snapshots of a run, and write what they return as `policies.json`. **Returns:** the latter."""
    seen = list(looks(run))
    world = world_of(world_id)
    play = make_evaluator(world.env, world.params, world.policy, episodes=JUDGED, lanes=JUDGED)
    judged: dict[str, Any] = {}
    for i, (name, update) in enumerate(chosen(seen, MEDIUM[world_id]).items()):
        actor = {"actor": read_actor(run / "actors" / f"{update}.npz")}
        write_actor(folder / f"{name}.npz", actor["actor"])
        key = jax.random.fold_in(jax.random.key(1), i)
        returns = {
            how: round(float(np.mean(play(actor, (), key, greedy=how == "mode").episode_return)), 1)
            for how in ("sampled", "mode")
        }
        steps = update * SAC.num_envs * SAC.num_steps
        judged[name] = {"steps": steps, "gradient_steps": gradient_steps(steps), **returns}
    found = {
        "world": world_id,
        "hidden": HIDDEN,
        "sac": {name: getattr(SAC, name) for name in ("num_envs", "num_steps", "gradient_steps", "learning_starts")},
        "steps": seen[-1]["steps"],
        "gradient_steps": gradient_steps(seen[-1]["steps"]),
        "episodes": JUDGED,
        "policies": judged,
        "curve": [[x["steps"], round(x["sampled"], 1)] for x in seen],
    }
    write_whole(folder / "policies.json", json.dumps(found, indent=1) + "\n")
    return found


def gradient_steps(steps: int) -> int:
    """SAC's gradient steps in its first `steps` steps of the world."""
    a_step = SAC.num_envs * SAC.num_steps
    waited = -(-SAC.learning_starts // a_step) - 1  # the memory is full enough in the update that fills it
    return max(0, steps // a_step - waited) * SAC.gradient_steps


def policies(world_id: str, steps: int, out: Path, folder: Path) -> None:
    """Let SAC learn, and export its policies, unless they are there."""
    if not (folder / "policies.json").exists():
        export(world_id, learn(world_id, steps, out), folder)


# --- the data ---------------------------------------------------------------------------------------------------------


def sources(data: Set) -> tuple[str, ...]:
    """The policies whose episodes a set has, in equal numbers of steps.

    Medium-replay stands for the memory of SAC when it reached the medium policy. Of that memory's steps equal parts
    are of equally long stretches of training; so they are here, each played by the policy at the end of its stretch,
    after a part with uniform random actions, with which SAC begins.
    """
    if data == "medium-replay":
        return (RANDOM, *(f"stage-{i}" for i in range(1, STAGES)), MIXED)
    return (data,)


def uniform(world: World) -> Actor:
    """An actor with uniform random actions."""
    width = world.policy.actions.width

    def act(obs: Any, carry: Any, first: Any, keys: Any) -> Any:
        drawn = jax.vmap(lambda key: jax.random.uniform(key, (width,), minval=-1.0, maxval=1.0))(keys)
        return world.policy.actions.outward(drawn), carry, ()

    return Actor(act)


@functools.cache
def world_of(world_id: str) -> World:
    """The world, made once."""
    return World.made(world_id)


@functools.cache
def player(world_id: str, random: bool) -> Callable[..., Iterator[Episode]]:
    """Episodes with uniform random actions, or those of a policy."""
    world = world_of(world_id)

    def actor_of(params: Any) -> Actor:
        return uniform(world) if random else policy_actor(world.policy, params, (), False)

    return make_player(world.env, world.params, actor_of, lambda obs, state: obs, chunk=CHUNK)


def episodes(world_id: str, params: Any, key: jax.Array) -> Iterator[dict[str, np.ndarray]]:
    """Episodes without end, of sampled actions: columns of `Transitions`, in the order of their numbers, so that short
    ones are not preferred. **Arguments:** `params`, of the policy; None: uniform random actions."""
    names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
    for first in itertools.count(0, LANES):
        for one in player(world_id, params is None)(params, key_pairs(key, LANES, first)):
            steps = one.transitions()
            yield {name: getattr(steps, name) for name in names}


def played(world_id: str, params: Any, key: jax.Array, count: int) -> tuple[dict[str, np.ndarray], list[float]]:
    """The first `count` steps of `episodes`, and the returns of their whole episodes. Where an episode is cut, its last
    step is truncated."""
    parts, returns, left = [], [], count
    for episode in episodes(world_id, params, key):
        length = len(episode["reward"])
        if length > left:
            episode = {name: x[:left].copy() for name, x in episode.items()}
            episode["truncated"][-1] |= ~episode["terminated"][-1]
        else:
            returns.append(float(episode["reward"].sum(dtype=np.float64)))
        parts.append(episode)
        left -= len(episode["reward"])
        if not left:
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}, returns
    raise AssertionError("episodes have no end")


def make_data(world_id: str, data: Set, steps: int, folder: Path, out: Path) -> tuple[Path, dict[str, Any]]:
    """A set of data, made from the exported policies in `folder` unless it is there.

    **Returns:** its file, and what is known of it: steps, episodes, mean return of whole episodes, of each source too.
    """
    path = out / f"{world_id}-{data}.npz"
    about = path.with_suffix(".json")
    digest = hashlib.sha256((folder / "policies.json").read_bytes()).hexdigest()
    if about.exists():
        facts = json.loads(about.read_text())
        refuse_others(about, {"policies": facts.get("policies", digest)}, {"policies": digest})
        return path, facts
    out.mkdir(parents=True, exist_ok=True)
    names = sources(data)
    parts: list[dict[str, np.ndarray]] = []
    returns: dict[str, list[float]] = {}
    for i, name in enumerate(names):
        params = None if name == RANDOM else {"actor": read_actor(folder / f"{name}.npz")}
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(2), SETS.index(data)), i)
        share = steps * (i + 1) // len(names) - steps * i // len(names)
        part, returns[name] = played(world_id, params, key, share)
        parts.append(part)
    columns = {name: jnp.asarray(np.concatenate([part[name] for part in parts])) for name in parts[0]}
    write_arrays(path, Transitions(**columns))
    every = [x for some in returns.values() for x in some]
    known = {
        "steps": steps,
        "episodes": len(every),
        "mean_return": round(float(np.mean(every)), 1),
        "mean_return_of": {name: round(float(np.mean(some)), 1) for name, some in returns.items() if some},
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "policies": digest,
    }
    write_whole(about, json.dumps(known, indent=1) + "\n")
    return path, known


def random_return(world_id: str) -> float:
    """The mean return of uniform random actions."""
    found = []
    for episode in episodes(world_id, None, jax.random.key(3)):
        found.append(episode["reward"].sum(dtype=np.float64))
        if len(found) == JUDGED:
            return round(float(np.mean(found)), 1)
    raise AssertionError("episodes have no end")
