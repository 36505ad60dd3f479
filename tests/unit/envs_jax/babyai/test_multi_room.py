"""Several rooms: which walls get doors, where things and agents may be; no impossible world of minigrid's is drawn."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.constants import BALL, DOOR, DROP, KEY, LEFT, LOCKED, RIGHT, WALL
from envs_jax.babyai.levels.layout import Rng
from envs_jax.babyai.levels.room_grid import RoomGrid, connect, scatter
from envs_jax.babyai.state import color_of, state_of, type_of
from envs_jax.babyai.text.english import MISSIONS
from envs_jax.babyai.verify import member, members, object_set
from tests.compile_cache import cached_in


def rolled(seed, n=4096):
    return Rng(jax.random.bits(jax.random.key(seed), (n,), jnp.uint32))


def test_the_tables_of_a_grid_of_rooms():
    rooms = RoomGrid(5, 2, 3)  # rooms 0 1 2 over 3 4 5, with 3 x 3 cells of floor
    assert [edge[:2] for edge in rooms.edges] == [(0, 1), (0, 3), (1, 2), (1, 4), (2, 5), (3, 4), (4, 5)]
    assert rooms.edge_of[4].tolist() == [6, -1, 5, 3]  # right, down, left, up
    cells = [(int(c) // rooms.height, int(c) % rooms.height) for c in rooms.slots[3]]
    assert cells == [(5, 4), (6, 4), (7, 4)]  # between rooms 1 and 4
    assert [(int(c) // rooms.height, int(c) % rooms.height) for c in rooms.slots[0]] == [(4, 1), (4, 2), (4, 3)]
    assert rooms.middle == 4 and rooms.inside.shape == (6, 9) and rooms.room_cells.shape == (6, 25)


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
    draw = jax.jit(jax.vmap(lambda bits: connect(Rng(bits), rooms, present, sealed)))
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
    room = np.array([0, 1, 0, 1, 1, 0], np.int32)
    place = jax.jit(lambda room: scatter(rolled(0), rooms, room, jnp.asarray(free)))
    cell, fits = jax.device_get(place(room))
    assert bool(fits) and len(set(cell.tolist())) == 6
    assert set(cell[np.array([0, 2, 5])].tolist()) == set(rooms.inside[0][1:].tolist())
    assert set(cell[np.array([1, 3, 4])].tolist()) < set(rooms.inside[1].tolist())
    assert not place(np.zeros(6, np.int32))[1]


def test_among_is_uniform():
    allowed = jnp.asarray([False, True, True, False, True])
    draw = jax.jit(jax.vmap(lambda bits: Rng(bits).choice(allowed)))
    counts = np.bincount(draw(jax.random.bits(jax.random.key(1), (3000, 1), jnp.uint32)), minlength=5)
    assert counts[[0, 3]].sum() == 0 and abs(counts[[1, 2, 4]] - 1000).max() < 110


def found_in(mask):
    """A mask as a set, what all members of the set are, and which of -1 to 39 are members of the first."""
    words = object_set(mask)
    return words, members(words, 40), member(words[0], jnp.arange(-1, 40))


def test_sets_of_more_than_32_objects():
    mask = np.zeros((2, 40), bool)
    mask[0, [0, 31, 32, 39]] = True
    words, whole, single = jax.jit(found_in)(mask)
    assert words.shape == (2, 2) and words.dtype == jnp.uint32
    np.testing.assert_array_equal(whole, mask)
    np.testing.assert_array_equal(single, [False, *mask[0]])


def drawn(id, n, *wanted):
    """Some entries of the observations and fields of the states after `n` resets: the rest is not compiled."""
    env, params = envs_jax.make(id)

    def entries(key):
        obs, state = env.reset(key, params)
        return {name: obs[name] if name in obs else getattr(state, name) for name in wanted}

    draw = jax.jit(jax.vmap(entries))
    return SimpleNamespace(**jax.device_get(draw(jax.random.split(jax.random.key(0), n))))


def behind(grid, position):
    """Cells that can be walked to without opening the locked door."""
    open_to = ((type_of(grid) != WALL) & ~((type_of(grid) == DOOR) & (state_of(grid) == LOCKED))).tolist()
    seen, frontier = set(), [tuple(position.tolist())]
    while frontier:
        at = frontier.pop()
        if at not in seen and open_to[at[0]][at[1]]:
            seen.add(at)
            frontier += [(at[0] + dx, at[1] + dy) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]
    return seen


def keys_at_hand(id):
    states = drawn(id, 300, "grid", "position", "object", "cell")
    height, count = states.grid.shape[2], 0
    for i in range(300):
        grid = states.grid[i].astype(int)
        doors = grid[(type_of(grid) == DOOR) & (state_of(grid) == LOCKED)]
        (color,) = set(color_of(doors).tolist())
        here = behind(grid, states.position[i])
        keys = np.flatnonzero((type_of(states.object[i]) == KEY) & (color_of(states.object[i]) == color))
        count += any((int(states.cell[i, k]) // height, int(states.cell[i, k]) % height) in here for k in keys)
    return count / 300


@pytest.mark.slow
def test_the_key_of_a_locked_room_is_never_locked_in():
    assert keys_at_hand("BabyAI-Unlock-v0") == 1.0
    assert 0.9 < keys_at_hand("BabyAI-Unlock-v0?compat=minigrid") < 1.0  # 0.975 in the reference


def test_what_starts_in_hand_is_seen_there():
    wanted = ("image", "carrying", "tracked", "cell")
    states = drawn("BabyAI-PutNextS5N2Carrying-v0", 20, *wanted)
    assert (type_of(states.carrying) >= KEY).all()
    np.testing.assert_array_equal(states.image[:, 3, 6, 0], type_of(states.carrying))
    assert (states.tracked == states.cell).all() and ((states.cell == -1).sum(1) == 2).all()  # in hand; no door
    theirs = drawn("BabyAI-PutNextS5N2Carrying-v0?compat=minigrid", 20, *wanted)
    assert (theirs.image[:, 3, 6, 0] == 1).all() and (type_of(theirs.carrying) >= KEY).all()
    assert ((theirs.tracked >= 0).sum(1) == 4).all()


def test_what_starts_in_hand_is_put_down_by_the_first_action():
    env, params = envs_jax.make("BabyAI-PutNextS5N2Carrying-v0")

    @jax.jit
    @jax.vmap
    def succeeds(key, actions):
        _, state = env.reset(key, params)

        def step(state, action):
            _, state, _, _, _, info = env.step(key, state, action, params)
            return state, info["success"]

        return jax.lax.scan(step, state, actions)[1]

    keys = jax.random.split(jax.random.key(0), 64)
    orders = jnp.array([[DROP, LEFT, RIGHT], [LEFT, RIGHT, DROP]])
    done = np.asarray(succeeds(jnp.tile(keys, 2), jnp.repeat(orders, 64, axis=0))).reshape(2, 64, 3)
    assert done[0, :, 0].sum() > 0 and (done[0, :, 0] == done[1, :, 2]).all()


@pytest.mark.slow
def test_walls_are_no_grey_objects():
    articles = {}
    for compat in ("", "?compat=minigrid"):
        missions = drawn(f"BabyAI-PickupDist-v0{compat}", 300, "mission").mission
        said = {MISSIONS.render(caption) for caption in missions}
        articles[compat] = {text.split()[2] for text in said if text.endswith("grey object")}
    assert articles == {"": {"a", "the"}, "?compat=minigrid": {"a"}}


@pytest.mark.parametrize("compat, steps", [("", 288), ("minigrid", 72)])
def test_the_limit_of_unlock_pickup(compat, steps):
    id = f"BabyAI-UnlockPickup-v0?compat={compat}" if compat else "BabyAI-UnlockPickup-v0"
    states = drawn(id, 4, "max_steps")
    assert (states.max_steps == steps).all()


def test_a_box_hides_its_key():
    states = drawn("BabyAI-KeyInBox-v0", 8, "content", "cell", "grid")
    assert (type_of(states.content[:, 0]) == KEY).all() and (states.cell[:, 1] == -1).all()
    locked = (type_of(states.grid) == DOOR) & (state_of(states.grid) == LOCKED)
    np.testing.assert_array_equal(color_of(states.grid[locked]), color_of(states.content[:, 0]))


@pytest.mark.slow
def test_a_boss_asks_for_all_kinds_of_things():
    env, params = envs_jax.make("BabyAI-BossLevel-v0")
    draw = jax.jit(jax.vmap(lambda key: (lambda state: (state.mission, state.max_steps))(env.reset(key, params)[1])))
    mission, max_steps = jax.device_get(draw(jax.random.split(jax.random.key(0), 300)))
    kinds = mission.kind
    assert {1, 2, 3, 4} == set(kinds[kinds > 0].tolist())
    assert set(mission.order.tolist()) == {0, 1, 2}
    assert {(k > 0).sum() for k in kinds} == {1, 2, 3, 4}
    assert (mission.location >= 0).any() and (mission.type[..., 0] == BALL).any()
    assert (max_steps == 576 * ((kinds > 0).sum(1) + (kinds == 4).sum(1))).all()


@pytest.mark.slow
def test_a_world_depends_on_its_key_alone():
    """Four objects on nine cells: some draws are rejected, and each row is drawn as often as it needs."""
    env, params = envs_jax.make("BabyAI-GoToLocal-v0?room_size=5&num_dists=4")
    keys = jax.random.split(jax.random.key(0), 32)
    together = jax.device_get(jax.jit(jax.vmap(lambda key: env.reset(key, params)[1]))(keys))
    alone = jax.jit(lambda keys, i: env.reset(keys[i], params)[1])
    for i in (0, 13, 31):
        state = alone(keys, i)
        jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[i]), state, together)  # noqa: B023
    tries = jax.jit(jax.vmap(lambda key: env.level.attempt(rolled_by(key), jnp.int32(0))[0].accepted))
    assert np.asarray(tries(keys)).mean() < 1


def rolled_by(key):
    """The random numbers of a row's first attempt."""
    return Rng(jax.random.bits(jax.random.fold_in(key, 1), (4096,), jnp.uint32))


