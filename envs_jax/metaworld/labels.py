"""Success and reward of entity observations alone: of simulated steps and of imagined ones.

Every function takes NumPy or jax arrays with any number of leading axes, which broadcast. `goal` is int32 `[..., 1]`,
an index of `NAMES`; a state is a 91-d entity observation. Success is that of the environment, and so are
rewards as far as a state shows what they need: the fingers are estimated from the hand, and the initial position of an
object from the target if that tells it, else it is the middle of the starts. Definitions: the package metaworld.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.metaworld import rewards
from envs_jax.metaworld.instructions import NAMES
from envs_jax.metaworld.levels import SUCCESS
from envs_jax.metaworld.tasks import ENTITIES, TASKS, Stage, Task


TCP = np.array([0.0, 0.003, -0.045])
"""The middle between the finger tips, from the hand: fitted to the recorded steps, where it is within 8 mm."""
LEFT, RIGHT = (0.044, 0.0025), (-0.056, 0.0086)
"""The y of the pads from the hand, as slope and offset over the opening of the gripper; fitted to the same steps."""
HINGE, HANDLE = np.array([-0.185, -0.1]), np.array([0.376, -0.107])
"""The x and y of a door's hinge from its base, and of its handle from there when it is closed."""
LOCK, NAIL = np.array([0.0, -0.118, 0.061]), 0.64
"""The hinge of a lock from the base; the y of a nail that has not been driven in."""
OPEN, CLOSED = np.array([-0.04, -0.095, 0.0]), np.array([0.21, -0.095, 0.0])
"""The handle of a window from its base, at the start of opening and of closing it."""


def package(*arrays: Any) -> Any:
    """jax.numpy if any array is one of jax, else NumPy."""
    return jnp if any(isinstance(x, jax.Array) for x in arrays) else np


def block(state: Any, name: str) -> Any:
    """Place and orientation of an entity, `[..., 7]`."""
    start = 7 + 7 * ENTITIES.index(name)
    return state[..., start : start + 7]


def _middle(task: Task) -> np.ndarray:
    return (np.array(task.low) + np.array(task.high)) / 2


def _view(xp: Any, task: Task, number: int, state: Any, action: Any) -> rewards.View:
    """The view from which the reward of one stage is computed."""
    stage, part = task.stages[number], task.parts[number]
    hand, gripper, target = state[..., :3], state[..., 3], state[..., 4:7]
    pose, drawn = block(state, part.name), _drawn(xp, task, stage, target)
    y = np.array([0.0, 1.0, 0.0])
    left, right = (hand + (slope * gripper + offset)[..., None] * y for slope, offset in (LEFT, RIGHT))
    hand_start = np.array(task.hand)
    base = drawn if task.free is None else xp.zeros_like(drawn)
    return rewards.View(
        action=action,
        hand=hand,
        gripper=gripper,
        object=pose[..., :3],
        turned=pose[..., 3:],
        tcp=hand + TCP,
        left=left,
        right=right,
        lock=base + LOCK,
        joint=_joint(xp, stage, state, pose, base),
        target=target,
        object_start=drawn,
        tcp_start=hand_start + TCP,
        handle_start=base + (CLOSED if task.lag else OPEN),
        hand_start=hand_start,
    )


def _drawn(xp: Any, task: Task, stage: Stage, target: Any) -> Any:
    """The first three numbers that the reset drew, `[..., 3]`: from the target, or the middle of their range."""
    if stage.target.first == 0:
        return target - np.array(stage.target.offset)
    return xp.zeros_like(target) + _middle(task)[:3]


def _joint(xp: Any, stage: Stage, state: Any, pose: Any, base: Any) -> Any:
    """The angle of a door, how far a nail is driven in, or 0: `[...]`."""
    if stage.joint == "nail_link":
        return block(state, "nail")[..., 1] - NAIL
    if stage.joint == "door_link":
        away = pose[..., :2] - base[..., :2] - HINGE
        return xp.arctan2(away[..., 1], away[..., 0]) - np.arctan2(HANDLE[1], HANDLE[0])
    return xp.zeros_like(pose[..., 0])


def _task(xp: Any, task: Task, state: Any, action: Any) -> tuple[Any, Any]:
    """Reward, 0 to 10, and success of one task: `[...]`."""
    reward, success = task.stages[0].judge(xp, _view(xp, task, 0, state, action))
    if len(task.stages) == 1:
        return reward, success
    later, later_success = task.stages[1].judge(xp, _view(xp, task, 1, state, action))
    # the target tells the stage, by its height
    heights = [_middle(task)[(stage.target.first or 0) + 2] + stage.target.offset[2] for stage in task.stages]
    second = xp.abs(state[..., 6] - heights[1]) < xp.abs(state[..., 6] - heights[0])
    return xp.where(second, 5 + later / 2, reward / 2), second & later_success


