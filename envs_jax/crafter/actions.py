"""Sets of actions: the package's 17, ELLM's 139 or 27, SmartPlay's 20, all made of the package's commands.

An action is a command of `constants.ACTIONS` (or none), and for `do` the things that it may be done to: the package's
`do` works on whatever the player faces, ELLM's "chop tree" on a tree only.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from envs_jax.checks import nearest
from envs_jax.crafter import constants as c


NOTHING = len(c.ACTIONS)
"""The command of an action without any effect, such as ELLM's "eat furnace"; `noop` is a command that succeeds."""
FULL_MASK = 0xFFFFFFFF
"""A mask that contains everything."""


@dataclass(frozen=True)
class ActionSet:
    """The actions of a variant, by number. Masks have bit `i` for material or kind `i`."""

    names: tuple[str, ...]
    command: np.ndarray
    """int32 `[A]`, indices into `constants.ACTIONS`, or `NOTHING`."""
    materials: np.ndarray
    """uint32 `[A]`, the materials that a `do` may be done to."""
    kinds: np.ndarray
    """uint32 `[A]`, the kinds of objects that a `do` may be done to."""
    noun_material: np.ndarray
    """int32 `[A]`, the material that the action names; -1 if it names none."""
    noun_kind: np.ndarray
    """int32 `[A]`, the kind of object that the action names; -1 if it names none."""
    noun_item: np.ndarray
    """int32 `[A]`, the item that the action names; -1 if it names none."""


def _action_set(rows: list[tuple[str, int, int, int, str]]) -> ActionSet:
    """A set from rows of a name, a command, the masks of materials and kinds, and a noun as in "stone_pickaxe"."""
    names, command, materials, kinds, nouns = zip(*rows)

    def numbers(vocabulary: tuple[str, ...], first: int) -> np.ndarray:
        return np.array([vocabulary.index(noun) + first if noun in vocabulary else -1 for noun in nouns], np.int32)

    return ActionSet(
        names,
        np.array(command, np.int32),
        np.array(materials, np.uint32),
        np.array(kinds, np.uint32),
        numbers(c.MATERIALS, 1),
        numbers(c.KINDS, 1),
        numbers(c.ITEMS, 0),
    )


def _package() -> ActionSet:
    return _action_set([(name, i, FULL_MASK, FULL_MASK, "") for i, name in enumerate(c.ACTIONS)])


_SMARTPLAY = {
    "do nothing": "noop",
    **{f"move {direction}": f"move_{direction}" for direction in ("left", "right", "up", "down")},
    **dict.fromkeys(("eat", "drink", "attack", "collect"), "do"),
    "sleep": "sleep",
    "place stone": "place_stone",
    "place crafting table": "place_table",
    "place furnace": "place_furnace",
    "place plant": "place_plant",
    **{f"make {x} {tool}": f"make_{x}_{tool}" for tool in ("pickaxe", "sword") for x in ("wood", "stone", "iron")},
}
"""SmartPlay's 20 actions and their commands; its four verbs all do the same (as in BK-RL, 2407.03964)."""


def _smartplay() -> ActionSet:
    return _action_set(
        [(name, c.ACTIONS.index(command), FULL_MASK, FULL_MASK, "") for name, command in _SMARTPLAY.items()]
    )


VERBS = ("mine", "eat", "attack", "chop", "drink", "place", "make")
NOUNS = (
    *("zombie", "skeleton", "cow", "tree", "stone", "coal", "iron", "diamond", "water", "grass"),
    *("crafting table", "furnace", "plant"),
    *(f"{x} {tool}" for tool in ("pickaxe", "sword") for x in ("wood", "stone", "iron")),
)
"""ELLM's verbs and nouns; its actions are all pairs, after six without a noun
(`text_crafter/text_crafter/text_env`)."""
_OBJECTS_OF = {
    "eat": ("plant", "cow"),
    "attack": ("zombie", "skeleton", "cow"),
    "chop": ("tree", "grass"),
    "mine": ("stone", "coal", "iron", "diamond"),
    "drink": ("water",),
}
"""The objects of ELLM's verbs."""
_NO_NOUN = ("do nothing", "move left", "move right", "move up", "move down", "sleep")


def _pair(verb: str, noun: str) -> tuple[str, int, int, int, str]:
    """One of ELLM's actions; most have no effect."""
    name, item = f"{verb} {noun}", noun.replace(" ", "_")
    if noun in _OBJECTS_OF.get(verb, ()):
        materials = 1 << c.MATERIALS.index(noun) + 1 if noun in c.MATERIALS else 0
        kinds = 1 << c.KINDS.index(noun) + 1 if noun in c.KINDS else 0
        return name, c.DO, materials, kinds, item
    action = "place_table" if noun == "crafting table" and verb in ("place", "make") else f"{verb}_{item}"
    command = c.ACTIONS.index(action) if action in c.ACTIONS else NOTHING
    return name, command, 0, 0, item


def _ellm() -> ActionSet:
    no_noun = [(name, c.ACTIONS.index(_SMARTPLAY[name]), 0, 0, "") for name in _NO_NOUN]
    return _action_set([*no_noun, *(_pair(verb, noun) for verb in VERBS for noun in NOUNS)])


def valid(actions: ActionSet) -> np.ndarray:
    """The actions that can ever have an effect, bool `[A]`: 29 of ELLM's 139."""
    return actions.command != NOTHING


def _ellm_27() -> ActionSet:
    """ELLM's easier set: its actions that can have an effect, without the synonyms "eat cow", "make crafting table"."""
    actions = _ellm()
    indices = [i for i in np.flatnonzero(valid(actions)) if actions.names[i] not in ("eat cow", "make crafting table")]
    return ActionSet(
        tuple(actions.names[i] for i in indices),
        *(getattr(actions, name)[indices] for name in ("command", "materials", "kinds")),
        *(getattr(actions, name)[indices] for name in ("noun_material", "noun_kind", "noun_item")),
    )


_SETS = {17: _package, 20: _smartplay, 27: _ellm_27, 139: _ellm}


@functools.cache
def action_set(count: int) -> ActionSet:
    """The set of 17 (the package's), 20 (SmartPlay's), 27 or 139 (ELLM's) actions. **Raises** `ValueError` for another
    count."""
    if count not in _SETS:
        raise ValueError(f"actions is {count!r}; it is one of {', '.join(map(str, _SETS))}")
    return _SETS[count]()


def index(actions: ActionSet, name: str) -> int:
    """The number of an action. **Raises** `KeyError` naming the nearest names."""
    if name not in actions.names:
        raise KeyError(f"no action is named {name!r}{nearest(name, list(actions.names))}")
    return actions.names.index(name)
