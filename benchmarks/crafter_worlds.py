"""Crafter's worlds: how many are generated in a second, beside the package crafter, which generates one at a time."""

from __future__ import annotations

import time
from functools import partial

import jax

from benchmarks.harness import OURS, REPEATS, Result, Row, aim, compiled, fastest, rates, seconds, speedup


TITLE = "Crafter: generated worlds per second, compared with the package"

SLOTS = 96
BAR = 200


def package_seconds(worlds: int) -> list[float]:
    """The seconds that the package takes for each of some worlds, terrain and creatures only."""
    from crafter import constants, engine, objects, worldgen

    times = []
    for seed in range(worlds):
        world = engine.World((64, 64), constants.materials, (12, 12))
        world.reset(seed=seed)
        player = objects.Player(world, (32, 32))
        world.add(player)
        started = time.perf_counter()
        worldgen.generate_world(world, player)
        times.append(time.perf_counter() - started)
    return times


def run(quick: bool) -> Result:
    from envs_jax.crafter.worldgen import generate

    rows = []
    for batch in (1, 16) if quick else (1, 16, 256, 1024):
        keys = jax.random.split(jax.random.key(0), batch)
        program, compile_seconds = compiled(jax.vmap(partial(generate, slots=SLOTS)), keys)
        times = seconds(partial(program, keys))
        note = f"vmap over {batch}" if batch > 1 else "one world"
        rows.append(Row("worlds", OURS, "worlds/s", rates(batch, times), compile_seconds, note))
    package = Row("worlds", "crafter", "worlds/s", rates(1, package_seconds(REPEATS)), note="without numba; one core")
    best = fastest(rows).median
    bars = [f"{best:,.0f} worlds/s {aim(best, BAR)}, {speedup(rows, [package]):,.0f} times the package."]
    notes = ["The same rules, the same noise and the same law of random numbers; tests compare whole maps."]
    return Result([*rows, package], bars, notes)