SMALL = "room_size=4&num_rows={}&num_cols={}&num_dists={}"


@pytest.mark.parametrize(
    ("id", "numbers"),
    [
        ("BabyAI-GoTo-v0?" + SMALL.format(1, 2, 4), "4.*1 x 2.*size 4"),
        pytest.param("BabyAI-GoTo-v0?" + SMALL.format(1, 1, 2), "2.*1 x 1.*size 4", marks=pytest.mark.slow),
        pytest.param("BabyAI-GoTo-v0?room_size=4", "18.*3 x 3.*size 4", marks=pytest.mark.slow),
        pytest.param("BabyAI-GoTo-v0?" + SMALL.format(2, 2, 8), "8.*2 x 2.*size 4", marks=pytest.mark.slow),
        pytest.param("BabyAI-GoToSeq-v0?room_size=4", "18.*3 x 3.*size 4", marks=pytest.mark.slow),
        pytest.param("BabyAI-PutNext-v0?room_size=4", "18.*3 x 3.*size 4", marks=pytest.mark.slow),
        pytest.param("BabyAI-GoTo-v0?room_size=5&num_dists=30", "30.*3 x 3.*size 5", marks=pytest.mark.slow),
        ("BabyAI-PutNextS4N1-v0?objs_per_room=2", "objs_per_room.*2.*1.*1"),
        ("BabyAI-MoveTwoAcrossS5N2-v0?room_size=4", "objs_per_room.*2.*1.*1"),
        ("BabyAI-Synth-v0?num_rows=1&num_cols=1&num_dists=4", "num_rows.*num_cols.*1.*2"),
    ],
)
def test_rooms_too_full_for_any_world_are_refused(id, numbers):
    with pytest.raises(ValueError, match=numbers):
        envs_jax.make(id)


