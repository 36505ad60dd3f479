"""The table of tasks: scene, what is drawn at a reset, what is observed, reward and expert.

A reset draws one vector, uniform between `low` and `high`; every place of a start is three of its numbers, in a row,
plus an offset (`Drawn`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np

from envs_jax.metaworld import experts, rewards
from envs_jax.metaworld.experts import Expert
from envs_jax.metaworld.rewards import Judge


Vector = tuple[float, ...]

ENTITIES = (
    *("target_object", "button", "lock", "handle", "window", "faucet", "wall", "coffee", "coffee-button"),
    *("hammer", "nail", "soccer"),
)
"""The entities of the 91-d observation, in order; each has seven numbers, after the gripper and the target."""


@dataclass(frozen=True)
class Drawn:
    """A place that a reset draws: three numbers of the drawn vector from `first`, plus an offset."""

    first: int | None = 0
    """None for a place that is always the offset."""
    offset: Vector = (0.0, 0.0, 0.0)
    resting: bool = False
    """Whether z is instead the height at which the object came to rest."""


@dataclass(frozen=True)
class Part:
    """An object in the observation: its place and its orientation."""

    name: str
    """One of `ENTITIES`."""
    kind: Literal["body", "geom", "site"]
    place: str
    """The body, geom or site."""
    offset: Vector = (0.0, 0.0, 0.0)
    """Added to the place, in the world's axes."""
    turn: tuple[str, str] = ("none", "")
    """The orientation: `("body", name)`, w first; `("geom", name)` and `("matrix", name)`, of a geom and of a body, w
    last and the largest component positive; `("identity", "")`; or `("none", "")`, zeros."""


@dataclass(frozen=True)
class Stage:
    """Reward and expert of a task, or a part of a composite one."""

    judge: Judge
    expert: Expert
    target: Drawn
    joint: str = ""
    """The body whose joint the reward depends on."""


@dataclass(frozen=True)
class Task:
    """One task."""

    scene: str
    """The file of the scene in the package, without `sawyer_` and `.xml`."""
    low: Vector
    high: Vector
    parts: tuple[Part, ...]
    stages: tuple[Stage, ...]
    hand: Vector = (0.0, 0.6, 0.2)
    """Where the hand starts."""
    floor: float = 0.05
    """The lowest z to which the hand may be sent."""
    goal: tuple[Vector, Vector] = ((-0.5, 0.4, 0.05), (0.5, 1.0, 0.5))
    """The bounds to which the goal is clipped in observations after a step."""
    apart: bool = False
    """Whether starts with less than 0.15 m between object and target, in x and y, are drawn again."""
    base: tuple[str, Drawn] | None = None
    """A body of the scene that a reset moves: its name and place."""
    free: tuple[str, Drawn] | None = None
    """The body with a free joint that a reset places, and its place."""
    joint: tuple[str, float] | None = None
    """The body whose joint a reset sets, and to what."""
    meets: bool = False
    """Whether the arm may meet the base on its way to its start: then each start settles by itself."""
    late: bool = False
    """Whether the first observation is that of the positions before the last time step, as the package leaves them."""
    lag: float = 0.0
    """How far the object is behind in such an observation, along x: it is made before the joint is set."""
    settle: int = 0
    """Time steps after the hand has come to its start."""
    hinge: str = ""
    """A body that gets the hinge of a door, which the package's scene lacks."""


def _part(name, kind, place, turn="none", turned="", offset=(0.0, 0.0, 0.0)):
    return Part(name, kind, place, offset, (turn, turned))


def _puck(kind="body", place="obj"):
    return _part("target_object", kind, place, "geom", "objGeom")


BUTTON = _part("button", "body", "button", "body", "button", (0.0, -0.193, 0.0))
UNLOCKED = _part("lock", "site", "lockStartUnlock", "body", "door_link")
LOCKED = _part("lock", "site", "lockStartLock", "body", "door_link")
HANDLE = _part("handle", "geom", "handle", "geom", "handle")
OPENED = _part("window", "site", "handleOpenStart")
CLOSED = _part("window", "site", "handleCloseStart")
TAP_OPEN = _part("faucet", "site", "handleStartOpen", "body", "faucetBase", (0.0, 0.0, -0.01))
TAP_CLOSED = _part("faucet", "site", "handleStartClose", "body", "faucetBase", (0.0, 0.0, -0.01))
MUG = _part("coffee", "body", "obj", "geom", "mug")
COFFEE_BUTTON = _part("coffee-button", "site", "buttonStart", "identity")
HAMMER = _part("hammer", "body", "hammer", "body", "hammer")
NAIL = _part("nail", "body", "nail_link", "body", "nail_link")
BALL = _part("soccer", "body", "soccer_ball", "matrix", "soccer_ball")

