"""The bot in worlds small enough to work out by hand, and its searches beside plain ones."""

from __future__ import annotations

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.babyai.bot.bot import Memory, bot_action
from envs_jax.babyai.bot.search import aside, facing, first_move, harmless, viewpoints
from envs_jax.babyai.cells import flood, holds, marked, words, worlds_last
from envs_jax.babyai.constants import (
    BALL,
    BOX,
    CLOSED,
    COLORS,
    DOOR,
    DX,
    DY,
    FORWARD,
    KEY,
    LEFT,
    LOCKED,
    OPEN,
    RIGHT,
)
from envs_jax.babyai.mission import GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, PUT_NEXT, SINGLE, Mission
from envs_jax.babyai.state import EMPTY_CELL, STATE_MASK, STATE_SHIFT, WALL_CELL, State, pack
from envs_jax.babyai.step import act
from envs_jax.babyai.text.english import MISSION_LENGTH
from envs_jax.babyai.verify import verify
from envs_jax.babyai.view import window


WIDTH, HEIGHT, OBJECTS, STEPS = 9, 5, 6, 48
EVERYTHING = (1 << HEIGHT) - 1
KINDS = {"K": (KEY, 0), "O": (BALL, 0), "B": (BOX, 0), "d": (DOOR, OPEN), "D": (DOOR, CLOSED), "L": (DOOR, LOCKED)}
HUES = {color[0] if color != "grey" else "w": i for i, color in enumerate(COLORS)}


def world(picture, kind, mover, fixed="", *, carrying="", content=(), strict=False):
    """A state. Two characters per cell: `##`, blanks, a thing and its colour (`Kr`; `w` is grey), `>>` the agent.

    `mover` and `fixed` name the things that the one clause is about; `content` is `(box, thing)`; `carrying` a thing.
    """
    rows = picture.strip("\n").split("\n")
    assert len(rows) == HEIGHT and all(len(row) == 2 * WIDTH for row in rows)
    grid = np.full((WIDTH, HEIGHT), EMPTY_CELL, np.int16)
    names: list[str] = []
    code, cell, inside = (np.full(OBJECTS, value, np.int16) for value in (0, -1, 0))

    def new(name):
        names.append(name)
        (thing, door), id = KINDS[name[0]], len(names) - 1
        packed = pack(thing, HUES[name[1]], door, id)
        code[id] = packed & ~(STATE_MASK << STATE_SHIFT)
        return packed

    position = direction = None
    for y, row in enumerate(rows):
        for x in range(WIDTH):
            name = row[2 * x : 2 * x + 2]
            if name == "##":
                grid[x, y] = WALL_CELL
            elif name[0] in ">v<^":
                position, direction = np.array([x, y], np.int32), np.int32(">v<^".index(name[0]))
            elif name.strip():
                grid[x, y] = new(name)
                cell[len(names) - 1] = x * HEIGHT + y
    hand = np.int16(new(carrying) if carrying else 0)
    if content:
        inside[names.index(content[0])] = new(content[1])

    def objects(name):
        found = np.zeros((4, 1), np.uint32)
        found[0] = sum(1 << i for i, other in enumerate(names) if other == name)
        return found

    clause = np.array([kind, NO_CLAUSE, NO_CLAUSE, NO_CLAUSE], np.int8)
    unsaid = np.zeros((4, 2), np.int8)
    return State(
        grid=grid,
        object=code,
        cell=cell,
        content=inside,
        tracked=cell.copy(),
        carrying=hand,
        position=position,
        direction=direction,
        step_count=np.int32(0),
        max_steps=np.int32(STEPS),
        mission=Mission(clause, np.int8(SINGLE), unsaid, unsaid, unsaid, unsaid > 0, np.array([strict, 0, 0, 0], bool)),
        mission_caption=np.zeros(MISSION_LENGTH, np.int16),
        mover=objects(mover),
        fixed=objects(fixed),
        held=np.full(4, -1, np.int8),
        met=np.zeros(4, bool),
        matched=np.zeros(4, bool),
        task=np.int32(0),
    )


