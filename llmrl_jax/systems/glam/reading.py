"""Reading before imitation: questions and answers about the positions of objects, from the environment's captions.

A pre-trained model knows that two mentions of "a blue key" in a text refer to the same object. A randomly initialised
model learns this slowly from actions alone: after imitating 576,000 actions, swapping the goal of a GoToLocal prompt
changed the action probabilities by only 0.006 (`docs/systems/glam.md`). Here the end of every prompt repeats its
captions, the goal's first (without its name) and the others in any order, so that the model mainly learns reference. It
is part of the stand-in for pre-training, and summaries say so.
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
    """Settings of the reading lesson."""

    updates: int = 0
    """Number of gradient steps; 0: no lesson."""
    env: str = "BabyAI-Text/GoToLocalS7N4-v0"
    """Environment whose captions are read; its vocabulary must be that of the training environment."""
    rows: int = 40_000
    """Number of texts, each used as often as the updates allow."""
    batch_size: int = 32
    """Texts per gradient step."""
    learning_rate: float = 2e-3
    """Adam's peak learning rate, with 5% warm-up and cosine decay to a tenth."""
    invented: float = 0.0
    """Fraction of the texts in which about half of the colours and object types are replaced by random spare tokens
    (`EmbeddedConfig.spare_words`), drawn per text. This teaches reference in general, not only for known names."""

    def __post_init__(self):
        fields_at_least(self, 0, "updates")
        fields_at_least(self, 1, "rows", "batch_size")
        above("learning_rate", self.learning_rate, 0)
        between("invented", self.invented, 0, 1)


def question(text: str, order: np.random.Generator) -> tuple[list[str], list[bool]] | None:
    """The continuation of a prompt: pieces of text, and which of them are trained on. None if nothing is in view.

    The positions of the goal's objects come first, in the goal's order and without their names, since the prompt has
    just stated the goal; only objects in view, and the nearest of several with one name. The names of the others are
    given, since their order is unpredictable.
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
    """`ids` with about half of the colours and object types in `text` replaced by spare tokens."""
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

    **Arguments:** `glam`, the program whose environment is visited and whose prompts are continued; `seed`; `noise`,
    the fraction of random actions; `batch`, number of parallel environments; `invented`, see `ReadingConfig`.
    **Raises:** `ValueError` if `invented` is used without enough spare tokens.
    """
    tokenizer: Any = glam.tokenizer
    if invented and len(getattr(tokenizer, "spare_ids", ())) < 16:  # at most six colours and four kinds are replaced
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
    """A prompt, without loss, and its continuation; None if nothing is in view."""
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
