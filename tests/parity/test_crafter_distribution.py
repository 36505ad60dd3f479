"""Crafter's chances beside the package's: each kind of creature, the balance, and random play.

The law of a small world is taken from the package's own code: its random numbers are replaced by choices, and every
path through them is walked, with its probability. Ours is sampled. Seeds are fixed, so the verdicts are too.
"""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chi2

from envs_jax.crafter import constants as c
from envs_jax.crafter.chunks import cell_index
from envs_jax.crafter.creatures import take_turns
from envs_jax.crafter.env import Crafter
from envs_jax.crafter.reference import import_state
from envs_jax.crafter.state import COUNTER_BIT, HEALTH_BIT, KIND_BIT
from envs_jax.crafter.wishes import NEAR_SLOTS, WORDS


crafter = pytest.importorskip("crafter")
from tests.parity.crafter_play import ENV, FLOOR, PACKAGE, RECORD, play  # noqa: E402
from tests.parity.record_crafter_play import densities, summary  # noqa: E402


SAMPLES = 10_000
SMALLEST_P = 1e-5
"""Of about 60 tests none may have a smaller p-value."""
MANY = 1024
"""Worlds of random play."""


# The law of the package


class Fork(Exception):
    """A path needs another choice; the argument lists what can be chosen."""


class Chooser:
    """The package's random numbers as choices: follows a path, and then says how it may go on."""

    def __init__(self, path=()):
        self.path, self.probability = list(path), 1.0

    def choose(self, chances):
        if not self.path:
            raise Fork([i for i, p in enumerate(chances) if p > 0])
        i = self.path.pop(0)
        self.probability *= chances[i]
        return i

    def uniform(self):
        return Uniform(self)

    def randint(self, low, high):
        return low + self.choose([1 / (high - low)] * (high - low))


class Uniform:
    """A number in [0, 1) of which only comparisons are known."""

    def __init__(self, chooser):
        self.chooser = chooser

    def __lt__(self, p):
        return self.chooser.choose([1 - p, p]) == 1

    __le__ = __lt__


def law(run):
    """The probability of every outcome of `run(chooser)`."""
    found, paths = collections.Counter(), [[]]
    while paths:
        path = paths.pop()
        chooser = Chooser(path)
        try:
            outcome = run(chooser)
        except Fork as fork:
            paths += [[*path, i] for i in fork.args[0]]
        else:
            found[outcome] += chooser.probability
    assert sum(found.values()) == pytest.approx(1)
    return found


BARE = Crafter(image=None)
BARE.resume_from = lambda state, params: (None, state)  # the observation is not looked at here
PLAYER = (40, 40)
REUSED = []


def build(random, things=(), cells=(), ground="grass", at=PLAYER, step=0, **player):
    """A `crafter.Env` of a plain of one material with the player, creatures and other materials, that draws from
    `random`.

    **Arguments:** `things`, rows of a kind, an offset from the player, and attributes; `cells`, materials by offset;
    `player`, its attributes."""
    if not REUSED:
        REUSED.append(crafter.Env(seed=0))
        REUSED[0]._obs = lambda: None
    env = REUSED[0]
    world = env._world
    world.reset(0)
    world.random = random
    world._mat_map[:] = c.MATERIALS.index(ground) + 1
    for offset, name in dict(cells).items():
        world[np.add(at, offset)] = name
    env._step, env._unlocked = step, set()
    env._update_time()
    env._player = crafter.objects.Player(world, at)
    world.add(env._player)
    for name, value in player.items():
        setattr(env._player, name, value)
    for name, offset, attributes in things:
        needs = {"zombie": [env._player], "skeleton": [env._player], "arrow": [attributes.get("facing")]}
        thing = getattr(crafter.objects, name.capitalize())(world, np.add(at, offset), *needs.get(name, []))
        for field, value in attributes.items():
            setattr(thing, field, value)
        world.add(thing)
    return env


