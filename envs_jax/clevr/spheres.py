"""The scene's physics as an XLA program of our own: MuJoCo's equations for balls on a table, in float64.

MuJoCo's constraint solver minimises a convex function of the accelerations, whose minimum does not depend on the path
to it (Todorov 2014; MuJoCo's documentation, "Computation"). So the same contacts, impedances and reference
accelerations give MuJoCo's motion, to rounding. What is special here: inertias of balls are multiples of the identity,
so velocities of rotation are kept in the world's axes and no orientation enters the contacts; all shapes are known.

Arrays have the environments of a batch on their last axis. Contacts are seen from each ball: `[..., ball, partner,
env]`, the partners being the five balls, the pusher, the table, and the nearer wall along x and along y. A pair of
balls so has two entries, with the same numbers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import tracing
from envs_jax.clevr.constants import BALLS, PUSHER_RADIUS, PUSHER_Z, RADIUS
from envs_jax.clevr.equations import equations
from envs_jax.physics.interface import Physics


PARTNERS = BALLS + 4
"""The number of partners of a ball in contacts, itself (never) included."""
SPIN = 3
"""The index of the first angular velocity among the six velocities of a ball."""


class Bodies(NamedTuple):
    """A number for each degree of freedom: velocities, accelerations, forces."""

    balls: jax.Array
    """`[6, ball, env]`: along x, y and z, and around them."""
    pusher: jax.Array
    """`[2, env]`."""

    def plus(self, factor: Any, b: Bodies) -> Bodies:
        return Bodies(self.balls + factor * b.balls, self.pusher + factor * b.pusher)

    def times(self, b: Any) -> Bodies:
        return Bodies(self.balls * b.balls, self.pusher * b.pusher)

    def dot(self, b: Bodies) -> jax.Array:
        return jnp.sum(self.balls * b.balls, (0, 1)) + jnp.sum(self.pusher * b.pusher, 0)


class Contacts(NamedTuple):
    """The frames of all contacts, each vector `[3, ball, partner, env]`, and how stiff they are."""

    normal: jax.Array
    """From the ball to its partner."""
    first: jax.Array
    second: jax.Array
    """The two directions of friction."""
    arm: jax.Array
    """`[ball, partner, env]`, from the ball's centre to the contact."""
    gap: jax.Array
    """`[ball, partner, env]`, the distance less the margin: below 0 the contact acts."""
    stiff: jax.Array
    """`[ball, partner, env]`, the inverse of the regulariser R of each edge of the pyramid; 0 if inactive."""
    impedance: jax.Array
    """`[ball, partner, env]`, how much of a violation a contact may remove: MuJoCo's d(r)."""


