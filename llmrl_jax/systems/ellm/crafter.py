"""The goals of Crafter with text: the published oracle and its goals (`text_crafter/lm.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from envs_jax.crafter import constants as c
from envs_jax.crafter.actions import action_set, valid
from envs_jax.crafter.tasks import TASKS, Task
from envs_jax.crafter.text.ellm import describe_key
from envs_jax.env import Environment
from llmrl_jax.systems.ellm.open_goals import OpenGoalSpec


_CREATURES = {
    "zombie": (c.SPRITE_ZOMBIE,),
    "skeleton": (c.SPRITE_SKELETON,),
    "cow": (c.SPRITE_COW,),
    "plant": (c.SPRITE_PLANT, c.SPRITE_RIPE),
}
_WOOD, _STONE, _IRON = {"wood": 1}, {"wood": 1, "stone": 1}, {"wood": 1, "coal": 1, "iron": 1}

ORACLE: Mapping[str, tuple[Mapping[str, int], tuple[str, ...]]] = {
    "eat plant": ({}, ("plant",)),
    "attack zombie": ({}, ("zombie",)),
    "attack skeleton": ({}, ("skeleton",)),
    "attack cow": ({}, ("cow",)),
    "eat cow": ({}, ("cow",)),
    "chop tree": ({}, ("tree",)),
    "mine stone": ({"wood_pickaxe": 1}, ("stone",)),
    "mine coal": ({"wood_pickaxe": 1}, ("coal",)),
    "mine iron": ({"stone_pickaxe": 1}, ("iron",)),
    "mine diamond": ({"iron_pickaxe": 1}, ("diamond",)),
    "drink water": ({}, ("water",)),
    "chop grass": ({}, ("grass",)),
    "sleep": ({}, ()),
    "place stone": ({"stone": 1}, ()),
    "place crafting table": ({"wood": 1}, ()),
    "make crafting table": ({"wood": 1}, ()),
    "place furnace": ({"stone": 4}, ()),
    "place plant": ({"sapling": 1}, ()),
    "make wood pickaxe": (_WOOD, ("table",)),
    "make wood sword": (_WOOD, ("table",)),
    "make stone pickaxe": (_STONE, ("table",)),
    "make stone sword": (_STONE, ("table",)),
    "make iron pickaxe": (_IRON, ("table", "furnace")),
    "make iron sword": (_IRON, ("table", "furnace")),
}
"""Goal -> what must be held, and what must be in view. Two rules are added: sleep only if sleepy, and no "place
crafting table" if one is in view ("make crafting table", its synonym, stays, as published)."""

SYNONYMS = (("attack cow", "eat cow"), ("place crafting table", "make crafting table"))
VERBS = ("sleep", "eat", "attack", "chop", "drink", "place", "make", "mine")


def in_view(view: Any, name: str) -> Bool[Array, ""]:
    """Return whether a view shows a material or creature; what stands on a cell hides its material."""
    material, top = view[..., 0], view[..., 1]
    if name in _CREATURES:
        return jnp.any(jnp.isin(top, jnp.array(_CREATURES[name])))
    return jnp.any((material == c.MATERIALS.index(name) + 1) & (top == 0))


def feasible(obs: Mapping[str, Any], names: tuple[str, ...]) -> Bool[Array, " A"]:
    """The oracle's goals for an observation, as a mask of actions."""
    inventory = {item: obs["inventory"][c.ITEMS.index(item)] for item in c.ITEMS}
    visible: dict[str, Any] = {}
    rows = []
    for name in names:
        if name not in ORACLE:
            rows.append(jnp.bool_(False))
            continue
        items, sights = ORACLE[name]
        conditions = [inventory[item] >= count for item, count in items.items()]
        for sight in sights:
            visible.setdefault(sight, in_view(obs["view"], sight))
        conditions += [visible[sight] for sight in sights]
        if name == "sleep":
            conditions.append(inventory["energy"] < c.MAX_COUNT)
        if name == "place crafting table":
            visible.setdefault("table", in_view(obs["view"], "table"))
            conditions.append(~visible["table"])
        rows.append(jnp.all(jnp.stack(conditions)))
    return jnp.stack(rows)


_OF_EVENT = {
    "eat_cow": "eat cow",
    "collect_sapling": "chop grass",
    "collect_wood": "chop tree",
    "collect_drink": "drink water",
    "place_table": "place crafting table",
    "wake_up": "sleep",
    "plant_row": "place plant",
    "workshop": "place crafting table",
    "sapling_with_pickaxe": "chop grass",
    **{f"collect_{name}": f"mine {name}" for name in ("coal", "diamond", "iron", "stone")},
    **{f"defeat_{name}": f"attack {name}" for name in ("skeleton", "zombie")},
}
"""The action that causes an event of a task, where it has another name."""


def task_steps(task: Task, names: tuple[str, ...]) -> tuple[str, ...]:
    """The actions of a task in their order, as far as the environment has them."""
    actions = (_OF_EVENT.get(event, event.replace("_", " ")) for event in task.events)
    actions = ("attack cow" if name == "eat cow" and name not in names else name for name in actions)
    return tuple(name for name in actions if name in names)


def goal_spec(env: Environment) -> OpenGoalSpec:
    """The specification for `CrafterText-v1`. **Raises:** `ValueError` for actions that are no goals."""
    names = tuple(env.action_names)
    if "chop tree" not in names:
        raise ValueError(
            f"{env.id} has {len(names)} actions, which are not named by what they act on, so that no goal is one of "
            "them: take ?actions=27 or 139"
        )
    return OpenGoalSpec(
        captions=names,
        valid=np.asarray(valid(action_set(len(names)))),
        feasible=lambda obs: feasible(obs, names),
        rules=ORACLE,
        synonyms=SYNONYMS,
        achievements=c.ACHIEVEMENTS,
        describe=describe_key,
        verbs=VERBS,
        tasks={task.name: task_steps(task, names) for task in TASKS},
    )
