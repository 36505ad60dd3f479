"""Spaces: what an observation or an action may be, in Gymnasium's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Space:
    """A set of arrays (or of dicts of arrays) that can be sampled and tested for membership."""

    def sample(self, key: jax.Array) -> Any:
        """A uniform member, for a typed PRNG `key`."""
        raise NotImplementedError

    def contains(self, x: Any) -> bool:
        """Return whether `x` is a member: shape, dtype and bounds. On the host."""
        raise NotImplementedError


def _numbers(bound: Any, shape: tuple[int, ...]) -> Any:
    """A bound as an array of a shape: of NumPy, unless it is traced, as bounds that depend on traced parameters are."""
    xp: Any = jnp if isinstance(bound, jax.core.Tracer) else np
    return xp.broadcast_to(xp.asarray(bound), shape)


def bounds(*numbers: Any) -> Any:
    """The bounds of several entries, float32 `[N]`: of NumPy, unless one is traced, as a traced parameter is."""
    if any(isinstance(x, jax.core.Tracer) for x in numbers):
        return jnp.stack([jnp.asarray(x, jnp.float32) for x in numbers])
    return np.array(numbers, np.float32)


@dataclass(frozen=True)
class Discrete(Space):
    """The integers `0 .. n - 1`, as an int32 scalar."""

    n: int
    dtype: Any = np.int32

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def sample(self, key):
        return jax.random.randint(key, (), 0, self.n, dtype=self.dtype)

    def contains(self, x):
        x = np.asarray(x)
        return x.shape == () and np.issubdtype(x.dtype, np.integer) and 0 <= int(x) < self.n


@dataclass(frozen=True)
class Box(Space):
    """Arrays of one shape and dtype between `low` and `high` (scalars or arrays, both inclusive)."""

    low: Any
    high: Any
    shape: tuple[int, ...]
    dtype: Any = np.float32

    def sample(self, key):
        low, high = (_numbers(b, self.shape) for b in (self.low, self.high))
        if np.issubdtype(np.dtype(self.dtype), np.integer):
            low, high = (jnp.asarray(b.astype(np.int32)).astype(jnp.uint32) for b in (low, high))  # modulo 2^32
            count = high - low + 1  # 0 where all numbers are members
            draw = jax.random.randint(key, self.shape, 0, count, jnp.uint32)
            bits = jax.random.bits(key, self.shape, jnp.uint32)
            number = low + jnp.where(count == 0, bits, draw)
            signed = np.issubdtype(np.dtype(self.dtype), np.signedinteger)
            return (number.astype(jnp.int32) if signed else number).astype(self.dtype)
        if np.dtype(self.dtype) == np.bool_:
            return jax.random.bernoulli(key, jnp.float32(0.5), self.shape)
        xp: Any = jnp if isinstance(low, jax.Array) or isinstance(high, jax.Array) else np
        finite = xp.isfinite(low) & xp.isfinite(high)
        uniform = jax.random.uniform(key, self.shape, jnp.float32)
        normal = jax.random.normal(jax.random.fold_in(key, 1), self.shape, jnp.float32)
        low_, high_ = xp.where(finite, low, 0.0), xp.where(finite, high, 1.0)
        low, high, start, width = (x.astype(np.float32) for x in (low, high, low_, high_ - low_))
        return jnp.where(finite, start + uniform * width, jnp.clip(normal, low, high)).astype(self.dtype)

    def contains(self, x):
        x = np.asarray(x)
        return bool(
            x.shape == tuple(self.shape)
            and x.dtype == np.dtype(self.dtype)
            and np.all(x >= self.low)
            and np.all(x <= self.high)
        )


@dataclass(frozen=True)
class Dict(Space):
    """A dict of spaces, under fixed keys."""

    spaces: Mapping[str, Space]

    def sample(self, key):
        names = sorted(self.spaces)
        return {name: self.spaces[name].sample(k) for name, k in zip(names, jax.random.split(key, len(names)))}

    def contains(self, x):
        return (
            isinstance(x, Mapping)
            and set(x) == set(self.spaces)
            and all(space.contains(x[name]) for name, space in self.spaces.items())
        )


def stack(space: Space, n: int) -> Space:
    """The space of `n` members of `space` stacked on a new leading axis."""
    if isinstance(space, Dict):
        return Dict({name: stack(inner, n) for name, inner in space.spaces.items()})
    if isinstance(space, Discrete):
        return Box(0, space.n - 1, (n,), space.dtype)
    if isinstance(space, Box):
        shape = (n, *space.shape)
        low, high = (_numbers(_numbers(b, space.shape), shape) for b in (space.low, space.high))
        return Box(low, high, shape, space.dtype)
    raise TypeError(f"cannot stack {space!r}")


def join(rows: Sequence[Space]) -> Space:
    """The space of one member of each of `rows` stacked on a new leading axis.

    **Arguments:** `rows`, at least one space; they may differ in their bounds.
    **Raises:** `ValueError` if they differ in anything else.
    """
    parts = [row.spaces for row in rows if isinstance(row, Dict)]
    if len(parts) == len(rows) and all(part.keys() == parts[0].keys() for part in parts):
        return Dict({name: join([part[name] for part in parts]) for name in parts[0]})
    boxes = [box for box in (stack(row, 1) for row in rows) if isinstance(box, Box)]
    if len(boxes) < len(rows) or len({(box.shape, np.dtype(box.dtype)) for box in boxes}) > 1:
        raise ValueError(f"spaces that differ in more than their bounds cannot be joined: {', '.join(map(repr, rows))}")
    lows, highs = ([_numbers(getattr(box, side), box.shape) for box in boxes] for side in ("low", "high"))
    xp: Any = jnp if any(isinstance(b, jax.Array) for b in (*lows, *highs)) else np
    low, high = xp.concatenate(lows), xp.concatenate(highs)
    return Box(low, high, low.shape, boxes[0].dtype)