def words_of(env):
    """The objects as the words of our slots, sorted."""
    found = []
    for thing in env._world.objects[1:]:
        kind = type(thing).__name__.lower()
        counter = {"zombie": "cooldown", "skeleton": "reload", "plant": "grown"}.get(kind)
        value = getattr(thing, counter) if counter else 0
        if kind == "arrow":
            value = c.DIRECTIONS.index(tuple(int(x) for x in thing.facing))
        word = int(thing.pos[0]) * c.AREA + int(thing.pos[1]) | (c.KINDS.index(kind) + 1) << KIND_BIT
        found.append(word | int(thing.health) << HEALTH_BIT | value << COUNTER_BIT)
    return tuple(sorted(found))


def outcome_of(env):
    """Objects, health, and the materials that an arrow can change."""
    return words_of(env), env._player.health, int((env._world._mat_map == c.PATH).sum())


def p_value(counts, expected):
    """Chi-square of outcomes `{outcome: count}` and their law; outcomes that are expected seldom are one class."""
    n = sum(counts.values())
    assert set(counts) <= set(expected), f"outcomes that the package never has: {set(counts) - set(expected)}"
    rest, pairs = [0.0, 0.0], []
    for outcome, p in expected.items():
        if n * p < 8:
            rest = [rest[0] + counts[outcome], rest[1] + n * p]
        else:
            pairs.append((counts[outcome], n * p))
    if rest[1] >= 2:
        pairs.append(tuple(rest))
    if len(pairs) == 1:
        return 1.0
    return float(chi2.sf(sum((seen - due) ** 2 / due for seen, due in pairs), len(pairs) - 1))


# Creatures


def near(*offsets, name="water"):
    return dict.fromkeys(offsets, name)


def arrow(offset, facing, **more):
    return ("arrow", offset, {"facing": facing, **more})


