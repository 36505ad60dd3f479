"""Prompts that ask a chat model for goals, and the goals in its replies (`text_crafter/lm.py`,
`text_housekeep/lm.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from llmrl_jax.chat import ChatRequest, Message, list_items, strip_thinking
from llmrl_jax.core.checks import nearest


Parse = Literal["lines", "paper"]
Shot = tuple[str, tuple[str, ...]]
"""An example in the prompt: the text of a state, and its goals."""
QUESTION = "What do you do?"
PUBLISHED: tuple[Shot, ...] = (
    ("you see plant, tree, and skeleton. you are targeting skeleton.", ("eat plant", "chop tree", "attack skeleton")),
    (
        "you see water, grass, cow, and diamond. you are targeting grass. you have in your inventory plant.",
        ("drink water", "chop grass", "attack cow", "place plant"),
    ),
)


def sentence_cased(text: str) -> str:
    """Every sentence with a capital letter."""
    return re.sub(r"(^|[.?!]\s+)(\w)", lambda match: match[1] + match[2].upper(), text)


def bullets(goals: Sequence[str]) -> str:
    """Goals as a reply lists them."""
    return "\n".join(f"- {goal.capitalize()}" for goal in goals)


def open_ended(state: str, verbs: Sequence[str], shots: Sequence[Shot] = PUBLISHED) -> str:
    """The open-ended prompt: valid verbs, the instruction, examples, and the state.

    **Arguments:** `state`, its sentences; `verbs`, which the prompt lists; `shots`, the examples.
    """
    parts = [
        f"Valid actions: {', '.join(verbs)}\n"
        "You are a player in a game. Name the best actions for what you see and what you hold. Use valid actions and "
        "objects only."
    ]
    parts += [f"{sentence_cased(text)} {QUESTION}\n{bullets(goals)}" for text, goals in shots]
    parts.append(f"{sentence_cased(state)} {QUESTION}\n")
    return "\n\n".join(parts)


def request(
    state: str, verbs: Sequence[str], sampling: Mapping[str, object], shots: Sequence[Shot] = PUBLISHED
) -> ChatRequest:
    """The request for the goals of one state. **Arguments:** `sampling`, further fields of the request; for the others
    see `open_ended`."""
    message = Message("user", open_ended(state, verbs, shots))
    return ChatRequest((message,), stop=("\n\n",), **sampling)  # type: ignore[arg-type]


def choose_shots(count: int, file: str = "") -> tuple[Shot, ...]:
    """The examples of the prompt.

    **Arguments:** `count`, how many; `file`, one that `llmrl ellm answers` wrote, over whose rows they are spread
    evenly; empty: the published ones.
    **Raises:** `FileNotFoundError`; `ValueError` for too few examples, or a row that is not one.
    """
    examples = _read_examples(Path(file)) if file else PUBLISHED
    if count > len(examples):
        remedy = "take fewer" if file else "name a file of `llmrl ellm answers` with --goals.examples"
        source = f"{file} has" if file else "the published prompt has"
        raise ValueError(f"--goals.shots is {count}, but {source} {len(examples)} examples: {remedy}")
    return tuple(examples[i * len(examples) // count] for i in range(count))


def _read_examples(path: Path) -> list[Shot]:
    if not path.is_file():
        files = sorted(p.name for p in path.parent.glob("*")) if path.parent.is_dir() else []
        raise FileNotFoundError(f"--goals.examples: there is no file {path}{nearest(path.name, files)}")
    shots: list[Shot] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            shots.append((str(row["state"]), tuple(map(str, row["goals"]))))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"--goals.examples: line {number} of {path} is no object with a state and its goals, as "
                "`llmrl ellm answers` writes"
            ) from error
    return shots


def read_goals(reply: str, parse: Parse = "lines") -> list[str] | None:
    """The goals in a reply without its thoughts: distinct, in small letters, in their order; None for a reply that
    cannot be read.

    `lines`: every item of a list is a goal (`list_items`); other lines are ignored; a reply without one cannot be read.
    `paper`: as the published code, every line must start with a dash, and every dash separates goals.
    """
    answer = strip_thinking(reply)
    if parse == "paper":
        lines = answer.splitlines()
        while lines and lines[-1].strip() in ('"""', "```", "'''"):
            lines.pop()
        if not lines or not all(line.startswith("-") for line in lines):
            return None
        parts = "\n".join(lines).lower().split("-")
    else:
        parts = list_items(answer)
        if not parts:
            return None
    goals = [" ".join(goal.lower().strip(" .\n\"'`").split()) for goal in parts]
    return list(dict.fromkeys(goal for goal in goals if goal))


# --- closed-form: does an object belong in a place? -------------------------------------------------------------------


_PAIR_SHOTS = (("dirty spoon", "chair", "No"), ("mixing bowl", "dishwasher", "Yes"), ("clean sock", "drawer", "Yes"))
PAIR_TOKENS = 16
"""The most tokens of an answer about a pair: its first word decides. Models that think are asked again with more."""


def _question(item: str, receptacle: str) -> str:
    return f"Should you store a {item} in/on the {receptacle}:"


def closed_form(item: str, receptacle: str) -> str:
    """The prompt about one object and one place: persona, instruction, three examples, the question."""
    shots = "\n\n".join(f"{_question(*shot[:2])} {shot[2]}" for shot in _PAIR_SHOTS)
    return (
        "You are a robot in a house. You can pick up objects and place them in or on furniture. Say whether an object "
        f"should be stored at a place. Answer Yes or No.\n\n{shots}\n\n{_question(item, receptacle)}"
    )


def pair_request(item: str, receptacle: str, sampling: Mapping[str, Any], tokens: int = PAIR_TOKENS) -> ChatRequest:
    """The request about one object and one place, of which at most `tokens` tokens are generated."""
    options = {**sampling, "max_tokens": min(sampling.get("max_tokens", tokens), tokens)}
    return ChatRequest((Message("user", closed_form(item, receptacle)),), stop=("\n\n",), **options)


def read_yes(reply: str) -> bool | None:
    """Return whether a reply says yes; None if the first word after its thoughts is neither yes nor no."""
    first = re.match(r"\W*(\w+)", strip_thinking(reply))
    word = first[1].lower() if first else ""
    return {"yes": True, "no": False}.get(word)
