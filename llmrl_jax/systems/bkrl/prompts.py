"""BK-RL's environments and windows in words, and the prompts, with the parts of the published ones.

No text names what a task rewards: the model says what is good in general, and the answer serves many tasks
(Zhang et al., 2407.03964).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs_jax.babyai.env import BabyAI
from envs_jax.crafter.env import Crafter
from envs_jax.env import Environment
from llmrl_jax.chat import list_items, strip_thinking


# --- environments -----------------------------------------------------------------------------------------------------

TEXT = "text"
"""The part of an observation that describes it in words."""


@dataclass(frozen=True)
class World:
    """A family of environments, as prompts describe it."""

    family: str
    verbs: tuple[str, ...]
    """The actions, as captions name them."""
    rules: str
    """The rules of the environment."""
    arrays: str
    """The numeric parts of an observation, for programs."""


BABYAI_VERBS = (
    "turn left",
    "turn right",
    "forward",
    "pick up the front object",
    "drop your taken object",
    "toggle the front object",
    "do nothing",
)
"""The published wording (`get_caption`)."""

BABYAI_ROOM = """\
The world is a grid: one square room surrounded by walls, between 18 and 28 cells wide on the inside. Keys, balls and
boxes of six colors (red, green, blue, purple, yellow, grey) lie in it at random, between seven and about thirty. They
do not move by themselves, and nothing hides what is behind them."""
"""Of the levels S20 to S30, BK-RL's."""

OTHER_ROOMS = """\
The world is a grid: {rooms} surrounded by walls, {size} cells wide on the inside. Keys, balls and boxes of six colors
(red, green, blue, purple, yellow, grey) lie there at random, and do not move by themselves.{doors}"""
DOORS = """ Doors of these
colors lead from room to room, and may be open, closed or locked. Walls and doors that are not open hide what is behind
them. To toggle opens or closes a door, a locked one if the agent carries a key of its color."""

BABYAI = """\
 An agent stands in one cell and looks in one of four
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
    """The texts about an environment.

    **Raises:** `ValueError` for an environment that BK-RL knows nothing about, or whose observations have no words.
    """
    world = env.unwrapped
    if isinstance(world, BabyAI):
        description = World("babyai", BABYAI_VERBS, rooms_of(world.level.rooms) + BABYAI, BABYAI_ARRAYS)
    elif isinstance(world, Crafter):
        description = World(
            "crafter", tuple(name.replace("_", " ") for name in env.action_names), CRAFTER, _crafter(env)
        )
    else:
        raise ValueError(f"BK-RL has no description of {env.id}: choose a --env of BabyAI-Text or of Crafter-Text")
    if TEXT not in env.captions:
        raise ValueError(f"the observations of {env.id} have no text: choose a --env of BabyAI-Text or of Crafter-Text")
    return description


def rooms_of(rooms: Any) -> str:
    """The rooms of a level of BabyAI (`envs_jax.babyai.levels.layout.Rooms`) in words."""
    size, several = rooms.size - 2, rooms.rows * rooms.columns > 1
    if not several and 18 <= size <= 28:
        return BABYAI_ROOM
    shape = f"{rooms.rows} x {rooms.columns} square rooms" if several else "one square room"
    return OTHER_ROOMS.format(rooms=shape, size=size, doors=DOORS if several else "")


def program_parts(world: World, env: Environment) -> tuple[str, ...]:
    """The numeric parts of an observation that the texts describe, which programs are given. Crafter's image is not
    among them."""
    space: Any = env.observation_space(env.default_params)
    return tuple(name for name in sorted(space.spaces) if f'obs["{name}"]' in world.arrays)


def _crafter(env: Any) -> str:
    from envs_jax.crafter.constants import MATERIALS, SPRITES

    space: Any = env.observation_space(env.default_params)
    view = ""
    if "view" in space.spaces:
        materials = ", ".join(f"{i} {name}" for i, name in enumerate(("outside of the world", *MATERIALS)))
        objects = ", ".join(f"{i} {name}" for i, name in enumerate(("nothing", *SPRITES)))
        view = CRAFTER_VIEW.format(shape=space.spaces["view"].shape, materials=materials, things=objects)
    actions = ", ".join(f"{i} {name}" for i, name in enumerate(env.action_names))
    return CRAFTER_ARRAYS.format(view=view, actions=actions)


def caption(texts: Sequence[str], actions: Sequence[int], verbs: Sequence[str]) -> str:
    """A window in words, in the published layout (`get_caption`).

    **Arguments:** `texts`, of `n + 1` observations; `actions`, `n` numbers; `verbs`, the words for actions.
    """
    sentences = [_sentence(text) for text in texts]
    steps = [f"{text} You choose the action: {verbs[action]}." for text, action in zip(sentences, actions)]
    if len(steps) == 1:
        return f"{steps[0]} Current observation: {sentences[-1]} "
    lines = ["Agent history:", *(f"Step {i}: {step}" for i, step in enumerate(steps, 1))]
    return "\n".join([*lines, f"Current observation: {sentences[-1]} "])


def _sentence(text: str) -> str:
    """A text that ends with a full stop."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) or not text else f"{text}."


