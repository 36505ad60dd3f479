"""A replay memory on the device: a ring of items, written in order and sampled uniformly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class Ring:
    """What a memory holds; part of a learner's state, and so of its checkpoints."""

    items: Any
    """Leaves `[capacity, ...]`; those from `size` on are zeros."""
    next: jax.Array
    """int32 `[]`, where the next item goes."""
    size: jax.Array
    """int32 `[]`, items held, at most the capacity."""


@dataclass(frozen=True)
class Replay:
    """The pure functions of a memory of `capacity` items: any pytree of arrays, the newest in place of the oldest."""

    capacity: int
    """Items held at most. Room for all is taken at once."""

    def __post_init__(self):
        if self.capacity < 1:
            raise ValueError(f"the replay memory has a capacity of {self.capacity}; at least 1 is needed")

    def init(self, item: Any) -> Ring:
        """An empty memory.

        **Arguments:** `item`, one item, for the shapes and dtypes of its leaves (arrays or `jax.ShapeDtypeStruct`).
        """
        items = jax.tree.map(lambda x: jnp.zeros((self.capacity, *x.shape), x.dtype), item)
        return Ring(items, jnp.int32(0), jnp.int32(0))

    def add(self, ring: Ring, items: Any) -> Ring:
        """The memory with `N` more items, in their order.

        **Arguments:** `items`, leaves `[N, ...]` of the shapes and dtypes that `init` saw.
        **Raises:** `ValueError` for other shapes or dtypes, or for more items at once than the capacity.
        """
        count = jax.tree.leaves(items)[0].shape[0]
        if count > self.capacity:
            raise ValueError(f"{count} items at once do not fit a replay memory of {self.capacity}: raise its capacity")
        place = (ring.next + jnp.arange(count)) % self.capacity

        def write(old, new):
            if new.shape != (count, *old.shape[1:]) or new.dtype != old.dtype:
                raise ValueError(
                    f"items of {new.dtype}{list(new.shape)} were added to a replay memory of "
                    f"{old.dtype}{list(old.shape)}; {old.dtype}{[count, *old.shape[1:]]} is needed"
                )
            return old.at[place].set(new, mode="promise_in_bounds", unique_indices=True)

        return Ring(
            items=jax.tree.map(write, ring.items, items),
            next=(ring.next + count) % self.capacity,
            size=jnp.minimum(ring.size + count, self.capacity),
        )

    def sample(self, ring: Ring, key: jax.Array, batch_size: int) -> Any:
        """Items drawn uniformly and independently, so that one may come twice: leaves `[batch_size, ...]`.

        An empty memory gives zeros: add before you sample.
        """
        index = jax.random.randint(key, (batch_size,), 0, jnp.maximum(ring.size, 1))
        return jax.tree.map(lambda x: x.at[index].get(mode="promise_in_bounds"), ring.items)
