"""Text as integers on the device: phrases, and captions made of them.

A world says everything it can say with a finite `Phrasebook`; what it says now is a caption, an integer array of
phrase ids padded with -1. `envs_jax.text.prompt` builds token prompts from captions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, SupportsInt, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from envs_jax.checks import nearest


Caption = Any
"""An integer array `[C]` of phrase ids, padded with -1 at the end."""


@runtime_checkable
class Tokenizer(Protocol):
    """What this package needs of a tokenizer; `llmrl_jax.lm.tokens` has several."""

    vocab_size: int
    pad_id: int
    bos_id: int | None
    eos_id: int | None

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, without any special token (beginning of sequence and the like)."""
        ...

    def decode(self, ids: Iterable[SupportsInt]) -> str:
        """The text of token ids."""
        ...


@dataclass(frozen=True)
class TokenTable:
    """The tokens of the `P` phrases of a book, on the host."""

    tokens: np.ndarray
    """int32 `[P, W]`, right-padded with the tokenizer's `pad_id`."""
    lengths: np.ndarray
    """int32 `[P]`."""


class Phrasebook:
    """An ordered list of whole phrases: the id of a phrase is its place.

    Phrases begin and end with a letter or mark, never with white space, and no two are equal, so that a rendered
    caption is a plain join and `index` has one answer.
    """

    def __init__(
        self, phrases: Iterable[str], *, separator: str = ", ", name: str = "phrasebook", distinct: bool = True
    ):
        """**Arguments:** `phrases`, in the order of their ids; `separator`, what `render` puts between two phrases;
        `name`, for error messages; `distinct`, false for a translation that says two things alike.

        **Raises:** `ValueError` for an empty book, an empty phrase, white space at its ends, or a duplicate."""
        self.phrases, self.separator, self.name = tuple(phrases), separator, name
        self._index = {phrase: i for i, phrase in enumerate(self.phrases)}
        if not self.phrases:
            raise ValueError(f"{name}: a phrasebook needs at least one phrase")
        for phrase in self.phrases:
            if phrase != phrase.strip() or not phrase:
                raise ValueError(f"{name}: the phrase {phrase!r} is empty, or has white space at an end")
        if distinct and len(self._index) < len(self.phrases):
            twice = next(p for i, p in enumerate(self.phrases) if self._index[p] != i)
            raise ValueError(f"{name}: the phrase {twice!r} occurs twice")

    def __len__(self) -> int:
        return len(self.phrases)

    def __repr__(self) -> str:
        return f"Phrasebook({self.name!r}, {len(self)} phrases)"

    def index(self, phrase: str) -> int:
        """The id of a phrase. **Raises** `KeyError`, naming the nearest phrases, where the book lacks it."""
        if phrase not in self._index:
            raise KeyError(f"{self.name} has no phrase {phrase!r}{nearest(phrase, list(self.phrases))}")
        return self._index[phrase]

    def phrases_of(self, caption: Caption) -> list[str]:
        """The phrases of a caption, on the host. **Raises** `ValueError` for an id outside `-1 .. P - 1`."""
        ids = np.asarray(caption).reshape(-1).tolist()
        for i in ids:
            if not -1 <= i < len(self):
                raise ValueError(
                    f"{self.name}: no phrase has the id {i}; ids run from 0 to {len(self) - 1}, -1 is none"
                )
        return [self.phrases[i] for i in ids if i >= 0]

    def render(self, caption: Caption, separator: str | None = None) -> str:
        """The text of a caption: its phrases joined by `separator` (default: the book's own), on the host."""
        return (self.separator if separator is None else separator).join(self.phrases_of(caption))

    def caption(self, phrases: Sequence[str], length: int) -> np.ndarray:
        """The caption int16 `[length]` of a list of phrases, on the host; the inverse of `phrases_of`.

        **Raises:** `KeyError` for an unknown phrase, `ValueError` where there are more than `length`."""
        if len(phrases) > length:
            raise ValueError(f"{self.name}: {len(phrases)} phrases do not fit a caption of {length}")
        return np.array([self.index(p) for p in phrases] + [-1] * (length - len(phrases)), np.int16)

    def tokenize(self, tokenizer: Tokenizer, prefix: str = "", suffix: str = "") -> TokenTable:
        """The tokens of every phrase, as `tokenizer` encodes `prefix + phrase + suffix` by itself."""
        rows = [tokenizer.encode(prefix + phrase + suffix) for phrase in self.phrases]
        return pad_rows(rows, tokenizer.pad_id)


def pad_rows(rows: Sequence[Sequence[int]], pad_id: int) -> TokenTable:
    """Token lists as one right-padded table."""
    lengths = np.array([len(row) for row in rows], np.int32)
    tokens = np.full((len(rows), max(1, int(lengths.max(initial=0)))), pad_id, np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return TokenTable(tokens, lengths)


def compact(ids: jax.Array, length: int, head: Sequence[jax.Array] = ()) -> jax.Array:
    """The entries of `head` (scalars) and then of `ids` `[N]` that are not negative, in order, padded with -1 to
    `[length]`; those beyond `length` are dropped. At most 64 entries in all.

    The places that are taken are the bits of two words; the lowest set bit, cleared `length` times, names the source
    of each entry. On a CPU that takes half the time of a prefix sum with a scatter or a one-hot product, a tenth of
    that of `top_k`; entries that are apart are better given as `head` than concatenated, which XLA makes slow.
    """
    h, n = len(head), len(head) + ids.shape[0]
    if n > 64:
        raise ValueError(f"compact takes at most 64 entries, not {n}")
    bits = (ids >= 0).astype(jnp.uint32) << (np.arange(h, n, dtype=np.uint32) % 32)
    low, high = (jnp.sum(part, dtype=jnp.uint32) for part in (bits[: 32 - h], bits[32 - h :]))
    for i, entry in enumerate(head):
        low = low | (entry >= 0).astype(jnp.uint32) << np.uint32(i)
    places = []
    for _ in range(length):
        first = low != 0
        word = jnp.where(first, low, high)
        bit = word & (~word + jnp.uint32(1))
        place = jax.lax.population_count(bit - jnp.uint32(1)).astype(jnp.int32) + jnp.where(first, 0, 32)
        places.append(jnp.where(word != 0, place, n))
        low, high = jnp.where(first, low ^ bit, low), jnp.where(first, high, high ^ bit)
    place = jnp.stack(places)
    found = jnp.where(place < n, jnp.take(ids, place - h, mode="clip"), jnp.asarray(-1, ids.dtype))
    for i, entry in enumerate(head):
        found = jnp.where(place == i, entry.astype(ids.dtype), found)
    return found