class PhysicsSpheres(Physics):
    """A state is uint32 `[size, 2]`, as that of `PhysicsC`: the bits of float64 numbers, in MuJoCo's order.

    The computation is in float64 whether or not `jax_enable_x64` is set, so it needs a device that has it: CPUs and
    GPUs. A batch goes through Newton's method until all of its environments have converged. On a CPU, C is many times
    faster. No gradient goes through a state's bits: derivatives are zero.
    """

    def __init__(self, model: Any, frame_skip: int):
        """**Arguments:** `model`, that of `envs_jax.clevr.scene.load`; `frame_skip`, time steps per environment step.
        **Raises:** `ModuleNotFoundError` without mujoco; `ValueError` for a model of another scene."""
        super().__init__(model, frame_skip)
        self.equations = equations(model)
        line, turn = self.equations.ball
        self.mass = Bodies(np.array([line] * 3 + [turn] * 3)[:, None, None], self.equations.pusher)
        self.damping = Bodies(*map(np.float64, self.equations.damping))
        self.weight = np.zeros((6, 1, 1))
        self.weight[2] = self.equations.weight
        ball, thin, plane = self.equations.loose
        self.loose = np.array([ball] * BALLS + [thin] + [plane] * 3)[None, :, None]

    def begin(self, qpos, qvel, look, *args, mocap=None):
        qpos, qvel, mocap = self._checked(qpos, qvel, mocap)
        remaining = jnp.zeros(self.size - qpos.size - qvel.size, jnp.float32)
        with jax.enable_x64(True):
            # the solver may start anywhere: at 0
            numbers = jnp.concatenate([qpos, qvel, remaining]).astype(jnp.float64)
            return self._result(numbers, numbers, look, args)

    def advance(self, state, ctrl, going, look, *args, edit=None):
        with jax.enable_x64(True):
            before = _numbers(state)
            start = before
            if edit is not None:
                qpos, qvel = edit(jnp, self.moment(before, {}), *_wide(args))
                start = jnp.concatenate([qpos, qvel, before[qpos.size + qvel.size :]])
            after = _numbers(self._lanes(_bits(start), jnp.asarray(ctrl, jnp.float32)))
            return self._result(jnp.where(going, after, before), before, look, args)

    def _result(self, numbers: jax.Array, before: jax.Array, look: Any, args: tuple[Any, ...]) -> Any:
        result = look(jnp, self.moment(before, {}), self.moment(numbers, {}), *_wide(args))
        return _bits(numbers), jax.tree.map(lambda s, x: x.astype(s.dtype), self.result_shapes(look, args), result)

    @functools.cached_property
    def _lanes(self) -> Any:
        """The time steps of one environment; a batch of them has its axis last inside."""

        @jax.jit
        def step_batch(bits: jax.Array, ctrl: jax.Array) -> jax.Array:
            with jax.enable_x64(True):
                after = self._steps(_numbers(bits).T, ctrl.astype(jnp.float64).T)
                return _bits(after.T)

        @jax.custom_batching.custom_vmap
        def step_single(bits: jax.Array, ctrl: jax.Array) -> jax.Array:
            return step_batch(bits[None], ctrl[None])[0]

        @step_single.def_vmap
        @tracing.standard_promotion
        def batch(size: int, batched: Any, bits: jax.Array, ctrl: jax.Array) -> tuple[jax.Array, bool]:
            bits, ctrl = (
                x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
                for x, is_batched in zip((bits, ctrl), batched, strict=True)
            )
            return step_batch(bits, ctrl), True

        return step_single

    def _steps(self, numbers: jax.Array, ctrl: jax.Array) -> jax.Array:
        """`frame_skip` time steps. **Arguments:** `numbers`, float64 `[size, env]`; `ctrl`, `[2, env]`."""
        nq, nv = self.model.nq, self.model.nv
        qpos, qvel, start, remaining = jnp.split(numbers, np.cumsum([nq, nv, nv]))
        poses = jnp.swapaxes(qpos[:-2].reshape(BALLS, 7, -1), 0, 1)
        centres, pose = poses[:3], poses[3:]
        pose = pose / jnp.sqrt(_dot(pose, pose))
        ctrl = jnp.clip(ctrl, *self.equations.limits)

        def bodies(x: jax.Array) -> Bodies:
            balls = jnp.swapaxes(x[:-2].reshape(BALLS, 6, -1), 0, 1)
            return Bodies(jnp.concatenate([balls[:SPIN], _turned(pose, balls[SPIN:])]), x[-2:])

        def step(carry: Any, _: None) -> tuple[Any, None]:
            centres, pose, pusher, velocity, start = carry
            velocity, start = self._step(centres, pusher, velocity, start, ctrl)
            centres = centres + self.equations.pause * velocity.balls[:SPIN]
            pose = _spun(pose, self.equations.pause * velocity.balls[SPIN:])
            return (centres, pose, pusher + self.equations.pause * velocity.pusher, velocity, start), None

        carry: Any = (centres, pose, qpos[-2:], bodies(qvel), bodies(start))
        carry, _ = tracing.scan(step, carry, None, length=self.frame_skip)
        centres, pose, pusher, velocity, acceleration = carry

        def flat(x: Bodies) -> jax.Array:
            balls = jnp.concatenate([x.balls[:SPIN], _turned(pose, x.balls[SPIN:], back=True)])
            return jnp.concatenate([jnp.swapaxes(balls, 0, 1).reshape(6 * BALLS, -1), x.pusher])

        poses = jnp.swapaxes(jnp.concatenate([centres, pose]), 0, 1).reshape(7 * BALLS, -1)
        return jnp.concatenate([poses, pusher, flat(velocity), flat(acceleration), remaining])

    def _step(
        self, centres: jax.Array, pusher: jax.Array, velocity: Bodies, start: Bodies, ctrl: jax.Array
    ) -> tuple[Bodies, Bodies]:
        """The velocities after one time step, and the accelerations from which the next one starts."""
        contacts = self._contacts(centres, pusher)
        resting = self.equations.spring * contacts.impedance * contacts.gap
        target = -self.equations.damper * self._edges(contacts, velocity) - resting
        smooth = Bodies(self.weight - self.damping.balls * velocity.balls, ctrl - self.damping.pusher * velocity.pusher)
        acceleration, pushed = self._newton(contacts, target, smooth, start)
        total = smooth.plus(1.0, pushed)  # damping is implicit: mj_Euler
        heavier = self.mass.plus(self.equations.pause, self.damping)
        change = Bodies(total.balls / heavier.balls, total.pusher / heavier.pusher)
        return velocity.plus(self.equations.pause, change), acceleration

    def _contacts(self, centres: jax.Array, pusher: jax.Array) -> Contacts:
        """All contacts. **Arguments:** `centres`, `[3, ball, env]`; `pusher`, `[2, env]`."""
        worlds = centres.shape[-1]
        height = jnp.full((1, worlds), PUSHER_Z)
        round_ = jnp.concatenate([centres, jnp.concatenate([pusher, height])[:, None]], axis=1)
        offset = round_[:, None] - centres[:, :, None]
        diagonal = np.eye(BALLS, BALLS + 1, dtype=bool)[..., None]
        square = _dot(offset, offset)
        coincident = square == 0  # a ball and itself; two in one place are parted along x
        length = jnp.sqrt(jnp.where(coincident, 1.0, square))
        radii = np.array([2 * RADIUS] * BALLS + [RADIUS + PUSHER_RADIUS])[:, None]
        upper = np.arange(BALLS)[:, None] < np.arange(BALLS + 1)
        aside = np.array([1.0, 0.0, 0.0])[:, None, None, None] * np.where(upper, 1.0, -1.0)[..., None]
        planes = [
            (np.broadcast_to(-n[:, None, None], centres.shape), jnp.tensordot(n, centres, 1, precision="highest") + c)
            for n, c in zip(np.array(self.equations.normals), self.equations.offsets, strict=True)
        ]

        def nearer(left: Any, right: Any) -> Any:
            return jax.tree.map(lambda a, b: jnp.where(left[1] < right[1], a, b), left, right)

        walls = [planes[0], nearer(planes[1], planes[2]), nearer(planes[3], planes[4])]
        normal = jnp.where(coincident, aside, offset / length)
        normal = jnp.concatenate([normal, jnp.stack([n for n, _ in walls], 2)], axis=2)
        gap = jnp.where(diagonal, 1.0, jnp.where(coincident, 0.0, length) - radii)
        gap = jnp.concatenate([gap, jnp.stack([d for _, d in walls], 1)], axis=1)
        steep = jnp.abs(normal[1]) >= 0.5  # mju_makeFrame: the first direction is that of y, or of z
        start = jnp.stack([jnp.zeros_like(gap), jnp.where(steep, 0.0, 1.0), jnp.where(steep, 1.0, 0.0)])
        first = start - normal * _dot(normal, start)
        first = first / jnp.sqrt(_dot(first, first))
        arm, gap = RADIUS + gap / 2, gap - self.equations.margin
        dmin, dmax, width, middle, power = self.equations.impedance
        x = jnp.abs(gap) / width
        low, high = x**power / middle ** (power - 1), 1 - (1 - x) ** power / (1 - middle) ** (power - 1)
        curve = jnp.where(x < middle, low, high)
        impedance = jnp.where(x > 1, dmax, dmin + curve * (dmax - dmin))
        stiff = jnp.where(gap < 0, impedance / (self.loose * (1 - impedance)), 0.0)
        return Contacts(normal, first, _cross(normal, first), arm, gap, stiff, impedance)

    def _edges(self, c: Contacts, x: Bodies) -> jax.Array:
        """The motion along the four edges of each friction pyramid, `[4, ball, partner, env]`."""
        worlds = x.pusher.shape[-1]
        zeros = jnp.zeros((3, PARTNERS - BALLS, worlds))
        moved = zeros.at[:2, 0].set(x.pusher)
        relative = jnp.concatenate([x.balls[:SPIN], moved], axis=1)[:, None] - x.balls[:SPIN, :, None]
        spin = jnp.concatenate([x.balls[SPIN:], zeros], axis=1)[:, None] + x.balls[SPIN:, :, None]
        along = _dot(c.normal, relative)
        along_first = self.equations.friction * (_dot(c.first, relative) - c.arm * _dot(c.second, spin))
        along_second = self.equations.friction * (_dot(c.second, relative) + c.arm * _dot(c.first, spin))
        return jnp.stack([along + along_first, along - along_first, along + along_second, along - along_second])

    def _pushes(self, c: Contacts, force: jax.Array) -> Bodies:
        """The forces and torques on the bodies, of forces along the edges: the transpose of `_edges`."""
        along = jnp.sum(force, 0)
        along_first = self.equations.friction * (force[0] - force[1])
        along_second = self.equations.friction * (force[2] - force[3])
        linear = c.normal * along + c.first * along_first + c.second * along_second
        turning = c.arm * (c.first * along_second - c.second * along_first)
        return Bodies(jnp.concatenate([-linear.sum(2), turning.sum(2)]), linear[:2, :, BALLS].sum(1))

    def _newton(self, c: Contacts, target: jax.Array, smooth: Bodies, start: Bodies) -> tuple[Bodies, Bodies]:
        """The accelerations that minimise `(a - a0) M (a - a0) / 2` and half of the stiffness times the squares of what
        each edge is below `target`, and the forces of the contacts there (MuJoCo's documentation, "Constraint solver").

        Newton's method with an exact line search: the function is quadratic in pieces, so it ends where the set of
        edges that act stays the same."""
        mass = self.mass
        free = Bodies(smooth.balls / mass.balls, smooth.pusher / mass.pusher)
        # a pair of balls has two entries
        halves = np.array([0.5] * BALLS + [1.0] * (PARTNERS - BALLS))[:, None] * c.stiff

        def slope(x: Bodies, edges: jax.Array) -> tuple[Bodies, jax.Array, Bodies]:
            short = edges - target
            acting = jnp.where(short < 0, c.stiff, 0.0)
            pushed = self._pushes(c, -acting * short)
            return x.plus(-1.0, free).times(mass).plus(-1.0, pushed), acting, pushed

        def small(gradient: Bodies) -> jax.Array:
            return jnp.sqrt(gradient.dot(gradient)) * self.equations.scale < self.equations.tolerance

        def search(x: Bodies, edges: jax.Array, direction: Bodies, along: jax.Array, converged: jax.Array) -> jax.Array:
            """The step length: the root of the slope, by Newton's method within a bracket, from 1."""
            square, linear = direction.dot(direction.times(mass)), direction.dot(x.plus(-1.0, free).times(mass))

            def slope_at(t: jax.Array) -> tuple[jax.Array, jax.Array]:
                short = edges + t * along - target
                pulled = jnp.where(short < 0, halves * along, 0.0)
                value = linear + t * square + jnp.sum(pulled * short, (0, 1, 2))
                return value, square + jnp.sum(pulled * along, (0, 1, 2))

            begin = jnp.abs(slope_at(jnp.zeros_like(square))[0])

            def goes_on(s: Any) -> jax.Array:
                in_limit = s[0] < self.equations.searches
                return in_limit & jnp.any((jnp.abs(s[4]) > self.equations.flat * begin) & ~converged)

            def closer(s: Any) -> Any:
                count, t, low, high, value, rise = s
                low, high = jnp.where(value < 0, t, low), jnp.where(value > 0, t, high)
                next_t = t - value / rise
                next_t = jnp.where((next_t < low) | (next_t > high), (low + high) / 2, next_t)
                return (count + 1, next_t, low, high, *slope_at(next_t))

            ones = jnp.ones_like(square)
            return tracing.while_loop(goes_on, closer, (jnp.int32(0), ones, 0 * ones, 4 * ones, *slope_at(ones)))[1]

        def goes_on(s: Any) -> jax.Array:
            return (s[0] < self.equations.iterations) & ~jnp.all(s[-1])

        def improve(s: Any) -> Any:
            count, x, edges, gradient, acting, _, converged = s
            direction = self._direction(c, acting, gradient)
            along = self._edges(c, direction)
            t = jnp.where(converged, 0.0, search(x, edges, direction, along, converged))
            x, edges = x.plus(t, direction), edges + t * along
            gradient, acting, pushed = slope(x, edges)
            return count + 1, x, edges, gradient, acting, pushed, converged | small(gradient)

        edges = self._edges(c, start)
        gradient, acting, pushed = slope(start, edges)
        initial = (jnp.int32(0), start, edges, gradient, acting, pushed, small(gradient))
        _, solution, _, _, _, pushed, _ = tracing.while_loop(goes_on, improve, initial)
        return solution, pushed

    def _direction(self, c: Contacts, acting: jax.Array, gradient: Bodies) -> Bodies:
        """Newton's direction: minus the inverse of the Hessian times the gradient."""
        hessian = jnp.moveaxis(self._hessian(c, acting), -1, 0)
        right = jnp.concatenate([jnp.swapaxes(gradient.balls, 0, 1).reshape(6 * BALLS, -1), gradient.pusher])
        lower = jax.lax.linalg.cholesky(hessian, symmetrize_input=False)
        x = -right.T[..., None]
        for transposed in (False, True):
            x = jax.lax.linalg.triangular_solve(lower, x, left_side=True, lower=True, transpose_a=transposed)
        x = x[..., 0].T
        return Bodies(jnp.swapaxes(x[:-2].reshape(BALLS, 6, -1), 0, 1), x[-2:])

    def _hessian(self, c: Contacts, acting: jax.Array) -> jax.Array:
        """`[32, 32, env]`, of which only the lower half is used."""
        zeros = jnp.zeros_like(c.normal)
        turn = [zeros, -c.arm * c.second, c.arm * c.first]
        frame = (c.normal, c.first, c.second)
        mine = [jnp.concatenate([-n, t]) for n, t in zip(frame, turn, strict=True)]
        partner = [jnp.concatenate([n, t]) for n, t in zip(frame, turn, strict=True)]
        cone = [self.equations.friction * (acting[i] - acting[i + 1]) for i in (0, 2)]
        square = [self.equations.friction**2 * (acting[i] + acting[i + 1]) for i in (0, 2)]

        def weighted(g: list[jax.Array]) -> list[jax.Array]:
            along = acting.sum(0) * g[0] + cone[0] * g[1] + cone[1] * g[2]
            return [along, cone[0] * g[0] + square[0] * g[1], cone[1] * g[0] + square[1] * g[2]]

        scaled = weighted(mine)
        diagonal: Any = sum(h[:, None] * g[None] for h, g in zip(scaled, mine, strict=True))
        diagonal = diagonal.sum(3) + np.eye(6)[:, :, None, None] * self.mass.balls
        cross: Any = sum(
            h[:, None, :, : BALLS + 1] * g[None, :, :, : BALLS + 1] for h, g in zip(scaled, partner, strict=True)
        )
        worlds = acting.shape[-1]
        rows = []
        for i in range(BALLS):
            before = [cross[:, :, i, k] for k in range(i)]
            rows.append(
                jnp.concatenate([*before, diagonal[:, :, i], jnp.zeros((6, 6 * (BALLS - 1 - i) + 2, worlds))], 1)
            )
        flat = [g[:2, :, BALLS] for g in partner]
        pulled = [h[:2, :, BALLS] for h in weighted(partner)]
        last: Any = sum(h[:, None] * g[None] for h, g in zip(pulled, flat, strict=True))
        last = last.sum(2) + np.eye(2)[:, :, None] * self.mass.pusher
        mixed = [jnp.swapaxes(cross[:, :2, i, BALLS], 0, 1) for i in range(BALLS)]
        return jnp.concatenate([*rows, jnp.concatenate([*mixed, last], 1)])


def _wide(args: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, args)


def _numbers(bits: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(bits, jnp.float64)


def _bits(numbers: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(numbers, jnp.uint32)


def _dot(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.sum(a * b, axis=0)


def _cross(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def _turned(pose: jax.Array, x: jax.Array, back: bool = False) -> jax.Array:
    """Vectors `[3, ...]` turned by unit quaternions `[4, ...]`, or turned back."""
    real, axis = pose[0], -pose[1:] if back else pose[1:]
    twice = 2 * _cross(axis, x)
    return x + real * twice + _cross(axis, twice)


def _spun(pose: jax.Array, turn: jax.Array) -> jax.Array:
    """Unit quaternions after turns by vectors in the world's axes, as `mju_quatIntegrate` in the body's."""
    angle = jnp.sqrt(_dot(turn, turn))
    axis = turn / jnp.where(angle == 0, 1.0, angle)
    real, part = jnp.cos(angle / 2), axis * jnp.sin(angle / 2)
    spun = jnp.concatenate([(real * pose[0] - _dot(part, pose[1:]))[None], real * pose[1:] + pose[0] * part])
    spun = spun.at[1:].add(_cross(part, pose[1:]))
    return spun / jnp.sqrt(_dot(spun, spun))
