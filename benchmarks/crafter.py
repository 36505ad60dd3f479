"""Crafter with random actions: steps with captions, without, with pictures; new worlds; compared with the package and
with Craftax-Classic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, run_peer, seconds, speedup
from envs_jax.resets import VectorState


TITLE = "Crafter: environment steps, pictures and new worlds, compared with crafter and Craftax-Classic"

CAPTIONS, BARE = "CrafterText-v1", "CrafterText-v1?text=none"
PICTURES = "CrafterReward-v1?slots=96&length=400"
POOL = 64
DAY = 300
NOTES = {
    CAPTIONS: "139 actions; cells in view, items, captions and prompt keys",
    BARE: "139 actions; cells in view and items",
    PICTURES: "17 actions; items, pictures of 64 x 64 x 3",
}
SIZES = {CAPTIONS: (1024, 256), BARE: (1024, 256), PICTURES: (256,)}
TEXT_BAR, PACKAGE_BAR, CRAFTAX_BAR, PICTURE_BAR, WORLD_BAR = 150_000, 100, 6, 30_000, 200


def ours(id: str, num_envs: int, steps: int, by_day: bool = False) -> tuple[list[float], float]:
    """Samples of steps per second, and compile seconds. Every part of every observation enters the carry.

    Rows begin at different hours, so that the balance of creatures, due in every tenth step of a world, is spread over
    steps. `by_day`: every repetition begins at the same states, in the middle of a day."""
    env, params = envs_jax.make(id)
    venv = envs_jax.VectorEnv(env, num_envs, policy="pool", pool_size=POOL)
    _, state = jax.jit(venv.reset)(jax.random.key(0), params)
    low, high = (60 - steps // 2, 61 - steps // 2) if by_day else (0, DAY)
    state = state.replace(env=state.env.replace(step=jax.random.randint(jax.random.key(4), (num_envs,), low, high)))

    def rollout(key: jax.Array, state: VectorState, total: jax.Array) -> tuple[VectorState, jax.Array]:
        def body(carry, key):
            state, total = carry
            action_key, step_key = jax.random.split(key)
            actions = jax.random.randint(action_key, (num_envs,), 0, len(env.action_names))
            obs, state, reward, terminated, truncated, info = venv.step(step_key, state, actions, params)
            seen = [*jax.tree.leaves(obs), reward, terminated, truncated, info["lost"]]
            return (state, total + sum(jnp.sum(x.astype(jnp.float32)) for x in seen)), None

        return jax.lax.scan(body, (state, total), jax.random.split(key, steps))[0]

    carry: list[Any] = [state, jnp.float32(0)]
    program, compile_seconds = compiled(rollout, jax.random.key(1), *carry)
    count = iter(range(10**6))

    def once() -> Any:
        new = program(jax.random.fold_in(jax.random.key(2), next(count)), *carry)
        carry[:] = carry if by_day else new
        return new[1]

    return rates(num_envs * steps, seconds(once, repeats=REPEATS, warmup=2)), compile_seconds


def new_worlds(count: int) -> tuple[list[float], float]:
    """Samples of worlds per second, and compile seconds."""
    env, params = envs_jax.make(BARE)
    resets = jax.vmap(env.reset, in_axes=(0, None))
    keys = jax.random.split(jax.random.key(0), count)
    program, compile_seconds = compiled(resets, keys, params)
    return rates(count, seconds(lambda: program(keys, params)[1], repeats=REPEATS)), compile_seconds


def our_rows(quick: bool) -> list[Row]:
    rows = []
    for id, sizes in SIZES.items():
        for num_envs in sizes[-1:] if quick else sizes:
            num_envs, steps = (32, 10) if quick else (num_envs, 64)
            samples, took = ours(id, num_envs, steps)
            rows.append(Row(f"{id}, {num_envs}", OURS, "steps/s", samples, took, NOTES[id]))
            if id == PICTURES:
                samples, took = ours(id, num_envs, steps, by_day=True)
                rows.append(Row(f"{id}, {num_envs}, by day", OURS, "steps/s", samples, took, NOTES[id]))
    samples, took = new_worlds(8 if quick else 128)
    rows.append(Row("new worlds", OURS, "worlds/s", samples, took))
    return rows


def run(quick: bool) -> Result:
    """Ours, then the peers, in one run."""
    rows = our_rows(quick)
    found = run_peer("peer_crafter.py", "quick" if quick else "full", str(REPEATS), str(POOL))
    theirs = [Row(**row) for row in found]
    by_case = {row.case: row for row in rows}
    best = fastest([row for row in rows if row.case.startswith(CAPTIONS + ",")])
    bars = []
    for row in rows:
        if row.case.startswith(f"{CAPTIONS}, ") and not quick:
            bars.append(f"{row.case}: {row.median:,.0f} steps/s {aim(row.median, TEXT_BAR)}")
        if row.case.endswith("by day"):
            bars.append(f"{row.case}: {row.median:,.0f} frames/s {aim(row.median, PICTURE_BAR)}")
    worlds = by_case["new worlds"].median
    bars.append(f"new worlds: {worlds:,.0f} a second {aim(worlds, WORLD_BAR)}")
    bars += [_ratio(best, theirs, "crafter 1.8.3, with pictures", PACKAGE_BAR)]
    bars += [_ratio(best, theirs, "Craftax-Classic-Symbolic", CRAFTAX_BAR)]
    notes = [
        "Scans of 64 steps with random actions drawn inside; ended episodes continue in one of a pool of "
        f"{POOL} prepared worlds; every part of every observation is added into the carry. Worlds are at all hours of "
        f"the day, except for the rows `by day`, whose steps are 28 to 92 of the {DAY} of a day.",
        "crafter: one process, resets left out, actions drawn before; its new worlds with numba, which opensimplex "
        "uses. Craftax-Classic has other rules (8 creatures at most), its symbolic observation of 1,345 floats, a pool "
        "of as many worlds, and either of XLA's emitters; a ratio is stated against its fastest row.",
    ]
    return Result(rows + theirs, bars, notes)


def _ratio(ours: Row, theirs: Sequence[Row], who: str, bar: float) -> str:
    rows = [row for row in theirs if row.who.startswith(who) and row.unit == ours.unit]
    ratio = speedup([ours], rows)
    return f"{ours.case}, with captions: {ratio:.1f} times {who} {aim(ratio, bar)}"