@pytest.fixture(scope="module")
def play():
    """Plays an episode; returns whether it succeeded, what it did as letters, and what it took up in turn."""

    def episode(state, seen):
        def step(carry, _):
            state, memory, over, won = carry
            action, memory = bot_action(state, memory)
            after, front, thing = act(state, action)
            after, success, failure = verify(
                after, action, front, thing, (0, 1, 2, 3), frozenset({GO_TO, OPEN_DOOR, PICK_UP, PUT_NEXT})
            )
            after = jax.tree.map(lambda a, b: jnp.where(over, a, b), state, after)
            return (after, memory, over | success | failure, won | ~over & success), (action, over, after.carrying)

        carry = (state, Memory(seen=seen), jnp.bool_(False), jnp.bool_(False))
        (_, _, _, won), (actions, over, carried) = jax.lax.scan(step, carry, None, STEPS)
        return won, actions, over, carried

    jitted = jax.jit(episode)

    def run(state, knowing=False):
        seen = np.full(WIDTH, EVERYTHING if knowing else 0, np.uint32)
        won, actions, over, carried = jax.device_get(jitted(jax.tree.map(jnp.asarray, state), seen))
        taken = [int(a) for a, b in zip(carried, [state.carrying, *carried]) if a != b and a]
        things = ["KOB"[(cell & 15) - KEY] for cell in taken]
        return bool(won), "".join("LRFPDT."[a] for a in actions[~over]), "".join(things)

    return run


def test_what_blocks_the_door_is_cleared_before_the_key_is_fetched(play):
    state = world(
        """
##################
##Ky      ##    ##
##>>    OrLy  Bb##
##        ##    ##
##################
""",
        PICK_UP,
        "Bb",
    )
    won, actions, taken = play(state, knowing=True)
    assert won and taken == "OKB"
    # to the ball and aside with it, 5; to the key, 5; to the door, 5; the key down, 3; to the box, 3
    assert len(actions) == 21, actions
    won, actions, taken = play(state)
    assert won and taken == "OKB" and len(actions) <= 23


def test_full_hands_are_emptied_beside_the_way(play):
    won, actions, taken = play(
        world(
            """
##################
##      ##########
##>>  Kg##########
##      ##########
##################
""",
            PICK_UP,
            "Kg",
            carrying="Or",
        )
    )
    assert won and taken == "K"
    assert actions in ("LDRFP", "RDLFP")  # put down ahead, it would be in the way


def test_in_a_corridor_a_thing_is_carried_past(play):
    won, actions, taken = play(
        world(
            """
##################
##################
##  >>Or    Kg####
##################
##################
""",
            PICK_UP,
            "Kg",
        )
    )
    assert won and taken == "OK"
    assert len(actions) == 10, actions  # taken, turned about, put down, turned about, three forward, taken


def test_what_is_carried_from_the_start_is_put_down_only_when_the_verifier_has_noticed(play):
    won, actions, _ = play(
        world(
            """
##################
##      ##########
##>>  Kg##########
##      ##########
##################
""",
            PUT_NEXT,
            "Or",
            "Kg",
            carrying="Or",
        )
    )
    assert won and actions == "PD"  # taking something with full hands does nothing


def test_a_strict_clause_opens_no_other_door(play):
    picture = """
##################
##  ##      ##  ##
##  Db<<    Dr  ##
##  ##      ##  ##
##################
"""
    won, actions, _ = play(world(picture, OPEN_DOOR, "Dr", strict=True))
    assert won and actions in ("LLFFT", "RRFFT")


def test_the_last_resort_is_a_box(play):
    won, actions, taken = play(
        world(
            """
##################
##      ##########
##>>  BgLr  ######
##      ##########
##################
""",
            OPEN_DOOR,
            "Lr",
            content=("Bg", "Kr"),
        )
    )
    assert won and taken == "K"
    assert "FTPFT" in actions  # to the box, open it, take the key, to the door, open it


def test_it_acts_on_what_it_has_seen_only(play):
    """A target out of sight moves: the first actions remain the same, until it comes into sight."""
    picture = """
##################
##            {0}##
##            {1}##
##<<          {2}##
##################
"""
    played = [play(world(picture.format(*row), GO_TO, "Kr")) for row in (("Kr", "  ", "  "), ("  ", "  ", "Kr"))]
    assert all(won for won, _, _ in played)
    assert played[0][1][0] == played[1][1][0] and played[0][1] != played[1][1]
    knowing = play(world(picture.format("  ", "  ", "Kr"), GO_TO, "Kr"), knowing=True)[1]
    assert knowing in ("LLFFFFF", "RRFFFFF") and len(knowing) <= len(played[1][1])


def test_it_answers_where_nothing_can_be_done(play):
    state = world(
        """
##################
##      ##########
##>>    ##########
##      ##########
##################
""",
        GO_TO,
        "Kr",
    )
    won, actions, _ = play(state)
    assert not won and len(actions) == STEPS and set(actions[8:]) == {"R"}
    claimed = state.replace(matched=np.array([True, False, False, False]))
    assert play(claimed)[1][0] == "."


