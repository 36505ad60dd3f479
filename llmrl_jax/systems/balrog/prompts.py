"""BALROG's texts: instructions, reply formats, and observations of BabyAI and Crafter, by version.

Equal byte for byte to balrog-ai/BALROG at the commit that `VERSIONS` names for each version; the code is ours. The
texts of `BABYAI_INSTRUCTION`, `CRAFTER_INSTRUCTION`, `FORMATS` and `Wording` are BALROG's:

Copyright (c) 2024-2024 BALROG Team. Permission is hereby granted, free of charge, to any person obtaining a copy of
this software and associated documentation files (the "Software"), to deal in the Software without restriction,
including without limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies
of the Software, and to permit persons to whom the Software is furnished to do so, subject to the following conditions:
The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software. THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED
TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT
OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from envs_jax.crafter import constants as c


# --- versions ---------------------------------------------------------------------------------------------------------

Version = Literal["2024-11", "2025-04", "2025-08"]


@dataclass(frozen=True)
class Wording:
    """The differences between versions of the benchmark's texts."""

    commit: str
    """The commit of the reference whose texts these are."""
    feedback: str
    """Text before the observation that follows an invalid reply, with the slots `action` (the default, which was
    executed) and `reply`."""
    label: str
    """First line of a past observation."""
    status_line: bool
    """Whether the current observation has a line for its short-term text even if that is empty."""
    hides_texts: bool
    """Whether only as many observations have a text as `max_text_history` says; invalid empty replies leave more."""
    transposed: bool
    """Whether `You face` names the cell with swapped offsets (x for y)."""
    by_material: bool
    """Whether Crafter's list is in the order of materials, with `1 steps`; else as first seen, with `1 step`."""
    sapling: str
    """The word for a sapling in the list of achievements."""
    agents: tuple[str, ...]
    """The agents of that version."""


_FEEDBACK = "\n\nYour previous output did not contain a valid action. Defaulted to action: {action}\n\nObservation:\n"
_EARLIER_FEEDBACK = "\n\nYour previous output action: '{reply}' is not a valid action. Defaulted to action: {action}\n"
AGENTS = ("naive", "cot", "robust_naive", "robust_cot")

VERSIONS: dict[str, Wording] = {
    "2024-11": Wording(
        "04f8a21", _EARLIER_FEEDBACK, "Obesrvation:", True, False, True, True, "Sampling", ("naive", "cot")
    ),  # the release of November with its first correction, without which no instruction is sent
    "2025-04": Wording("ec49c9b", _FEEDBACK, "Observation:", False, True, False, True, "Sampling", AGENTS),
    "2025-08": Wording("af7d1f1", _FEEDBACK, "Observation:", False, True, False, False, "Sapling", AGENTS),
}

# --- instructions -----------------------------------------------------------------------------------------------------

BABYAI_ACTIONS = {
    "turn left": "turn to the left",
    "turn right": "turn to the right",
    "go forward": "take one step forward",
    "pick up": "pick up the object below you",
    "drop": "drop the object that you are holding",
    "toggle": "manipulate the object in front of you",
}
"""Actions of BabyAI, in minigrid's order, and their descriptions."""

CRAFTER_ACTIONS = {
    "Noop": "do nothing",
    "Move West": "move west on flat ground",
    "Move East": "move east on flat ground",
    "Move North": "move north on flat ground",
    "Move South": "move south on flat ground",
    "Do": "Multiuse action to collect material, drink from lake and hit creature in front",
    "Sleep": "sleep when energy level is below maximum",
    "Place Stone": "place a stone in front",
    "Place Table": "place a table",
    "Place Furnace": "place a furnace",
    "Place Plant": "place a plant",
    "Make Wood Pickaxe": "craft a wood pickaxe with a nearby table and wood in inventory",
    "Make Stone Pickaxe": "craft a stone pickaxe with a nearby table, wood, and stone in inventory",
    "Make Iron Pickaxe": "craft an iron pickaxe with a nearby table and furnace, wood, coal, and iron in inventory",
    "Make Wood Sword": "craft a wood sword with a nearby table and wood in inventory",
    "Make Stone Sword": "craft a stone sword with a nearby table, wood, and stone in inventory",
    "Make Iron Sword": "craft an iron sword with a nearby table and furnace, wood, coal, and iron in inventory",
}
"""Actions of Crafter, in the package's order, and their descriptions."""

