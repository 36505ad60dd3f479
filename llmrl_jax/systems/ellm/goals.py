"""Goals and suggestions as arrays on the device: strings, similarities, and a table from states to goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from llmrl_jax.lm.encoder import TextEncoder


NO_KEY = np.uint32(0xFFFFFFFF)
"""Fills unused places of arrays of keys; no state has this key."""
NAME_BYTES = 64
"""The longest goal, in bytes of UTF-8."""


@struct.dataclass
class Goals:
    """`G` goals, of which the first `A` are the captions of transitions; unused ones are zeros."""

    names: UInt8[Array, "G 64"]
    """UTF-8, padded with zeros."""
    count: Int[Array, ""]
    """Goals that are in use."""
    similarity: Float[Array, "A G"]
    """Cosine between the embeddings of each caption and each goal."""
    nearest: Int[Array, " G"]
    """The caption that is most similar to each goal."""
    twin: Int[Array, " G"]
    """A goal that counts as reached together with this one, a synonym; -1: none."""


@struct.dataclass
class Answers:
    """The suggestions that are known for `C` states, sorted by key; unused places have `NO_KEY`."""

    keys: UInt32[Array, " C"]
    goals: Int[Array, "C K"]
    """Ids of goals; -1 where there are fewer."""
    pending: UInt32[Array, " U"]
    """Keys that were sent to the host, or will be next."""
    counts: Int[Array, "5"]
    """`COUNTS` so far."""


COUNTS = ("asked", "malformed", "no_place_for_goals", "no_place_for_states", "not_collected")
"""States asked about; replies and goals that could not be read; goals and states without a place left; states that were
met when the buffer of an update was full (they are collected when met again)."""


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows divided by their L2 norm; zeros stay zeros."""
    norms = np.linalg.norm(x, axis=-1, keepdims=True)
    return (x / np.where(norms > 0, norms, 1.0)).astype(np.float32)


def cosines(encoder: TextEncoder, captions: Sequence[str], goals: Sequence[str]) -> Float[np.ndarray, "A N"]:
    """The cosine between the embedding of each caption and of each goal, at most 1."""
    both = unit_rows(encoder.encode_texts([*captions, *goals]))
    return np.minimum(both[: len(captions)] @ both[len(captions) :].T, 1.0)


def name_bytes(name: str) -> UInt8[np.ndarray, "64"]:
    """A goal as bytes. **Raises:** `ValueError` if it is longer than `NAME_BYTES`."""
    text = name.encode()
    if len(text) > NAME_BYTES:
        raise ValueError(f"the goal {name!r} has {len(text)} bytes; at most {NAME_BYTES} are possible")
    return np.frombuffer(text.ljust(NAME_BYTES, b"\0"), np.uint8)


def read_names(names: Any, count: int) -> list[str]:
    """The strings of the first `count` goals."""
    return [bytes(row).rstrip(b"\0").decode() for row in np.asarray(names)[:count]]


def start_goals(captions: Sequence[str], synonyms: Sequence[tuple[str, str]], encoder: TextEncoder, most: int) -> Goals:
    """Goals that are the captions, with place for more.

    **Arguments:** `captions`; `synonyms`, pairs of captions that are reached together; `encoder`; `most`, `G`.
    **Raises:** `ValueError` if `most` is less than the captions.
    """
    count = len(captions)
    if most < count:
        raise ValueError(f"goals.max_goals is {most}, but the world has {count} captions, which are goals: raise it")
    names = np.zeros((most, NAME_BYTES), np.uint8)
    for row, caption in zip(names, captions):
        row[:] = name_bytes(caption)
    similarity = np.zeros((count, most), np.float32)
    similarity[:, :count] = cosines(encoder, captions, captions)
    twin = np.full(most, -1, np.int32)
    for a, b in synonyms:
        if a in captions and b in captions:
            twin[captions.index(a)], twin[captions.index(b)] = captions.index(b), captions.index(a)
    nearest = np.argmax(similarity, axis=0).astype(np.int32)
    return Goals(*map(jnp.asarray, (names, np.int32(count), similarity, nearest, twin)))


def start_answers(capacity: int, per_state: int, at_once: int) -> Answers:
    """A table without answers. **Arguments:** `capacity`, `C`; `per_state`, `K`; `at_once`, `U`."""
    return Answers(
        keys=jnp.full(capacity, NO_KEY, jnp.uint32),
        goals=jnp.full((capacity, per_state), -1, jnp.int32),
        pending=jnp.full(at_once, NO_KEY, jnp.uint32),
        counts=jnp.zeros(len(COUNTS), jnp.int32),
    )


def find(answers: Answers, key: UInt32[Array, "*B"]) -> tuple[Int[Array, "*B"], Bool[Array, "*B"]]:
    """The place of keys in the table, and whether they are in it."""
    place = jnp.searchsorted(answers.keys, key, method="scan_unrolled")
    place = jnp.minimum(place, answers.keys.shape[0] - 1)
    return place, (answers.keys[place] == key) & (key != NO_KEY)


def distinct(keys: UInt32[Array, " N"], size: int) -> tuple[UInt32[Array, "size"], Int[Array, ""]]:
    """The distinct keys in ascending order, filled up with `NO_KEY`, and how many had no place."""
    ordered = jnp.sort(keys)
    first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]]) & (ordered != NO_KEY)
    kept = jnp.sort(jnp.where(first, ordered, NO_KEY))
    kept = jnp.pad(kept, (0, max(0, size - kept.shape[0])), constant_values=NO_KEY)[:size]
    return kept, jnp.maximum(jnp.sum(first) - size, 0)


def insert(answers: Answers, keys: UInt32[Array, " U"], goals: Int[Array, "U K"]) -> Answers:
    """The table with more answers, for which it must have places.

    **Arguments:** `keys`, which are not in the table; `NO_KEY` in unused places; `goals`, their goals.
    """
    every = jnp.concatenate([answers.keys, keys])
    order = jnp.argsort(every)[: answers.keys.shape[0]]
    return answers.replace(keys=every[order], goals=jnp.concatenate([answers.goals, goals])[order])


def ask_next(answers: Answers, keys: UInt32[Array, " U"]) -> Answers:
    """The table with the keys that the host is asked about next: those of `keys` without an answer, as far as there are
    places for their answers. The others are counted."""
    new = (keys != NO_KEY) & ~find(answers, keys)[1]
    fits = new & (jnp.cumsum(new) <= jnp.sum(answers.keys == NO_KEY))
    counts = answers.counts.at[COUNTS.index("no_place_for_states")].add(jnp.sum(new & ~fits))
    return answers.replace(pending=jnp.sort(jnp.where(fits, keys, NO_KEY)), counts=counts)


def packed(bits: Bool[Array, "*B A"]) -> UInt8[Array, "*B P"]:
    """A mask of captions, eight to a byte, as observations store it."""
    return jnp.packbits(bits, axis=-1)


def unpacked(bits: UInt8[Array, "*B P"], count: int) -> Bool[Array, "*B A"]:
    """The inverse of `packed`, for `count` captions."""
    return jnp.unpackbits(bits, axis=-1, count=count).astype(bool)
