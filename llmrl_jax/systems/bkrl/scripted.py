"""Scripted advisers of BK-RL: rules and hand-written programs, in the format of replies. No language model."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from llmrl_jax.chat import Message, ScriptedAdviser
from llmrl_jax.systems.bkrl.prompts import World


_DISTANCE = re.compile(r"You see (?:a|an|the) (\w+ (?:key|ball|box))((?: \d+ steps? (?:left|right|forward)| and)*)")
_STEPS = re.compile(r"(\d+) steps?")
_CHOICE = re.compile(r"You choose the action: ([^.]*)\.")
_BLOCKED = re.compile(r"You see (?:a|an|the) [a-z ]+ 1 step forward")
_ITEM = re.compile(
    r"(\d+) (sapling|wood_?\s?pickaxe|stone_?\s?pickaxe|iron_?\s?pickaxe|wood_?\s?sword|stone_?\s?sword"
    r"|iron_?\s?sword|wood|stone|coal|iron|diamond)",
    re.IGNORECASE,
)
_STATUS = re.compile(r"(health|food|drink|energy): (\d)")
_FACING = re.compile(r"You face (\w+)")
UNSEEN_DISTANCE = 14
"""Stands for the distance of what is not in view."""


def merit(text: str) -> float:
    """The quality of a window in words: in BabyAI ground covered, steps towards objects and objects reached, in Crafter
    items and health; idle actions count against it."""
    *steps, last = _CHOICE.split(text)
    texts, actions = [*steps[::2], last], steps[1::2]
    idle = sum(action.split()[0] in ("pick", "drop", "toggle", "do", "do_nothing") for action in actions if action)
    items = sum(int(n) for n, _ in _ITEM.findall(last))
    health = sum(int(n) for _, n in _STATUS.findall(last))
    return progress(texts, actions) - 0.3 * idle + 3 * items + health / 4


def progress(texts: Sequence[str], actions: Sequence[str]) -> float:
    """In BabyAI: how far the agent got with its moves, and what it came nearer to. **Arguments:** `texts`, of one
    observation more than `actions`."""
    distances = [
        min((sum(map(int, _STEPS.findall(offset))) for _, offset in _DISTANCE.findall(text)), default=UNSEEN_DISTANCE)
        for text in texts
    ]
    position, heading, gained, reached = 0j, 1 + 0j, 0.0, False
    for i, action in enumerate(actions):
        reached = reached or distances[i] == 1
        if action == "forward" and not _BLOCKED.search(texts[i]):
            position += heading  # a complex number: turns multiply by i
            gained += 0.0 if reached else 0.8 * (distances[i + 1] < distances[i]) + 2 * (distances[i + 1] == 1)
        elif action.startswith("turn"):
            heading *= 1j if action == "turn left" else -1j
    return 3 * (abs(position.real) + abs(position.imag)) / max(len(actions), 1) + gained


class ScriptedJudge(ScriptedAdviser):
    """Prefers the window of higher `merit`."""

    def __init__(self, world: World):
        """**Arguments:** `world`, whose rules it does not need."""

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        pair = messages[-1].content.partition("Description B:")
        first, second = merit(pair[0]), merit(pair[2])
        rank = "A = B" if first == second else "A > B" if first > second else "B > A"
        return f"[Thoughts]\nA is worth {first:.2f} by rules, B {second:.2f}.\n[Rank]\n{rank}"


class ScriptedGoals(ScriptedAdviser):
    """Proposes to reach what is in view."""

    def __init__(self, world: World):
        """**Arguments:** `world`, by whose family goals are worded."""
        self.family = world.family

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        last = messages[-1].content.rsplit("Current observation:", 1)[-1].split("Earlier goals:")[0]
        if self.family == "babyai":
            goals = [f"go to the {name}" for name, _ in _DISTANCE.findall(last)][:4] or ["look for objects"]
        else:
            facing = _FACING.findall(last)
            goals = [f"collect {name}" for name in facing] + ["collect wood", "drink water", "eat cow"]
        return "\n".join(f"- {goal}" for goal in dict.fromkeys(goals))


# --- programs ---------------------------------------------------------------------------------------------------------

BABYAI_PROGRAMS = (
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Objects in view, the nearer the better, and best straight ahead."""
    kind = obs["image"][:, :, 0]
    is_object = (kind >= 5) & (kind <= 7)
    x = jnp.arange(7).reshape(7, 1)
    y = jnp.arange(7).reshape(1, 7)
    steps = jnp.abs(x - 3) + (6 - y)
    nearest = jnp.min(jnp.where(is_object, steps, 14))
    near = 1.0 - nearest / 14.0
    ahead = ((kind[3, 5] >= 5) & (kind[3, 5] <= 7)).astype(jnp.float32)
    return near + ahead, {"near": near, "ahead": ahead}
