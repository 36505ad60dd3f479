"""BabyAI's mazes with random actions, including the generation of new levels."""

from __future__ import annotations

from benchmarks.envs_babyai import compiler_options, minigrid, ours
from benchmarks.harness import OURS, REPEATS, Result, Row, run_peer


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
    rows, bars, slowest = [], [], 0.0
    for id in (*BARS, *SHARED):
        samples, compile_seconds = ours(id, num_envs, steps, compiler_options(), fresh_pool=min(POOL, num_envs))
        slowest = max(slowest, compile_seconds)
        rows.append(Row(id, OURS, "steps/s", samples, compile_seconds, "view, direction, mission"))
        mine = rows[-1].median
        theirs = minigrid(id, 300 if quick else 3000)
        rows.append(Row(id, "minigrid 3.2.0", "steps/s", theirs, None, "one process; the same observations"))
        ratio = mine / rows[-1].median
        if id in BARS:
            verdict = "met" if ratio >= BARS[id] else "missed"
            bars.append(f"{id}: {ratio:.0f} times minigrid (aim: {BARS[id]}, {verdict})")
        if id in SHARED and not quick:
            for who, result in run_peer("peer_grids.py", str(num_envs), str(steps), str(REPEATS), SHARED[id]).items():
                if "error" in result:
                    rows.append(Row(id, who, "steps/s", [float("nan")], None, result["error"]))
                    continue
                rows.append(Row(id, who, "steps/s", result["samples"], result["compile_seconds"], "no missions"))
                ratio = mine / rows[-1].median
                bars.append(f"{id}: {ratio:.1f} times {who} (aim: 1, {'met' if ratio >= 1 else 'missed'})")
    verdict = "met" if slowest < COMPILE_BAR else "missed"
    bars.append(f"the slowest to compile took {slowest:.1f} s (aim: under {COMPILE_BAR} s, {verdict})")
    notes = [
        f"{num_envs} environments in one scan of {steps} steps; random actions drawn inside; every scan first makes a "
        f"pool of {min(POOL, num_envs)} new worlds, and ended episodes continue in one of them; every part of every "
        "observation is added into the carry.",
        "minigrid steps one environment in Python and generates a new world at every reset.",
    ]
    return Result(rows, bars, notes)
