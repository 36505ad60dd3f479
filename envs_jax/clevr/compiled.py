"""The scene's physics as a program of our own for a CPU, compiled by Numba: MuJoCo's equations, in float64.

The equations are those of `envs_jax.clevr.spheres`. Here a thread computes one environment after another, with the
contacts that there are in place of all that there may be, and solves each island by itself: six unknowns for a ball
that touches the table alone, of 32 in all. Numba is optional, so this module is imported where the backend is first
used.

Each degree of freedom has a number: those of ball `i` are `6 * i` to `6 * i + 5`, along x, y and z and around them, in
the world's axes; the pusher's are the last two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np

from envs_jax.clevr.constants import BALLS
from envs_jax.clevr.equations import PLANES, equations
from envs_jax.physics.c import PhysicsC


PUSHER, PLANE = BALLS, BALLS + 1
"""Contact partners of a ball, beside other balls."""
MOST = PLANES * BALLS + BALLS * (BALLS - 1) // 2 + BALLS
"""Contacts at the same time, at most."""
FREEDOMS = 6 * BALLS + 2

njit: Any = numba.njit
_options: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
allocating = njit(**_options)
compiled = njit(**_options, _nrt=False, forceinline=True)
"""Of functions that allocate nothing. Without `_nrt=False`, which is private to Numba, half of the time goes by
counting references to arrays at every call, and without `forceinline` most of the rest by passing their fields on.

Numba's cache knows this file alone: numbers of other modules that may change are in `Equations`, not in the code."""


class PhysicsCompiled(PhysicsC):
    """C MuJoCo's states, threads and first moments; time steps by `advance`.

    Numbers that are none, or beyond 1e10, stay what they are, where C resets the state. Two centres at exactly one
    place, which no play reaches, are parted along x; by C, along the cross product of the balls' own x axes.
    """

    def __init__(self, model: Any, frame_skip: int, threads: int | None = None):
        """**Arguments:** `model`, that of `envs_jax.clevr.scene.load`; `frame_skip`, time steps per environment step;
        `threads`, the number of threads for a batch (default: the cores of this process).
        **Raises:** `ModuleNotFoundError` without mujoco; `ValueError` for a model of another scene."""
        super().__init__(model, frame_skip, threads=threads)
        self.equations = equations(model)
        blank = np.zeros((0, self.size + model.nu)), np.zeros((0, self.size))
        advance(self.equations, *blank, np.zeros(0, np.int64), frame_skip)  # compiles now, or says what is in its way

    def _run_rows(self, run: Callable, chosen: np.ndarray, arrays: list[np.ndarray]) -> None:
        if run == self._step:
            advance(self.equations, *arrays, chosen, self.frame_skip)
        else:
            super()._run_rows(run, chosen, arrays)


class World(NamedTuple):
    """Poses of the bodies, and the quantities of each degree of freedom, `[32]`."""

    place: np.ndarray
    """`[5, 3]`, the centres of the balls."""
    pose: np.ndarray
    """`[5, 4]`, their unit quaternions."""
    pusher: np.ndarray
    """`[2]`."""
    control: np.ndarray
    """`[2]`, the forces on the pusher."""
    speed: np.ndarray
    mass: np.ndarray
    damping: np.ndarray
    free: np.ndarray
    """The accelerations without contacts."""
    x: np.ndarray
    """The accelerations, which the solver improves."""
    gradient: np.ndarray
    pushed: np.ndarray
    """The forces of contacts."""
    way: np.ndarray
    """The search direction of the solver at `x`."""


class Contacts(NamedTuple):
    """The quantities of each contact, `[40]`."""

    pair: np.ndarray
    """`[40, 2]`, the ball and what it touches: a ball, the pusher or a plane."""
    rows: np.ndarray
    """`[40, 3, 6]`: the normal, from the ball to its partner, and, times the friction, the two directions beside it;
    each with the lever of rotations. The partner moves along them, the ball against them; both rotate along them."""
    stiff: np.ndarray
    """The inverse of MuJoCo's regulariser R of an edge of the friction pyramid."""
    wanted: np.ndarray
    """The reference acceleration along the normal at rest."""
    short: np.ndarray
    """`[40, 3]`, the accelerations along the rows, less those wanted. The edges of the pyramid are the first, more and
    less the second, and more and less the third: where one is below 0, it pushes."""
    change: np.ndarray
    """`[40, 3]`, of `short` along `way`."""