BESIDE = ((-1, 0), (1, 0), (0, -1), (0, 1))
WORLDS = {
    "zombie far along x": {"things": [("zombie", (5, 0), {})]},
    "zombie far along y": {"things": [("zombie", (0, -7), {})]},
    "zombie with a longer axis": {"things": [("zombie", (-4, 3), {})]},
    "zombie on the diagonal": {"things": [("zombie", (3, -3), {})]},
    "zombie as far as it sees": {"things": [("zombie", (6, 2), {})]},
    "zombie beyond what it sees": {"things": [("zombie", (6, 3), {})]},
    "zombie at the last distance that moves": {"things": [("zombie", (9, -8), {})]},
    "zombie that waits": {"things": [("zombie", (9, 9), {})]},
    "zombie behind a tree": {"things": [("zombie", (4, 1), {})], "cells": near((3, 1), name="tree")},
    "zombie that comes and strikes": {"things": [("zombie", (2, 0), {})]},
    "zombie beside": {"things": [("zombie", (0, 1), {})]},
    "zombie beside who rests": {"things": [("zombie", (0, 1), {"cooldown": 3})]},
    "zombie beside a sleeper": {"things": [("zombie", (1, 0), {})], "sleeping": True},
    "zombie on sand in a corner": {"things": [("zombie", (-2, -1), {})], "at": (2, 1), "ground": "sand"},
    "dying zombie": {"things": [("zombie", (2, 1), {"health": 0})]},
    "two zombies for one cell": {"things": [("zombie", (2, 0), {}), ("zombie", (1, 1), {"cooldown": 1})]},
    "skeleton beside": {"things": [("skeleton", (1, 0), {})], "ground": "path"},
    "skeleton on the diagonal": {"things": [("skeleton", (1, -1), {"reload": 3})], "ground": "path"},
    "skeleton at 3": {"things": [("skeleton", (2, 1), {})], "ground": "path"},
    "skeleton at 3 that cannot step back": {
        "things": [("skeleton", (3, 0), {})],
        "cells": near((4, 0), (3, 1), (3, -1), name="stone"),
        "ground": "path",
    },
    "skeleton beside in a corner": {
        "things": [("skeleton", (1, 0), {})],
        "cells": near((2, 0), (1, 1), (1, -1), name="stone"),
        "ground": "path",
    },
    "skeleton at 4": {"things": [("skeleton", (0, 4), {})], "ground": "path"},
    "skeleton at 4 about to be loaded": {"things": [("skeleton", (-4, 0), {"reload": 1})], "ground": "path"},
    "skeleton at 4 not loaded": {"things": [("skeleton", (3, 1), {"reload": 2})], "ground": "path"},
    "skeleton at 5": {"things": [("skeleton", (3, -2), {})], "ground": "path"},
    "skeleton that shoots over lava": {
        "things": [("skeleton", (5, 0), {})],
        "cells": near((4, 0), name="lava"),
        "ground": "path",
    },
    "skeleton behind a table": {
        "things": [("skeleton", (5, 0), {})],
        "cells": near((4, 0), name="table"),
        "ground": "path",
    },
    "skeleton at 6": {"things": [("skeleton", (2, 4), {"reload": 4})], "ground": "path"},
    "skeleton at 8": {"things": [("skeleton", (4, 4), {})], "ground": "path"},
    "skeleton at 9": {"things": [("skeleton", (4, 5), {})], "ground": "path"},
    "dying skeleton that shoots": {"things": [("skeleton", (4, 0), {"health": 0})], "ground": "path"},
    "cow": {"things": [("cow", (3, 3), {})]},
    "cow between water and trees": {
        "things": [("cow", (2, 0), {})],
        "cells": near((3, 0), (2, 1)) | near((2, -1), name="tree"),
    },
    "two cows": {"things": [("cow", (2, 0), {}), ("cow", (3, 0), {})]},
    "cow beside a plant": {"things": [("cow", (3, 0), {}), ("plant", (4, 0), {"grown": 5})]},
    "plant beside a cow": {"things": [("plant", (4, 0), {"grown": 300}), ("cow", (3, 0), {})]},
    "plant across a corner of a zombie": {"things": [("plant", (9, 0), {}), ("zombie", (10, 1), {})]},
    "arrow that flies": {"things": [arrow((3, 0), (-1, 0))], "cells": near((2, 0))},
    "arrow that hits": {"things": [arrow((0, -1), (0, 1))]},
    "arrow and a cow that may step aside": {"things": [("cow", (3, 0), {}), arrow((4, 0), (-1, 0))]},
    "arrow that hits a cow": {"things": [arrow((4, 0), (-1, 0)), ("cow", (3, 0), {})]},
    "arrow that hits a plant": {"things": [arrow((4, 0), (-1, 0)), ("plant", (3, 0), {})]},
    "arrow that breaks a furnace": {"things": [arrow((4, 0), (0, 1))], "cells": near((4, 1), name="furnace")},
    "arrow that stops at a tree": {"things": [arrow((4, 0), (0, 1))], "cells": near((4, 1), name="tree")},
    "arrow at the end of the world": {"things": [arrow((-2, 0), (-1, 0))], "at": (2, 30)},
}


@pytest.fixture(scope="module")
def creatures():
    """`SAMPLES` samples of the creatures' turns in one world: words sorted `[N, 4]`, health, cells of path."""

    def sample(key, state):
        bits = jax.random.bits(key, (SAMPLES, WORDS, NEAR_SLOTS), jnp.uint32)
        player = cell_index(state.position)
        many = [state.material, state.slots[:8], state.used, False, player, state.sleeping, state.touched]
        many = [jnp.broadcast_to(x, (SAMPLES, *jnp.shape(x))) for x in many]
        after = take_turns(bits, *many)
        health = jnp.maximum(state.inventory[c.HEALTH] - after.damage, 0)
        paths = jnp.sum(state.material == c.PATH) + jnp.sum(after.opened >= 0, axis=1)
        return jnp.sort(after.slots, axis=1)[:, -4:], health, paths

    return jax.jit(sample)


