"""Crafter's rules in small worlds by hand: what an action does, ELLM's two signs of success, rewards, ends, tasks, and
what finds no place. All run the same compiled step, `ROWS` worlds at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import ActionSet, action_set
from envs_jax.crafter.env import Crafter
from envs_jax.crafter.reference import room_of
from envs_jax.crafter.state import State, objects, word
from envs_jax.crafter.tasks import task_index


ROWS, SLOTS, HERE = 64, 64, (32, 32)
ELLM, PACKAGE = action_set(139), action_set(17)
PARTS = [part for part in ActionSet.__dataclass_fields__ if part != "names"]
ENV = Crafter(image=None, slots=SLOTS, task="survival")  # a task compiles what every task needs; rows choose theirs
ENV.actions = ActionSet(
    (*ELLM.names, *PACKAGE.names),
    **{part: np.concatenate([getattr(s, part) for s in (ELLM, PACKAGE)]) for part in PARTS},
)
PARAMS = {"ellm": envs_jax.make("CrafterText-v1")[1], "package": envs_jax.make("CrafterReward-v1")[1]}
STEP = jax.jit(jax.vmap(ENV.step))
FULL = {"health": 9, "food": 9, "drink": 9, "energy": 9}
WAYS = ("left", "right", "up", "down")


def world(things=(), cells=None, ground="sand", at=HERE, facing="down", items=None, **fields):
    """A world of one material. **Arguments:** `things`, rows of a kind, a cell relative to the player, health (None: of
    a new one) and counter; `cells`, materials by relative cell; `items`, counts beside full vital signs; `fields` of
    `State`."""
    material = np.full((c.AREA, c.AREA), c.MATERIALS.index(ground) + 1, np.uint8)
    for (x, y), name in (cells or {}).items():
        material[at[0] + x, at[1] + y] = c.MATERIALS.index(name) + 1
    slots = np.zeros(SLOTS, np.uint32)
    for i, (kind, (x, y), *more) in enumerate(things):
        number = c.KINDS.index(kind) + 1
        health, counter = [*more, *(None, 0)[len(more) :]]
        cell = (at[0] + x) * c.AREA + at[1] + y
        slots[i] = word(cell, number, c.HEALTH_OF[number] if health is None else health, counter)
    counts = FULL | (items or {})
    inventory = np.array([counts.get(name, 0) for name in c.ITEMS], np.int32)
    values = {name: np.int32(0) for name in ("hunger", "thirst", "fatigue", "recover", "step", "progress", "lost")}
    values |= {"achievements": np.zeros(22, np.int32), "sleeping": np.bool_(False), "used": np.int32(len(things))}
    values |= {"position": np.array(at, np.int32), "facing": np.int32(WAYS.index(facing)), "inventory": inventory}
    values |= {"material": material.reshape(-1), "room": room_of(material), "slots": slots}
    values |= {"touched": np.full(2, 0xFFFFFFFF, np.uint32), "last_health": inventory[c.HEALTH]}
    fields = {name: np.asarray(value, np.asarray(values[name]).dtype) for name, value in fields.items()}
    return State(**(values | fields))


def number(name, variant="ellm"):
    return ELLM.names.index(name) if variant == "ellm" else 139 + PACKAGE.names.index(name)


def stacked(rows):
    rows = [*rows, *[rows[-1]] * (ROWS - len(rows))]
    return jax.tree.map(lambda *x: np.stack([np.asarray(v) for v in x]), *rows)


def run(worlds, scripts, variants="ellm", seed=0, **changes):
    """Every world's script of actions. **Arguments:** `variants`, of all or of each; `changes` to all parameters.
    **Returns:** a list with the values of every step, and the last states."""
    variants = [variants] * len(worlds) if isinstance(variants, str) else variants
    kinds = {name: np.asarray(x).dtype for name, x in vars(PARAMS["ellm"]).items()}
    changes = {name: np.asarray(value, kinds[name]) for name, value in changes.items()}
    params = stacked([PARAMS[variant].replace(**changes) for variant in variants])
    state, steps = stacked(worlds), []
    for t in range(len(scripts[0])):
        actions = [number(script[t], variant) for script, variant in zip(scripts, variants)]
        actions = np.array(actions + actions[-1:] * (ROWS - len(actions)), np.int32)
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), t), ROWS)
        obs, state, reward, terminated, truncated, info = STEP(keys, state, actions, params)
        step = {"reward": reward, "terminated": terminated, "truncated": truncated, **info, "state": state, **obs}
        steps.append(jax.device_get(step))
    return steps


def held(step, row, name):
    return int(step["inventory"][row, c.ITEMS.index(name)])


def achieved(step, row):
    return {name for name, n in zip(c.ACHIEVEMENTS, step["achievements"][row]) if n}


def facing(name, **more):
    """A world where the player faces a material or an object."""
    if name in c.MATERIALS:
        return world(cells={(0, 1): name}, **more)
    return world(things=[(name, (0, 1), None, more.pop("counter", 0))], **more)


TOOLS = {"wood_pickaxe": 1, "stone_pickaxe": 1, "iron_pickaxe": 1}
FLAGS = [
    # the world, ELLM's action, its effect, and the lenient test
    (world(), "do nothing", True, True),
    (world(), "move left", True, True),
    (world(cells={(-1, 0): "tree"}), "move left", False, False),
    (world(), "sleep", False, False),  # not tired
    (world(items={"energy": 8}), "sleep", True, True),
    (world(items={"energy": 8}, sleeping=True), "sleep", True, True),
    (world(items={"energy": 8}, sleeping=True), "do nothing", False, False),
    (facing("tree", items={"energy": 8}, sleeping=True), "chop tree", False, False),  # who sleeps names nothing
    (facing("tree"), "chop tree", True, True),
    (facing("tree", items={"wood": 9}), "chop tree", False, True),  # no more than nine; but it is aimed at
    (facing("tree"), "mine tree", False, True),  # nonsense that names the material
    (facing("tree"), "chop grass", False, False),
    (facing("water", items={"drink": 5}), "drink water", True, True),
    (facing("water"), "drink water", False, True),
    (facing("stone"), "mine stone", False, True),  # without a pickaxe
    (facing("stone", items=TOOLS), "mine stone", True, True),
    (facing("coal", items=TOOLS), "mine stone", False, False),
    (facing("iron", items={"wood_pickaxe": 1}), "mine iron", False, True),
    (facing("iron", items={"stone_pickaxe": 1}), "mine iron", True, True),
    (facing("diamond", items={"iron_pickaxe": 1}), "mine diamond", True, True),
    (facing("zombie"), "attack zombie", True, True),
    (facing("zombie"), "attack cow", False, False),
    (facing("zombie"), "eat zombie", False, True),
    (facing("skeleton"), "attack skeleton", True, True),
    (facing("cow"), "eat cow", True, True),
    (facing("cow"), "attack cow", True, True),
    (facing("plant", counter=300), "eat plant", False, True),  # not ripe
    (facing("plant", counter=301), "eat plant", True, True),
    (facing("plant", counter=301), "attack plant", False, True),
    (facing("tree", items={"stone": 1}), "place stone", False, True),  # in the hand, though there is no room
    (facing("tree"), "place stone", False, False),
    (facing("water", items={"stone": 1}), "place stone", True, True),
    (facing("lava", items={"stone": 1}), "place stone", True, True),
    (facing("stone", items={"wood": 1}), "place crafting table", False, False),
    (facing("sand", items={"wood": 1}), "place crafting table", True, True),
    (facing("sand", items={"wood": 1}), "make crafting table", True, True),
    (facing("table"), "eat crafting table", False, False),  # the material is called table
    (facing("furnace"), "eat furnace", False, True),
    (facing("sand", items={"stone": 3}), "place furnace", False, False),
    (facing("sand", items={"stone": 4}), "place furnace", True, True),
    (facing("grass", items={"sapling": 1}), "place plant", True, True),
    (facing("sand", items={"sapling": 1}), "place plant", False, False),  # an item called sapling, not plant
    (facing("table", items={"wood": 1}), "make wood pickaxe", True, True),
    (facing("sand", items={"wood": 1}), "make wood pickaxe", False, False),
    (facing("sand", items={"wood_pickaxe": 1}), "make wood pickaxe", False, True),
    (facing("sand", items={"wood_pickaxe": 1}), "drink wood pickaxe", False, True),
    (facing("table", items={"wood": 1, "stone": 1}), "make stone sword", True, True),
    (facing("table", items={"wood": 1, "coal": 1, "iron": 1}), "make iron sword", False, False),  # no furnace
    (
        world(cells={(1, 1): "table", (-1, 0): "furnace"}, items={"wood": 1, "coal": 1, "iron": 1}),
        "make iron sword",
        True,
        True,
    ),
    # what stands on a material does not hide it from an action for the material
    (world([("arrow", (0, 1), 0, 3)], {(0, 1): "water"}, items={"drink": 5}), "drink water", True, True),
    (world([("arrow", (0, 1), 0, 3)], {(0, 1): "water"}), "attack zombie", False, False),
]


def test_both_signs_of_success():
    assert len(FLAGS) <= ROWS
    (step,) = run([row[0] for row in FLAGS], [[row[1]] for row in FLAGS])
    for i, (_, name, effect, lenient) in enumerate(FLAGS):
        assert (step["eval_success"][i], step["action_success"][i]) == (effect, lenient), (i, name)
        asleep = FLAGS[i][0].sleeping
        assert step["effective_action"][i] == number("sleep" if asleep else name), (i, name)


def test_nine_of_an_item_are_full():
    """The package counts what it collects and cannot keep; for ELLM it is a failure. Water quenches thirst anyway."""
    full = facing("tree", items={"wood": 9})
    wet = facing("water", thirst=30)
    (step,) = run([full, full, wet], [["do"], ["chop tree"], ["drink water"]], ["package", "ellm", "ellm"])
    assert [held(step, row, "wood") for row in (0, 1)] == [9, 9]
    assert [achieved(step, row) for row in range(3)] == [{"collect_wood"}, set(), set()]
    assert step["reward"].tolist()[:3] == [1, 0, 0]
    assert np.all(step["state"].material[:2, 32 * 64 + 33] == c.GRASS)  # the tree is gone either way
    assert step["state"].thirst[2] == 2


def test_the_packages_do_meets_the_object_first():
    """An arrow over water hides it, except from ELLM's "drink water"."""
    wet = world([("arrow", (0, 1), 0, 3)], {(0, 1): "water"}, items={"drink": 5})
    ways = world([("zombie", (0, 1))], {(0, 1): "grass"})
    steps = run([wet, wet, ways, ways], [["do"], ["drink water"], ["do"], ["attack zombie"]], ["package", "ellm"] * 2)
    assert [held(steps[0], row, "drink") for row in (0, 1)] == [5, 6]
    zombies = [objects(jax.tree.map(lambda x, i=i: x[i], steps[0]["state"]))[:1] for i in (2, 3)]
    assert zombies[0][0]["health"] == 4 and zombies[1] == []  # one point of damage, and ELLM's five
    assert [achieved(steps[0], row) for row in (2, 3)] == [set(), {"defeat_zombie"}]


