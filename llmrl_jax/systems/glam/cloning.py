"""Behaviour cloning: a language model fine-tuned on what an agent did (glam reference, sections 1.1 and 3.4).

A demonstrated step is a row of text: GLAM's prompt, with the window of observations and actions that the policy would
have had there, and the action as the answer. The rows go through supervised fine-tuning as any others would
(`llmrl_jax.tuning`), so that what comes out is an ordinary model, which RL or the tests take up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from envs_jax.babyai.text.english import MISSION_LENGTH
from envs_jax.text import Phrasebook
from llmrl_jax.agents.babyai_demonstrations import Demonstration, DemosError, read_demos, text_id
from llmrl_jax.agents.language import ScoringPolicy
from llmrl_jax.core.checks import above, at_least, between, nearest, refuse_unread
from llmrl_jax.systems.glam.build import Glam
from llmrl_jax.systems.glam.config import EMBEDDED, GlamConfig
from llmrl_jax.systems.glam.presets import DEMO, GLAM
from llmrl_jax.tuning import Example, SFTConfig


BATCH = 1024
"""Prompts that are assembled at once."""


@dataclass(frozen=True)
class CloningConfig:
    """Which demonstrated steps are learnt, and how."""

    pairs: int = 400_000
    """Steps to learn from, the first of them, beside those that are held out; all where there are fewer."""
    held_out: float = 0.05
    """Fraction of the episodes on which the loss is measured and nothing is learnt: the last of them."""
    epochs: float = 1.0
    """Passes over the steps."""
    length: int = 0
    """Tokens in a row of a batch; 0: as many as the longest step needs."""
    pack: bool = True
    """Put several steps into a row; they do not see one another."""
    end: bool = True
    """Whether the end-of-sequence token behind the action is learnt too, where the tokenizer has one."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """The learner."""

    @property
    def read(self) -> int:
        """Steps to play or read, those held out included."""
        return math.ceil(self.pairs / (1 - self.held_out))

    def __post_init__(self):
        at_least("pairs", self.pairs, 1)
        between("held_out", self.held_out, 0, 1, below=True)
        above("epochs", self.epochs, 0)
        at_least("length", self.length, 0)


PUBLISHED = CloningConfig(
    pack=False,
    sft=SFTConfig(batch_size=64, learning_rate=5e-4, warmup=0.01, adam_eps=1e-8, max_grad_norm=math.inf),
)
"""The published values (glam reference, section 3.4): one pass over 400,000 steps, 64 in a batch, AdamW at 5e-4 without
decay, a cosine after 1% of warm-up; no clipping is on record."""

PRESETS: dict[str, tuple[GlamConfig, CloningConfig]] = {
    "bc": (replace(GLAM, tune="full"), PUBLISHED),
    "bc-lora": (GLAM, PUBLISHED),
    "bc-demo": (
        replace(DEMO, tune="full"),
        CloningConfig(pairs=20_000, epochs=2.0, sft=SFTConfig(batch_size=32, learning_rate=3e-3, warmup=0.1)),
    ),
}
"""Starting points: as published, every weight tuned; the same with adapters; and what two cores do in a minute, with
the demo's small Llama, its level and its short prompts."""


def preset(name: str) -> tuple[GlamConfig, CloningConfig]:
    """The preset of that name. **Raises** `KeyError`, naming the nearest, where there is none."""
    if name not in PRESETS:
        raise KeyError(f"there is no preset {name!r}{nearest(name, list(PRESETS))} (there are {', '.join(PRESETS)})")
    return PRESETS[name]


UNREAD = (
    "ppo",
    "symbolic",
    "drrn",
    "dqn",
    "reward_scale",
    "stop_value_gradient",
    "competence_coef",
    "stop_competence_gradient",
)
"""Settings of `GlamConfig` that are for learners by reward."""


