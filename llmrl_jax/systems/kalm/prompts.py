"""Recorded episodes as rows of text and slots: the four objectives of grounding (2404.09248).

A slot is a position in a row that holds a state or an action instead of a token. The content of a position is
predicted from the position before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flax import struct
from jaxtyping import Float, Int

from llmrl_jax.data.transitions import DataError, Trajectories
from llmrl_jax.lm.tokens import FastTokenizer
from llmrl_jax.tuning.packing import best_fit


TOKEN, STATE, ACTION = range(3)
"""Kinds of content of a position."""

PATTERNS = ("rollout", "dynamics", "consequence", "explanation")
"""The objectives: the episode of an instruction; the next state of a step; the last state of an instruction's episode;
the instruction of an episode."""

ROLLOUT = "Carry out the instruction, state by state and action by action.\nInstruction: {}\nTrajectory:"
DYNAMICS = ("Say how the state changes.\nState:", " Action:", " Next state:")
CONSEQUENCE = ("Say what the instruction leads to.\nInstruction: {}\nFirst state:", " Last state:")
EXPLANATION = ("Say which instruction was carried out.\nTrajectory:", "\nInstruction:", " {}")


@dataclass(frozen=True)
class Episodes:
    """Episodes as two tables. The states of an episode are one more than its actions."""

    states: Float[np.ndarray, "M d"]
    actions: np.ndarray
    """int32 `[A]`, or float32 `[A, a]`."""
    first_state: Int[np.ndarray, " E"]
    """Where the states of each episode begin."""
    first_action: Int[np.ndarray, " E"]
    lengths: Int[np.ndarray, " E"]
    """Actions of each episode."""

    @property
    def discrete(self) -> bool:
        return self.actions.ndim == 1

    @staticmethod
    def from_trajectories(data: Trajectories, part: str = "", *, returns: bool = False) -> Episodes:
        """The tables of padded episodes.

        **Arguments:** `part`, of observations that are dicts: the state; `returns`, whether each state gets one more
        component, the undiscounted sum of the rewards after it.
        **Raises:** `DataError` for observations that are no vectors."""
        obs, after = (np.asarray(x[part] if part else x) for x in (data.obs, data.next_obs))
        if obs.ndim != 3 or obs.dtype != np.float32:
            raise DataError(f"states are {obs.dtype}{list(obs.shape)}; float32 [episodes, steps, d] is needed")
        lengths = np.asarray(data.length)
        real = np.arange(obs.shape[1]) < lengths[:, None]
        if returns:
            reward = np.where(real, np.asarray(data.reward), 0)
            ahead = np.cumsum(reward[:, ::-1], axis=1, dtype=np.float64)[:, ::-1]
            following = np.concatenate([ahead[:, 1:], np.zeros((len(ahead), 1))], axis=1)
            obs, after = (
                np.concatenate([x, total[..., None].astype(np.float32)], axis=-1)
                for x, total in ((obs, ahead), (after, following))
            )
        last = after[np.arange(len(lengths)), lengths - 1]
        first = np.cumsum(lengths + 1) - (lengths + 1)
        states = np.empty((int(lengths.sum()) + len(lengths), obs.shape[2]), np.float32)
        ends = first + lengths
        inner = np.ones(len(states), bool)
        inner[ends] = False
        states[inner], states[ends] = obs[real], last
        return Episodes(states, np.asarray(data.action)[real], first, np.cumsum(lengths) - lengths, lengths)

    def take(self, indices: Int[np.ndarray, " N"]) -> Episodes:
        """Some of the episodes, in the same tables."""
        parts = (x[indices] for x in (self.first_state, self.first_action, self.lengths))
        return Episodes(self.states, self.actions, *parts)


@dataclass
class Row:
    """A row as it is written, from left to right."""

    tokenizer: FastTokenizer
    tokens: list[int] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    learn: list[bool] = field(default_factory=list)

    def _append(self, token: int, kind: int, index: int, before: int, learn: bool) -> None:
        self.tokens.append(token)
        self.kind.append(kind)
        self.index.append(index)
        self.before.append(before)
        self.learn.append(learn)

    def text(self, text: str, *, learn: bool = False, end: bool = False) -> Row:
        """A piece of text, tokenized on its own; before the first comes what the tokenizer puts before a text.

        **Arguments:** `end`, whether a text of the model ends here."""
        tokens = self.tokenizer.encode(text) if self.tokens else self.tokenizer.encode_start(text)
        if end:
            tokens = [*tokens, self.tokenizer.end_id]
        for token in tokens:
            self._append(token, TOKEN, 0, 0, learn)
        return self

    def state(self, index: int, *, before: int = -1) -> Row:
        """A state; it is learned if `before`, an earlier state of the row, is given."""
        self._append(0, STATE, index, max(before, 0), before >= 0)
        return self

    def action(self, index: int, *, learn: bool = False) -> Row:
        self._append(0, ACTION, index, 0, learn)
        return self


def rollout(row: Row, episodes: Episodes, e: int, text: str) -> Row:
    """The instruction, then states and actions; the first state is given, everything after it is learned."""
    s, a = int(episodes.first_state[e]), int(episodes.first_action[e])
    row.text(ROLLOUT.format(text)).state(s)
    for t in range(int(episodes.lengths[e])):
        row.action(a + t, learn=True).state(s + t + 1, before=s + t)
    return row


def dynamics(row: Row, episodes: Episodes, e: int, step: int) -> Row:
    """One step: a state, an action, the next state."""
    s, a = int(episodes.first_state[e]) + step, int(episodes.first_action[e]) + step
    row.text(DYNAMICS[0]).state(s).text(DYNAMICS[1]).action(a).text(DYNAMICS[2])
    return row.state(s + 1, before=s)


def consequence(row: Row, episodes: Episodes, e: int, text: str) -> Row:
    """The first state and the instruction, then the last state."""
    s = int(episodes.first_state[e])
    row.text(CONSEQUENCE[0].format(text)).state(s).text(CONSEQUENCE[1])
    return row.state(s + int(episodes.lengths[e]), before=s)


def question(row: Row, episodes: Episodes, e: int) -> Row:
    """The trajectory, up to where its instruction would begin."""
    s, a = int(episodes.first_state[e]), int(episodes.first_action[e])
    row.text(EXPLANATION[0]).state(s)
    for t in range(int(episodes.lengths[e])):
        row.action(a + t).state(s + t + 1)
    return row.text(EXPLANATION[1])


def explanation(row: Row, episodes: Episodes, e: int, text: str) -> Row:
    """The trajectory, then the instruction, which is learned."""
    return question(row, episodes, e).text(EXPLANATION[2].format(text), learn=True, end=True)


def write(
    episodes: Episodes,
    texts: Sequence[Sequence[str]],
    tokenizer: FastTokenizer,
    rng: np.random.Generator,
    *,
    patterns: Iterable[str] = PATTERNS,
    copies: int = 1,
) -> list[Row]:
    """The rows of all episodes, each in all patterns.

    **Arguments:** `texts`, for each episode the wordings of its instruction; `rng`, draws a wording for each row, and
    the step of `dynamics`; `copies`, how often each pair of episode and pattern occurs, with other draws.
    """
    writers = {"rollout": rollout, "consequence": consequence, "explanation": explanation}
    rows = []
    for _ in range(copies):
        for e, wordings in enumerate(texts):
            for pattern in patterns:
                row, text = Row(tokenizer), wordings[int(rng.integers(len(wordings)))]
                if pattern == "dynamics":
                    rows.append(dynamics(row, episodes, e, int(rng.integers(episodes.lengths[e]))))
                else:
                    rows.append(writers[pattern](row, episodes, e, text))
    return rows


@struct.dataclass
class Rows:
    """`N` rows of `S` positions, each with one or several examples."""

    tokens: Any
    """int32 `[N, S]`; 0 where there is no token."""
    kind: Any
    """int8 `[N, S]`, the kind of each position."""
    index: Any
    """int32 `[N, S]`, the state or action at a place."""
    before: Any
    """int32 `[N, S]`, the state from which that of a position is learned."""
    learn: Any
    """bool `[N, S]`, whether the place's content is a target."""
    positions: Any
    """int32 `[N, S]`, from 0 in every example; -1 at padding."""
    segments: Any
    """int32 `[N, S]`, the example of a place, from 1; 0 at padding."""
    spoken: Any
    """int32 `[N, K]`, the positions before tokens that are targets; -1: none. (Checkpoints have the name.)"""


