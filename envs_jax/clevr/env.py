"""CLEVR-Robot as an `Environment`: `CLEVR-Robot-v0`."""

from __future__ import annotations

import importlib.util
import warnings
from functools import cached_property, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import extras, spaces, tracing
from envs_jax.checks import at_least
from envs_jax.clevr import instructions, layouts, rules, scene
from envs_jax.clevr.constants import (
    ACTION_NAMES,
    ACTIONS,
    BALLS,
    DIRECTIONS,
    HIGH,
    HORIZON,
    LOW,
    OFFSET,
    RADIUS,
    SIDES,
    TIME_STEPS,
)
from envs_jax.clevr.goals import MAX_RELATIONS, PUSH, WIDTH, check_goal
from envs_jax.clevr.spheres import PhysicsSpheres
from envs_jax.clevr.state import Params, State
from envs_jax.env import Environment
from envs_jax.physics.c import PhysicsC
from envs_jax.physics.interface import Moment, Physics
from envs_jax.physics.mjx import PhysicsMjx
from envs_jax.rejection import first_accepted


ClevrBackend = Literal["auto", "c", "numba", "jax", "mjx"]
PushTest = Literal["action", "state"]
Obs = Literal["words", "goal"]
Compat = Literal["", "imagine_bench"]

PUSHER = 2
"""Numbers of the pusher, at the end of the positions and of the velocities."""
LINE_SEARCH = 16
"""The most steps of MJX's line search (the model's limit is 50). By hand: of 64 episodes as many keep within 1e-4 m of
C."""


