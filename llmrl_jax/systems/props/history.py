"""What was tried and how it went: rows, which of them a prompt shows, and how they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from llmrl_jax.core.checks import at_least


Values = int | float | tuple[float, ...]
Order = Literal["time", "ascending"]
"""time: as they were tried, so that a prompt only ever grows and a server can reuse its prefix. ascending: from the
lowest return to the highest (EvoLLM's least-to-most)."""

_PIECE = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]|_")


def estimate_tokens(text: str) -> int:
    """About how many tokens a text has: one per word, group of three digits, and mark.

    A parameter of a history row comes out at the 9 tokens of the props reference, section 9. Give a tokenizer's own
    count where the limit is a hard one."""
    return sum(1 for _ in _PIECE.finditer(text))


@dataclass(frozen=True)
class Transition:
    """One step of an episode."""

    state: Values
    action: Values
    reward: float


Trajectory = tuple[Transition, ...]
"""An episode, from its first step on."""


@dataclass(frozen=True)
class Row:
    """A policy that was evaluated."""

    params: tuple[float, ...]
    value: float
    """Its mean return."""
    trajectory: Trajectory | None = None
    """One of the episodes, for prompts that show them."""


@dataclass(frozen=True)
class Grid:
    """EvoLLM's numbers: the box, cut into `resolution` equal steps, and each parameter written as an integer."""

    low: float
    high: float
    resolution: int = 1000
    """The integers go from 0 to this."""

    def __post_init__(self):
        if not self.low < self.high or not 1 <= self.resolution <= 99_999:  # five digits are written
            raise ValueError(
                f"a grid of {self.resolution} steps from {self.low} to {self.high} cannot be; it needs low < high and "
                "1 to 99999 steps"
            )

    def encode(self, params: Sequence[float]) -> tuple[int, ...]:
        """The nearest integers; a parameter beyond the box becomes its bound."""
        share = (np.asarray(params, np.float64) - self.low) / (self.high - self.low)
        return tuple(int(v) for v in np.rint(np.clip(share, 0.0, 1.0) * self.resolution))

    def decode(self, integers: Sequence[float]) -> tuple[float, ...]:
        """The parameters that integers stand for."""
        share = np.asarray(integers, np.float64) / self.resolution
        return tuple(float(v) for v in self.low + share * (self.high - self.low))


@dataclass(frozen=True)
class Format:
    """How numbers are written; as published by default."""

    digits: int = 5
    """Significant digits of a parameter (`%.5g`)."""
    value_decimals: int = 2
    """Of a return."""
    grid: Grid | None = None
    """Writes integers where given."""

    def number(self, value: float) -> str:
        """One parameter; minus zero is zero."""
        return f"{float(value) + 0.0:.{self.digits}g}"

    def texts(self, params: Sequence[float]) -> tuple[str, ...]:
        """The parameters, each as it is written. Two policies that a prompt cannot tell apart have the same."""
        return tuple(map(self.number, self.grid.encode(params) if self.grid else params))

    def params(self, params: Sequence[float]) -> str:
        """`params[0]: v; params[1]: v; ...`."""
        return "; ".join(f"params[{i}]: {text}" for i, text in enumerate(self.texts(params)))

    def value(self, value: float) -> str:
        """A return."""
        return f"{value:.{self.value_decimals}f}"

    def row(self, row: Row) -> str:
        """`params[0]: v; ...; f(params): r`, the published row (props reference, section 2)."""
        return f"{self.params(row.params)}; f(params): {self.value(row.value)}"


def render_rows(trajectory: Trajectory) -> list[str]:
    """The steps, each as `state | action | reward`."""
    return [" | ".join(_values(v) for v in (step.state, step.action, step.reward)) for step in trajectory]


def render_trajectory(trajectory: Trajectory, longest: int) -> str:
    """An episode as lines under a heading, cut after `longest` steps, which is then said."""
    lines = ["state | action | reward", *render_rows(trajectory[:longest])]
    if len(trajectory) > longest:
        lines.append(f"({len(trajectory) - longest} more steps)")
    return "\n".join(lines)


def _values(values: Values) -> str:
    return ", ".join(f"{float(v):.5g}" for v in (values if isinstance(values, tuple) else (values,)))


@dataclass(frozen=True)
class HistoryView:
    """Which rows a prompt shows, and in which order. As it is made, all of them as they were tried.

    `last` and `top` add up: with both, a prompt shows the best rows and the most recent ones.
    """

    last: int | None = None
    """Only the most recent rows, this many."""
    top: int | None = None
    """Only the rows with the highest returns, this many."""
    order: Order = "time"
    tokens: int | None = None
    """The most tokens that the rows may take: of those chosen the oldest are left out, but never the best."""
    trajectory_steps: int | None = None
    """Show an episode beneath each row that has one, this many steps at most; 0: none. None: as published, 200 for
    ProPS+ on a table, and none elsewhere."""

    def __post_init__(self):
        for name, least in (("last", 0), ("top", 0), ("tokens", 1), ("trajectory_steps", 0)):
            if getattr(self, name) is not None:
                at_least(f"history.{name}", getattr(self, name), least)
        if (self.last, self.top) in ((0, 0), (0, None), (None, 0)):
            raise ValueError(f"last is {self.last} and top is {self.top}, which shows nothing; let one be 1 or more")
        if self.order not in get_args(Order):
            raise ValueError(f"order is {self.order!r}; it is one of {', '.join(get_args(Order))}")

    def select(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that are shown, before any limit of tokens. Among equal returns the later row is the better."""
        chosen = set(range(len(rows)))
        ranked = sorted(chosen, key=lambda i: (rows[i].value, i))
        if self.last is not None or self.top is not None:
            recent, best = self.last or 0, self.top or 0
            chosen = {*range(max(0, len(rows) - recent), len(rows)), *ranked[max(0, len(rows) - best) :]}
        return [rows[i] for i in (ranked if self.order == "ascending" else range(len(rows))) if i in chosen]

    def render(self, rows: Sequence[Row], form: Format, count: Callable[[str], int] = estimate_tokens) -> str:
        """The history block of a prompt, a line per row and its episode below; empty without rows.

        **Arguments:** `rows`, in the order in which they were tried; `form`; `count`, of tokens.
        **Raises:** `ValueError` where not even the best of the rows that are shown fits into `tokens`.
        """
        shown = self.select(rows)
        texts = {id(row): self._row(row, form) for row in shown}
        if self.tokens is not None and shown:
            best = max(enumerate(shown), key=lambda pair: (pair[1].value, pair[0]))[1]
            sizes = {id(row): count(texts[id(row)] + "\n") for row in shown}
            left = sum(sizes.values())
            for row in rows:  # the oldest first
                if left <= self.tokens:
                    break
                if id(row) in texts and row is not best:
                    del texts[id(row)]
                    left -= sizes[id(row)]
            if left > self.tokens:
                raise ValueError(
                    f"the best row alone takes {left} tokens and the history may take {self.tokens}; raise tokens, or "
                    "lower trajectory_steps"
                )
        return "\n".join(texts[id(row)] for row in shown if id(row) in texts)

    def _row(self, row: Row, form: Format) -> str:
        if not self.trajectory_steps or row.trajectory is None:
            return form.row(row)
        return f"{form.row(row)}\n{render_trajectory(row.trajectory, self.trajectory_steps)}"