def check(config: GlamConfig, usual: GlamConfig) -> None:
    """**Arguments:** `usual`, the preset that the configuration began with.
    **Raises:** `ValueError` for a program that cannot learn from demonstrations, or settings that only RL reads.
    """
    if config.agent != "llm":
        raise ValueError(f"agent is {config.agent}, but only the language model imitates: leave --agent out")
    if config.policy != "scoring":
        raise ValueError("policy is heads, but cloning teaches to write actions: leave --policy out")
    if config.model == EMBEDDED and config.tune == "lora":
        raise ValueError("model is embedded, whose random weights adapters cannot make up for: take --tune full")
    refuse_unread(config, UNREAD, "cloning", usual=usual, remedy="`llmrl glam train` does")


@cache
def _ids(book: Phrasebook) -> tuple[dict[str, int], int]:
    """The ids of a book's phrases, and into how many pieces its separator cuts the longest of them."""
    known = {phrase: i for i, phrase in enumerate(book.phrases)}
    return known, max(phrase.count(book.separator) for phrase in known) + 1


def spoken_caption(book: Phrasebook, text: str, length: int) -> np.ndarray:
    """The caption int16 `[length]` that a book renders as `text`. Of phrases that begin the same, the longest is taken.

    **Raises:** `ValueError` for a text that is not made of the book's phrases, from where on, and what is nearest; or
    that has more than `length` phrases.
    """
    known, widest = _ids(book)
    pieces = text.split(book.separator) if text else []
    ids: list[int] = []
    start = 0
    while start < len(pieces):
        ends = range(min(len(pieces), start + widest), start, -1)
        end = next((e for e in ends if book.separator.join(pieces[start:e]) in known), None)
        if end is None:
            rest = book.separator.join(pieces[start : start + widest])
            raise ValueError(f"{book.name} has no phrase at the beginning of {rest!r}{nearest(rest, list(known))}")
        ids.append(known[book.separator.join(pieces[start:end])])
        start = end
    if len(ids) > length:
        raise ValueError(f"{text!r} has {len(ids)} phrases of {book.name}, where {length} have room")
    return np.array(ids + [-1] * (length - len(ids)), np.int16)


def windows(mission: np.ndarray, text: np.ndarray, action: np.ndarray, history: int) -> dict[str, np.ndarray]:
    """What `envs_jax.history.PromptHistory` shows at every step of an episode.

    **Arguments:** `mission`, int16 `[M]`; `text`, int16 `[T, C]`; `action`, int32 `[T]`; `history`, `n`.
    **Returns:** `mission` `[T, M]`, `text` `[T, n, C]`, `actions` int32 `[T, n - 1]`, `count` int32 `[T]`.
    """
    steps = len(action)
    count = np.minimum(np.arange(steps) + 1, history).astype(np.int32)
    source = np.arange(steps)[:, None] + 1 - count[:, None] + np.arange(history)  # the step that a place shows
    there = np.arange(history) < count[:, None]
    shown = np.where(there[..., None], text[np.minimum(source, steps - 1)], text.dtype.type(-1))
    between = np.where(there[:, 1:], action[np.minimum(source[:, :-1], steps - 1)], -1).astype(np.int32)
    return {"mission": np.repeat(mission[None], steps, axis=0), "text": shown, "actions": between, "count": count}


@dataclass(frozen=True)
class Taught:
    """Steps as rows of tokens, to learn from and to measure on."""

    learn: list[Example]
    held_out: list[Example]
    episodes: int
    """Episodes that they come from."""


