"""Names, sizes and numbers of Crafter 1.8.3: materials, items, achievements, actions, recipes, creatures.

They are those of the package's `data.yaml`, `objects.py` and `env.py`; `tests/parity/test_crafter.py` compares them
with the installed package.
"""

from __future__ import annotations


AREA = 64
"""Cells per side of the world. Cells are numbered `x * 64 + y`, where x counts to the right and y down."""
CELLS = AREA * AREA
VIEW = (9, 7)
"""Columns and rows of cells around the player that an observation shows; the package draws two rows of items below."""
CHUNK = 12
"""Cells per side of a chunk, the square in which creatures are balanced; the last ones of each row are cut off at 4."""
CHUNKS = 6
"""Chunks per side."""
ACTIVE_DISTANCE = 18
"""Objects at an L1 distance of the player below this move; others wait."""
BALANCE_EVERY = 10
"""Steps between two balances of the creatures of all chunks."""
DAY = 300
"""Steps of a day."""
MAX_COUNT = 9
"""The largest count of an item."""
RIPE = 300
"""A plant is ripe if it is older than this, in steps."""

MATERIALS = (
    "water",
    "grass",
    "stone",
    "path",
    "sand",
    "tree",
    "lava",
    "coal",
    "iron",
    "diamond",
    "table",
    "furnace",
)
"""Material `i + 1` of a map is `MATERIALS[i]`; 0 is outside the world."""
OUTSIDE = 0
WATER, GRASS, STONE, PATH, SAND, TREE, LAVA, COAL, IRON, DIAMOND, TABLE, FURNACE = range(1, 13)
WALKABLE = (GRASS, PATH, SAND)
"""Materials that every object may enter; the player may enter lava too, arrows lava and water."""

ITEMS = (
    "health",
    "food",
    "drink",
    "energy",
    "sapling",
    "wood",
    "stone",
    "coal",
    "iron",
    "diamond",
    "wood_pickaxe",
    "stone_pickaxe",
    "iron_pickaxe",
    "wood_sword",
    "stone_sword",
    "iron_sword",
)
HEALTH, FOOD, DRINK, ENERGY = range(4)
VITALS = 4
"""The first items are vital signs, which begin at 9; the others begin at 0."""

ACHIEVEMENTS = (
    "collect_coal",
    "collect_diamond",
    "collect_drink",
    "collect_iron",
    "collect_sapling",
    "collect_stone",
    "collect_wood",
    "defeat_skeleton",
    "defeat_zombie",
    "eat_cow",
    "eat_plant",
    "make_iron_pickaxe",
    "make_iron_sword",
    "make_stone_pickaxe",
    "make_stone_sword",
    "make_wood_pickaxe",
    "make_wood_sword",
    "place_furnace",
    "place_plant",
    "place_stone",
    "place_table",
    "wake_up",
)

ACTIONS = (
    "noop",
    "move_left",
    "move_right",
    "move_up",
    "move_down",
    "do",
    "sleep",
    "place_stone",
    "place_table",
    "place_furnace",
    "place_plant",
    "make_wood_pickaxe",
    "make_stone_pickaxe",
    "make_iron_pickaxe",
    "make_wood_sword",
    "make_stone_sword",
    "make_iron_sword",
)
"""The package's actions, in its order. Every other set of actions is made of these, see `envs_jax.crafter.actions`."""
NOOP, LEFT, RIGHT, UP, DOWN, DO, SLEEP, PLACE, MAKE = 0, 1, 2, 3, 4, 5, 6, 7, 11
"""Commands; `PLACE` and `MAKE` are the first of their kind."""

DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))
"""Steps (x, y) to the left, right, up and down: the four directions that something can face, by number."""

KINDS = ("zombie", "skeleton", "cow", "arrow", "plant")
"""Kind `i + 1` of an object is `KINDS[i]`; 0 is an empty slot. The player is no object of a slot."""
ZOMBIE, SKELETON, COW, ARROW, PLANT = range(1, 6)
HEALTH_OF = {ZOMBIE: 5, SKELETON: 3, COW: 3, ARROW: 0, PLANT: 1}
"""Hit points of a new object."""

SPRITES = (
    "zombie",
    "skeleton",
    "cow",
    "arrow-left",
    "arrow-right",
    "arrow-up",
    "arrow-down",
    "plant",
    "plant-ripe",
    "player-left",
    "player-right",
    "player-up",
    "player-down",
    "player-sleep",
)
"""Objects that an observation shows on top of a cell: code `i + 1` is `SPRITES[i]`, 0 is nothing. The names are those
of the package's textures."""
SPRITE_ZOMBIE, SPRITE_SKELETON, SPRITE_COW, SPRITE_ARROW, SPRITE_PLANT, SPRITE_RIPE, SPRITE_PLAYER, SPRITE_ASLEEP = (
    1,
    2,
    3,
    4,
    8,
    9,
    10,
    14,
)
"""Codes; arrows and the player add the direction that they face."""