class Islands(NamedTuple):
    """Bodies that touch each other, and room for the equations of one island."""

    root: np.ndarray
    """`[6]`, for each body the first body of its island."""
    bodies: np.ndarray
    """`[6]`, of one island."""
    inside: np.ndarray
    """`[40]`, its contacts."""
    where: np.ndarray
    """`[6]`, where a body's unknowns begin."""
    matrix: np.ndarray
    """`[32, 32]`."""
    right: np.ndarray
    """`[32]`."""
    held: np.ndarray
    """`[3, 6]`, the rows of a contact times the edges that push."""


@compiled
def end(body):
    """The number after those of a body's degrees of freedom."""
    return 6 * body + (2 if body == PUSHER else 6)


@compiled
def spin(pose, i, x, y, z):
    """Turn the unit quaternion `pose[i]` by a vector in the world's axes, in place."""
    angle = math.sqrt(x * x + y * y + z * z)
    if angle == 0:
        return
    w, part = math.cos(angle / 2), math.sin(angle / 2) / angle
    x, y, z = part * x, part * y, part * z
    a, b, c, d = pose[i, 0], pose[i, 1], pose[i, 2], pose[i, 3]
    e = w * a - x * b - y * c - z * d
    f = w * b + x * a + y * d - z * c
    g = w * c + y * a + z * b - x * d
    h = w * d + z * a + x * c - y * b
    size = math.sqrt(e * e + f * f + g * g + h * h)
    pose[i, 0], pose[i, 1], pose[i, 2], pose[i, 3] = e / size, f / size, g / size, h / size


@compiled
def touch(q, contacts, k, ball, partner, x, y, z, distance, loose):
    """Enter contact `k`. **Arguments:** `x`, `y`, `z`, the normal from the ball to its partner; `distance`, of the
    surfaces; `loose`, see `Equations`."""
    contacts.pair[k, 0], contacts.pair[k, 1] = ball, partner
    a, b, c = (0.0, 0.0, 1.0) if abs(y) >= 0.5 else (0.0, 1.0, 0.0)  # mju_makeFrame
    along = x * a + y * b + z * c
    a, b, c = a - along * x, b - along * y, c - along * z
    size = math.sqrt(a * a + b * b + c * c)
    a, b, c = a / size, b / size, c / size
    d, e, f = y * c - z * b, z * a - x * c, x * b - y * a
    mu, arm = q.friction, q.friction * (q.radius + distance / 2)
    for r, row in enumerate(
        (
            (x, y, z, 0.0, 0.0, 0.0),
            (mu * a, mu * b, mu * c, -arm * d, -arm * e, -arm * f),
            (mu * d, mu * e, mu * f, arm * a, arm * b, arm * c),
        )
    ):
        for i in range(6):
            contacts.rows[k, r, i] = row[i]
    gap = distance - q.margin
    dmin, dmax, width, middle, power = q.impedance
    fraction, impedance = abs(gap) / width, dmax
    if fraction < middle:
        curve = fraction * fraction / middle if power == 2 else fraction**power / middle ** (power - 1)
        impedance = dmin + curve * (dmax - dmin)
    elif fraction <= 1:
        left, upper = 1 - fraction, 1 - middle
        curve = left * left / upper if power == 2 else left**power / upper ** (power - 1)
        impedance = dmin + (1 - curve) * (dmax - dmin)
    contacts.stiff[k] = impedance / (loose * (1 - impedance))
    contacts.wanted[k] = -q.spring * impedance * gap


