"""The history of evaluated policies: rows, their selection for prompts, and their text format."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from llmrl_jax.core.checks import Checked, NonNegativeInt, PositiveInt


Values = int | float | tuple[float, ...]
Order = Literal["time", "ascending"]
"""time: in order of evaluation, so that prompts only grow and a server can reuse the prefix. ascending: by ascending
return (EvoLLM's least-to-most)."""

_PIECE = re.compile(r"[^\W\d_]+|\d{1,3}|[^\w\s]|_")


def estimate_tokens(text: str) -> int:
    """Estimate of the number of tokens of a text: one per word, group of three digits, and punctuation mark.

    A parameter of a history row counts as 9 tokens, as in the props reference, section 9. Use a tokenizer's own count
    for a hard limit."""
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
    """An evaluated policy."""

    params: tuple[float, ...]
    value: float
    """Its mean return."""
    trajectory: Trajectory | None = None
    """One of the episodes, for prompts that show them."""


@dataclass(frozen=True)
class Grid:
    """EvoLLM's number format: the box is divided into `resolution` equal steps, and each parameter written as an
    integer."""

    low: float
    high: float
    resolution: int = 1000
    """The largest integer; the smallest is 0."""

    def __post_init__(self):
        if not self.low < self.high or not 1 <= self.resolution <= 99_999:  # at most five digits are written
            raise ValueError(
                f"a grid of {self.resolution} steps from {self.low} to {self.high} cannot be; it needs low < high and "
                "1 to 99999 steps"
            )

    def encode(self, params: Sequence[float]) -> tuple[int, ...]:
        """The nearest integers; a parameter beyond the box becomes its bound."""
        share = (np.asarray(params, np.float64) - self.low) / (self.high - self.low)
        return tuple(int(v) for v in np.rint(np.clip(share, 0.0, 1.0) * self.resolution))

    def decode(self, integers: Sequence[float]) -> tuple[float, ...]:
        """The parameters represented by integers."""
        share = np.asarray(integers, np.float64) / self.resolution
        return tuple(float(v) for v in self.low + share * (self.high - self.low))


@dataclass(frozen=True)
class Format:
    """Number format; as published by default."""

    digits: int = 5
    """Significant digits of a parameter (`%.5g`)."""
    value_decimals: int = 2
    """Decimals of a return."""
    grid: Grid | None = None
    """If given, parameters are written as integers."""

    def number(self, value: float) -> str:
        """Format one parameter; minus zero becomes zero."""
        return f"{float(value) + 0.0:.{self.digits}g}"

    def texts(self, params: Sequence[float]) -> tuple[str, ...]:
        """The formatted parameters. Equal for two policies that are indistinguishable in a prompt."""
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
    """The steps as lines `state | action | reward`."""
    return [" | ".join(_values(v) for v in (step.state, step.action, step.reward)) for step in trajectory]


def render_trajectory(trajectory: Trajectory, longest: int) -> str:
    """An episode as lines under a heading, truncated after `longest` steps with a note."""
    lines = ["state | action | reward", *render_rows(trajectory[:longest])]
    if len(trajectory) > longest:
        lines.append(f"({len(trajectory) - longest} more steps)")
    return "\n".join(lines)


def _values(values: Values) -> str:
    return ", ".join(f"{float(v):.5g}" for v in (values if isinstance(values, tuple) else (values,)))


@dataclass(frozen=True)
class HistoryView(Checked):
    """Which rows a prompt shows, and in which order. Default: all of them, in order of evaluation.

    `last` and `top` combine: with both, a prompt shows the best rows and the most recent ones.
    """

    PREFIX: ClassVar[str] = "history."

    last: NonNegativeInt | None = None
    """Show only this many of the most recent rows."""
    top: NonNegativeInt | None = None
    """Show only this many of the rows with the highest returns."""
    order: Order = "time"
    tokens: PositiveInt | None = None
    """Maximum number of tokens of the rows: the oldest selected rows are dropped first, but never the best."""
    trajectory_steps: NonNegativeInt | None = None
    """Maximum number of steps of the episode shown below each row that has one; 0: no episodes. None: as published, 200
    for ProPS+ on a table, otherwise no episodes."""

    def __post_init__(self):
        super().__post_init__()
        if (self.last, self.top) in ((0, 0), (0, None), (None, 0)):
            raise ValueError(f"last is {self.last} and top is {self.top}, which shows nothing; let one be 1 or more")

    def select(self, rows: Sequence[Row]) -> list[Row]:
        """The selected rows, before the token limit. Among equal returns the later row ranks higher."""
        chosen = set(range(len(rows)))
        ranked = sorted(chosen, key=lambda i: (rows[i].value, i))
        if self.last is not None or self.top is not None:
            recent, best = self.last or 0, self.top or 0
            chosen = {*range(max(0, len(rows) - recent), len(rows)), *ranked[max(0, len(rows) - best) :]}
        return [rows[i] for i in (ranked if self.order == "ascending" else range(len(rows))) if i in chosen]

    def render(self, rows: Sequence[Row], form: Format, count: Callable[[str], int] = estimate_tokens) -> str:
        """The history block of a prompt, one line per row with its episode below; empty without rows.

        **Arguments:** `rows`, in order of evaluation; `form`; `count`, counts tokens.
        **Raises:** `ValueError` if even the best of the selected rows does not fit into `tokens`.
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
