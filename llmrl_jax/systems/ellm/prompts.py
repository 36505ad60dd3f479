"""The prompt that asks a chat model for goals, and what its replies say (ellm reference, 3.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from llmrl_jax.chat import ChatRequest, Message


Parse = Literal["lines", "paper"]
QUESTION = "What do you do?"
_SHOTS = (
    ("you see plant, tree, and skeleton. you are targeting skeleton.", ("eat plant", "chop tree", "attack skeleton")),
    (
        "you see water, grass, cow, and diamond. you are targeting grass. you have in your inventory plant.",
        ("drink water", "chop grass", "attack cow", "place plant"),
    ),
)
_BULLET = re.compile(r"\s*(?:[-*\u2022]|\d+[.)])\s+(.*)")


def sentence_cased(text: str) -> str:
    """Every sentence with a capital letter."""
    return re.sub(r"(^|[.?!]\s+)(\w)", lambda match: match[1] + match[2].upper(), text)


def open_ended(state: str, verbs: Sequence[str]) -> str:
    """The open-ended prompt: valid verbs, the instruction, two examples, and the state.

    **Arguments:** `state`, its sentences; `verbs`, which the prompt lists.
    """
    parts = [
        f"Valid actions: {', '.join(verbs)}\n"
        "You are a player in a game. Name the best actions for what you see and what you hold. Use valid actions and "
        "objects only."
    ]
    for seen, goals in _SHOTS:
        bullets = "\n".join(f"- {goal.capitalize()}" for goal in goals)
        parts.append(f"{sentence_cased(seen)} {QUESTION}\n{bullets}")
    parts.append(f"{sentence_cased(state)} {QUESTION}\n")
    return "\n\n".join(parts)


def request(state: str, verbs: Sequence[str], sampling: Mapping[str, object]) -> ChatRequest:
    """The request for the goals of one state. **Arguments:** `sampling`, further fields of the request."""
    return ChatRequest((Message("user", open_ended(state, verbs)),), stop=("\n\n",), **sampling)  # type: ignore[arg-type]


def read_goals(reply: str, how: Parse = "lines") -> list[str] | None:
    """The goals in a reply: distinct, in small letters, in their order; None for a reply that cannot be read.

    `lines`: every bulleted or numbered line is a goal, other lines are ignored; a reply without one cannot be read.
    `paper`: as the published code, every line must start with a dash, and every dash separates goals.
    """
    lines = reply.strip().splitlines()
    while lines and lines[-1].strip() in ('"""', "```", "'''"):
        lines.pop()
    if how == "paper":
        if not lines or not all(line.startswith("-") for line in lines):
            return None
        found = "\n".join(lines).lower().split("-")
    else:
        found = [match[1] for line in lines if (match := _BULLET.fullmatch(line))]
        if not found:
            return None
    goals = [" ".join(goal.lower().strip(" .\n\"'`").split()) for goal in found]
    return list(dict.fromkeys(goal for goal in goals if goal))