class ClevrRobot(Environment[State, Params]):
    """Five balls on a table, a pusher, and an instruction in words.

    An action chooses a ball and one of eight directions: the pusher is put behind the ball and pushes for 0.4 s. The
    observation is a dict, see `observation_space`. An episode terminates when its goal is reached and is truncated
    after `params.max_steps`; at level easy, whose task is what one step does, it terminates there too.
    """

    def __init__(
        self,
        level: str = "real",
        backend: ClevrBackend = "auto",
        threads: int | None = None,
        push_test: PushTest = "action",
        compat: Compat = "",
        obs: Obs = "words",
    ):
        """**Arguments:** `level`, `"real"` (move a ball to a side of another one), `"rephrase"` (the same in held-out
        wordings), `"easy"` (push a ball one step, in one step) or `"hard"` (several relations, a line, a gathering);
        `backend`, `"c"` for C MuJoCo on the host's threads, `"mjx"` for MJX on the device, `"numba"` and `"jax"` for
        MuJoCo's equations in programs of our own, in float64: on the host's threads (`envs_jax.clevr.compiled`) and on
        the device (`envs_jax.clevr.spheres`); `"auto"` for `"numba"`, or `"c"` where Numba cannot be used, if jax
        computes on a CPU, for `"jax"` on a GPU, and `"mjx"` elsewhere; `threads`, for `"c"` and `"numba"` (default:
        all cores of the process); `push_test`, how level easy is judged: by the action that was chosen, or by how the
        ball moved (`"state"`); `compat`, `"imagine_bench"` for what ImagineBench's environment does: the first push
        of an episode is aimed at the balls of another layout, progress counts the distance to the reference's centre,
        success of a relation or a hard goal pays nothing extra, and `push_test="state"` accepts any ball (the parts of
        a hard goal pay as without it: published, a step later); `obs`, `"words"` for the dict with the instruction's
        number, `"goal"` for one vector, `goal_vector`, of balls and goal, for policies that read no words.

        **Raises:** `ValueError` for an invalid value; `ModuleNotFoundError` without mujoco.
        """
        instructions.check_level(level)
        for name, value, options in (
            ("backend", backend, ClevrBackend.__args__),  # type: ignore[attr-defined]
            ("push_test", push_test, PushTest.__args__),  # type: ignore[attr-defined]
            ("compat", compat, Compat.__args__),  # type: ignore[attr-defined]
            ("obs", obs, Obs.__args__),  # type: ignore[attr-defined]
        ):
            if value not in options:
                raise ValueError(f"unknown {name} {value!r}; it is one of {', '.join(map(repr, options))}")
        if threads is not None:
            at_least("threads", threads, 1)
        self.level, self.backend, self.threads = instructions.level(level), backend, threads
        self.push_test, self.compat, self.obs = push_test, bool(compat), obs
        self.model = scene.load()

    @cached_property
    def physics(self) -> Physics:
        """The physics, created at first use: until then no device is initialised."""
        backend: str = self.backend
        if backend == "auto":
            backend = {"cpu": "c", "gpu": "jax"}.get(tracing.platform(), "mjx")
            if backend == "c" and importlib.util.find_spec("numba"):
                try:
                    return _compiled(self.model, self.threads)
                except Exception as error:  # what stands in Numba's way is many things
                    warnings.warn(f"CLEVR-Robot computes by C MuJoCo, several times slower: {error}", stacklevel=2)
        if backend == "numba":
            return _compiled(self.model, self.threads)
        if backend == "mjx":
            return PhysicsMjx(self.model, TIME_STEPS, line_search=LINE_SEARCH)
        if backend == "jax":
            if (device := tracing.platform()) not in ("cpu", "gpu"):
                raise ValueError(f"backend='jax' computes in float64, which a {device} lacks: use 'mjx' or 'c'")
            return PhysicsSpheres(self.model, TIME_STEPS)
        return PhysicsC(self.model, TIME_STEPS, threads=self.threads)

    @property
    def default_params(self) -> Params:
        easy = self.level.name == "easy"
        weights = rules.weights_of(self.level.name)
        if self.compat and not easy:
            weights = weights.replace(success=0.0)
        weights = jax.tree.map(np.float32, weights)
        return Params(max_steps=np.int32(1 if easy else HORIZON), weights=weights)

    @property
    def action_names(self) -> tuple[str, ...]:
        return ACTION_NAMES

    def action_space(self, params):
        return spaces.Discrete(ACTIONS)

    def observation_space(self, params):
        """`state`: float32 `[10]`, the x and y of the red, blue, green, purple and cyan ball, in metres; `goal`: int32
        `[10]`, see `envs_jax.clevr.goals`; `instruction`: int16 `[1]`, the number of the sentence within the level.
        With `obs="goal"`: float32 `[62]`, see `goal_vector`."""
        if self.obs == "goal":
            return spaces.Box(-np.inf, np.inf, (VECTOR,), np.float32)
        triple = [BALLS - 1, len(rules.AXES) - 1, BALLS - 1]
        high = np.array([PUSH, *triple * MAX_RELATIONS], np.int32)
        return spaces.Dict(
            {
                "state": spaces.Box(-np.inf, np.inf, (2 * BALLS,), np.float32),
                "goal": spaces.Box(-1, high, (WIDTH,), np.int32),
                "instruction": spaces.Box(-1, len(self.level.book) - 1, (1,), np.int16),
            }
        )

    def observe(self, state: State) -> Any:
        """The observation of a state."""
        if self.obs == "goal":
            return goal_vector(state.balls, state.goal)
        return {
            "state": state.balls,
            "goal": state.goal,
            "instruction": state.instruction.astype(jnp.int16)[None],
        }

    def reset(self, key, params):
        table = jnp.asarray(self.level.goals)

        def attempt(number, key):
            layout_key, key = jax.random.split(jax.random.fold_in(key, number))
            fits, balls = layouts.attempt(layout_key)
            instruction = self.level.draw(key)
            reached = rules.holds(table[instruction], balls.reshape(-1))
            return fits & ~reached, (balls, instruction)

        balls, instruction = first_accepted(attempt, key)
        aim = None
        if self.compat:

            def layout(number, key):
                return layouts.attempt(jax.random.fold_in(key, number))

            aim = first_accepted(layout, jax.random.fold_in(key, 0))  # attempts of the start count from 1
        return self.begin(balls, table[instruction], instruction, aim)

    def begin(
        self, balls: jax.Array, goal: jax.Array, instruction: jax.Array, aim: jax.Array | None = None
    ) -> tuple[Any, State]:
        """The first observation and state of an episode with a given start, see `state_from_layout`."""
        balls = jnp.asarray(balls, jnp.float32).reshape(BALLS, 2)
        qpos, qvel = scene.qpos_of(jnp, balls), jnp.zeros(self.model.nv, jnp.float32)
        physics, (now, speeds, pusher) = self.physics.begin(qpos, qvel, _look)
        state = State(
            physics=physics,
            balls=now,
            speeds=speeds,
            stale=jnp.bool_(aim is not None),
            aim=jnp.zeros(2 * BALLS, jnp.float32) if aim is None else aim.reshape(-1),
            instruction=jnp.asarray(instruction, jnp.int32),
            goal=jnp.asarray(goal, jnp.int32),
            pusher=pusher,
            step_count=jnp.int32(0),
        )
        return self.observe(state), state

    def step(self, key, state, action, params):
        action = jnp.asarray(action, jnp.int32)
        ctrl = jnp.asarray(DIRECTIONS, jnp.float32)[action % len(DIRECTIONS)]
        physics, (balls, speeds, pusher) = self.physics.advance(
            state.physics, ctrl, jnp.bool_(True), _look, action, state.stale, state.aim, edit=_teleport
        )
        reward, success = rules.label(
            state.goal, state.balls, balls, action, params.weights, push_test=self.push_test, compat=self.compat
        )
        time = state.step_count + 1
        state = state.replace(
            physics=physics, balls=balls, speeds=speeds, pusher=pusher, stale=jnp.bool_(False), step_count=time
        )
        last = time >= params.max_steps
        terminated = success | last if self.level.name == "easy" else success
        return self.observe(state), state, reward, terminated, last, {"success": success}

    @property
    def captions(self):
        return {} if self.obs == "goal" else {"instruction": self.level.book}

    @property
    def episode_captions(self):
        return tuple(self.captions)

    def render(self, state) -> np.ndarray:
        from envs_jax.clevr.render import render

        return render(self, state)