def drawn(rng, taken):
    """A room of 11 x 9 with a share of its floor taken: bool `[11, 9]` of free cells."""
    free = rng.random((11, 9)) >= taken
    free[[0, -1]] = free[:, [0, -1]] = False
    return free


def way(free, start, goals):
    """Steps from a cell to the nearest of some cells, over free ones; None where there is no way."""
    queue, found = collections.deque([start]), {start: 0}
    while queue:
        x, y = cell = queue.popleft()
        if cell in goals:
            return found[cell]
        for after in ((x + dx, y + dy) for dx, dy in zip(DX, DY)):
            if free[after] and after not in found:
                found[after] = found[cell] + 1
                queue.append(after)
    return None


def cells_of(set):
    return [(x, y) for x, column in enumerate(np.asarray(set)) for y in range(9) if int(column) >> y & 1]


def test_what_is_put_down_harmlessly_cuts_nothing_off():
    judge = jax.jit(lambda free: harmless(words(free), words(free), jnp.zeros(11, jnp.uint32)))
    rng, count = np.random.default_rng(0), 0
    for _ in range(40):
        free = drawn(rng, 0.3)
        for x, y in cells_of(judge(free)):
            assert free[x, y]
            rest = free.copy()
            rest[x, y] = False
            beside = [(x + dx, y + dy) for dx, dy in zip(DX, DY) if free[x + dx, y + dy]]
            count += len(beside) > 1
            assert all(way(rest, beside[0], {other}) is not None for other in beside[1:])
    assert count > 50


def test_what_is_put_down_aside_leaves_the_way_open():
    search = jax.jit(lambda target, free, empty: aside(words(target), words(free), words(empty)))
    rng, count = np.random.default_rng(1), 0
    for _ in range(20):
        free = drawn(rng, 0.4)
        empty = free & (rng.random(free.shape) < 0.8)
        target = np.zeros_like(free)
        target.reshape(-1)[rng.choice(np.flatnonzero(free))] = True
        goals = set(zip(*np.nonzero(target)))
        poses = search(target, free, empty)
        for heading in range(4):
            for x, y in cells_of(poses[heading]):
                put = (x + DX[heading], y + DY[heading])
                rest = free.copy()
                rest[put] = False
                assert empty[put] and way(rest, (x, y), goals) == way(free, (x, y), goals)
                count += 1
    assert count > 100


def test_every_viewpoint_shows_something_unseen():
    find = jax.jit(lambda unseen, clear: viewpoints(words(unseen), words(clear)))
    look = jax.jit(jax.vmap(window, (None, 0, 0)))
    rng = np.random.default_rng(2)
    x, y = np.divmod(np.arange(99, dtype=np.int32), 9)
    steps, sides = 6 - np.arange(49) % 7, np.arange(49) // 7 - 3
    shown = total = 0
    for _ in range(10):
        free = drawn(rng, 0.3)
        seen = rng.random(free.shape) < 0.9
        grid = np.where(free, EMPTY_CELL, WALL_CELL).astype(np.int16)
        poses = np.asarray(find(~seen & (np.pad(np.ones((9, 7), bool), 1)), free & seen))
        for heading in range(4):
            stands = (poses[heading][x] >> y & 1 == 1) & (free & seen)[x, y]
            lit = np.asarray(look(grid, np.stack([x, y], 1), np.full(99, heading, np.int32))[1])
            for i in np.flatnonzero((free & seen)[x, y]):
                at_x = x[i] + DX[heading] * steps - DY[heading] * sides
                at_y = y[i] + DY[heading] * steps + DX[heading] * sides
                inside = lit[i] & (at_x > 0) & (at_x < 10) & (at_y > 0) & (at_y < 8)
                new = (~seen[at_x[inside], at_y[inside]]).any()
                assert new or not stands[i]
                shown, total = shown + bool(stands[i]), total + bool(new)
    assert shown > 2 / 3 * total  # it names most of the poses that do


