"""Keys and values of the tokens so far, in arrays of fixed capacity: of prompts (`Cache`, `Prefix`), and of the
continuations that are decoded after them (`DecodeState`); and of texts at different positions (`Slots`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Float, Int

from envs_jax.tracing import platform
from llmrl_jax.kernels.attention import KeyValues
from llmrl_jax.kernels.slots import Tokens, grouped, write_slots
from llmrl_jax.lm.config import LlamaConfig
from llmrl_jax.parallel.partition import mesh_of, on_each_device


UNROLLED = 4
"""Models of up to so many layers are unrolled (in forward passes, unless `Llama.unroll` says otherwise), and decode as
`decodes_per_layer` says."""


def decodes_per_layer(layers: int) -> bool:
    """Return whether a model of so many layers decodes from weights, keys and values in separate arrays for each layer,
    made once before the loop over tokens: the weights are then in memory twice.

    On GPUs every model does. From a stack XLA would copy each weight, key and value before the product that reads it:
    three times the traffic, of which decoding consists. A TPU reads weights inside the stack.
    """
    return layers <= UNROLLED or platform() == "gpu"


def _merges_heads(layers: int, x: jax.Array) -> bool:
    """Return whether a model of so many layers decodes from keys and values with heads side by side, one row a token.

    On TPUs models that decode from a stack do, unless heads are split over devices (those of `x`, keys or values): a
    tile there has 128 columns, of which a head of 64 numbers would fill half, and a slot that is written is a row.
    """
    mesh = mesh_of(x)
    split = mesh is not None and mesh.shape["tensor"] > 1
    return platform() == "tpu" and not decodes_per_layer(layers) and not split


TILE = 16
"""Slots of a tile of a TPU's memory, of 16-bit numbers."""

Layers = Any
"""A stacked array `[L, ...]`, or a tuple with an array for each layer."""
HEADS = ("bkth", "bkht"), ("rkth", "rkht")
_MERGED_HEADS = ("btc", "btc"), ("rtc", "rtc")
"""The axes of the values and keys of prompts, and of those of continuations, in the terms of `KeyValues`."""


@struct.dataclass
class Cache:
    """`T` slots for each of `B` rows. All rows write the same slot; `positions` gives a row's position there."""

    keys: Float[Array, "L B T K h"]
    values: Float[Array, "L B T K h"]
    positions: Int[Array, "B T"]
    """The position of the token in each slot; -1 if there is none (not yet written, or padding)."""
    index: Int[Array, ""]
    """The next slot to write."""

    @staticmethod
    def create(config: LlamaConfig, batch_size: int, capacity: int, dtype: Any = jnp.float32) -> Cache:
        """Empty cache for `capacity` tokens per row, including padding."""
        shape = (config.num_hidden_layers, batch_size, capacity, config.kv_heads, config.size)
        return Cache(
            keys=jnp.zeros(shape, dtype),
            values=jnp.zeros(shape, dtype),
            positions=jnp.full((batch_size, capacity), -1, jnp.int32),
            index=jnp.zeros((), jnp.int32),
        )

    @property
    def capacity(self) -> int:
        """Slots per row, `T`."""
        return self.positions.shape[1]

    def lengths(self) -> Int[Array, "B"]:
        """Position of each row's next token."""
        return self.positions.max(axis=1) + 1

    def append(self, positions: Int[Array | np.ndarray, "B S"]) -> Cache:
        """Cache with `positions` in the next `S` slots; their keys and values are written by `write`.

        Inside jit `index` is not known: who calls it there gives the cache as many slots as are ever written, since
        tokens beyond them would replace the last ones.
        **Raises:** `ValueError` if there are fewer slots left, as far as that is known."""
        size, used = positions.shape[1], 0 if isinstance(self.index, jax.core.Tracer) else int(self.index)
        if used + size > self.capacity:
            raise ValueError(
                f"{size} tokens do not fit into a cache of {self.capacity} slots, of which {used} are in use: make one "
                f"of at least {used + size}"
            )
        updated = jax.lax.dynamic_update_slice(self.positions, jnp.asarray(positions, jnp.int32), (0, self.index))
        return dataclasses.replace(self, positions=updated, index=self.index + size)

    def write(self, pair: Sequence[Array], key: Float[Array, "B S K h"], value: Float[Array, "B S K h"]) -> Any:
        """Keys and values of one layer, a pair `[B, T, K, h]`, with those of new tokens in the next slots."""
        start = (0, self.index, 0, 0)
        return tuple(
            jax.lax.dynamic_update_slice(old, new.astype(old.dtype), start)
            for old, new in zip(pair, (key, value), strict=True)
        )