def test_a_tenth_of_the_grass_gives_a_sapling():
    """In 10,048 samples, within 5 standard errors; in both sets of actions."""
    half, times, got = ROWS // 2, 157, 0
    state = stacked([world(ground="grass")])
    params = stacked([PARAMS["package"]] * half + [PARAMS["ellm"]] * half)
    actions = np.repeat(np.array([number("do", "package"), number("chop grass")], np.int32), half)
    keys = jax.random.split(jax.random.key(5), (times, ROWS))
    for t in range(times):
        obs, *_, info = STEP(keys[t], state, actions, params)
        held = np.asarray(obs["inventory"][:, c.ITEMS.index("sapling")])
        np.testing.assert_array_equal(held, info["eval_success"])
        got += held.reshape(2, half).sum(axis=1)
    n = times * half
    assert np.all(np.abs(got / n - 0.1) < 5 * (0.1 * 0.9 / n) ** 0.5)


def test_swords():
    """Damage 1, 2, 3 and 5 with the best sword; how many there are does not matter."""
    swords = ({}, {"wood_sword": 3}, {"wood_sword": 1, "stone_sword": 1}, {"iron_sword": 1, "stone_sword": 2})
    (step,) = run([facing("zombie", items=items) for items in swords], [["do"]] * 4, "package")
    slots = step["state"].slots[:4]
    assert [int(w[0]) >> 15 & 7 for w in slots] == [4, 3, 2, 0]
    assert [achieved(step, row) for row in (2, 3)] == [set(), {"defeat_zombie"}]