def taught(glam: Glam, path: str | Path, config: CloningConfig) -> Taught:
    """The rows of a file of demonstrations, for the prompts and actions of a program.

    **Arguments:** `glam`, whose policy scores actions; `path`, a file of `write_demos`, of the level `glam.config.env`.
    **Raises:** what `read_demos` raises; `ValueError` for a prompt that lists the actions of each state; `DemosError`
    for demonstrations of another level, with no episode to learn from, in other words than the level's, or of actions
    that the agent does not have.
    """
    if glam.prompt.lists_offered:
        raise ValueError(
            f"the prompt of {glam.config.env} lists the actions that each state offers, which demonstrations do not "
            "hold: take --no-list-actions, or leave actions=useful out"
        )
    metadata, episodes = read_demos(path)
    wanted = text_id(glam.config.env)
    if metadata["level"] != wanted:
        raise DemosError(
            f"{path} shows {metadata['level']}, but env is {wanted}: give --env {metadata['level']}, or other demos"
        )
    demos: list[Demonstration] = []
    steps = 0
    for demo in episodes:
        demos.append(demo)
        steps += len(demo.action)
        if steps >= config.read:
            break
    aside = round(config.held_out * len(demos))
    if len(demos) == aside:
        raise DemosError(
            f"{path} has {len(demos)} episodes, of which held_out keeps {aside}: none is left to learn from"
        )
    rows = _rows(glam, demos, path, config.end)
    first = sum(len(demo.action) for demo in demos[: len(demos) - aside])
    return Taught(rows[:first], rows[first:], len(demos))


def _windows(glam: Glam, demo: Demonstration, path: str | Path) -> dict[str, np.ndarray]:
    """The windows of one episode, once it is sure that its words and actions are the program's."""
    world: Any = glam.env.unwrapped  # type: ignore[attr-defined]
    n = glam.config.num_actions
    if demo.action.max() >= n:
        raise DemosError(
            f"{path}: episode {demo.number} does {world.action_names[demo.action.max()]!r}, which is not among the "
            f"agent's {n} actions: take --num-actions {demo.action.max() + 1}, or other demos"
        )
    try:
        mission = spoken_caption(world.books.missions, demo.mission, MISSION_LENGTH)
        text = [spoken_caption(world.books.view, said, world.max_sentences) for said in demo.text]
    except ValueError as error:
        raise DemosError(f"{path}: episode {demo.number}: {error}") from error
    return windows(mission, np.stack(text), demo.action, glam.config.history)


def _rows(glam: Glam, demos: Sequence[Demonstration], path: str | Path, end: bool) -> list[Example]:
    """One row of tokens for each step: its prompt, which is only read, and its action."""
    assert isinstance(glam.policy, ScoringPolicy)  # which `check` asks for
    shown = [_windows(glam, demo, path) for demo in demos]
    obs = {name: np.concatenate([parts[name] for parts in shown]) for name in shown[0]}
    actions = np.concatenate([demo.action for demo in demos]).tolist()
    eos = glam.tokenizer.eos_id
    stop = [eos] if end and eos is not None else []
    answers = [[*sequence, *stop] for sequence in glam.policy.candidates.sequences]
    prompts = jax.jit(glam.policy.prompts)
    one = list(range(glam.policy.model.config.vocab_size))  # rows share their integers, or they would fill the memory
    rows: list[Example] = []
    for start in range(0, len(actions), BATCH):
        part = {name: x[start : start + BATCH] for name, x in obs.items()}
        short = BATCH - len(part["count"])
        full = {name: np.pad(x, ((0, short), *((0, 0) for _ in x.shape[1:])), "edge") for name, x in part.items()}
        tokens, lengths = map(np.asarray, prompts(full))
        for row, n, action in zip(tokens[: BATCH - short], lengths, actions[start : start + BATCH], strict=False):
            if n > len(row):
                raise DemosError(f"{path}: row {len(rows)} needs a prompt of more than the {len(row)} tokens there are")
            answer = answers[action]
            rows.append(Example([one[t] for t in row[:n].tolist()] + answer, [False] * int(n) + [True] * len(answer)))
    return rows


def policy_weights(glam: Glam, state: Any) -> tuple[Any, Any]:
    """`(params, frozen)` of the policy that acts by what fine-tuning has learnt (an `SFTState`). Its critic is random:
    demonstrations do not say what a state is worth."""
    heads = glam.policy.init_heads(jax.random.key(0))
    if glam.policy.model.lora is None:
        return {"params": state.params, **heads}, {}
    return {"lora": state.params, **heads}, {"params": state.frozen["base"]["params"]}
