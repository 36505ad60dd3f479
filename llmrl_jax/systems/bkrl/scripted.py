"""Scripted advisers of BK-RL: rules that read prompts and answer in their format. No language model."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from llmrl_jax.chat import Message, ScriptedAdviser
from llmrl_jax.systems.bkrl.worlds import World


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
FAR = 14
"""Stands for the distance of what is not in view."""


def merit(said: str) -> float:
    """How good a window in words is: in BabyAI ground covered, steps towards objects and objects reached, in Crafter
    items and health; idle actions count against it."""
    *steps, last = _CHOICE.split(said)
    texts, actions = [*steps[::2], last], steps[1::2]
    idle = sum(action.split()[0] in ("pick", "drop", "toggle", "do", "do_nothing") for action in actions if action)
    items = sum(int(n) for n, _ in _ITEM.findall(last))
    health = sum(int(n) for _, n in _STATUS.findall(last))
    return progress(texts, actions) - 0.3 * idle + 3 * items + health / 4


def progress(texts: Sequence[str], actions: Sequence[str]) -> float:
    """In BabyAI: how far the agent got with its moves, and what it came nearer to. **Arguments:** `texts`, of one
    observation more than `actions`."""
    near = [
        min((sum(map(int, _STEPS.findall(where))) for _, where in _DISTANCE.findall(text)), default=FAR)
        for text in texts
    ]
    place, heading, gained, met = 0j, 1 + 0j, 0.0, False
    for i, action in enumerate(actions):
        met = met or near[i] == 1
        if action == "forward" and not _BLOCKED.search(texts[i]):
            place += heading  # a complex number: turns multiply by i
            gained += 0.0 if met else 0.8 * (near[i + 1] < near[i]) + 2 * (near[i + 1] == 1)
        elif action.startswith("turn"):
            heading *= 1j if action == "turn left" else -1j
    return 3 * (abs(place.real) + abs(place.imag)) / max(len(actions), 1) + gained


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
