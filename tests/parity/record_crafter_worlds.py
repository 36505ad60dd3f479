"""Record statistics of the worlds that crafter 1.8.3 generates into tests/data/crafter_worlds.json.

`nice python tests/parity/record_crafter_worlds.py 3000` in an environment with crafter, NumPy and numba: a world takes
a tenth of a second, and a second without numba. World `i` has the seed `i`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


DATA = Path(__file__).parents[1] / "data" / "crafter_worlds.json"
TILES = ("water", "grass", "stone", "path", "sand", "tree", "lava", "coal", "iron", "diamond")
CREATURES = ("zombie", "skeleton", "cow")
RINGS = (0, 6, 12, 20, 28, 46)
"""Bounds of the distances to the player's first cell that are counted apart."""
X, Y = np.divmod(np.arange(4096), 64)
RING = np.digitize(np.hypot(X - 32, Y - 32), RINGS[1:-1])
CHUNK = X // 12 * 6 + Y // 12


def measures(material: np.ndarray, kind: np.ndarray, cell: np.ndarray) -> dict[str, float]:
    """Counts of one world.

    **Arguments:** `material`, integers `[4096]`, 1 for the first of `TILES`, of the cells `x * 64 + y`; `kind` and
    `cell`, integers `[N]`, of its creatures, 1 for the first of `CREATURES`.
    **Returns:** the share of each tile and the number of each creature, in all and by ring; pairs of equal path cells
    side by side and one above the other; the chunks that hold a creature or the player.
    """
    found = {name: float(np.mean(material == i + 1)) for i, name in enumerate(TILES)}
    found |= {name: float(np.sum(kind == i + 1)) for i, name in enumerate(CREATURES)}
    for r in range(len(RINGS) - 1):
        here = RING == r
        for name in ("water", "grass", "stone", "path"):
            found[f"{name} in ring {r}"] = float(np.mean(material[here] == TILES.index(name) + 1))
        for i, name in enumerate(CREATURES):
            found[f"{name} in ring {r}"] = float(np.sum((kind == i + 1) & (RING[cell] == r)))
    grid = material.reshape(64, 64) == TILES.index("path") + 1
    found["path beside path"] = float(np.sum(grid[1:] & grid[:-1]))
    found["path below path"] = float(np.sum(grid[:, 1:] & grid[:, :-1]))
    found["chunks"] = float(len({CHUNK[32 * 64 + 32], *CHUNK[cell]}))
    return found


def package_world(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The material, and the kinds and cells of the creatures, of one world of the package; see `measures`."""
    from crafter import constants, engine, objects, worldgen

    world = engine.World((64, 64), constants.materials, (12, 12))
    world.reset(seed=seed)
    player = objects.Player(world, (32, 32))
    world.add(player)
    worldgen.generate_world(world, player)
    kinds = [objects.Zombie, objects.Skeleton, objects.Cow]
    found = [(kinds.index(type(o)) + 1, o.pos[0] * 64 + o.pos[1]) for o in world.objects if o is not player]
    kind, cell = np.array(found, int).reshape(-1, 2).T
    return world._mat_map.reshape(-1), kind, cell


def main(worlds: int) -> None:
    rows = [measures(*package_world(seed)) for seed in range(worlds)]
    table = np.array([list(row.values()) for row in rows])
    moments = {
        name: {"mean": round(float(x.mean()), 7), "deviation": round(float(x.std(ddof=1)), 7)}
        for name, x in zip(rows[0], table.T)
    }
    said = {
        "made_by": f"python tests/parity/record_crafter_worlds.py {worlds}",
        "package": "crafter 1.8.3",
        "worlds": worlds,
        "moments": moments,
    }
    DATA.write_text(json.dumps(said, indent=1) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
