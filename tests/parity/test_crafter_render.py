"""Pictures against crafter's own: to the byte in full daylight, in distribution at night."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.crafter import constants as c
from envs_jax.crafter.render import draw
from envs_jax.crafter.tiles import tiles


crafter = pytest.importorskip("crafter")


@pytest.fixture(scope="module")
def source():
    """An environment of the package, in a world without content."""
    made = crafter.Env(seed=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crafter.env.worldgen, "generate_world", lambda world, player: None)
        made.reset()
    return made


def fill(env, rng, position=(32, 32), asleep=False):
    """Fill the package's world at random; the view, inventory and flags of what it shows."""
    world, player = env._world, env._player
    for thing in world.objects:
        if thing is not player:
            world.remove(thing)
    world._mat_map[...] = rng.integers(1, 13, (64, 64))
    if tuple(player.pos) != position:
        world.move(player, position)
    player.facing, player.sleeping = c.DIRECTIONS[rng.integers(4)], asleep
    player.inventory = dict(zip(c.ITEMS, (rng.integers(0, 10, 16) * (rng.random(16) < 0.8)).tolist()))
    view = np.zeros((9, 7, 2), np.uint8)
    for x in range(9):
        for y in range(7):
            at = (position[0] + x - 4, position[1] + y - 3)
            if 0 <= min(at) and max(at) < 64:
                view[x, y, 0] = world._mat_map[at]
                if (x, y) != (4, 3) and rng.random() < 0.6:
                    view[x, y, 1] = code = rng.integers(1, 10)
                    world.add(_thing(world, at, player, c.SPRITES[code - 1]))
    view[4, 3, 1] = c.SPRITE_ASLEEP if asleep else c.SPRITE_PLAYER + c.DIRECTIONS.index(player.facing)
    return view, np.array(list(player.inventory.values()), np.int32), np.bool_(asleep)


def _thing(world, at, player, name):
    objects = crafter.objects
    if name.startswith("arrow"):
        return objects.Arrow(world, at, c.DIRECTIONS[c.SPRITES.index(name) + 1 - c.SPRITE_ARROW])
    if name.startswith("plant"):
        made = objects.Plant(world, at)
        made.grown = 301 if name == "plant-ripe" else 300
        return made
    if name == "cow":
        return objects.Cow(world, at)
    return {"zombie": objects.Zombie, "skeleton": objects.Skeleton}[name](world, at, player)


def batch(env, rng, places, asleep, size=64):
    """Worlds with the package's pictures: arguments of `draw`, and uint8 `[n, size, size, 3]`."""
    env._size = np.array([size, size])
    rows, pictures = [], []
    for place in places:
        rows.append(fill(env, rng, place, asleep))
        pictures.append(env.render())
    return [np.stack(column) for column in zip(*rows)], np.stack(pictures)


PLACES = [(32, 32), (0, 0), (63, 63), (2, 60), (40, 1)]


@pytest.fixture(scope="module")
def program():
    table = tiles("crafter")

    def many(views, inventories, sleeping, daylight, keys):
        return jax.vmap(lambda *row: draw(*row, table))(views, inventories, daylight, sleeping, keys)

    return jax.jit(many)


@pytest.mark.parametrize("asleep", [False, True])
def test_pictures_by_day_are_the_packages_to_the_byte(source, program, asleep):
    source._world.daylight = 1.0
    columns, truth = batch(source, np.random.default_rng(1), PLACES * 4, asleep)
    pictures = program(*columns, np.ones(20, np.float32), jax.random.split(jax.random.key(0), 20))
    assert pictures.shape == (20, 64, 64, 3) and pictures.dtype == jnp.uint8
    np.testing.assert_array_equal(pictures, truth)


@pytest.mark.parametrize("size", [18, *(pytest.param(size, marks=pytest.mark.slow) for size in (83, 299))])
def test_pictures_of_other_sizes_are_the_packages(source, size):
    source._world.daylight = 1.0
    columns, truth = batch(source, np.random.default_rng(size), PLACES[:2], False, size)
    table = tiles("crafter", size)
    for view, inventory, sleeping, picture in zip(*map(jnp.asarray, columns), truth):
        drawn = draw(view, inventory, jnp.float32(1), sleeping, jax.random.key(0), table)
        np.testing.assert_array_equal(drawn, picture)


@pytest.mark.parametrize("asleep", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dim_light_without_noise(source, program, asleep):
    """Half of the colours are of the night; float32 may cut off another integer than the package's float64."""
    columns, truths, lights = [], [], np.repeat(np.linspace(0.5, 0.999, 5), 4).astype(np.float32)
    rng = np.random.default_rng(2)
    for light in lights:
        source._world.daylight = float(light)
        column, truth = batch(source, rng, PLACES[:1], asleep)
        columns.append(column)
        truths.append(truth[0])
    columns = [np.concatenate(column) for column in zip(*columns)]
    pictures = program(*columns, lights, jax.random.split(jax.random.key(0), 20))
    error = np.abs(np.asarray(pictures, int) - np.stack(truths))
    assert error.max() <= 1 and (error > 0).mean() < 2e-3


@pytest.mark.parametrize("asleep", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nights_have_the_packages_distribution(source, program, asleep):
    """Means and variances of every byte over 300 pictures of one world, and the noise of neighbours and colours."""
    rng, count = np.random.default_rng(3), 300
    columns, _ = batch(source, rng, PLACES[:1], asleep)
    source._world.daylight = 0.15
    theirs = np.stack([source.render() for _ in range(count)]).astype(float)
    columns = [np.repeat(column, count, 0) for column in columns]
    light = np.full(count, 0.15, np.float32)
    ours = np.asarray(program(*columns, light, jax.random.split(jax.random.key(1), count)), float)
    still = (theirs.std(0) == 0) & (ours.std(0) == 0)
    assert still[49:].all() and still[:49, :63].mean() < 0.05  # no noise on items, and hardly any around the player
    np.testing.assert_allclose(ours[:, still], theirs[:, still], atol=1)
    loud = theirs.std(0) > 0.5  # in others a single step of rounding is rare, and not normal
    assert loud[:49, :63].mean() > 0.8
    ours, theirs = ours[:, loud], theirs[:, loud]
    variance = (ours.var(0) + theirs.var(0)) / 2
    z = (ours.mean(0) - theirs.mean(0)) / np.sqrt(2 * variance / count)
    assert abs(z.mean()) < 0.1 and 0.9 < z.var() < 1.1 and np.abs(z).max() < 5.5
    spread = np.log(ours.var(0) / theirs.var(0))
    assert abs(spread.mean()) < 0.02
    normal = [(x - x.mean(0)) / x.std(0) for x in (ours, theirs)]
    for lag in (1, 3, 6, 180):
        a, b = ((x[:, lag:] * x[:, :-lag]).mean() for x in normal)
        assert abs(a - b) < 0.02
    levels = [np.quantile(x, np.linspace(0.05, 0.95, 7)) for x in normal]
    np.testing.assert_allclose(*levels, atol=0.02)
