"""Closed-form suggestions for Housekeep: a chat model says for every object and place whether the object belongs there
(ellm reference, 4.4). The answers are a matrix, asked once, which the world takes as a parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from llmrl_jax.chat import ChatModel, ChatRequest, Message


_SHOTS = (("dirty spoon", "chair", "No"), ("mixing bowl", "dishwasher", "Yes"), ("clean sock", "drawer", "Yes"))


def _question(item: str, place: str) -> str:
    return f"Should you store a {item} in/on the {place}:"


def closed_form(item: str, place: str) -> str:
    """The prompt about one object and one place: persona, instruction, three examples, the question."""
    shots = "\n\n".join(f"{_question(*shot[:2])} {shot[2]}" for shot in _SHOTS)
    return (
        "You are a robot in a house. You can pick up objects and place them in or on furniture. Say whether an object "
        f"should be stored at a place. Answer Yes or No.\n\n{shots}\n\n{_question(item, place)}"
    )


def request(item: str, place: str, sampling: Mapping[str, object]) -> ChatRequest:
    """The request about one object and one place."""
    return ChatRequest((Message("user", closed_form(item, place)),), stop=("\n\n",), **sampling)  # type: ignore[arg-type]


def read_yes(reply: str) -> bool | None:
    """Whether a reply says yes; None if its first word is neither yes nor no."""
    first = re.match(r"\W*(\w+)", reply)
    word = first[1].lower() if first else ""
    return {"yes": True, "no": False}.get(word)


@dataclass(frozen=True)
class Judged:
    """What a chat model says about all pairs."""

    yes: Bool[np.ndarray, "N R"]
    """Whether more than the threshold of the readable answers are yes."""
    share: Float[np.ndarray, "N R"]
    """The share of yes among the readable answers; 0 without any."""
    unreadable: int
    """Answers that are neither yes nor no."""


def ask_matrix(
    chat: ChatModel,
    items: Sequence[str],
    places: Sequence[str],
    sampling: Mapping[str, object],
    *,
    samples: int = 1,
    threshold: float = 0.5,
) -> Judged:
    """Ask about every object and place.

    The published code compares the probabilities of the tokens Yes and No; servers do not all report these, so here a
    probability is the share of `samples` answers.

    **Arguments:** `chat`; `items`, `N` objects; `places`, `R`; `sampling`, options of requests; `samples`, per pair;
    `threshold`, share of yes above which a pair is suggested, 0 to 1.
    **Raises:** `ValueError` for a threshold outside [0, 1]; `ChatError` if a request got no reply.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}; a share from 0 to 1 is needed")
    asked = [request(item, place, {**sampling, "n": samples}) for item in items for place in places]
    answers = [[read_yes(choice.text) for choice in reply.choices] for reply in chat.complete(asked)]
    yes = np.array([sum(answer is True for answer in row) for row in answers], np.float32)
    known = np.array([sum(answer is not None for answer in row) for row in answers], np.float32)
    share = (yes / np.maximum(known, 1)).reshape(len(items), len(places))
    unreadable = sum(answer is None for row in answers for answer in row)
    return Judged(share > threshold, share, unreadable)


def agreement(judged: Bool[np.ndarray, "N R"], correct: Bool[np.ndarray, "N R"]) -> dict[str, float]:
    """How well judgements agree with the correct places: `match`, the fraction of correct pairs that are judged so, and
    `mismatch`, the fraction of other pairs that are not (ellm reference, 6); nan where there are none."""
    out = {}
    for name, mask, right in (("match", correct, judged), ("mismatch", ~correct, ~judged)):
        count = int(mask.sum())
        out[name] = float((right & mask).sum() / count) if count else float("nan")
    return out
