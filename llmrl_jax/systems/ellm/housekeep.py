"""The goals of Housekeep, and the symbols that networks see of it (Du et al., 2302.06692)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from envs_jax.env import Environment
from envs_jax.housekeep import worldgen
from envs_jax.housekeep.apartment import NAMES
from envs_jax.housekeep.constants import BANDS, FREE, FURNITURE, SLOTS, UNSEEN, WALL
from llmrl_jax.systems.ellm.closed_goals import ClosedGoalSpec, pick_caption, store_caption


TASKS = 4
"""Fixed episodes."""
MEASURES = {
    "place_success": "misplaced objects put right",
    "pick_success": "misplaced objects picked",
    "rearrange_success": "objects in a correct place",
    "best_rearrange_success": "the same, at best",
    "initial_success": "the same, at the start",
    "suggested_success": "objects where suggested",
    "success": "episodes solved",
}
"""Fractions of the environment that are reported."""

SYMBOLS = ("image", "pitch", "held", "seen_objects", "seen_receptacles", "categories", "places")
"""The parts of an observation that are symbols."""


def goal_spec(env: Environment) -> ClosedGoalSpec:
    """The specification for an environment of Housekeep."""
    world: Any = env.unwrapped
    items, places = world.object_names, world.receptacle_names
    occurring = worldgen.eligible(world.preferences, world.tables)
    if world.start is not None:
        kinds = np.asarray(world.start.category)
        occurring = np.isin(np.arange(len(items)), kinds[kinds >= 0])
    return ClosedGoalSpec(
        captions=(*map(pick_caption, items), *(store_caption("object", receptacle) for receptacle in places)),
        achievements=(),
        tasks={f"task{number}": () for number in range(1, TASKS + 1)},
        measures=MEASURES,
        num_actions=len(env.action_names),
        slots=SLOTS,
        items=items,
        places=places,
        correct=np.ascontiguousarray(world.correct),
        occurring=occurring,
        symbols=SYMBOLS,
        required=("categories",),
        renamed={"image": "cells"},
        features=symbols(len(items)),
        goal_features=partial(goals_in_view, len(items)),
        task_id=task_id,
        fixed_start=world.start is not None or world.episode >= 0,
    )


def task_id(env: str, task: str) -> str:
    """The id of the environment with another task, and the same options; with macro actions if it has them."""
    name, _, options = env.partition("?")
    kind = "Housekeep-Macro" if name.startswith("Housekeep-Macro") else "Housekeep"
    number = task.removeprefix("task")
    return f"{kind}-Task{number}-v0" + (f"?{options}" if options else "")


def symbols(items: int) -> Callable[[Any], Float[Array, "B D"]]:
    """Build the function from observations `[B, ...]` to one vector each, for `items` categories of objects.

    The image has some 240 codes at 507 cells: too many for one-hot vectors of all. The vector has, for every cell and
    height, whether it is free, a wall, a receptacle or an object; what lies straight ahead at each height and how far,
    of which one is what the crosshair hits; the receptacles in view to the left, ahead and to the right; the place of
    each object in view; seen-object and seen-receptacle masks; the camera's pitch; the held object.
    """
    objects = FURNITURE + len(NAMES)
    codes = objects + items
    side = np.array([0] * 5 + [1] * 3 + [2] * 5)

    def features(obs: Any) -> Float[Array, "B D"]:
        cells = obs["cells"]
        rows = cells.shape[0]
        number = lambda code: np.asarray(code, cells.dtype)  # noqa: E731 (bytes are compared, which is fast)
        kinds = (
            cells == number(FREE),
            cells == number(WALL),
            (cells >= number(FURNITURE)) & (cells < number(objects)),
            cells >= number(objects),
        )
        one_hot = lambda x, n: jax.nn.one_hot(x, n).reshape(rows, -1)  # noqa: E731
        code, distance = ahead(cells)
        furniture = cells[..., None] == number(FURNITURE + np.arange(len(NAMES)))
        by_side = [jnp.any(furniture[:, :, side == i], axis=(1, 2, 3)) for i in range(3)]
        parts = [
            *(x.reshape(rows, -1) for x in kinds),
            one_hot(code, codes),
            distance,
            *by_side,
            one_hot(obs["places"], len(NAMES)),
            obs["seen_objects"],
            obs["seen_receptacles"],
            one_hot(obs["pitch"], len(BANDS)),
            one_hot(obs["held"], SLOTS),
        ]
        return jnp.concatenate([x.astype(jnp.float32) for x in parts], axis=-1)

    return features


def goals_in_view(items: int, obs: Any, goals: Any) -> Float[Array, "B D"]:
    """Places of goals: for every cell and height of the image, and for what lies straight ahead at each height, whether
    it is an object to be picked up or a receptacle to put something in or on. So what is learned about one goal holds
    for the others.

    **Arguments:** `items`, the number of categories of objects; `goals`, masks of captions `[B, items + receptacles]`.
    """
    cells = obs["cells"].astype(jnp.int32)
    rows = cells.shape[0]
    by_code = jnp.concatenate([jnp.zeros((rows, FURNITURE), bool), goals[:, items:], goals[:, :items]], axis=-1)
    codes = jnp.concatenate([cells.reshape(rows, -1), ahead(cells)[0]], axis=-1)
    return jnp.take_along_axis(by_code, codes, axis=-1).astype(jnp.float32)


def ahead(cells: Any) -> tuple[Any, Float[Array, "B 3"]]:
    """The nearest thing straight ahead of the agent at each height: the code of the first cell that is neither unseen
    nor free (0 for none), int32 `[B, 3]`, and its nearness, from 1 next to the agent to 0 for none.

    **Arguments:** `cells`, the image, integers `[B, DEPTH, BREADTH, 3]`.
    """
    line = jnp.asarray(cells[:, -2::-1, cells.shape[2] // 2], jnp.int32)  # from the agent on: [B, 12, 3]
    occupied = (line != UNSEEN) & (line != FREE)
    first = jnp.argmax(occupied, axis=1)
    code = jnp.take_along_axis(line, first[:, None], axis=1)[:, 0]
    hit = jnp.any(occupied, axis=1)
    return jnp.where(hit, code, UNSEEN), jnp.where(hit, 1 - first / line.shape[1], 0.0).astype(jnp.float32)
