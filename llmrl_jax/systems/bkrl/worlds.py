"""What BK-RL says about a world to a language model, and how it writes what happened there in words.

Neither text names what a task rewards: the model says what is good in general, and the answer serves many tasks (bkrl
reference, section 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envs_jax.babyai.env import BabyAI
from envs_jax.crafter.env import Crafter
from envs_jax.env import Environment


TEXT = "text"
"""The part of an observation that describes it in words."""


@dataclass(frozen=True)
class World:
    """A family of worlds, as prompts describe it."""

    family: str
    verbs: tuple[str, ...]
    """The actions, as captions name them."""
    about: str
    """The rules of the world."""
    arrays: str
    """The numeric parts of an observation, for who writes a program."""


BABYAI_VERBS = (
    "turn left",
    "turn right",
    "forward",
    "pick up the front object",
    "drop your taken object",
    "toggle the front object",
    "do nothing",
)
"""The published wording (bkrl reference, section 3)."""

BABYAI = """\
The world is a grid: one square room surrounded by walls, between 18 and 28 cells wide on the inside. Keys, balls and
boxes of six colors (red, green, blue, purple, yellow, grey) lie in it at random, between seven and about thirty. They
do not move by themselves, and nothing hides what is behind them. An agent stands in one cell and looks in one of four
directions. In every episode the agent is asked to do something with objects of one or two kinds; the other objects are
distractors. You do not know which objects these are, and the request is not part of what the agent observes.

What the agent observes: the 7 x 7 cells in front of it and beside it. It stands in the middle of the nearest row of
that square and looks forward. Cells outside of the room cannot be seen.

What the agent can do: turn left, turn right, or go one cell forward, which has no effect if a wall or an object is in
the way. To reach an object is to stand next to it and to look at it. It can also pick up the object in front of it,
drop an object, toggle, or do nothing; few tasks need these. An episode is over when the request is fulfilled, or after
some hundred steps, and the sooner it is fulfilled the better."""

BABYAI_ARRAYS = """\
obs["image"]: int32 array of shape (7, 7, 3), the cells in view. obs["image"][x, y] are three integers: the type of what
is in the cell (0 unseen, 1 empty, 2 wall, 3 floor, 4 door, 5 key, 6 ball, 7 box, 8 goal, 9 lava, 10 agent), its color
(0 red, 1 green, 2 blue, 3 purple, 4 yellow, 5 grey), and its state (0 for all but doors). x counts from left (0) to
right (6) and y from far (0) to near (6). The agent is at x = 3, y = 6 and looks towards smaller y: the cell in front of
it is obs["image"][3, 5]. If the agent carries an object, its own cell (3, 6) shows that object.
obs["direction"]: int32 scalar, where the agent looks: 0 right, 1 down, 2 left, 3 up on the map.
Actions: 0 turn left, 1 turn right, 2 go forward, 3 pick up, 4 drop, 5 toggle, 6 do nothing."""

CRAFTER = """\
The world is an island of 64 x 64 cells seen from above, with grass, sand, water, trees, stone, caves, ore and lava. A
player collects resources, crafts tools and has to survive: it has health, and its food, water and energy fall slowly;
when one of them is empty, health falls. It sees 9 x 7 cells around it.

* Saplings are found in grass, with some luck. They are planted on grass; when the plant is ripe it can be eaten.
* Wood comes from trees. A table needs wood and is placed on the ground in front of the player.
* Beside a table, wooden pickaxes and swords are made of wood, stone ones of wood and stone.
* Stone and coal need a wooden pickaxe, iron a stone pickaxe, diamonds an iron pickaxe.
* A furnace needs stone, and is placed beside a table. Iron tools need both nearby, and wood, coal and iron.
* Stone can be placed on grass, sand, paths, water and lava.
* Water is drunk from a lake. Cows are eaten. Zombies come on grass, most of them in the dark; skeletons live in caves
  and shoot arrows. Sleeping restores energy, and the player is hurt more while it sleeps. Lava kills.
* To act on something, the player stands next to it and faces it.

There are 22 achievements: collect coal, diamonds, drink, iron, a sapling, stone, wood; place a furnace, a plant, a
stone, a table; make pickaxes and swords of wood, stone and iron; eat a cow, a plant; defeat a zombie, a skeleton; wake
up. A task asks for one of them, or for all; you do not know which."""

CRAFTER_ARRAYS = """\
obs["inventory"]: int32 array of shape (16,): health, food, drink, energy, sapling, wood, stone, coal, iron, diamond,
wood_pickaxe, stone_pickaxe, iron_pickaxe, wood_sword, stone_sword, iron_sword. Each is between 0 and 9.
{view}Actions: {actions}."""

CRAFTER_VIEW = """\
obs["view"]: int32 array of shape {shape}, the cells around the player, who is in the middle; x counts to the right, y
down. obs["view"][x, y] are two integers: the material ({materials}) and what stands on it ({things}).
obs["daylight"]: float32 scalar, from 0 (night) to 1 (day).
"""


def world_of(env: Environment) -> World:
    """The texts about a world.

    **Raises:** `ValueError` for a world that BK-RL knows nothing about, or whose observations have no words.
    """
    world = env.unwrapped
    if isinstance(world, BabyAI):
        found = World("babyai", BABYAI_VERBS, BABYAI, BABYAI_ARRAYS)
    elif isinstance(world, Crafter):
        found = World("crafter", tuple(name.replace("_", " ") for name in env.action_names), CRAFTER, _crafter(env))
    else:
        raise ValueError(f"BK-RL has no description of {env.id}: choose a --env of BabyAI-Text or of Crafter-Text")
    if TEXT not in env.captions:
        raise ValueError(f"the observations of {env.id} have no text: choose a --env of BabyAI-Text or of Crafter-Text")
    return found


def described(world: World, env: Environment) -> tuple[str, ...]:
    """The numeric parts of an observation that the texts describe: what programs are given. Crafter's picture is not
    among them."""
    space: Any = env.observation_space(env.default_params)
    return tuple(name for name in sorted(space.spaces) if f'obs["{name}"]' in world.arrays)


def _crafter(env: Any) -> str:
    from envs_jax.crafter.constants import MATERIALS, SEEN

    space: Any = env.observation_space(env.default_params)
    view = ""
    if "view" in space.spaces:
        materials = ", ".join(f"{i} {name}" for i, name in enumerate(("outside of the world", *MATERIALS)))
        things = ", ".join(f"{i} {name}" for i, name in enumerate(("nothing", *SEEN)))
        view = CRAFTER_VIEW.format(shape=space.spaces["view"].shape, materials=materials, things=things)
    actions = ", ".join(f"{i} {name}" for i, name in enumerate(env.action_names))
    return CRAFTER_ARRAYS.format(view=view, actions=actions)


def caption(texts: Sequence[str], actions: Sequence[int], verbs: Sequence[str]) -> str:
    """What happened in a window, in the published layout (bkrl reference, section 3).

    **Arguments:** `texts`, of `n + 1` observations; `actions`, `n` numbers; `verbs`, the words for actions.
    """
    said = [_sentence(text) for text in texts]
    steps = [f"{text} You choose the action: {verbs[action]}." for text, action in zip(said, actions)]
    if len(steps) == 1:
        return f"{steps[0]} Current observation: {said[-1]} "
    lines = ["Agent history:", *(f"Step {i}: {step}" for i, step in enumerate(steps, 1))]
    return "\n".join([*lines, f"Current observation: {said[-1]} "])


def _sentence(text: str) -> str:
    """A text that ends with a full stop."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."