VECTOR = 2 * BALLS + PUSH + 1 + MAX_RELATIONS * (2 * BALLS + len(SIDES) + 2)
"""Length of `goal_vector`."""


def _compiled(model: Any, threads: int | None) -> Physics:
    """The program for a CPU. **Raises:** `RuntimeError` where Numba is missing, or cannot be used."""
    try:
        from envs_jax.clevr.compiled import PhysicsCompiled

        return PhysicsCompiled(model, TIME_STEPS, threads)
    except ImportError as error:
        raise RuntimeError(
            f"backend='numba' needs Numba ({error}), of the extra `clevr`: {extras.install('clevr')}; or use "
            "backend='c'"
        ) from error
    except Exception as error:
        raise RuntimeError(
            f"Numba could not compile backend='numba', or not read what it had compiled ({error}): let NUMBA_CACHE_DIR "
            "name an empty folder that can be written to, or use backend='c'"
        ) from error


def goal_vector(balls: jax.Array, goal: jax.Array) -> jax.Array:
    """Balls and goal as one vector, for networks.

    **Arguments:** `balls`, float32 `[10]`; `goal`, int32 `[10]`, see `envs_jax.clevr.goals`.
    **Returns:** float32 `[62]`: the x and y of all balls in metres, the kind (one-hot, 4), and for each of three
    triples the ball (one-hot, 5), the side (4), the reference (5), and the x and y from the reference to the ball, or
    of the ball where there is no reference; zeros for triples that a goal lacks.
    """
    ball, side, reference = goal[1:].reshape(MAX_RELATIONS, 3).T
    positions = balls.reshape(BALLS, 2)
    one_hot = partial(jax.nn.one_hot, dtype=jnp.float32)
    ball_one_hot, reference_one_hot = (one_hot(x, BALLS) for x in (ball, reference))  # zeros for -1
    parts = [
        ball_one_hot,
        one_hot(side, len(SIDES)),
        reference_one_hot,
        jnp.matmul(ball_one_hot - reference_one_hot, positions, precision="highest"),
    ]
    return jnp.concatenate([balls, one_hot(goal[0], PUSH + 1), jnp.concatenate(parts, -1).reshape(-1)])


