"""Worlds with text for agents that write: steps with random actions, resets included, compared with Python's rules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, seconds, speedup
from benchmarks.processes import peer_rows
from benchmarks.python_rules import lake_steps, sokoban_steps, steps_2048


TITLE = "Sokoban, 2048 and FrozenLake with text: environment steps, compared with the rules in Python"

NUM_ENVS, STEPS, POOL = 1024, 200, 256
BAR = 100
IDS = {"Sokoban": "SokobanText-v0", "2048": "2048Text-v0", "FrozenLake": "FrozenLakeText-v1"}


def ours(id: str, num_envs: int, steps: int) -> tuple[list[float], float]:
    """Samples of steps per second, and compile seconds. Every part of every observation enters the carry."""
    env, params = envs_jax.make(id)
    venv = envs_jax.VectorEnv(env, num_envs, policy="pool", pool_size=POOL)
    _, state = jax.jit(venv.reset)(jax.random.key(0), params)

    def rollout(key, state, total):
        def body(carry, key):
            state, total = carry
            action_key, step_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (num_envs,), 0, len(env.action_names))
            obs, state, reward, terminated, truncated, _ = venv.step(step_key, state, actions, params)
            seen = [*jax.tree.leaves(obs), reward, terminated, truncated]
            return (state, total + sum(jnp.sum(x.astype(jnp.float32)) for x in seen)), None

        return jax.lax.scan(body, (state, total), jax.random.split(key, steps))[0]

    carry: list[Any] = [state, jnp.float32(0)]
    program, compile_seconds = compiled(rollout, jax.random.key(1), *carry)
    count = iter(range(10**6))

    def once() -> Any:
        carry[:] = program(jax.random.fold_in(jax.random.key(2), next(count)), *carry)
        return carry[1]

    return rates(num_envs * steps, seconds(once, repeats=REPEATS + 2)), compile_seconds


def new_rooms(count: int) -> tuple[list[float], float]:
    """Samples of new Sokoban rooms per second, and compile seconds."""
    env, params = envs_jax.make(IDS["Sokoban"])
    resets, keys = jax.vmap(env.reset, in_axes=(0, None)), jax.random.split(jax.random.key(0), count)
    program, compile_seconds = compiled(resets, keys, params)
    return rates(count, seconds(lambda: program(keys, params)[1], repeats=REPEATS)), compile_seconds


def rooms(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rooms of ours for the peer, in gym-sokoban's two arrays."""
    env, params = envs_jax.make(IDS["Sokoban"])
    obs, _ = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(jax.random.key(5), count), params)
    boards = np.asarray(obs["board"]).astype(int)  # at the start no box and no player is on a target
    return [(np.where(board > 2, 1, board), board) for board in boards]


def run(quick: bool) -> Result:
    """Ours, then the peers, in one run."""
    num_envs, steps, window = (64, 20, 0.1) if quick else (NUM_ENVS, STEPS, 1.0)
    peers = {
        "Sokoban": (
            sokoban_steps,
            (rooms(16 if quick else 256), 100),
            "its rules and RAGEN's text in NumPy; our rooms",
        ),
        "2048": (steps_2048, (), "its rules and RAGEN's text in NumPy"),
        "FrozenLake": (lake_steps, (), "Gymnasium's, RAGEN's text; one map"),
    }
    rows, bars = [], []
    for case, id in IDS.items():
        samples, took = ours(id, num_envs, steps)
        mine = [Row(case, OURS, "steps/s", samples, took, f"{id}, {num_envs} worlds")]
        work, args, note = peers[case]
        theirs = peer_rows(case, "Python", "steps/s", work, args, window=window, note=note)
        ratio = speedup(mine, theirs)
        bars.append(f"{case}: {ratio:.0f} times Python ({fastest(theirs).note.partition(';')[0]}) {aim(ratio, BAR)}")
        rows += mine + theirs
    samples, took = new_rooms(64 if quick else 1024)
    rows.append(Row("new Sokoban rooms", OURS, "rooms/s", samples, took))
    notes = [
        f"{num_envs} environments in one scan of {steps} steps; random actions drawn inside; captions are made in each "
        f"step; ended episodes are replaced from a pool of {POOL} prepared worlds; every part of every observation is "
        "added into the carry. The peers make the text of every step as a string."
    ]
    return Result(rows, bars, notes)