@struct.dataclass
class Prefix:
    """The tokens before all prompts of a batch, with their keys and values: once, not once per row."""

    tokens: Int[Array, "P"]
    keys: Float[Array, "L K P h"]
    values: Float[Array, "L K P h"]

    @staticmethod
    def create(tokens: Int[Array | np.ndarray, "P"], cache: Cache) -> Prefix:
        """**Arguments:** `tokens`; `cache`, of one row with these tokens and no other slots."""
        keys, values = (x[:, 0].swapaxes(1, 2) for x in (cache.keys, cache.values))
        return Prefix(jnp.asarray(tokens, jnp.int32), keys, values)

    @property
    def size(self) -> int:
        """Tokens, `P`."""
        return self.tokens.shape[0]


class _Decoded:
    """Keys and values in one of the forms from which tokens are decoded."""

    keys: Layers

    @property
    def per_layer(self) -> bool:
        """Return whether there is an array for each layer."""
        return isinstance(self.keys, tuple)

    @property
    def merged(self) -> bool:
        """Return whether heads lie side by side."""
        return not self.per_layer and self.keys.ndim == 4


@struct.dataclass
class DecodeState(_Decoded):
    """`n` continuations of each of `B` prompts, up to `T` tokens each. The shared prompt is stored once.

    Arrays are stacked over layers, or a tuple has one for each (`decodes_per_layer`): a layer then reads its own where
    it is, and not a copy of a part of the stack.

    The heads' axis is before the tokens' here: decoding reads all tokens of a head at every step, and with the layout
    of `Cache` it would transpose them each time. The tokens of keys come last: a query's product with them then takes a
    third or less of the time on a CPU, which has a fast product only for rows times columns.

    Or heads lie side by side (`_merges_heads`): all four are `[L, rows, tokens, K h]`.
    """

    prompt_keys: Layers
    """`[L, B, K, h, S]`, or tuples without the first axis, as all keys and values."""
    prompt_values: Layers
    """`[L, B, K, S, h]`."""
    lengths: Int[Array, "B"]
    """Tokens of each prompt; all others are padding."""
    keys: Layers
    """`[L, B n, K, h, T]`: the continuations of a prompt are rows in succession. (With an axis of their own, XLA makes
    copies of all of it, one without that axis for the products, at every step.)"""
    values: Layers
    """`[L, B n, K, T, h]`."""
    index: Int[Array, ""]
    """Tokens of each continuation so far, the same for all."""
    prefix: Prefix | None = None
    """The tokens before all prompts."""

    @staticmethod
    def create(
        prompts: Cache,
        lengths: Int[Array | np.ndarray, "B"],
        count: int,
        capacity: int,
        prefix: Prefix | None = None,
    ) -> DecodeState:
        """`count` empty continuations for up to `capacity` tokens, after right-padded prompts of `lengths` tokens
        that come after the `prefix`."""
        layers, batch, _, heads, size = prompts.keys.shape
        dtype = prompts.keys.dtype
        if _merges_heads(layers, prompts.keys):
            empty = jnp.zeros((layers, batch * count, capacity, heads * size), dtype)
            prompt_arrays = tuple(x.reshape(*x.shape[:3], heads * size) for x in (prompts.keys, prompts.values))
            arrays: Any = (*prompt_arrays, empty, empty)
        else:
            empty = jnp.zeros((layers, batch * count, heads, capacity, size), dtype)
            prompt_arrays = (jnp.moveaxis(prompts.keys, 2, -1), prompts.values.swapaxes(2, 3))
            arrays = (*prompt_arrays, empty.swapaxes(-1, -2), empty)
        if decodes_per_layer(layers):
            arrays = map(tuple, arrays)
        prompt_keys, prompt_values, keys, values = arrays
        return DecodeState(
            prompt_keys=prompt_keys,
            prompt_values=prompt_values,
            lengths=jnp.asarray(lengths, jnp.int32),
            keys=keys,
            values=values,
            index=jnp.zeros((), jnp.int32),
            prefix=prefix,
        )

    @property
    def capacities(self) -> tuple[int, int]:
        """Maximum number of tokens of a prompt, `S`, and of a continuation, `T`."""
        prompts, continuations = (x[0] if self.per_layer else x for x in (self.prompt_values, self.values))
        return prompts.shape[-2], continuations.shape[-2]

    def write(self, pair: Sequence[Array], key: Float[Array, "B n K h"], value: Float[Array, "B n K h"], *layer: Any):
        """Keys and values of the continuations with those of one more token each.

        **Arguments:** `pair`, the keys and values of one layer, or all of the stack with `layer`, its number.
        """
        key, value = (x.reshape(-1, *x.shape[2:]) for x in (key, value))
        index = self.index
        if self.merged:
            new: Any = tuple(x.reshape(len(x), 1, -1) for x in (key, value))
            starts: Any = [(*layer, 0, index, 0)] * 2
        else:
            new, starts = (key[..., None], value[:, :, None]), ((*layer, 0, 0, 0, index), (*layer, 0, 0, index, 0))
        new = tuple(n[None] for n in new) if layer else new
        written = [
            jax.lax.dynamic_update_slice(old, n.astype(old.dtype), start)
            for old, n, start in zip(pair, new, starts, strict=True)
        ]
        if not self.merged:
            return written
        # Else a TPU's compiler makes tokens the first axis, and transposes the cache for every product.
        return [on_each_device(_row_major, [(None, "batch")], (None, "batch"))(x) for x in written]

    def key_values(self, prompt: Sequence[Array], pair: Sequence[Array], masks: Sequence[Any]) -> list[KeyValues]:
        """Keys and values to which the next token of every continuation attends in one layer.

        **Arguments:** `prompt`, the keys and values of the prompts, and of the prefix if there is one; `pair`, those of
        the continuations; `masks`, of prompts, continuations and prefix.
        """
        prompt_axes, continuation_axes = _MERGED_HEADS if self.merged else HEADS
        sources = [
            KeyValues(prompt[0], prompt[1], masks[0], *prompt_axes),
            KeyValues(pair[0], pair[1], masks[1], *continuation_axes),
        ]
        return sources if self.prefix is None else [*sources, KeyValues(prompt[2], prompt[3], masks[2], "kth")]

    def rows(self, rows: Int[Array | np.ndarray, "R"]) -> DecodeState:
        """Continuations of some of the prompts."""
        batch, axis = self.lengths.shape[0], 0 if self.per_layer else 1

        def take(x: jax.Array) -> jax.Array:
            parts = x.reshape(*x.shape[:axis], batch, -1, *x.shape[axis + 1 :])
            return jnp.take(parts, rows, axis, mode="clip").reshape(*x.shape[:axis], -1, *x.shape[axis + 1 :])

        names = ("prompt_keys", "prompt_values", "keys", "values")
        arrays = {name: jax.tree.map(take, getattr(self, name)) for name in names}
        return dataclasses.replace(self, lengths=self.lengths[rows], **arrays)


