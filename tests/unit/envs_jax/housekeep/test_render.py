"""Pictures of Housekeep, and the same in letters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.housekeep.constants import WIDTH
from envs_jax.housekeep.render import AGENT_COLOR, FLOOR, RIGHT_COLOR, TILE, WRONG_COLOR, render


ENV, PARAMS = envs_jax.make("Housekeep-Task1-v0")


@pytest.fixture(scope="module")
def state():
    return jax.device_get(jax.jit(ENV.reset)(jax.random.key(0), PARAMS)[1])


def shows(picture, color):
    return bool((picture == np.array(color, np.uint8)).all(-1).any())


def tile(picture, y, x):
    return picture[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE]


def test_the_plan(state):
    picture = ENV.render(state)
    assert picture.dtype == np.uint8 and picture.shape == (30 * TILE, 35 * TILE, 3)
    assert shows(tile(picture, 4, 6), AGENT_COLOR)
    # the kitchen in front of the agent is lit, the floor behind it dimmed, and the bedroom too
    assert tuple(tile(picture, 9, 2)[12, 12]) == FLOOR["kitchen"]
    assert tile(picture, 3, 10)[12, 12].sum() < sum(FLOOR["kitchen"]) - 100
    # the lemon on the chair is misplaced, the lamp on the coffee table is not
    assert shows(tile(picture, 8, 7), WRONG_COLOR) and shows(tile(picture, 22, 5), RIGHT_COLOR)
    assert render(ENV, state, tile=32).shape == (30 * 32, 35 * 32, 3)


def test_what_was_not_seen_is_not_drawn(state):
    free = int(ENV.tables.spots.of_receptacle(12)[0])  # on the kitchen carpet
    hat, seen = 2, state.seen_objects.copy()
    moved = state.replace(spot=np.where(np.arange(10) == hat, free, state.spot).astype(np.int16))
    same = np.array_equal(ENV.render(state)[:, : WIDTH * TILE], ENV.render(moved)[:, : WIDTH * TILE])
    assert not seen[hat] and same and ENV.ascii(state) == ENV.ascii(moved)
    # nor is the name of a receptacle
    table, bed = (slice(6 * TILE, 8 * TILE), slice(5 * TILE, 9 * TILE)), (slice(530, 620), slice(410, 550))
    knows, forgot = ENV.render(state), ENV.render(state.replace(seen_receptacles=np.zeros(2, np.uint32)))
    assert not np.array_equal(knows[table], forgot[table]) and np.array_equal(knows[bed], forgot[bed])
    seen[hat] = True
    assert not np.array_equal(ENV.render(moved), ENV.render(moved.replace(seen_objects=seen)))


def test_what_is_held(state):
    held = state.replace(held=np.int32(0), spot=np.where(np.arange(10) == 0, -1, state.spot).astype(np.int16))
    assert not np.array_equal(tile(ENV.render(held), 4, 6), tile(ENV.render(state), 4, 6))
    assert "0 lemon: in hand" in ENV.ascii(held).splitlines()


def test_letters(state):
    lines = ENV.ascii(state).splitlines()
    assert [len(line) for line in lines[:30]] == [WIDTH] * 30
    assert lines[4] == "#    .v..    #       bb#"
    assert lines[8] == "#     c0     #         #"
    assert lines[30:33] == ["looks low", "0 lemon: kitchen chair (low)", "1 table lamp: living room coffee table (low)"]
    assert lines[33] == "2 not seen yet"
    looking_up = ENV.ascii(state.replace(pitch=jnp.int32(2))).splitlines()
    assert looking_up[1] == "#fftt--ttmm--#------   #"


def test_keys_and_names():
    assert {ENV.action_names[action] for action in ENV.keys.values()} == set(ENV.action_names)
    assert len(envs_jax.ids("Housekeep")) == 10
    env, _ = envs_jax.make("Housekeep-Macro-v0")
    assert env.action_names[env.keys["space"]] == "place"
