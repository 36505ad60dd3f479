"""Several rooms: which walls get doors, where things and agents may be; no impossible world of minigrid's is drawn."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.constants import BALL, DOOR, KEY, LOCKED, WALL
from envs_jax.babyai.levels.layout import Dice
from envs_jax.babyai.levels.room_grid import RoomGrid, connect, scatter
from envs_jax.babyai.state import color_of, state_of, type_of
from envs_jax.babyai.text.english import MISSIONS
from envs_jax.babyai.verify import member, members, object_set


def rolled(seed, n=4096):
    return Dice(jax.random.bits(jax.random.key(seed), (n,), jnp.uint32))


def test_the_tables_of_a_grid_of_rooms():
    rooms = RoomGrid(5, 2, 3)  # rooms 0 1 2 over 3 4 5, with 3 x 3 cells of floor
    assert [edge[:2] for edge in rooms.edges] == [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]
    assert rooms.edge_of[4].tolist() == [6, -1, 5, 3]  # right, down, left, up
    cells = [(int(c) // rooms.height, int(c) % rooms.height) for c in rooms.slots[3]]
    assert cells == [(5, 4), (6, 4), (7, 4)]  # between rooms 1 and 4
    assert [(int(c) // rooms.height, int(c) % rooms.height) for c in rooms.slots[0]] == [(4, 1), (4, 2), (4, 3)]
    assert rooms.middle == 4 and rooms.inside.shape == (6, 9) and rooms.within.shape == (6, 25)


def reached(rooms, passage):
    seen, frontier = {0}, [0]
    while frontier:
        room = frontier.pop()
        for e, (a, b, _) in enumerate(rooms.edges):
            if passage[e] and room in (a, b):
                other = a + b - room
                if other not in seen:
                    seen.add(other)
                    frontier.append(other)
    return len(seen)


def test_doors_are_added_in_random_order_until_all_rooms_connect():
    rooms = RoomGrid(5, 3, 3)
    present = np.zeros(12, bool)
    present[3] = True  # the locked door of the sealed room: 1 to 4
    sealed = np.arange(9) == 4
    draw = jax.jit(jax.vmap(lambda bits: connect(Dice(bits), rooms, present, sealed)))
    found = np.asarray(draw(jax.random.bits(jax.random.key(0), (400, 12), jnp.uint32)))
    around = [e for e, (a, b, _) in enumerate(rooms.edges) if 4 in (a, b)]
    for passage in found:
        assert reached(rooms, passage) == 9
        assert passage[3] and not passage[[e for e in around if e != 3]].any()
    # eight rooms in a ring of eight walls: any seven of them connect it, and it stops there
    assert (found.sum(1) == 8).all()
    left_out = np.argmin(np.delete(found, around, axis=1), axis=1)
    counts = np.bincount(left_out, minlength=8)
    assert counts.min() > 25, counts  # 50 each


def test_things_go_to_different_cells_of_their_rooms():
    rooms = RoomGrid(4, 1, 2)
    free = ~rooms.walls
    free[rooms.inside[0][0]] = False
    room = jnp.asarray([0, 1, 0, 1, 1, 0])
    cell, fits = scatter(rolled(0), rooms, room, jnp.asarray(free))
    assert bool(fits) and len(set(cell.tolist())) == 6
    assert set(cell[np.array([0, 2, 5])].tolist()) == set(rooms.inside[0][1:].tolist())
    assert set(cell[np.array([1, 3, 4])].tolist()) < set(rooms.inside[1].tolist())
    assert not scatter(rolled(0), rooms, jnp.zeros(4, jnp.int32), jnp.asarray(free))[1]


def test_among_is_uniform():
    allowed = jnp.asarray([False, True, True, False, True])
    draw = jax.jit(jax.vmap(lambda bits: Dice(bits).among(allowed)))
    counts = np.bincount(draw(jax.random.bits(jax.random.key(1), (3000, 1), jnp.uint32)), minlength=5)
    assert counts[[0, 3]].sum() == 0 and abs(counts[[1, 2, 4]] - 1000).max() < 110


def test_sets_of_more_than_32_objects():
    mask = np.zeros((2, 40), bool)
    mask[0, [0, 31, 32, 39]] = True
    words = object_set(mask)
    assert words.shape == (2, 2) and words.dtype == jnp.uint32
    np.testing.assert_array_equal(members(words, 40), mask)
    np.testing.assert_array_equal(member(words[0], jnp.arange(-1, 40)), [False, *mask[0]])


@functools.cache
def drawn(id, n=300):
    env, params = envs_jax.make(id)
    draw = jax.jit(jax.vmap(lambda key: env.reset(key, params)))
    return jax.device_get(draw(jax.random.split(jax.random.key(0), n)))


def behind(states, i):
    """Cells that can be walked to without opening the locked door."""
    grid = states.grid[i].astype(int)
    open_to = (type_of(grid) != WALL) & ~((type_of(grid) == DOOR) & (state_of(grid) == LOCKED))
    seen, frontier = set(), [tuple(states.position[i].tolist())]
    while frontier:
        at = frontier.pop()
        if at not in seen and open_to[at]:
            seen.add(at)
            frontier += [(at[0] + dx, at[1] + dy) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]
    return seen


def keys_at_hand(id):
    _, states = drawn(id)
    height, count = states.grid.shape[2], 0
    for i in range(len(states.direction)):
        grid = states.grid[i].astype(int)
        (color,) = {int(color_of(c)) for c in grid.reshape(-1) if type_of(c) == DOOR and state_of(c) == LOCKED}
        here = behind(states, i)
        keys = np.flatnonzero((type_of(states.object[i]) == KEY) & (color_of(states.object[i]) == color))
        count += any((int(states.cell[i, k]) // height, int(states.cell[i, k]) % height) in here for k in keys)
    return count / len(states.direction)


def test_the_key_of_a_locked_room_is_never_locked_in():
    assert keys_at_hand("BabyAI-Unlock-v0") == 1.0
    assert 0.9 < keys_at_hand("BabyAI-Unlock-v0?compat=minigrid") < 1.0  # 0.975 in the reference


def test_what_starts_in_hand_is_seen_there():
    obs, states = drawn("BabyAI-PutNextS5N2Carrying-v0", 20)
    assert (type_of(states.carrying) >= KEY).all()
    np.testing.assert_array_equal(obs["image"][:, 3, 6, 0], type_of(states.carrying))
    assert (states.tracked == states.cell).all() and ((states.cell == -1).sum(1) == 2).all()  # in hand; no door
    stale, theirs = drawn("BabyAI-PutNextS5N2Carrying-v0?compat=minigrid", 20)
    assert (stale["image"][:, 3, 6, 0] == 1).all() and (type_of(theirs.carrying) >= KEY).all()
    assert ((theirs.tracked >= 0).sum(1) == 4).all()


def test_walls_are_no_grey_objects():
    articles = {}
    for compat in ("", "?compat=minigrid"):
        obs, _ = drawn(f"BabyAI-PickupDist-v0{compat}")
        said = {MISSIONS.render(caption) for caption in obs["mission"]}
        articles[compat] = {text.split()[2] for text in said if text.endswith("grey object")}
    assert articles == {"": {"a", "the"}, "?compat=minigrid": {"a"}}


@pytest.mark.parametrize("compat, steps", [("", 288), ("minigrid", 72)])
def test_the_limit_of_unlock_pickup(compat, steps):
    _, states = drawn(f"BabyAI-UnlockPickup-v0?compat={compat}" if compat else "BabyAI-UnlockPickup-v0", 4)
    assert (states.max_steps == steps).all()


def test_a_box_hides_its_key():
    _, states = drawn("BabyAI-KeyInBox-v0", 8)
    assert (type_of(states.content[:, 0]) == KEY).all() and (states.cell[:, 1] == -1).all()
    locked = (type_of(states.grid) == DOOR) & (state_of(states.grid) == LOCKED)
    np.testing.assert_array_equal(color_of(states.grid[locked]), color_of(states.content[:, 0]))


def test_a_boss_asks_for_all_kinds_of_things():
    _, states = drawn("BabyAI-BossLevel-v0")
    kinds = states.mission.kind
    assert {1, 2, 3, 4} == set(kinds[kinds > 0].tolist())
    assert set(states.mission.order.tolist()) == {0, 1, 2}
    assert {(k > 0).sum() for k in kinds} == {1, 2, 3, 4}
    assert (states.mission.location >= 0).any() and (states.mission.type[..., 0] == BALL).any()
    assert (states.max_steps == 576 * ((kinds > 0).sum(1) + (kinds == 4).sum(1))).all()


def test_a_world_depends_on_its_key_alone():
    """Four objects on nine cells: some draws are rejected, and each row is drawn as often as it needs."""
    env, params = envs_jax.make("BabyAI-GoToLocal-v0?room_size=5&num_dists=4")
    keys = jax.random.split(jax.random.key(0), 32)
    _, together = jax.jit(jax.vmap(env.reset, (0, None)))(keys, params)
    alone = jax.jit(env.reset)
    for i in (0, 13, 31):
        _, state = alone(keys[i], params)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[i]), state, together)  # noqa: B023
    tries = jax.jit(jax.vmap(lambda key: env.level.attempt(rolled_by(key), jnp.int32(0))[0].accepted))
    assert np.asarray(tries(keys)).mean() < 1


def rolled_by(key):
    """The dice of a row's first attempt."""
    return Dice(jax.random.bits(jax.random.fold_in(key, 1), (4096,), jnp.uint32))
