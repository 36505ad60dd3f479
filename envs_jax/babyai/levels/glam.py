"""GLAM's own levels: a mix of five tasks, and sequences of two (Carta et al., 2302.02662)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.babyai.constants import BALL, BLUE, BOX, COLORS, DOOR, GREEN, GREY, KEY, LOCKED, PURPLE, RED, YELLOW
from envs_jax.babyai.levels.layout import (
    Layout,
    Rng,
    Rooms,
    adjacent,
    all_reachable,
    distant_cells,
    draw_pose,
    fill,
    word,
)
from envs_jax.babyai.levels.level import LOOSE, Level, agent_first, check_room, descriptors, random_objects
from envs_jax.babyai.mission import AFTER, ANY, BEFORE, GO_TO, NO_CLAUSE, OPEN_DOOR, PICK_UP, PUT_NEXT, SINGLE
from envs_jax.babyai.state import MAX_SIDE
from envs_jax.checks import at_least


TASKS = ("go_to", "pick_up", "put_next", "pick_up_seq_go_to", "open")
"""The five tasks of the mixed levels."""

GO_TASK, PICK_TASK, PUT_TASK, SEQUENCE_TASK, OPEN_TASK = range(len(TASKS))

KEPT_BACK = frozenset({(BOX, YELLOW), (KEY, RED), (BALL, GREEN)})
"""The objects that missions name in the test level only; in training they are only distractors."""

TRAIN_NAMES = tuple((t, c) for t in LOOSE for c in range(len(COLORS)) if (t, c) not in KEPT_BACK)
TEST_NAMES = tuple(sorted(KEPT_BACK))

TRAIN_DOORS, TEST_DOORS = (YELLOW, GREEN, BLUE, PURPLE), (RED, GREY)


def _named(names: tuple[tuple[int, int], ...], kind, color):
    """Return whether a mission may name an object."""
    table = np.zeros((max(LOOSE) + 1, len(COLORS)), bool)
    table[tuple(zip(*names))] = True
    return jnp.asarray(table)[kind, color]


def _choose(rng: Rng, names, kind, color, n):
    """The objects of a mission: A uniform among the first `n`, B uniform too, redrawn from the others if it is A itself
    and no other object looks like A.

    A gets a look from `names`; that is the distribution of missions accepted for A, as A's index and the other objects
    do not depend on its look.

    **Returns:** the changed `kind` and `color`, the indices `a` and `b`, and whether B may be named.
    """
    a = rng.integers(n)
    look = jnp.asarray(np.array(names, np.int32))[rng.integers(len(names))]
    kind, color = kind.at[a].set(look[0]), color.at[a].set(look[1])
    b = rng.integers(n)
    alike = (kind == kind[a]) & (color == color[a]) & (np.arange(kind.shape[0]) < n)
    alternative = (a + 1 + rng.integers(n - 1)) % n
    b = jnp.where((b == a) & (jnp.sum(alike) == 1), alternative, b)
    return kind, color, a, b, _named(names, kind[b], color[b])


def _sequence(name: str, room_size: int, num_dists: int, second: int, wording: str) -> Level:
    at_least(f"{name}: num_dists", num_dists, 0)
    count = num_dists + 2
    rooms = check_room(name, room_size, count)

    def attempt(rng, task):
        kind, color, a, b, named = _choose(rng, TRAIN_NAMES, *random_objects(rng, count), count)
        layout, grid = agent_first(rng, rooms, kind, color)
        accepted = layout.accepted & named & all_reachable(rooms, grid, layout.position)
        verbs, order, table = _pair(rng, kind, color, a, b, second, wording)
        return layout.replace(accepted=accepted), grid, word(rooms, layout, verbs, order, *table)

    tasks = ("pick_up_seq_go_to" if second == GO_TO else "pick_up_seq_pick_up",)
    return Level(rooms, count, tasks, frozenset({PICK_UP, second}), (0, 2), attempt)


def _pair(rng: Rng, kind, color, a, b, second: int, wording: str):
    """`pick up A, then <second> B`, or `<second> B after you pick up A`."""
    early = {"before": True, "after": False}.get(wording)
    before = rng.integers(2) == 0 if early is None else jnp.bool_(early)
    x, y = jnp.where(before, a, b), jnp.where(before, b, a)
    verbs = jnp.stack([jnp.where(before, PICK_UP, second), 0, jnp.where(before, second, PICK_UP), 0])
    table = descriptors((0, [(kind[x], color[x], ANY)]), (2, [(kind[y], color[y], ANY)]))
    return verbs, jnp.where(before, BEFORE, AFTER), table


def _mixed(name: str, room_size: int, num_dists: int, names, doors, name_door: bool) -> Level:
    at_least(f"{name}: num_dists", num_dists, 0)
    count = num_dists + 2
    check_room(name, room_size, count)
    rooms = Rooms(room_size, 1, 2)
    if rooms.width > MAX_SIDE:
        raise ValueError(f"{name}: two rooms of size {room_size} are {rooms.width} cells wide; {MAX_SIDE} is the limit")
    solid = rooms.walls | (rooms.xy[0] > room_size - 1)

    def local(rng, task):
        """The tasks of one room; the second room of the grid is filled with walls."""
        n = jnp.where((task == GO_TASK) | (task == PICK_TASK), count - 1, count)
        kind, color, a, b, named = _choose(rng, names, *random_objects(rng, count), n)
        kind = jnp.where(np.arange(count) < n, kind, 0)
        layout, grid = agent_first(rng, rooms, kind, color, solid)
        verbs, order, sequence = _pair(rng, kind, color, a, b, GO_TO, "either")
        single = descriptors((0, [(kind[a], color[a], ANY), (kind[b], color[b], ANY)]))
        in_sequence = task == SEQUENCE_TASK
        verb = jnp.asarray([GO_TO, PICK_UP, PUT_NEXT, NO_CLAUSE, NO_CLAUSE])[task]
        verbs = jnp.where(in_sequence, verbs, jnp.stack([verb, 0, 0, 0]))
        table = [jnp.where(in_sequence, s, t) for s, t in zip(sequence, single)]
        mission, mover, fixed = word(rooms, layout, verbs, jnp.where(in_sequence, order, SINGLE), *table)
        clash = (task == PUT_TASK) & (jnp.any(mover[0] & fixed[0] != 0) | adjacent(rooms, layout, mover[0], fixed[0]))
        two_named = (task == PUT_TASK) | in_sequence
        accepted = layout.accepted & (named | ~two_named) & ~clash & all_reachable(rooms, grid, layout.position)
        return layout.replace(accepted=accepted), grid, (mission, mover, fixed)

    def unlock(rng):
        """Two rooms, a locked door between them; the key, the distractors and the agent in the other room."""
        column = rng.integers(2)
        floor = jnp.where(column == 0, rooms.interior(0, 0), rooms.interior(1, 0))
        door = (room_size - 1) * rooms.height + 1 + rng.integers(room_size - 2)
        paint = jnp.asarray(np.array(doors, np.int32))[rng.integers(len(doors))]
        # the key is object 0, then the distractors, the door is the last
        kind, color = random_objects(rng, count)
        kind = kind.at[0].set(KEY).at[-1].set(DOOR)
        color = color.at[0].set(paint).at[-1].set(paint)
        lock = jnp.where(kind == DOOR, LOCKED, 0)
        cell, fits = rng.cells(floor & distant_cells(rooms, rooms.centre), count - 1)
        layout = Layout(kind, color, lock, jnp.append(cell, door), jnp.zeros(2, jnp.int32), jnp.int32(0), fits)
        grid = fill(rooms.walls, layout.packed(), layout.cell)
        position, direction, has_pose = draw_pose(rng, rooms, grid, floor)
        layout = layout.replace(position=position, direction=direction)
        accepted = fits & has_pose & all_reachable(rooms, grid, position)
        named_color = paint if name_door else jnp.where(rng.integers(2) == 0, paint, ANY)
        mission = word(rooms, layout, [OPEN_DOOR, 0, 0, 0], SINGLE, *descriptors((0, [(DOOR, named_color, ANY)])))
        return layout.replace(accepted=accepted), grid, mission

    def attempt(rng, task):
        one_room, two_rooms = local(rng, task), unlock(rng)
        return jax.tree.map(lambda a, b: jnp.where(task == OPEN_TASK, b, a), one_room, two_rooms)

    kinds = frozenset({GO_TO, PICK_UP, PUT_NEXT, OPEN_DOOR})
    return Level(rooms, count, TASKS, kinds, (0, 2), attempt, lambda task: jnp.where(task == OPEN_TASK, 2, 1))


def mixed_train_local(room_size: int = 8, num_dists: int = 8) -> Level:
    """Go to, pick up, put next, pick up and go to, or open: GLAM's training mix."""
    return _mixed("MixedTrainLocal", room_size, num_dists, TRAIN_NAMES, TRAIN_DOORS, False)


