"""BabyAI's mazes with random actions, including the generation of new levels."""

from __future__ import annotations

from benchmarks.envs_babyai import (
    PEER_RESETS,
    PEER_VIEWS,
    both_emitters,
    fast_emitters,
    minigrid_rows,
    our_rows,
    ours,
    peer_rows,
)
from benchmarks.harness import REPEATS, Result, aim, fastest, speedup


TITLE = "BabyAI's mazes: environment steps including world generation, compared with minigrid and JAX grid worlds"

NUM_ENVS, STEPS, POOL = 1024, 200, 512

BARS = {"BabyAI-GoTo-v0": 80, "BabyAI-BossLevel-v0": 60}
"""Target speed-ups over minigrid in steps per second."""

COMPILE_BAR = 15
"""Maximum compile time of a level in seconds."""

SHARED = {
    "BabyAI-KeyCorridorS3R3-v0": "navix:Navix-KeyCorridorS3R3-v0",
    "BabyAI-KeyCorridorS6R3-v0": "navix:Navix-KeyCorridorS6R3-v0",
    "BabyAI-UnlockPickup-v0": "xland-minigrid:MiniGrid-UnlockPickUp",
    "BabyAI-BlockedUnlockPickup-v0": "xland-minigrid:MiniGrid-BlockedUnlockPickUp",
}
"""Levels that other JAX packages have too, without text missions."""


def run(quick: bool) -> Result:
    """Steps per second: ours, minigrid's, and those of navix and XLand-MiniGrid on shared levels."""
    num_envs, steps = (64, 20) if quick else (NUM_ENVS, STEPS)
    pool = min(POOL, num_envs)
    rows, bars, slowest = [], [], 0.0
    for id in list(SHARED)[-1:] if quick else (*BARS, *SHARED):
        options = both_emitters() if id in SHARED else fast_emitters()
        mine = our_rows(id, ours(id, num_envs, steps, options, fresh_pool=pool))
        slowest = max(slowest, *(row.compile_seconds or 0 for row in mine))
        reference = minigrid_rows(id, quick)
        rows += [*mine, *reference]
        if id in BARS:
            ratio, best = speedup(mine, reference), fastest(reference)
            bars.append(f"{id}: {ratio:.0f} times minigrid ({best.note}) {aim(ratio, BARS[id])}")
        if id in SHARED:
            peers = peer_rows(id, [SHARED[id]], (num_envs, steps, REPEATS, pool, 1))
            rows += peers
            ratio, best = speedup(mine, peers), fastest(peers)
            bars.append(f"{id}: {ratio:.2f} times {best.who} ({best.note}) {aim(ratio, 1)}")
    bars.append(f"the slowest to compile took {slowest:.1f} s {aim(slowest, COMPILE_BAR, below=True)}")
    notes = [
        f"{num_envs} environments in one scan of {steps} steps; random actions drawn inside; every scan first makes a "
        f"pool of {pool} new worlds, and ended episodes continue in one of them; every part of every observation is "
        "added into the carry.",
        PEER_RESETS,
        PEER_VIEWS,
    ]
    return Result(rows, bars, notes)