def creatures_law(options):
    def run(chooser):
        env = build(chooser, **options)
        for thing in env._world.objects[1:]:
            if env._player.distance(thing) < c.ACTIVE_DISTANCE:
                thing.update()
        return outcome_of(env)

    return law(run)


@pytest.mark.slow
def test_creatures_have_the_packages_law(creatures):
    found = {}
    for i, (name, options) in enumerate(WORLDS.items()):
        expected = creatures_law(options)
        _, state = import_state(build(None, **options), BARE, PACKAGE)
        slots, health, paths = jax.device_get(creatures(jax.random.key(i), state))
        rows, counts = np.unique(np.column_stack([slots, health, paths]), axis=0, return_counts=True)
        seen = collections.Counter()
        for row, count in zip(rows.tolist(), counts.tolist()):
            seen[tuple(w for w in row[:4] if w), row[4], row[5]] = count
        found[name] = p_value(seen, expected)
    bad = {name: p for name, p in found.items() if p < SMALLEST_P}
    assert not bad
    assert 0.2 < np.mean(np.array(list(found.values())) < 0.5) < 0.8


def test_the_law_is_the_one_of_the_rules():
    """Some probabilities by hand: a zombie at 5 along x, a skeleton at 4, a cow."""

    def moved(things, ground="grass"):
        found = collections.Counter()
        for (words, *_), p in creatures_law({"things": things, "ground": ground}).items():
            x, y = divmod(words[0] & c.CELLS - 1, c.AREA)
            found[x - PLAYER[0], y - PLAYER[1], len(words)] += p
        return found

    zombie = moved([("zombie", (5, 0), {})])
    assert zombie[4, 0, 1] == pytest.approx(0.9 * 0.8 + 0.1 / 4)
    assert zombie[5, 0, 1] == pytest.approx(0.9 * 0.2)  # the shorter axis has no offset: no step
    cow = moved([("cow", (3, 3), {})])
    assert cow[3, 3, 1] == pytest.approx(0.5) and cow[3, 4, 1] == pytest.approx(0.125)
    skeleton = moved([("skeleton", (0, 4), {})], "path")
    shot = sum(p for (*_, number), p in skeleton.items() if number == 2)
    assert shot == pytest.approx(0.5)
    # else toward the player by the longer axis in 60% of 30%, or a random step in 20% of the rest
    assert skeleton[0, 3, 1] == pytest.approx(0.5 * (0.3 * 0.6 + 0.7 * 0.2 / 4))


# Balance

NIGHT, NOON = 210, 60
BALANCES = {
    # chunk (3, 3) is x, y in 36..47 around the player; what is not grass or path in it is water
    "zombies appear at night": {"step": NIGHT, "grass": 60, "things": [("cow", 1)]},
    "zombies need 50 cells of grass": {"step": NIGHT, "grass": 49},
    "two zombies in the evening": {"step": 140, "grass": 70, "things": [("zombie", 2)]},
    "a zombie vanishes at noon, however near": {"step": NOON, "grass": 60, "things": [("zombie", 2)]},
    "a fourth zombie at night may vanish": {"step": NIGHT, "grass": 60, "things": [("zombie", 4)]},
    "skeletons appear on path": {"step": NOON, "path": 30},
    "skeletons need 6 cells of path": {"step": NOON, "path": 5},
    "a third skeleton may vanish unless it is near": {"step": NOON, "path": 30, "things": [("skeleton", 3)]},
    "cows appear": {"step": NOON, "grass": 90},
    "a third cow may vanish by day unless it is near": {"step": NOON, "grass": 40, "things": [("cow", 3)]},
    "a second cow may vanish by night": {"step": NIGHT, "grass": 29, "things": [("cow", 2), ("zombie", 3)]},
    "what appears needs an empty cell": {"step": NIGHT, "grass": 50, "things": [("cow", 8)]},
}


