"""The noise of worlds against the package opensimplex."""

from __future__ import annotations

import jax
import numpy as np
import opensimplex
import opensimplex.constants
import pytest

from envs_jax.crafter import noise
from envs_jax.crafter.worldgen import LAYERS


SEEDS = (0, 1_234_567, 2**31 - 2)
"""The package crafter draws seeds from 0 to 2^31 - 2."""


@pytest.fixture(scope="module")
def permutations():
    return jax.jit(jax.vmap(noise.permutation))


def test_gradients_are_the_packages():
    assert np.array_equal(noise.gradients().reshape(-1), opensimplex.constants.GRADIENTS3)


def test_permutations_are_the_packages(permutations):
    seeds = np.array([*SEEDS, 2**31 - 1, *np.random.default_rng(0).integers(0, 2**31, 28)], np.int32)
    ours = np.asarray(permutations(seeds))
    for seed, drawn in zip(seeds.tolist(), ours):
        assert np.array_equal(drawn, opensimplex.OpenSimplex(seed)._perm), seed


def test_the_lattice_points_are_those_that_the_package_takes():
    # where the package leaves out a lattice point within reach the sum over all of them differs by up to 1e-4
    rng = np.random.default_rng(0)
    anywhere = rng.uniform(-20, 20, (1500, 3))
    ties = rng.integers(-30, 30, (1500, 3)) / rng.choice([1, 2, 3, 6], (1500, 1))
    points = np.concatenate([anywhere, ties])
    lattice, offset, weight = noise.corners(points)
    package = opensimplex.OpenSimplex(11)
    p = package._perm
    x, y, z = np.moveaxis(lattice, -1, 0)
    gradient = noise.gradients()[p[p[p[x & 255] + y & 255] + z & 255] % 24]
    ours = np.sum(weight * np.sum(gradient * offset, -1), -1)
    expected = np.array([package.noise3(*point) for point in points.tolist()])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    faint = np.abs(expected) < 1e-12
    assert np.sum(faint) > 20 and np.mean(np.sign(ours[faint]) == np.sign(expected[faint])) > 0.9
    np.testing.assert_allclose(points[:, None] - noise.position(lattice), offset, rtol=0, atol=1e-12)


def test_every_layer_has_the_packages_values(permutations):
    drawn = permutations(np.resize(np.array(SEEDS, np.int32), 32))[: len(SEEDS)]
    sampled = jax.jit(jax.vmap(lambda p: noise.untiled(noise.sample(tuple(LAYERS.values()), p))))(drawn)
    for seed, ours in zip(SEEDS, np.asarray(sampled)):
        package = opensimplex.OpenSimplex(seed)
        for (name, layer), values in zip(LAYERS.items(), ours):
            at = noise.coordinates(layer)
            cells = np.arange(seed % 5, len(at), 5)
            if name in ("coal", "tree"):  # compared with 0: on lattice points rounding decides
                cells = np.union1d(cells, np.flatnonzero(np.abs(values) < 1e-6))
            expected = np.array([package.noise3(*at[cell].tolist()) for cell in cells])
            np.testing.assert_allclose(values[cells], expected, rtol=0, atol=2e-6, err_msg=name)
            assert np.std(expected) > 0.05  # values to tell apart
            if name in ("coal", "tree"):
                faint = np.abs(expected) < 1e-12
                assert np.sum(faint) >= 9 and np.array_equal(expected[faint] > 0, values[cells][faint] > 0)


def test_tiles_hold_each_cell_once():
    cells = np.arange(2 * 4096).reshape(2, 4096)
    tiles = noise.tiled(cells)
    assert np.array_equal(noise.untiled(tiles), cells)
    assert tiles[0, :10].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 64, 65] and tiles[0, 64] == 8


def test_coordinates_are_rounded_as_the_package_does():
    x, y = np.divmod(np.arange(4096), 64)
    across, down = (noise.coordinates(LAYERS[f"{name} tunnel"]) for name in ("horizontal", "vertical"))
    assert np.array_equal(across[:, 0], 2 * x / 3) and np.array_equal(across[:, 1], y / 5 / 3)
    assert np.array_equal(down[:, 0], x / 5 / 3) and np.array_equal(down[:, 1], 2 * y / 3)
    assert np.array_equal(noise.coordinates(LAYERS["water"])[:, 1], y / 15)