def mixed_test_local(room_size: int = 8, num_dists: int = 8) -> Level:
    """The same tasks about the objects held out from training: yellow box, red key, green ball, red and grey doors."""
    return _mixed("MixedTestLocal", room_size, num_dists, TEST_NAMES, TEST_DOORS, True)


def pick_up_seq_go_to_local(room_size: int = 8, num_dists: int = 8) -> Level:
    """`pick up A, then go to B` or `go to B after you pick up A`."""
    return _sequence("PickUpSeqGoToLocal", room_size, num_dists, GO_TO, "either")


def pick_up_then_go_to_local(room_size: int = 8, num_dists: int = 8) -> Level:
    """`pick up A, then go to B`."""
    return _sequence("PickUpThenGoToLocal", room_size, num_dists, GO_TO, "before")


def go_to_after_pick_up_local(room_size: int = 8, num_dists: int = 8) -> Level:
    """`go to B after you pick up A`."""
    return _sequence("GoToAfterPickUpLocal", room_size, num_dists, GO_TO, "after")


def pick_up_seq_pick_up_local(room_size: int = 8, num_dists: int = 8) -> Level:
    """`pick up A, then pick up B` or `pick up B after you pick up A`: a composition that is not in training."""
    return _sequence("PickUpSeqPickUpLocal", room_size, num_dists, PICK_UP, "either")
