"""Housekeep with random actions: low-level steps with captions, resets and metrics included."""

from __future__ import annotations

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, rates, seconds


TITLE = "Housekeep: environment steps with captions"

IDS = ("Housekeep-v0", "Housekeep-Task1-v0", "Housekeep-Macro-v0")
NUM_ENVS, POOL = 1024, 256
BAR = 200_000


def measure(id: str, num_envs: int, steps: int) -> tuple[list[float], float]:
    """Samples of steps per second, and compile seconds. Every part of every observation enters the carry, and so do the
    events and metrics of `info`."""
    env, params = envs_jax.make(id)
    venv = envs_jax.VectorEnv(env, num_envs, policy="pool", pool_size=POOL)
    _, state = jax.jit(venv.reset)(jax.random.key(0), params)

    def rollout(key, state, total):
        def body(carry, key):
            state, total = carry
            action_key, step_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (num_envs,), 0, len(env.action_names))
            obs, state, reward, terminated, truncated, info = venv.step(step_key, state, actions, params)
            info = {name: value for name, value in info.items() if name != "final_observation"}
            seen = [*jax.tree.leaves((obs, info)), reward, terminated, truncated]
            return (state, total + sum(jnp.sum(x.astype(jnp.float32)) for x in seen)), None

        return jax.lax.scan(body, (state, total), jax.random.split(key, steps))[0]

    carry = [state, jnp.float32(0)]
    program, compile_seconds = compiled(rollout, jax.random.key(1), *carry)
    count = iter(range(10**6))

    def once():
        carry[:] = program(jax.random.fold_in(jax.random.key(2), next(count)), *carry)
        return carry[1]

    return rates(num_envs * steps, seconds(once, repeats=REPEATS)), compile_seconds


def run(quick: bool) -> Result:
    """Steps per second of the low-level and of the macro world."""
    num_envs, steps = (128, 20) if quick else (NUM_ENVS, 200)
    rows, bars = [], []
    for id in IDS[:1] if quick else IDS:
        samples, took = measure(id, num_envs, steps)
        rows.append(Row(id, OURS, "steps/s", samples, took, "image, captions, sets, metrics; our pool of resets"))
        if "Macro" not in id:
            bars.append(f"{id}: {rows[-1].figure:,.0f} steps/s {aim(rows[-1].figure, BAR)}")
    notes = [
        f"{num_envs} environments in one scan of {steps} steps; random actions drawn inside; ended episodes are "
        f"replaced from a pool of {POOL} prepared ones; every part of every observation is added into the carry.",
        "No peer: ELLM's Housekeep runs in Habitat, whose scenes are not available here. A macro step stands for "
        "several low-level ones.",
    ]
    return Result(rows, bars, notes)
