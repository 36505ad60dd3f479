"""Crafter with random actions: steps with captions, without, with pictures; new worlds; compared with the package and
with Craftax-Classic."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import envs_jax
from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, run_peer, seconds, speedup
from benchmarks.processes import peer_rows
from benchmarks.python_peers import crafter_resets, crafter_steps
from envs_jax.resets import VectorState


TITLE = "Crafter: environment steps, pictures and new worlds, compared with crafter and Craftax-Classic"

BARE, PICTURES, BY_DAY, WORLDS = "without pictures", "with pictures", "with pictures, by day", "new worlds"
TEXT = "CrafterText-v1"
CASES = {
    "with captions": (TEXT, (1024, 256), "139 actions; cells in view, items, captions and prompt keys"),
    BARE: (f"{TEXT}?text=none", (1024, 256), "139 actions; cells in view and items"),
    PICTURES: ("CrafterReward-v1?slots=96&length=400", (256,), "17 actions; items, pictures of 64 x 64 x 3"),
}
"""What a world shows -> its id, batch sizes, and a note."""
POOL = 64
DAY = 300
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
    env, params = envs_jax.make(CASES[BARE][0])
    resets = jax.vmap(env.reset, in_axes=(0, None))
    keys = jax.random.split(jax.random.key(0), count)
    program, compile_seconds = compiled(resets, keys, params)
    return rates(count, seconds(lambda: program(keys, params)[1], repeats=REPEATS)), compile_seconds


def our_rows(quick: bool) -> list[Row]:
    rows = []
    for case, (id, sizes, note) in CASES.items():
        for num_envs in sizes[-1:] if quick else sizes:
            count, steps = (32, 10) if quick else (num_envs, 64)
            for name in (case, BY_DAY) if case == PICTURES else (case,):
                samples, took = ours(id, count, steps, by_day=name == BY_DAY)
                rows.append(Row(name, OURS, "steps/s", samples, took, f"{id}, {count} worlds; {note}"))
    samples, took = new_worlds(8 if quick else 128)
    rows.append(Row(WORLDS, OURS, "worlds/s", samples, took))
    return rows


def package_rows(quick: bool) -> list[Row]:
    """The package crafter: with its pictures, without, and its new worlds."""
    who, window, rows = "crafter 1.8.3", 0.2 if quick else 2.0, []
    for case, pictures in ((BARE, False), (PICTURES, True)):
        note = "17 actions; its own random worlds, resets left out"
        rows += peer_rows(case, who, "steps/s", crafter_steps, (pictures,), window=window, note=note)
    return rows + peer_rows(WORLDS, who, "worlds/s", crafter_resets, (), window=window, note="with numba")


def run(quick: bool) -> Result:
    """Ours, then the peers, in one run."""
    mine, theirs = our_rows(quick), package_rows(quick)
    craftax = [Row(**row) for row in run_peer("peer_craftax.py", "quick" if quick else "full", str(REPEATS), str(POOL))]

    def best(case: str, rows: list[Row] = mine) -> list[Row]:
        return [row for row in rows if row.case == case]

    bars = [
        f"{row.case}, {row.note.partition(';')[0]}: {row.figure:,.0f} steps/s {aim(row.figure, TEXT_BAR)}"
        for row in best("with captions")
    ]
    (by_day,), (worlds,) = best(BY_DAY), best(WORLDS)
    bars.append(f"{BY_DAY}: {by_day.figure:,.0f} frames/s {aim(by_day.figure, PICTURE_BAR)}")
    bars.append(f"{WORLDS}: {worlds.figure:,.0f} a second {aim(worlds.figure, WORLD_BAR)}")
    for case in (BARE, PICTURES):
        others = best(case, theirs)
        ratio = speedup(best(case), others)
        text = f"{case}, on both sides: {ratio:.1f} times crafter 1.8.3 ({fastest(others).note.partition(';')[0]})"
        bars.append(f"{text} {aim(ratio, PACKAGE_BAR)}")
    ratio = speedup(best("with captions"), craftax)
    bars.append(f"with captions: {ratio:.1f} times Craftax-Classic-Symbolic {aim(ratio, CRAFTAX_BAR)}")
    notes = [
        "Scans of 64 steps with random actions drawn inside; ended episodes continue in one of a pool of "
        f"{POOL} prepared worlds; every part of every observation is added into the carry. Worlds are at all hours of "
        f"the day, except for the rows `by day`, whose steps are 28 to 92 of the {DAY} of a day.",
        "Craftax-Classic has other rules (8 creatures at most), its symbolic observation of 1,345 floats, a pool "
        "of as many worlds, and either of XLA's emitters; a ratio is stated against its fastest row.",
    ]
    return Result(mine + theirs + craftax, bars, notes)
