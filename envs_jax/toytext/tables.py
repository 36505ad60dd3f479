"""Tabular environments: for every state and action a list of outcomes with probability, reward and termination."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from envs_jax import spaces
from envs_jax.checks import between
from envs_jax.env import Environment


NO_LIMIT = 2**31 - 1
"""The time limit of an environment that Gymnasium registers without one: never reached."""

Outcome = tuple[float, int, float, bool]
"""Probability, next state, reward, terminated: the tuples of Gymnasium's `env.P[state][action]`."""


@dataclass(frozen=True)
class Table:
    """A finite Markov decision process: `S` states, `A` actions, at most `K` outcomes of each action.

    Rows with fewer outcomes are padded with others of probability 0.
    """

    prob: np.ndarray
    """float64 `[S, A, K]`."""
    successor: np.ndarray
    """int32 `[S, A, K]`, the state that an outcome leads to."""
    reward: np.ndarray
    """float64 `[S, A, K]`."""
    terminated: np.ndarray
    """bool `[S, A, K]`."""
    count: np.ndarray
    """int32 `[S, A]`, the number of outcomes that are not padding."""


def tabulate(num_states: int, num_actions: int, outcomes: Callable[[int, int], Sequence[Outcome]]) -> Table:
    """The table of the process with the given `outcomes(state, action)`, in Gymnasium's format."""
    listed = [[outcomes(s, a) for a in range(num_actions)] for s in range(num_states)]
    count = np.array([[len(branches) for branches in row] for row in listed], np.int32)
    filled = np.zeros((num_states, num_actions, count.max(), 4))
    for (s, a), n in np.ndenumerate(count):
        filled[s, a, :n] = listed[s][a]
        filled[s, a, n:, 1] = s
    return Table(
        prob=filled[..., 0],
        successor=filled[..., 1].astype(np.int32),
        reward=filled[..., 2],
        terminated=filled[..., 3].astype(bool),
        count=count,
    )


@struct.dataclass
class ToyTextParams:
    """Parameters that may differ between the rows of one compiled program."""

    max_steps: Any = NO_LIMIT
    """Steps until truncation."""


@struct.dataclass
class ToyTextState:
    """The current state, as a row of the table, and the step count."""

    index: jax.Array
    """int32 `[]`, the state's row of the table."""
    time: jax.Array
    """int32 `[]`, steps since the reset."""


def neighbor(cell: int, move: tuple[int, int], shape: tuple[int, int]) -> int:
    """The cell (row-major index) that a move of `(rows, columns)` leads to; the edge of the board stops it."""
    row, column = divmod(cell, shape[1])
    row = min(max(row + move[0], 0), shape[0] - 1)
    return row * shape[1] + min(max(column + move[1], 0), shape[1] - 1)