def judged(goal: Any, state: Any, action: Any) -> tuple[Any, Any]:
    """The task's reward, 0 to 10, of a state that an action led to, and success: float and bool `[...]`."""
    xp = package(goal, state, action)
    results = [_task(xp, TASKS[name], state, action) for name in NAMES]
    chosen = goal == np.arange(len(NAMES))
    reward, success = (xp.stack(list(x), axis=-1) for x in zip(*results))
    return xp.where(chosen, reward, 0).sum(axis=-1), (chosen & success).any(axis=-1)


def label(goal: Any, states: Any, actions: Any) -> tuple[Any, Any]:
    """Reward and success of the steps of episodes: `r_t = R_t - R_(t-1)`.

    `R_t` is the task's reward of the state that the action of step `t` led to, judged with that action, or 10 at
    success; `R_(-1)` is 0. So the rewards of an episode sum to its last `R_t`, as in the level's environment.

    **Arguments:** `goal`, int32 `[..., 1]`, one for each episode; `states`, float32 `[..., T + 1, 91]`, from the first
    observation on; `actions`, float32 `[..., T, 4]`.
    **Returns:** the reward, float32 `[..., T]`; success, bool `[..., T]`. A state that is not finite satisfies no goal.
    """
    xp = package(goal, states, actions)
    value, success = judged(goal[..., None, :], states[..., 1:, :], actions)
    value = xp.where(success, SUCCESS, value)
    return xp.diff(value, axis=-1, prepend=xp.zeros_like(value[..., :1])).astype(np.float32), success


def holds(goal: Any, state: Any) -> Any:
    """Return whether a goal is reached: bool `[...]`."""
    xp = package(goal, state)
    return judged(goal, state, xp.zeros((*state.shape[:-1], 4), state.dtype))[1]


FREE = ("target_object", "coffee", "hammer", "soccer")
"""Entities that lie on the table unless they are held."""
TABLE_LOW, TABLE_HIGH = np.array([-0.7, 0.2, -0.05]), np.array([0.7, 1.0, 0.7])
"""Positions beyond these are off the table, or in it."""
LIFTED, GRIP_DISTANCE = 0.08, 0.12
"""An object higher than this, in metres, floats if the gripper is farther away than that."""
STRIDE = 0.05
"""The hand or an object that moves further in one step, in metres, breaks the limit of the dynamics."""


def implausible(state: Any, next_state: Any) -> dict[str, Any]:
    """Impossible steps, by the paper's four kinds; for limits see `docs/environments/metaworld.md`.

    **Arguments:** `state` and `next_state`, float32 `[..., 91]`, NumPy or jax arrays that broadcast.
    **Returns:** bool `[...]` each: `floating`, an object in the air without the gripper; `out_of_table`, the hand or an
    object off the table; `pose`, an orientation that is none, or an opening of the gripper outside 0 to 1; `dynamics`,
    something moved too far. All are true for numbers that are not finite.
    """
    xp = package(state, next_state)
    hand, problems = next_state[..., :3], {}
    tcp = hand + TCP
    blocks = {name: block(next_state, name) for name in ENTITIES}
    moved = [hand - state[..., :3]]
    inside = (hand >= TABLE_LOW) & (hand <= TABLE_HIGH)
    grounded, posed = xp.isfinite(hand[..., 0]), (next_state[..., 3] >= -0.05) & (next_state[..., 3] <= 1.05)
    for name, pose in blocks.items():
        position, norm = pose[..., :3], rewards.length(xp, pose[..., 3:])
        present = xp.abs(position).sum(axis=-1) > 0.01
        posed &= ~present | (xp.abs(norm - 1) < 0.1) | (name == "window")
        before = block(state, name)[..., :3]
        in_both = present & (xp.abs(before).sum(axis=-1) > 0.01)
        moved.append(xp.where(in_both[..., None], position - before, 0))
        if name in FREE:
            inside &= ~present[..., None] | ((position >= TABLE_LOW) & (position <= TABLE_HIGH))
            grounded &= ~present | (position[..., 2] < LIFTED) | (rewards.length(xp, position - tcp) < GRIP_DISTANCE)
    problems["floating"] = ~grounded
    problems["out_of_table"] = ~inside.all(axis=-1)
    problems["pose"] = ~posed
    in_limit = [rewards.length(xp, step) <= STRIDE for step in moved]
    problems["dynamics"] = ~xp.stack(in_limit, axis=-1).all(axis=-1)
    finite = xp.isfinite(state).all(axis=-1) & xp.isfinite(next_state).all(axis=-1)
    return {name: wrong | ~finite for name, wrong in problems.items()}
