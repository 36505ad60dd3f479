"""Closed-form suggestions for Housekeep: a chat model says for every object and place whether the object belongs there
(ellm reference, 4.4). The answers are a matrix, asked once before training, from which goals follow on the device."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from llmrl_jax.chat import BudgetExceeded, ChatModel, ChatReply, ChatRequest, Message, ScriptedAdviser, strip_thinking
from llmrl_jax.core.activity import doing
from llmrl_jax.core.files import write_whole
from llmrl_jax.systems.ellm.facts import ClosedFacts
from llmrl_jax.systems.ellm.pairs import answers_as_goals


_SHOTS = (("dirty spoon", "chair", "No"), ("mixing bowl", "dishwasher", "Yes"), ("clean sock", "drawer", "Yes"))
TOKENS = 16
"""The most tokens of an answer: its first word decides. Models that think before it are asked again with more."""
FILE = "judgements.json"
"""The answers of a run, in its folder: a resumed run reads them instead of asking again."""


def _question(item: str, place: str) -> str:
    return f"Should you store a {item} in/on the {place}:"


def closed_form(item: str, place: str) -> str:
    """The prompt about one object and one place: persona, instruction, three examples, the question."""
    shots = "\n\n".join(f"{_question(*shot[:2])} {shot[2]}" for shot in _SHOTS)
    return (
        "You are a robot in a house. You can pick up objects and place them in or on furniture. Say whether an object "
        f"should be stored at a place. Answer Yes or No.\n\n{shots}\n\n{_question(item, place)}"
    )


def request(item: str, place: str, sampling: Mapping[str, Any], tokens: int = TOKENS) -> ChatRequest:
    """The request about one object and one place, of which at most `tokens` tokens are generated."""
    options = {**sampling, "max_tokens": min(sampling.get("max_tokens", tokens), tokens)}
    return ChatRequest((Message("user", closed_form(item, place)),), stop=("\n\n",), **options)


def read_yes(reply: str) -> bool | None:
    """Whether a reply says yes; None if the first word after its thoughts is neither yes nor no."""
    first = re.match(r"\W*(\w+)", strip_thinking(reply))
    word = first[1].lower() if first else ""
    return {"yes": True, "no": False}.get(word)


class ScriptedJudge(ScriptedAdviser):
    """Answers from the table of preferences that the project ships, whatever the world's own is; no for an object or a
    place that it does not have."""

    def __init__(self) -> None:
        from envs_jax.housekeep.preferences import shipped

        table = shipped()
        words = lambda text: text.replace("_", " ").replace("|", " ").lower()  # noqa: E731
        pairs = zip(*np.nonzero(table.correct))
        self._yes = {(words(table.objects[i]), words(table.places[k])) for k, i in pairs}

    def advise(self, messages: Sequence[Message], rng: random.Random) -> str:
        """Yes or no. **Arguments:** as for `ScriptedAdviser`."""
        question = messages[-1].content.rsplit("\n\n", 1)[-1]
        asked = re.fullmatch(r"Should you store a (.+) in/on the (.+):", question)
        return "Yes" if asked and (asked[1].lower(), asked[2].lower()) in self._yes else "No"


@dataclass(frozen=True)
class Judged:
    """What a chat model says about all pairs."""

    yes: Bool[np.ndarray, "N R"]
    """Whether more than the threshold of the readable answers are yes."""
    share: Float[np.ndarray, "N R"]
    """The share of yes among the readable answers; 0 without any."""
    known: Bool[np.ndarray, "N R"]
    """Whether there is a readable answer."""
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
    """Ask about every object and place, one object after another, so that a cache keeps what was answered before an
    error.

    The published code compares the probabilities of the tokens Yes and No; servers do not all report these, so here a
    probability is the share of `samples` answers. Answers that `TOKENS` cut before they could be read, as those of a
    model that thinks, are asked for again with the `max_tokens` of `sampling`; once that helped, all others are asked
    for with as many from the start, and once it did not, none is asked for again.

    **Arguments:** `chat`; `items`, `N` objects; `places`, `R`; `sampling`, options of requests; `samples`, per pair;
    `threshold`, share of yes above which a pair is suggested, 0 to 1.
    **Raises:** `ValueError` for a threshold outside [0, 1]; `ChatError` if a request got no reply, which says for an
    exhausted budget how many were answered.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold is {threshold}; a share from 0 to 1 is needed")
    answers: list[list[bool | None]] = []
    total = len(items) * len(places)
    most = int(sampling.get("max_tokens", TOKENS))  # type: ignore[call-overload]
    tokens, longer = TOKENS, most > TOKENS

    def ask(questions: Sequence[tuple[str, str]], tokens: int) -> list[ChatReply]:
        asked = {**sampling, "n": samples}
        return chat.complete([request(item, place, asked, tokens) for item, place in questions])

    with doing(f"asking {chat.name}", total, "questions") as activity:
        for item in items:
            try:
                replies = ask([(item, place) for place in places], tokens)
                if longer and (cut := [i for i, reply in enumerate(replies) if _cut_early(reply)]):
                    for i, reply in zip(cut, ask([(item, places[i]) for i in cut], most)):
                        replies[i] = reply
                    longer = False
                    if any(read_yes(choice.text) is not None for i in cut for choice in replies[i].choices):
                        tokens = most
            except BudgetExceeded as error:
                replied = len(answers) + sum(not isinstance(x, Exception) for x in error.outcomes)
                raise BudgetExceeded(
                    f"{replied} of {total} questions about objects and places are answered, and the budget is spent "
                    f"({error}): raise --chat.max-calls or --chat.max-usd"
                ) from None
            answers += [[read_yes(choice.text) for choice in reply.choices] for reply in replies]
            activity.done = len(answers)
    yes = np.array([sum(answer is True for answer in row) for row in answers], np.float32)
    known = np.array([sum(answer is not None for answer in row) for row in answers], np.float32)
    shape = len(items), len(places)
    share = (yes / np.maximum(known, 1)).reshape(shape)
    unreadable = sum(answer is None for row in answers for answer in row)
    return Judged(share > threshold, share, (known > 0).reshape(shape), unreadable)


