"""Worlds of Crafter: equal to the package's for the same seed and draws, and like them in distribution."""

from __future__ import annotations

import json
import linecache
import re
import sys
from functools import partial

import crafter.constants
import crafter.engine
import crafter.objects
import crafter.worldgen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.crafter import constants as c, noise, worldgen
from envs_jax.crafter.state import cell_of, counter_of, health_of, kind_of
from tests.parity.record_crafter_worlds import DATA, measures


RULES = {"0.85": 0, "0.8": 0, "0.75": 1, "0.994": 2, "0.985": 3, "0.95": 3, "0.993": 4}
"""The row of `worldgen.DRAWS` for each number that the package compares a draw with."""
CLOSE = 1e-5
"""Where a number is this close to a threshold, single precision may decide otherwise."""


@pytest.fixture(scope="module")
def builds():
    """Worlds of some seeds and draws, the latter in the order of cells."""
    build = jax.jit(lambda *x: jax.lax.map(lambda x: worldgen.build(*x, slots=1200), x))
    return lambda seeds, draws: jax.device_get(build(seeds, noise.tiled(draws)))


class Recorded:
    """In place of the package's random numbers: the line that calls `uniform` says which rule asks, and its function
    has the cell."""

    def __init__(self, seed, draws):
        self.seed, self.draws, self.asked = seed, draws, 0

    def randint(self, low, high):
        return self.seed

    def uniform(self):
        frame = sys._getframe(1)
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        (threshold,) = re.findall(r"uniform\(\) > ([\d.]+)", line)
        self.asked += 1
        return self.draws[RULES[threshold], frame.f_locals["x"] * 64 + frame.f_locals["y"]]