def test_rewards_of_the_variants():
    worlds = [
        facing("tree"),
        facing("tree", items={"food": 0}, recover=-30),  # loses a point of health in this step
        world(recover=50, items={"health": 8}),
        facing("tree", sleeping=True, fatigue=0),  # wakes up and collects wood: two achievements, one reward
        facing("tree", achievements=np.arange(22) == c.ACHIEVEMENTS.index("collect_wood")),
    ]
    names = ["do", "do", "noop", "do", "do"]
    (step,) = run(worlds, [[name] for name in names], "package", task=-1)
    np.testing.assert_allclose(step["reward"][:5], [1, 0.9, 0.1, 1, 0], atol=1e-6)
    assert achieved(step, 3) == {"wake_up", "collect_wood"} and step["unlocked"][3].sum() == 2
    assert not step["unlocked"][4].any()
    texts = [["chop tree"], ["chop tree"], ["do nothing"], ["chop tree"], ["chop tree"]]
    (step,) = run(worlds, texts, task=-1)
    np.testing.assert_array_equal(step["reward"][:5], [1, 1, 0, 1, 0])
    none = envs_jax.make("CrafterNoReward-v1")[1]
    (step,) = run(worlds, [[x] for x in names], "package", unlock_reward=none.unlock_reward, health_reward=0.0)
    assert not step["reward"].any()