def test_rooms_are_checked_in_a_trace_with_a_cache_of_programs(tmp_path):
    jax.clear_caches()

    @jax.jit
    def twice(x):
        with pytest.raises(ValueError, match="4.*1 x 2.*size 4"):
            envs_jax.make("BabyAI-GoTo-v0?" + SMALL.format(1, 2, 4))
        return 2 * x

    with cached_in(tmp_path):
        assert twice(3) == 6


@pytest.mark.parametrize(
    "id",
    [
        "BabyAI-GoTo-v0?num_rows=1&num_cols=1&num_dists=4",
        # at most one object beside the agent, and two in each other room
        pytest.param("BabyAI-GoTo-v0?" + SMALL.format(1, 2, 3), marks=pytest.mark.slow),
        pytest.param("BabyAI-GoToSeq-v0?num_rows=1&num_cols=1&num_dists=4", marks=pytest.mark.slow),
        pytest.param("BabyAI-GoTo-v0?" + SMALL.format(2, 2, 6), marks=pytest.mark.slow),
        pytest.param("BabyAI-GoTo-v0?room_size=5", marks=pytest.mark.slow),
    ],
)
def test_full_rooms_and_a_single_room_have_worlds(id):
    cells = drawn(id, 2, "cell").cell
    assert all(len(set(row[row >= 0])) >= 3 for row in cells)