def _cut_early(reply: ChatReply) -> bool:
    """Whether the token limit cut a sample before its answer could be read."""
    return any(choice.finish_reason == "length" and read_yes(choice.text) is None for choice in reply.choices)


def judge(
    chat: ChatModel, facts: ClosedFacts, sampling: Mapping[str, object], samples: int, threshold: float
) -> Judged:
    """`ask_matrix` about the objects that the world has; nothing is known about others."""
    which = np.flatnonzero(facts.occurring)
    found = ask_matrix(
        chat, [facts.items[i] for i in which], facts.places, sampling, samples=samples, threshold=threshold
    )

    def whole(table: np.ndarray) -> np.ndarray:
        out = np.zeros(facts.correct.shape, table.dtype)
        out[which] = table
        return out

    return Judged(whole(found.yes), whole(found.share), whole(found.known), found.unreadable)


def judgements(
    folder: Path,
    chat: ChatModel,
    facts: ClosedFacts,
    sampling: Mapping[str, object],
    samples: int,
    threshold: float,
) -> Judged:
    """The answers in the file of a run's folder; if it is not there, those of the chat model, which are written to it.

    **Raises:** `ValueError` for a file about other objects or places; what `ask_matrix` raises.
    """
    file = folder / FILE
    if not file.exists():
        found = judge(chat, facts, sampling, samples, threshold)
        write_whole(file, json.dumps(_table(facts, found), indent=1) + "\n")
    return _read(file, facts, threshold)


def _table(facts: ClosedFacts, found: Judged) -> dict[str, Any]:
    """The contents of the file: the share of yes for every object and place; null where no answer could be read."""
    rows = {
        facts.items[i]: {
            place: float(found.share[i, r]) if found.known[i, r] else None for r, place in enumerate(facts.places)
        }
        for i in np.flatnonzero(facts.occurring)
    }
    return {"unreadable": found.unreadable, "share_of_yes": rows}


def _read(file: Path, facts: ClosedFacts, threshold: float) -> Judged:
    found = json.loads(file.read_text())
    rows = found["share_of_yes"]
    which = np.flatnonzero(facts.occurring)
    if list(rows) != [facts.items[i] for i in which] or any(list(row) != list(facts.places) for row in rows.values()):
        raise ValueError(
            f"{file} has answers about {len(rows)} objects, which are not the {len(which)} objects and "
            f"{len(facts.places)} places of this world: move it away, and the chat model is asked again"
        )
    share, known = np.zeros(facts.correct.shape, np.float32), np.zeros(facts.correct.shape, bool)
    for i, row in zip(which, rows.values()):
        values = list(row.values())
        known[i] = [x is not None for x in values]
        share[i] = [x or 0.0 for x in values]
    return Judged(share > threshold, share, known, int(found["unreadable"]))


def judged_counts(folder: Path, facts: ClosedFacts, threshold: float) -> dict[str, float]:
    """The numbers about the answers of a run: how many were asked and said yes, how many could not be read, and their
    `agreement` with the oracle."""
    return counted(_read(folder / FILE, facts, threshold), facts)


def counted(found: Judged, facts: ClosedFacts) -> dict[str, float]:
    """`judged_counts` of given answers."""
    asked = np.broadcast_to(facts.occurring[:, None], facts.correct.shape)
    numbers = {"asked": int(asked.sum()), "yes": int(found.yes.sum()), "unreadable": found.unreadable}
    return numbers | agreement(found.yes, facts.correct, asked & found.known)


def judged_line(numbers: Mapping[str, float], calls: int) -> str:
    """These numbers as a sentence."""
    return (
        f"{numbers['asked']:.0f} pairs of objects and places asked about, {calls} requests sent; yes to "
        f"{numbers['yes']:.0f}, {numbers['unreadable']:.0f} answers neither yes nor no; yes to "
        f"{100 * numbers['match']:.1f}% of the correct places (match), no to {100 * numbers['mismatch']:.1f}% of the "
        f"others (mismatch); {100 * numbers['precision']:.1f}% of the yes are correct (precision)"
    )


def with_judged(params: Any, found: Judged) -> Any:
    """The parameters of the world with the goals that follow from answers."""
    goals = answers_as_goals(found.yes, found.known)
    return params.replace(**{name: jnp.asarray(table) for name, table in goals.items()})


def agreement(
    judged: Bool[np.ndarray, "N R"], correct: Bool[np.ndarray, "N R"], asked: Bool[np.ndarray, "N R"] | None = None
) -> dict[str, float]:
    """How well judgements agree with the correct places: `match`, the fraction of correct pairs that are judged so
    (recall); `mismatch`, the fraction of other pairs that are not (ellm reference, 6); `precision`, the fraction of
    pairs judged so that are correct; nan where there are none.

    **Arguments:** `asked`, the pairs that count; None: all.
    """
    counts = np.ones(correct.shape, bool) if asked is None else asked
    out = {}
    for name, mask, right in (
        ("match", correct, judged),
        ("mismatch", ~correct, ~judged),
        ("precision", judged, correct),
    ):
        count = int((mask & counts).sum())
        out[name] = float((right & mask & counts).sum() / count) if count else float("nan")
    return out