def test_a_picture_is_of_one_world():
    with pytest.raises(ValueError, match=r"one world.*\(64,\)"):
        ENV.render(stacked([world()]))


def test_how_episodes_end():
    starving = world(items={"health": 1, "food": 0}, recover=-30)
    lava = world(cells={(0, 1): "lava"})
    late = world(step=399)
    worlds, scripts = [starving, lava, late, world(step=398)], [["do nothing"], ["move down"], *[["do nothing"]] * 2]
    (step,) = run(worlds, scripts)
    assert step["terminated"].tolist()[:4] == [True, True, False, False]
    assert step["truncated"].tolist()[:4] == [False, False, True, False]
    assert [held(step, row, "health") for row in (0, 1)] == [0, 0]
    assert step["state"].position[1].tolist() == [32, 33]
    (step,) = run(worlds, scripts, dying=False)
    assert not step["terminated"].any() and held(step, 1, "health") == 0
    (step,) = run([world(step=9998), world(step=9999)], [["noop"]] * 2, "package")
    assert step["truncated"].tolist()[:2] == [False, True]


def test_a_zombie_strikes_every_sixth_step():
    """2 points, or 7 of who is asleep, who wakes up by it; beside the player, shut in by trees."""
    walls = dict.fromkeys([(1, 1), (-1, 1), (0, 2)], "tree")
    shut = world([("zombie", (0, 1))], walls)
    asleep = world([("zombie", (0, 1))], walls, items={"energy": 3}, sleeping=True)
    steps = run([shut, asleep], [["noop"] * 14, ["noop"] * 14], "package")
    health = [[held(step, row, "health") for step in steps] for row in (0, 1)]
    assert health[0] == [7] * 6 + [5] * 6 + [3] * 2
    assert health[1] == [2] * 6 + [0] * 8
    assert [bool(step["state"].sleeping[1]) for step in steps[:3]] == [True, False, False]
    assert not any("wake_up" in achieved(step, 1) for step in steps)


