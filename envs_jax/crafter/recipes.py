"""Costs and results of collecting, placing and making (crafter's `data.yaml`), as tables by material and by command."""

from __future__ import annotations

import numpy as np

from envs_jax.crafter import constants as c


def _by_material(default: int, **values: int) -> np.ndarray:
    """int32 `[13]`, a number for every material."""
    table = np.full(len(c.MATERIALS) + 1, default, np.int32)
    for name, value in values.items():
        table[c.MATERIALS.index(name) + 1] = value
    return table


def item(name: str) -> int:
    return c.ITEMS.index(name)


_COLLECTED = {"tree": "wood", "water": "drink", "grass": "sapling"} | {
    x: x for x in ("stone", "coal", "iron", "diamond")
}
RECEIVES = _by_material(-1, **{material: item(received) for material, received in _COLLECTED.items()})
"""The item that collecting a material gives."""
NEEDS = _by_material(
    -1,
    stone=item("wood_pickaxe"),
    coal=item("wood_pickaxe"),
    iron=item("stone_pickaxe"),
    diamond=item("iron_pickaxe"),
)
"""The item without which a material cannot be collected."""
LEAVES = _by_material(0, tree=c.GRASS, water=c.WATER, grass=c.GRASS) + _by_material(
    0, stone=c.PATH, coal=c.PATH, iron=c.PATH, diamond=c.PATH
)
"""The material that collecting a material leaves."""
COLLECTS = _by_material(
    -1, **{material: c.ACHIEVEMENTS.index(f"collect_{item}") for material, item in _COLLECTED.items()}
)
"""The achievement of collecting a material."""
SAPLING_CHANCE = 0.1
"""Probability that collecting grass gives a sapling."""

PLACE_TABLE, PLACE_PLANT = c.ACTIONS.index("place_table"), c.ACTIONS.index("place_plant")
_COSTS: dict[str, dict[str, int]] = {
    "place_stone": {"stone": 1},
    "place_table": {},  # a parameter
    "place_furnace": {"stone": 4},
    "place_plant": {"sapling": 1},
    **{f"make_wood_{tool}": {"wood": 1} for tool in ("pickaxe", "sword")},
    **{f"make_stone_{tool}": {"wood": 1, "stone": 1} for tool in ("pickaxe", "sword")},
    **{f"make_iron_{tool}": {"wood": 1, "coal": 1, "iron": 1} for tool in ("pickaxe", "sword")},
}
COSTS = np.array(
    [[_COSTS.get(name, {}).get(item, 0) for item in c.ITEMS] for name in (*c.ACTIONS, "nothing")], np.int32
)
"""int32 `[18, 16]`, what a command uses up; the wood of a table is a parameter."""
GIVES = np.array(
    [[name == f"make_{item}" for item in c.ITEMS] for name in (*c.ACTIONS, "nothing")],
    np.int32,
)
"""int32 `[18, 16]`, the tool that a command makes."""
CREDITS = np.array([c.ACHIEVEMENTS.index(name) if name in _COSTS else -1 for name in (*c.ACTIONS, "nothing")], np.int32)
"""int32 `[18]`, the achievement of placing or making something."""
PLACES = np.array([0] * c.PLACE + [c.STONE, c.TABLE, c.FURNACE, 0] + [0] * 7, np.int32)
"""int32 `[18]`, the material that a command places."""
_SOLID = 1 << c.GRASS | 1 << c.SAND | 1 << c.PATH
PLACEABLE_ON = np.array(
    [0] * c.PLACE + [_SOLID | 1 << c.WATER | 1 << c.LAVA, _SOLID, _SOLID, 1 << c.GRASS] + [0] * 7, np.uint32
)
"""uint32 `[18]`, the materials that a command places something on, as bits."""
NEEDS_FURNACE = np.array(["make_iron" in name for name in (*c.ACTIONS, "nothing")])

SWORD_ITEMS = np.array([item(f"{x}_sword") for x in ("wood", "stone", "iron")], np.int32)
SWORDS = np.array([2, 3, 5], np.int32)
"""Damage with a sword of wood, stone, iron."""
