"""Housekeep's actions, aim, rewards, text and clock, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.housekeep.apartment import KEYS, NAMES
from envs_jax.housekeep.constants import (
    ABSENT,
    DOWN,
    EAST,
    FORWARD,
    GRAB,
    HEADINGS,
    HIGH,
    IN_HAND,
    LEFT,
    LOW,
    MIDDLE,
    NORTH,
    RIGHT,
    SLOTS,
    SOUTH,
    UP,
    WEST,
    WIDTH,
)
from envs_jax.housekeep.tables import tables
from envs_jax.housekeep.worldgen import Start


ENV, PARAMS = envs_jax.make("Housekeep-v0")
STEP = jax.jit(ENV.step)
BEGIN = jax.jit(lambda category, spot, cell, heading: ENV.begin(Start(category, spot, cell, heading)))
KEY = jax.random.key(0)
SPOTS = ENV.tables.spots


def spot(receptacle, number=0):
    return int(SPOTS.of_receptacle(KEYS.index(receptacle))[number])


def begin(y, x, heading, *objects, pitch=LOW):
    """A state with the agent at a cell, and objects `(name, receptacle, number of the spot)`."""
    category, places = np.full(SLOTS, -1, np.int16), np.full(SLOTS, ABSENT, np.int16)
    for slot, (name, receptacle, number) in enumerate(objects):
        category[slot], places[slot] = ENV.preferences.objects.index(name), spot(receptacle, number)
    _, state = BEGIN(category, places, np.int32(y * WIDTH + x), np.int32(heading))
    return state.replace(pitch=jnp.int32(pitch))


def play(state, *actions, params=PARAMS):
    """Rewards and infos of a sequence of actions, and the last state."""
    rewards, infos = [], []
    for action in actions:
        _, state, reward, terminated, _, info = STEP(KEY, state, np.int32(action), params)
        rewards.append(round(float(reward), 4))
        infos.append({name: np.asarray(value).item() for name, value in info.items()} | {"over": bool(terminated)})
    return rewards, infos, state


def aim(y, x, heading, pitch):
    """Target of the crosshair: the receptacle's name, and the cell and height of the spot."""
    at = ((y * WIDTH + x) * 4 + heading) * 3 + pitch
    receptacle, number = ENV.tables.hit_receptacle[at], ENV.tables.hit_spot[at]
    place = (*divmod(int(SPOTS.cell[number]), WIDTH), int(SPOTS.band[number])) if number >= 0 else None
    return NAMES[receptacle] if receptacle >= 0 else None, place


@pytest.mark.parametrize(
    ("pose", "pitch", "hit"),
    [
        # south of the kitchen table, whose legs let a low look pass to the chair behind it
        ((5, 6, SOUTH), MIDDLE, ("kitchen table", (6, 6, MIDDLE))),
        ((5, 6, SOUTH), LOW, ("kitchen chair", (8, 6, LOW))),
        ((5, 6, SOUTH), HIGH, (None, None)),
        # before the sink: the dishwasher below it, the window above it
        ((3, 5, NORTH), LOW, ("kitchen dishwasher", (2, 5, LOW))),
        ((3, 5, NORTH), MIDDLE, ("kitchen sink", (2, 5, MIDDLE))),
        ((3, 5, NORTH), HIGH, ("kitchen window", (0, 5, HIGH))),
        # a carpet is the nearest low thing unless the agent stands at its end
        ((5, 5, NORTH), LOW, ("kitchen carpet", (4, 5, LOW))),
        ((4, 5, NORTH), LOW, ("kitchen dishwasher", (2, 5, LOW))),
        # doors and pictures are hit and hold nothing
        ((14, 22, EAST), MIDDLE, ("lobby door", None)),
        ((20, 20, EAST), HIGH, ("bedroom picture", None)),
        # the picture at the western wall: 12 cells are in reach, 13 are not
        ((14, 12, WEST), MIDDLE, ("living room picture", None)),
        ((14, 13, WEST), MIDDLE, (None, None)),
        # through the opening between lobby and living room there is only air
        ((14, 17, WEST), MIDDLE, (None, None)),
    ],
)
def test_aim(pose, pitch, hit):
    assert aim(*pose, pitch) == hit


def test_moves_turns_and_looks():
    state = begin(5, 4, EAST)
    # (5, 5) is free; (6, 5) is the table
    state = play(state, FORWARD, RIGHT, FORWARD)[2]
    assert (int(state.cell), int(state.heading)) == (5 * WIDTH + 5, SOUTH)
    state = play(state, LEFT, LEFT, LEFT, LEFT, LEFT)[2]
    assert int(state.heading) == EAST
    pitches = []
    for action in (UP, UP, UP, DOWN, DOWN, DOWN):
        state = play(state, action)[2]
        pitches.append(int(state.pitch))
    assert pitches == [MIDDLE, HIGH, HIGH, MIDDLE, LOW, LOW]
    assert int(state.step_count) == 14