NAMES = ("tokens", "kind", "index", "before", "learn")


def pack(rows: Sequence[Row], length: int = 0) -> Rows:
    """Rows of one length, each with as many examples as fit.

    **Arguments:** `length`; 0: each example has a row, as long as the longest.
    **Raises:** `DataError` if there is none, or one is longer.
    """
    if not rows:
        raise DataError("there is no row: the data have no episode")
    sizes = [len(row.tokens) for row in rows]
    if length and max(sizes) > length:
        raise DataError(
            f"an episode with its instruction takes {max(sizes)} places, and a row has {length}: make rows longer "
            "(--length)"
        )
    filled = best_fit(sizes, length) if length else [[i] for i in range(len(rows))]
    shape = (len(filled), length or max(sizes))
    table = {name: np.zeros(shape, np.int32) for name in ("tokens", "index", "before", "segments")}
    table |= {
        "kind": np.zeros(shape, np.int8),
        "learn": np.zeros(shape, bool),
        "positions": np.full(shape, -1, np.int32),
    }
    for r, chosen in enumerate(filled):
        start = 0
        for segment, i in enumerate(chosen, 1):
            span = slice(start, start + sizes[i])
            for name in NAMES:
                table[name][r, span] = getattr(rows[i], name)
            table["learn"][r, start] = False
            table["positions"][r, span], table["segments"][r, span] = np.arange(sizes[i]), segment
            start += sizes[i]
    text_targets = (table["kind"] == TOKEN) & table["learn"]
    target_positions = np.full((len(filled), max(1, int(text_targets.sum(1).max()))), -1, np.int32)
    for r, row in enumerate(text_targets):
        before = np.flatnonzero(row) - 1
        target_positions[r, : len(before)] = before
    return Rows(**table, spoken=target_positions)


def rollout_prompts(
    texts: Sequence[str], tokenizer: FastTokenizer, length: int = 0
) -> tuple[Int[np.ndarray, "B P"], Int[np.ndarray, " B"]]:
    """The beginnings of `rollout` for instructions, padded on the right.

    **Arguments:** `length`, of a row; 0: that of the longest. **Returns:** tokens and their numbers.
    """
    encoded = [tokenizer.encode_start(ROLLOUT.format(text)) for text in texts]
    lengths = np.array([len(tokens) for tokens in encoded], np.int32)
    width = length or int(lengths.max())
    if lengths.max() > width:
        raise DataError(f"an instruction takes {int(lengths.max())} places, and there are {width}")
    tokens = np.zeros((len(texts), width), np.int32)
    for i, row in enumerate(encoded):
        tokens[i, : len(row)] = row
    return tokens, lengths
