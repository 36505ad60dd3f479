"""The path searches of the bot, on sets of cells (`cells.py`) and of poses.

A set of poses is uint32 `[4, W]`: for each heading, the cells.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.babyai.cells import STRIDE, around, holds, predecessors, worlds_last
from envs_jax.babyai.constants import FORWARD, LEFT, RIGHT, VIEW
from envs_jax.babyai.view import front


AHEAD, ASIDE = VIEW - 1, VIEW // 2
"""The range of the view, forwards and to each side."""


def facing(cells: jax.Array, axis: int = -1) -> jax.Array:
    """The poses that face a set of cells; `axis` is that of its words."""
    return jnp.stack([predecessors(cells, heading, axis) for heading in range(4)])


def first_move(
    goals: jax.Array, walkable: jax.Array, position: jax.Array, heading: jax.Array, turns: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first action of a shortest path to a pose: breadth-first search backwards from all goals at once.

    **Arguments:** `goals`, poses; `walkable`, cells; the pose, int32 `[2]` and `[]`; `turns`, int32 `[4]`, the
    preference for each heading, if both turns are equally short.
    **Returns:** whether the pose is a goal, whether there is a path, and FORWARD, LEFT or RIGHT.
    """
    left, right = (heading - 1) & 3, (heading + 1) & 3

    def search(goals, sought, walkable, position, heading):
        """Poses after FORWARD, LEFT and RIGHT that are reached first: bits uint32 `[3]`."""
        ahead = front(position, heading)
        x = jnp.stack([ahead[0], position[0], position[0]])
        y = jnp.stack([ahead[1], position[1], position[1]]).astype(jnp.uint32)
        word = jnp.stack([heading, (heading - 1) & 3, (heading + 1) & 3]) * walkable.shape[0] + x
        enters = jnp.take_along_axis(walkable, x[:1], 0, mode="clip") >> y[:1] & 1
        possible = jnp.concatenate([enters, jnp.ones_like(enters), jnp.ones_like(enters)])

        def hits(poses):
            flat = poses.reshape(-1, *poses.shape[2:])
            return jnp.take_along_axis(flat, word, 0, mode="clip") >> y & possible

        def step(_, carry):
            poses, reached = carry
            onward = poses & walkable
            grown = poses | jnp.roll(poses, 1, 0) | jnp.roll(poses, -1, 0)
            grown = grown | jnp.stack([predecessors(onward[h], h, 0) for h in range(4)])
            return grown, jnp.where(jnp.any(reached != 0, axis=0), reached, hits(grown))

        def body(carry):
            poses, reached, _ = carry
            grown, reached = tracing.fori_loop(0, STRIDE, step, (poses, reached))
            return grown, reached, jnp.any(grown != poses)

        def searching(carry):
            _, reached, grew = carry
            return grew & jnp.any(sought & jnp.all(reached == 0, axis=0))

        return tracing.while_loop(searching, body, (goals, hits(goals), jnp.bool_(True)))[1]

    reached = worlds_last(search)(goals, jnp.any(goals != 0), walkable, position, heading)
    forward, turn_left, turn_right = reached != 0
    turn_left &= ~turn_right | (turns[left] >= turns[right])
    move = jnp.where(forward, FORWARD, jnp.where(turn_left, LEFT, RIGHT))
    return holds(goals, position[0], position[1])[heading], jnp.any(reached != 0), move


def gains(unseen: jax.Array, position: jax.Array) -> jax.Array:
    """The number of unseen cells that the view would cover in each heading without occlusion: int32 `[4]`."""
    x, y = position[0], position[1].astype(jnp.uint32)
    line = np.uint32((1 << VIEW) - 1) << y
    rows = jnp.stack([line >> ASIDE, line, line >> ASIDE, line >> AHEAD])
    first = jnp.stack([x, x - ASIDE, x - AHEAD, x - ASIDE])[:, None]
    column = np.arange(unseen.shape[0])
    covered = jnp.where((column >= first) & (column < first + VIEW), unseen & rows[:, None], np.uint32(0))
    return jnp.sum(jax.lax.population_count(covered).astype(jnp.int32), axis=-1)