@struct.dataclass
class Slots(_Decoded):
    """Keys and values of one text in each of `B` rows: the token at position `p` is in slot `p`, so that rows may be at
    different positions. What is in later slots is not seen, and is written over.

    Arrays have the orders of axes of `DecodeState`, and are stacked or separate as its are.

    Where heads lie side by side, the last tokens of a row are apart, in `recent`: on a TPU a write of one slot in each
    row passes over all slots, of which these are few. In every call of `Llama.extend` the rows that read, and one row
    of each group in turn, move them to their slots, so there are as many as a group has rows.
    """

    keys: Layers
    """`[L, B, K, h, T]`, or `[L, B, T, K h]` (`_merges_heads`)."""
    values: Layers
    """`[L, B, K, T, h]`, or `[L, B, T, K h]`."""
    recent: tuple[Array, ...] = ()
    """Keys and values of the last tokens, `[L, B, G, K h]`, or nothing."""
    first: Any = ()
    """int32 `[B]`: the position of the first token in `recent`; earlier ones are in slots."""
    turn: Any = ()
    """int32 `[]`: the row of each group whose turn it is to move its tokens."""

    @staticmethod
    def create(cache: Cache, group: int, most: int) -> Slots:
        """The tokens of a cache, which are in the slots of their positions, and room for as many more as `most`.

        **Arguments:** `group`, rows of a group; `most`, the most tokens of rows that read in a call of
        `Llama.extend`."""
        layers, rows, slots, heads, size = cache.keys.shape
        merged = _merges_heads(layers, cache.keys)
        room = max(most, group if merged else 0)
        if merged:
            room += -(slots + room) % TILE
        pair: Any = [jnp.pad(x, ((0, 0), (0, 0), (0, room), (0, 0), (0, 0))) for x in (cache.keys, cache.values)]
        if merged:
            keys, values = (x.reshape(layers, rows, slots + room, heads * size) for x in pair)
            recent = (jnp.zeros((layers, rows, group, heads * size), keys.dtype),) * 2
            return Slots(keys, values, recent, cache.lengths(), jnp.int32(0))
        pair = [jnp.moveaxis(pair[0], 2, -1), pair[1].swapaxes(2, 3)]
        keys, values = map(tuple, pair) if decodes_per_layer(layers) else pair
        return Slots(keys, values)

    @property
    def capacity(self) -> int:
        """Slots of a row, `T`."""
        return (self.values[0] if self.per_layer else self.values).shape[-2]

    @property
    def arrays(self) -> tuple[Layers, ...]:
        """Keys and values, and the recent ones."""
        return (self.keys, self.values, *self.recent)

    def write(
        self,
        arrays: Sequence[Array],
        key: Float[Array, "R M K h"],
        value: Float[Array, "R M K h"],
        places: Places,
        *layer: Any,
    ) -> list[Array]:
        """`arrays` of one layer, or of all with `layer`, its number, with those of one more token of each row, and then
        of more tokens of some rows of each group; see `Llama.extend`."""
        size, read = places.position.shape[1], places.read
        written, recent = [], []
        for i, (old, new, axis) in enumerate(zip(arrays, (key, value), (-2, -2) if self.merged else (-1, -2))):
            single, more = new[:, :size].reshape(-1, 1, *new.shape[2:]), new[:, size:]
            if self.merged:
                single, more = (x.reshape(*x.shape[:2], -1) for x in (single, more))
                held = jax.lax.dynamic_index_in_dim(arrays[2 + i], *layer, keepdims=False)
                writes = [Tokens(_rows_of(held, x), start, x) for x, start in places.moving]
                index = (places.position - places.first).reshape(-1)
                held = write_slots(held, [Tokens(single, index)], axis)
                recent.append(jax.lax.dynamic_update_index_in_dim(arrays[2 + i], held, *layer, 0))
            else:
                single = jnp.moveaxis(single, 1, axis)
                writes = [Tokens(single, places.position.reshape(-1))]
            for n in range(read.row.shape[1]):
                # what stands behind a row's own tokens is written over before it is seen
                block = _from(more, read.offset[:, n]) if n else more
                block = block if self.merged else jnp.moveaxis(block, 1, axis)
                writes.append(Tokens(block, read.start[:, n], read.row[:, n]))
            written.append(write_slots(old, writes, axis, layer))
        return written + recent

    def places(self, position: Int[Array, "R G"], read: Reading) -> tuple[Places, Slots]:
        """Slots in which a call of `Llama.extend` writes its tokens; and `self` with what says where tokens are after
        it."""
        if not self.recent:
            return Places(position, read), self
        numbers, first = jnp.arange(position.shape[1]), self.first.reshape(position.shape)
        # a row that reads has its tokens in slots: there they are seen by what it reads
        rows = [jnp.broadcast_to(self.turn, read.row[:, 0].shape), *read.row.T]
        moving = [(x, jnp.take_along_axis(first, x[:, None], axis=1)[:, 0]) for x in rows]
        reads = numbers == read.row[..., None]
        first = jnp.where(jnp.any(reads, axis=1) | (numbers == self.turn), position, first)
        # of each row that has read, the end of it
        end = jnp.max(
            jnp.where(reads & (read.length > 0)[..., None], (read.start + read.length)[..., None], -1), axis=1
        )
        after = jnp.where(end >= 0, end, first).reshape(-1)
        turn = (self.turn + 1) % position.shape[1]
        return Places(position, read, first, moving), self.replace(first=after, turn=turn)

    def visible(self, places: Places) -> list[tuple[Bool[Array, "B 1 t"], Int[Array, "c t"]]]:
        """Masks of what one more token of each row sees, with positions: of slots, and of recent tokens if there are
        some."""
        position, in_slots = places.position.reshape(-1, 1), jnp.arange(self.capacity)[None]
        if not self.recent:
            return [((in_slots <= position)[:, None], in_slots)]
        first = places.first.reshape(-1, 1)
        recent = first + jnp.arange(places.position.shape[1])
        return [((in_slots < first)[:, None], in_slots), ((recent <= position)[:, None], recent)]

    def of_rows(self, arrays: Sequence[Array], masks: Sequence[Any], *layer: Any) -> list[KeyValues]:
        """Keys and values that one more token of each row sees in one layer, for `attend`. **Arguments:** `masks`, of
        slots, and of recent tokens if there are some."""
        if layer:
            arrays = [jax.lax.dynamic_index_in_dim(x, *layer, keepdims=False) for x in arrays]
        axes = ("btc", "btc") if self.merged else ("bkth", "bkht")
        return [
            KeyValues(key, value, mask, *axes)
            for key, value, mask in zip(arrays[::2], arrays[1::2], masks, strict=True)
        ]

    def of_readers(self, arrays: Sequence[Array], mask: Any, read: Reading, heads: int, *layer: Any) -> list[KeyValues]:
        """Keys and values that more tokens of some rows of each group see in one layer, for `attend`: the slots of all
        these rows, one after the other."""
        key, value = (_rows_of(x, read.row, *layer) for x in arrays[:2])
        if self.merged:  # many queries: the products of each head, not all of them in one
            key, value = (x.reshape(len(x), -1, heads, x.shape[-1] // heads) for x in (key, value))
            return [KeyValues(key, value, mask)]
        key, value = (jnp.concatenate([*jnp.unstack(x, axis=1)], axis=axis) for x, axis in ((key, -1), (value, -2)))
        return [KeyValues(key, value, mask, "bkth", "bkht")]


class Reading(NamedTuple):
    """The rows of `R` groups that are given several tokens in a call of `Llama.extend`, `P` of each: different ones,
    whose tokens stand one after the other."""

    row: Int[Array, "R P"]
    """Their numbers in the group."""
    start: Int[Array, "R P"]
    """The position of the first token; where there is none, one that the row has no token at."""
    length: Int[Array, "R P"]
    """How many tokens there are."""

    @property
    def offset(self) -> Int[Array, "R P"]:
        """Numbers of the rows' first tokens among those of all."""
        return jnp.cumsum(self.length, axis=1) - self.length

    def order(self, most: int) -> tuple[Int[Array, "R S"], Int[Array, "R S"]]:
        """Rows to which `most` tokens belong, and their numbers in these; behind the last one those of the last row go
        on."""
        places = jnp.arange(most)
        offset = self.offset
        reader = jnp.sum(places >= offset[:, 1:, None], axis=1)
        return reader, places - jnp.take_along_axis(offset, reader, axis=1)


class Places(NamedTuple):
    """Slots in which a call of `Llama.extend` writes its tokens."""

    position: Int[Array, "R G"]
    """Of one token of each row."""
    read: Reading
    first: Any = ()
    """`[R, G]`: `Slots.first` where the tokens that move have moved."""
    moving: Any = ()
    """Pairs, `[R]` each: a row of each group whose recent tokens move to slots, and the slot of the first of these."""


def _from(x: Float[Array, "R S *k"], start: Int[Array, "R"]) -> Float[Array, "R S *k"]:
    """The tokens from `start` on, and behind the last one any."""
    index = jnp.minimum(start[:, None] + jnp.arange(x.shape[1]), x.shape[1] - 1)
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)


def _rows_of(x: Array, row: Int[Array, "R *P"], *layer: Any) -> Array:
    """One row, or several, of each group of successive rows of `x`, `[B, ...]`, or of one layer of `[L, B, ...]`."""
    if not layer or mesh_of(x) is not None:
        x = jax.lax.dynamic_index_in_dim(x, *layer, keepdims=False) if layer else x
        return jax.vmap(lambda group, row: group.at[row].get(mode="promise_in_bounds"))(grouped(x, len(row)), row)
    # from the stack: the layer's other rows are not copied
    first = jnp.arange(len(row)) * (x.shape[1] // len(row))
    return x.at[layer[0], first.reshape(-1, *(1,) * (row.ndim - 1)) + row].get(mode="promise_in_bounds")


def _row_major(x: jax.Array) -> jax.Array:
    """`x` in memory in the order of its axes, the last one fastest, wherever the compiler would choose another."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