# --- programs ---------------------------------------------------------------------------------------------------------

CODE_ROLE = """\
You are a reward engineer. You write a function that measures how well the behaviour of an agent agrees with background
knowledge of its world: high where the agent is in a good situation and acts sensibly, low where it is not. The task of
the agent is not known, so the function must be useful for every task of this world. It must not name one target."""

CODE_CONTRACT = """\
Write one function in Python, for JAX:

def compute_potential(obs, past_obs, past_actions):
    ...
    return potential, {{"name of a component": value, ...}}

obs has the arrays above for the current observation. past_obs has the same arrays for the last {window} observations,
with a leading axis of {window}: past_obs[...][-1] is the observation before the current one. past_actions is an int32
array of shape ({window},): past_actions[-1] led from past_obs[...][-1] to obs; -1 stands for actions before the episode
began, where past observations repeat the first one. potential and the components are float32 scalars.

The function is traced by JAX. Use jnp and lax, which are there already: import nothing. Do not use if or while on
values of arrays: use jnp.where, comparisons and sums. Loops run over range(number) only. Change arrays by
x.at[index].set(value). Divide by nothing that can be zero. Helper functions are allowed. For example:

def compute_potential(obs, past_obs, past_actions):
    changed = jnp.any(obs["{part}"] != past_obs["{part}"][-1])
    waited = jnp.mean((past_actions == {waits}).astype(jnp.float32))
    return changed.astype(jnp.float32) - waited, {{"changed": changed, "waited": waited}}"""

CODE_WRITE = """\
Write compute_potential for this world. Think about what is good in most tasks. Put the program into one Markdown block
that begins with ```python and ends with ```."""

CODE_REPAIR = """\
The program was refused: {reason}
Correct it, and write the whole program again, in one Markdown block that begins with ```python."""

CODE_IMPROVE = """\
These are situations from play, with the values of your program for them:

{samples}

{compared}First say how the program can be improved, given these examples. Then write the whole improved program, in one
Markdown block that begins with ```python."""

CODE_COMPARED = """\
In other episodes, the rank correlation of the potential with the rewards that follow is {correlation:+.3f}. """


def code_system(world: World, window: int) -> str:
    """System prompt for BK-Code. **Arguments:** `window`, past observations."""
    part = "image" if world.family == "babyai" else "inventory"
    contract = CODE_CONTRACT.format(window=window, part=part, waits=world.verbs.index("do nothing"))
    return "\n\n".join((CODE_ROLE, world.rules, world.arrays, contract))


def code_repair(reason: str) -> str:
    """The request for a program in place of a refused one."""
    return CODE_REPAIR.format(reason=reason)


def code_improve(captions: Sequence[str], values: Sequence[Mapping[str, float]], correlation: float | None) -> str:
    """The request for a better program. **Arguments:** `captions`, of windows; `values`, the potential and its
    components for each; `correlation`, of the potential with rewards; None: there were none to compare it with."""
    samples = []
    for i, (text, named) in enumerate(zip(captions, values), 1):
        numbers = "\n".join(f"{name}: {value:.4f}" for name, value in named.items())
        samples.append(f"Sample#{i}\n{text.strip()}\n{numbers}")
    compared = "" if correlation is None else CODE_COMPARED.format(correlation=correlation)
    return CODE_IMPROVE.format(samples="\n\n".join(samples), compared=compared)


