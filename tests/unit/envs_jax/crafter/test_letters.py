"""Crafter as characters."""

import numpy as np

from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import action_set
from envs_jax.crafter.env import Crafter
from envs_jax.crafter.letters import KEYS, letters


def test_a_view_by_hand():
    view = np.zeros((9, 7, 2), np.uint8)
    view[..., 0] = c.GRASS
    view[0] = 0, 0  # outside the world
    view[1, :, 0] = [c.WATER, c.STONE, c.PATH, c.SAND, c.TREE, c.LAVA, c.COAL]
    view[2, :4, 0] = [c.IRON, c.DIAMOND, c.TABLE, c.FURNACE]
    view[3, :6, 1] = [c.SPRITES.index(x) + 1 for x in ("zombie", "skeleton", "cow", "arrow-up", "plant", "plant-ripe")]
    view[4, 3, 1] = c.SPRITE_PLAYER + 1
    inventory = np.array([9, 8, 7, 6, 0, 3] + [0] * 9 + [1])
    lines = letters(view, inventory).split("\n")
    assert lines[:7] == [
        "  ~ * Z . . . . .",
        "  # $ K . . . . .",
        "  : + C . . . . .",
        "  _ & ^ @ . . . .",
        "  T . p . . . . .",
        "  ! . P . . . . .",
        "  o . . . . . . .   facing right",
    ]
    assert lines[8] == "health 9, food 8, drink 7, energy 6, wood 3, iron sword 1"
    view[4, 3, 1] = c.SPRITE_ASLEEP
    lines = letters(view, inventory).split("\n")
    assert lines[3] == "  _ & ^ z . . . ." and "facing" not in lines[6]


def test_every_action_of_the_package_has_a_key():
    env = Crafter(image=None)
    assert set(KEYS.values()) == set(c.ACTIONS) and len(env.keys) == 17
    assert env.keys["space"] == c.DO and env.keys["1"] == c.ACTIONS.index("make_wood_pickaxe")
    assert Crafter(image=None, actions=27).keys == {"z": 5}  # others are named otherwise in ELLM's sets
    assert action_set(17).names[env.keys["t"]] == "place_table"