''',
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Progress in the last steps: ground covered, steps towards an object, an object reached; no idle actions."""
    frames = jnp.concatenate([past_obs["image"], obs["image"].reshape(1, 7, 7, 3)])[:, :, :, 0]
    is_object = (frames >= 5) & (frames <= 7)
    x = jnp.arange(7).reshape(7, 1)
    y = jnp.arange(7).reshape(1, 7)
    steps = jnp.abs(x - 3) + (6 - y)
    nearest = jnp.min(jnp.where(is_object, steps, 14), axis=(1, 2))
    ahead = frames[:, 3, 5]
    at_object = (ahead >= 5) & (ahead <= 7)
    went = (past_actions == 2) & ((ahead[:-1] == 1) | (ahead[:-1] == 3))

    turns = jnp.where(past_actions == 1, 1, jnp.where(past_actions == 0, -1, 0))
    heading = (jnp.cumsum(turns) - turns) % 4
    north = jnp.sum(jnp.where(went, (heading == 0).astype(jnp.float32) - (heading == 2), 0.0))
    east = jnp.sum(jnp.where(went, (heading == 1).astype(jnp.float32) - (heading == 3), 0.0))
    covered = (jnp.abs(north) + jnp.abs(east)) / past_actions.shape[0]

    fresh = went & (jnp.cumsum(at_object[:-1]) == 0)
    towards = jnp.sum((fresh & (nearest[1:] < nearest[:-1])).astype(jnp.float32))
    reached = jnp.sum((fresh & at_object[1:]).astype(jnp.float32))
    idle = jnp.sum((past_actions >= 3).astype(jnp.float32))
    total = 3.0 * covered + 0.8 * towards + 2.0 * reached - 0.3 * idle
    return total, {"covered": covered, "towards": towards, "reached": reached, "idle": idle}
''',
    '''\
def compute_potential(obs, past_obs, past_actions):
    """How much of the room is in view, and how many objects."""
    kind = obs["image"][:, :, 0]
    seen = jnp.mean((kind != 0).astype(jnp.float32))
    objects = jnp.sum(((kind >= 5) & (kind <= 7)).astype(jnp.float32))
    return seen + 0.2 * jnp.minimum(objects, 5.0), {"seen": seen, "objects": objects}
''',
)
CRAFTER_PROGRAMS = (
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Items by what they cost, and health."""
    cost = jnp.array([0, 0, 0, 0, 1, 1, 2, 2, 4, 8, 4, 8, 16, 4, 8, 16], dtype=jnp.float32)
    items = jnp.sum(cost * jnp.minimum(obs["inventory"], 3))
    health = jnp.sum(obs["inventory"][:4]) / 9.0
    return 0.2 * items + health, {"items": items, "health": health}
''',
    '''\
def compute_potential(obs, past_obs, past_actions):
    """Items by what they cost, the lowest of the needs, and effects of actions."""
    cost = jnp.array([0, 0, 0, 0, 1, 1, 2, 2, 4, 8, 4, 8, 16, 4, 8, 16], dtype=jnp.float32)
    items = jnp.sum(cost * jnp.minimum(obs["inventory"], 3))
    need = jnp.min(obs["inventory"][:4]) / 9.0
    gained = jnp.any(obs["inventory"][4:] > past_obs["inventory"][-1][4:]).astype(jnp.float32)
    waited = jnp.mean((past_actions == 0).astype(jnp.float32))
    total = 0.2 * items + need + gained - 0.5 * waited
    return total, {"items": items, "need": need, "gained": gained, "waited": waited}
''',
)
PROGRAMS = {"babyai": BABYAI_PROGRAMS, "crafter": CRAFTER_PROGRAMS}


class ScriptedCoder(ScriptedAdviser):
    """Answers with the hand-written programs of an environment, one after the other."""

    def __init__(self, world: World):
        """**Arguments:** `world`, whose programs are given."""
        self.programs = PROGRAMS[world.family]

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        program = self.programs[rng.randrange(len(self.programs))]
        return f"This program looks at what the agent sees and does.\n\n```python\n{program}```\n"