def package_world(seed, draws):
    """The package's material, creatures `(kind, cell, health)` in the order of creation, and chunks with objects."""
    world = crafter.engine.World((64, 64), crafter.constants.materials, (12, 12))
    player = crafter.objects.Player(world, (32, 32))
    world.add(player)
    world.random = Recorded(seed, draws)
    crafter.worldgen.generate_world(world, player)
    assert world.random.asked > 1000
    things = [(type(o).__name__.lower(), o.pos[0] * 64 + o.pos[1], o.health) for o in world.objects[1:]]
    return world._mat_map.reshape(-1), things, {xmin // 12 * 6 + ymin // 12 for xmin, _, ymin, _ in world.chunks}


def doubtful(values):
    """Cells where a number that a rule compares with a threshold is within `CLOSE` of it; bool `[4096]`.
    **Arguments:** `values`, the noise of all layers, `[13, 4096]`."""
    named = dict(zip(worldgen.LAYERS, values))
    x, y = np.divmod(np.arange(4096), 64)
    start, water, mountain = worldgen.heights(named, np.float32(np.hypot(x - 32, y - 32)))
    tunnels = [(named[f"{way} tunnel"], 0.4) for way in ("horizontal", "vertical")]
    other = {"cave": 0.15, "coal": 0, "iron": 0.4, "lava": 0.35, "sand": -0.2, "tree": 0}
    heights = [(start, 0.5), *((water, t) for t in (0.25, 0.3, 0.35)), *((mountain, t) for t in (0.15, 0.18, 0.3))]
    compared = [*tunnels, *((named[name], t) for name, t in other.items()), *heights]
    return np.any([np.abs(np.asarray(x) - t) < CLOSE for x, t in compared], 0)


@jax.jit
def sampled(seeds):
    layers = tuple(worldgen.LAYERS.values())
    return noise.untiled(jax.lax.map(lambda seed: noise.sample(layers, noise.permutation(seed)), seeds))


def test_worlds_are_the_packages_cell_by_cell(builds):
    # many draws near 1, so that every rule lets some pass and stops some
    seeds = np.array([3, 77, 2**31 - 2], np.int32)
    draws = (1 - np.random.default_rng(0).uniform(size=(3, 5, 4096)) ** 3).astype(np.float32)
    made, values, seen = builds(seeds, draws), jax.device_get(sampled(seeds)), set()
    for i, seed in enumerate(seeds.tolist()):
        ours = jax.tree.map(lambda x, i=i: x[i], made)
        theirs, things, chunks = package_world(seed, draws[i])
        different, unsure = ours.material != theirs, doubtful(values[i])
        assert unsure.sum() < 45 and not np.any(different & ~unsure) and different.sum() < 3
        seen.update(theirs.tolist())
        words = jnp.asarray(ours.slots[: ours.used])
        found = zip(
            (c.KINDS[kind - 1] for kind in kind_of(words).tolist()), cell_of(words).tolist(), health_of(words).tolist()
        )
        assert len(things) > 200 and [t for t in found if not different[t[1]]] == [
            t for t in things if not different[t[1]]
        ]
        assert ours.lost == 0 and not np.any(counter_of(words)) and not np.any(ours.slots[ours.used :])
        held = {chunk for chunk in range(36) if ours.touched[chunk // 32] >> chunk % 32 & 1}
        assert held == chunks or different.any()
        grid = ours.material.reshape(64, 64)
        for row, material in ((0, c.GRASS), (36, c.PATH)):
            for chunk in range(36):
                x, y = 12 * (chunk // 6), 12 * (chunk % 6)
                assert ours.room[row + chunk] == np.sum(grid[x : x + 12, y : y + 12] == material)
    assert seen == set(range(1, 11))


def test_the_players_chunk_is_touched_without_creatures(builds):
    made = builds(np.zeros(3, np.int32), np.zeros((3, 5, 4096), np.float32))
    assert made.used.tolist() == [0, 0, 0]
    assert made.touched[0].tolist() == [1 << (2 * 6 + 2), 0]


def test_creatures_without_a_slot_are_counted():
    kind = np.zeros(4096, np.uint8)
    kind[[5, 70, 71, 4000]] = c.COW, c.ZOMBIE, c.SKELETON, c.COW
    words, used, lost = worldgen.placed(jnp.asarray(kind), 3)
    assert (int(used), int(lost)) == (3, 1)
    assert cell_of(words).tolist() == [5, 70, 71] and health_of(words).tolist() == [3, 5, 3]
    words, used, lost = worldgen.placed(jnp.asarray(kind), 6)
    assert (int(used), int(lost)) == (4, 0) and kind_of(words).tolist() == [c.COW, c.ZOMBIE, c.SKELETON, c.COW, 0, 0]


# --- distribution -----------------------------------------------------------------------------------------------------


def compared(worlds):
    """By measure: how far the mean over some worlds is from that over the package's, in standard errors of the
    difference, and the ratio of the standard deviations."""
    rows = []
    for material, slots, used in zip(worlds.material, worlds.slots, worlds.used):
        rows.append(measures(material, slots[:used] >> 12 & 7, slots[:used] & 4095))
    reference = json.loads(DATA.read_text())
    assert list(rows[0]) == list(reference["moments"])
    found = {}
    for (name, theirs), ours in zip(reference["moments"].items(), np.array([list(row.values()) for row in rows]).T):
        spread = max(ours.std(ddof=1), 1e-12), max(theirs["deviation"], 1e-12)
        error = np.hypot(spread[0] / len(rows) ** 0.5, spread[1] / reference["worlds"] ** 0.5)
        found[name] = (ours.mean() - theirs["mean"]) / error, spread[0] / spread[1]
    return found


FREQUENT = ("water", "grass", "stone", "path", "sand", "tree", "coal", "iron", "zombie", "skeleton", "cow", "chunks")
"""Measures with many counts per world, so that their deviations are known well."""


@pytest.mark.slow
@pytest.mark.parametrize("worlds", [250, pytest.param(4096, marks=pytest.mark.slow)])
def test_worlds_are_distributed_as_the_packages(worlds):
    make = jax.jit(jax.vmap(partial(worldgen.generate, slots=96)))
    keys = jax.random.split(jax.random.key(0), worlds)
    made = jax.device_get(make(keys))
    alone = jax.device_get(worldgen.generate(keys[worlds // 3], 96))
    assert all(np.array_equal(x[worlds // 3], y) for x, y in zip(made, alone))  # blocks keep the order of rows
    assert not np.any(made.lost)
    found = compared(made)
    far = {name: round(off, 1) for name, (off, _) in found.items() if abs(off) > 3.9}
    assert not far, f"standard errors from the package's means: {far}"
    wide = {name: found[name][1] for name in FREQUENT if abs(np.log(found[name][1])) > 4 * worlds**-0.5}
    assert not wide, f"deviations, relative to the package's: {wide}"


def test_the_comparison_notices_a_wrong_threshold(builds):
    # draws that are 0.1% too small: a zombie in seven is missing
    draws = np.random.default_rng(0).uniform(size=(128, 5, 4096)).astype(np.float32)
    made = [builds(np.arange(i, i + 3, dtype=np.int32), 0.999 * draws[i : i + 3]) for i in range(0, 126, 3)]
    found = compared(jax.tree.map(lambda *x: np.concatenate(x), *made))
    assert found["zombie"][0] < -4 and found["diamond"][0] < -1
