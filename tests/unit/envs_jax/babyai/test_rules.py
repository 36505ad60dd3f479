"""BabyAI's rules on worlds small enough to work out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax.babyai.constants import (
    BALL,
    BLUE,
    BOX,
    CLOSED,
    DONE,
    DOOR,
    DROP,
    EMPTY,
    FORWARD,
    GREY,
    KEY,
    LEFT,
    LOCKED,
    OPEN,
    PICKUP,
    RED,
    RIGHT,
    TOGGLE,
    UNSEEN,
    WALL,
    YELLOW,
)
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.levels import level as levels, one_room
from envs_jax.babyai.levels.layout import Rng, Rooms
from envs_jax.babyai.levels.level import Level
from envs_jax.babyai.mission import AFTER, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, PUT_NEXT, SINGLE, Mission
from envs_jax.babyai.state import EMPTY_CELL, WALL_CELL, State, pack
from envs_jax.babyai.text.english import MISSION_LENGTH


ROOM = Rooms(9)
OBJECTS = 5


def undrawn(rng, task):
    raise AssertionError("these worlds are made by hand")


ENV = BabyAI(Level(ROOM, OBJECTS, ("any",), frozenset({GO_TO, OPEN_DOOR, PICK_UP, PUT_NEXT}), (0, 1, 2, 3), undrawn))
PARAMS = ENV.default_params
UP = 3


@pytest.fixture(scope="module")
def step():
    jitted = jax.jit(ENV.step)
    return lambda state, action: jitted(jax.random.key(0), state, action, PARAMS)


@pytest.fixture(scope="module")
def observe():
    return jax.jit(ENV.observe)


def world(things=(), agent=(4, 4, UP), clauses=(), order=SINGLE, walls=(), limit=64, carrying=-1, content=()):
    """A state. Things are `(type, color, x, y[, state])`; `carrying` is the index of the one in hand; `content` maps a
    box to what it hides. Clauses are `(slot, kind, movers[, fixed[, strict]])` with lists of things."""
    grid = np.full((ROOM.width, ROOM.height), EMPTY_CELL, np.int16)
    grid[[0, -1]] = grid[:, [0, -1]] = WALL_CELL
    for x, y in walls:
        grid[x, y] = WALL_CELL
    codes, cells = np.zeros(OBJECTS, np.int16), np.full(OBJECTS, -1, np.int16)
    hidden = dict(content)
    for i, (kind, color, x, y, *state) in enumerate(things):
        codes[i] = pack(kind, color, 0, i)
        if i != carrying and i not in hidden.values():
            cells[i] = x * ROOM.height + y
            grid[x, y] = pack(kind, color, *state or [0], i)
    inside = np.zeros(OBJECTS, np.int16)
    for box, thing in hidden.items():
        inside[box] = codes[thing]
    blank = np.full((4, 2), -1, np.int8)
    mission = Mission(
        kind=np.full(4, NO_CLAUSE, np.int8),
        order=np.int8(order),
        type=blank,
        color=blank,
        location=blank,
        many=np.zeros((4, 2), bool),
        strict=np.zeros(4, bool),
    )
    sets = np.zeros((4, 2, 1), np.uint32)
    for slot, kind, movers, *rest in clauses:
        mission.kind[slot], mission.strict[slot] = kind, bool(rest[1:] and rest[1])
        for k, objects in enumerate([movers, rest[0] if rest else []]):
            sets[slot, k] = sum(1 << i for i in objects)
    return State(
        grid=grid,
        object=codes,
        cell=cells,
        content=inside,
        tracked=cells,
        carrying=np.int16(codes[carrying] if carrying >= 0 else 0),
        position=np.array(agent[:2], np.int32),
        direction=np.int32(agent[2]),
        step_count=np.int32(0),
        max_steps=np.int32(limit),
        mission=mission,
        mission_caption=np.full(MISSION_LENGTH, -1, np.int16),
        mover=sets[:, 0],
        fixed=sets[:, 1],
        held=np.full(4, -1, np.int8),
        met=np.zeros(4, bool),
        matched=np.zeros(4, bool),
        task=np.int32(0),
    )


def play(step, state, *actions):
    """The rewards and the two flags of each step, and the last state."""
    log = []
    for action in actions:
        _, state, reward, terminated, truncated, _ = step(state, action)
        log.append((round(float(reward), 4), bool(terminated), bool(truncated)))
    return log, state


def at(state, x, y):
    cell = int(state.grid[x, y])
    return cell & 15, cell >> 4 & 7, cell >> 7 & 3


GOING = (0.0, False, False)


# The view


def seen(observe, state):
    """Rows of the view, far to near: `.` seen, `#` a seen wall, `D` a seen door, blank unseen."""
    image = np.asarray(observe(state)["image"])
    letters = {UNSEEN: " ", EMPTY: ".", WALL: "#", DOOR: "D"}
    return ["".join(letters.get(int(image[i, j, 0]), "o") for i in range(7)) for j in range(7)]


def test_a_wall_beside_the_agent_hides_what_is_behind_it(observe):
    state = world(agent=(4, 7, UP), walls=[(3, y) for y in range(1, 8)])
    # the wall is one column to the left, and the room's own wall four cells to the right, out of view
    assert seen(observe, state) == ["  #...."] * 7


def test_nothing_is_seen_through_a_closed_door_and_everything_through_an_open_one(observe):
    walls = [(x, 5) for x in range(1, 8) if x != 4]
    for lock in (CLOSED, LOCKED):
        state = world([(DOOR, BLUE, 4, 5, lock)], agent=(4, 7, UP), walls=walls)
        assert seen(observe, state) == ["       "] * 4 + ["###D###", ".......", "......."]
    state = world([(DOOR, BLUE, 4, 5, OPEN)], agent=(4, 7, UP), walls=walls)
    # light spreads sideways behind the gap, as in MiniGrid
    assert seen(observe, state) == ["......."] * 4 + ["###D###", ".......", "......."]


def test_beyond_the_grid_is_wall_that_cannot_be_seen(observe):
    # facing right from the column before the wall: three rows of it are lit at once, the rest along the room
    state = world(agent=(7, 4, 0))
    assert seen(observe, state) == ["       "] * 5 + ["#######", "......."]


def test_objects_do_not_hide_and_the_hand_is_shown_at_the_agents_feet(observe):
    state = world([(BOX, RED, 4, 6), (BALL, YELLOW, 4, 5), (KEY, GREY, 0, 0)], agent=(4, 7, UP), carrying=2)
    image = np.asarray(observe(state)["image"])
    assert image[3, 5].tolist() == [BOX, RED, 0] and image[3, 4].tolist() == [BALL, YELLOW, 0]
    assert image[3, 6].tolist() == [KEY, GREY, 0]
    assert (image[..., 0] != UNSEEN).all()


# Moving and handling


def test_turning_moving_and_bumping(step):
    state = world([(BALL, RED, 4, 2)])
    _, after = play(step, state, FORWARD)
    assert after.position.tolist() == [4, 3] and int(after.step_count) == 1
    _, after = play(step, after, FORWARD)  # the ball is in the way
    assert after.position.tolist() == [4, 3]
    _, after = play(step, after, RIGHT)
    assert int(after.direction) == 0
    _, after = play(step, after, LEFT, LEFT)
    assert int(after.direction) == 2
    _, after = play(step, after, *[FORWARD] * 9)  # the wall at x = 0 stops it
    assert after.position.tolist() == [1, 3]


def test_picking_up_and_dropping(step):
    state = world([(BALL, RED, 4, 3), (KEY, BLUE, 4, 2)])
    _, after = play(step, state, PICKUP)
    assert at(after, 4, 3)[0] == EMPTY and int(after.carrying) == pack(BALL, RED, 0, 0) and after.cell[0] == -1
    _, after = play(step, after, FORWARD, PICKUP)  # hands are full
    assert int(after.carrying) == pack(BALL, RED, 0, 0) and at(after, 4, 2) == (KEY, BLUE, 0)
    _, after = play(step, after, DROP)  # the key is in the way
    assert int(after.carrying) == pack(BALL, RED, 0, 0)
    _, after = play(step, after, LEFT, DROP)
    assert int(after.carrying) == 0 and at(after, 3, 3) == (BALL, RED, 0)
    assert after.cell[0] == 3 * ROOM.height + 3


def test_a_toggled_box_is_gone_and_leaves_what_it_hid(step):
    _, after = play(step, world([(BOX, RED, 4, 3)]), TOGGLE)
    assert at(after, 4, 3)[0] == EMPTY and after.cell[0] == -1
    state = world([(BOX, RED, 4, 3), (KEY, BLUE, 0, 0)], content=[(0, 1)])
    _, after = play(step, state, TOGGLE)
    assert at(after, 4, 3) == (KEY, BLUE, 0) and after.cell.tolist()[:2] == [-1, 4 * ROOM.height + 3]
    _, after = play(step, after, PICKUP)
    assert int(after.carrying) == pack(KEY, BLUE, 0, 1)


def test_a_locked_door_needs_its_key_which_is_kept(step):
    walls = [(x, 3) for x in range(1, 8) if x != 4]
    door = (DOOR, BLUE, 4, 3, LOCKED)
    _, after = play(step, world([door], walls=walls), TOGGLE)
    assert at(after, 4, 3) == (DOOR, BLUE, LOCKED)
    _, after = play(step, world([door, (KEY, RED, 0, 0)], walls=walls, carrying=1), TOGGLE)
    assert at(after, 4, 3) == (DOOR, BLUE, LOCKED)
    _, after = play(step, world([door, (KEY, BLUE, 0, 0)], walls=walls, carrying=1), TOGGLE)
    assert at(after, 4, 3) == (DOOR, BLUE, OPEN) and int(after.carrying) == pack(KEY, BLUE, 0, 1)
    _, after = play(step, after, DROP)  # not into a doorway
    assert int(after.carrying) == pack(KEY, BLUE, 0, 1)
    _, closed = play(step, after, TOGGLE)
    assert at(closed, 4, 3) == (DOOR, BLUE, CLOSED)
    _, after = play(step, after, FORWARD, FORWARD)
    assert after.position.tolist() == [4, 2]


# Missions


def test_go_to_counts_after_any_action_that_leaves_it_in_front(step):
    state = world([(BALL, RED, 3, 4), (BALL, BLUE, 5, 4)], clauses=[(0, GO_TO, [0])])
    assert play(step, state, RIGHT)[0] == [GOING]  # the other ball
    assert play(step, state, LEFT)[0] == [(round(1 - 0.9 / 64, 4), True, False)]
    facing = world([(BALL, RED, 4, 3)], clauses=[(0, GO_TO, [0])])
    assert play(step, facing, DONE)[0][0][1]


def test_the_place_of_a_taken_object_counts_until_something_is_dropped(step):
    things, clauses = [(BALL, RED, 3, 4), (KEY, BLUE, 0, 0)], [(0, GO_TO, [0])]
    state = world(things, clauses=clauses)
    gone = state.replace(grid=state.grid.copy(), cell=np.full(OBJECTS, -1, np.int16))
    gone.grid[3, 4] = EMPTY_CELL  # taken a while ago, nothing dropped since
    assert play(step, gone, LEFT)[0][0][1]
    # a drop action refreshes what is tracked, even one that drops nothing
    log, after = play(step, gone, DROP, LEFT)
    assert log == [GOING, GOING] and after.tracked[0] == -1


def test_success_on_the_last_step_pays_a_tenth_and_ends_both_ways(step):
    state = world([(BALL, RED, 3, 4)], clauses=[(0, GO_TO, [0])], limit=3)
    assert play(step, state, DONE, DONE, LEFT)[0] == [GOING, GOING, (0.1, True, True)]
    assert play(step, state, DONE, DONE, DONE)[0] == [GOING, GOING, (0.0, False, True)]


def test_pick_up_wants_empty_hands_and_the_right_thing(step):
    things, clauses = [(BALL, RED, 4, 3), (KEY, BLUE, 3, 4)], [(0, PICK_UP, [0])]
    assert play(step, world(things, clauses=clauses), PICKUP)[0] == [(round(1 - 0.9 / 64, 4), True, False)]
    assert play(step, world(things, clauses=clauses), LEFT, PICKUP)[0] == [GOING, GOING]
    strict = [(0, PICK_UP, [0], [], True)]
    assert play(step, world(things, clauses=strict), LEFT, PICKUP)[0] == [GOING, (0.0, True, False)]


def test_put_next_wants_one_step_and_not_a_diagonal(step):
    things, clauses = [(BALL, RED, 4, 3), (KEY, BLUE, 3, 5)], [(0, PUT_NEXT, [0], [1])]
    # the ball goes to (3, 4), beside the key
    assert play(step, world(things, clauses=clauses), PICKUP, LEFT, DROP)[0][-1][1]
    # to (5, 4): two steps away
    assert play(step, world(things, clauses=clauses), PICKUP, RIGHT, DROP)[0] == [GOING] * 3
    diagonal = [(BALL, RED, 4, 3), (KEY, BLUE, 2, 5)]
    assert play(step, world(diagonal, clauses=clauses), PICKUP, LEFT, DROP)[0] == [GOING] * 3
    # the other way round, the key beside the ball, is another mission
    other = [(0, PUT_NEXT, [1], [0])]
    assert play(step, world(things, clauses=other), PICKUP, LEFT, DROP)[0] == [GOING] * 3
    strict = [(0, PUT_NEXT, [0], [1], True)]
    assert play(step, world(things, clauses=strict), PICKUP)[0] == [(0.0, True, False)]


def test_open_wants_the_door_open_in_front(step):
    things, clauses = [(DOOR, BLUE, 4, 3, CLOSED), (DOOR, RED, 3, 4, CLOSED)], [(0, OPEN_DOOR, [0])]
    assert play(step, world(things, clauses=clauses), TOGGLE)[0][0][1]
    assert play(step, world(things, clauses=clauses), LEFT, TOGGLE)[0] == [GOING, GOING]
    already = [(DOOR, BLUE, 4, 3, OPEN)]
    assert play(step, world(already, clauses=clauses), TOGGLE, TOGGLE)[0][0] == GOING
    strict = [(0, OPEN_DOOR, [0], [], True)]
    assert play(step, world(things, clauses=strict), LEFT, TOGGLE)[0] == [GOING, (0.0, True, False)]


def test_sequences_keep_their_order(step):
    things = [(BALL, RED, 4, 3), (KEY, BLUE, 3, 4)]
    first_ball = [(0, PICK_UP, [0]), (2, GO_TO, [1])]
    state = world(things, clauses=first_ball, order=BEFORE)
    assert play(step, state, PICKUP, LEFT)[0][-1][1]
    assert play(step, state, LEFT)[0] == [GOING]  # the key too early
    log, _ = play(step, state, LEFT, RIGHT, PICKUP, LEFT)
    assert [terminated for _, terminated, _ in log] == [False, False, False, True]
    # "go to the key after you pick up the ball" is the same, its halves the other way round
    state = world(things, clauses=[(0, GO_TO, [1]), (2, PICK_UP, [0])], order=AFTER)
    assert play(step, state, LEFT)[0] == [GOING]
    assert play(step, state, PICKUP, LEFT)[0][-1][1]


def test_one_action_can_fulfil_both_halves(step):
    # the second half is consulted on the very step on which the first one succeeds
    things, clauses = [(BALL, RED, 4, 3)], [(0, PICK_UP, [0]), (2, GO_TO, [0])]
    assert play(step, world(things, clauses=clauses, order=BEFORE), PICKUP)[0][0][1]
    assert play(step, world(things, clauses=clauses, order=AFTER), PICKUP)[0] == [(0.9859, True, False)]


def test_a_half_that_was_never_consulted_knows_nothing_of_the_hand(step):
    # "go to the key, then pick up the ball", the ball in hand already
    things = [(BALL, RED, 0, 0), (KEY, BLUE, 3, 4), (KEY, GREY, 4, 3)]
    clauses = [(0, GO_TO, [1]), (2, PICK_UP, [0])]
    state = world(things, clauses=clauses, order=BEFORE, carrying=0)
    # consulted first with a turn, it remembers the ball, and a pick-up action with full hands is none
    log, after = play(step, state, LEFT, PICKUP)
    assert log == [GOING, GOING] and int(after.held[2]) == 0
    # consulted first with a pick-up action, it believes the ball to be just taken, as minigrid does
    facing = [(0, GO_TO, [2]), (2, PICK_UP, [0])]
    assert play(step, world(things, clauses=facing, order=BEFORE, carrying=0), PICKUP)[0][0][1]


def test_both_arms_of_and_are_latched_and_their_failures_ignored(step):
    things = [(BALL, RED, 3, 4), (KEY, BLUE, 5, 4)]
    state = world(things, clauses=[(0, GO_TO, [0]), (1, GO_TO, [1])])
    assert [t for _, t, _ in play(step, state, LEFT, RIGHT, RIGHT)[0]] == [False, False, True]
    state = world(things, clauses=[(0, PICK_UP, [0], [], True), (1, GO_TO, [0])])
    assert play(step, state, RIGHT, PICKUP)[0] == [GOING, GOING]  # the wrong thing, strictly: ignored inside an `and`


@pytest.fixture(scope="module")
def variants():
    """Steps of worlds with `done_actions` and with `compat`, `[done_actions][compat]`."""

    def make(done, compat):
        jitted = jax.jit(BabyAI(ENV.level, done_actions=done, compat=compat).step)
        return lambda state, action: jitted(jax.random.key(0), state, action, PARAMS)

    return [[make(done, compat) for compat in (False, True)] for done in (False, True)]


FAILED = (0.0, True, False)


def test_the_act_that_completes_the_first_half_fails_the_second_in_minigrid_only(variants):
    things = [(DOOR, BLUE, 4, 3, CLOSED), (DOOR, RED, 3, 4, CLOSED)]
    clauses = [(0, OPEN_DOOR, [0], [], True), (2, OPEN_DOOR, [1], [], True)]
    for order, first, then in ((BEFORE, [TOGGLE], [LEFT, TOGGLE]), (AFTER, [LEFT, TOGGLE], [RIGHT, TOGGLE])):
        state = world(things, clauses=clauses, order=order)
        log, _ = play(variants[0][False], state, *first, *then)
        assert [terminated for _, terminated, _ in log] == [False] * (len(log) - 1) + [True] and log[-1][0] > 0
        assert play(variants[0][True], state, *first)[0][-1] == FAILED
        # afterwards a wrong door fails in both: the first one again
        log, _ = play(variants[0][False], state, *first, TOGGLE)
        assert log[-1] == FAILED


def test_done_actions_claim_what_held_one_step_before(variants):
    step = variants[True][False]
    state = world([(BALL, RED, 3, 4), (KEY, BLUE, 5, 4)], clauses=[(0, GO_TO, [0])])
    log, _ = play(step, state, LEFT, DONE)
    assert log[0] == GOING and log[1][0] > 0.9 and log[1][1]
    assert play(step, state, DONE)[0] == [FAILED]
    assert play(step, state, LEFT, RIGHT, DONE)[0][-1] == FAILED  # it no longer holds
    assert play(step, state, LEFT, TOGGLE, DONE)[0][-1][0] > 0  # any action leaves it in front


def test_done_actions_in_sequences_and_pairs(variants):
    things = [(BALL, RED, 3, 4), (KEY, BLUE, 5, 4)]
    then = world(things, clauses=[(0, GO_TO, [0]), (2, GO_TO, [1])], order=BEFORE)
    actions = (LEFT, DONE, RIGHT, RIGHT, DONE)
    assert play(variants[True][False], then, *actions)[0][-1][0] > 0.9
    assert play(variants[True][True], then, *actions[:2])[0][-1] == FAILED  # minigrid: the second half is not done yet
    both = world(things, clauses=[(0, GO_TO, [0]), (1, GO_TO, [1])])
    assert play(variants[True][False], both, *actions)[0][-1][0] > 0.9
    assert play(variants[True][False], both, DONE)[0] == [FAILED]
    assert play(variants[True][True], both, DONE)[0] == [GOING]  # minigrid compares an int with `is`
    assert play(variants[True][False], both, LEFT, DONE, DONE)[0][-1] == GOING  # one arm is met: no failure


# Options


def test_options_of_ids_are_checked():
    env, params = envs_jax.make("BabyAI-GoToLocal-v0?room_size=6&num_dists=2")
    assert env.level.rooms.size == 6 and env.level.num_objects == 2 and env.task_names == ("go_to",)
    with pytest.raises(TypeError, match="'num_dist'.*'num_dists'"):
        envs_jax.make("BabyAI-GoToLocal-v0", num_dist=2)
    with pytest.raises(ValueError, match="9 objects.*size 5"):
        envs_jax.make("BabyAI-GoToLocal-v0", room_size=5, num_dists=9)
    with pytest.raises(ValueError, match="6 objects.*9 cells.*size 5"):
        envs_jax.make("BabyAI-GoToLocal-v0", room_size=5, num_dists=6)  # its reset would never end
    with pytest.raises(ValueError, match="room_size.*40.*4.*31"):
        envs_jax.make("BabyAI-GoToLocal-v0", room_size=40)
    with pytest.raises(ValueError, match="19.*18"):
        envs_jax.make("BabyAI-PutNextLocal-v0", num_objs=19)
    with pytest.raises(ValueError, match="17.*33.*31"):
        envs_jax.make("BabyAI-MixedTrainLocal-v0", room_size=17)
    with pytest.raises(TypeError, match="doors_open.*3; true.*false"):
        envs_jax.make("BabyAI-GoTo-v0", doors_open=3)
    with pytest.raises(ValueError, match="select_by.*'size'.*color.*loc"):
        envs_jax.make("BabyAI-OpenDoor-v0?select_by=size")
    with pytest.raises(ValueError, match="compat.*'gym'.*minigrid"):
        envs_jax.make("BabyAI-GoTo-v0?compat=gym")
    with pytest.raises(ValueError, match="3 x 3.*12.*34 x 34.*31"):
        envs_jax.make("BabyAI-GoTo-v0?room_size=12")
    with pytest.raises(ValueError, match="18.*36 cells|19.*16 cells"):
        envs_jax.make("BabyAI-Synth-v0?room_size=4&num_rows=2&num_cols=2")
    for level, count in (("MixedTrainLocal", -1), ("PickUpSeqGoToLocal", -1), ("Synth", 0), ("GoToRedBlueBall", 0)):
        with pytest.raises(ValueError, match=f"{level}: num_dists is {count}"):
            envs_jax.make(f"BabyAI-{level}-v0?num_dists={count}")
    with pytest.raises(TypeError, match="num_dists.*'many'"):
        envs_jax.make("BabyAI-GoToLocal-v0?num_dists=many")
    with pytest.raises(KeyError, match="'BabyAI-GoToLocal-v0'"):
        envs_jax.make("BabyAI-GotoLocal-v0")


def test_parameters_change_limit_and_reward(step):
    params = PARAMS.replace(reward_decay=np.float32(0.5))
    state = world([(BALL, RED, 3, 4)], clauses=[(0, GO_TO, [0])], limit=10)
    stepped = jax.jit(ENV.step)
    *_, reward, terminated, _, _ = stepped(jax.random.key(0), state, LEFT, params)
    assert bool(terminated) and float(reward) == np.float32(0.95)
    for decay in (0.0004, 0.12345, 0.9, 0.9004):  # in thousandths exact, else in float32, and never rounded to them
        reward = stepped(jax.random.key(0), state, LEFT, params.replace(reward_decay=np.float32(decay)))[2]
        assert float(reward) == pytest.approx(1 - decay / 10, abs=1e-7), decay
    kind = np.array([PUT_NEXT, NO_CLAUSE, GO_TO, NO_CLAUSE])
    assert int(ENV.step_limit(kind, np.int32(0), PARAMS)) == 9 * 9 * 3
    assert int(ENV.step_limit(kind, np.int32(0), PARAMS.replace(max_steps=np.int32(7)))) == 7


def test_text_ids_add_sentences_and_describe_them():
    env, params = envs_jax.make("BabyAI-Text/GoToLocalS5N2-v0")
    obs, _ = jax.jit(env.reset)(jax.random.key(3), params)
    said = env.describe(jax.device_get(obs))
    assert said["mission"].startswith("go to the ") and said["text"].startswith("You see a ")
    assert env.observation_space(params).contains(jax.device_get(obs))
    assert env.max_sentences == 5 and obs["text"].shape == (5,)
    assert envs_jax.make("BabyAI-GoToLocalS5N2-v0")[0].observation_space(params).spaces.keys() == {
        "image",
        "direction",
        "mission",
    }


@pytest.mark.parametrize("id", ["BabyAI-Text/MixedTrainLocal-v0", "BabyAI-PickUpSeqPickUpLocal-v0"])
def test_types_do_not_depend_on_x64(id):
    env, params = envs_jax.make(id)
    narrow = jax.eval_shape(lambda key: env.reset(key, params), jax.random.key(0))
    with jax.enable_x64(True):
        wide = jax.eval_shape(lambda key: env.reset(key, params), jax.random.key(0))
    assert jax.tree.map(lambda x: x.dtype, narrow) == jax.tree.map(lambda x: x.dtype, wide)


def test_a_crowded_room_is_accepted_as_often_as_its_check_says():
    level = one_room.go_to_local(room_size=5, num_dists=4)
    count = Rng()
    jax.eval_shape(lambda task: level.attempt(count, task), jnp.int32(0))

    def accepted(key):
        return level.attempt(Rng(jax.random.bits(key, (count.used,), jnp.uint32)), jnp.int32(0))[0].accepted

    drawn = jax.jit(jax.vmap(accepted))(jax.random.split(jax.random.key(0), 4096))
    checked = levels.reachable_rooms(level.rooms, 4, agent_first=True)
    assert abs(float(drawn.mean()) - checked.mean()) < 0.03  # 0.29; three standard errors of the difference
    assert levels.reachable_rooms(level.rooms, 1, agent_first=False).all()