@compiled
def find(q, world, contacts):
    """Enter all contacts that act; their number is returned."""
    centres, number = world.place, 0
    for i in range(BALLS):
        for p in range(PLANES):
            n = q.normals[p]
            distance = n[0] * centres[i, 0] + n[1] * centres[i, 1] + n[2] * centres[i, 2] + q.offsets[p]
            if distance < q.margin:
                touch(q, contacts, number, i, PLANE, -n[0], -n[1], -n[2], distance, q.loose[2])
                number += 1
        for partner in range(i + 1, BALLS + 1):
            if partner < BALLS:
                x, y, z = (
                    centres[partner, 0] - centres[i, 0],
                    centres[partner, 1] - centres[i, 1],
                    centres[partner, 2] - centres[i, 2],
                )
                reach, loose = 2 * q.radius, q.loose[0]
            else:
                x, y, z = world.pusher[0] - centres[i, 0], world.pusher[1] - centres[i, 1], q.height - centres[i, 2]
                reach, loose = q.radius + q.thin, q.loose[1]
            square = x * x + y * y + z * z
            if square < (reach + q.margin) ** 2:
                length = math.sqrt(square)
                if length == 0:  # two in one place are parted along x
                    x, y, z = 1.0, 0.0, 0.0
                else:
                    x, y, z = x / length, y / length, z / length
                touch(q, contacts, number, i, partner, x, y, z, length - reach, loose)
                number += 1
    return number


@compiled
def motion(contacts, k, x):
    """A motion `x` along the three rows of contact `k`."""
    rows, i, partner = contacts.rows, 6 * contacts.pair[k, 0], contacts.pair[k, 1]
    o = 6 * partner
    n, a, b = 0.0, 0.0, 0.0
    for c in range(3):
        n -= rows[k, 0, c] * x[i + c]
        a += rows[k, 1, c + 3] * x[i + c + 3] - rows[k, 1, c] * x[i + c]
        b += rows[k, 2, c + 3] * x[i + c + 3] - rows[k, 2, c] * x[i + c]
    if partner < BALLS:
        for c in range(3):
            n += rows[k, 0, c] * x[o + c]
            a += rows[k, 1, c] * x[o + c] + rows[k, 1, c + 3] * x[o + c + 3]
            b += rows[k, 2, c] * x[o + c] + rows[k, 2, c + 3] * x[o + c + 3]
    elif partner == PUSHER:
        for c in range(2):
            n += rows[k, 0, c] * x[o + c]
            a += rows[k, 1, c] * x[o + c]
            b += rows[k, 2, c] * x[o + c]
    return n, a, b


@compiled
def push(contacts, k, n, a, b, x):
    """Add to `x` the forces and torques of contact `k`, of forces along its rows: the transpose of `motion`."""
    rows, i, partner = contacts.rows, 6 * contacts.pair[k, 0], contacts.pair[k, 1]
    o = 6 * partner
    for c in range(3):
        line = n * rows[k, 0, c] + a * rows[k, 1, c] + b * rows[k, 2, c]
        turn = a * rows[k, 1, c + 3] + b * rows[k, 2, c + 3]
        x[i + c] -= line
        x[i + c + 3] += turn
        if partner < BALLS:
            x[o + c] += line
            x[o + c + 3] += turn
        elif partner == PUSHER and c < 2:
            x[o + c] += line


@compiled
def pressed(contacts, k):
    """The forces of contact `k` along its rows: each edge's is its stiffness times what it is short of."""
    n, a, b = contacts.short[k, 0], contacts.short[k, 1], contacts.short[k, 2]
    d = contacts.stiff[k]
    e, f, g, h = -min(n + a, 0.0), -min(n - a, 0.0), -min(n + b, 0.0), -min(n - b, 0.0)
    return d * (e + f + g + h), d * (e - f), d * (g - h)


@compiled
def slope(world, contacts, islands, size, number):
    """The gradient of an island's function at `x`, and the forces there; the gradient's squared norm is returned.

    **Arguments:** `size` and `number`, of bodies and of contacts."""
    for m in range(size):
        body = islands.bodies[m]
        for c in range(6 * body, end(body)):
            world.pushed[c] = 0.0
    for e in range(number):
        k = islands.inside[e]
        n, a, b = pressed(contacts, k)
        if n > 0:
            push(contacts, k, n, a, b, world.pushed)
    square = 0.0
    for m in range(size):
        body = islands.bodies[m]
        for c in range(6 * body, end(body)):
            world.gradient[c] = world.mass[c] * (world.x[c] - world.free[c]) - world.pushed[c]
            square += world.gradient[c] ** 2
    return square


