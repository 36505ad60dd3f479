"""The fixed set of continuations that a policy chooses from, and the tree of their common prefixes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Trie:
    """Candidates with common prefixes merged. The last token of a candidate is predicted, not read, so it is a node
    only if it is also an inner token of another candidate."""

    tokens: tuple[int, ...]
    """The token of each of `M` nodes; parents precede their children."""
    depths: tuple[int, ...]
    """Distance from the prompt, 0 for first tokens."""
    ancestors: np.ndarray
    """bool `[M, M]`: node i sees node j, itself included."""
    source: np.ndarray
    """int32 `[A, W]`: the input that predicts token w of candidate a: 0, the last prompt token, or 1 + a node."""


@dataclass(frozen=True)
class Candidates:
    """`A` token sequences of at most `W` tokens. Static and hashable: part of the program, not of its data.

    Build one from lists of token ids, or with `Candidates.encode` from strings.
    """

    sequences: tuple[tuple[int, ...], ...]
    words: tuple[int, ...] = ()
    """Number of words of each candidate, for scores per word; empty: unknown."""

    def __init__(self, sequences: Sequence[Sequence[int]], words: Sequence[int] = ()):
        """**Raises:** `ValueError` if there is no candidate, one has no token, two are the same, or `words` is not one
        positive number for each."""
        kept = tuple(tuple(index(t) for t in sequence) for sequence in sequences)
        if not kept:
            raise ValueError("there are no candidates; at least 1 is needed")
        first: dict[tuple[int, ...], int] = {}
        for i, sequence in enumerate(kept):
            if not sequence:
                raise ValueError(f"candidate {i} is empty; each needs at least 1 token to have a probability")
            if min(sequence) < 0:
                raise ValueError(f"candidate {i} holds the token {min(sequence)}; tokens are at least 0")
            if (before := first.setdefault(sequence, i)) != i:
                raise ValueError(
                    f"candidates {before} and {i} are the same tokens, {list(sequence)}: a choice between them would "
                    "count twice; leave one out, or take a tokenizer that tells them apart"
                )
        if words and (len(words) != len(kept) or min(words) < 1):
            raise ValueError(f"words are {tuple(words)}; one number of at least 1 is needed for each of {len(kept)}")
        object.__setattr__(self, "sequences", kept)
        object.__setattr__(self, "words", tuple(int(n) for n in words))

    @staticmethod
    def encode(tokenizer: Any, texts: Sequence[str]) -> Candidates:
        """Candidates from strings, by a tokenizer's `encode(text) -> list[int]`. Words are separated by spaces.

        **Raises:** as the constructor, for a single string too."""
        if isinstance(texts, str):
            raise ValueError(f"the candidates are the string {texts!r}; a list of strings is needed")
        return Candidates([tokenizer.encode(text) for text in texts], [max(1, len(text.split())) for text in texts])

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def width(self) -> int:
        """Tokens of the longest candidate, `W`."""
        return max(len(s) for s in self.sequences)

    @cached_property
    def tokens(self) -> np.ndarray:
        """int32 `[A, W]`, 0 after each candidate's end."""
        out = np.zeros((len(self), self.width), np.int32)
        for row, sequence in zip(out, self.sequences, strict=True):
            row[: len(sequence)] = sequence
        return out

    @cached_property
    def lengths(self) -> np.ndarray:
        """int32 `[A]`."""
        return np.array([len(s) for s in self.sequences], np.int32)

    @cached_property
    def trie(self) -> Trie:
        """The tree of common prefixes."""
        nodes: dict[tuple[int, ...], int] = {}
        source = np.zeros((len(self), self.width), np.int32)
        for a, sequence in enumerate(self.sequences):
            for w in range(1, len(sequence)):
                source[a, w] = 1 + nodes.setdefault(sequence[:w], len(nodes))
        ancestors = np.zeros((len(nodes), len(nodes)), bool)
        for path, i in nodes.items():
            for w in range(1, len(path) + 1):
                ancestors[i, nodes[path[:w]]] = True
        return Trie(tuple(p[-1] for p in nodes), tuple(len(p) - 1 for p in nodes), ancestors, source)
