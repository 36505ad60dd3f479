"""Crafter's captions beside sentences written by hand, and beside plain Python that builds strings from the grammar."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.crafter import constants as c
from envs_jax.crafter.text import ellm, instances, smartplay


LEFT, RIGHT, UP, DOWN = range(4)
ORACLE_NAMES = [*c.MATERIALS, "zombie", "skeleton", "cow", *["arrow"] * 4, "plant", "plant", *["player"] * 5]


def world(cells=(), ground="path", facing=DOWN):
    """A view of one material, with other materials or objects at (x, y): `{(3, 3): "tree", (4, 2): "cow"}`."""
    view = np.zeros((9, 7, 2), np.uint8)
    view[..., 0] = c.MATERIALS.index(ground) + 1 if ground else 0
    view[4, 3, 1] = c.SPRITE_PLAYER + facing
    for (x, y), name in dict(cells).items():
        if name in c.MATERIALS:
            view[x, y, 0] = c.MATERIALS.index(name) + 1
        else:
            view[x, y, 1] = c.SPRITES.index(name) + 1
    return view


def items(**counts):
    vitals = dict.fromkeys(c.ITEMS[:4], 9)
    return np.array([(vitals | counts).get(name, 0) for name in c.ITEMS], np.int32)


def some_worlds(count, seed=0):
    """Views of few or many materials and objects, some at the border of the world; inventories; directions."""
    rng = np.random.default_rng(seed)
    views = np.zeros((count, 9, 7, 2), np.uint8)
    for view in views:
        kinds = rng.choice(12, rng.integers(1, 9), replace=False) + 1
        view[..., 0] = rng.choice(kinds, (9, 7))
        crowd = rng.random((9, 7)) < rng.choice([0.0, 0.05, 0.9])
        view[..., 1] = np.where(crowd, rng.integers(1, 10, (9, 7)), 0)
        left, right, top, bottom = np.where(rng.random(4) < 0.2, rng.integers(1, 4, 4), 0)
        for outside in (view[:left], view[9 - right :], view[:, :top], view[:, 7 - bottom :]):
            outside[...] = 0
    facing = rng.integers(0, 4, count)
    views[:, 4, 3, 1] = c.SPRITE_PLAYER + facing
    views[:, 4, 3, 0] = c.GRASS
    inventory = np.where(rng.random((count, 16)) < rng.random((count, 1)), rng.integers(0, 10, (count, 16)), 0)
    inventory[:, :4] = np.where(rng.random((count, 4)) < rng.random((count, 1)), 9, inventory[:, :4])
    inventory[::7, 3:] = np.where(np.arange(13) == 0, 9, 0)
    return views, inventory.astype(np.int32), facing.astype(np.int32), rng.random(count) < 0.1


@pytest.fixture(scope="module")
def ellm_program():
    def program(view, inventory, facing):
        seen = ellm.facts(view, inventory, facing)
        return seen, ellm.sentences(seen), ellm.caption(seen), ellm.prompt_key(seen)

    return jax.jit(jax.vmap(program))


@pytest.fixture(scope="module")
def batch():
    return some_worlds(500)


CASES = [
    # what the caption says of one thing, two things, three, none; targets; objects over materials
    ({}, {}, "you see path. "),
    ({"ground": "sand"}, {}, "you see . "),
    ({"ground": None}, {}, "you see . "),
    ({"cells": {(0, 0): "table"}}, {}, "you see crafting table, and path. "),
    ({"cells": {(0, 0): "cow", (1, 0): "zombie"}}, {}, "you see cow, path, and zombie. "),
    ({"ground": "grass"}, {}, "you see grass. you are targeting grass. "),
    ({"ground": "sand", "cells": {(4, 4): "table"}}, {}, "you see crafting table. you are targeting table. "),
    ({"ground": "sand", "cells": {(4, 4): "lava"}}, {}, "you see lava. "),
    ({"ground": "sand", "cells": {(4, 2): "cow"}, "facing": UP}, {}, "you see cow. you are targeting cow. "),
    ({"ground": "sand", "cells": {(3, 3): "arrow-up"}, "facing": LEFT}, {}, "you see . you are targeting arrow. "),
    (
        {"ground": "sand", "cells": {(5, 3): "plant-ripe"}, "facing": RIGHT},
        {},
        "you see plant. you are targeting plant. ",
    ),
    ({"ground": "sand", "cells": {(2, 2): "diamond"}}, {}, "you see diamond. "),
    ({"ground": "sand", "cells": {(4, 3): "diamond"}}, {}, "you see . "),  # the player hides what it stands on
    ({}, {"wood": 1}, "you see path. you have in your inventory wood. "),
    ({}, {"sapling": 9, "iron_sword": 1}, "you see path. you have in your inventory plant, iron_sword. "),
    (
        {},
        {"wood": 2, "stone": 3, "wood_pickaxe": 1},
        "you see path. you have in your inventory wood, stone, wood_pickaxe. ",
    ),
    ({}, {"food": 8}, "you see path. you feel hungry. "),
    ({}, {"health": 1, "drink": 0, "energy": 3}, "you see path. you feel hurt, thirsty, sleepy. "),
    (
        {"ground": "grass", "cells": {(4, 4): "tree", (0, 6): "water"}},
        {"wood": 1, "energy": 8},
        "you see grass, tree, and water. you are targeting tree. you have in your inventory wood. you feel sleepy. ",
    ),
]


def test_ellm_says_what_the_reference_says(ellm_program):
    views = np.stack([world(**view) for view, _, _ in CASES])
    inventories = np.stack([items(**counts) for _, counts, _ in CASES])
    facing = np.array([view.get("facing", DOWN) for view, _, _ in CASES], np.int32)
    _, _, captions, _ = ellm_program(views, inventories, facing)
    assert [ellm.ELLM.render(caption) for caption in captions] == [text.strip() for *_, text in CASES]


def ellm_oracle(view, inventory, facing):
    """The four sentences, as the reference describes them."""
    names = set()
    for material, seen in view.reshape(-1, 2):
        name = ORACLE_NAMES[11 + seen] if seen else ("", *ORACLE_NAMES)[material]
        names.add({"table": "crafting table"}.get(name, name))
    names = sorted(names - {"", "player", "sand", "arrow"})
    if len(names) > 1:
        names = [*names[:-1], "and " + names[-1]]
    visible = "you see " + ", ".join(names) + "."
    x, y = {LEFT: (3, 3), RIGHT: (5, 3), UP: (4, 2), DOWN: (4, 4)}[facing]
    material, seen = view[x, y]
    target = ORACLE_NAMES[11 + seen] if seen else ("", *ORACLE_NAMES)[material]
    targeting = "" if target in ("", "path", "sand", "lava") else f"you are targeting {target}."
    counts = dict(zip(c.ITEMS, inventory.tolist()))
    held = ["plant" if name == "sapling" else name for name in c.ITEMS[4:] if counts[name]]
    feelings = {"health": "hurt", "food": "hungry", "drink": "thirsty", "energy": "sleepy"}
    status = [word for name, word in feelings.items() if counts[name] < 9]
    return {
        "visible": visible,
        "target": targeting,
        "inventory": f"you have in your inventory {', '.join(held)}." if held else "",
        "status": f"you feel {', '.join(status)}." if status else "",
    }


@pytest.mark.slow
def test_ellm_and_its_keys_on_many_worlds(ellm_program, batch):
    views, inventories, facing, _ = batch
    seen, parts, captions, keys = ellm_program(views, inventories, facing)
    assert keys.dtype == jnp.uint32 and captions.shape == (500, ellm.SIZE) and captions.dtype == jnp.int16
    assert {name: part.shape[1] for name, part in parts.items()} == ellm.SIZES
    said, prompts = [], {}
    for i, (view, inventory) in enumerate(zip(views, inventories)):
        truth = ellm_oracle(view, inventory, int(facing[i]))
        assert {name: ellm.ELLM.render(part[i]) for name, part in parts.items()} == truth
        text = [truth[name] for name in ("visible", "target", "inventory", "status") if truth[name]]
        assert ellm.ELLM.render(captions[i]) == " ".join(text)
        one = ellm.Facts(seen.visible[i], seen.target[i], seen.inventory[i], seen.status[i])
        assert ellm.describe(one) == text
        shown = [part for part in text if not part.startswith("you feel")]
        shown += ["you feel sleepy."] if "sleepy" in truth["status"] else []
        prompt = " ".join(part.capitalize() for part in shown)
        assert ellm.describe_key(keys[i]) == prompt
        prompts.setdefault(int(keys[i]), prompt)
        said.append(len(shown))
    assert set(said) == {1, 2, 3, 4}, "the worlds of this test should have every length"
    assert len(set(prompts.values())) == len(prompts), "two keys have the same prompt"


def test_the_largest_caption_fits_and_no_other_number_is_a_key(ellm_program):
    everything = [*c.MATERIALS, *c.SPRITES[:9]]
    cells = {(i % 9, i // 9): name for i, name in enumerate(everything)} | {(4, 4): "cow"}
    full = items(health=1, food=1, drink=1, energy=1, **dict.fromkeys(c.ITEMS[4:], 1))
    one = [x[None] for x in (world(cells), full, np.array(DOWN))]
    seen, _, captions, keys = ellm_program(*one)
    assert np.all(captions[0] >= 0) and captions.shape[1] == 35
    assert int(seen.visible[0]) == (1 << 15) - 1 and int(seen.inventory[0]) == (1 << 12) - 1
    assert int(seen.status[0]) == 15
    assert ellm.describe_key(keys[0]).startswith(
        "You see coal, cow, crafting table, diamond, furnace, grass, iron, lava, path, plant, skeleton, stone, tree, "
        "water, and zombie. You are targeting cow. You have in your inventory plant, wood, stone, coal, iron, diamond, "
    )
    for wrong in (-1, 1 << 32, 15 << ellm.TARGET_BIT):
        with pytest.raises(ValueError, match=f"{wrong} .*prompt"):
            ellm.describe_key(wrong)


@pytest.fixture(scope="module")
def smartplay_program():
    def program(view, inventory, facing, sleeping):
        return [smartplay.caption(view, inventory, facing, sleeping, errors=errors) for errors in (False, True)]

    return jax.jit(jax.vmap(program))


def smartplay_oracle(view, inventory, facing, sleeping):
    """The sentences of SmartPlay, as the reference describes them; None where the published code fails."""
    counts = dict(zip(c.ITEMS, inventory.tolist()))
    text = "You are sleeping, and will not be able take actions until energy is full." if sleeping else ""
    if not sleeping and counts["health"] <= 0:
        text = "You died."
    where = {}
    for x in range(9):
        for y in range(7):
            material, seen = view[x, y]
            name = ORACLE_NAMES[11 + seen] if seen else ("None", *ORACLE_NAMES)[material]
            where.setdefault(name, []).append((abs(x - 4) + abs(y - 3), x, y))
    seen = []
    for name in [*c.MATERIALS, "cow", "zombie", "skeleton", "arrow", "plant"]:
        if name in where:
            steps, x, y = min(where[name])
            way = [w for w, true in (("up", y < 3), ("down", y > 3), ("left", x < 4), ("right", x > 4)) if true]
            seen.append(f"{name} at {steps} steps to your {'-'.join(way)}")
    text += (" " if text else "") + (f"You see: {', '.join(seen)}." if seen else "You see nothing away from you.")
    x, y = {LEFT: (3, 3), RIGHT: (5, 3), UP: (4, 2), DOWN: (4, 4)}[facing]
    front = next(name for name, cells in where.items() if any(cell[1:] == (x, y) for cell in cells))
    text += f"You face {front} at your front. Your status: "
    text += ", ".join(f"{name}: {counts[name]}/9" for name in c.ITEMS[:4]) + ". "
    held = [f"{counts[name]} {name}" for name in c.ITEMS[4:] if counts[name]]
    fails = view[0, 3, 0] == 0 or view[4, 0, 0] == 0 or front == "None"
    return text + (f"Your have {', '.join(held)}" if held else "You have nothing in your inventory."), fails


def test_smartplay_on_worlds_by_hand(smartplay_program):
    cases = [
        (
            world({(4, 4): "tree", (2, 1): "cow", (6, 1): "cow", (0, 3): "table"}, ground="grass"),
            items(wood=2, sapling=1, food=7),
            DOWN,
            False,
            "You see: grass at 1 steps to your left, tree at 1 steps to your down, table at 4 steps to your left, cow "
            "at 4 steps to your up-left.You face tree at your front. Your status: health: 9/9, food: 7/9, drink: 9/9, "
            "energy: 9/9. Your have 1 sapling, 2 wood",
        ),
        (
            world(ground=None),
            items(health=0),
            UP,
            False,
            "You died. You see nothing away from you.You face None at your front. Your status: health: 0/9, food: 9/9, "
            "drink: 9/9, energy: 9/9. You have nothing in your inventory.",
        ),
        (
            world({(5, 3): "arrow-left"}, ground="sand"),
            items(energy=2, iron_sword=1),
            RIGHT,
            True,
            "You are sleeping, and will not be able take actions until energy is full. You see: sand at 1 steps to "
            "your left, arrow at 1 steps to your right.You face arrow at your front. Your status: health: 9/9, food: "
            "9/9, drink: 9/9, energy: 2/9. Your have 1 iron_sword",
        ),
    ]
    views, inventories, facing, sleeping, texts = (list(column) for column in zip(*cases))
    columns = (np.stack(views), np.stack(inventories), np.array(facing, np.int32), np.array(sleeping))
    captions, strict = smartplay_program(*columns)
    assert [smartplay.SMARTPLAY.render(caption) for caption in captions] == texts
    assert smartplay.SMARTPLAY.render(strict[1]) == "Error, you are out of the map."


def test_smartplay_on_many_worlds(smartplay_program, batch):
    captions, strict = smartplay_program(*batch)
    assert captions.shape == (500, smartplay.SIZE) and captions.dtype == jnp.int16
    failures = 0
    for i, row in enumerate(zip(*batch)):
        truth, fails = smartplay_oracle(*row[:2], int(row[2]), bool(row[3]))
        assert smartplay.SMARTPLAY.render(captions[i]) == truth
        said = smartplay.SMARTPLAY.render(strict[i])
        assert said == ("Error, you are out of the map." if fails else truth)
        failures += fails
    assert 50 < failures < 300


def test_instances_on_worlds_by_hand():
    lists = instances.Instances(most=3)
    program = jax.jit(jax.vmap(lists.caption))
    cells = {
        (2, 2): "cow",
        (4, 4): "tree",
        (0, 0): "water",
        (8, 6): "zombie",
        (5, 1): "arrow-left",
        (4, 0): "plant-ripe",
    }
    views = np.stack([world(cells, ground="grass"), world(ground=None)])
    inventories = np.stack([items(wood=3, stone_pickaxe=1, energy=4), items()])
    captions = program(views, inventories, np.array([DOWN, LEFT]), np.array([False, True]))
    assert captions.shape == (2, lists.size) and captions.dtype == jnp.int16
    status = "Your status:\n- health: 9/9\n- food: 9/9\n- drink: 9/9\n- energy: "
    assert instances.INSTANCES.render(captions[0]) == (
        "You see:\n- tree 1 step down\n- cow 2 steps left and 1 step up\n- ripe plant 3 steps up\n- and 3 more\n"
        f"You face tree.\n{status}4/9\nYour inventory:\n- wood: 3\n- stone pickaxe: 1"
    )
    assert instances.INSTANCES.render(captions[1]) == (
        f"You are asleep.\nYou see nothing.\nYou face the end of the world.\n{status}9/9\nYour inventory is empty."
    )


def test_instances_list_every_cell_in_order(batch):
    """All 62 cells, or only those at the edge of an area, beside a loop over the cells."""
    views, inventories, facing, sleeping = batch
    everything = instances.Instances(most=80, ignore=("coal",), edges=("water", "grass", "tree"))
    captions = jax.jit(jax.vmap(everything.caption))(*batch)
    few = instances.Instances(most=5, ignore=("coal",), edges=("water", "grass", "tree"))
    short = jax.jit(jax.vmap(few.caption))(*batch)
    dropped = 0
    for i, view in enumerate(views):
        codes = np.where(view[..., 1] > 0, 12 + view[..., 1], view[..., 0])
        lines = []
        for x in range(9):
            for y in range(7):
                name = ("", *instances.NAMES, *["player"] * 5)[codes[x, y]]
                sides = [(x - 1, y), (x + 1, y), (x, y - 1), (x, y + 1)]
                inside = [codes[s] for s in sides if 0 <= s[0] < 9 and 0 <= s[1] < 7]
                middle = name in ("water", "grass", "tree") and all(near == codes[x, y] for near in inside)
                dropped += middle
                if name not in ("", "player", "coal") and not middle:
                    dx, dy = x - 4, y - 3
                    parts = [f"{abs(dx)} step{'s' * (abs(dx) > 1)} {'left' if dx < 0 else 'right'}"] if dx else []
                    parts += [f"{abs(dy)} step{'s' * (abs(dy) > 1)} {'up' if dy < 0 else 'down'}"] if dy else []
                    lines.append((abs(dx) + abs(dy), x, y, f"- {name} {' and '.join(parts)}"))
        lines = [line for *_, line in sorted(lines)]
        start = sleeping[i] + 1
        said = instances.INSTANCES.phrases_of(captions[i])[start:]
        assert said[: len(lines)] == lines and said[len(lines)].startswith("You face")
        rest = [f"- and {len(lines) - 5} more"] if len(lines) > 5 else []
        said = instances.INSTANCES.phrases_of(short[i])[start:]
        assert said[: min(5, len(lines)) + len(rest)] == lines[:5] + rest
    assert dropped > 100


def test_what_lists_refuse():
    with pytest.raises(ValueError, match="'gras'.*'grass'"):
        instances.Instances(ignore=("gras",))
    with pytest.raises(ValueError, match="most.*0.*1"):
        instances.Instances(most=0)
