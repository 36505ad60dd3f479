"""Meta-World with random actions: control steps per second on C MuJoCo, beside the package metaworld; and on MJX where
jax has an accelerator."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, seconds, speedup, threads
from benchmarks.processes import peer_rows
from benchmarks.python_peers import metaworld_steps


TITLE = "Meta-World: control steps, each 5 steps of MuJoCo"

TASKS = ("reach", "push", "pick-place", "door-open", "window-open")
LEVEL = "MetaWorld-v3?level=real"
CPU_BAR, ACCELERATOR_BAR = 1.5, 50_000
CPU_ROWS, ACCELERATOR_ROWS, POOL = 128, 4096, 64
UNIT = "control steps/s"


def measure(id: str, num_envs: int, steps: int, **options: Any) -> tuple[list[float], float]:
    """Samples of control steps per second, and compile seconds. Every part of every observation enters the carry."""
    env, params = envs_jax.make(id, **options)
    venv = envs_jax.VectorEnv(env, num_envs, policy="pool", pool_size=min(POOL, num_envs))
    _, state = jax.jit(venv.reset)(jax.random.key(0), params)

    def rollout(key, state, total):
        def body(carry, key):
            state, total = carry
            action_key, step_key = jax.random.split(key)
            actions = jax.random.uniform(action_key, (num_envs, 4), jnp.float32, -1, 1)
            obs, state, reward, terminated, truncated, _ = venv.step(step_key, state, actions, params)
            seen = [*jax.tree.leaves(obs), reward, terminated, truncated]
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
    """Control steps per second: ours, and the package's."""
    rows, bars, cores = [], [], len(os.sched_getaffinity(0))
    num_envs, steps, window = (16, 3, 0.2) if quick else (CPU_ROWS, 20, 1.0)
    for name in TASKS[:1] if quick else TASKS:
        id = f"MetaWorld/{name}-v3"
        samples, took = measure(id, num_envs, steps, backend="c")
        mine = Row(id, OURS, UNIT, samples, took, f"C MuJoCo, {threads(cores)}; {num_envs} worlds, resets, rewards")
        peers = peer_rows(id, "metaworld 3.1.1", UNIT, metaworld_steps, (name,), window=window)
        rows += [mine, *peers]
        ratio = speedup([mine], peers)
        bars.append(f"{id}: {ratio:.1f} times the package ({fastest(peers).note}) {aim(ratio, CPU_BAR)}")
    samples, took = measure(LEVEL, num_envs, steps)
    rows.append(Row(LEVEL, OURS, UNIT, samples, took, f"ten tasks in one batch; C MuJoCo, {threads(cores)}"))
    if jax.default_backend() != "cpu":
        id = "MetaWorld/reach-v3"
        samples, took = measure(id, ACCELERATOR_ROWS, steps, backend="mjx")
        where = jax.devices()[0].device_kind
        rows.append(Row(id, OURS, UNIT, samples, took, f"MJX on {where}, proxy geometry; {ACCELERATOR_ROWS} worlds"))
        rate = rows[-1].figure
        bars.append(f"MJX on {where}: {rate:,.0f} control steps/s {aim(rate, ACCELERATOR_BAR)}")
    notes = [
        "Random actions, drawn inside the scan. Ours: stock geometry; every part of an observation is added into the "
        f"carry; ended episodes are replaced from a pool of up to {POOL} prepared ones. The package: one task in each "
        "process, made by `gymnasium.make('Meta-World/MT1')`.",
        "`MetaWorld-v3` plays the ten tasks of KALM's level real side by side in one batch.",
    ]
    return Result(rows, bars, notes)