HIGH_GOAL = (-0.1, 0.8, 0.05), (0.1, 0.9, 0.3)
LOW_GOAL = (-0.1, 0.8, 0.01), (0.1, 0.9, 0.02)
WALL_HIGH_GOAL = (-0.05, 0.85, 0.05), (0.05, 0.9, 0.3)
WALL_LOW_GOAL = (-0.05, 0.85, 0.01), (0.05, 0.9, 0.02)
PUCKS = (-0.1, 0.6, 0.02), (0.1, 0.7, 0.02)
WALL_PUCKS = (-0.05, 0.6, 0.015), (0.05, 0.65, 0.015)
ANYWHERE = (-np.inf,) * 3, (np.inf,) * 3


def _table(scene, judge, expert, pucks, goals, resting=False, puck=None):
    """A puck on the table, and a target."""
    return Task(
        scene=scene,
        low=(*pucks[0], *goals[0]),
        high=(*pucks[1], *goals[1]),
        goal=goals,
        parts=(puck or _puck(),),
        stages=(Stage(judge, expert, Drawn(3, resting=resting)),),
        apart=True,
        free=("obj", Drawn(0, resting=resting)),
    )


def _button(scene, low, high, judge, expert):
    return Task(
        scene=scene,
        low=low,
        high=high,
        parts=(BUTTON,),
        stages=(Stage(judge, expert, Drawn(0, (0.0, -0.1, 0.0))),),
        hand=(0.0, 0.4, 0.2),
        base=("box", Drawn()),
        joint=("button", 0.0),
    )


LOCKS = (-0.1, 0.8, 0.15), (0.1, 0.85, 0.15)
DOORS = (0.0, 0.85, 0.15), (0.1, 0.95, 0.15)
UNLOCK = Stage(rewards.unlock, experts.door_unlock, Drawn(0, (0.1, -0.158, 0.061)))
PULL = Stage(rewards.door_open, experts.door_open, Drawn(0, (-0.3, -0.45, 0.0)), "door_link")
PUSH_MUG = Stage(rewards.coffee_push, experts.coffee_push, Drawn(3))
MUGS = (-0.1, 0.55, -0.001, -0.05, 0.7, -0.001), (0.1, 0.65, 0.001, 0.05, 0.75, 0.001)


def _door(stage, hand, start, goal):
    return Task(
        scene="door_pull",
        low=DOORS[0],
        high=DOORS[1],
        parts=(HANDLE,),
        stages=(stage,),
        hand=hand,
        goal=goal,
        base=("door", Drawn()),
        joint=("door_link", start),
    )


def _lock(parts, stages, goal, **rest):
    return Task(
        scene="door_lock",
        low=LOCKS[0],
        high=LOCKS[1],
        parts=parts,
        stages=stages,
        floor=-0.15,
        goal=goal,
        base=("door", Drawn()),
        meets=True,
        **rest,
    )


def _window(low, high, part, judge, expert, shift, **rest):
    return Task(
        scene="window_horizontal",
        low=low,
        high=high,
        parts=(part,),
        stages=(Stage(judge, expert, Drawn(0, (shift, 0.0, 0.0))),),
        hand=(0.0, 0.4, 0.2),
        base=("window", Drawn()),
        **rest,
    )


def _faucet(wide, part, judge, expert, shift, late=False):
    return Task(
        scene="faucet",
        low=(-wide, 0.8, 0.0),
        high=(wide, 0.85, 0.0),
        parts=(part,),
        stages=(Stage(judge, expert, Drawn(0, (shift, 0.0, 0.125))),),
        hand=(0.0, 0.4, 0.2),
        floor=-0.15,
        goal=((-0.5, 0.4, -0.15), (0.5, 1.0, 0.5)),
        base=("faucetBase", Drawn()),
        late=late,
    )


def _mug(parts, stages, goal):
    return Task(
        scene="coffee",
        low=MUGS[0],
        high=MUGS[1],
        parts=parts,
        stages=stages,
        hand=(0.0, 0.4, 0.2),
        goal=goal,
        apart=True,
        base=("coffee_machine", Drawn(3, (0.0, 0.22, 0.0))),
        free=("obj", Drawn()),
    )