# Tasks by hand


def play_task(name, worlds, scripts, seed=0):
    """Rewards `[T, worlds]`, ends, and successes of a task that ends with its success."""
    steps = run(worlds, scripts, task=task_index(name), end_on_success=True, seed=seed)
    values = [np.array([step[part][: len(worlds)] for step in steps]) for part in ("reward", "terminated")]
    for name in ("task_done", "success"):
        np.testing.assert_array_equal(values[1], [step[name][: len(worlds)] for step in steps])
    return values[0], values[1], np.array([step["eval_success"][: len(worlds)] for step in steps])


@pytest.mark.parametrize("task", ["plant row", "make workshop"])
def test_rows_of_plants_and_workshops(task):
    """Beside another one: on the four sides, and on two of the four corners, as published."""
    offsets = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) not in ((0, 0), (0, -1))]
    plants = task == "plant row"
    items, action = ({"sapling": 1}, "place plant") if plants else ({"wood": 1}, "place crafting table")
    worlds = []
    for x, y in offsets:
        cell = (x, y + 1)
        more = {"things": [("plant", cell)]} if plants else {"cells": {cell: "table"}}
        worlds.append(world(ground="grass", items=items, **more))
    worlds.append(world(ground="grass", items=items))
    worlds.append(world([("cow", (1, 1))], ground="grass", items=items))
    reward, done, success = play_task(task, worlds, [[action]] * len(worlds))
    assert success.all()
    wanted = [offset not in ((-1, -1), (1, 1)) for offset in offsets] + [False, False]
    assert done[0].tolist() == wanted and reward[0].tolist() == wanted


def test_chopping_grass_with_a_pickaxe():
    """A sapling comes by chance; without the pickaxe it is no success."""
    chop = world(ground="grass", items={"wood_pickaxe": 1})
    task, scripts = "chop grass with wood pickaxe", [["chop grass"]] * ROWS
    reward, done, success = play_task(task, [chop] * ROWS, scripts)
    assert 1 <= success.sum() <= 20
    np.testing.assert_array_equal(done, success)
    np.testing.assert_array_equal(reward, success.astype(float))
    reward, done, again = play_task(
        "chop grass with wood pickaxe", [world(ground="grass")] * ROWS, [["chop grass"]] * ROWS
    )
    np.testing.assert_array_equal(again, success)
    assert not done.any() and not reward.any()


def test_survival_pays_every_step():
    reward, done, _ = play_task("survival", [world()], [["do nothing"] * 3])
    np.testing.assert_allclose(reward, 0.05)
    assert not done.any()


def test_deforestation_takes_five_trees():
    trees = dict.fromkeys([(-1, 0), (1, 0), (0, -1), (0, 1), (-2, 0)], "tree")
    script = []
    for way in ("left", "right", "up", "down"):
        script += [f"move {way}", "chop tree"]
    script += ["move left", "move left", "chop tree", "do nothing"]
    reward, done, success = play_task("deforestation", [world(cells=trees)], [script])
    assert success[:, 0].tolist() == [False, True] * 4 + [True, False, True, True]
    assert reward[:, 0].tolist() == [0] * 10 + [1, 0] and done[:, 0].tolist() == [False] * 10 + [True, False]