def test_rewards_of_a_misplaced_object():
    # a book on the kitchen table belongs on shelves; it also lies right in front of the agent
    state = begin(5, 6, SOUTH, ("book", "kitchen|table", 1), ("apple", "kitchen|counter", 0), pitch=MIDDLE)
    assert state.misplaced.tolist()[:3] == [True, False, False]
    rewards, infos, state = play(state, GRAB)
    assert rewards == [2.5]
    info = infos[0]
    assert (info["picked"], info["placed"], info["failed"], info["first"]) == (True, False, False, True)
    assert (info["object"], info["category"]) == (0, ENV.preferences.objects.index("book"))
    assert info["receptacle"] == KEYS.index("kitchen|table")
    assert int(state.held) == 0 and int(state.spot[0]) == IN_HAND
    # back on the table: wrong; up again: no reward, no penalty
    rewards, infos, state = play(state, GRAB, GRAB)
    assert rewards == [-0.25, 0.0]
    assert infos[0]["placed"] and not infos[0]["first"] and infos[1]["picked"] and not infos[1]["first"]
    # first time on the shelf: rewarded, and the end, since the other one is in its place
    state = state.replace(cell=jnp.int32(13 * WIDTH + 10), heading=jnp.int32(NORTH), pitch=jnp.int32(LOW))
    rewards, infos, after = play(state, GRAB)
    assert rewards == [2.5] and infos[0]["first"] and infos[0]["over"] and infos[0]["success"]
    assert NAMES[infos[0]["receptacle"]] == "living room shelf"
    # taken from there it is a correct object, and the second placement counts no more
    rewards, infos, after = play(after, GRAB, UP, GRAB)
    assert rewards == [-0.25, 0.0, 0.0]
    assert infos[2]["placed"] and not infos[2]["first"] and infos[2]["over"]


def test_rewards_of_an_object_in_its_place():
    state = begin(3, 3, NORTH, ("apple", "kitchen|counter", 0), ("book", "kitchen|table", 1), pitch=MIDDLE)
    rewards, infos, state = play(state, GRAB, GRAB)
    # the pick is penalised, and putting it back earns nothing
    assert rewards == [-0.25, 0.0] and infos[1]["placed"] and infos[1]["first"]
    assert infos[0]["rearrange_success"] == 0.0 and infos[0]["best_rearrange_success"] == 0.5  # as at the start
    assert not infos[1]["over"]  # the book is still misplaced
    # who takes it elsewhere has to bring it back
    _, _, state = play(state, GRAB, RIGHT, RIGHT)
    state = state.replace(cell=jnp.int32(5 * WIDTH + 5))
    rewards, infos, state = play(state, GRAB)
    assert rewards == [0.0] and NAMES[infos[0]["receptacle"]] == "kitchen table"  # where fruit belongs too
    assert infos[0]["misplaced_success"] == 0 and infos[0]["rearrange_success"] == 0.5


def test_what_was_touched_has_to_be_in_its_place_too():
    state = begin(3, 3, NORTH, ("apple", "kitchen|counter", 0), ("book", "kitchen|table", 1), pitch=MIDDLE)
    sink = {"cell": jnp.int32(3 * WIDTH + 5)}
    table = {"cell": jnp.int32(5 * WIDTH + 6), "heading": jnp.int32(SOUTH)}
    shelf = {"cell": jnp.int32(13 * WIDTH + 10), "heading": jnp.int32(NORTH)}
    _, _, state = play(play(state, GRAB)[2].replace(**sink), GRAB)  # fruit in the sink is not correct
    _, _, state = play(state.replace(**table), GRAB)
    _, infos, state = play(state.replace(**shelf), GRAB)
    assert infos[0]["misplaced_success"] == 1 and not infos[0]["over"]
    _, _, state = play(state.replace(**sink), GRAB)
    _, infos, _ = play(state.replace(cell=jnp.int32(3 * WIDTH + 3)), GRAB)
    assert infos[0]["over"] and infos[0]["rearrange_success"] == 1.0


def test_what_fails():
    state = begin(5, 6, SOUTH, ("book", "kitchen|table", 1), ("fork", "kitchen|sink", 0), pitch=HIGH)
    assert play(state, GRAB)[0] == [-0.2]  # nothing in reach
    assert play(state.replace(pitch=jnp.int32(LOW)), GRAB)[0] == [-0.2]  # an empty chair
    held = play(state, DOWN, GRAB)[2]
    sink = held.replace(cell=jnp.int32(3 * WIDTH + 5), heading=jnp.int32(NORTH))
    rewards, infos, after = play(sink, GRAB)
    assert rewards == [-0.2] and infos[0]["failed"] and int(after.held) == 0  # on top of the fork
    assert play(held.replace(cell=jnp.int32(14 * WIDTH + 22), heading=jnp.int32(EAST)), GRAB)[0] == [-0.2]  # a door
    assert play(sink, UP, GRAB)[0] == [0.0, -0.25]  # the sill of the window is a place, and never a correct one
    assert play(held.replace(pitch=jnp.int32(HIGH)), GRAB)[0] == [-0.2]  # into the air