def obstacles(target: jax.Array, hidden: jax.Array, movable: jax.Array, adjacent: jax.Array) -> jax.Array:
    """The objects to clear first on a shortest path to a target that is only reachable across movable objects.

    **Arguments:** sets of cells: `target`; `hidden`, walkable only after objects are moved; `movable`, where those
    objects lie; `adjacent`, the cells adjacent to those that can be walked on now.
    **Returns:** the cells of the outermost objects to clear.
    """

    def body(carry):
        cells, _ = carry
        grown = cells | around(cells) & hidden
        return grown, jnp.any(grown != cells)

    def searching(carry):
        cells, grew = carry
        return grew & ~jnp.any(cells & movable & adjacent)

    cells, _ = tracing.while_loop(searching, body, (target & hidden, jnp.any(target & hidden)))
    return cells & movable & adjacent


def aside(target: jax.Array, walkable: jax.Array, empty: jax.Array) -> jax.Array:
    """Poses in which an object can be put down without cutting off the path to a target.

    A cell that is farther from the target than the agent is not on its shortest path.

    **Arguments:** sets of cells: `target`, to be walked to; `walkable`; `empty`, where objects can be put down.
    **Returns:** poses.
    """

    def search(target, walkable, empty):
        def step(_, carry):
            cells, last, poses = carry
            fresh = around(last, 0) & walkable & ~cells
            poses = poses | facing(fresh & empty, 0) & last
            return cells | fresh, fresh, poses

        start = target & walkable
        no_poses = jnp.zeros((4, *target.shape), jnp.uint32)
        return tracing.while_loop(
            lambda carry: jnp.any(carry[1] != 0),
            lambda carry: tracing.fori_loop(0, STRIDE, step, carry),
            (start, start, no_poses),
        )[2]

    return worlds_last(search)(target, walkable, empty)


def viewpoints(unseen: jax.Array, clear: jax.Array) -> jax.Array:
    """Poses that show an unseen cell.

    Only cells that are certainly lit count: those on a straight line ahead, and to the sides of its end.

    **Arguments:** sets of cells: `unseen`; `clear`, those known to be transparent.
    **Returns:** poses.
    """
    start = jnp.stack([unseen, unseen])

    def sideways(_, sides):
        vertical, horizontal = sides
        up_down = predecessors(vertical, 1) | predecessors(vertical, 3)
        left_right = predecessors(horizontal, 0) | predecessors(horizontal, 2)
        return sides | jnp.stack([up_down, left_right]) & clear

    sides = tracing.fori_loop(0, ASIDE, sideways, start)
    poses = jnp.concatenate([sides, sides])

    def ahead(_, poses):
        return poses | jnp.stack([predecessors(poses[h], h) for h in range(4)]) & clear

    poses = tracing.fori_loop(0, AHEAD - 1, ahead, poses)
    return poses | jnp.stack([predecessors(poses[h], h) for h in range(4)])


def harmless(empty: jax.Array, open: jax.Array, seen_walls: jax.Array) -> jax.Array:
    """Empty cells where an object can be put down without blocking anything.

    The test is local, on the ring of eight cells around: walkable ones must remain connected, and all others except
    walls must keep a free neighbour in the ring.

    **Arguments:** sets of cells: `empty`, seen ones; `open`, the cells known to be walkable; `seen_walls`.
    """
    steps = ((-1, -1), (0, -1), (1, -1), (1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0))

    def ring(cells):
        """The set shifted by each of the eight directions: uint32 `[8, W]`."""
        columns = {dx: jnp.roll(cells, -dx, 0) for dx in (-1, 0, 1)}
        return jnp.stack([columns[dx] >> 1 if dy == 1 else columns[dx] << -dy for dx, dy in steps])

    def judge(empty, open, seen_walls):
        free, solid = ring(open), ring(~(open | seen_walls))

        def side(i, carry):
            ones, twos, fours, bad = carry
            bad = bad | solid[i] & ~free[(i + 7) & 7] & ~free[(i + 1) & 7]
            # count the changes between free and taken around the ring, in three bit planes
            change = free[i] ^ free[(i + 7) & 7]
            carried = ones & change
            return ones ^ change, twos ^ carried, fours | twos & carried, bad

        _, _, fours, bad = tracing.fori_loop(0, 8, side, (jnp.zeros_like(empty),) * 4)
        return empty & ~bad & ~fours

    return worlds_last(judge)(empty, open, seen_walls)