GARDEN = {(-1, 0): "water", (1, 0): "tree", (0, -1): "grass", (0, -2): "grass", (-1, -1): "tree", (2, -1): "grass"}
PEN = dict.fromkeys([(1, 1), (-1, 1), (0, 2)], "tree")
GRASS = ["chop grass"]
SEQUENCES = {
    # the parts, and scripts with parts that come too early
    "vegetarianism": (
        ("drink water", "chop grass"),
        [*GRASS * 3, "move left", "drink water", "move up", *GRASS * 6],
    ),
    "work and sleep": (
        ("chop tree", "sleep", "place crafting table"),
        ["place crafting table", "move right", "chop tree", "sleep", *["do nothing"] * 3]
        + ["move up", "place crafting table"],
    ),
    "gardening": (
        ("chop grass", "chop tree", "place plant"),
        ["move right", "chop tree", "move up", *GRASS * 6, *["place plant", "move left", "chop tree"]]
        + ["move right", "place plant"],
    ),
    "wilderness survival": (
        ("sleep", "chop grass", "attack zombie"),
        [*GRASS * 3, "sleep", *GRASS * 9, "move down", "attack zombie"],
    ),
}


@pytest.mark.parametrize("task", SEQUENCES)
def test_tasks_of_several_parts_have_an_order(task):
    """Beside a count of the successes in their order: one sapling in ten comes, so rows differ."""
    parts, script = SEQUENCES[task]
    zombie = [("zombie", (0, 1), None, 20)] if task == "wilderness survival" else []
    # tired, and rested after four steps of sleep; the zombie does not strike so soon
    items, way = {"energy": 8, "drink": 3, "sapling": 2, "wood": 2}, "down" if task == "work and sleep" else "up"
    start = world(zombie, GARDEN | (PEN if zombie else {}), items=items, fatigue=-10, facing=way)
    reward, done, success = play_task(task, [start] * ROWS, [script] * ROWS)
    finished = 0
    for row in range(ROWS):
        at = 0
        for t, name in enumerate(script):
            reached = success[t, row] and at < len(parts) and parts[at] == name
            at += reached
            over = bool(reached and at == len(parts))
            assert (done[t, row], reward[t, row]) == (over, float(over)), (row, t)
            finished += over
    assert finished == ROWS if task == "work and sleep" else 10 < finished < ROWS - 10


def test_single_tasks_end_with_one_point():
    """The last step of an id that has only one task; what else is achieved earns nothing."""
    env, params = envs_jax.make("Crafter-Text-PlaceCraftingTable")
    assert env.action_names[11] == "place crafting table" and bool(params.end_on_success)
    assert int(params.damage) == 5 and int(params.table_wood) == 2 and int(params.length) == 10_000
    start = world(cells={(-1, 0): "tree"}, items={"wood": 1})
    script = [["place crafting table", "move left", "chop tree", "move down", "place crafting table"]]
    values = {name: np.asarray(getattr(params, name)) for name in ("task", "end_on_success", "table_wood", "damage")}
    steps = run([start], script, **values)
    assert [float(step["reward"][0]) for step in steps] == [0, 0, 0, 0, 1]
    assert [bool(step["terminated"][0]) for step in steps] == [False] * 4 + [True]


@pytest.mark.slow
def test_death_is_no_success():
    """An episode of a task may end otherwise; and a world without a task says nothing of success."""
    starved = world(items={"health": 1, "food": 0, "drink": 0, "energy": 0})
    steps = run([starved], [["noop"] * 60], "package", task=0, end_on_success=True)
    ends = [bool(step["terminated"][0]) for step in steps]
    assert any(ends) and not any(bool(step["success"][0]) for step in steps[: ends.index(True) + 1])
    for id, known in (("Crafter-Text-EatCow", True), ("Crafter-Text-Reward", False), ("CrafterReward-v1", False)):
        env, params = envs_jax.make(id)
        _, state = jax.eval_shape(env.reset, jax.random.key(0), params)
        assert ("success" in jax.eval_shape(env.step, jax.random.key(0), state, 0, params)[5]) is known, id


# What finds no place


