"""CLEVR-Robot with random pushes: macro-actions per second on our own program for CPUs and on C MuJoCo, and on MJX and
our program for devices where jax has an accelerator, beside raw C MuJoCo."""

from __future__ import annotations

import os
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, rates, seconds, threads
from benchmarks.processes import peer_rows
from benchmarks.python_peers import mujoco_pushes
from envs_jax.clevr.constants import ACTIONS, DIRECTIONS, OFFSET, TIME_STEPS


TITLE = "CLEVR-Robot: macro-actions, each 40 steps of MuJoCo"

ID = "CLEVR-Robot-v0"
POOL = 256
CPU_BAR, ACCELERATOR_BAR = 5_000, 100_000
CPU_ROWS, ACCELERATOR_ROWS = 256, 8192
ON_HOST = {"numba": "our program", "c": "C MuJoCo"}
ON_DEVICE = {"jax": "float64", "mjx": "MJX"}
"""Backends of the host and of an accelerator, and what the notes call them."""


def measure(backend: str, num_envs: int, steps: int) -> tuple[list[float], float]:
    """Samples of macro-actions per second, and compile seconds. Every part of every observation enters the carry."""
    env, params = envs_jax.make(ID, backend=backend)
    venv = envs_jax.VectorEnv(env, num_envs, policy="pool", pool_size=min(POOL, num_envs))
    _, state = jax.jit(venv.reset)(jax.random.key(0), params)

    def rollout(key, state, total):
        def body(carry, key):
            state, total = carry
            action_key, step_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (num_envs,), 0, ACTIONS)
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


def _start(num_envs: int) -> tuple[Any, np.ndarray, int]:
    """The model, and float64 states `[B, size]` of resets, with MuJoCo's specification of their parts."""
    env, params = envs_jax.make(ID, backend="c")
    _, state = jax.jit(jax.vmap(env.reset, (0, None)))(jax.random.split(jax.random.key(0), num_envs), params)
    return env.model, np.array(env.physics.decode(state.physics)), env.physics.spec


def raw_rollouts(num_envs: int, steps: int) -> tuple[list[float], int]:
    """`mujoco.rollout` on all threads: physics and the pusher's place alone, no rewards, observations or resets."""
    import mujoco
    from mujoco import rollout

    cores = len(os.sched_getaffinity(0))
    model, states, _ = _start(num_envs)
    full = mujoco.mjtState.mjSTATE_FULLPHYSICS
    start = np.zeros((num_envs, mujoco.mj_stateSize(model, full)))
    start[:, 1 : 1 + model.nq + model.nv] = states[:, : model.nq + model.nv]  # the first number is the time
    rng, samples, rows = np.random.default_rng(0), [], np.arange(num_envs)
    with rollout.Rollout(nthread=cores) as runner:
        data = [mujoco.MjData(model) for _ in range(cores)]
        for repeat in range(REPEATS + 1):
            state, started = start.copy(), time.perf_counter()
            for _ in range(steps):
                ball, way = np.divmod(rng.integers(0, ACTIONS, num_envs), len(DIRECTIONS))
                place = np.stack([state[rows, 1 + 7 * ball], state[rows, 2 + 7 * ball]], axis=-1)
                state[:, model.nq - 1 : model.nq + 1] = place - OFFSET * DIRECTIONS[way]
                state[:, model.nq + model.nv - 1 : model.nq + model.nv + 1] = 0
                forces = np.repeat(DIRECTIONS[way][:, None], TIME_STEPS, axis=1)
                state = runner.rollout(model, data, state, forces)[0][:, -1].copy()
            if repeat:
                samples.append(num_envs * steps / (time.perf_counter() - started))
    return samples, cores


def run(quick: bool) -> Result:
    """Macro-actions per second: ours, `mujoco.rollout`, one world from Python."""
    unit, on_cpu = "macro-actions/s", jax.default_backend() == "cpu"
    num_envs, steps = (32, 2) if quick else (CPU_ROWS, 10)
    rows, bars = [], []
    cores = len(os.sched_getaffinity(0))
    on_threads: dict[str, Row] = {}
    for backend, name in ON_HOST.items():
        samples, took = measure(backend, num_envs, steps)
        note = f"{name}, {threads(cores)}; {num_envs} worlds, resets, rewards"
        rows.append(Row(ID, OURS, unit, samples, took, note))
        on_threads[backend] = rows[-1]
    if on_cpu:
        rate = on_threads["numba"].figure
        bars.append(f"Our program on {threads(cores)}: {rate:,.0f} macro-actions/s {aim(rate, CPU_BAR)}")
    samples, cores = raw_rollouts(num_envs, steps)
    rows.append(Row(ID, "mujoco.rollout", unit, samples, None, f"{threads(cores)}; physics alone"))
    part, times = (on_threads[backend].median / rows[-1].median for backend in ("c", "numba"))
    bars.append(
        f"On C our world makes {part:.0%} of the steps of mujoco.rollout, on our program {times:.1f} times as many"
    )
    model, states, spec = _start(1)
    args, note = (model, states[0], int(spec)), "1 world in each; physics alone"
    rows += peer_rows(ID, "MuJoCo from Python", unit, mujoco_pushes, args, window=0.1 if quick else 1.0, note=note)
    if not on_cpu:
        where = jax.devices()[0].device_kind
        for backend, name in ON_DEVICE.items():
            samples, took = measure(backend, ACCELERATOR_ROWS, steps)
            rows.append(
                Row(ID, OURS, unit, samples, took, f"{name} on {where}; {ACCELERATOR_ROWS} worlds, resets, rewards")
            )
            rate = rows[-1].figure
            bars.append(f"{name} on {where}: {rate:,.0f} macro-actions/s {aim(rate, ACCELERATOR_BAR)}")
    notes = [
        "Random actions drawn inside the scan; a macro-action puts the pusher behind a ball and takes 40 time steps of "
        "0.01 s, in a model with 32 degrees of freedom and five to eight contacts. Every part of every observation is "
        f"added into the carry; ended episodes are replaced from a pool of up to {POOL} prepared ones.",
        "`mujoco.rollout` is the C library's own batch of open-loop rollouts, called once per macro-action, from the "
        "same starts; `MuJoCo from Python` steps one world in a process, as the published environment does.",
    ]
    return Result(rows, bars, notes)