def test_clipped_rewards():
    clipped = PARAMS.replace(clip_reward=np.bool_(True))
    state = begin(5, 6, SOUTH, ("book", "kitchen|table", 1), pitch=MIDDLE)
    assert play(state, GRAB, GRAB, UP, GRAB, params=clipped)[0] == [1.0, -0.25, 0.0, -0.2]
    assert envs_jax.make("Housekeep-v0?clip_reward=true")[1].clip_reward


def test_rewards_of_suggestions():
    """Whoever suggests wants books on the kitchen table, and is not asked about a book that was put there."""
    book, table = ENV.preferences.objects.index("book"), KEYS.index("kitchen|table")
    yes = np.zeros_like(ENV.correct)
    yes[book, table] = yes[book - 1, -1] = True  # the latter for nothing that is here
    params = PARAMS.replace(suggesting=np.bool_(True), suggestions=yes)
    state = begin(3, 10, SOUTH, ("book", "living_room|shelf", 0), ("fork", "kitchen|table", 1), pitch=MIDDLE)
    at_shelf = {"cell": jnp.int32(13 * WIDTH + 9), "heading": jnp.int32(NORTH), "pitch": jnp.int32(LOW)}
    at_table = {"cell": jnp.int32(5 * WIDTH + 5), "heading": jnp.int32(SOUTH), "pitch": jnp.int32(MIDDLE)}
    rewards, infos, state = play(state.replace(**at_shelf), GRAB, GRAB, GRAB, params=params)
    assert infos[0]["suggested_success"] == 0.0  # in hand
    assert rewards == [2.5, -0.25, 0.0]  # "pick book", not suggested to leave it there, picked again
    rewards, infos, state = play(state.replace(**at_table), GRAB, params=params)
    assert rewards == [2.5] and infos[0]["suggested_success"] == 0.5 and infos[0]["misplaced_success"] == 0
    rewards, _, state = play(state, GRAB, GRAB, params=params)
    assert rewards == [-0.25, -0.25]  # stored already: neither the pick nor the placement is suggested
    # a fork that is to go nowhere is worth picking once
    state = state.replace(cell=jnp.int32(5 * WIDTH + 6))
    assert play(state, GRAB, params=params)[0] == [2.5]


def test_metrics():
    state = begin(
        5, 6, SOUTH, ("book", "kitchen|table", 1), ("shoe", "kitchen|table", 2), ("apple", "kitchen|counter", 0)
    )
    state = state.replace(pitch=jnp.int32(MIDDLE))
    info = play(state, GRAB)[1][0]
    assert (info["initial_success"], info["rearrange_success"]) == pytest.approx((1 / 3, 1 / 3))
    assert (info["pick_success"], info["place_success"], info["misplaced_success"]) == (0.5, 0.0, 0)
    state = play(state, GRAB)[2].replace(cell=jnp.int32(13 * WIDTH + 10), heading=jnp.int32(NORTH))
    rewards, infos, state = play(state, GRAB, GRAB)
    assert infos[0]["rearrange_success"] == pytest.approx(2 / 3) and infos[0]["misplaced_success"] == 1
    assert (infos[0]["pick_success"], infos[0]["place_success"]) == (0.5, 0.5)
    assert not infos[0]["over"]
    # in hand again: not in place now, but the best of the episode stands
    assert infos[1]["rearrange_success"] == pytest.approx(1 / 3)
    assert infos[1]["best_rearrange_success"] == pytest.approx(2 / 3) and infos[1]["place_success"] == 0.5


def test_time_runs_out():
    state = begin(5, 6, SOUTH, ("book", "kitchen|table", 1))
    for limit, over in ((1, True), (2, False)):
        *_, terminated, truncated, _ = STEP(KEY, state, np.int32(LEFT), PARAMS.replace(max_steps=np.int32(limit)))
        assert bool(truncated) is over and not terminated
    assert PARAMS.max_steps == 1000


def test_texts_of_a_task():
    env, params = envs_jax.make("Housekeep-Task1-v0")
    obs, _ = jax.jit(env.reset)(KEY, params)
    assert env.describe(obs) == {
        "objects": "lemon, table lamp",
        "receptacles": "kitchen table, kitchen chair, kitchen carpet, kitchen door, living room coffee "
        "table, living room table, living room chair, living room carpet",
        "holding": "nothing",
    }
    assert env.text(obs).startswith("objects: lemon, table lamp receptacles: kitchen table, kitchen chair, ")
    assert env.text(obs).endswith("living room carpet you are holding: nothing")


