"""Writes into slots: the forms for all kinds of devices agree."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from llmrl_jax.kernels import slots
from llmrl_jax.kernels.slots import Tokens


FORMS = {"one by one": slots._one_by_one, "scattered": slots._scattered, "selected": slots._selected}
MANY = ("one by one", "scattered")
"""Those that write several slots of a row."""


@pytest.mark.parametrize("layer", [(), (2,)])
@pytest.mark.parametrize("axis", [-1, -2])
def test_forms_write_the_same_slots(axis, layer):
    """Two groups of three rows with nine slots: a token of every row, then four of one row of each group."""
    slot = np.moveaxis(np.arange(6 * 9 * 5).reshape(6, 9, 5), 1, axis).astype(np.float32)
    old = np.stack([slot] * 4) if layer else slot
    single, more = -np.arange(1, 31).reshape(6, 1, 5), -np.arange(101, 141).reshape(2, 4, 5)
    position, row, start = np.array([0, 3, 8, 2, 2, 5]), np.array([2, 0]), np.array([5, 1])
    expected = old.copy()
    of_layer = np.moveaxis(expected[layer[0]] if layer else expected, axis, 1)
    for i in range(6):
        of_layer[i, position[i]] = single[i, 0]
    for g in range(2):
        of_layer[3 * g + row[g], start[g] : start[g] + 4] = more[g]
    writes = [
        Tokens(jnp.moveaxis(jnp.asarray(single, jnp.float32), 1, axis), jnp.asarray(position)),
        Tokens(jnp.moveaxis(jnp.asarray(more, jnp.float32), 1, axis), jnp.asarray(start), jnp.asarray(row)),
    ]
    for first, second in itertools.product(FORMS, MANY):

        def write(old, writes, first=first, second=second):
            return FORMS[second](FORMS[first](old, writes[0], axis, layer), writes[1], axis, layer)

        np.testing.assert_array_equal(jax.jit(write)(old, writes), expected, err_msg=f"{first}, {second}")