TASKS: dict[str, Task] = {
    "reach": _table("reach_v3", rewards.reach, experts.reach, PUCKS, HIGH_GOAL),
    "push": _table("push_v3", rewards.push, experts.push, PUCKS, LOW_GOAL, True),
    "pick-place": _table("pick_place_v3", rewards.pick_place, experts.pick_place, PUCKS, HIGH_GOAL),
    "button-press": _button(
        "button_press",
        (-0.1, 0.85, 0.115),
        (0.1, 0.9, 0.115),
        rewards.button(0.0935),
        experts.button_press,
    ),
    "door-unlock": _lock(
        (UNLOCKED,),
        (UNLOCK,),
        ((0.0, 0.64, 0.21), (0.2, 0.7, 0.2111)),
        joint=("lock_link", 1.5708),
    ),
    "door-open": _door(PULL, (0.0, 0.6, 0.2), 0.0, ((-0.3, 0.4, 0.1499), (-0.2, 0.5, 0.1501))),
    "window-open": _window(
        (-0.1, 0.7, 0.16),
        (0.1, 0.9, 0.16),
        OPENED,
        rewards.window(rewards.long_tail, "object_start"),
        experts.window_open,
        0.2,
        joint=("windowb_a", 0.0),
        late=True,
    ),
    "faucet-open": _faucet(0.05, TAP_OPEN, rewards.faucet((-0.04, 0.0, 0.03)), experts.faucet_open, 0.175, True),
    "coffee-push": _mug(
        (MUG,),
        (PUSH_MUG,),
        ((-0.05, 0.7, -0.001), (0.05, 0.75, 0.001)),
    ),
    "coffee-button": Task(
        scene="coffee",
        low=(-0.1, 0.8, -0.001),
        high=(0.1, 0.9, 0.001),
        parts=(COFFEE_BUTTON,),
        stages=(Stage(rewards.button(0.03), experts.coffee_button, Drawn(0, (0.0, -0.19, 0.3))),),
        hand=(0.0, 0.4, 0.2),
        goal=((-0.101, 0.61, 0.298), (0.101, 0.71, 0.302)),
        base=("coffee_machine", Drawn()),
        free=("obj", Drawn(0, (0.0, -0.22, 0.0))),
    ),
    "reach-wall": _table(
        "reach_wall_v3",
        rewards.reach,
        experts.reach_wall,
        WALL_PUCKS,
        WALL_HIGH_GOAL,
    ),
    "push-wall": _table(
        "push_wall_v3",
        rewards.push_wall,
        experts.push_wall,
        WALL_PUCKS,
        WALL_LOW_GOAL,
        True,
        _puck("geom", "objGeom"),
    ),
    "pick-place-wall": _table(
        "pick_place_wall_v3",
        rewards.pick_place_wall,
        experts.pick_place_wall,
        WALL_PUCKS,
        WALL_HIGH_GOAL,
        puck=_puck("geom", "objGeom"),
    ),
    "button-press-wall": _button(
        "button_press_wall",
        (-0.05, 0.85, 0.1149),
        (0.05, 0.9, 0.1151),
        rewards.button_wall,
        experts.button_press_wall,
    ),
    "door-lock": _lock(
        (LOCKED,),
        (Stage(rewards.lock, experts.door_lock, Drawn(0, (0.0, -0.158, -0.039))),),
        ((-0.5, 0.4, -0.15), (0.5, 1.0, 0.5)),
        settle=5,
        late=True,
    ),
    "door-close": _door(
        Stage(rewards.door_close, experts.door_close, Drawn(0, (0.2, -0.2, 0.0))),
        (-0.5, 0.6, 0.2),
        -1.5708,
        ((0.2, 0.65, 0.1499), (0.3, 0.75, 0.1501)),
    ),
    "window-close": _window(
        (0.0, 0.75, 0.2),
        (0.0, 0.9, 0.2),
        CLOSED,
        rewards.window(rewards.gaussian, "handle_start"),
        experts.window_close,
        0.0,
        joint=("windowb_a", 0.2),
        late=True,
        lag=0.2,
    ),
    "faucet-close": _faucet(0.1, TAP_CLOSED, rewards.faucet((0.0, 0.0, 0.0)), experts.faucet_close, -0.175),
    "hammer": Task(
        scene="hammer",
        low=(-0.1, 0.4, 0.0),
        high=(0.1, 0.5, 0.0),
        parts=(HAMMER, NAIL),
        stages=(Stage(rewards.hammer, experts.hammer, Drawn(None, (0.24, 0.74, 0.11)), "nail_link"),),
        hand=(0.0, 0.4, 0.2),
        goal=((0.2399, 0.7399, 0.109), (0.2401, 0.7401, 0.111)),
        free=("hammerbody", Drawn()),
    ),
    "soccer": Task(
        scene="soccer",
        low=(-0.1, 0.6, 0.03, -0.1, 0.8, 0.0),
        high=(0.1, 0.7, 0.03, 0.1, 0.9, 0.0),
        parts=(BALL,),
        stages=(Stage(rewards.soccer, experts.soccer, Drawn(3)),),
        goal=((-0.1, 0.8, 0.0), (0.1, 0.9, 0.0)),
        apart=True,
        base=("goal_whole", Drawn(3)),
        free=("soccer_ball", Drawn()),
    ),
    "make-coffee": _mug(
        (MUG, COFFEE_BUTTON),
        (PUSH_MUG, Stage(rewards.button(0.03), experts.coffee_button, Drawn(3, (0.0, 0.03, 0.3)))),
        ANYWHERE,
    ),
    "locked-door-open": _lock(
        (UNLOCKED, HANDLE),
        (UNLOCK, dataclasses.replace(PULL, expert=experts.unlocked_door_open)),
        ANYWHERE,
        joint=("lock_link", 1.5708),
        hinge="door_link",
    ),
}
"""Every task by its name: KALM's twenty, and its two composites."""

COMPOSITES = ("make-coffee", "locked-door-open")