@compiled
def hessian(world, contacts, islands, size, number):
    """The lower half of an island's matrix of second derivatives; the number of its rows is returned."""
    offset, h, scaled, rows = islands.where, islands.matrix, islands.held, contacts.rows
    wide = 0
    for m in range(size):
        body = islands.bodies[m]
        offset[body] = wide
        for t in range(6 * body, end(body)):
            for c in range(wide):
                h[wide, c] = 0.0
            h[wide, wide] = world.mass[t]
            wide += 1
    for e in range(number):
        k = islands.inside[e]
        d, partner = contacts.stiff[k], contacts.pair[k, 1]
        n, a, b = contacts.short[k, 0], contacts.short[k, 1], contacts.short[k, 2]
        e0, e1 = d if n + a < 0 else 0.0, d if n - a < 0 else 0.0
        e2, e3 = d if n + b < 0 else 0.0, d if n - b < 0 else 0.0
        total, na, nb, first, second = e0 + e1 + e2 + e3, e0 - e1, e2 - e3, e0 + e1, e2 + e3
        if total == 0:
            continue
        for c in range(6):
            scaled[0, c] = total * rows[k, 0, c] + na * rows[k, 1, c] + nb * rows[k, 2, c]
            scaled[1, c] = na * rows[k, 0, c] + first * rows[k, 1, c]
            scaled[2, c] = nb * rows[k, 0, c] + second * rows[k, 2, c]
        i, o, width = offset[contacts.pair[k, 0]], 0, 0
        if partner != PLANE:
            o, width = offset[partner], 2 if partner == PUSHER else 6
        for r in range(6):
            for c in range(6):
                v = scaled[0, r] * rows[k, 0, c] + scaled[1, r] * rows[k, 1, c] + scaled[2, r] * rows[k, 2, c]
                if c <= r:
                    h[i + r, i + c] += -v if (r >= 3 and c < 3) else v  # the ball moves against the rows
                    if r < width:
                        h[o + r, o + c] += v
                if r < width:
                    v = -v if c < 3 else v
                    h[o + r, i + c] += v  # the partner comes after the ball
    return wide


@compiled
def solve(h, wide, right):
    """Solve a system with the lower half of a positive matrix by Cholesky's method; both are overwritten."""
    for c in range(wide):
        total = h[c, c]
        for t in range(c):
            total -= h[c, t] * h[c, t]
        inverse = 1.0 / math.sqrt(total)
        h[c, c] = inverse
        for r in range(c + 1, wide):
            total = h[r, c]
            for t in range(c):
                total -= h[r, t] * h[c, t]
            h[r, c] = total * inverse
    for r in range(wide):
        total = right[r]
        for t in range(r):
            total -= h[r, t] * right[t]
        right[r] = total * h[r, r]
    for r in range(wide - 1, -1, -1):
        total = right[r]
        for t in range(r + 1, wide):
            total -= h[t, r] * right[t]
        right[r] = total * h[r, r]


@compiled
def search(q, contacts, inside, number, linear, square, begin):
    """The step length of the line search, where the slope is 0: by Newton's method within a bracket, from 1.

    **Arguments:** `linear + t * square`, the slope but for contacts; `begin`, its size at 0, with them."""
    low, high, alpha = 0.0, 4.0, 1.0
    for _ in range(q.searches + 1):
        value, rise = linear + alpha * square, square
        for e in range(number):
            k = inside[e]
            d, n, a, b = contacts.stiff[k], contacts.change[k, 0], contacts.change[k, 1], contacts.change[k, 2]
            u, v, w = (
                contacts.short[k, 0] + alpha * n,
                contacts.short[k, 1] + alpha * a,
                contacts.short[k, 2] + alpha * b,
            )
            for s, t in ((u + v, n + a), (u - v, n - a), (u + w, n + b), (u - w, n - b)):
                if s < 0:
                    value += d * t * s
                    rise += d * t * t
        if abs(value) <= q.flat * begin:
            break
        if value < 0:
            low = alpha
        else:
            high = alpha
        alpha -= value / rise
        if alpha < low or alpha > high:
            alpha = (low + high) / 2
    return alpha


