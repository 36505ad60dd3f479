"""Record statistics of random play in crafter 1.8.3 into tests/data/crafter_play.json.

`nice python tests/parity/record_crafter_play.py 400 200` in an environment with crafter, NumPy and numba (four
minutes on one core, most of it resets). Pictures are not drawn: what draws them at night takes numbers from the world's
generator, which changes a world, but not the law of worlds. The arguments are numbers of episodes and of long runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


DATA = Path(__file__).parents[1] / "data" / "crafter_play.json"
KINDS = ("zombie", "skeleton", "cow", "arrow")
STEPS = 300
"""Steps of a long run: a day."""
EVERY = 10
"""Steps between two counts of objects in a long run."""


def densities(objects: np.ndarray) -> dict[str, tuple[float, float]]:
    """Mean numbers of objects per world by day (daylight above one half) and by night, with their standard errors over
    worlds.

    **Arguments:** `objects`, `[counts, worlds, 2, 4]`: every `EVERY` steps, in the world and near the player, by kind.
    """
    t = EVERY * np.arange(1, len(objects) + 1)
    day = 1 - np.abs(np.cos(np.pi * (t / 300 % 1 + 0.3))) ** 3 > 0.5
    found = {}
    for name, when in (("day", day), ("night", ~day)):
        worlds = objects[when].mean(axis=0)
        for i, place in enumerate(("in the world", "at less than 18 cells")):
            for k, kind in enumerate(KINDS):
                column = worlds[:, i, k]
                error = column.std(ddof=1) / len(column) ** 0.5
                found[f"{kind}s {place} by {name}"] = round(float(column.mean()), 4), round(float(error), 4)
    return found


def summary(values: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation."""
    return {"mean": round(float(np.mean(values)), 4), "deviation": round(float(np.std(values, ddof=1)), 4)}


def main(episodes: int, runs: int) -> None:
    """Play `episodes` until the player dies, and `runs` of a day in which death is ignored; write the record."""
    import crafter

    crafter.Env._obs = lambda self: None
    rng = np.random.default_rng(0)
    names = crafter.constants.achievements
    lengths, returns, unlocked = [], [], []
    for seed in range(episodes):
        env, done, total, length = crafter.Env(seed=seed), False, 0.0, 0
        env.reset()
        while not done:
            _, reward, done, info = env.step(int(rng.integers(17)))
            total, length = total + reward, length + 1
        lengths.append(length)
        returns.append(round(total, 1))
        unlocked.append([int(info["achievements"][name] > 0) for name in names])
    objects, crowd = [], 0
    for seed in range(runs):
        env = crafter.Env(seed=episodes + seed)
        env.reset()
        rows = []
        for t in range(1, STEPS + 1):
            env.step(int(rng.integers(17)))
            crowd = max(crowd, len(env._world.objects) - 1)
            if t % EVERY == 0:
                things = [o for o in env._world.objects if o is not env._player]
                close = [o for o in things if env._player.distance(o) < 18]
                rows.append([[sum(type(o).__name__.lower() == k for o in x) for k in KINDS] for x in (things, close)])
        objects.append(rows)
    unlocked = np.array(unlocked)
    value = {
        "made by": f"python tests/parity/record_crafter_play.py {episodes} {runs}",
        "crafter": "1.8.3",
        "episodes": {
            "count": episodes,
            "length": summary(lengths),
            "return": summary(returns),
            "unique achievements": summary(unlocked.sum(1)),
            "unlocked in": dict(zip(names, unlocked.sum(0).tolist())),
        },
        "long runs": {
            "count": runs,
            "steps": STEPS,
            "most objects": crowd,
            "by day and night": densities(np.array(objects).swapaxes(0, 1)),
        },
    }
    DATA.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
