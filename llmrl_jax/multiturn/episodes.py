"""More episodes than rows: where one has ended, the next one begins, so that few rows wait for the longest."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int


def gather(x: jax.Array, index: Int[Array, "G K"]) -> jax.Array:
    """Entries of `x`, `[G S, ...]`, by their numbers within each of the groups; `[G K, ...]`."""
    groups = x.reshape(len(index), -1, *x.shape[1:])
    taken = jnp.take_along_axis(groups, index.reshape(*index.shape, *(1,) * (x.ndim - 1)), axis=1)
    return taken.reshape(-1, *x.shape[1:])


@struct.dataclass
class Episodes:
    """`E` episodes, which `N` rows play. Of both there are `G` groups of successive ones; the rows of a group play its
    episodes, in order, and no row waits while one of them has not begun."""

    obs: Any
    """The observations with which episodes begin, leaves `[E, ...]`."""
    env: Any
    """The environments' states, leaves `[E, ...]`."""
    number: Int[Array, "G R"]
    """The episode that each row of a group plays, or played last: its number in the group."""

    @staticmethod
    def first(obs: Any, env: Any, groups: int, rows: int) -> Episodes:
        """The rows of each group begin with its first episodes."""
        return Episodes(obs, env, jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (groups, rows)))

    @property
    def each(self) -> int:
        """The episodes of a group."""
        return len(jax.tree.leaves(self.obs)[0]) // len(self.number)

    @property
    def index(self) -> Int[Array, " N"]:
        """The episode of each row, from 0 to `E - 1`."""
        return (self.number + jnp.arange(len(self.number))[:, None] * self.each).reshape(-1)

    def beginning(self) -> tuple[Any, Any]:
        """The first observations, and the states, of the rows' episodes; leaves `[N, ...]`."""
        return jax.tree.map(lambda x: gather(x, self.number), (self.obs, self.env))

    def at_rows(self, x: Array) -> Array:
        """`x`, `[E, ...]`, of the episodes that the rows play, `[N, ...]`."""
        return gather(x, self.number)

    def by_episode(self, x: Array) -> tuple[Array, Bool[Array, " E"]]:
        """`x`, `[N, ...]`, of the row that plays each episode, `[E, ...]`, and whether one plays it, or did last."""
        plays = self.number[:, None] == jnp.arange(self.each)[:, None]
        return gather(x, jnp.argmax(plays, axis=2)), jnp.any(plays, axis=2).reshape(-1)

    def next(self, ended: Bool[Array, " N"]) -> tuple[Bool[Array, " N"], Episodes]:
        """The episodes of the rows after some have ended. **Returns:** the rows that begin one, and all episodes."""
        by_group = ended.reshape(self.number.shape)
        number = jnp.max(self.number, axis=1, keepdims=True) + jnp.cumsum(by_group, axis=1)
        begins = by_group & (number < self.each)
        return begins.reshape(-1), self.replace(number=jnp.where(begins, number, self.number))
