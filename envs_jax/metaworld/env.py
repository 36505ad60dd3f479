"""Meta-World's tasks as an `Environment`: `MetaWorld/<task>-v3`."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax import spaces, tracing
from envs_jax.checks import at_least, nearest
from envs_jax.env import Environment
from envs_jax.metaworld import experts, poses, scene
from envs_jax.metaworld.render import Painter
from envs_jax.metaworld.rewards import View
from envs_jax.metaworld.scene import Geometry
from envs_jax.metaworld.starts import Starts
from envs_jax.metaworld.state import Params, Start, State
from envs_jax.metaworld.tasks import TASKS
from envs_jax.physics.c import PhysicsC
from envs_jax.physics.interface import Backend, Moment, Physics
from envs_jax.physics.mjx import PhysicsMjx
from envs_jax.rejection import first_accepted


Obs = Literal["state", "entities"]

FRAME_SKIP = 5
"""Time steps of 2.5 ms in one step."""
HORIZON = 500
"""Steps of an episode of the package."""
REACH = 0.01
"""The displacement of the target of the hand by an action of 1, in metres."""
MIN_DISTANCE = 0.15


class MetaWorld(Environment[State, Params]):
    """A robot arm at a table, and one task.

    Action: float32 `[4]` from -1 to 1: how the target of the hand moves along x, y and z, in centimetres, and the
    effort that closes the gripper. Reward: version 2 of the package's, 0 to 10. `info["success"]` is whether the task
    is done. An episode is truncated after `params.max_steps`; success ends it only if `params.ends_at_success`.
    """

    def __init__(
        self,
        task: str,
        obs: Obs = "state",
        backend: Backend = "auto",
        geometry: Geometry | Literal["auto"] = "auto",
        threads: int | None = None,
    ):
        """**Arguments:** `task`, one of `TASKS`; `obs`, `"state"` for the package's 39 numbers, with the goal, or
        `"entities"` for KALM's 91; `backend`, `"c"` for C MuJoCo on the host's threads, `"mjx"` for MJX on the device,
        `"auto"` for C if jax computes on a CPU or `geometry` is `"stock"`, else MJX; `geometry`, `"stock"` for the
        shapes of the package, which MJX cannot compute, `"proxy"` for boxes in place of cylinders and meshes
        (v3-equivalent reward/observation, proxy contact geometry), `"auto"` for stock under C and proxy under MJX;
        `threads`, for C (default: all cores of the process).

        **Raises:** `ValueError` for an invalid value; `ModuleNotFoundError` without mujoco, or without metaworld where
        the scene has not been converted yet.
        """
        if task not in TASKS:
            raise ValueError(f"unknown task {task!r}{nearest(task, list(TASKS))} (tasks are {', '.join(TASKS)})")
        shapes = ("auto", *Geometry.__args__)  # type: ignore[attr-defined]
        for name, value, options in (
            ("obs", obs, Obs.__args__),  # type: ignore[attr-defined]
            ("backend", backend, Backend.__args__),  # type: ignore[attr-defined]
            ("geometry", geometry, shapes),
        ):
            if value not in options:
                raise ValueError(f"unknown {name} {value!r}; it is one of {', '.join(map(repr, options))}")
        if backend == "mjx" and geometry == "stock":
            raise ValueError("MJX has no collisions of cylinders with boxes: use geometry='proxy', or backend='c'")
        if threads is not None:
            at_least("threads", threads, 1)
        self.name, self.task, self.obs, self.backend, self.threads = task, TASKS[task], obs, backend, threads
        self._geometry = geometry
        scene.check(task, "proxy" if geometry == "proxy" or backend == "mjx" else "stock")

    @cached_property
    def geometry(self) -> Geometry:
        """The shapes in use: known when the device is."""
        if self._geometry != "auto":
            return self._geometry
        return "proxy" if self._on_device else "stock"

    @property
    def _on_device(self) -> bool:
        automatic = self.backend == "auto" and self._geometry != "stock"
        return self.backend == "mjx" or (automatic and tracing.platform() != "cpu")

    @cached_property
    def model(self) -> Any:
        """The scene, a `mujoco.MjModel`, loaded at first use."""
        return scene.load(self.name, self.geometry)

    @cached_property
    def physics(self) -> Physics:
        """The physics, created at first use: until then no device is initialised."""
        if self._on_device:
            return PhysicsMjx(self.model, FRAME_SKIP, poses.READ)
        return PhysicsC(self.model, FRAME_SKIP, poses.READ, self.threads, fresh=True)

    @cached_property
    def reader(self) -> poses.Reader:
        return poses.Reader(self.model, self.task)

    @cached_property
    def starts(self) -> Starts:
        """The scene at rest, from which a reset starts."""
        return Starts(self.model, self.task, self.reader, FRAME_SKIP)

    @property
    def default_params(self) -> Params:
        return Params(max_steps=np.int32(HORIZON), ends_at_success=np.bool_(False))

    def action_space(self, params):
        return spaces.Box(-1.0, 1.0, (4,), np.float32)

    def observation_space(self, params):
        """float32, in metres. `state`: `[39]`, the hand, the opening of the gripper, place and orientation of two
        objects, the same of the step before, and the goal. `entities`: `[91]`, the gripper (4), the target (3), and
        place and orientation (7) of each of `ENTITIES`, zeros for one that is absent."""
        size = poses.ENTITY if self.obs == "entities" else 2 * poses.FRAME + 3
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def draw(self, key: jax.Array) -> jax.Array:
        """The vector that a reset draws: float32 `[3]` or `[6]`."""
        low, high = (np.array(x, np.float32) for x in (self.task.low, self.task.high))

        def attempt(number, key):
            drawn = jax.random.uniform(jax.random.fold_in(key, number), low.shape, jnp.float32) * (high - low) + low
            away = jnp.linalg.norm(drawn[:2] - drawn[3:5]) if self.task.apart else jnp.float32(1)
            return away >= MIN_DISTANCE, drawn

        return first_accepted(attempt, key) if self.task.apart else attempt(1, key)[1]

    def reset(self, key, params):
        return self.begin(self.draw(key))

    def begin(self, drawn: jax.Array, going: Any = True) -> tuple[jax.Array, State]:
        """The first observation and state of an episode with a given start.

        **Arguments:** `drawn`, float32 `[3]` or `[6]`, what a reset draws, the package's `rand_vec`; `going`, bool
        `[]`: if False, the result is meaningless, and a hand that would settle on the host does not.
        """
        qpos, qvel, mocap, hand, start = self.starts(jnp.asarray(drawn, jnp.float32), jnp.bool_(going))
        physics, (frame, obs) = self.physics.begin(qpos, qvel, self._first, start, hand, mocap=mocap)
        return obs, State(physics, frame, start, jnp.int32(0), jnp.int32(0))

    def _first(self, xp: Any, before: Moment, now: Moment, start: Start, hand: Any) -> tuple[Any, Any]:
        reading = self.reader(xp, now)
        frame = reading.frame
        if self.task.late:
            x = frame[..., 4:5] - self.task.lag
            frame = poses.joined(xp, hand, x, frame[..., 5:])
        return frame, self._observation(xp, reading, frame, frame, start.targets[..., 0, :])

    def _observation(self, xp: Any, reading: poses.Reading, frame: Any, previous: Any, goal: Any) -> Any:
        if self.obs == "entities":
            return poses.entities(xp, self.task, frame, goal, reading.wall)
        return poses.stacked(xp, frame, previous, goal)

    def step(self, key, state, action, params):
        obs, state, reward, success = self.advance(state, action)
        ended = success & (params.ends_at_success != 0)
        return obs, state, reward, ended, state.step_count >= params.max_steps, {"success": success}

    def advance(self, state: State, action: Any, going: Any = True) -> tuple[jax.Array, State, jax.Array, jax.Array]:
        """A step without its ends: the observation, the state, the reward and success.

        **Arguments:** `state`; `action`, float32 `[4]`; `going`, bool `[]`: if False, the result is meaningless, and
        costs next to nothing under C.
        """
        action = jnp.asarray(action, jnp.float32)
        if action.shape != (4,):
            raise ValueError(f"an action has the shape {list(action.shape)}; {self.id or self.name} needs [4]")
        ctrl = action[3] * jnp.array([1.0, -1.0], jnp.float32)
        memory = action, state.frame, state.start, state.stage
        physics, result = self.physics.advance(
            state.physics, ctrl, jnp.bool_(going), self._look, *memory, edit=self._move
        )
        frame, obs, reward, success, further = result
        stage = jnp.maximum(state.stage, further.astype(jnp.int32))
        state = state.replace(physics=physics, frame=frame, stage=stage, step_count=state.step_count + 1)
        return obs, state, reward, success

    def expert(self, state: State) -> jax.Array:
        """The action of the task's scripted expert, in a composite task that of the state's stage: float32 `[4]`."""
        frame = poses.clipped(jnp, state.frame)
        goals = jnp.clip(state.start.targets, *jnp.array(self.task.goal, jnp.float32))
        acted = [
            experts.action(jnp, stage.expert, frame[:3], frame[3], frame[4 + 7 * i : 7 + 7 * i], goals[i])
            for i, stage in enumerate(self.task.stages)
        ]
        return jnp.clip(jnp.stack(acted)[state.stage], -1, 1)

    def _move(self, xp: Any, now: Moment, action: Any, *args: Any) -> tuple[Any, Any, Any]:
        """Move the mocap body that pulls the hand."""
        hand = self.starts.hand
        low, high = np.array([-0.5, 0.4, self.task.floor]), np.array([0.5, 1.0, 0.5])
        moved = now.mocap[..., hand, :] + REACH * xp.clip(action[..., :3], -1, 1)
        chosen = (np.arange(now.mocap.shape[-2]) == hand)[:, None]
        return now.qpos, now.qvel, xp.where(chosen, xp.clip(moved, low, high)[..., None, :], now.mocap)

    def _look(
        self, xp: Any, before: Moment, now: Moment, action: Any, previous: Any, start: Start, stage: Any
    ) -> tuple[Any, Any, Any, Any, Any]:
        """The frame, the observation, the reward, success, and whether the first stage is done."""
        reading = self.reader(xp, now)
        frame = poses.clipped(xp, reading.frame)
        target = start.targets[..., 0, :]
        reward, success = self.judge(xp, reading, frame, action, start, 0)
        further = success
        if len(self.task.stages) > 1:
            second = (stage > 0)[..., None]
            later, later_success = self.judge(xp, reading, frame, action, start, 1)
            reward = xp.where(second[..., 0], 5 + later / 2, reward / 2)
            target = xp.where(second | further[..., None], start.targets[..., 1, :], target)
            success = second[..., 0] & later_success
        goal = xp.clip(target, *np.array(self.task.goal))
        obs = self._observation(xp, reading, frame, poses.clipped(xp, previous), goal)
        return reading.frame, obs, reward, success, further

    def judge(
        self, xp: Any, reading: poses.Reading, frame: Any, action: Any, start: Start, stage: int
    ) -> tuple[Any, Any]:
        """Reward and success of one stage, seen alone: float and bool `[...]`."""
        spec, offset = self.task.stages[stage], 4 + 7 * stage
        view = View(
            action=action,
            hand=frame[..., :3],
            gripper=frame[..., 3],
            object=frame[..., offset : offset + 3],
            turned=frame[..., offset + 3 : offset + 7],
            tcp=reading.tcp,
            left=reading.left,
            right=reading.right,
            lock=reading.lock,
            joint=reading.joints[..., stage],
            target=start.targets[..., stage, :],
            object_start=start.object,
            tcp_start=start.tcp,
            handle_start=start.handle,
            hand_start=np.array(self.task.hand),
        )
        return spec.judge(xp, view)

    @cached_property
    def _painter(self) -> Painter:
        return Painter(scene.load(self.name, "stock"))  # of either geometry: their joints are the same

    def render(self, state: State) -> np.ndarray:
        """The scene and the target, as a green ball: uint8 `[480, 480, 3]`."""
        now = self.physics.moment(self.physics.decode(state.physics), {})
        target = np.asarray(state.start.targets)[min(int(state.stage), len(self.task.stages) - 1)]
        return self._painter.picture(now.qpos, now.mocap, target)


def expert_action(env: Environment, state: Any) -> jax.Array:
    """The expert's action in a state of Meta-World; pure, so `jit`, `vmap` and `scan` apply.

    **Arguments:** `env`, the environment of a task or of a level, or a wrapper of it; `state`, of the innermost one.
    **Returns:** float32 `[4]`, from -1 to 1.
    **Raises:** `TypeError` for another environment.
    """
    world: Any = env.unwrapped
    if not hasattr(world, "expert"):
        raise TypeError(f"expert_action acts in Meta-World, and {env.id} is a {type(world).__name__}")
    return world.expert(state)