def test_what_has_been_seen_accumulates():
    state = begin(3, 5, NORTH, ("fork", "kitchen|sink", 0), ("hat", "kitchen|chair", 0), ("cup", "bathroom|shelf", 0))
    assert state.seen_objects.tolist()[:3] == [True, False, False]  # the chair is behind the agent
    obs, state, *_ = STEP(KEY, state, np.int32(LEFT), PARAMS)
    obs, state, *_ = STEP(KEY, state, np.int32(LEFT), PARAMS)
    assert ENV.describe(obs)["objects"] == "fork, hat"
    # the fork is out of view, and stays known
    assert obs["places"].tolist()[:3] == [-1, KEYS.index("kitchen|chair"), -1]
    assert obs["categories"].tolist()[:3] == [*(ENV.preferences.objects.index(n) for n in ("fork", "hat")), -1]
    names = [NAMES[i] for i in np.flatnonzero(obs["seen_receptacles"])]
    assert {"kitchen sink", "kitchen door", "living room table"} <= set(names) and "bathroom shelf" not in names
    assert ENV.describe(obs)["receptacles"] == ", ".join(names)


def test_what_is_held_is_out_of_sight():
    state = begin(3, 5, NORTH, ("fork", "kitchen|sink", 0), pitch=MIDDLE)
    obs, *_ = STEP(KEY, state, np.int32(GRAB), PARAMS)
    assert ENV.describe(obs)["holding"] == "fork" and int(obs["held"]) == 0
    assert obs["places"].tolist()[0] == -1 and np.max(obs["image"]) < 3 + len(NAMES)


def test_image():
    obs, *_ = STEP(KEY, begin(3, 5, EAST, ("fork", "kitchen|sink", 0)), np.int32(LEFT), PARAMS)
    image, receptacle = obs["image"], lambda name: 3 + KEYS.index(name)
    fork = 3 + len(KEYS) + ENV.preferences.objects.index("fork")
    # facing the sink from one cell away: its row is the second to last, its column the middle one
    assert image[11, 6].tolist() == [receptacle("kitchen|dishwasher"), fork, 1]
    assert image[11, 7].tolist() == [receptacle("kitchen|dishwasher"), receptacle("kitchen|sink"), 1]
    assert image[11, 5].tolist() == [receptacle("kitchen|bottom_cabinet"), receptacle("kitchen|counter"), 1]
    assert image[10, 5].tolist()[2] == receptacle("kitchen|top_cabinet")
    assert image[9, 6].tolist() == [2, 2, receptacle("kitchen|window")]  # the wall, and the window in it
    assert image[12, 6].tolist() == [1, 1, 1] and not image[:9].any()  # the agent's own cell; beyond the wall


def test_a_wider_and_a_narrower_view():
    wide, narrow = tables(180.0), tables(90.0)
    pose = (4 * WIDTH + 6) * 4 + SOUTH
    beside, ahead = 4 * WIDTH + 8, 5 * WIDTH + 7  # on the agent's row, and diagonally ahead
    assert wide.sees_cell[pose, [beside, ahead]].tolist() == [True, True]
    assert narrow.sees_cell[pose, [beside, ahead]].tolist() == [False, True]
    behind = 3 * WIDTH + 6
    assert not wide.sees_cell[pose, behind]


def test_walls_hide_other_rooms():
    """The lobby has no high furniture: each of its cells sees whatever of it lies ahead. No wall lets anything pass."""
    sees = ENV.tables.sees_cell.reshape(-1, 4, 30, 24)
    lobby = [(y, x) for y in range(12, 18) for x in range(14, 23) if ENV.tables.walkable[y * WIDTH + x]]
    for y, x in lobby:
        for heading, (dy, dx) in enumerate(HEADINGS):
            for v, u in lobby:
                ahead = (v - y) * dy + (u - x) * dx >= 0
                assert sees[y * WIDTH + x, heading, v, u] == ahead
    kitchen = [y * WIDTH + x for y in range(3, 11) for x in range(1, 13) if ENV.tables.walkable[y * WIDTH + x]]
    assert not sees[kitchen, :, 1:11, 14:23].any()  # the bathroom behind the wall
    assert sees[kitchen, :, 12:29, 1:13].any()  # the living room through the opening
    # past the corner of an opening: a line between a free cell and the wall is free, one through the wall is not
    assert sees[15 * WIDTH + 12, EAST, 16, 14] and not sees[15 * WIDTH + 12, EAST, 17, 14]
    # the high shelf of the bathroom hides the corner behind it only from the front
    assert not sees[8 * WIDTH + 14, SOUTH, 10, 14] and sees[8 * WIDTH + 15, SOUTH, 10, 14]
