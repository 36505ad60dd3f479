"""The tokens of conversations and what happened at them: what play writes and learners read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


NOTHING, WORLD, REPLY, REREAD = 0, 1, 2, 3
"""Who wrote a token: none (padding), the environment, the policy, or the policy in an earlier text: with `reprompt`, of
a reply that a prompt repeats."""


@struct.dataclass
class Record:
    """The tokens of each row and what happened at them; leaves `[N, L]`, padded on the right."""

    token: Int[Array, "N L"]
    role: Int[Array, "N L"]
    """int8: `NOTHING`, `WORLD`, `REPLY` or `REREAD`."""
    begins: Bool[Array, "N L"]
    """Whether a text begins here: earlier tokens are not seen, and positions count from here."""
    log_prob: Float[Array, "N L"]
    """Of a reply's token, under the policy that wrote it; 0 elsewhere."""
    free: Bool[Array, "N L"]
    """Whether a reply's token was one of several that were offered."""
    state: Int[Array, "N L"]
    """int32, the reply automaton's state before a reply's token."""
    left: Int[Array, "N L"]
    """int32, tokens that the reply might still have, this one included."""
    value: Float[Array, "N L"]
    """The critic's after this token, where it is used (`Values`); 0 elsewhere."""
    decides: Bool[Array, "N L"]
    """Whether a reply begins behind this token, the last one of an observation."""
    bootstraps: Bool[Array, "N L"]
    """Whether this is the last token of the observation that a time-out ended with: its value continues the return."""
    acts: Bool[Array, "N L"]
    """Whether a reply ends with this token."""
    reward: Float[Array, "N L"]
    """Where a reply ends: the reward of its action."""
    valid: Bool[Array, "N L"]
    """Where a reply ends: whether it named an action."""
    terminated: Bool[Array, "N L"]
    """Where a reply ends: whether its action ended the episode, but for time-outs."""
    learned: Bool[Array, "N L"]
    """Where a reply begins: whether a learner has used it."""

    @staticmethod
    def empty(rows: int, length: int) -> Record:
        """`length` places without tokens."""
        kinds = {"token": jnp.int32, "role": jnp.int8, "state": jnp.int32, "left": jnp.int32}
        kinds |= dict.fromkeys(("log_prob", "value", "reward"), jnp.float32)
        names = Record.__dataclass_fields__
        return Record(**{name: jnp.zeros((rows, length), kinds.get(name, bool)) for name in names})

    def take(self, index: Int[Array, "N M"]) -> Record:
        """The tokens at indices of each row; none where an index is negative or beyond the end."""
        length = self.token.shape[1]
        if not length:
            return Record.empty(*index.shape)
        inside = (index >= 0) & (index < length)

        def pick(x):
            picked = jnp.take_along_axis(x, jnp.clip(index, 0, length - 1), axis=1)
            return jnp.where(inside, picked, jnp.zeros((), x.dtype))

        return jax.tree.map(pick, self)

    def after(self, other: Record, length: Int[Array, " N"]) -> Record:
        """Rows of `length` tokens of `other`, and these behind them without a gap; `[N, L + L']`."""
        size = other.token.shape[1]
        places = jnp.arange(size + self.token.shape[1])[None]
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), other, self)
        behind = places >= length[:, None]
        return both.take(jnp.where(behind, places - length[:, None] + size, places))


def last_begin(record: Record) -> Int[Array, " N"]:
    """The index at which each row's last text begins; 0 if none does."""
    return jnp.max(jnp.where(record.begins, jnp.arange(record.token.shape[1]), 0), axis=1, initial=0)


def text_of(record: Record) -> tuple[Int[Array, "N L"], Int[Array, "N L"]]:
    """For each token, the number of its text in the row, from 1, and its position there; 0 and -1 for padding."""
    places = jnp.arange(record.token.shape[1])
    real = record.role != NOTHING
    # a row whose first text began before the record has no mark there
    begins = record.begins.at[:, 0].set(True)
    number = jnp.cumsum(begins, axis=1)
    start = jax.lax.cummax(jnp.where(begins, places, 0), axis=1)
    return jnp.where(real, number, 0), jnp.where(real, places - start, -1)


def carried_over(record: Record, length: Int[Array, " N"], size: int, open_turns: Bool[Array, "N L"]) -> Any:
    """The part of a record from which rows go on: the current text, and from the earliest text on that has a turn which
    is still to be learned from.

    **Arguments:** `length`, tokens of each row; `size`, places of the result; `open_turns`, where such turns begin
    (`decides`).
    **Returns:** the record `[N, size]`, and the number of its tokens."""
    places = jnp.arange(record.token.shape[1])
    begin = jax.lax.cummax(jnp.where(record.begins, places, 0), axis=1)
    needed = jnp.min(jnp.where(open_turns, begin, record.token.shape[1]), axis=1)
    start = jnp.minimum(last_begin(record), needed)
    index = start[:, None] + jnp.arange(size)
    count = length - start
    return record.take(jnp.where(index < length[:, None], index, -1)), count