def _look(xp: Any, before: Moment, after: Moment, *args: Any) -> tuple[Any, Any, Any]:
    """The x and y of the balls and of their velocities, `[..., 10]`, and those of the pusher, `[..., 2]`."""
    batch = after.qpos.shape[:-1]
    balls, speeds = scene.balls_of(xp, after.qpos), scene.speeds_of(xp, after.qvel)
    return balls.reshape(*batch, 2 * BALLS), speeds.reshape(*batch, 2 * BALLS), after.qpos[..., -PUSHER:]


def _teleport(xp: Any, now: Moment, action: Any, stale: Any, aim: Any) -> tuple[Any, Any]:
    """Put the pusher behind the chosen ball, at rest."""
    ball, direction = action // len(DIRECTIONS), action % len(DIRECTIONS)
    real = scene.balls_of(xp, now.qpos)
    aim = aim.reshape(*aim.shape[:-1], BALLS, 2)
    centres = xp.where(stale[..., None, None], aim, real)
    chosen = (ball[..., None] == np.arange(BALLS))[..., None]
    target = xp.where(chosen, centres, xp.zeros((), centres.dtype)).sum(axis=-2)
    step = xp.asarray(DIRECTIONS, centres.dtype)[direction]
    pusher = target - OFFSET * step
    batch = now.qpos.shape[:-1]
    pusher = xp.broadcast_to(pusher, (*batch, PUSHER))
    qpos = xp.concatenate([now.qpos[..., :-PUSHER], pusher], axis=-1)
    qvel = xp.concatenate([now.qvel[..., :-PUSHER], xp.zeros((*batch, PUSHER), now.qvel.dtype)], axis=-1)
    return qpos, qvel


def state_from_layout(env: Environment, positions: Any, goal: Any, instruction: int = 0) -> tuple[Any, State]:
    """The observation and state of an episode that begins with balls at given places, at rest.

    **Arguments:** `env`, from `envs_jax.make`, or a wrapper of it; `positions`, `[10]` or `[5, 2]`, the x and y of the
    red, blue, green, purple and cyan ball, in metres; `goal`, int32 `[10]`, see `envs_jax.clevr.goal`; `instruction`,
    the number of the sentence that the observation shows, within the level of `env`.
    **Returns:** `(obs, state)`, as `reset` does.
    **Raises:** `TypeError` for another environment; `ValueError` for arrays of another size, balls off the table or too
    close together, a goal that is none (`goals.check_goal`), or a sentence that the level does not have.
    """
    world = env.unwrapped
    if not isinstance(world, ClevrRobot):
        raise TypeError(f"state_from_layout is for CLEVR-Robot, and {env.id} is a {type(world).__name__}")
    balls = np.asarray(positions, np.float32)
    if balls.size != 2 * BALLS:
        raise ValueError(f"positions have the shape {list(balls.shape)}; [10] or [5, 2] is needed, x and y of 5 balls")
    balls = balls.reshape(BALLS, 2)
    if not np.all((balls >= LOW) & (balls <= HIGH)):
        raise ValueError(
            f"positions are {balls.tolist()}; x from {LOW[0]} to {HIGH[0]} and y from {LOW[1]} to {HIGH[1]} "
            "are on the table"
        )
    gaps = np.linalg.norm(balls[:, None] - balls[None], axis=-1)[np.triu_indices(BALLS, 1)]
    if gaps.min() < 2 * RADIUS - 1e-6:
        raise ValueError(f"two balls are {gaps.min():.3f} m apart; at least {2 * RADIUS} is needed, or they overlap")
    code = np.asarray(goal)
    if code.shape != (WIDTH,) or not np.issubdtype(code.dtype, np.integer):
        raise ValueError(f"goal is {code.tolist()}; {WIDTH} integers are needed, as envs_jax.clevr.goal makes them")
    check_goal(code)
    if not 0 <= instruction < len(world.level.book):
        raise ValueError(
            f"instruction is {instruction}; level {world.level.name} has the numbers 0 to {len(world.level.book) - 1}"
        )
    return world.begin(balls, code, np.int32(instruction))