BABYAI_DEFAULT, CRAFTER_DEFAULT = "go forward", "Noop"
"""The actions that are executed for an invalid reply."""

BABYAI_INSTRUCTION = """\
You are an agent playing a simple navigation game. Your goal is to {mission}. The following are the possible actions \
you can take in the game, followed by a short description of each action:

{actions}.

In a moment I will present you an observation.

Tips:
- Once the desired object you want to interact or pickup in front of you, you can use the 'toggle' action to interact \
with it.
- It doesn't make sense to repeat the same action over and over if the observation doesn't change.

PLAY!"""

CRAFTER_INSTRUCTION = """\
You are an agent playing Crafter. The following are the only valid actions you can take in the game, followed by a \
short description of each action:

{actions}.

These are the game achievements you can get:
1. Collect Wood
2. Place Table
3. Eat Cow
4. Collect {sapling}
5. Collect Drink
6. Make Wood Pickaxe
7. Make Wood Sword
8. Place Plant
9. Defeat Zombie
10. Collect Stone
11. Place Stone
12. Eat Plant
13. Defeat Skeleton
14. Make Stone Pickaxe
15. Make Stone Sword
16. Wake Up
17. Place Furnace
18. Collect Coal
19. Collect Iron
20. Make Iron Pickaxe
21. Make Iron Sword
22. Collect Diamond

In a moment I will present a history of actions and observations from the game.
Your goal is to get as far as possible by completing all the achievements.

PLAY!"""


def _listed(actions: dict[str, str]) -> str:
    return ",\n".join(f"{action}: {description}" for action, description in actions.items())


def babyai_instruction(mission: str) -> str:
    """The first message of an episode of BabyAI."""
    return BABYAI_INSTRUCTION.format(mission=mission, actions=_listed(BABYAI_ACTIONS))


def crafter_instruction(wording: Wording) -> str:
    """The first message of an episode of Crafter."""
    return CRAFTER_INSTRUCTION.format(actions=_listed(CRAFTER_ACTIONS), sapling=wording.sapling)


FORMATS = {
    "naive": "You always have to output one of the above actions at a time and no other text. You always have to "
    "output an action until the episode terminates.",
    "cot": "First think about what's the best course of action step by step.\nFinally, provide a single output action "
    "at the end of the message in the form of: ACTION: <action>",
    "robust_naive": "You must choose exactly one of the listed actions and output it strictly in the following "
    "format:\n\n<|ACTION|>YOUR_CHOSEN_ACTION<|END|>\n\nReplace YOUR_CHOSEN_ACTION with the chosen action. Output no "
    "other text, explanation, or reasoning.",
    "robust_cot": "First, think about the best course of action.\nThen, you must choose exactly one of the listed "
    "actions and output it strictly in the following format:\n\n<|ACTION|>YOUR_CHOSEN_ACTION<|END|>\n\nReplace "
    "YOUR_CHOSEN_ACTION with the chosen action.",
}
"""The format of a reply, by agent; it ends the last message."""

# --- observations -----------------------------------------------------------------------------------------------------


class Observation(NamedTuple):
    """The texts of a state."""

    text: str
    """The long-term text, which stays in the history."""
    status: str = ""
    """The short-term text, which only the current observation has."""


def babyai_observation(phrases: Sequence[str]) -> Observation:
    """BabyAI's text. **Arguments:** `phrases`, the sentences of BabyAI-Text (`envs_jax.babyai.text.english.VIEW`)."""
    return Observation("\n".join(phrase.replace("You see ", "") for phrase in phrases))


