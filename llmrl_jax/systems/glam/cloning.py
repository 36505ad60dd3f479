"""Behaviour cloning: a language model fine-tuned on an agent's actions (glam reference, sections 1.1 and 3.4).

A demonstrated step is a row of text: GLAM's prompt, with the policy's window of observations and actions at that step,
and the action as the answer. The rows are used for ordinary supervised fine-tuning (`llmrl_jax.tuning`). The result is
an ordinary model, usable for RL and for the tests.
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
from llmrl_jax.agents.babyai import Demonstration, DemosError, read_demos, text_id
from llmrl_jax.agents.language import ScoringPolicy
from llmrl_jax.core.checks import Checked, Epochs, FractionBelowOne, NonNegativeInt, PositiveInt, nearest, refuse_unread
from llmrl_jax.systems.glam.build import Glam
from llmrl_jax.systems.glam.config import EMBEDDED, GlamConfig
from llmrl_jax.systems.glam.presets import DEMO, GLAM
from llmrl_jax.tuning import Example, SFTConfig


BATCH = 1024
"""Number of prompts assembled at once."""


@dataclass(frozen=True)
class CloningConfig(Checked):
    """Selection of demonstrated steps, and training on them."""

    pairs: PositiveInt = 400_000
    """Number of training steps, taken from the start of the demonstrations and excluding held-out steps; all if there
    are fewer."""
    held_out: FractionBelowOne = 0.05
    """Fraction of the episodes, the last ones, that are held out to measure the loss."""
    epochs: Epochs = 1.0
    """Passes over the training steps."""
    length: NonNegativeInt = 0
    """Tokens per row of a batch; 0: the length of the longest step."""
    pack: bool = True
    """Pack several steps into a row; they do not attend to each other."""
    end: bool = True
    """Also train on the end-of-sequence token after the action, if the tokenizer has one."""
    sft: SFTConfig = field(default_factory=SFTConfig)
    """The learner."""

    @property
    def read(self) -> int:
        """Number of steps to play or read, including held-out ones."""
        return math.ceil(self.pairs / (1 - self.held_out))


PUBLISHED = CloningConfig(
    pack=False,
    sft=SFTConfig(batch_size=64, learning_rate=5e-4, warmup=0.01, adam_eps=1e-8, max_grad_norm=math.inf),
)
"""The published values (glam reference, section 3.4): one pass over 400,000 steps, batches of 64, AdamW at 5e-4 without
weight decay, a cosine schedule after 1% of warm-up; gradient clipping is not documented."""

PRESETS: dict[str, tuple[GlamConfig, CloningConfig]] = {
    "bc": (GLAM, PUBLISHED),
    "bc-lora": (replace(GLAM, tune="lora"), PUBLISHED),
    "bc-demo": (
        replace(DEMO, tune="full"),
        CloningConfig(pairs=20_000, epochs=2.0, sft=SFTConfig(batch_size=32, learning_rate=3e-3, warmup=0.1)),
    ),
}
"""Presets: as published, with all weights trained; the same with adapters; and one that takes a minute on two cores,
with the demo's small Llama, level and short prompts."""


def preset(name: str) -> tuple[GlamConfig, CloningConfig]:
    """The preset `name`. **Raises** `KeyError`, with the nearest name, for an unknown one."""
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
"""Settings of `GlamConfig` that only RL reads."""


def check(config: GlamConfig, usual: GlamConfig) -> None:
    """**Arguments:** `usual`, the preset from which the configuration started.
    **Raises:** `ValueError` for a configuration that cannot learn from demonstrations, or changed settings that only RL
    reads.
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
    """The ids of a book's phrases, and the largest number of pieces into which its separator splits one of them."""
    known = {phrase: i for i, phrase in enumerate(book.phrases)}
    return known, max(phrase.count(book.separator) for phrase in known) + 1


def spoken_caption(book: Phrasebook, text: str, length: int) -> np.ndarray:
    """The caption int16 `[length]` that a book renders as `text`. Among phrases with a common prefix, the longest match
    is used.

    **Raises:** `ValueError` for a text that does not consist of the book's phrases, with the position and the nearest
    phrase; or that has more than `length` phrases.
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
    """The observations of `envs_jax.history.PromptHistory` at every step of an episode.

    **Arguments:** `mission`, int16 `[M]`; `text`, int16 `[T, C]`; `action`, int32 `[T]`; `history`, `n`.
    **Returns:** `mission` `[T, M]`, `text` `[T, n, C]`, `actions` int32 `[T, n - 1]`, `count` int32 `[T]`.
    """
    steps = len(action)
    count = np.minimum(np.arange(steps) + 1, history).astype(np.int32)
    source = np.arange(steps)[:, None] + 1 - count[:, None] + np.arange(history)  # the step shown at each place
    there = np.arange(history) < count[:, None]
    shown = np.where(there[..., None], text[np.minimum(source, steps - 1)], text.dtype.type(-1))
    between = np.where(there[:, 1:], action[np.minimum(source[:, :-1], steps - 1)], -1).astype(np.int32)
    return {"mission": np.repeat(mission[None], steps, axis=0), "text": shown, "actions": between, "count": count}


@dataclass(frozen=True)
class Taught:
    """Steps as rows of tokens, for training and for held-out measurements."""

    learn: list[Example]
    held_out: list[Example]
    episodes: int
    """Number of episodes that they come from."""


def taught(glam: Glam, path: str | Path, config: CloningConfig) -> Taught:
    """The rows of a file of demonstrations, with the prompts and actions of a program.

    **Arguments:** `glam`, whose policy scores actions; `path`, a file of `write_demos`, of the level `glam.config.env`.
    **Raises:** what `read_demos` raises; `ValueError` for a prompt that lists the available actions of each state;
    `DemosError` for demonstrations of another level, without a training episode, with words outside the level's
    vocabulary, or with actions that the agent does not have.
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
    """The windows of one episode, after checking its words and actions against the program's."""
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


def demonstrated(
    glam: Glam, demos: Sequence[Demonstration], path: str | Path
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The observations of an agent in all steps of demonstrations of its level, and what was done there.

    **Arguments:** `path`, their file, for messages. **Returns:** the observations, leaves `[N, ...]`, and the actions,
    int32 `[N]`. **Raises:** `DemosError` for words or actions that the agent does not have.
    """
    shown = [_windows(glam, demo, path) for demo in demos]
    obs = {name: np.concatenate([parts[name] for parts in shown]) for name in shown[0]}
    return obs, np.concatenate([demo.action for demo in demos])


def _rows(glam: Glam, demos: Sequence[Demonstration], path: str | Path, end: bool) -> list[Example]:
    """One row of tokens per step: its prompt, without loss, and its action."""
    assert isinstance(glam.policy, ScoringPolicy)  # ensured by `check`
    obs, done = demonstrated(glam, demos, path)
    actions = done.tolist()
    eos = glam.tokenizer.eos_id
    stop = [eos] if end and eos is not None else []
    answers = [[*sequence, *stop] for sequence in glam.policy.candidates.sequences]
    prompts = jax.jit(glam.policy.prompts)
    one = list(range(glam.policy.model.config.vocab_size))  # rows share their integers to save memory
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
    """`(params, frozen)` of the policy with the fine-tuned weights of `state` (an `SFTState`). Its critic is random,
    since demonstrations do not train it."""
    heads = glam.policy.init_heads(jax.random.key(0))
    if glam.policy.model.lora is None:
        return {"params": state.params, **heads}, {}
    return {"lora": state.params, **heads}, {"params": state.frozen["base"]["params"]}
