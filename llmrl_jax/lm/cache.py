"""Keys and values of the tokens so far, in arrays of fixed capacity: of prompts (`Cache`, `Prefix`), and of the
continuations that are decoded after them (`DecodeState`); and of texts at different positions (`Slots`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int

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
        """Cache with `positions` in the next `S` slots; their keys and values are written by `write`."""
        updated = jax.lax.dynamic_update_slice(self.positions, jnp.asarray(positions, jnp.int32), (0, self.index))
        return dataclasses.replace(self, positions=updated, index=self.index + positions.shape[1])

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
    """

    keys: Layers
    """`[L, B, K, h, T]`, or `[L, B, T, K h]` (`_merges_heads`)."""
    values: Layers
    """`[L, B, K, T, h]`, or `[L, B, T, K h]`."""

    @staticmethod
    def create(cache: Cache, room: int) -> Slots:
        """The tokens of a cache, which are in the slots of their positions, and `room` for as many more."""
        layers, rows, slots, heads, size = cache.keys.shape
        pair = [jnp.pad(x, ((0, 0), (0, 0), (0, room), (0, 0), (0, 0))) for x in (cache.keys, cache.values)]
        if _merges_heads(layers, cache.keys):
            pair = [x.reshape(layers, rows, slots + room, heads * size) for x in pair]
        else:
            pair = [jnp.moveaxis(pair[0], 2, -1), pair[1].swapaxes(2, 3)]
        keys, values = map(tuple, pair) if decodes_per_layer(layers) else pair
        return Slots(keys, values)

    @property
    def capacity(self) -> int:
        """Slots of a row, `T`."""
        return (self.values[0] if self.per_layer else self.values).shape[-2]

    def write(
        self,
        pair: Sequence[Array],
        key: Float[Array, "R M K h"],
        value: Float[Array, "R M K h"],
        position: Int[Array, "R G"],
        row: Int[Array, "R"],
        start: Int[Array, "R"],
        *layer: Any,
    ) -> list[Array]:
        """Keys and values with those of one more token of each row, at `position`, and then of more tokens of one `row`
        of each group, from `start` on; see `Llama.extend`.

        **Arguments:** `pair`, the keys and values of one layer, or all of the stack with `layer`, its number.
        """
        size = position.shape[1]

        written = []
        for old, new, axis in zip(pair, (key, value), (-2, -2) if self.merged else (-1, -2), strict=True):
            single, more = new[:, :size].reshape(-1, 1, *new.shape[2:]), new[:, size:]
            if self.merged:
                single, more = (x.reshape(*x.shape[:2], -1) for x in (single, more))
            else:
                single, more = (jnp.moveaxis(x, 1, axis) for x in (single, more))
            writes = [Tokens(single, position.reshape(-1)), Tokens(more, start, row)]
            written.append(write_slots(old, writes, axis, layer))
        return written

    def read(self, pair: Sequence[Array], *layer: Any, row: Int[Array, "R"] | None = None) -> list[Array]:
        """Keys and values of one layer; of one row of each group, or of all rows (None)."""
        if layer:
            pair = [jax.lax.dynamic_index_in_dim(x, *layer, keepdims=False) for x in pair]
        if row is None:
            return list(pair)
        take = jax.vmap(partial(jax.lax.dynamic_index_in_dim, keepdims=False))
        return [take(grouped(x, len(row)), row) for x in pair]

    def key_values(self, pair: Sequence[Array], mask: Any) -> list[KeyValues]:
        """Keys and values from `read`, for `attend`."""
        axes = ("btc", "btc") if self.merged else ("bkth", "bkht")
        return [KeyValues(pair[0], pair[1], mask, *axes)]


def _row_major(x: jax.Array) -> jax.Array:
    """`x` in memory in the order of its axes, the last one fastest, wherever the compiler would choose another."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