def test_its_moves_are_those_of_a_shortest_way():
    move = jax.jit(
        lambda goal, free, position, heading: first_move(
            facing(words(goal)) & words(free), words(free), position, heading, jnp.zeros(4, jnp.int32)
        )
    )
    rng, walked = np.random.default_rng(3), 0
    for _ in range(30):
        free = drawn(rng, 0.35)
        goal = np.zeros_like(free)
        goal.reshape(-1)[rng.choice(np.flatnonzero(drawn(rng, 0)))] = True
        start = (*divmod(int(rng.choice(np.flatnonzero(free))), 9), int(rng.integers(4)))

        def follow(pose, action):
            x, y, heading = pose
            if action == FORWARD:
                return x + DX[heading], y + DY[heading], heading
            return x, y, (heading + (1 if action == RIGHT else -1)) % 4

        def solved(pose):
            return goal[pose[0] + DX[pose[2]], pose[1] + DY[pose[2]]]  # noqa: B023

        queue, found = collections.deque([start]), {start: 0}
        best = None
        while queue and best is None:
            pose = queue.popleft()
            if solved(pose):
                best = found[pose]
            for after in (follow(pose, action) for action in (FORWARD, LEFT, RIGHT)):
                if free[after[:2]] and after not in found:
                    found[after] = found[pose] + 1
                    queue.append(after)

        pose, steps = start, 0
        while True:
            there, reachable, action = move(goal, free, np.array(pose[:2], np.int32), np.int32(pose[2]))
            assert bool(there | reachable) == (best is not None)
            if there or best is None:
                break
            pose, steps = follow(pose, int(action)), steps + 1
            assert free[pose[:2]] and steps <= best
        assert best is None or steps == best
        walked += best is not None
    assert walked > 15


def test_a_batch_of_worlds_is_searched_as_each_alone():
    """Ways of every length side by side, no way at all, and one set for all worlds; with one batch axis or two."""
    rng, worlds = np.random.default_rng(4), 12
    free = np.stack([drawn(rng, 0.1 + 0.05 * i) for i in range(worlds)])
    goal = np.zeros_like(free)
    for i in range(1, worlds):
        goal[i].reshape(-1)[rng.choice(np.flatnonzero(drawn(rng, 0)))] = True
    position = np.stack([divmod(int(rng.choice(np.flatnonzero(f))), 9) for f in free]).astype(np.int32)
    heading = rng.integers(0, 4, worlds).astype(np.int32)

    def look(goal, free, position, heading, empty):
        goal, free, empty = words(goal), words(free), words(empty)
        return (
            first_move(facing(goal) & free, free, position, heading, jnp.arange(4)),
            flood(goal, free),
            aside(goal, free, empty),
            harmless(empty, free, ~free),
        )

    args, empty = (goal, free, position, heading), drawn(rng, 0.2)
    alone = jax.jit(look)
    expected = [alone(*(a[i] for a in args), empty) for i in range(worlds)]
    expected = jax.tree.map(lambda *x: np.stack(x), *expected)
    axes = (0, 0, 0, 0, None)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(jax.vmap(look, axes))(*args, empty), expected)
    twice = jax.jit(jax.vmap(jax.vmap(look, axes), axes))(*(a.reshape(3, 4, *a.shape[1:]) for a in args), empty)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a.reshape(b.shape), b), twice, expected)
    assert expected[0][1].any() and not expected[0][1].all()  # some goals can be reached, not all


def test_what_is_reached_is_what_a_walk_finds():
    rng = np.random.default_rng(5)
    reach = jax.jit(jax.vmap(lambda start, free: flood(words(start), words(free))))
    free = np.stack([drawn(rng, 0.35) for _ in range(20)])
    starts = [(int(x), int(y)) for x, y in (divmod(int(rng.choice(np.flatnonzero(f))), 9) for f in free)]
    start = np.zeros_like(free)
    for i, cell in enumerate(starts):
        start[(i, *cell)] = True
    for i, cells in enumerate(np.asarray(reach(start, free))):
        every = {(int(x), int(y)) for x, y in zip(*np.nonzero(free[i]))}
        assert set(cells_of(cells)) == {cell for cell in every if way(free[i], starts[i], {cell}) is not None}


def test_marks_may_fall_on_a_cell_twice():
    x, y = jnp.asarray([[1, 1, 3], [0, 2, 2]]), jnp.asarray([[2, 2, 0], [1, 1, 4]])
    mask = jnp.asarray([[True, True, False], [True, True, True]])
    marks = jax.vmap(lambda x, y, mask: marked(x, y, mask, 4))(x, y, mask)
    np.testing.assert_array_equal(marks, [[0, 4, 0, 0], [2, 0, 18, 0]])
    assert holds(marks[1], jnp.int32(2), jnp.int32(4)) and not holds(marks[1], jnp.int32(3), jnp.int32(4))


def test_the_worlds_of_a_batch_come_last():
    shapes = []

    def search(a, b):
        shapes.append((a.shape, b.shape))
        return a + b, {"twice": 2 * b}

    a, b = jnp.arange(6.0).reshape(3, 2), jnp.arange(2.0)
    total, rest = jax.vmap(worlds_last(search), (0, None))(a, b)
    np.testing.assert_array_equal(total, a + b)
    np.testing.assert_array_equal(rest["twice"], np.broadcast_to(2 * b, (3, 2)))
    assert shapes == [((2,), (2,)), ((2, 3), (2, 3))]