ITEMS = (*c.MATERIALS, "player", "cow", "zombie", "skeleton", "arrow", "plant")
"""Item `i + 1` of a semantic map, by name; 0 is outside the world."""
_PLAYER = ITEMS.index("player") + 1
_OBJECTS = np.zeros(len(c.SPRITES) + 1, np.int64)
"""Item of a sprite's code (`envs_jax.crafter.view.look`); 0 for no object."""
_OBJECTS[1:] = [ITEMS.index(name.split("-")[0]) + 1 for name in c.SPRITES]
_CENTRE = (c.VIEW[0] // 2, c.VIEW[1] // 2)
OFF_MAP = "Error, you are out of the map."
SLEEPING = "You are sleeping, and will not be able take actions until energy is full."
DEAD = "You died."


class Scene(NamedTuple):
    """The part of a state of Crafter that the text shows, as NumPy arrays or numbers."""

    view: UInt8[np.ndarray, "9 7 2"]
    """See `envs_jax.crafter.view.look`."""
    position: Int[np.ndarray, "2"]
    """The player's cell (x, y)."""
    inventory: Int[np.ndarray, "16"]
    """Counts in the order of `envs_jax.crafter.constants.ITEMS`."""
    facing: int
    """Index into `envs_jax.crafter.constants.DIRECTIONS`."""
    sleeping: bool


def crafter_observation(scene: Scene, wording: Wording, whole_view: bool = False) -> Observation:
    """Crafter's text.

    The reference cuts the view out of the map. Less than 4 cells from the left or 3 from the upper border, the slice
    begins at a negative index and is empty, so that nothing is seen; at the other borders it is smaller.

    **Arguments:** `wording`, of a version; `whole_view`, whether the view at the borders is what the player sees.
    """
    items = np.where(scene.view[..., 1] > 0, _OBJECTS[scene.view[..., 1]], scene.view[..., 0].astype(np.int64))
    if not whole_view:
        items = items[_slice(scene.position[0], _CENTRE[0]), _slice(scene.position[1], _CENTRE[1])]
    seen = _seen(items, wording)
    lines = "You see:\n" + "\n".join(seen) if seen else "You see nothing away from you."
    faced = _faced(items, int(scene.facing), wording)
    vitals = scene.inventory[: c.VITALS]
    status = f"{SLEEPING}\n\n\n\n" if scene.sleeping else f"{DEAD}\n\n\n\n" if vitals[c.HEALTH] <= 0 else ""
    text = OFF_MAP if faced is None else f"{status}{lines}\n\nYou face {faced} at your front."
    named = [f"- {name}: {count}/9" for name, count in zip(c.ITEMS, vitals)]
    carried = zip(c.ITEMS[c.VITALS :], scene.inventory[c.VITALS :])
    held = [f"- {name}: {count}" for name, count in carried if count]
    inventory = "Your inventory:\n" + "\n".join(held) if held else "You have nothing in your inventory."
    return Observation(text, "Your status:\n" + "\n".join(named) + f"\n\n{inventory}")


def _slice(position: Any, centre: int) -> slice:
    """The part of an axis of the view that the reference's slice of the map has."""
    return slice(0, 0) if position < centre else slice(0, c.AREA - int(position) + centre)


def _seen(items: Int[np.ndarray, "X Y"], wording: Wording) -> list[str]:
    """A line for the nearest cell of each item, the first of several in the order of x, then y."""
    nearest: dict[int, tuple[int, str]] = {}
    for (x, y), item in np.ndenumerate(items):
        dx, dy = x - _CENTRE[0], y - _CENTRE[1]
        distance = abs(dx) + abs(dy)
        if item in (0, _PLAYER) or item in nearest and distance >= nearest[item][0]:
            continue
        vertical = "north" if dy < 0 else "south" if dy > 0 else ""
        horizontal = "west" if dx < 0 else "east" if dx > 0 else ""
        nearest[item] = distance, "-".join(filter(None, (vertical, horizontal)))
    order = sorted(nearest) if wording.by_material else nearest
    plural = lambda distance: "s" if distance > 1 or wording.by_material else ""  # noqa: E731
    return [
        f"- {ITEMS[item - 1]} {distance} step{plural(distance)} to your {direction}"
        for item in order
        for distance, direction in (nearest[item],)
    ]


def _faced(items: Int[np.ndarray, "X Y"], facing: int, wording: Wording) -> str | None:
    """The item that the player faces; None where the reference fails, as the cell is outside its slice.

    Versions before 2025-08 compare each offset with the size of the other axis."""
    dx, dy = c.DIRECTIONS[facing]
    cell = (_CENTRE[0] + dx, _CENTRE[1] + dy)
    size = items.shape[::-1] if wording.by_material else items.shape
    if cell[0] >= size[0] or cell[1] >= size[1]:
        return "nothing"
    cell = cell[::-1] if wording.transposed else cell
    if cell[0] >= items.shape[0] or cell[1] >= items.shape[1]:
        return None
    return ITEMS[items[cell] - 1] if items[cell] else "nothing"