@compiled
def settle(q, world, contacts, islands, size, number):
    """The accelerations and forces of one island: Newton's method with an exact line search, as in
    `PhysicsSpheres._newton`. **Arguments:** `size` and `number`, of bodies and of contacts."""
    right, bar = islands.right, (q.tolerance / q.scale) ** 2
    square = slope(world, contacts, islands, size, number)
    for _ in range(q.iterations):
        if square < bar:
            return
        wide = hessian(world, contacts, islands, size, number)
        t = 0
        for m in range(size):
            body = islands.bodies[m]
            for c in range(6 * body, end(body)):
                right[t] = -world.gradient[c]
                t += 1
        solve(islands.matrix, wide, right)
        t, linear, square = 0, 0.0, 0.0
        for m in range(size):
            body = islands.bodies[m]
            for c in range(6 * body, end(body)):
                world.way[c] = right[t]
                linear += world.mass[c] * right[t] * (world.x[c] - world.free[c])
                square += world.mass[c] * right[t] * right[t]
                t += 1
        begin = linear
        for e in range(number):
            k = islands.inside[e]
            u, v, w = motion(contacts, k, world.way)
            contacts.change[k, 0], contacts.change[k, 1], contacts.change[k, 2] = u, v, w
            n, a, b = pressed(contacts, k)
            begin -= n * u + a * v + b * w
        alpha = search(q, contacts, islands.inside, number, linear, square, abs(begin))
        for m in range(size):
            body = islands.bodies[m]
            for c in range(6 * body, end(body)):
                world.x[c] += alpha * world.way[c]
        for e in range(number):
            for c in range(3):
                contacts.short[islands.inside[e], c] += alpha * contacts.change[islands.inside[e], c]
        square = slope(world, contacts, islands, size, number)


@compiled
def step(q, world, contacts, islands):
    """One time step."""
    centres, pusher, speed, free, x = world.place, world.pusher, world.speed, world.free, world.x
    root, number = islands.root, find(q, world, contacts)
    for c in range(FREEDOMS):
        force = -world.damping[c] * speed[c]
        if c >= 6 * BALLS:
            force += world.control[c - 6 * BALLS]
        elif c % 6 == 2:
            force += q.weight
        free[c] = force / world.mass[c]
    for b in range(BALLS + 1):
        root[b] = b
    for k in range(number):
        n, a, b = motion(contacts, k, speed)
        u, v, w = motion(contacts, k, x)
        contacts.short[k, 0] = u + q.damper * n - contacts.wanted[k]
        contacts.short[k, 1], contacts.short[k, 2] = v + q.damper * a, w + q.damper * b
        if contacts.pair[k, 1] != PLANE:
            root_a, root_b = root[contacts.pair[k, 0]], root[contacts.pair[k, 1]]
            for c in range(BALLS + 1):
                root[c] = min(root_a, root_b) if root[c] == max(root_a, root_b) else root[c]
    for first in range(BALLS + 1):
        size, count = 0, 0
        for b in range(BALLS + 1):
            if root[b] == first:
                islands.bodies[size] = b
                size += 1
        if size == 0:
            continue
        for k in range(number):
            if root[contacts.pair[k, 0]] == first:
                islands.inside[count] = k
                count += 1
        if count == 0:
            for c in range(6 * first, end(first)):
                x[c], world.pushed[c] = free[c], 0.0
        else:
            settle(q, world, contacts, islands, size, count)
    for c in range(FREEDOMS):  # damping is implicit: mj_Euler
        force = world.mass[c] * free[c] + world.pushed[c]
        speed[c] += q.pause * force / (world.mass[c] + q.pause * world.damping[c])
    for i in range(BALLS):
        for c in range(3):
            centres[i, c] += q.pause * speed[6 * i + c]
        spin(world.pose, i, q.pause * speed[6 * i + 3], q.pause * speed[6 * i + 4], q.pause * speed[6 * i + 5])
    for c in range(2):
        pusher[c] += q.pause * speed[6 * BALLS + c]