def balance_world(step, grass=0, path=0, things=()):
    """Options of `build`: the player at the left of its chunk, cells in columns to the right of it, creatures from the
    nearest cell on."""
    offsets = [(x, y) for x in range(12) for y in range(12)]
    cells = {o: ("grass" if i < grass else "path" if i < grass + path else "water") for i, o in enumerate(offsets)}
    placed, at = [], 1
    for kind, number in things:
        placed += [(kind, offset, {}) for offset in offsets[at : at + 7 * number : 7]]
        at += 3
    return {"things": placed, "cells": cells, "ground": "water", "at": (36, 36), "step": step}


@pytest.mark.parametrize("samples", [SAMPLES // 4, pytest.param(4 * SAMPLES, marks=pytest.mark.slow)])
def test_balance_has_the_packages_law(samples):
    @jax.jit
    def balanced(key, state):
        state = state.replace(slots=state.slots[:32])
        return jax.vmap(lambda key: ENV._balanced(key, state).slots)(jax.random.split(key, samples))

    found = {}
    for i, (name, options) in enumerate(BALANCES.items()):
        options = balance_world(**options)

        def run(chooser, options=options):
            env = build(chooser, **options)
            for chunk, objs in sorted(env._world.chunks.items()):
                env._balance_chunk(chunk, sorted(objs, key=lambda thing: tuple(thing.pos)))
            return words_of(env)

        expected = law(run)
        _, state = import_state(build(None, **options), BARE, PACKAGE)
        slots = np.sort(jax.device_get(balanced(jax.random.key(i), state)), axis=1)
        rows, counts = np.unique(slots, axis=0, return_counts=True)
        seen = collections.Counter()
        for row, count in zip(rows.tolist(), counts.tolist()):
            seen[tuple(w for w in row if w)] = count
        found[name] = p_value(seen, expected)
        changed = 1 - expected[words_of(build(None, **options))]
        rare = name.startswith(("zombies need", "skeletons need"))
        assert (changed < 0.02) == (rare or name == "cows appear"), (name, changed)
    assert not {name: p for name, p in found.items() if p < SMALLEST_P}


# Random play


@pytest.mark.slow
def test_random_play_resembles_the_packages():
    compare_play(play(MANY, 500))


def compare_play(found, limit=4.5):
    """Means within `limit` standard errors of the record's, and of ELLM's published floor."""

    def near(what, mean, error, other, other_error):
        z = (mean - other) / max(np.hypot(error, other_error), 1e-9)
        assert abs(z) < limit, f"{what}: {mean:.3f} +- {error:.3f} and {other:.3f} +- {other_error:.3f}"

    def error(deviation, count):
        return deviation / count**0.5

    ours, theirs = found["17 actions"], RECORD["episodes"]
    count, other = len(ours["length"]), theirs["count"]
    for what, values in (
        ("length", ours["length"]),
        ("return", ours["return"]),
        ("unique achievements", ours["unlocked"].sum(1)),
    ):
        mine, there = summary(values), theirs[what]
        errors = error(mine["deviation"], count), error(there["deviation"], other)
        near(what, mine["mean"], errors[0], there["mean"], errors[1])
    for i, name in enumerate(c.ACHIEVEMENTS):
        a, b = ours["unlocked"][:, i].mean(), theirs["unlocked in"][name] / other
        both = (a * count + b * other) / (count + other)
        spread = (both * (1 - both)) ** 0.5
        near(name, a, error(spread, count), b, error(spread, other))
    for name, (mean, off) in densities(found["objects"]).items():
        there = RECORD["long runs"]["by day and night"][name]
        near(name, mean, off, *there)
    for name, floor in FLOOR.items():
        group = found[name]
        mine, (mean, deviation) = summary(group["unlocked"].sum(1)), floor["unique achievements"]
        errors = error(mine["deviation"], len(group["length"])), error(deviation, floor["count"])
        near(f"{name}, unique achievements", mine["mean"], errors[0], mean, errors[1])
        lengths = summary(group["length"])
        spread = lengths["deviation"]  # the floor's is not known
        errors = error(spread, len(group["length"])), error(spread, floor["count"])
        near(f"{name}, length", lengths["mean"], errors[0], floor["length"], errors[1])