def test_more_near_objects_than_places_are_counted():
    """32 places near the player: 40 cows lose 8, which stay where they are."""
    ring = [(x, y) for x in range(-6, 7) for y in range(-6, 7) if 6 < abs(x) + abs(y) < 12][::2][:40]
    assert len(ring) == 40
    cows = world([("cow", cell) for cell in ring], ground="grass")
    few = world([("cow", cell) for cell in ring[:32]], ground="grass")
    (step,) = run([cows, few], [["do nothing"]] * 2)
    assert step["lost"].tolist()[:2] == [8, 0]
    before, after = cows.slots, step["state"].slots[0]
    np.testing.assert_array_equal(before[32:40], after[32:40])
    assert np.sum(before[:32] != after[:32]) > 5


def test_a_plant_without_a_slot_is_counted():
    far = [(x, y) for x in range(20, 31) for y in range(-30, -20)]
    full = world([("cow", cell) for cell in far[:64]], ground="grass", items={"sapling": 1})
    room = world([("cow", cell) for cell in far[:63]], ground="grass", items={"sapling": 1})
    (step,) = run([full, room], [["place plant"]] * 2)
    assert step["lost"].tolist()[:2] == [1, 0] and step["state"].used.tolist()[:2] == [64, 64]
    kinds = [[o["kind"] for o in objects(jax.tree.map(lambda x, i=i: x[i], step["state"]))] for i in (0, 1)]
    assert kinds == [["cow"] * 64, ["cow"] * 63 + ["plant"]]


def test_creatures_that_appear_without_a_slot_are_counted():
    """A night in a crowded world: 64 cows far away fill the slots, so that no zombie finds one."""
    far = [(x, y) for x in range(20, 31) for y in range(-30, -20)]
    full = world([("cow", cell) for cell in far[:64]], ground="grass", step=209)
    spare = world([("cow", cell) for cell in far[:4]], ground="grass", step=209)
    (step,) = run([full, spare], [["do nothing"]] * 2)
    kinds = [[o["kind"] for o in objects(jax.tree.map(lambda x, i=i: x[i], step["state"]))] for i in (0, 1)]
    assert step["lost"][0] > 0 and "zombie" not in kinds[0]
    assert step["lost"][1] == 0 and kinds[1].count("zombie") > 3


def test_arrows_and_tables_beyond_their_number_are_counted():
    """8 arrows can be shot and 4 tables broken in a step."""
    band = [(x, y) for x in range(-5, 6) for y in range(-5, 6) if abs(x) + abs(y) in (4, 5)]
    hunters = [cell for cell in band if (abs(cell[0]) + abs(cell[1])) % 2 == 1][:20]
    shots = world([("skeleton", cell) for cell in hunters], ground="path")
    rows = [(8, y) for y in range(-3, 3)]
    tables = dict.fromkeys(rows, "table")
    breaks = world([("arrow", (7, y), 0, WAYS.index("right")) for _, y in rows], tables, ground="path")
    worlds = [shots] * (ROWS - 1) + [breaks]
    (step,) = run(worlds, [["do nothing"]] * ROWS)
    crowded = 0
    for row in range(ROWS - 1):
        found = objects(jax.tree.map(lambda x, i=row: x[i], step["state"]))
        arrows = sum(o["kind"] == "arrow" for o in found)
        shooters = sum(o["kind"] == "skeleton" and o["counter"] == 4 for o in found)
        assert arrows == min(shooters, 8) and step["lost"][row] == shooters - arrows
        crowded += shooters > 8
    assert crowded > 10
    last = ROWS - 1
    assert step["lost"][last] == 2 and np.sum(step["state"].material[last] == c.TABLE) == 2
    assert not step["state"].slots[last].any()  # the arrows are gone


# Batches