@compiled
def turn(pose, x, sign):
    """Turn the vectors of rotation among `x`, `[32]`, from the balls' axes to the world's (`sign` 1) or back (-1)."""
    for i in range(BALLS):
        w, a, b, c = pose[i, 0], sign * pose[i, 1], sign * pose[i, 2], sign * pose[i, 3]
        d, e, f = x[6 * i + 3], x[6 * i + 4], x[6 * i + 5]
        u, v, t = 2 * (b * f - c * e), 2 * (c * d - a * f), 2 * (a * e - b * d)
        x[6 * i + 3] = d + w * u + b * t - c * v
        x[6 * i + 4] = e + w * v + c * u - a * t
        x[6 * i + 5] = f + w * t + a * v - b * u


@compiled
def read(q, rows, r, world):
    """Read `world` from MuJoCo's numbers, `rows[r]`."""
    nq = 7 * BALLS + 2
    for i in range(BALLS):
        for c in range(3):
            world.place[i, c] = rows[r, 7 * i + c]
        size = 0.0
        for c in range(4):
            size += rows[r, 7 * i + 3 + c] ** 2
        for c in range(4):
            identity = 1.0 if c == 0 else 0.0  # mju_normalize4
            world.pose[i, c] = identity if size < 1e-30 else rows[r, 7 * i + 3 + c] / math.sqrt(size)
    for c in range(FREEDOMS):
        world.speed[c], world.x[c] = rows[r, nq + c], rows[r, nq + FREEDOMS + c]
    for c in range(2):
        world.pusher[c] = rows[r, nq - 2 + c]
        world.control[c] = min(max(rows[r, nq + 2 * FREEDOMS + c], q.limits[0]), q.limits[1])
    turn(world.pose, world.speed, 1.0)
    turn(world.pose, world.x, 1.0)


@compiled
def write(world, after, r):
    """The reverse of `read`, into `after[r]`."""
    nq = 7 * BALLS + 2
    turn(world.pose, world.speed, -1.0)
    turn(world.pose, world.x, -1.0)
    for i in range(BALLS):
        for c in range(3):
            after[r, 7 * i + c] = world.place[i, c]
        for c in range(4):
            after[r, 7 * i + 3 + c] = world.pose[i, c]
    for c in range(2):
        after[r, nq - 2 + c] = world.pusher[c]
    for c in range(FREEDOMS):
        after[r, nq + c], after[r, nq + FREEDOMS + c] = world.speed[c], world.x[c]


@allocating
def advance(q, rows, after, chosen, steps):
    """Time steps of the chosen environments.

    **Arguments:** `q`, `Equations`; `rows`, float64 `[env, 103]`, MuJoCo's positions, velocities, accelerations to
    start from, and controls; `after`, `[env, 101]`, where the first three are written; `chosen`, int64, the
    environments; `steps`, time steps.
    """
    mass, damping = np.empty(FREEDOMS), np.empty(FREEDOMS)
    for c in range(FREEDOMS):
        ball = c < 6 * BALLS
        mass[c] = q.ball[0 if c % 6 < 3 else 1] if ball else q.pusher
        damping[c] = q.damping[0 if ball else 1]
    world = World(
        np.empty((BALLS, 3)),
        np.empty((BALLS, 4)),
        np.empty(2),
        np.empty(2),
        np.empty(FREEDOMS),
        mass,
        damping,
        np.empty(FREEDOMS),
        np.empty(FREEDOMS),
        np.empty(FREEDOMS),
        np.empty(FREEDOMS),
        np.empty(FREEDOMS),
    )
    contacts = Contacts(
        np.empty((MOST, 2), np.int64),
        np.empty((MOST, 3, 6)),
        np.empty(MOST),
        np.empty(MOST),
        np.empty((MOST, 3)),
        np.empty((MOST, 3)),
    )
    islands = Islands(
        np.empty(BALLS + 1, np.int64),
        np.empty(BALLS + 1, np.int64),
        np.empty(MOST, np.int64),
        np.empty(BALLS + 1, np.int64),
        np.empty((FREEDOMS, FREEDOMS)),
        np.empty(FREEDOMS),
        np.empty((3, 6)),
    )
    for r in chosen:
        read(q, rows, r, world)
        for _ in range(steps):
            step(q, world, contacts, islands)
        write(world, after, r)
