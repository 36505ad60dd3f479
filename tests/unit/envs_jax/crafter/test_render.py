"""Crafter's pictures: where things are drawn, in which light, whether tiles differ, gray frames."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.crafter import constants as c, textures
from envs_jax.crafter.render import draw, gray, picture
from envs_jax.crafter.tiles import pack, tiles


@pytest.fixture(scope="module")
def programs():
    table = tiles()
    return [jax.jit(jax.vmap(lambda *row, kind=kind: kind(*row, table))) for kind in (draw, gray)]


def rows(count, seed=0):
    rng = np.random.default_rng(seed)
    view = np.stack([rng.integers(0, 13, (count, 9, 7)), rng.integers(0, 15, (count, 9, 7))], -1).astype(np.uint8)
    inventory = rng.integers(0, 10, (count, 16)).astype(np.int32)
    return (
        view,
        inventory,
        np.ones(count, np.float32),
        np.zeros(count, bool),
        jax.random.split(jax.random.key(seed), count),
    )


def test_tiles_are_where_the_view_and_the_items_say(programs):
    view, inventory, *rest = rows(3)
    view[..., 1] *= view[..., 0] > 0
    pictures = np.asarray(programs[0](view, inventory, *rest))
    assert pictures.shape == (3, 64, 64, 3) and pictures.dtype == np.uint8
    assert (pictures[:, 63] == 0).all() and (pictures[:, :, 63] == 0).all()
    blank = np.zeros((7, 7, 3), int)
    for image, cells, counts in zip(pictures, view, inventory):
        for x in range(9):
            for y in range(9):
                shown = image[7 * y : 7 * y + 7, 7 * x : 7 * x + 7].astype(int)
                if y < 7:
                    material, seen = cells[x, y]
                    expected = textures.ground(c.MATERIALS[material - 1], 7)[..., :3] if material else blank + 127
                    top = textures.sprite(c.SPRITES[seen - 1], 7) if seen else None
                else:
                    item = 9 * (y - 7) + x
                    count = counts[item] if item < 16 else 0
                    expected, top = blank, textures.item(c.ITEMS[item], count, 7) if count else None
                if top is not None:
                    opacity = top[..., 3:] / 255
                    expected = opacity * top[..., :3] + (1 - opacity) * expected
                np.testing.assert_allclose(shown, expected, atol=1.001, rtol=0)  # colours are cut off


def test_every_tile_differs_from_the_others():
    """At 7 pixels and at 32: no two materials, figures on grass, or counted items look the same."""
    for unit in (7, 32):
        table = tiles("own", 9 * unit)
        cells, items = (
            np.stack([part >> shift & 255 for shift in (0, 8, 16)], -1).reshape(len(part), -1).astype(float)
            for part in (table.cells, table.items)
        )
        groups = {
            "materials": cells[::15],
            "figures": cells[c.GRASS * 15 : c.GRASS * 15 + 15],
            "items": items[5::10],
            "digits": items[1:10],
        }
        for name, group in groups.items():
            apart = np.sqrt(((group[:, None] - group[None]) ** 2).mean(-1)) + 999 * np.eye(len(group))
            assert apart.min() > 10, (
                f"two {name} look the same at {unit} pixels: {np.argwhere(apart == apart.min())[0]}"
            )


def test_light_and_sleep(programs):
    view, inventory, light, asleep, keys = rows(6)
    view[:, 4, 3] = (c.GRASS, c.SPRITE_PLAYER)
    day = np.asarray(programs[0](view, inventory, light, asleep, keys), int)
    other = np.asarray(programs[0](view, inventory, light, asleep, keys[::-1]), int)
    np.testing.assert_array_equal(day, other)
    night = np.asarray(programs[0](view, inventory, light * 0.2, asleep, keys), int)
    world = np.s_[:, :49, :63]
    assert (night[:, 49:] == day[:, 49:]).all(), "the items are always lit"
    # by hand, in the middle of the picture, where there is no noise: 0.2 of the day, 0.8 of half faded and half blue
    pixel = day[:, 24, 31].astype(float)
    luma = pixel @ [0.299, 0.587, 0.114]
    dark = 0.5 * (0.6 * luma[:, None] + 0.4 * pixel) + [0, 8, 32]
    assert np.abs(night[:, 24, 31] - 0.2 * pixel - 0.8 * dark).max() <= 2
    again = np.asarray(programs[0](view, inventory, light * 0.2, asleep, keys[::-1]), int)
    assert (again[world] != night[world]).mean() > 0.5, "another key, other noise"
    slept = np.asarray(programs[0](view, inventory, light, ~asleep, keys), int)
    red, green, blue = (slept[world][..., i] for i in range(3))
    assert (red == green).all() and set(np.unique(blue - red)) == {8}
    np.testing.assert_allclose(red, 0.5 * (day[world] @ [0.299, 0.587, 0.114]), atol=1.01)


def test_gray_frames_are_a_bilinear_resize_of_the_mean(programs):
    """Beside interpolation in float64, pixel by pixel: centres of pixels aligned, results cut off."""
    arguments = rows(4, seed=5)
    arguments[2][:] = [1, 0.7, 0.4, 0.1]
    pictures, frames = (np.asarray(program(*arguments)) for program in programs)
    assert frames.shape == (4, 84, 84) and frames.dtype == np.uint8
    place = np.clip((np.arange(84) + 0.5) * 64 / 84 - 0.5, 0, 63)
    low = np.minimum(place.astype(int), 62)
    part = place - low
    mean = pictures.astype(float).mean(-1)
    down = mean[:, low] * (1 - part)[:, None] + mean[:, low + 1] * part[:, None]
    both = down[:, :, low] * (1 - part) + down[:, :, low + 1] * part
    np.testing.assert_array_equal(frames, np.floor(both + 1e-6))


def test_small_gray_frames_are_the_mean_of_small_tiles():
    view, inventory, *rest = (x[0] for x in rows(1))
    table = tiles(size=36)
    both = jax.jit(lambda *row: (draw(*row, table), gray(*row, table, 36)))
    small, frame = both(view, inventory, *rest)
    assert frame.shape == (36, 36) and frame.dtype == np.uint8 and len(np.unique(frame)) > 20
    np.testing.assert_array_equal(frame, np.asarray(small, int).sum(axis=-1) // 3)


def test_larger_pictures(programs):
    view, inventory, *_ = rows(1)
    large = picture(view[0], inventory[0], unit=7)
    assert large.shape == (63, 63, 3)
    np.testing.assert_array_equal(large, np.asarray(programs[0](*rows(1)))[0, :63, :63])
    assert picture(view[0], inventory[0], 0.3, True, unit=12).shape == (108, 108, 3)


def test_what_tiles_refuse(monkeypatch):
    with pytest.raises(ValueError, match="textures.*'crafte'.*'crafter'"):
        tiles("crafte")
    with pytest.raises(ValueError, match="size.*17.*18"):
        tiles(size=17)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="crafter==1.8.3"):
        tiles("crafter", 33)


def test_pixels_are_packed_from_red_on():
    assert pack(np.array([[1, 2, 3]], np.uint8)).tolist() == [1 + (2 << 8) + (3 << 16)]
    assert jnp.asarray(tiles().cells).dtype == jnp.uint32
