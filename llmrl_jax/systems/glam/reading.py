"""Reading before imitation: text about what stands where, from the world's own captions, asked and answered.

A pre-trained model knows that "a blue key" in one place of a text refers to what another place says of the blue key. A
model drawn at random takes long to find that out from actions alone: swapping the goal of a GoToLocal prompt moved the
action probabilities of one that had imitated 576,000 of them by 0.006 (`docs/systems/glam.md`). Here the end of every
prompt repeats its captions, the goal's first (without its name) and the others in any order, so that most of what is to
be learnt is reference. It is part of the stand-in for pre-training, and summaries say so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from llmrl_jax.agents.expert import NoisyExpert
from llmrl_jax.core.checks import above, between, fields_at_least
from llmrl_jax.tuning import Example


if TYPE_CHECKING:
    from llmrl_jax.lm.tokens import WordTokenizer
    from llmrl_jax.systems.glam.build import Glam


THING = r"\w+ (?:ball|box|key|door)"
NAMED = re.compile(rf"(?:a|the) ({THING})")
SEEN = re.compile(rf"You see an? (?:open |closed |locked )?({THING}) ([^,]+),")


@dataclass(frozen=True)
class ReadingConfig:
    """The reading lesson."""

    updates: int = 0
    """Gradient steps; 0: no lesson."""
    env: str = "BabyAI-Text/GoToLocalS7N4-v0"
    """The world whose captions are read; its words are those of the world that is learnt."""
    rows: int = 40_000
    """Texts, each read as often as the updates allow."""
    batch_size: int = 32
    """Texts in a gradient step."""
    learning_rate: float = 2e-3
    """Adam's peak, after 5% of warm-up, decayed by a cosine to a tenth."""
    invented: float = 0.0
    """Share of the texts in which about half of the colours and kinds of things go by words that mean nothing: spare
    tokens (`EmbeddedConfig.spare_words`), another draw for each text. What is read is then that names refer, not only
    which."""

    def __post_init__(self):
        fields_at_least(self, 0, "updates")
        fields_at_least(self, 1, "rows", "batch_size")
        above("learning_rate", self.learning_rate, 0)
        between("invented", self.invented, 0, 1)


def question(text: str, order: np.random.Generator) -> tuple[list[str], list[bool]] | None:
    """What follows a prompt: pieces of text, and which of them are to be learnt. None where nothing is in view.

    Where the things of the goal are comes first, in the goal's order and without their names, as the prompt has just
    said what the goal is; those that are in view, of several of one name the nearest. The others' names are given:
    which comes next cannot be known.
    """
    seen: dict[str, str] = {}
    for name, where in sorted(SEEN.findall(text), key=lambda pair: sum(map(int, re.findall(r"\d+", pair[1])))):
        seen.setdefault(name, where)
    goal = [name for name in dict.fromkeys(NAMED.findall(text.partition("You see")[0])) if name in seen]
    names = list(seen)
    order.shuffle(names)
    pieces = [f" {seen[name]}," for name in goal]
    learn = [True] * len(goal)
    for name in (name for name in names if name not in goal):
        pieces += [f" {name}", f" {seen[name]},"]
        learn += [False, True]
    return (pieces, learn) if pieces else None


def invented_names(text: str, ids: list[int], tokenizer: WordTokenizer, draw: np.random.Generator) -> list[int]:
    """`ids` with about half of the colours and kinds of things that `text` sees in other words: spare tokens."""
    words = sorted({word for name, _ in SEEN.findall(text) for word in name.split()})
    renamed = [word for word, it in zip(words, draw.random(len(words)) < 0.5, strict=True) if it]
    other: dict[int | None, int] = {}
    for word, spare in zip(renamed, draw.choice(tokenizer.spare_ids, len(renamed), replace=False), strict=True):
        forms = (word, *(f"{word}{mark}" for mark in tokenizer.MARKS))
        other |= dict.fromkeys(map(tokenizer.backend.token_to_id, forms), int(spare))
    return [other.get(i, i) for i in ids]


def reading_rows(
    glam: Glam, count: int, seed: int, noise: float = 0.5, batch: int = 512, invented: float = 0.0
) -> list[Example]:
    """`count` texts from states that a noisy expert visits.

    **Arguments:** `glam`, the program whose world is looked at and whose prompts are continued; `seed`; `noise`, the
    share of random actions; `batch`, worlds looked at together; `invented`, see `ReadingConfig`.
    **Raises:** `ValueError` for invented words without spare tokens for them.
    """
    tokenizer: Any = glam.tokenizer
    if invented and len(getattr(tokenizer, "spare_ids", ())) < 16:  # six colours and four kinds are drawn for at most
        raise ValueError(
            f"invented is {invented}, which needs a model of 16 spare tokens at least: give embedded.spare_words, or "
            "leave it 0"
        )
    expert = NoisyExpert(glam.env, glam.env_params, batch, noise, seen_only=True)

    @jax.jit
    def play(obs: Any, state: Any, key: jax.Array) -> Any:
        obs, state = expert.play(jax.random.split(key, 4), jax.random.fold_in(key, 4), obs, state)
        return obs, state, *glam.policy.prompts(obs)

    order = np.random.default_rng(seed)
    key = jax.random.key(seed)
    obs, state = expert.reset(key)
    rows: list[Example] = []
    while len(rows) < count:
        key = jax.random.fold_in(key, len(rows))
        obs, state, tokens, lengths = play(obs, state, key)
        for row, length in zip(np.asarray(tokens), np.asarray(lengths), strict=True):
            example = _reading_row(row[:length].tolist(), tokenizer, order, invented)
            if example is not None:
                rows.append(example)
    return rows[:count]


def _reading_row(ids: list[int], tokenizer: Any, order: np.random.Generator, invented: float) -> Example | None:
    """A prompt, which is only read, and what is asked about it; None where nothing can be asked."""
    text = tokenizer.backend.decode(ids)
    asked = question(text, order)
    if asked is None:
        return None
    learn = [False] * len(ids)
    for piece, taught in zip(*asked, strict=True):
        new = tokenizer.encode(piece)
        ids = ids + new
        learn += [taught] * len(new)
    if invented and order.random() < invented:
        ids = invented_names(text, ids, tokenizer, order)
    return Example(ids, learn)