def some_rows(seed):
    """`ROWS` worlds with something going on, and an action for each."""
    rng = np.random.default_rng(seed)
    worlds, scripts = [], []
    for _ in range(ROWS):
        cells = {(int(x), int(y)) for x, y in rng.integers(-9, 10, (rng.integers(0, 24), 2))} - {(0, 0)}
        kinds = rng.choice(["zombie", "skeleton", "cow", "arrow", "plant"], len(cells))
        things = [(str(k), cell, None, int(rng.integers(0, 4))) for k, cell in zip(kinds, sorted(cells))]
        worlds.append(world(things, ground=str(rng.choice(["grass", "path"])), step=int(rng.integers(0, 400))))
        scripts.append([str(rng.choice(ELLM.names))])
    return worlds, scripts


def test_a_row_does_not_depend_on_its_neighbours():
    worlds, scripts = some_rows(0)
    order = np.random.default_rng(1).permutation(ROWS)
    state, mixed = stacked(worlds), stacked([worlds[i] for i in order])
    actions = np.array([number(script[0]) for script in scripts], np.int32)
    params = stacked([PARAMS["ellm"]] * ROWS)
    keys = jax.random.split(jax.random.key(3), ROWS)
    one = jax.device_get(STEP(keys, state, actions, params))
    two = jax.device_get(STEP(keys[order], mixed, actions[order], params))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[order], b), one, two)
    assert np.any(one[1].slots != state.slots)


@pytest.mark.slow
def test_one_row_alone_is_as_in_a_batch():
    worlds, scripts = some_rows(2)
    keys = jax.random.split(jax.random.key(3), ROWS)
    actions = np.array([number(script[0]) for script in scripts], np.int32)
    params = stacked([PARAMS["ellm"]] * ROWS)
    many, alone = jax.device_get(STEP(keys, stacked(worlds), actions, params)), jax.jit(ENV.step)
    for row in range(ROWS):
        one = alone(keys[row], jax.tree.map(jnp.asarray, worlds[row]), actions[row], PARAMS["ellm"])
        jax.tree.map(lambda a, b, i=row: np.testing.assert_array_equal(a[i], b), many, jax.device_get(one))


def test_a_task_that_no_one_follows(monkeypatch):
    """A world without a task refuses one in its parameters; where the value is traced, the reward is nan."""
    free, own = (Crafter(image=None, slots=SLOTS, task=task) for task in ("", "survival"))
    key, wood = jax.random.key(0), jnp.int32(task_index("collect_wood"))
    with pytest.raises(ValueError, match=r"params.task.*'collect_wood'.*\?task=collect_wood"):
        free.step(key, None, 0, PARAMS["package"].replace(task=wood))
    with pytest.raises(ValueError, match="params.task.*99.*-1"):
        own.step(key, None, 0, PARAMS["package"].replace(task=jnp.int32(99)))
    monkeypatch.setattr(free, "_creatures", lambda key, state, planted: state)  # they take long to compile
    monkeypatch.setattr(free, "_balanced", lambda key, state: state)
    start = jax.tree.map(jnp.asarray, world())
    reward = jax.jit(lambda params: free.step(key, start, jnp.int32(0), params)[2])
    assert float(reward(PARAMS["package"])) == 0 and np.isnan(reward(PARAMS["package"].replace(task=wood)))
    trace = jax.eval_shape(lambda action: free.step(key, start, action, PARAMS["package"])[2], jnp.int32(0))
    assert trace.dtype == np.float32  # parameters that a program is traced around are known, and checked
    with pytest.raises(ValueError, match=r"params\.task.*'collect_wood'"):
        jax.eval_shape(lambda x: free.step(key, start, x, PARAMS["package"].replace(task=wood))[2], jnp.int32(0))


def test_a_picture_has_a_key_of_its_own():
    """The noise of a night is none of the numbers that the player, the creatures and the balance of a step draw."""

    class Shown(Crafter):
        def _observe(self, state, key):
            return {"key": jax.random.key_data(key)}, state

    env, key = Shown(image=None, slots=SLOTS), jax.random.key(7)
    shown = jax.jit(lambda *x: env.step(*x, PARAMS["ellm"])[0]["key"])(key, world(), 0)
    assert not np.any(np.all(np.asarray(shown) == jax.random.key_data(jax.random.split(key, 3)), axis=1))