class TabularEnvironment(Environment[ToyTextState, ToyTextParams]):
    """An environment given by its table. Episodes start in a random one of `starts`; `info["prob"]` is the outcome's
    probability (float32 `[]`), as in Gymnasium."""

    names: tuple[str, ...]
    """Names of the actions, in order."""
    reference: str
    """Name of the class that `import_state` reads."""

    def __init__(
        self, table: Table, starts: Sequence[int], max_steps: int = NO_LIMIT, observations: np.ndarray | None = None
    ):
        """**Arguments:** `table`; `starts`, initial states, drawn uniformly (a state may be listed repeatedly);
        `max_steps`, the default time limit; `observations`, int32 `[S, ...]`, the observation of each state (default:
        its index)."""
        between("max_steps", max_steps, 1, NO_LIMIT)
        self.table, self.max_steps = table, max_steps
        self._verified: dict[int, Any] = {}
        """The reference's outcomes that were last found to be those of the rows from one on."""
        self.starts = np.asarray(starts, np.int32)
        size, self.num_actions, width = table.prob.shape
        self.observations = np.arange(size, dtype=np.int32) if observations is None else observations
        self._sees_all = observations is None
        # The chosen outcome is the number of thresholds that a uniform number has reached: the last outcome takes the
        # rest, and padding cannot be reached. All data for a step is in one row, so that it needs one gather.
        threshold = np.cumsum(table.prob, axis=-1)
        threshold[np.arange(width) >= table.count[..., None] - 1] = np.inf
        columns = (threshold, table.successor, table.reward, table.terminated, table.prob)
        self._rows = np.stack(columns, axis=-1).reshape(size * self.num_actions, width, 5).astype(np.float32)

    @property
    def initial(self) -> np.ndarray:
        """The distribution of first states: float64 `[S]`."""
        return np.bincount(self.starts, minlength=len(self.table.prob)) / len(self.starts)

    @functools.cached_property
    def ends(self) -> bool:
        """Return whether every episode ends without a time limit: no sequence of actions leads back to a state."""
        table = self.table
        last = table.terminated | (np.arange(table.prob.shape[-1]) >= table.count[..., None])
        ends = np.zeros(len(table.prob), bool)
        while (more := np.all(last | ends[table.successor], axis=(1, 2))).sum() > ends.sum():
            ends = more
        return bool(ends[self.starts].all())

    @property
    def default_params(self):
        return ToyTextParams(max_steps=self.max_steps)

    def _observe(self, index: jax.Array) -> jax.Array:
        return index if self._sees_all else jnp.asarray(self.observations)[index]

    def reset(self, key, params):
        index = jnp.int32(self.starts[0])
        if len(self.starts) > 1:
            index = jnp.asarray(self.starts)[jax.random.randint(key, (), 0, len(self.starts), jnp.int32)]
        return self._observe(index), ToyTextState(index, jnp.int32(0))

    def step(self, key, state, action, params):
        chance = self._rows.shape[1] > 1
        uniform = jax.random.uniform(key, (), jnp.float32) if chance else jnp.float32(0)
        return self.advance(uniform, state, action, params)

    def advance(self, uniform: jax.Array, state: ToyTextState, action: jax.Array, params: ToyTextParams):
        """`step` with a given random number: `uniform`, float32 `[]` in [0, 1), picks the outcome by the cumulative
        probabilities, as Gymnasium's `categorical_sample` does."""
        index = state.index * self.num_actions + action.astype(jnp.int32)
        row = jnp.take(jnp.asarray(self._rows), index, axis=0, mode="clip")
        chosen = jnp.sum(uniform >= row[:, 0], dtype=jnp.int32)
        picked = jnp.arange(len(row), dtype=jnp.int32) == chosen
        successor, reward, terminated, prob = jnp.where(picked[:, None], row[:, 1:], 0.0).sum(0)
        state = ToyTextState(successor.astype(jnp.int32), state.time + 1)
        truncated = state.time >= params.max_steps
        return self._observe(state.index), state, reward, terminated > 0, truncated, {"prob": prob}

    def observation_space(self, params):
        return spaces.Discrete(int(self.observations.max()) + 1)

    def action_space(self, params):
        return spaces.Discrete(self.num_actions)

    @property
    def action_names(self):
        return self.names

    def read(self, inner: Any) -> int:
        """The row of the table for a live reference environment, unwrapped.

        **Raises:** `ValueError` before its first reset, and if its options make it another environment.
        """
        if getattr(inner, "s", None) is None:
            raise ValueError(f"the {self.reference} has no state yet; call its reset first")
        first = self._first_row(inner)
        self._check_outcomes(inner.P, first)
        return first + int(inner.s)

    def _first_row(self, inner: Any) -> int:
        """The row of the table for the reference's state 0. **Raises:** `ValueError` if there is none."""
        return 0

    def _check_outcomes(self, outcomes: Mapping[int, Mapping[int, Any]], first: int) -> None:
        """**Raises** `ValueError` if the reference's outcomes are not those of the rows from `first` on."""
        if self._verified.get(first) is outcomes:
            return
        table = self.table
        fields = table.prob, table.successor - first, table.reward, table.terminated
        for state, of_actions in outcomes.items():
            for action, theirs in of_actions.items():
                n, row = len(theirs), (first + state, action)
                ours = np.array([field[row][:n] for field in fields])
                if n != table.count[row] or not np.array_equal(ours, np.transpose(theirs)):
                    raise ValueError(
                        f"the {self.reference} has other outcomes of action {action} in state {state} than {self.id}: "
                        f"{theirs}; make both with the same options"
                    )
        self._verified[first] = outcomes