# --- preferences ------------------------------------------------------------------------------------------------------

PREFERENCE_ROLE = """\
You compare two pieces of the play of an agent. The goal of the agent is not known; judge by common sense and by what
you know about such worlds, which piece is better.

{rules}

You get the descriptions of two pieces, A and B. """

PREFERENCE_WRITTEN = """\
First write [Thoughts], briefly: do the actions that were chosen have an effect; is the behaviour consistent; can it
lead to a reward? Then write [Rank], and after it one of: A > B, B > A, A = B. Avoid A = B where you can."""

PREFERENCE_CHOSEN = """\
Do the actions that were chosen have an effect; is the behaviour consistent; can it lead to a reward? Write [Rank], and
after it one of: A > B, B > A."""

PREFERENCE_PAIR = """\
Description A:
{first}

Description B:
{second}

Write {parts}."""

RANKS = ("[Rank] A > B", "[Rank] B > A")
"""The answers to choose from, where a model chooses."""
_RANK = re.compile(r".*\[rank\](.*)", re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile(r"\b([AB])\s*([><=])\s*([AB])\b")


def preference_system(world: World, thoughts: bool = True) -> str:
    """System prompt for BK-Pref. **Arguments:** `thoughts`, whether they are written before the
    answer."""
    task = PREFERENCE_WRITTEN if thoughts else PREFERENCE_CHOSEN
    return PREFERENCE_ROLE.format(rules=world.rules) + task


def preference_pair(first: str, second: str, thoughts: bool = True) -> str:
    """The question about two windows in words."""
    parts = "[Thoughts] and then [Rank]" if thoughts else "[Rank]"
    return PREFERENCE_PAIR.format(first=first.strip(), second=second.strip(), parts=parts)


def read_preference(reply: str) -> float | None:
    """1 if B is better, 0 if A is, 0.5 for a tie; None if the reply, without its thoughts, does not say it after the
    last [Rank], or says several things."""
    rank = _RANK.search(strip_thinking(reply))
    answers = set()
    for left, sign, right in _ANSWER.findall(rank[1] if rank else ""):
        if left == right:
            return None
        better = {">": left, "<": right, "=": ""}[sign]
        answers.add({"A": 0.0, "B": 1.0, "": 0.5}[better])
    return answers.pop() if len(answers) == 1 else None


# --- goals ------------------------------------------------------------------------------------------------------------

GOAL_ROLE = """\
You help an agent in a game. From what the agent did and sees, propose goals for it.

{rules}

Rules: a goal uses only actions and objects of this game, and is about what the agent sees. It is precise, and can be
used again in other situations: it names no numbers of steps, distances or directions. No two goals say the same. Give a
few goals, not many, and use earlier ones again where they fit. Answer with a Markdown list, one goal per line, each
line beginning with "- "."""

GOAL_WINDOW = """\
{text}

Earlier goals:
{goals}

Propose goals for the current observation, as a list. Use earlier goals where they fit, and improve on them."""


def goal_system(world: World) -> str:
    """System prompt for BK-Goal."""
    return GOAL_ROLE.format(rules=world.rules)


def goal_window(text: str, earlier: Sequence[str]) -> str:
    """The question about one window. **Arguments:** `text`, the window in words; `earlier`, goals."""
    goals = "\n".join(f"- {goal}" for goal in earlier) or "(none)"
    return GOAL_WINDOW.format(text=text.strip(), goals=goals)


def read_goals(reply: str) -> list[str]:
    """The goals of a reply without its thoughts: the items of a list, without repetition, and without those that have
    characters that cannot be printed (a half of a surrogate pair has no UTF-8)."""
    goals = list_items(strip_thinking(reply))
    return list(dict.fromkeys(goal for goal in goals if goal and goal.isprintable()))
