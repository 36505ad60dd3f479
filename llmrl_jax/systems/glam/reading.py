"""Reading before imitation: questions and answers about the positions of objects, from the environment's captions.

A pre-trained model knows that two mentions of "a blue key" in a text refer to the same object. A randomly initialised
model learns this slowly from actions alone: after imitating 576,000 actions, swapping the goal of a GoToLocal prompt
changed the action probabilities by only 0.006 (`docs/systems/glam.md`). Here the end of every prompt repeats its
captions, the goal's first (without its name) and then others, so that the model mainly learns reference. It is part of
the stand-in for pre-training, and summaries say so.

A small model can answer a good part of these questions without reference, by naming positions that were not named yet,
and stays there; `llmrl_jax.systems.glam.associations` is a lesson that comes before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from llmrl_jax.agents.babyai import NoisyExpert
from llmrl_jax.core.checks import Checked, Fraction, NonNegativeInt, PositiveFloat, PositiveInt
from llmrl_jax.tuning import Example


if TYPE_CHECKING:
    from llmrl_jax.lm.tokens import WordTokenizer
    from llmrl_jax.systems.glam.build import Glam


THING = r"\w+ (?:ball|box|key|door)"
NAMED = re.compile(rf"(?:a|the) ({THING})")
SEEN = re.compile(rf"You see an? (?:open |closed |locked )?({THING}) ([^,]+),")


@dataclass(frozen=True)
class ReadingConfig(Checked):
    """Settings of the reading lesson."""

    updates: NonNegativeInt = 0
    """Number of gradient steps; 0: no lesson."""
    env: str = "BabyAI-Text/GoToLocalS7N4-v0"
    """Environment whose captions are read; its vocabulary must be that of the training environment."""
    rows: PositiveInt = 40_000
    """Number of texts, each used as often as the updates allow."""
    batch_size: PositiveInt = 32
    """Texts per gradient step."""
    learning_rate: PositiveFloat = 2e-3
    """Adam's peak learning rate, with 5% warm-up and cosine decay to a tenth."""
    questions: NonNegativeInt = 0
    """Questions of a text after the goal's, for objects drawn from all in view, so that what was not named yet is no
    hint: in turn another goal in the words of the text's, and a name; 0: every other object once, in any order."""
    associations: NonNegativeInt = 0
    """Gradient steps of a lesson before this one, with twice the batch size, in which random tokens stand for names and
    positions (`associations.association`); 0: none."""
    goals: NonNegativeInt = 0
    """Gradient steps of a lesson after the associations, of rows that ask for the value of their goal alone
    (`associations.association`); 0: none."""
    goal_only: Fraction = 0.0
    """Fraction of the texts that end after the positions of the goal's objects, if one is in view."""
    invented: Fraction = 0.0
    """Fraction of the texts in which about half of the colours and object types are replaced by random spare tokens
    (`EmbeddedConfig.spare_words`), drawn per text. This teaches reference in general, not only for known names."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("associations", "goals"):
            if getattr(self, name) and not self.updates:
                raise ValueError(
                    f"{name} is {getattr(self, name)} and updates is 0: this lesson comes before the reading lesson; "
                    f"give updates too, or leave {name} 0"
                )


def question(text: str, order: np.random.Generator, questions: int = 0) -> tuple[list[str], list[bool]] | None:
    """The continuation of a prompt: pieces of text, and which of them are trained on. None if nothing is in view.

    The positions of the goal's objects come first, in the goal's order and without their names, since the prompt has
    just stated the goal; only objects in view, and the nearest of several with one name. The names of the others are
    given, since their order is unpredictable: each once, or `questions` draws from all objects, of which every other
    one is a goal of its own, the text's with other objects ("Goal of the agent: go to the blue key Action 0:").
    """
    seen: dict[str, str] = {}
    for name, where in sorted(SEEN.findall(text), key=lambda pair: sum(map(int, re.findall(r"\d+", pair[1])))):
        seen.setdefault(name, where)
    goal = [name for name in _named(text) if name in seen]
    names = list(seen)
    if not names:
        return None
    order.shuffle(names)
    asked = [(f" {name}", [name]) for name in names if name not in goal]
    if questions:
        asked = [_asked(text, names, order, as_goal=i % 2 == 0) for i in range(questions)]
    pieces = [f" {seen[name]}," for name in goal]
    learn = [True] * len(goal)
    for words, answers in asked:
        pieces += [words, *(f" {seen[name]}," for name in answers)]
        learn += [False] + [True] * len(answers)
    return pieces, learn


def _named(text: str) -> list[str]:
    """The objects that a prompt's goal names, and not what the agent sees or carries."""
    return list(dict.fromkeys(NAMED.findall(text.partition("You see")[0].partition("Observation")[0])))


def _asked(text: str, names: list[str], order: np.random.Generator, as_goal: bool) -> tuple[str, list[str]]:
    """A question: its words, and the objects in view whose positions answer it."""
    slots = _named(text)
    if not as_goal or not slots or len(slots) > len(names):
        name = names[order.integers(len(names))]
        return f" {name}", [name]
    drawn = [names[i] for i in order.choice(len(names), len(slots), replace=False)]
    other = dict(zip(slots, drawn, strict=True))
    goal = NAMED.sub(lambda found: found[0].replace(found[1], other[found[1]]), text.partition(" Observation")[0])
    return f" {goal} {' '.join(text.split()[-2:])}", drawn


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
    glam: Glam,
    count: int,
    seed: int,
    noise: float = 0.5,
    batch: int = 512,
    invented: float = 0.0,
    questions: int = 0,
    goal_only: float = 0.0,
) -> list[Example]:
    """`count` texts from states that a noisy expert visits.

    **Arguments:** `glam`, the program whose environment is visited and whose prompts are continued; `seed`; `noise`,
    the fraction of random actions; `batch`, number of parallel environments; `invented`, `questions` and
    `goal_only`, see `ReadingConfig`.
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
            example = _reading_row(row[:length].tolist(), tokenizer, order, invented, questions, goal_only)
            if example is not None:
                rows.append(example)
    return rows[:count]


def _reading_row(
    ids: list[int], tokenizer: Any, order: np.random.Generator, invented: float, questions: int, goal_only: float
) -> Example | None:
    """A prompt, without loss, and its continuation; None if nothing is in view."""
    text = tokenizer.backend.decode(ids)
    asked = question(text, order, questions)
    if asked is None:
        return None
    learn = [False] * len(ids)
    goals = [*asked[1], False].index(False)
    if goals and goal_only and order.random() < goal_only:
        asked = asked[0][:goals], asked[1][:goals]
    for piece, taught in zip(*asked, strict=True):
        new = tokenizer.encode(piece)
        ids = ids + new
        learn += [taught] * len(new)
    if invented and order.random() < invented:
        ids = invented_names(text, ids, tokenizer, order)
    return Example(ids, learn)
