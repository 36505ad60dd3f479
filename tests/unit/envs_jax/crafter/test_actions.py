"""Sets of actions: their names, what they can be done to, and which can have an effect."""

import numpy as np
import pytest

from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import FULL_MASK, NOTHING, action_set, index, valid


VALID = (
    *("do nothing", "move left", "move right", "move up", "move down", "sleep"),
    *("mine stone", "mine coal", "mine iron", "mine diamond"),
    *("eat cow", "eat plant"),
    *("attack zombie", "attack skeleton", "attack cow"),
    *("chop tree", "chop grass"),
    "drink water",
    *("place stone", "place crafting table", "place furnace", "place plant"),
    *("make crafting table", "make wood pickaxe", "make stone pickaxe", "make iron pickaxe"),
    *("make wood sword", "make stone sword", "make iron sword"),
)
"""The 29 actions of ELLM that can have an effect (`text_crafter/text_crafter/text_env`)."""


def bits(mask):
    return [i for i in range(32) if int(mask) >> i & 1]


def test_the_packages_set():
    actions = action_set(17)
    assert actions.names == c.ACTIONS and actions.command.tolist() == list(range(17))
    assert set(actions.materials.tolist()) == set(actions.kinds.tolist()) == {FULL_MASK}
    assert np.all(actions.noun_material == -1) and np.all(actions.noun_kind == -1) and np.all(actions.noun_item == -1)


def test_smartplays_set():
    actions = action_set(20)
    assert actions.names == (
        *("do nothing", "move left", "move right", "move up", "move down", "eat", "drink", "attack", "collect"),
        *("sleep", "place stone", "place crafting table", "place furnace", "place plant"),
        *("make wood pickaxe", "make stone pickaxe", "make iron pickaxe"),
        *("make wood sword", "make stone sword", "make iron sword"),
    )
    assert actions.command.tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert set(actions.materials.tolist()) == set(actions.kinds.tolist()) == {FULL_MASK}


def test_ellms_139():
    actions = action_set(139)
    assert len(actions.names) == len(set(actions.names)) == 139
    # 6 + verb * 19 + noun
    assert actions.names[6] == "mine zombie" and actions.names[6 + 3 * 19 + 9] == "chop grass"
    assert actions.names[6 + 6 * 19 + 18] == actions.names[138] == "make iron sword"
    found = {name for name, can in zip(actions.names, valid(actions)) if can}
    assert found == set(VALID) and len(VALID) == 29
    for name, i in (("tree", "chop tree"), ("grass", "chop grass"), ("water", "drink water"), ("iron", "mine iron")):
        row = index(actions, i)
        assert actions.command[row] == c.DO and actions.kinds[row] == 0
        assert bits(actions.materials[row]) == [c.MATERIALS.index(name) + 1]
    for name, i in (("cow", "eat cow"), ("cow", "attack cow"), ("plant", "eat plant"), ("zombie", "attack zombie")):
        row = index(actions, i)
        assert actions.command[row] == c.DO and actions.materials[row] == 0
        assert bits(actions.kinds[row]) == [c.KINDS.index(name) + 1]
    commands = {name: actions.command[index(actions, name)] for name in actions.names}
    assert commands["make crafting table"] == commands["place crafting table"] == c.ACTIONS.index("place_table")
    assert commands["place furnace"] == c.ACTIONS.index("place_furnace") and commands["make furnace"] == NOTHING
    assert commands["place plant"] == c.ACTIONS.index("place_plant") and commands["attack plant"] == NOTHING
    assert commands["do nothing"] == c.NOOP  # which succeeds, as no other action without effect does


def test_nouns_of_ellms_actions():
    actions = action_set(139)

    def named(name):
        row = index(actions, name)
        return actions.noun_material[row], actions.noun_kind[row], actions.noun_item[row]

    assert named("eat tree") == (c.TREE, -1, -1)
    assert named("chop cow") == (-1, c.COW, -1)
    assert named("place plant") == (-1, c.PLANT, -1)  # the item is called sapling
    assert named("make crafting table") == (-1, -1, -1)  # the material is called table
    assert named("eat furnace") == (c.FURNACE, -1, -1)
    assert named("mine iron") == (c.IRON, -1, c.ITEMS.index("iron"))  # a material and an item
    assert named("drink stone sword") == (-1, -1, c.ITEMS.index("stone_sword"))
    assert named("sleep") == (-1, -1, -1)


def test_ellms_27():
    actions, every = action_set(27), action_set(139)
    assert set(actions.names) == set(VALID) - {"eat cow", "make crafting table"} and len(actions.names) == 27
    for i, name in enumerate(actions.names):
        row = index(every, name)
        for part in ("command", "materials", "kinds", "noun_material", "noun_kind", "noun_item"):
            assert getattr(actions, part)[i] == getattr(every, part)[row], (name, part)


def test_what_is_refused():
    with pytest.raises(ValueError, match="actions.*28.*17, 20, 27, 139"):
        action_set(28)
    with pytest.raises(KeyError, match="'chop tre'.*'chop tree'"):
        index(action_set(27), "chop tre")
